//! Layers that tests write themselves, also malformed ones, and archives of GNU tar.

use std::fs;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};
use tempfile::{TempDir, tempdir};

use super::*;

const LIMITS: Size = Size { entries: 400, bytes: 4 << 20 };

/// An archive of entries: type, name, link target or data, mode.
fn archive(entries: &[(EntryType, &str, &str, u32)]) -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    for (kind, name, text, mode) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        header.set_mtime(1_000_000_000);
        // Not `set_path`, which refuses what these tests need.
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        let is_link = matches!(kind, EntryType::Symlink | EntryType::Link);
        if is_link {
            header.as_gnu_mut().unwrap().linkname[..text.len()].copy_from_slice(text.as_bytes());
        }
        let data = if is_link { "" } else { text };
        header.set_size(data.len() as u64);
        header.set_cksum();
        tar.append(&header, data.as_bytes()).unwrap();
    }
    tar.into_inner().unwrap()
}

/// Unpacks layers into `outer/root`, so that a test sees what is written beside it.
fn unpacked(layers: &[&[u8]]) -> (TempDir, Result<Size, UnpackError>) {
    let outer = tempdir().unwrap();
    let root = outer.path().join("root");
    fs::create_dir(&root).unwrap();
    let folder = fs::File::open(root).unwrap();
    let mut size = Ok(Size::default());
    for layer in layers {
        size = size.and_then(|_| unpack(*layer, folder.as_fd(), LIMITS));
    }
    assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1, "something is beside the root");
    (outer, size)
}

type Entries<'a> = &'a [(EntryType, &'a str, &'a str, u32)];

/// The names in the root after these layers: of folders with a slash, of links with their target.
fn names(layers: &[Entries<'_>]) -> Vec<String> {
    fn walk(folder: &Path, prefix: &str, names: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                names.push(format!("{name}/"));
                walk(&entry.path(), &format!("{name}/"), names);
            } else if kind.is_symlink() {
                names.push(format!("{name} -> {}", fs::read_link(entry.path()).unwrap().display()));
            } else {
                names.push(name);
            }
        }
    }
    let layers: Vec<_> = layers.iter().map(|layer| archive(layer)).collect();
    let (outer, size) = unpacked(&layers.iter().map(Vec::as_slice).collect::<Vec<_>>());
    size.unwrap();
    let mut names = Vec::new();
    walk(&outer.path().join("root"), "", &mut names);
    names.sort();
    names
}

fn refusal(entries: Entries<'_>) -> String {
    match unpacked(&[&archive(entries)]).1.unwrap_err() {
        UnpackError::Entry { source, .. } => source.to_string(),
        other => panic!("{other}"),
    }
}

const FILE: EntryType = EntryType::Regular;
const FOLDER: EntryType = EntryType::Directory;
const SYMLINK: EntryType = EntryType::Symlink;
const LINK: EntryType = EntryType::Link;

#[test]
fn a_layer_becomes_a_folder() {
    let tar = archive(&[
        (FOLDER, "./", "", 0o755),
        (FOLDER, "usr/", "", 0o555),
        (FILE, "usr/bin/cat", "program", 0o4755),
        (LINK, "usr/bin/tac", "usr/bin/cat", 0),
        (SYMLINK, "bin", "usr/bin", 0o777),
        (SYMLINK, "etc", "/somewhere", 0o777),
        (EntryType::Block, "dev/sda", "", 0o666),
        (EntryType::Fifo, "pipe", "", 0o666),
        (FOLDER, "tmp", "", 0o1777),
        (FILE, "secret", "s", 0),
    ]);
    let (outer, size) = unpacked(&[&tar]);
    // Files, folders, links, and what the two that are left out may hide.
    assert_eq!(size.unwrap().entries, 12);
    let at = |name: &str| fs::symlink_metadata(outer.path().join("root").join(name));
    let mode = |name: &str| at(name).unwrap().permissions().mode() & 0o7777;
    let read = |name: &str| fs::read_to_string(outer.path().join("root").join(name)).unwrap();
    assert_eq!(read("bin/cat"), "program");
    assert_eq!((mode("usr/bin/cat"), at("usr/bin/cat").unwrap().nlink()), (0o755, 2));
    assert_eq!(at("usr/bin/cat").unwrap().mtime(), 1_000_000_000);
    assert_eq!(at("usr/bin/tac").unwrap().ino(), at("usr/bin/cat").unwrap().ino());
    assert_eq!(fs::read_link(outer.path().join("root/etc")).unwrap(), Path::new("/somewhere"));
    assert_eq!((mode("usr"), mode("tmp"), mode("secret")), (0o755, 0o1777, 0o400));
    assert!(at("dev/sda").is_err() && at("pipe").is_err());
}

