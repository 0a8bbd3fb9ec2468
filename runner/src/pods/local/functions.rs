//! `--local-functions`: which command stands for which image when pods are local processes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use porch_fn_image::{Constraint, Image};
use porch_fn_pool::{ImageKey, Origin};
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64;

use crate::pods::backend::{Catalog, Unresolved};
use crate::pods::configure::{Changed, MadeFrom, Making};
use crate::settings::Current;
use porch_fn_settings::yaml;

/// Largest file that is read, in bytes.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LocalFunctionsError {
    /// It cannot be read.
    #[error("--local-functions {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It is not what was expected.
    #[error(
        "--local-functions {path}: {reason}; expected functions: [{{image: IMAGE, command: [PROGRAM, ARG, ...]}}]"
    )]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

#[derive(Deserialize, Default)]
struct File {
    #[serde(default)]
    functions: Vec<Function>,
}

#[derive(Deserialize)]
struct Function {
    image: String,
    command: Vec<String>,
}

/// Commands by canonical image.
#[derive(Debug, Clone, Default)]
pub struct LocalFunctions {
    commands: HashMap<String, Vec<String>>,
}

impl LocalFunctions {
    /// Reads the file.
    pub fn read(path: &Path, prefix: &str) -> Result<Self, LocalFunctionsError> {
        let failed = |source| LocalFunctionsError::Read { path: path.to_owned(), source };
        if std::fs::metadata(path).map_err(failed)?.len() > MAX_BYTES {
            return Err(failed(std::io::Error::from(std::io::ErrorKind::FileTooLarge)));
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        Self::parse(&text, prefix)
            .map_err(|reason| LocalFunctionsError::Parse { path: path.to_owned(), reason })
    }

    fn parse(text: &str, prefix: &str) -> Result<Self, String> {
        let file: Option<File> = yaml::parse(text)?;
        let mut functions = Self::default();
        for Function { image, command } in file.unwrap_or_default().functions {
            functions.add(&image, command, prefix)?;
        }
        Ok(functions)
    }

    /// Adds a function; of two commands for one image the last counts.
    ///
    /// # Errors
    /// When the image is no reference or the command is empty.
    pub fn add(&mut self, image: &str, command: Vec<String>, prefix: &str) -> Result<(), String> {
        let parsed = Image::parse(image, prefix).map_err(|error| format!("image {image:?}: {error}"))?;
        if command.first().is_none_or(String::is_empty) {
            return Err(format!("image {image:?} has no command"));
        }
        self.commands.insert(parsed.as_str().to_owned(), command);
        Ok(())
    }

    /// The images, sorted.
    pub fn images(&self) -> Vec<&str> {
        let mut images: Vec<_> = self.commands.keys().map(String::as_str).collect();
        images.sort_unstable();
        images
    }

    pub(crate) fn command(&self, image: &ImageKey) -> Option<&[String]> {
        self.commands.get(image.as_str()).map(Vec::as_slice)
    }

    /// A changed command makes a new version, whose pods replace the old ones.
    pub(crate) fn template(&self, image: &ImageKey) -> Option<Origin> {
        let command = self.command(image)?.join("\0");
        Some(Origin::of(format!("{:016x}", xxh3_64(command.as_bytes())), None))
    }
}

impl Catalog for LocalFunctions {
    fn knows(&self, image: &Image) -> bool {
        self.commands.contains_key(image.as_str())
    }

    fn resolve<'a>(
        &'a self,
        image: &'a Image,
        constraint: &'a Constraint,
    ) -> BoxFuture<'a, Result<Image, Unresolved>> {
        // Keys are canonical, so there is no prefix to add.
        let known: Vec<_> = self.commands.keys().filter_map(|known| Image::parse(known, "").ok()).collect();
        let tags =
            known.iter().filter(|known| known.repository() == image.repository()).filter_map(Image::tag);
        let highest = constraint.highest(tags).and_then(|tag| image.with_tag(tag).ok());
        std::future::ready(highest.ok_or(Unresolved::NoMatch)).boxed()
    }
}

impl Making for LocalFunctions {
    fn made_from(&mut self, _: &Current) -> MadeFrom {
        let functions = self.clone();
        Box::new(move |image| functions.template(image))
    }

    async fn changed(&mut self) -> Changed {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_canonical_and_broken_entries_are_named() {
        let text = "functions:\n- image: annotate:v1\n  command: [cat, -u]\n";
        let functions = LocalFunctions::parse(text, "example.com/functions").unwrap();
        let key = ImageKey::from("example.com/functions/annotate:v1");
        assert_eq!(functions.command(&key).unwrap(), ["cat", "-u"]);
        assert!(functions.knows(&Image::parse("annotate:v1", "example.com/functions").unwrap()));
        let other = LocalFunctions::parse(
            "functions: [{image: annotate:v1, command: [cat]}]",
            "example.com/functions",
        );
        assert_ne!(functions.template(&key), other.unwrap().template(&key));
        for (text, expected) in [
            ("functions: [{image: a:v1, command: []}]", "has no command"),
            ("functions: [{image: 'A B', command: [x]}]", "A B"),
            ("functions: 1", "line 1"),
        ] {
            let error = LocalFunctions::parse(text, "example.com").unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
