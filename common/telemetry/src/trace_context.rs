//! W3C trace context on its way from headers to a function's environment, where SDKs look for it:
//! `TRACEPARENT` and its companions, which OpenTelemetry specifies as carriers.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use http::{HeaderMap, HeaderName, HeaderValue};

/// Headers, and the variables that carry the same. The first says which trace this is; the others
/// are nothing without it.
const CARRIERS: [(&str, &str); 3] =
    [("traceparent", "TRACEPARENT"), ("tracestate", "TRACESTATE"), ("baggage", "BAGGAGE")];
/// Longest value that is passed on, in bytes: what the specification of `baggage` asks for at most.
const MAX_VALUE: usize = 8192;

/// The trace context of a call as variables; none without a valid `traceparent`.
pub fn environment(headers: &HeaderMap) -> Vec<(OsString, OsString)> {
    let carried = carried(headers);
    carried
        .map(|(_, variable, value)| (variable.into(), OsStr::from_bytes(value.as_bytes()).into()))
        .collect()
}

/// Puts the trace context of a call on the one that is made for it; nothing without a valid
/// `traceparent`.
pub fn pass_on(from: &HeaderMap, to: &mut HeaderMap) {
    to.extend(carried(from).map(|(header, _, value)| (HeaderName::from_static(header), value)));
}

/// Headers, their variables and values; repeated headers are one list.
fn carried(headers: &HeaderMap) -> impl Iterator<Item = (&'static str, &'static str, HeaderValue)> {
    let carriers = if is_traced(headers) { &CARRIERS[..] } else { &[] };
    carriers.iter().filter_map(|&(header, variable)| {
        let values: Vec<_> = headers.get_all(header).iter().map(HeaderValue::as_bytes).collect();
        let value = values.join(&b',');
        let fits = !values.is_empty() && value.len() <= MAX_VALUE;
        Some((header, variable, HeaderValue::from_bytes(&value).ok().filter(|_| fits)?))
    })
}

/// Replaces the parent in `headers`. The rest of a trace context belongs to the `traceparent` that
/// came with it, and stays only if that was valid.
pub(crate) fn set_parent(parent: HeaderValue, headers: &mut HeaderMap) {
    if !is_traced(headers) {
        headers.remove("tracestate");
    }
    headers.insert(CARRIERS[0].0, parent);
}

/// Whether the headers say which trace their call belongs to.
pub fn is_traced(headers: &HeaderMap) -> bool {
    let mut parents = headers.get_all(CARRIERS[0].0).iter();
    let parent = parents.next().is_some_and(|value| is_traceparent(value.as_bytes()));
    // With two of them, nobody knows which is right.
    parent && parents.next().is_none()
}

/// `VERSION-TRACE-PARENT-FLAGS` in lower-case hexadecimal, with more behind a dash in versions to
/// come.
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
    fn a_trace_is_passed_on_whole_and_nothing_else() {
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
    fn a_span_replaces_only_its_parent() {
        let ours = HeaderValue::from_static("00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01");
        let mut headers = map(&[("traceparent", PARENT), ("tracestate", "a=1"), ("baggage", "user=x")]);
        set_parent(ours.clone(), &mut headers);
        assert_eq!((&headers["traceparent"], headers.len()), (&ours, 3));
        // Nobody knows to which trace this state belongs.
        headers.insert("traceparent", HeaderValue::from_static("none"));
        set_parent(ours.clone(), &mut headers);
        assert_eq!((headers.get("tracestate"), headers.len()), (None, 2));
        headers.append("traceparent", ours.clone());
        set_parent(ours, &mut headers);
        assert_eq!(headers.get_all("traceparent").iter().count(), 1);
    }

    #[test]
    fn a_trace_needs_a_valid_traceparent() {
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
