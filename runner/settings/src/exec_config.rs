//! `--config`: the executables that run images.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use porch_fn_image::Image;
use serde::Deserialize;
use serde_saphyr::Spanned;

use crate::yaml;

#[derive(Debug, Default, Deserialize)]
struct File {
    #[serde(default)]
    functions: Vec<Function>,
}

#[derive(Debug, Deserialize)]
struct Function {
    function: Spanned<String>,
    #[serde(default)]
    images: Vec<String>,
}

/// Executables by image. Their paths are relative to `--functions`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecConfig {
    /// The keys are canonical references, or names as written if they are no image references.
    pub(crate) by_image: HashMap<String, String>,
    /// Ignored entries, each an image and a function: an earlier entry already names the image.
    pub duplicates: Vec<(String, String)>,
}

impl ExecConfig {
    /// The expected form, for errors.
    pub const EXPECTED: &str = "expected functions: [{function: NAME, images: [IMAGE, ...]}]";

    /// Reads the file's text; images without a registry get `prefix`.
    ///
    /// # Errors
    /// A text of one line, with the line and column in the file.
    pub fn parse(text: &str, prefix: &str) -> Result<Self, String> {
        let file: Option<File> = yaml::parse(text)?;
        let mut config = Self::default();
        for Function { function, images } in file.unwrap_or_default().functions {
            if function.value.is_empty() {
                return Err(yaml::at(&function, "a function without a name"));
            }
            for image in images {
                let function = function.value.clone();
                // Like in Porch's runner, the first entry wins.
                match config.by_image.entry(key(&image, prefix)) {
                    Entry::Occupied(_) => config.duplicates.push((image, function)),
                    Entry::Vacant(place) => {
                        place.insert(function);
                    }
                }
            }
        }
        Ok(config)
    }

    /// All images and their executables, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.by_image.iter().map(|(image, executable)| (image.as_str(), executable.as_str()))
    }
}

/// The canonical reference of an image, or the name as written if it is not an image reference.
/// Porch's runner always compares names as written.
fn key(image: &str, prefix: &str) -> String {
    Image::parse(image, prefix).map_or_else(|_| image.to_owned(), |image| image.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "ghcr.io/kptdev/krm-functions-catalog";

    fn parse(text: &str) -> Result<ExecConfig, String> {
        ExecConfig::parse(text, PREFIX)
    }

    fn find<'a>(config: &'a ExecConfig, image: &str) -> Option<&'a str> {
        config.by_image.get(&key(image, PREFIX)).map(String::as_str)
    }

    #[test]
    fn short_and_full_names_are_one_image() {
        let text = "functions:\n- function: set-namespace\n  images: ['set-namespace:v0.4.1', Odd Name]\n";
        let config = parse(text).unwrap();
        let found = Some("set-namespace");
        for (image, expected) in [
            ("set-namespace:v0.4.1", found),
            ("ghcr.io/kptdev/krm-functions-catalog/set-namespace:v0.4.1", found),
            ("Odd Name", found),
            ("set-namespace", None),
            ("example.com/set-namespace:v0.4.1", None),
        ] {
            assert_eq!(find(&config, image), expected, "{image}");
        }
        assert!(config.iter().all(|(_, executable)| executable == "set-namespace"));
    }

    #[test]
    fn the_first_entry_of_an_image_wins_and_others_are_reported() {
        let text = "functions: [{function: a, images: [x/f:1]}, {function: b, images: [docker.io/x/f:1]}]";
        let config = parse(text).unwrap();
        assert_eq!(find(&config, "x/f:1"), Some("a"));
        assert_eq!(config.duplicates, [("docker.io/x/f:1".to_owned(), "b".to_owned())]);
    }

    #[test]
    fn errors_have_a_position() {
        assert!(parse("").unwrap() == ExecConfig::default());
        assert!(parse("functions: 3").unwrap_err().contains("line 1"));
        assert!(parse("functions: [{images: [a]}]").unwrap_err().contains("function"));
        let error = parse("functions:\n- function: a\n- function: ''\n").unwrap_err();
        assert_eq!(error, "line 3, column 13: a function without a name");
    }
}
