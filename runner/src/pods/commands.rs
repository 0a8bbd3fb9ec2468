//! Files with the commands of images: `--local-functions`, where pods are local processes, and
//! `--image-metadata`, for images whose registry the runner must not query.

use std::collections::HashMap;
use std::path::Path;

use porch_fn_image::{Constraint, Image};
use porch_fn_pool::ImageKey;
use porch_fn_settings::yaml;
use serde::Deserialize;

use crate::settings_file::{Parse, SettingsFile};

#[derive(Deserialize, Default)]
struct File {
    #[serde(default, alias = "images")]
    functions: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    image: String,
    #[serde(default, alias = "entrypoint")]
    command: Vec<String>,
}

/// Commands by image.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ImageCommands(HashMap<ImageKey, Vec<String>>);

impl ImageCommands {
    /// Reads the file of `--local-functions`.
    ///
    /// # Errors
    /// If the file cannot be read or has the wrong form.
    pub fn local(path: &Path, prefix: &str) -> Result<Self, String> {
        let expected = "expected functions: [{image: IMAGE, command: [PROGRAM, ARG, ...]}]";
        let (path, parse) = (path.to_owned(), Self::parser(prefix, "command"));
        SettingsFile { flag: "local-functions", path, parse, expected }.load()
    }

    /// Reads the file of `--image-metadata`.
    pub(crate) fn metadata(path: &Path, prefix: &str) -> Result<Self, String> {
        let expected = "expected images: [{image: IMAGE, entrypoint: [PROGRAM, ARG, ...]}]";
        let (path, parse) = (path.to_owned(), Self::parser(prefix, "entrypoint"));
        SettingsFile { flag: "image-metadata", path, parse, expected }.load()
    }

    fn parser(prefix: &str, field: &'static str) -> Parse<Self> {
        let prefix = prefix.to_owned();
        Box::new(move |text| Self::parse(text, &prefix, field))
    }

    fn parse(text: &str, prefix: &str, field: &str) -> Result<Self, String> {
        let file: Option<File> = yaml::parse(text)?;
        let mut commands = Self::default();
        for Entry { image, command } in file.unwrap_or_default().functions {
            if command.first().is_none_or(String::is_empty) {
                return Err(format!("image {image:?} has no {field}"));
            }
            commands.add(&image, command, prefix)?;
        }
        Ok(commands)
    }

    /// Adds an image. If an image is added twice, the last command wins.
    ///
    /// # Errors
    /// If the image is not a valid reference.
    pub fn add(&mut self, image: &str, command: Vec<String>, prefix: &str) -> Result<(), String> {
        let parsed = Image::parse(image, prefix).map_err(|error| format!("image {image:?}: {error}"))?;
        self.0.insert(ImageKey::from(parsed.as_str()), command);
        Ok(())
    }

    /// The images, sorted.
    pub fn images(&self) -> Vec<&str> {
        let mut images: Vec<_> = self.0.keys().map(ImageKey::as_str).collect();
        images.sort_unstable();
        images
    }

    pub(crate) fn command(&self, image: &ImageKey) -> Option<&[String]> {
        self.0.get(image).map(Vec::as_slice)
    }

    /// Whether the image has a command.
    pub(super) fn knows(&self, image: &Image) -> bool {
        self.0.contains_key(&ImageKey::from(image.as_str()))
    }

    /// The image of the repository with the highest tag that the constraint allows.
    pub(crate) fn highest(&self, image: &Image, constraint: &Constraint) -> Option<Image> {
        let repository = image.repository();
        let tags = self.0.keys().filter_map(|key| key.as_str().strip_prefix(repository)?.strip_prefix(':'));
        image.with_tag(constraint.highest(tags)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_get_the_prefix_and_errors_name_the_entry() {
        let parse = |text: &str| ImageCommands::parse(text, "example.com", "command");
        let commands = parse("functions:\n- image: annotate:v1\n  command: [cat, -u]\n").unwrap();
        let key = ImageKey::from("example.com/annotate:v1");
        assert_eq!(commands.command(&key).unwrap(), ["cat", "-u"]);
        assert!(commands.knows(&Image::parse("annotate:v1", "example.com").unwrap()));
        assert!(!commands.knows(&Image::parse("annotate:v1", "example.com/other").unwrap()));
        let metadata = parse("images: [{image: annotate:v1, entrypoint: [cat, -u]}]").unwrap();
        assert_eq!(metadata, commands);
        let other = parse("functions: [{image: annotate:v1, command: [cat]}]").unwrap();
        assert_ne!(commands, other);
        for (text, expected) in [
            ("functions: [{image: a:v1, command: []}]", "\"a:v1\" has no command"),
            ("functions: [{image: a:v1}]", "\"a:v1\" has no command"),
            ("functions: [{image: 'A B', command: [x]}]", "A B"),
            ("functions: [{command: [x]}]", "line 1"),
            ("functions: 1", "line 1"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
