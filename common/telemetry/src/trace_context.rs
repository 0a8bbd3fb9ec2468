//! W3C trace context on its way from headers to a function's environment, where SDKs look for it: `TRACEPARENT` and its
//! companions, as OpenTelemetry's specification of environment variables as carriers names them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use http::{HeaderMap, HeaderName, HeaderValue};

/// Headers, and the variables that carry the same. The first says which trace this is; the others are nothing without it.
const CARRIERS: [(&str, &str); 3] =
    [("traceparent", "TRACEPARENT"), ("tracestate", "TRACESTATE"), ("baggage", "BAGGAGE")];
/// Longest value that is passed on, in bytes: what the specification of `baggage` asks for at most.
const MAX_VALUE: usize = 8192;

/// The trace context of a call as variables; none without a valid `traceparent`.
pub fn environment(headers: &HeaderMap) -> Vec<(OsString, OsString)> {
    if !is_traced(headers) {
        return Vec::new();
    }
    CARRIERS
        .iter()
        .filter_map(|(header, variable)| {
            let mut values = headers.get_all(*header).iter();
            let mut value = values.next()?.as_bytes().to_vec();
            for more in values {
                value.push(b',');
                value.extend_from_slice(more.as_bytes());
            }
            (value.len() <= MAX_VALUE).then(|| (OsString::from(variable), OsString::from_vec(value)))
        })
        .collect()
}

/// Puts the trace context of a call on the one that is made for it; nothing without a valid `traceparent`.
pub fn pass_on(from: &HeaderMap, to: &mut HeaderMap) {
    if !is_traced(from) {
        return;
    }
    for (header, _) in CARRIERS {
        let values = from.get_all(header);
        if values.iter().map(|value| value.len() + 1).sum::<usize>() <= MAX_VALUE + 1 {
            to.extend(values.iter().map(|value| (HeaderName::from_static(header), value.clone())));
        }
    }
}

/// Replaces the parent in `headers`. The rest of a trace context belongs to the `traceparent` that came with it, and
/// stays only if that was valid.
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

/// `VERSION-TRACE-PARENT-FLAGS` in lower-case hexadecimal, with more behind a dash in versions to come.
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

    fn variables(headers: &[(&'static str, &str)]) -> Vec<String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        let shown = |(name, value): (OsString, OsString)| format!("{}={}", name.display(), value.display());
        environment(&map).into_iter().map(shown).collect()
    }

    #[test]
    fn a_trace_is_passed_on_whole() {
        let headers = [
            ("traceparent", PARENT),
            ("tracestate", "a=1"),
            ("tracestate", "b=2"),
            ("baggage", "user=x"),
            ("authorization", "Bearer x"),
        ];
        let expected =
            [format!("TRACEPARENT={PARENT}"), "TRACESTATE=a=1,b=2".into(), "BAGGAGE=user=x".into()];
        assert_eq!(variables(&headers), expected);
        assert_eq!(variables(&[("tracestate", "a=1"), ("baggage", "user=x")]), [""; 0]);
        let long = "x".repeat(MAX_VALUE + 1);
        assert_eq!(variables(&[("traceparent", PARENT), ("baggage", &long)]), expected[..1]);
    }

    #[test]
    fn the_next_call_gets_the_same_and_nothing_else() {
        let map = |headers: &[(&'static str, &str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(*name, HeaderValue::from_str(value).unwrap());
            }
            map
        };
        let passed = |headers: &[(&'static str, &str)]| {
            let mut to = HeaderMap::new();
            pass_on(&map(headers), &mut to);
            to
        };
        let traced =
            [("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2"), ("baggage", "user=x")];
        let with_more: Vec<_> = traced.into_iter().chain([("authorization", "Bearer x")]).collect();
        assert_eq!(passed(&with_more), map(&traced));
        assert_eq!(environment(&passed(&with_more)), environment(&map(&traced)));
        assert_eq!(passed(&traced[1..]), HeaderMap::new());
        assert_eq!(passed(&[("traceparent", PARENT), ("traceparent", PARENT)]), HeaderMap::new());
        for (length, kept) in [(MAX_VALUE, 2), (MAX_VALUE + 1, 1)] {
            assert_eq!(passed(&[("traceparent", PARENT), ("baggage", &"x".repeat(length))]).len(), kept);
        }
    }

    #[test]
    fn a_span_takes_the_place_of_its_parent_alone() {
        let ours = HeaderValue::from_static("00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01");
        let mut headers = HeaderMap::new();
        for (name, value) in [("traceparent", PARENT), ("tracestate", "a=1"), ("baggage", "user=x")] {
            headers.insert(name, HeaderValue::from_static(value));
        }
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
    fn what_is_no_traceparent_is_not_passed_on() {
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
