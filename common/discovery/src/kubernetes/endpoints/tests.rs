//! Tests of which endpoints of a slice are called.

use serde_json::{Value, json};

use super::*;

const READY: &str = r#"{"ready": true}"#;
const NOT_READY: &str = r#"{"ready": false, "serving": false, "terminating": false}"#;
const DRAINING: &str = r#"{"ready": false, "serving": true, "terminating": true}"#;
const ENDED: &str = r#"{"ready": false, "serving": false, "terminating": true}"#;

/// A slice of endpoints, each an address and its conditions.
fn slice(family: &str, endpoints: &[(&str, &str)]) -> EndpointSlice {
    let endpoint = |(address, conditions): &(&str, &str)| {
        let conditions: Value = serde_json::from_str(conditions).unwrap();
        json!({"addresses": [address], "conditions": conditions})
    };
    let endpoints: Vec<_> = endpoints.iter().map(endpoint).collect();
    serde_json::from_value(json!({"addressType": family, "endpoints": endpoints})).unwrap()
}

fn of(slices: &[EndpointSlice]) -> Vec<String> {
    let candidates: Vec<_> = slices.iter().flat_map(of_slice).collect();
    endpoints_of(&candidates, 9445, &mut BTreeSet::new()).to_vec()
}

#[test]
fn an_address_that_was_ready_is_remembered_for_as_long_as_it_is_listed() {
    let mut proven = BTreeSet::new();
    // Each step has the conditions of four addresses, and the indices of the addresses that are
    // called after this step. An empty text: the address is not listed. The API server changes
    // conditions like this when it loses nodes.
    for (what, conditions, expected) in [
        ("two are ready", [READY, READY, NOT_READY, NOT_READY], &[0, 1][..]),
        ("one is still ready", [NOT_READY, READY, NOT_READY, NOT_READY], &[1]),
        ("none is ready: the two that were", [NOT_READY, NOT_READY, NOT_READY, NOT_READY], &[0, 1]),
        (
            "none is ready: one that was, and one that drains",
            [NOT_READY, ENDED, DRAINING, NOT_READY],
            &[0, 2],
        ),
        ("the first is no longer listed", ["", NOT_READY, NOT_READY, NOT_READY], &[1]),
        ("the first is listed again, and counts as new", [NOT_READY, NOT_READY, NOT_READY, NOT_READY], &[1]),
        ("one is ready: only that one", [NOT_READY, NOT_READY, DRAINING, READY], &[3]),
    ] {
        let addresses = [0, 1, 2, 3].map(|last| format!("10.0.0.{last}"));
        let listed = addresses.iter().map(String::as_str).zip(conditions);
        let listed: Vec<_> = listed.filter(|(_, conditions)| !conditions.is_empty()).collect();
        let found = endpoints_of(&of_slice(&slice("IPv4", &listed)), 9445, &mut proven);
        let expected: Vec<_> = expected.iter().map(|last| format!("10.0.0.{last}:9445")).collect();
        assert_eq!(*found, *expected, "{what}");
    }
}

#[test]
fn an_endpoint_counts_by_its_conditions() {
    let table: [(&str, bool, bool); 10] = [
        // The endpoint's conditions, whether it is called if it is the only endpoint, and whether
        // it is called if another endpoint is ready.
        (READY, true, true),
        ("{}", true, true),
        (r#"{"serving": true}"#, true, true),
        (NOT_READY, false, false),
        (r#"{"ready": false, "serving": true}"#, false, false),
        (DRAINING, true, false),
        (ENDED, false, false),
        // A Service with `publishNotReadyAddresses`.
        (r#"{"ready": true, "serving": true, "terminating": true}"#, true, false),
        (r#"{"ready": true, "serving": false, "terminating": true}"#, false, false),
        // From a Kubernetes version without the condition `serving`.
        (r#"{"ready": true, "terminating": true}"#, true, false),
    ];
    for (conditions, alone, beside) in table {
        let one = slice("IPv4", &[("10.0.0.1", conditions)]);
        assert_eq!(of(std::slice::from_ref(&one)).len(), usize::from(alone), "{conditions}");
        let both = of(&[one, slice("IPv4", &[("10.0.0.2", READY)])]);
        assert_eq!(both.contains(&"10.0.0.1:9445".to_owned()), beside, "{conditions}");
        assert!(both.contains(&"10.0.0.2:9445".to_owned()), "{conditions}");
    }
    let several = json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1", "10.0.0.9"]}, {"addresses": []}]});
    assert_eq!(of(&[serde_json::from_value(several).unwrap()]), ["10.0.0.1:9445"], "no conditions");
}

#[test]
fn a_pod_of_two_families_is_one_endpoint() {
    let v4 = slice("IPv4", &[("10.0.0.1", READY), ("10.0.0.2", READY)]);
    let v6 = slice("IPv6", &[("fd00::1", READY), ("2001:DB8:0:0::3", READY)]);
    assert_eq!(of(&[v6.clone(), v4]), ["10.0.0.1:9445", "10.0.0.2:9445"]);
    assert_eq!(of(&[v6.clone(), slice("IPv4", &[])]), ["[2001:db8::3]:9445", "[fd00::1]:9445"]);
    assert_eq!(of(&[v6, slice("IPv4", &[("10.0.0.1", NOT_READY)])]), [""; 0], "the family stays");
    for (family, address) in [("FQDN", "10.0.0.1"), ("IPv4", "fd00::1"), ("IPv6", "10.0.0.1"), ("IPv4", "")] {
        assert_eq!(of(&[slice(family, &[(address, READY)])]), [""; 0], "{family} {address}");
    }
}

#[test]
fn the_endpoints_object_is_read_like_slices() {
    let of = |subsets: Value, proven: &str| {
        let endpoints = serde_json::from_value(json!({"subsets": subsets})).unwrap();
        endpoints_of(&of_endpoints(&endpoints), 7, &mut BTreeSet::from([proven.parse().unwrap()])).to_vec()
    };
    let ready = json!([
        {"addresses": [{"ip": "10.0.0.2"}, {"ip": "10.0.0.1"}], "notReadyAddresses": [{"ip": "10.0.0.3"}]},
        {"addresses": [{"ip": "10.0.0.2"}], "ports": [{"port": 80}]},
    ]);
    assert_eq!(of(ready, "10.0.0.3"), ["10.0.0.1:7", "10.0.0.2:7"]);
    let none_ready = json!([{"notReadyAddresses": [{"ip": "10.0.0.3"}, {"ip": "10.0.0.4"}]}]);
    assert_eq!(of(none_ready, "10.0.0.3"), ["10.0.0.3:7"]);
    assert_eq!(of(json!([]), "10.0.0.3"), [""; 0]);
}
