//! Layer sets for the comparison with umoci. The seed is fixed, so a failure repeats.

use porch_fn_tests::random::Random;
use tar::{Builder, EntryType, Header};

pub(super) const CLASSES: [&str; 11] = [
    "links",
    "whiteouts",
    "opaque marks",
    "hard links",
    "missing folders",
    "duplicates",
    "other order",
    "no padding",
    "PAX",
    "GNU",
    "devices",
];
const SETS: usize = 200;
/// Names of folders, and of links to them.
const FOLDERS: [&str; 5] = ["a", "b", "c", "lib", "usr"];
/// Names that are rarely those of folders: a path through a file is refused.
const FILES: [&str; 4] = ["f", "g", "h", "lib"];

/// Layers of one image, the lowest first.
pub(super) struct Set {
    pub classes: Vec<&'static str>,
    pub layers: Vec<Vec<u8>>,
    /// The entries, for the message of a failure.
    pub entries: Vec<Vec<String>>,
    /// Whether a hard link leads to a file of a lower layer.
    pub links_lower: bool,
}

#[derive(Debug, Clone)]
enum Kind {
    Folder,
    File(Vec<u8>),
    Symlink(String),
    HardLink(String),
    Whiteout,
    Opaque,
    Pipe,
}

#[derive(Debug, Clone)]
struct Entry {
    path: String,
    kind: Kind,
    mode: u32,
    time: u64,
}

pub(super) fn sets() -> Vec<Set> {
    let mut random = Random(0x5eed);
    (0..SETS).map(|number| set(&mut random, number)).collect()
}

fn set(random: &mut Random, number: usize) -> Set {
    let mut classes = vec![CLASSES[number % CLASSES.len()]];
    let other = CLASSES[random.below(CLASSES.len())];
    if !classes.contains(&other) {
        classes.push(other);
    }
    let mut set = Set { classes, layers: Vec::new(), entries: Vec::new(), links_lower: false };
    // Paths of regular files, and the number of the layer.
    let mut files: Vec<(String, usize)> = Vec::new();
    for layer in 0..2 + random.below(3) {
        let mut entries = Vec::new();
        for _ in 0..4 + random.below(7) {
            entries.extend(entry(random, &set.classes, layer, &mut files, &mut set.links_lower));
        }
        if set.classes.contains(&"duplicates") {
            let mut again = entries[random.below(entries.len())].clone();
            if random.below(2) == 0 && !matches!(again.kind, Kind::Folder) {
                again.kind = Kind::File(b"again".to_vec());
            }
            if !matches!(again.kind, Kind::HardLink(_)) {
                entries.push(again);
            }
        }
        if set.classes.contains(&"other order") {
            for from in (1..entries.len()).rev() {
                entries.swap(from, random.below(from + 1));
            }
        }
        set.entries.push(entries.iter().map(Entry::text).collect());
        set.layers.push(write(random, &entries, &set.classes));
    }
    set
}

fn folder(random: &mut Random) -> String {
    let depth = 1 + random.below(3);
    (0..depth).map(|_| FOLDERS[random.below(FOLDERS.len())]).collect::<Vec<_>>().join("/")
}

fn file(random: &mut Random) -> String {
    // One in sixteen replaces a folder, or is replaced by one.
    let name = if random.below(16) == 0 { FOLDERS[random.below(3)] } else { FILES[random.below(3)] };
    format!("{}/{name}", folder(random))
}

/// An entry, and the folders above it unless they may be missing.
fn entry(
    random: &mut Random,
    classes: &[&str],
    layer: usize,
    files: &mut Vec<(String, usize)>,
    links_lower: &mut bool,
) -> Vec<Entry> {
    let has = |class: &str| classes.contains(&class);
    let mut path = file(random);
    let roll = random.below(10);
    let kind = match roll {
        0..=3 if has("links") => {
            path = if random.below(3) == 0 { path } else { folder(random) };
            Kind::Symlink(target(random))
        }
        0..=2 if has("whiteouts") && layer > 0 => {
            path = if random.below(2) == 0 { path } else { folder(random) };
            Kind::Whiteout
        }
        3 | 4 if has("opaque marks") && layer > 0 => {
            path = folder(random);
            Kind::Opaque
        }
        5 | 6 if has("hard links") && files.iter().any(|(file, _)| *file != path) => {
            let others: Vec<_> = files.iter().filter(|(file, _)| *file != path).collect();
            // The newest ones exist most likely.
            let (target, below) = others[others.len() - 1 - random.below(others.len().min(3))].clone();
            *links_lower |= below < layer;
            Kind::HardLink(target)
        }
        7 if has("devices") => Kind::Pipe,
        8 => {
            path = folder(random);
            Kind::Folder
        }
        9 if has("missing folders") => {
            path = folder(random);
            Kind::Symlink(target(random))
        }
        _ => {
            files.push((path.clone(), layer));
            Kind::File(vec![b'a' + random.below(26) as u8; random.below(1500)])
        }
    };
    let mode = [0o644, 0o755, 0o600, 0o444, 0o000, 0o4755, 0o1777][random.below(7)];
    let entry =
        Entry { path: path.clone(), kind, mode, time: 1_000_000_000 + random.below(1_000_000) as u64 };
    let mut all = Vec::new();
    if !has("missing folders") && !has("links") && random.below(3) > 0 {
        for (end, _) in path.match_indices('/') {
            all.push(Entry { path: path[..end].to_owned(), kind: Kind::Folder, mode: 0o755, time: 5 });
        }
    }
    all.push(entry);
    all
}

