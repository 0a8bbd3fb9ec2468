//! What an error says of why it came to be.

use std::error::Error;
use std::fmt;

/// An error with all its causes, for the log: of a connection that fails, the first alone says next to nothing.
#[derive(Debug)]
pub struct Causes<'a>(pub &'a dyn Error);

// === impl Causes ===

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = self.0.to_string();
        f.write_str(&told)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let text = error.to_string();
            // Many say what their cause says.
            if !told.contains(&text) {
                write!(f, ": {text}")?;
                told = text;
            }
            cause = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Because(&'static str, #[source] Option<Box<Because>>);

    #[test]
    fn causes_are_told_once() {
        let refused = Because("connection refused", None);
        let connect = Because("client error (Connect)", Some(Box::new(refused)));
        let service = Because("ServiceError: client error (Connect)", Some(Box::new(connect)));
        assert_eq!(Causes(&service).to_string(), "ServiceError: client error (Connect): connection refused");
    }
}
