//! The last error of each image, with its whole text, for the router's status page. Only a few are
//! kept, because a text may be long and contains a caller's input.

use std::num::NonZeroUsize;

use lru::LruCache;
use parking_lot::Mutex;
use porch_fn_admin::failures::now_ms;
use porch_fn_proto::shard::LastError;
use porch_fn_text::cut;

/// Maximum number of images. The image whose last error is the oldest is dropped.
const MAX_IMAGES: NonZeroUsize = NonZeroUsize::new(100).unwrap();
/// Longest text, in bytes.
const MAX_TEXT: usize = 64 * 1024;
/// Longest image name, in bytes. It is above the length of any valid reference.
const MAX_IMAGE: usize = 1024;
/// The end of a text that was cut.
const CUT: &str = " [cut]";

/// The last error of each image.
#[derive(Debug)]
pub(crate) struct LastErrors(Mutex<LruCache<String, LastError>>);

impl Default for LastErrors {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(MAX_IMAGES)))
    }
}

impl LastErrors {
    /// Records an error at the current time. `image` is the router's name for the image: its shard
    /// key.
    pub(crate) fn note(&self, image: &str, code: &str, text: &str) {
        if image.len() > MAX_IMAGE {
            return;
        }
        let text = cut(text, MAX_TEXT, CUT).into_owned();
        let error = LastError { at_ms: now_ms(), code: code.to_owned(), text };
        self.0.lock().put(image.to_owned(), error);
    }

    /// The image's last error.
    pub(crate) fn of(&self, image: &str) -> Option<LastError> {
        self.0.lock().peek(image).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_of_each_image_is_kept_whole() {
        let errors = LastErrors::default();
        errors.note("f:v1", "UNKNOWN", "first");
        errors.note("f:v1", "INTERNAL", "boom\nmore\n");
        errors.note("g:v1", "INTERNAL", "other");
        let error = errors.of("f:v1").unwrap();
        assert!(now_ms() - error.at_ms < 60_000, "{}", error.at_ms);
        assert_eq!((&*error.code, &*error.text), ("INTERNAL", "boom\nmore\n"));
        assert_eq!(errors.of("h:v1"), None);
    }

    #[test]
    fn images_and_texts_are_bounded() {
        let errors = LastErrors::default();
        for number in 0..=MAX_IMAGES.get() {
            errors.note(&number.to_string(), "INTERNAL", "x");
        }
        errors.note("2", "INTERNAL", &"ž".repeat(MAX_TEXT));
        errors.note(&"x".repeat(MAX_IMAGE + 1), "INTERNAL", "x");
        assert_eq!(errors.0.lock().len(), MAX_IMAGES.get());
        assert_eq!(errors.of("0"), None);
        let text = errors.of("2").unwrap().text;
        assert!(text.len() <= MAX_TEXT && text.ends_with("ž [cut]"), "{}", text.len());
    }
}
