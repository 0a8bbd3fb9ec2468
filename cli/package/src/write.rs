//! Writes a function's output back into the package.
//!
//! Functions are third-party code, so the paths in their output are not trusted. All checks come
//! before the first write. Each file is replaced as a whole or not at all.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path};

use crate::file::{File, Package};
use crate::output::Output;
use crate::yaml::{Yaml, patch};

/// Writes `output` into `dir`, from which `package` was read. Returns one line per file that was
/// created, updated or deleted, or "nothing changed". Only files with new content are written;
/// files without remaining items are deleted. If an item was sent to the function, only its changed
/// values are edited in the user's text, so that comments and layout stay. The function's own text
/// is used for a new item, for an entry in which the length of a list or the order of keys changes,
/// and for an item to which the function adds comments. New files get mode 0666 minus the umask;
/// other files keep their mode.
///
/// # Errors
///
/// When a check fails: then nothing is written. When a file cannot be written or deleted: the files
/// before it stay changed.
pub fn write(dir: &Path, package: &Package, output: &Output) -> Result<String, String> {
    let mut changed = BTreeMap::new();
    for (path, items) in &output.files {
        check(dir, package, output, path)?;
        let file = package.file(path);
        let text = rebuilt(file.unwrap_or(&File { path: path.clone(), ..File::default() }), items);
        if file.is_none_or(|file| file.text != text) {
            changed.insert(path, text);
        }
    }
    let gone = |file: &&File| !file.documents.is_empty() && !output.files.contains_key(&file.path);
    let deleted: Vec<_> = package.files.iter().filter(gone).map(|file| &file.path).collect();
    for path in changed.keys().chain(&deleted) {
        check_unchanged(dir, package, path)?;
    }

    let mut lines = Vec::new();
    for (path, text) in changed {
        let shown = path.display();
        replace(&dir.join(path), &text).map_err(|error| {
            format!("cannot write {shown}: {error}; check permissions and space, then run the function again")
        })?;
        let what = if package.file(path).is_some() { "updated" } else { "created" };
        lines.push(format!("{what} {shown}"));
    }
    for path in deleted {
        let shown = path.display();
        fs::remove_file(dir.join(path)).map_err(|error| {
            let fix = "delete it yourself, since the function dropped its items";
            format!("cannot delete {shown}: {error}; {fix}")
        })?;
        lines.push(format!("deleted {shown}"));
    }
    Ok(if lines.is_empty() { "nothing changed".to_owned() } else { lines.join("\n") })
}

/// Writes `output` into `dir`, a new or empty directory. Files of `package` keep their comments and
/// layout like in [`write()`]. Returns one line for each file.
///
/// # Errors
///
/// When a check fails: then nothing is written. When a file cannot be written: the files before it
/// stay.
pub fn write_new(dir: &Path, package: &Package, output: &Output) -> Result<String, String> {
    require_new(dir)?;
    for path in output.files.keys() {
        check(dir, &Package::default(), output, path)?;
    }
    let mut lines = Vec::new();
    for (path, items) in &output.files {
        let path = path.as_path();
        let new = File { path: path.to_owned(), ..File::default() };
        let text = rebuilt(package.file(path).unwrap_or(&new), items);
        let target = dir.join(path);
        replace(&target, &text).map_err(|error| {
            format!("cannot write {}: {error}; check permissions and space", target.display())
        })?;
        lines.push(format!("created {}", target.display()));
    }
    Ok(lines.join("\n"))
}

/// Checks that `dir` is new or empty. [`write_new()`] refuses other directories.
///
/// # Errors
///
/// When it has entries, or cannot be listed.
pub fn require_new(dir: &Path) -> Result<(), String> {
    let shown = dir.display();
    match fs::read_dir(dir).map(|mut entries| entries.next().is_some()) {
        Ok(true) => Err(format!("{shown} is not empty; name a new directory, or use --write")),
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(format!("cannot list {shown}: {error}; name a new directory"))
        }
        _ => Ok(()),
    }
}

// === impl Output ===

impl Output {
    /// Returns all items as a package, such as for a ResourceList.
    ///
    /// # Errors
    ///
    /// When an item cannot be put into a ResourceList.
    pub fn package(&self) -> Result<Package, String> {
        let files = self.files.iter().map(|(path, items)| {
            let name = path.to_str().ok_or_else(|| format!("the name of {} is not UTF-8", path.display()))?;
            File::parse(name, rebuilt(&File::default(), items))
        });
        Ok(Package { files: files.collect::<Result<_, _>>()? })
    }
}

// === checks ===