#[test]
fn names_are_cleaned() {
    for name in ["usr/bin/x", "/usr/bin/x", "./usr//bin/./x/", "../usr/lib/../bin/x", "/../usr/bin/x"] {
        assert_eq!(clean(name.as_bytes()).unwrap(), Path::new("usr/bin/x"), "{name}");
    }
    for name in ["", "./", "/", "a/..", "../.."] {
        assert_eq!(clean(name.as_bytes()).unwrap(), Path::new(""), "{name}");
    }
    assert!(clean(b"a\0b").is_err());
}

#[test]
fn names_are_resolved_in_the_root() {
    // A link that leads out of the root leads to the root itself.
    let lower: Entries<'_> =
        &[(FOLDER, "lib", "", 0o755), (SYMLINK, "out", "../../lib", 0), (SYMLINK, "abs", "/lib", 0)];
    let upper: Entries<'_> =
        &[(FILE, "out/a", "1", 0o644), (FILE, "abs/b", "2", 0o644), (FILE, "../c", "", 0o644)];
    let both = ["abs -> /lib", "c", "lib/", "lib/a", "lib/b", "out -> ../../lib"];
    assert_eq!(names(&[lower, upper]), both);
    // One that leads nowhere becomes a folder there.
    let dangling: Entries<'_> = &[(SYMLINK, "l", "no/../where", 0), (FILE, "l/x", "", 0o644)];
    assert_eq!(names(&[dangling]), ["l -> no/../where", "where/", "where/x"]);
    // An entry replaces what has its name, and not what that leads to.
    let lower: Entries<'_> = &[
        (FILE, "a", "old", 0o644),
        (SYMLINK, "b", "a", 0),
        (FOLDER, "d/e", "", 0o755),
        (SYMLINK, "f", "d", 0),
    ];
    let upper: Entries<'_> = &[
        (FILE, "b", "new", 0o644),
        (FILE, "d", "file", 0o644),
        (FOLDER, "a", "", 0o700),
        (FOLDER, "f", "", 0o755),
    ];
    assert_eq!(names(&[lower, upper]), ["a/", "b", "d", "f/"]);
}

#[test]
fn what_no_well_formed_layer_has_is_refused() {
    assert_eq!(refusal(&[(LINK, "x", "missing", 0)]), "a link has no valid target");
    assert_eq!(refusal(&[(FILE, "x", "", 0), (LINK, "x", "x", 0)]), "a link has no valid target");
    assert_eq!(refusal(&[(FOLDER, "d", "", 0o755), (LINK, "x", "d", 0)]), "a link has no valid target");
    assert_eq!(
        refusal(&[(FILE, "f", "", 0o644), (FILE, "f/x", "", 0o644)]),
        "a path leads through a file, or through too many links"
    );
    assert_eq!(
        refusal(&[(SYMLINK, "l", "l", 0o777), (FILE, "l/x", "", 0o644)]),
        "a path leads through a file, or through too many links"
    );
    assert_eq!(refusal(&[(EntryType::new(b'Z'), "x", "", 0o644)]), "a file's type is not known");
    assert_eq!(refusal(&[(FILE, "./", "", 0o644)]), "a file has no name");
    for name in ["a/.wh.", "a/.wh..", "a/.wh..."] {
        assert_eq!(refusal(&[(FILE, name, "", 0)]), "a whiteout names no file");
    }
    assert_eq!(
        refusal(&[(FILE, &"n".repeat(99), "", 0), (FOLDER, "d", "data", 0o755)]),
        "a header announces data that its type has not: other programs read other files"
    );
}

