//! Secret text: it has no `Display`, and its `Debug` hides it.

use std::fmt;
use std::sync::Arc;

use http::HeaderValue;

/// A password, a token, or what holds one.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Arc<str>);

impl Secret {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// A token to be sent as it is.
    pub(crate) fn token(text: &str) -> Result<Self, &'static str> {
        let is_header = HeaderValue::from_str(text).is_ok();
        is_header.then(|| Self::new(text)).ok_or("characters that no token may have")
    }

    /// For what is sent to a registry, and nothing else.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}