fn check(dir: &Path, package: &Package, output: &Output, path: &Path) -> Result<(), String> {
    let refused =
        |why: &str| format!("the function wants to write {}, {why} nothing was written", path.display());
    // Refuse paths that leave the package or point into `.git`.
    let is_plain = |part| matches!(part, Component::Normal(name) if name != ".git");
    if path.as_os_str().is_empty() || !path.components().all(is_plain) {
        return Err(refused("which is outside the package;"));
    }
    let parents = path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty());
    for parent in parents {
        let found = fs::symlink_metadata(dir.join(parent));
        if found.is_ok_and(|found| !found.is_dir()) || output.files.contains_key(parent) {
            return Err(refused(&format!("but {} is not a plain directory;", parent.display())));
        }
    }
    if package.file(path).is_none() && fs::symlink_metadata(dir.join(path)).is_ok() {
        return Err(refused("which exists but was not read as part of the package; move it away,"));
    }
    Ok(())
}

/// Fails if somebody changed a file while the function ran.
fn check_unchanged(dir: &Path, package: &Package, path: &Path) -> Result<(), String> {
    let Some(file) = package.file(path) else { return Ok(()) };
    let is_file = fs::symlink_metadata(dir.join(path)).is_ok_and(|found| found.is_file());
    if is_file && fs::read(dir.join(path)).unwrap_or_default() == file.text.as_bytes() {
        return Ok(());
    }
    let fix = "run the function again, nothing was written";
    Err(format!("{} has changed since it was read; {fix}", path.display()))
}

// === content ===

/// Returns a file's text with `items` as its documents. The text between the documents and the text
/// of unchanged items stay.
pub(super) fn rebuilt(file: &File, items: &BTreeMap<usize, String>) -> String {
    let windows_lines = file.text.contains("\r\n");
    let separator = if windows_lines { "---\r\n" } else { "---\n" };
    let mut out = String::with_capacity(file.text.len());
    for (at, (&index, item)) in items.iter().enumerate() {
        let known = file.documents.get(index);
        if !out.is_empty() && !out.ends_with('\n') {
            out.push('\n');
        }
        // The first item keeps the text at the start of the file.
        let frame = if at == 0 { Some(frame(file, 0)) } else { known.map(|_| frame(file, index)) };
        out.push_str(frame.filter(|frame| at == 0 || !frame.is_empty()).unwrap_or(separator));
        let new = match known {
            Some(document) => merged(&document.text, item),
            None => Some(item.clone()),
        };
        let Some(text) = new else {
            out.extend(known.map(|document| &file.text[document.range.clone()]));
            continue;
        };
        // Block style cannot start on the line of its `---` separator.
        if out.ends_with([' ', '\t']) {
            out.truncate(out.trim_end_matches([' ', '\t']).len());
            out.push('\n');
        }
        let text = if items.len() == 1 { formatted(&file.path, text) } else { text };
        out.push_str(&if windows_lines { text.replace('\n', "\r\n") } else { text });
    }
    let end = file.documents.last().map_or(0, |last| last.range.end);
    out.push_str(&file.text[end..]);
    out
}

/// Returns `sent` with the values of `returned`; `None` if nothing changed. If editing `sent` would
/// lose a comment of the function, the result is `returned`.
fn merged(sent: &str, returned: &str) -> Option<String> {
    if returned == sent {
        return None;
    }
    let patched = Yaml::valid(sent).zip(Yaml::valid(returned)).and_then(|(old, new)| {
        patch(&old, &new.text, &new.root).filter(|patched| patched.has_comments_of(&new))
    });
    Some(patched.map_or_else(|| returned.to_owned(), |patched| patched.text)).filter(|text| text != sent)
}

/// Returns the text between the previous document's end and a document's start.
fn frame(file: &File, index: usize) -> &str {
    let end = file.documents.get(index).map_or(0, |document| document.range.start);
    let start =
        index.checked_sub(1).and_then(|above| file.documents.get(above)).map_or(0, |above| above.range.end);
    &file.text[start..end]
}

/// Formats a file's only item. JSON stays JSON, like in kpt.
fn formatted(path: &Path, text: String) -> String {
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let value: Option<serde_json::Value> = if is_json { serde_saphyr::from_str(&text).ok() } else { None };
    let pretty = value.and_then(|value| serde_json::to_string_pretty(&value).ok());
    pretty.map_or(text, |pretty| pretty + "\n")
}

/// Replaces or creates a file atomically, so that no reader sees a partial file.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent)?;
    let old = fs::metadata(path).ok().map(|old| old.permissions());
    // The umask reduces this mode for a new file.
    let mode = Permissions::from_mode(0o666);
    let mut file = tempfile::Builder::new().prefix(".porch-fn-").permissions(mode).tempfile_in(parent)?;
    file.write_all(text.as_bytes())?;
    if let Some(old) = old {
        file.as_file().set_permissions(old)?;
    }
    file.persist(path).map(drop).map_err(|error| error.error)
}
