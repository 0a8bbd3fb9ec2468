//! Passes W3C trace context from the headers of a call to the next hop, and to the function's
//! environment. OpenTelemetry specifies the variables, such as `TRACEPARENT`, and SDKs read them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use http::{HeaderMap, HeaderName, HeaderValue};

/// Headers, and the variables with the same content. `traceparent` identifies the
/// trace. Without it, the others have no meaning.
const CARRIERS: [(&str, &str); 3] =
    [("traceparent", "TRACEPARENT"), ("tracestate", "TRACESTATE"), ("baggage", "BAGGAGE")];
/// Longest value that is passed on, in bytes: the smallest limit that the specification
/// of `baggage` allows.
const MAX_VALUE: usize = 8192;

/// The trace context of a call as variables. Empty without a valid `traceparent`.
pub fn environment(headers: &HeaderMap) -> Vec<(OsString, OsString)> {
    let carried = carried(headers);
    carried
        .map(|(_, variable, value)| (variable.into(), OsStr::from_bytes(value.as_bytes()).into()))
        .collect()
}

/// Copies the trace context of a call to the headers for the next hop. Copies nothing without a
/// valid `traceparent`.
pub fn pass_on(from: &HeaderMap, to: &mut HeaderMap) {
    to.extend(carried(from).map(|(header, _, value)| (HeaderName::from_static(header), value)));
}

/// Each header with its variable and value. Repeated headers are joined to one list.
fn carried(headers: &HeaderMap) -> impl Iterator<Item = (&'static str, &'static str, HeaderValue)> {
    let carriers = if is_traced(headers) { &CARRIERS[..] } else { &[] };
    carriers.iter().filter_map(|&(header, variable)| {
        let values: Vec<_> = headers.get_all(header).iter().map(HeaderValue::as_bytes).collect();
        let value = values.join(&b',');
        let fits = !values.is_empty() && value.len() <= MAX_VALUE;
        Some((header, variable, HeaderValue::from_bytes(&value).ok().filter(|_| fits)?))
    })
}

/// Replaces the parent in `headers`. `tracestate` belongs to the previous `traceparent`. It stays
/// only if the previous `traceparent` was valid.
pub(crate) fn set_parent(parent: HeaderValue, headers: &mut HeaderMap) {
    if !is_traced(headers) {
        headers.remove("tracestate");
    }
    headers.insert(CARRIERS[0].0, parent);
}

/// Whether the headers have exactly one `traceparent`, and it is valid.
pub fn is_traced(headers: &HeaderMap) -> bool {
    let mut parents = headers.get_all(CARRIERS[0].0).iter();
    let parent = parents.next().is_some_and(|value| is_traceparent(value.as_bytes()));
    // Two parents are ambiguous.
    parent && parents.next().is_none()
}

/// `VERSION-TRACE-PARENT-FLAGS` in lower-case hexadecimal. Versions after 00 may append a dash and
/// more.
fn is_traceparent(value: &[u8]) -> bool {
    let mut parts = value.split(|&byte| byte == b'-');
    let mut next_is = |length| {
        parts.next().is_some_and(|part| {
            part.len() == length && part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        })
    };
    let well_formed = next_is(2) && next_is(32) && next_is(16) && next_is(2);
    well_formed && !value.starts_with(b"ff") && (parts.next().is_none() || !value.starts_with(b"00"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn map(headers: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        map
    }

    #[test]
    fn only_the_trace_context_is_passed_on() {
        let long = "x".repeat(MAX_VALUE + 1);
        let (parent, state, baggage) =
            (("traceparent", PARENT), ("tracestate", "a=1"), ("baggage", "user=x"));
        let whole = [parent, ("tracestate", "a=1,b=2"), baggage];
        for (headers, expected) in [
            (&[parent, state, ("tracestate", "b=2"), baggage, ("authorization", "Bearer x")][..], &whole[..]),
            (&[state, baggage], &[]),
            (&[parent, parent], &[]),
            (&[parent, ("baggage", &long[1..])], &[parent, ("baggage", &long[1..])]),
            (&[parent, ("baggage", &long)], &[parent]),
        ] {
            let mut next = HeaderMap::new();
            pass_on(&map(headers), &mut next);
            assert_eq!(next, map(expected));
            let variables = expected.iter().map(|(name, value)| (name.to_uppercase().into(), value.into()));
            assert_eq!(environment(&map(headers)), variables.collect::<Vec<_>>());
        }
    }

    #[test]
    fn set_parent_replaces_the_parent_and_drops_a_stray_tracestate() {
        let ours = HeaderValue::from_static("00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01");
        let mut headers = map(&[("traceparent", PARENT), ("tracestate", "a=1"), ("baggage", "user=x")]);
        set_parent(ours.clone(), &mut headers);
        assert_eq!((&headers["traceparent"], headers.len()), (&ours, 3));
        // Without a valid parent, `tracestate` belongs to no trace.
        headers.insert("traceparent", HeaderValue::from_static("none"));
        set_parent(ours.clone(), &mut headers);
        assert_eq!((headers.get("tracestate"), headers.len()), (None, 2));
        headers.append("traceparent", ours.clone());
        set_parent(ours, &mut headers);
        assert_eq!(headers.get_all("traceparent").iter().count(), 1);
    }

    #[test]
    fn malformed_traceparents_are_rejected() {
        let later = PARENT.replacen("00", "01", 1);
        for good in [PARENT, &later, &format!("{later}-more")] {
            assert!(is_traceparent(good.as_bytes()), "{good}");
        }
        let invalid = PARENT.replacen("00", "ff", 1);
        let upper = PARENT.to_uppercase();
        for bad in ["", "00", &PARENT[1..], &PARENT[..54], &format!("{PARENT}-more"), &invalid, &upper] {
            assert!(!is_traceparent(bad.as_bytes()), "{bad}");
        }
    }
}
