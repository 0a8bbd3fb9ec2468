//! Secret text: it has no `Display`, and its `Debug` hides it.

use std::fmt;
use std::sync::Arc;

/// A password, a token, or a text that contains one.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Arc<str>);

impl Secret {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the text. Use it only for requests to a registry or token server.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}
