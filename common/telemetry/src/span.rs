//! Spans of calls. A trait hides the recorder, so that a server without spans needs no OpenTelemetry: every function pod
//! gets a copy of the wrapper-server, and its size matters.
//!
//! These are no `tracing` spans. With `tracing-opentelemetry` every call would make spans for the log's subscriber too,
//! also when nothing is exported; attributes would have to be declared up front; and the wrapper would need this anyway.

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use porch_fn_text::cut;
use tonic::Code;

use crate::trace_context;

/// Attribute: the function's image. A runner has it from the call, a router from the ring's key.
pub const IMAGE: &str = "porch_fn.image";
/// A stage: waiting for a pod, or for a turn at the exec runtime.
pub const QUEUE_WAIT: &str = "queue wait";
/// A stage: the function itself, in its process.
pub const EVALUATION: &str = "evaluation";
/// Longest text of an attribute, in bytes. Some are caller input.
const MAX_TEXT: usize = 512;

/// Makes the spans of a server.
pub trait Tracer: Debug + Send + Sync {
    /// Begins the span of a call that came in with `headers`, `age` ago.
    fn begin(&self, headers: &HeaderMap, age: Duration) -> Span;
}

/// A span that is recorded. It ends when it is dropped, unless it ended before.
pub trait Record: Debug + Send + Sync {
    /// Begins the span of a call that is made for this one.
    fn call(&self) -> Span;
    /// Begins the span of a stage of this one.
    fn stage(&self, name: &'static str) -> Span;
    /// Sets an attribute to a text.
    fn text(&self, key: &'static str, value: &str);
    /// Sets an attribute to a number.
    fn number(&self, key: &'static str, value: i64);
    /// The parent of the next hop's spans.
    fn traceparent(&self) -> Option<HeaderValue>;
    /// Ends it as a call that ended with `code`.
    fn ended(&self, code: Code);
}

/// A span, or none when none are recorded: then all of this does nothing. Clones are one span.
#[derive(Debug, Clone, Default)]
pub struct Span(Option<Arc<dyn Record>>);

impl Span {
    /// One that `record` makes.
    pub fn new(record: impl Record + 'static) -> Self {
        Self(Some(Arc::new(record)))
    }

    /// Begins the span of a call that is made for this one.
    pub fn call(&self) -> Self {
        self.0.as_ref().map(|record| record.call()).unwrap_or_default()
    }

    /// Begins the span of a stage of this one.
    pub fn stage(&self, name: &'static str) -> Self {
        self.0.as_ref().map(|record| record.stage(name)).unwrap_or_default()
    }

    /// Sets an attribute to a text, the beginning of it if it is long.
    pub fn text(&self, key: &'static str, value: &str) {
        if let Some(record) = &self.0 {
            record.text(key, &cut(value, MAX_TEXT, ""));
        }
    }

    /// Sets an attribute to a number.
    pub fn number(&self, key: &'static str, value: usize) {
        if let Some(record) = &self.0 {
            record.number(key, i64::try_from(value).unwrap_or(i64::MAX));
        }
    }

    /// Ends it as a call that ended with `code`. What has no code ends when it is dropped.
    pub fn ended(&self, code: Code) {
        if let Some(record) = &self.0 {
            record.ended(code);
        }
    }

    /// Makes this span the parent of what these headers reach.
    pub fn inject(&self, headers: &mut HeaderMap) {
        if let Some(parent) = self.0.as_ref().and_then(|record| record.traceparent()) {
            trace_context::set_parent(parent, headers);
        }
    }

    /// `headers` with this span as the parent of what they reach.
    pub fn injected<'a>(&self, headers: &'a HeaderMap) -> Cow<'a, HeaderMap> {
        let mut headers = Cow::Borrowed(headers);
        if self.0.is_some() {
            self.inject(headers.to_mut());
        }
        headers
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    /// Notes what it is told.
    #[derive(Debug, Default, Clone)]
    struct Noting(Arc<Mutex<Vec<String>>>);

    impl Record for Noting {
        fn call(&self) -> Span {
            Span::new(self.clone())
        }

        fn stage(&self, _: &'static str) -> Span {
            Span::new(self.clone())
        }

        fn text(&self, key: &'static str, value: &str) {
            self.0.lock().unwrap().push(format!("{key}={value}"));
        }

        fn number(&self, key: &'static str, value: i64) {
            self.0.lock().unwrap().push(format!("{key}={value}"));
        }

        fn traceparent(&self) -> Option<HeaderValue> {
            Some(HeaderValue::from_static(PARENT))
        }

        fn ended(&self, code: Code) {
            self.0.lock().unwrap().push(format!("{code:?}"));
        }
    }

    #[test]
    fn headers_of_no_span_stay_where_they_are() {
        let mut headers = HeaderMap::new();
        headers.insert("tracestate", HeaderValue::from_static("a=1"));
        let none = Span::default().call();
        assert!(matches!(none.injected(&headers), Cow::Borrowed(_)));
        none.inject(&mut headers);
        assert_eq!(headers.len(), 1);
        let some = Span::new(Noting::default());
        assert_eq!(some.injected(&headers)["traceparent"], PARENT);
    }

    #[test]
    fn texts_are_cut_between_characters() {
        let noting = Noting::default();
        let span = Span::new(noting.clone());
        span.text("short", "é");
        span.text("long", &format!("x{}", "é".repeat(MAX_TEXT)));
        span.number("number", usize::MAX);
        span.call().ended(Code::Ok);
        let noted = noting.0.lock().unwrap();
        assert_eq!(noted[0], "short=é");
        assert_eq!(noted[1].len(), "long=".len() + MAX_TEXT - 1);
        assert_eq!(noted[2..], [format!("number={}", i64::MAX), "Ok".to_owned()]);
    }
}
