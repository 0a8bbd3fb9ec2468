//! An error with its causes.

use std::error::Error;
use std::fmt;

/// Displays an error with all its causes. The outermost error of a failed connection does not
/// explain why the connection failed.
#[derive(Debug)]
pub struct Causes<'a>(pub &'a dyn Error);

// === impl Causes ===

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = self.0.to_string();
        f.write_str(&last)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let text = error.to_string();
            // Many errors contain the text of their cause.
            if !last.contains(&text) {
                write!(f, ": {text}")?;
                last = text;
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
    fn each_cause_is_displayed_once() {
        let refused = Because("connection refused", None);
        let connect = Because("client error (Connect)", Some(Box::new(refused)));
        let service = Because("ServiceError: client error (Connect)", Some(Box::new(connect)));
        assert_eq!(Causes(&service).to_string(), "ServiceError: client error (Connect): connection refused");
    }
}
