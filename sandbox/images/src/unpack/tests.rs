//! Layers that tests write themselves, also malformed ones, and archives of GNU tar.

use std::fs;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};
use tempfile::{TempDir, tempdir};

use super::*;

const LIMITS: Limits = Limits { entries: 100, bytes: 1 << 20 };

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

/// Unpacks into `outer/layer`, so that a test sees what is written beside it.
fn unpacked(tar: &[u8]) -> (TempDir, Result<Contents, UnpackError>) {
    let outer = tempdir().unwrap();
    let layer = outer.path().join("layer");
    fs::create_dir(&layer).unwrap();
    let folder = fs::File::open(layer).unwrap();
    let contents = unpack(tar, folder.as_fd(), None, LIMITS);
    (outer, contents)
}

fn refusal(entries: &[(EntryType, &str, &str, u32)]) -> Refusal {
    let (outer, contents) = unpacked(&archive(entries));
    assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1, "something is beside the layer");
    match contents.unwrap_err() {
        UnpackError::Refused { refusal, .. } => refusal,
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
    let (outer, contents) = unpacked(&tar);
    assert_eq!(contents.unwrap().bytes, 8);
    let at = |name: &str| fs::symlink_metadata(outer.path().join("layer").join(name));
    let mode = |name: &str| at(name).unwrap().permissions().mode() & 0o7777;
    let read = |name: &str| fs::read_to_string(outer.path().join("layer").join(name)).unwrap();
    assert_eq!(read("bin/cat"), "program");
    assert_eq!((mode("usr/bin/cat"), at("usr/bin/cat").unwrap().nlink()), (0o755, 2));
    assert_eq!(at("usr/bin/cat").unwrap().mtime(), 1_000_000_000);
    assert_eq!(at("usr/bin/tac").unwrap().ino(), at("usr/bin/cat").unwrap().ino());
    assert_eq!(fs::read_link(outer.path().join("layer/etc")).unwrap(), Path::new("/somewhere"));
    assert_eq!((mode("usr"), mode("tmp"), mode("secret")), (0o755, 0o1777, 0o400));
    assert!(at("dev/sda").is_err() && at("pipe").is_err());
}

#[test]
fn names_are_resolved_in_the_layer() {
    // A link of the layer that leads out of it leads to its own root instead.
    let tar = archive(&[
        (FOLDER, "lib", "", 0o755),
        (SYMLINK, "out", "../../lib", 0o777),
        (SYMLINK, "abs", "/lib", 0o777),
        (FILE, "out/a", "1", 0o644),
        (FILE, "abs/b", "2", 0o644),
    ]);
    let (outer, contents) = unpacked(&tar);
    contents.unwrap();
    assert_eq!(fs::read_dir(outer.path().join("layer/lib")).unwrap().count(), 2);
    assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1);
    // A file replaces the link with its name, and not what the link leads to.
    let tar = archive(&[
        (FILE, "a", "old", 0o644),
        (SYMLINK, "b", "a", 0o777),
        (FILE, "b", "new", 0o644),
        (FOLDER, "d/e", "", 0o755),
        (FILE, "d", "file", 0o644),
        (FOLDER, "a", "", 0o700),
    ]);
    let (outer, contents) = unpacked(&tar);
    contents.unwrap();
    let read = |name: &str| fs::read_to_string(outer.path().join("layer").join(name)).unwrap();
    assert_eq!((read("b"), read("d")), ("new".to_owned(), "file".to_owned()));
    assert!(outer.path().join("layer/a").is_dir());
}

#[test]
fn what_would_leave_the_layer_is_refused() {
    assert_eq!(refusal(&[(FILE, "../x", "", 0o644)]), Refusal::ParentFolder);
    assert_eq!(refusal(&[(LINK, "x", "../../etc/passwd", 0)]), Refusal::ParentFolder);
    assert_eq!(refusal(&[(LINK, "x", "missing", 0)]), Refusal::Path);
    assert_eq!(refusal(&[(FILE, "f", "", 0o644), (FILE, "f/x", "", 0o644)]), Refusal::Path);
    assert_eq!(refusal(&[(SYMLINK, "l", "l", 0o777), (FILE, "l/x", "", 0o644)]), Refusal::Path);
    assert_eq!(refusal(&[(SYMLINK, "l", "nowhere", 0o777), (FILE, "l/x", "", 0o644)]), Refusal::Path);
    assert_eq!(refusal(&[(EntryType::new(b'Z'), "x", "", 0o644)]), Refusal::Type);
    let magic = "/proc/self/root";
    assert_eq!(refusal(&[(SYMLINK, "l", magic, 0o777), (FILE, "l/x", "", 0o644)]), Refusal::Path);
}

