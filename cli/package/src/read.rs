//! Finds and reads the files of a package, by kpt's rules.
//!
//! A package is the directory that the user names, or a directory with a Kptfile. It includes
//! everything below its directory, also its subpackages. It may have a `.krmignore` in gitignore's
//! syntax. Like in kpt, a `.krmignore` applies only to its own package, not to subpackages. A
//! `.krmignore` in a plain subdirectory has no effect.

use std::fs::{self, File as FsFile};
use std::io::{self, Read};
use std::path::Path;

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use crate::file::{File, Package};

const KPTFILE: &str = "Kptfile";
const IGNORE_FILE: &str = ".krmignore";
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];
/// Maximum depth of directories. The walk is recursive, so a limit protects the stack.
const MAX_DEPTH: usize = 64;

struct Walk<'a> {
    root: &'a Path,
    /// Bytes that may still be read. `limit` is the initial number.
    left: u64,
    limit: u64,
    files: Vec<File>,
}

/// Reads the package in `dir`: every `*.yaml`, `*.yml`, `*.json` and `Kptfile` below it, in the
/// order of their paths. `.git` and symbolic links are skipped; other hidden files are not.
/// `max_bytes` limits the total size of the files, and so the memory. The ResourceList is about 10%
/// larger than the files.
///
/// # Errors
///
/// When a file or directory cannot be read, or a document cannot be sent to a function.
pub fn read(dir: &Path, max_bytes: u64) -> Result<Package, String> {
    let mut walk = Walk { root: dir, left: max_bytes, limit: max_bytes, files: Vec::new() };
    walk.directory(dir, &walk.ignored(dir)?, 0)?;
    Ok(Package { files: walk.files })
}

/// The path annotation of resources from standard input.
const STDIN_FILE: &str = "stdin.yaml";

/// Reads the YAML documents in `text`, for example from standard input, as a package with one file.
///
/// # Errors
///
/// When there is no document, or one cannot be sent to a function.
pub fn documents(text: String) -> Result<Package, String> {
    let file = File::parse(STDIN_FILE, text);
    let file = file.map_err(|error| error.replace(", or list the file in .krmignore", ""))?;
    if file.documents.is_empty() {
        return Err("there is no YAML document; pass a ResourceList or KRM resources".to_owned());
    }
    Ok(Package { files: vec![file] })
}

impl Walk<'_> {
    fn directory(&mut self, dir: &Path, ignored: &Gitignore, depth: usize) -> Result<(), String> {
        let shown = dir.display();
        if depth > MAX_DEPTH {
            return Err(format!(
                "{shown} is nested deeper than {MAX_DEPTH} directories; name a smaller package"
            ));
        }
        let failed = |error| format!("cannot list {shown}: {error}; check the path and its permissions");
        let entries = fs::read_dir(dir).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut entries = entries.map_err(failed)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            let kind = entry.file_type().map_err(failed)?;
            if entry.file_name() == ".git" || ignored.matched(&path, kind.is_dir()).is_ignore() {
                continue;
            }
            if kind.is_dir() {
                // A subpackage has its own rules. A plain directory uses the rules of its package.
                let own = path.join(KPTFILE).is_file().then(|| self.ignored(&path)).transpose()?;
                self.directory(&path, own.as_ref().unwrap_or(ignored), depth + 1)?;
            } else if kind.is_file() && is_package_file(&path) {
                self.file(&path)?;
            }
        }
        Ok(())
    }

    /// Returns the rules in the `.krmignore` of `dir`.
    fn ignored(&self, dir: &Path) -> Result<Gitignore, String> {
        let path = dir.join(IGNORE_FILE);
        let mut builder = GitignoreBuilder::new(dir);
        let failed = path.is_file().then(|| builder.add(&path)).flatten();
        let shown = self.relative(&path).display();
        failed
            .map_or_else(|| builder.build(), Err)
            .map_err(|error| format!("cannot use {shown}: {error}; correct the pattern"))
    }

    fn file(&mut self, path: &Path) -> Result<(), String> {
        let relative = self.relative(path);
        let shown = relative.display();
        let mut bytes = Vec::new();
        let read = FsFile::open(path)
            .and_then(|file| file.take(self.left.saturating_add(1)).read_to_end(&mut bytes))
            .map_err(|error| {
                let fix = "check its permissions, or list it in .krmignore";
                format!("cannot read {}: {error}; {fix}", path.display())
            })?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            format!(
                "the package is larger than {} bytes; raise --max-request-body-size here and on the router and the \
                 runners, or list files in .krmignore",
                self.limit
            )
        })?;
        let text = String::from_utf8(bytes)
            .map_err(|_| format!("{shown} is not UTF-8; convert it, or list it in .krmignore"))?;
        let name = relative.to_str().ok_or_else(|| format!("the name of {shown} is not UTF-8; rename it"))?;
        self.files.push(File::parse(name, text)?);
        Ok(())
    }

    fn relative<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(self.root).unwrap_or(path)
    }
}

fn is_package_file(name: &Path) -> bool {
    let extension = name.extension().and_then(|extension| extension.to_str());
    name.file_name().is_some_and(|name| name == KPTFILE)
        || extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
}
