//! Finds and reads the files of a package, as kpt chooses them.
//!
//! Everything below the directory counts, subpackages included. Each package (a directory with a
//! Kptfile, and the directory that was named) may have a `.krmignore` in gitignore's syntax; as in
//! kpt it covers that package alone, neither its subpackages' files nor plain subdirectories' own
//! `.krmignore`.

use std::fs::{self, File as FsFile};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use thiserror::Error;

use super::file::{DocumentError, File, Package};

const KPTFILE: &str = "Kptfile";
const IGNORE_FILE: &str = ".krmignore";
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];
/// Deeper directories are refused; the walk is recursive.
const MAX_DEPTH: usize = 64;

/// Why a package cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The directory, or one below it, cannot be listed.
    #[error("cannot list {}: {error}; check the path and its permissions", path.display())]
    List {
        /// The directory.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Directories are nested too deeply.
    #[error("{} is nested deeper than {MAX_DEPTH} directories; name a smaller package", path.display())]
    TooDeep {
        /// The directory that is too deep.
        path: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {error}; check its permissions, or list it in .krmignore", path.display())]
    ReadFile {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A `.krmignore` holds a pattern that is not gitignore syntax.
    #[error("cannot use {}: {error}; correct the pattern", path.display())]
    IgnoreFile {
        /// The `.krmignore`.
        path: PathBuf,
        /// The pattern and what is wrong with it.
        error: ignore::Error,
    },
    /// The files together are larger than one request may be.
    #[error(
        "the package is larger than {limit} bytes; raise --max-request-body-size here and on the router and \
         the runners, or list files in .krmignore"
    )]
    TooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// A file is not UTF-8.
    #[error("{} is not UTF-8; convert it, or list it in .krmignore", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
    },
    /// A file's name is not UTF-8, so no annotation can hold it.
    #[error("the name of {} is not UTF-8; rename it", path.display())]
    NameNotUtf8 {
        /// The file.
        path: PathBuf,
    },
    /// A document cannot be sent to a function.
    #[error("{}, document {number}: {error}", path.display())]
    Document {
        /// The file, relative to the package.
        path: PathBuf,
        /// Which document of the file, from 1; empty ones do not count.
        number: usize,
        /// What is wrong with it.
        error: DocumentError,
    },
}

/// Reads the package in `dir`: every `*.yaml`, `*.yml`, `*.json` and `Kptfile` below it, in the
/// order of their paths. `.git` and symbolic links are left out; other hidden files are not. The
/// files may hold `max_bytes` in all, which bounds the memory used; the ResourceList is some 10 %
/// larger.
pub fn read(dir: &Path, max_bytes: u64) -> Result<Package, ReadError> {
    let mut walk = Walk { root: dir, left: max_bytes, limit: max_bytes, package: Package::default() };
    let ignored = walk.ignore_file(dir)?;
    walk.directory(dir, &ignored, 0)?;
    Ok(walk.package)
}

/// True for the names that [`read`] picks up.
pub(super) fn is_package_file(name: &Path) -> bool {
    let extension = name.extension().and_then(|extension| extension.to_str());
    name.file_name().is_some_and(|name| name == KPTFILE)
        || extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
}

struct Walk<'a> {
    root: &'a Path,
    left: u64,
    limit: u64,
    package: Package,
}

impl Walk<'_> {
    fn directory(&mut self, dir: &Path, ignored: &Gitignore, depth: usize) -> Result<(), ReadError> {
        if depth > MAX_DEPTH {
            return Err(ReadError::TooDeep { path: dir.to_owned() });
        }
        let list = |error| ReadError::List { path: dir.to_owned(), error };
        let mut entries: Vec<_> =
            fs::read_dir(dir).and_then(Iterator::collect::<io::Result<_>>).map_err(list)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            let kind = entry.file_type().map_err(list)?;
            if entry.file_name() == ".git" || ignored.matched(&path, kind.is_dir()).is_ignore() {
                continue;
            }
            if kind.is_dir() {
                // A subpackage has rules of its own; a plain directory keeps those of its package.
                let own = if path.join(KPTFILE).is_file() { Some(self.ignore_file(&path)?) } else { None };
                self.directory(&path, own.as_ref().unwrap_or(ignored), depth + 1)?;
            } else if kind.is_file() && is_package_file(&path) {
                self.file(&path)?;
            }
        }
        Ok(())
    }

    fn ignore_file(&self, dir: &Path) -> Result<Gitignore, ReadError> {
        let path = dir.join(IGNORE_FILE);
        let mut builder = GitignoreBuilder::new(dir);
        let failed = path.is_file().then(|| builder.add(&path)).flatten();
        match failed.map_or_else(|| builder.build(), Err) {
            Ok(ignored) => Ok(ignored),
            Err(error) => Err(ReadError::IgnoreFile { path: self.relative(&path), error }),
        }
    }

    fn file(&mut self, path: &Path) -> Result<(), ReadError> {
        let relative = self.relative(path);
        let mut bytes = Vec::new();
        FsFile::open(path)
            .and_then(|file| file.take(self.left.saturating_add(1)).read_to_end(&mut bytes))
            .map_err(|error| ReadError::ReadFile { path: path.to_owned(), error })?;
        let size = bytes.len() as u64;
        self.left = self.left.checked_sub(size).ok_or(ReadError::TooLarge { limit: self.limit })?;
        let text = String::from_utf8(bytes).map_err(|_| ReadError::NotUtf8 { path: relative.clone() })?;
        let Some(name) = relative.to_str().map(str::to_owned) else {
            return Err(ReadError::NameNotUtf8 { path: relative });
        };
        let file = File::parse(relative.clone(), &name, text)
            .map_err(|(number, error)| ReadError::Document { path: relative, number, error })?;
        self.package.files.push(file);
        Ok(())
    }

    fn relative(&self, path: &Path) -> PathBuf {
        path.strip_prefix(self.root).unwrap_or(path).to_owned()
    }
}
