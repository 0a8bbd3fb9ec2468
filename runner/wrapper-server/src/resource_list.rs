//! Checks that an output is a `ResourceList`, and reads the results in it.
//!
//! Accepts and rejects the same outputs as Go's `fn.ParseResourceList`, which Porch's
//! wrapper-server uses. An output must be exactly one YAML document: a mapping with the `kind`
//! `ResourceList`. If present, `items` must be a list of mappings, and `functionConfig` a mapping.
//! If a key is repeated, the first one counts.
//!
//! The differences: flow collections (JSON) may nest 255 levels deep, YAML 1.2's escape `\/` is
//! valid, and aliases inside results are not followed. In a result, only the parts that appear in
//! the error text are checked. An empty output is always an error: Porch would take it for an empty
//! package.
//!
//! The answer of a function can be several megabytes, and only the results are of interest.
//! Therefore this reads the parser's events and builds no tree: nesting needs no stack, and an
//! alias is never expanded.

mod events;
mod outline;
mod results;

use crate::go_text::go_quote;
use events::{Events, Node, Value, readable};

pub(crate) use results::bounded;
pub use results::{MESSAGE_LIMIT, PART_LIMIT, Results, TEXT_LIMIT};

/// Checks a function's output and returns the results in it.
///
/// Takes about 30 ms of CPU time per MiB. In block style, the size of the output does not affect
/// the use of memory. In flow style (JSON), the parser keeps one item at a time, at up to 70 times
/// its size.
///
/// # Errors
/// The reason why the output is not a `ResourceList`, with the position in the function's stdout.
pub fn check(output: &[u8]) -> Result<Results, String> {
    let (text, prefix) = readable(output)?;
    let mut events = Events::new(&text, prefix);
    let Some(root) = events.document()? else { return Err(EMPTY.to_owned()) };
    let results = resource_list(&mut events, &root)?;
    events.end()?;
    Ok(results)
}

/// Like [`check`], but does not look into the items of an output in the usual block style: invalid
/// YAML in an item is accepted there. Takes less than 1 ms of CPU time per MiB then.
///
/// # Errors
/// Like [`check`].
pub fn check_outline(output: &[u8]) -> Result<Results, String> {
    match outline::results(output) {
        Some("") => Ok(Results::default()),
        // An error of this short document has another position than in the output.
        Some(results) => {
            check(format!("kind: ResourceList\n{results}").as_bytes()).or_else(|_| check(output))
        }
        None => check(output),
    }
}

fn resource_list<'a>(events: &mut Events<'a>, root: &Node<'a>) -> Result<Results, String> {
    root.must_be("mapping", "the function's stdout")?;
    let (mut kind, mut items, mut function_config, mut results) = (None, false, false, None);
    events.each_entry(|events, key, node| match key {
        "kind" if kind.is_none() => {
            kind = Some(if let Value::Text(text) = &node.value {
                bounded(text, KIND_LIMIT)
            } else {
                String::new()
            });
            events.skip(&node)
        }
        "items" if !items => {
            items = true;
            node.must_be("list", "items")?;
            events.each_element(|events, item| {
                item.must_be("mapping", "each of items")?;
                events.skip(&item)
            })
        }
        "functionConfig" if !function_config => {
            function_config = true;
            node.must_be("mapping", "functionConfig")?;
            events.skip(&node)
        }
        "results" if results.is_none() => {
            results = Some(Results::read(events, &node)?);
            Ok(())
        }
        _ => events.skip(&node),
    })?;
    match kind.as_deref() {
        Some("ResourceList") => Ok(results.unwrap_or_default()),
        other => {
            let other = go_quote(other.unwrap_or_default());
            Err(format!("input was of unexpected kind {other}; expected ResourceList"))
        }
    }
}

/// The error for an output without a YAML document: nothing, or only blanks and comments.
const EMPTY: &str = "expected exactly one object, got 0: the function must write a ResourceList to stdout";

/// How much of an unexpected `kind` an error quotes, in bytes.
const KIND_LIMIT: usize = 256;

#[cfg(test)]
mod tests;