#[test]
fn the_depth_is_that_behind_links() {
    // Each name has 40 folders at most, and each link adds 40.
    let mut entries = Vec::new();
    let folders = "d/".repeat(40);
    let names: Vec<_> =
        (0..8).map(|number| (format!("l{number}/{folders}"), format!("l{}", number + 1))).collect();
    let links: Vec<_> = names.iter().map(|(folder, link)| (link.clone(), folder.clone())).collect();
    for ((folder, _), (link, target)) in names.iter().zip(&links) {
        entries.push((FOLDER, &**folder, "", 0o755));
        entries.push((SYMLINK, &**link, &**target, 0));
    }
    assert_eq!(refusal(&entries), "a path is longer than Linux allows, or deeper than 256 folders");
}

#[test]
fn whiteouts_hide_lower_layers_only() {
    let lower: Entries<'_> = &[
        (FILE, "a/x", "", 0o644),
        (FILE, "a/y", "", 0o644),
        (FILE, "b/z", "", 0o644),
        (FILE, "c", "", 0o644),
    ];
    for (upper, expected) in [
        (&[(FILE, ".wh.a", "", 0), (FILE, "a/new", "", 0o644)][..], &["a/", "a/new", "b/", "b/z", "c"][..]),
        (&[(FILE, "a/new", "", 0o644), (FILE, ".wh.a", "", 0)], &["a/", "a/new", "b/", "b/z", "c"]),
        (&[(FILE, "a/.wh..wh..opq", "", 0), (FILE, "a/x", "", 0o644)], &["a/", "a/x", "b/", "b/z", "c"]),
        (&[(FILE, "a/x", "", 0o644), (FILE, "a/.wh..wh..opq", "", 0)], &["a/", "a/x", "b/", "b/z", "c"]),
        (&[(FILE, "b/.wh.z", "", 0), (FILE, ".wh.c", "", 0)], &["a/", "a/x", "a/y", "b/"]),
        (&[(FILE, "no/.wh.z", "", 0), (FILE, "c/.wh.z", "", 0)], &["a/", "a/x", "a/y", "b/", "b/z", "c"]),
        (&[(EntryType::Char, "c", "", 0), (FILE, ".wh.a", "", 0)], &["b/", "b/z"]),
    ] {
        assert_eq!(names(&[lower, upper]), expected, "{upper:?}");
    }
}

#[test]
fn a_hard_link_reaches_lower_layers() {
    let lower: Entries<'_> = &[(FILE, "usr/bin/a", "program", 0o755), (SYMLINK, "bin", "usr/bin", 0)];
    let (outer, size) = unpacked(&[&archive(lower), &archive(&[(LINK, "bin/b", "bin/a", 0)])]);
    size.unwrap();
    let at = |name: &str| fs::metadata(outer.path().join("root/usr/bin").join(name)).unwrap().ino();
    assert_eq!(at("a"), at("b"));
    // Its copy in an overlay counts.
    let half = "x".repeat(2400 << 10);
    let lower = archive(&[(FILE, "a", &half, 0o644)]);
    let upper = archive(&[(LINK, "b", "a", 0), (FILE, "c", &half, 0o644)]);
    assert!(format!("{:?}", unpacked(&[&lower, &upper]).1).contains("TooLarge"));
}

#[test]
fn an_archive_may_end_without_padding_and_not_otherwise() {
    let tar = archive(&[(FILE, "f", "abcd", 0o644)]);
    for (length, is_whole) in [(516, true), (1000, true), (1024, true), (515, false), (511, false)] {
        assert_eq!(unpacked(&[&tar[..length]]).1.is_ok(), is_whole, "{length} bytes");
    }
    let behind = |bytes: Vec<u8>| unpacked(&[&[&*tar, &*bytes].concat()]).1;
    behind(vec![b'x'; 512 << 10]).unwrap();
    assert!(behind(vec![0; 2 << 20]).unwrap_err().to_string().contains("longer than 1 MiB"));
    // Others would read a second file.
    let mut two = tar[..1024].to_vec();
    two.extend([0; 512]);
    two.extend(&tar[..1024]);
    assert!(unpacked(&[&two]).1.unwrap_err().to_string().contains("single block"));
}