#[test]
fn whiteouts_become_marks_and_a_list() {
    let tar = archive(&[
        (FILE, "a/.wh.gone", "", 0o644),
        (FILE, "b/.wh..wh..opq", "", 0o644),
        (FILE, "a/kept", "", 0o644),
        (FILE, "a/.wh.kept", "", 0o644),
    ]);
    let (outer, contents) = unpacked(&tar);
    let contents = contents.unwrap();
    assert_eq!(contents.whiteouts, [Path::new("a/gone"), Path::new("a/kept")]);
    assert_eq!(contents.opaque, [Path::new("b")]);
    assert!(contents.has_marks, "this file system or kernel has no marks");
    let mark = fs::symlink_metadata(outer.path().join("layer/a/gone")).unwrap();
    assert!(mark.file_type().is_char_device() && mark.rdev() == 0);
}

#[test]
fn sizes_are_limited() {
    let many: Vec<_> = (0..101).map(|_| (FILE, "x", "", 0o644)).collect();
    assert!(matches!(unpacked(&archive(&many)).1, Err(UnpackError::TooLarge { unit: "entries", .. })));
    let large = "x".repeat(600 << 10);
    let twice = archive(&[(FILE, "a", &large, 0o644), (FILE, "b", &large, 0o644)]);
    assert!(matches!(unpacked(&twice).1, Err(UnpackError::TooLarge { unit: "bytes", .. })));
    // A name that would need a lot of memory.
    let name = "n".repeat(2 << 20);
    let tar = archive(&[(EntryType::GNULongName, "././@LongLink", &name, 0o644), (FILE, "x", "", 0o644)]);
    let error = unpacked(&tar).1.unwrap_err().to_string();
    assert!(error.contains("longer than 1 MiB"), "{error}");
    // Zeros that take no room in the archive.
    let mut header = Header::new_gnu();
    header.set_path("sparse").unwrap();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_size(0);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.realsize.copy_from_slice(b"000777777777");
    gnu.sparse[0].offset.copy_from_slice(b"000777777777");
    gnu.sparse[0].numbytes.copy_from_slice(b"000000000000");
    header.set_cksum();
    let mut tar = Builder::new(Vec::new());
    tar.append(&header, &[][..]).unwrap();
    assert!(matches!(unpacked(&tar.into_inner().unwrap()).1, Err(UnpackError::TooLarge { .. })));
}

#[test]
fn long_names_and_sparse_files_of_gnu_tar() {
    let outer = tempdir().unwrap();
    let long = format!("{}/{}", "d".repeat(200), "f".repeat(200));
    fs::create_dir(outer.path().join("d".repeat(200))).unwrap();
    let file = fs::File::create(outer.path().join(&long)).unwrap();
    file.set_len(512 << 10).unwrap();
    (&file).write_all(b"start").unwrap();
    file.write_all_at(b"middle", 300 << 10).unwrap();
    for format in ["--format=gnu", "--sparse-version=0.0", "--sparse-version=0.1", "--sparse-version=1.0"] {
        let run = std::process::Command::new("tar")
            .args(["--sparse", format, "-cf", "-", &long])
            .current_dir(&outer)
            .output()
            .unwrap();
        assert!(run.status.success());
        let (unpacked, contents) = unpacked(&run.stdout);
        assert_eq!(contents.unwrap().bytes, 512 << 10, "{format}");
        let file = unpacked.path().join("layer").join(&long);
        assert!(fs::read(&file).unwrap() == fs::read(outer.path().join(&long)).unwrap(), "{format}");
        assert!(fs::metadata(file).unwrap().blocks() < 600, "{format}: the holes are filled");
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
