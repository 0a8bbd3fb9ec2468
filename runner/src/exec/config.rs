//! The exec runtime's configuration file: which executable runs which images.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};

use porch_fn_image::Image;
use serde::Deserialize;

use crate::yaml;

/// Largest file that is read, in bytes.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// Why the file cannot be used. The texts name file, line and column.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("--config {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It is too large to be one.
    #[error("--config {path}: larger than {MAX_BYTES} bytes")]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// It is not what was expected.
    #[error("--config {path}: {reason}; expected functions: [{{function: NAME, images: [IMAGE, ...]}}]")]
    Parse {
        /// The file.
        path: PathBuf,
        /// With line and column.
        reason: String,
    },
}

#[derive(Debug, Default, Deserialize)]
struct File {
    #[serde(default)]
    functions: Vec<Function>,
}

#[derive(Debug, Deserialize)]
struct Function {
    function: String,
    #[serde(default)]
    images: Vec<String>,
}

/// Maps images to executables.
#[derive(Debug, Clone, Default)]
pub struct Executables {
    by_image: HashMap<String, PathBuf>,
    prefix: String,
}

impl Executables {
    /// Reads `config`; executables are named relative to `functions`.
    pub fn read(config: &Path, functions: &Path, prefix: &str) -> Result<Self, ConfigError> {
        let read = |source| ConfigError::Read { path: config.to_owned(), source };
        if std::fs::metadata(config).map_err(read)?.len() > MAX_BYTES {
            return Err(ConfigError::TooLarge { path: config.to_owned() });
        }
        let text = std::fs::read_to_string(config).map_err(read)?;
        Self::parse(&text, functions, prefix)
            .map_err(|reason| ConfigError::Parse { path: config.to_owned(), reason })
    }

    fn parse(text: &str, functions: &Path, prefix: &str) -> Result<Self, String> {
        let file: Option<File> = yaml::parse(text)?;
        let mut executables = Self { by_image: HashMap::new(), prefix: prefix.to_owned() };
        for Function { function, images } in file.unwrap_or_default().functions {
            if function.is_empty() {
                return Err("a function without a name".to_owned());
            }
            let path = functions.join(&function);
            for image in images {
                // As in the original: the first one counts.
                match executables.by_image.entry(key(&image, prefix)) {
                    Entry::Occupied(_) => {
                        tracing::warn!(image, function, "duplicate image in --config is ignored");
                    }
                    Entry::Vacant(place) => {
                        place.insert(path.clone());
                    }
                }
            }
        }
        Ok(executables)
    }

    /// The executable of `image`, if it has one. A short name and its full form are the same image.
    pub fn find(&self, image: &str) -> Option<&Path> {
        self.by_image.get(&key(image, &self.prefix)).map(PathBuf::as_path)
    }

    /// All images and their executables.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.by_image.iter().map(|(image, path)| (image.as_str(), path.as_path()))
    }

    /// Whether no image has an executable.
    pub fn is_empty(&self) -> bool {
        self.by_image.is_empty()
    }
}

/// The original compares names as they are; so are those that are no image reference.
fn key(image: &str, prefix: &str) -> String {
    Image::parse(image, prefix).map_or_else(|_| image.to_owned(), |image| image.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PREFIX: &str = "ghcr.io/kptdev/krm-functions-catalog";

    fn parse(text: &str) -> Result<Executables, String> {
        Executables::parse(text, Path::new("/functions"), PREFIX)
    }

    #[test]
    fn short_and_full_names_are_one_image() {
        let executables = parse(
            "functions:\n- function: set-namespace\n  images:\n  - set-namespace:v0.4.1\n  - Odd Name\n",
        )
        .unwrap();
        let path = Some(Path::new("/functions/set-namespace"));
        assert_eq!(executables.find("set-namespace:v0.4.1"), path);
        assert_eq!(executables.find("ghcr.io/kptdev/krm-functions-catalog/set-namespace:v0.4.1"), path);
        assert_eq!(executables.find("Odd Name"), path);
        assert_eq!(executables.find("set-namespace"), None, "no tag means latest");
        assert_eq!(executables.find("example.com/set-namespace:v0.4.1"), None, "another registry");
    }

    #[test]
    fn the_first_of_two_entries_counts() {
        let executables =
            parse("functions: [{function: a, images: [x/f:1]}, {function: b, images: [x/f:1]}]").unwrap();
        assert_eq!(executables.find("x/f:1"), Some(Path::new("/functions/a")));
    }

    #[test]
    fn an_empty_file_is_no_functions_and_a_broken_one_is_told() {
        assert!(parse("").unwrap().is_empty());
        assert!(parse("functions: []").unwrap().is_empty());
        assert!(parse("functions: 3").unwrap_err().contains("line 1"));
        assert!(parse("functions: [{images: [a]}]").unwrap_err().contains("function"));
        assert!(parse("functions: [{function: ''}]").is_err());
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,60}(\n\\PC{0,30}){0,4}") {
            let _ = parse(&text);
        }
    }
}
