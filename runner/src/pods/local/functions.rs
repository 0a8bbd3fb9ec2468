//! `--local-functions`: the command of each image when pods are local processes.

use std::collections::HashMap;
use std::future::{pending, ready};
use std::path::Path;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use porch_fn_image::{Constraint, Image};
use porch_fn_pool::{ImageKey, PodRecipe};
use porch_fn_registry::ResolveError;
use porch_fn_settings::yaml;
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64;

use crate::pods::backend::Catalog;
use crate::pods::configure::{OriginChange, OriginOf, Origins};
use crate::settings::CurrentSettings;
use crate::settings_file::{FileError, SettingsFile};

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
pub struct LocalFunctions(HashMap<String, Vec<String>>);

impl LocalFunctions {
    /// Reads the file.
    ///
    /// # Errors
    /// When it cannot be read, or is not what it should be.
    pub fn read(path: &Path, prefix: &str) -> Result<Self, FileError> {
        let prefix = prefix.to_owned();
        let file = SettingsFile {
            flag: "local-functions",
            path: path.to_owned(),
            parse: Box::new(move |text| Self::parse(text, &prefix)),
            expected: "expected functions: [{image: IMAGE, command: [PROGRAM, ARG, ...]}]",
        };
        file.load()
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
        self.0.insert(parsed.as_str().to_owned(), command);
        Ok(())
    }

    /// The images, sorted.
    pub fn images(&self) -> Vec<&str> {
        let mut images: Vec<_> = self.0.keys().map(String::as_str).collect();
        images.sort_unstable();
        images
    }

    pub(crate) fn command(&self, image: &ImageKey) -> Option<&[String]> {
        self.0.get(image.as_str()).map(Vec::as_slice)
    }

    /// A changed command makes a new version, whose pods replace the old ones.
    fn recipe(&self, image: &ImageKey) -> Option<PodRecipe> {
        let command = self.command(image)?.join("\0");
        Some(PodRecipe::of(format!("{:016x}", xxh3_64(command.as_bytes())), None))
    }
}

impl Catalog for LocalFunctions {
    fn knows(&self, image: &Image) -> bool {
        self.0.contains_key(image.as_str())
    }

    fn resolve<'a>(
        &'a self,
        image: &'a Image,
        constraint: &'a Constraint,
    ) -> BoxFuture<'a, Result<Image, ResolveError>> {
        // Keys are canonical, so there is no prefix to add.
        let known: Vec<_> = self.0.keys().filter_map(|known| Image::parse(known, "").ok()).collect();
        let same_repository = known.iter().filter(|known| known.repository() == image.repository());
        let highest = constraint.highest(same_repository.filter_map(Image::tag));
        ready(highest.and_then(|tag| image.with_tag(tag).ok()).ok_or(ResolveError::NoMatch)).boxed()
    }
}

impl Origins for LocalFunctions {
    fn origins(&mut self, _: &CurrentSettings) -> OriginOf {
        let functions = self.clone();
        Box::new(move |image| functions.recipe(image))
    }

    async fn changed(&mut self) -> OriginChange {
        pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_canonical_and_broken_entries_are_named() {
        let text = "functions:\n- image: annotate:v1\n  command: [cat, -u]\n";
        let functions = LocalFunctions::parse(text, "example.com").unwrap();
        let key = ImageKey::from("example.com/annotate:v1");
        assert_eq!(functions.command(&key).unwrap(), ["cat", "-u"]);
        assert!(functions.knows(&Image::parse("annotate:v1", "example.com").unwrap()));
        let other = LocalFunctions::parse("functions: [{image: annotate:v1, command: [cat]}]", "example.com");
        assert_ne!(functions.recipe(&key), other.unwrap().recipe(&key));
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