#[test]
fn times_may_be_exact() {
    let mut tar = Builder::new(Vec::new());
    tar.append_pax_extensions([("mtime", &b"1600000000.25"[..])]).unwrap();
    let tar = [tar.into_inner().unwrap()[..1024].to_vec(), archive(&[(FILE, "f", "", 0o644)])].concat();
    let (outer, size) = unpacked(&[&tar]);
    size.unwrap();
    let file = fs::metadata(outer.path().join("root/f")).unwrap();
    assert_eq!((file.mtime(), file.mtime_nsec()), (1_600_000_000, 250_000_000));
}

#[test]
fn sizes_are_limited() {
    let many: Vec<_> = (0..401).map(|_| (FILE, "x", "", 0o644)).collect();
    assert!(matches!(unpacked(&[&archive(&many)]).1, Err(UnpackError::TooMany(400))));
    let large = "x".repeat(2400 << 10);
    let twice = archive(&[(FILE, "a", &large, 0o644), (FILE, "b", &large, 0o644)]);
    assert!(format!("{:?}", unpacked(&[&twice]).1).contains("TooLarge"));
    let folders: Vec<_> = (0..250).map(|number| format!("{number}/x")).collect();
    let many: Vec<_> = folders.iter().map(|name| (FOLDER, &**name, "", 0o755)).collect();
    assert!(matches!(unpacked(&[&archive(&many)]).1, Err(UnpackError::TooMany(400))));
    // A name that would need a lot of memory.
    let name = "n".repeat(2 << 20);
    let tar = archive(&[(EntryType::GNULongName, "././@LongLink", &name, 0o644), (FILE, "x", "", 0o644)]);
    let error = unpacked(&[&tar]).1.unwrap_err().to_string();
    assert!(error.contains("longer than 1 MiB"), "{error}");
}

#[test]
fn long_names_of_gnu_tar_are_read_and_sparse_files_refused() {
    let outer = tempdir().unwrap();
    let long = format!("{}/{}", "d".repeat(200), "f".repeat(200));
    fs::create_dir(outer.path().join("d".repeat(200))).unwrap();
    let file = fs::File::create(outer.path().join(&long)).unwrap();
    file.set_len(512 << 10).unwrap();
    let tar = |format: &str| {
        let mut tar = std::process::Command::new("tar");
        tar.args(["--sparse", format, "-cf", "-", &long]).current_dir(&outer).output().unwrap().stdout
    };
    for format in ["--format=gnu", "--sparse-version=0.0", "--sparse-version=0.1", "--sparse-version=1.0"] {
        let error = unpacked(&[&tar(format)]).1.unwrap_err().to_string();
        assert!(error.contains("sparse"), "{format}: {error}");
    }
    file.set_len(0).unwrap();
    for format in ["--format=gnu", "--format=pax"] {
        let (unpacked, size) = unpacked(&[&tar(format)]);
        size.unwrap();
        assert!(unpacked.path().join("root").join(&long).exists(), "{format}");
    }
}

#[test]
fn layers_may_be_compressed() {
    let tar = archive(&[(FILE, "x", "data", 0o644)]);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&tar).unwrap();
    let gzip = gzip.finish().unwrap();
    let zstd = zstd::stream::encode_all(&*tar, 3).unwrap();
    for stream in [&tar, &gzip, &zstd] {
        let mut read = Vec::new();
        decompressed(&**stream).unwrap().read_to_end(&mut read).unwrap();
        assert_eq!(read, tar);
    }
    // A stream that ends too early is not a short layer.
    assert!(decompressed(&gzip[..gzip.len() - 9]).unwrap().read_to_end(&mut Vec::new()).is_err());
    assert!(decompressed(&zstd[..zstd.len() - 1]).unwrap().read_to_end(&mut Vec::new()).is_err());
}
