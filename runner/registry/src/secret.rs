//! Secret text: it has no `Display`, and its `Debug` hides it.

use std::fmt;
use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use http::HeaderValue;

/// A password, a token, or what holds one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Secret(Arc<str>);

impl Secret {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.into())
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

/// `Authorization: Basic`. Base64 is always a valid header, so `None` never comes.
pub(crate) fn basic_header(user: &str, password: &Secret) -> Option<HeaderValue> {
    let encoded = BASE64_STANDARD.encode(format!("{user}:{}", password.expose()));
    sensitive(&format!("Basic {encoded}"))
}

/// `Authorization: Bearer`; `None` for a token with characters that no header may have.
pub(crate) fn bearer_header(token: &Secret) -> Option<HeaderValue> {
    sensitive(&format!("Bearer {}", token.expose()))
}

fn sensitive(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    // The HTTP libraries log headers; sensitive ones they leave out.
    value.set_sensitive(true);
    Some(value)
}
