//! Log lines in JSON: one flat object per line.

use std::error::Error;
use std::fmt::Debug;
use std::io::Write;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::{LookupSpan, Scope};

/// Names that every line has. An underscore is appended to another field with such a name.
const OWN: [&str; 4] = ["timestamp", "level", "message", "span"];

/// Writes each event as one line to what the function returns. The fields of the spans around the
/// event are fields of its object. The innermost field of a name counts.
pub(crate) struct JsonLines<W>(pub(crate) W);

/// The fields of a span or an event.
#[derive(Default)]
struct Fields(Map<String, Value>);

/// Returns a line without fields, and without the line's end.
pub(crate) fn object(level: &str, message: Value) -> Map<String, Value> {
    let mut timestamp = String::new();
    // Writing to a string does not fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
    let own = [timestamp.into(), level.into(), message];
    OWN.into_iter().map(str::to_owned).zip(own).collect()
}

/// Writes a line. Errors are ignored: there is no other place for the line.
pub(crate) fn write(mut out: impl Write, object: Map<String, Value>) {
    let line = Value::Object(object).to_string() + "\n";
    let _ = out.write_all(line.as_bytes());
}

fn merge(object: &mut Map<String, Value>, fields: Map<String, Value>) {
    for (mut name, value) in fields {
        if OWN.contains(&&*name) {
            name.push('_');
        }
        object.insert(name, value);
    }
}

// === impl JsonLines ===

impl<S, W, O> Layer<S> for JsonLines<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: Fn() -> O + 'static,
    O: Write,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut own = Fields::default();
        event.record(&mut own);
        let message = own.0.shift_remove("message").unwrap_or_default();
        let mut object = object(event.metadata().level().as_str(), message);
        let (mut names, mut outer) = (Vec::new(), Map::new());
        for span in context.event_scope(event).into_iter().flat_map(Scope::from_root) {
            names.push(span.name());
            if let Some(fields) = span.extensions().get::<Fields>() {
                outer.extend(fields.0.clone());
            }
        }
        if !names.is_empty() {
            object.insert("span".to_owned(), names.join(":").into());
        }
        merge(&mut object, outer);
        merge(&mut object, own.0);
        write((self.0)(), object);
    }
}

// === impl Fields ===

impl Fields {
    fn set(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.set(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.set(field, value.to_string());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value);
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use serde_json::json;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines of `log`, without the timestamp.
    fn lines(log: impl FnOnce()) -> Vec<Value> {
        let written = Written::default();
        let out = written.clone();
        let layer = JsonLines(move || out.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), log);
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let line = |line: &str| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            let timestamp = line.as_object_mut().unwrap().shift_remove("timestamp").unwrap();
            let timestamp = timestamp.as_str().unwrap();
            assert!(timestamp.ends_with('Z') && timestamp.as_bytes()[10] == b'T', "{timestamp}");
            line
        };
        text.lines().map(line).collect()
    }

    #[test]
    fn a_line_is_a_flat_object_with_the_fields_of_the_spans() {
        let logged = lines(|| {
            tracing::info!("text only");
            let outer = tracing::info_span!("pod", image = "a/b:v1", slot = 1, late = tracing::field::Empty);
            let _outer = outer.enter();
            let _inner = tracing::info_span!("probe", slot = 2_u64).entered();
            outer.record("late", true);
            tracing::warn!(error = %"no \"route\"\nto host", seconds = 1.5, slot = -3, kind = ?Some(1), "{} failed", 7);
        });
        let expected = [
            json!({"level": "INFO", "message": "text only"}),
            json!({
                "level": "WARN", "message": "7 failed", "span": "pod:probe", "image": "a/b:v1", "slot": -3, "late": true,
                "error": "no \"route\"\nto host", "seconds": 1.5, "kind": "Some(1)",
            }),
        ];
        assert_eq!(logged, expected);
    }

    #[test]
    fn no_field_replaces_the_names_that_every_line_has() {
        let logged = lines(|| tracing::error!(level = 1, span = "x", timestamp = "y", "m"));
        let expected =
            json!({"level": "ERROR", "message": "m", "level_": 1, "span_": "x", "timestamp_": "y"});
        assert_eq!(logged, [expected]);
    }
}