fn target(random: &mut Random) -> String {
    let up = ["", "/", "../", "../../../", "./"][random.below(5)];
    format!("{up}{}", folder(random))
}

fn write(random: &mut Random, entries: &[Entry], classes: &[&str]) -> Vec<u8> {
    let has = |class: &str| classes.contains(&class);
    let mut tar = Builder::new(Vec::new());
    let mut last = 0;
    for entry in entries {
        let (parent, name) =
            entry.path.rsplit_once('/').map_or(("", &*entry.path), |(parent, name)| (parent, name));
        let slash = if parent.is_empty() { "" } else { "/" };
        let (kind, name, link, data) = match &entry.kind {
            Kind::Folder => (EntryType::Directory, format!("{}/", entry.path), None, &[][..]),
            Kind::File(data) => (EntryType::Regular, entry.path.clone(), None, &**data),
            Kind::Symlink(target) => (EntryType::Symlink, entry.path.clone(), Some(target), &[][..]),
            Kind::HardLink(target) => (EntryType::Link, entry.path.clone(), Some(target), &[][..]),
            Kind::Whiteout => (EntryType::Regular, format!("{parent}{slash}.wh.{name}"), None, &[][..]),
            Kind::Opaque => (EntryType::Regular, format!("{}/.wh..wh..opq", entry.path), None, &[][..]),
            Kind::Pipe => (EntryType::Fifo, entry.path.clone(), None, &[][..]),
        };
        // Older versions refuse `..`.
        let prefix = ["", "./", "/", "../"][random.below(if has("GNU") { 4 } else { 3 })];
        let mut name = format!("{prefix}{name}");
        if has("GNU") && random.below(3) == 0 {
            // Longer than a header allows.
            name = format!("{}{name}", "./".repeat(60));
        }
        let mut header = if has("PAX") { Header::new_ustar() } else { Header::new_gnu() };
        header.set_entry_type(kind);
        header.set_mode(entry.mode);
        header.set_uid(random.below(1000) as u64);
        header.set_gid(0);
        header.set_mtime(entry.time);
        header.set_size(data.len() as u64);
        if has("PAX") {
            let mtime = format!("{}.{}", entry.time, random.below(1000));
            let mut attributes = vec![("mtime", mtime.as_bytes()), ("path", name.as_bytes())];
            attributes.extend(link.map(|link| ("linkpath", link.as_bytes())));
            tar.append_pax_extensions(attributes).unwrap();
            header.set_path("other").unwrap();
            header.set_cksum();
            tar.append(&header, data).unwrap();
        } else {
            if name.len() > 100 {
                let mut long = Header::new_gnu();
                long.set_entry_type(EntryType::GNULongName);
                long.set_path("././@LongLink").unwrap();
                long.set_size(name.len() as u64 + 1);
                long.set_cksum();
                tar.append(&long, [name.as_bytes(), b"\0"].concat().as_slice()).unwrap();
            }
            let gnu = header.as_gnu_mut().unwrap();
            let short = name.len().min(100);
            gnu.name[..short].copy_from_slice(&name.as_bytes()[..short]);
            if let Some(link) = link {
                gnu.linkname[..link.len()].copy_from_slice(link.as_bytes());
            }
            header.set_cksum();
            tar.append(&header, data).unwrap();
        }
        last = tar.get_ref().len() - (512 - data.len() % 512) % 512;
    }
    if has("no padding") {
        let mut bytes = tar.get_ref().clone();
        bytes.truncate(last);
        return bytes;
    }
    tar.into_inner().unwrap()
}

// === impl Entry ===

impl Entry {
    fn text(&self) -> String {
        let Self { path, kind, mode, .. } = self;
        match kind {
            Kind::File(data) => format!("{path} {mode:o} {} bytes", data.len()),
            kind => format!("{path} {mode:o} {kind:?}"),
        }
    }
}
