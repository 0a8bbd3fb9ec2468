//! What slices mean, by value; and that neither their order nor repetition means anything.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const READY: &str = r#"{"ready": true}"#;
const NOT_READY: &str = r#"{"ready": false, "serving": false, "terminating": false}"#;
const DRAINING: &str = r#"{"ready": false, "serving": true, "terminating": true}"#;
const ENDING: &str = r#"{"ready": false, "serving": false, "terminating": true}"#;

/// A slice of endpoints, each an address and its conditions.
fn slice(family: &str, endpoints: &[(&str, &str)]) -> EndpointSlice {
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|(address, conditions)| {
            let conditions: Value = serde_json::from_str(conditions).unwrap();
            json!({"addresses": [address], "conditions": conditions})
        })
        .collect();
    serde_json::from_value(json!({"addressType": family, "endpoints": endpoints, "ports": [{"port": 80}]}))
        .unwrap()
}

fn of(slices: &[EndpointSlice]) -> Vec<String> {
    after(&[], slices)
}

fn after(proven: &[&str], slices: &[EndpointSlice]) -> Vec<String> {
    let candidates: Vec<_> = slices.iter().flat_map(of_slice).collect();
    let proven = proven.iter().map(|address| address.parse().unwrap()).collect();
    endpoints_of(&candidates.iter(), 9445, &proven).to_vec()
}

#[test]
fn one_that_was_ready_is_remembered_for_as_long_as_it_is_listed() {
    let mut proven = BTreeSet::new();
    let mut seen = |endpoints: &[(&str, &str)]| {
        let candidates = of_slice(&slice("IPv4", endpoints));
        remember_ready(&mut proven, &candidates.iter());
        endpoints_of(&candidates.iter(), 9445, &proven).to_vec()
    };
    let both = ["10.0.0.1:9445", "10.0.0.2:9445"];
    assert_eq!(seen(&[("10.0.0.1", READY), ("10.0.0.2", READY), ("10.0.0.3", NOT_READY)]), both);
    // One after the other, as they are patched when their node is lost.
    assert_eq!(seen(&[("10.0.0.1", NOT_READY), ("10.0.0.2", READY), ("10.0.0.3", NOT_READY)]), both[1..]);
    assert_eq!(seen(&[("10.0.0.1", NOT_READY), ("10.0.0.2", NOT_READY), ("10.0.0.3", NOT_READY)]), both);
    assert_eq!(seen(&[("10.0.0.2", NOT_READY)]), both[1..]);
    assert_eq!(
        seen(&[("10.0.0.1", NOT_READY), ("10.0.0.2", NOT_READY)]),
        both[1..],
        "the first is a new one"
    );
}

#[test]
fn those_that_were_ready_count_when_none_is_any_more() {
    let before = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
    let tainted = slice(
        "IPv4",
        &[("10.0.0.1", NOT_READY), ("10.0.0.2", DRAINING), ("10.0.0.3", ENDING), ("10.0.0.4", NOT_READY)],
    );
    assert_eq!(after(&before, std::slice::from_ref(&tainted)), ["10.0.0.1:9445", "10.0.0.2:9445"]);
    let one_is_back = slice("IPv4", &[("10.0.0.4", READY)]);
    assert_eq!(after(&before, &[tainted, one_is_back]), ["10.0.0.4:9445"]);
}

#[test]
fn those_that_are_ready_count() {
    let table: [(&str, bool, bool); 10] = [
        // Conditions; alone; beside one that is ready.
        (READY, true, true),
        ("{}", true, true),
        (r#"{"serving": true}"#, true, true),
        (NOT_READY, false, false),
        (r#"{"ready": false, "serving": true}"#, false, false),
        (DRAINING, true, false),
        (ENDING, false, false),
        // The Service publishes addresses that are not ready.
        (r#"{"ready": true, "serving": true, "terminating": true}"#, true, false),
        (r#"{"ready": true, "serving": false, "terminating": true}"#, false, false),
        // Before the condition `serving` there was.
        (r#"{"ready": true, "terminating": true}"#, true, false),
    ];
    for (conditions, alone, beside) in table {
        let one = slice("IPv4", &[("10.0.0.1", conditions)]);
        assert_eq!(of(std::slice::from_ref(&one)).len(), usize::from(alone), "{conditions}");
        let both = of(&[one, slice("IPv4", &[("10.0.0.2", READY)])]);
        assert_eq!(both.contains(&"10.0.0.1:9445".to_owned()), beside, "{conditions}");
        assert!(both.contains(&"10.0.0.2:9445".to_owned()), "{conditions}");
    }
    let without: EndpointSlice =
        serde_json::from_value(json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}]}))
            .unwrap();
    assert_eq!(of(&[without]), ["10.0.0.1:9445"]);
    assert_eq!(of(&[]), [""; 0]);
}

#[test]
fn a_pod_of_two_families_is_one_endpoint() {
    let v4 = [("10.0.0.1", READY), ("10.0.0.2", READY)];
    let v6 = [("fd00::1", READY), ("fd00::2", READY)];
    assert_eq!(of(&[slice("IPv6", &v6), slice("IPv4", &v4)]), ["10.0.0.1:9445", "10.0.0.2:9445"]);
    assert_eq!(of(&[slice("IPv6", &v6), slice("IPv4", &[])]), ["[fd00::1]:9445", "[fd00::2]:9445"]);
    // One slice is told of before the other: the family stays.
    let later = slice("IPv4", &[("10.0.0.1", NOT_READY)]);
    assert_eq!(of(&[slice("IPv6", &v6[..1]), later]), [""; 0]);
    // As routers spell it.
    assert_eq!(of(&[slice("IPv6", &[("2001:DB8:0:0::3", READY)])]), ["[2001:db8::3]:9445"]);
}

#[test]
fn what_is_no_address_is_passed_over() {
    for (family, address) in [
        ("FQDN", "runner.example"),
        ("FQDN", "10.0.0.1"),
        ("IPv4", "fd00::1"),
        ("IPv6", "10.0.0.1"),
        ("IPv4", ""),
    ] {
        assert_eq!(of(&[slice(family, &[(address, READY)])]), [""; 0], "{family} {address}");
    }
    let several = json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1", "10.0.0.9"]}, {"addresses": []}]});
    assert_eq!(of(&[serde_json::from_value(several).unwrap()]), ["10.0.0.1:9445"]);
}

#[test]
fn the_older_kind_says_the_same() {
    let endpoints: Endpoints = serde_json::from_value(json!({"subsets": [
        {"addresses": [{"ip": "10.0.0.2"}, {"ip": "10.0.0.1"}], "notReadyAddresses": [{"ip": "10.0.0.3"}]},
        {"addresses": [{"ip": "10.0.0.2"}], "ports": [{"port": 80}]},
    ]}))
    .unwrap();
    let all = of_endpoints(&endpoints);
    assert_eq!(*endpoints_of(&all.iter(), 7, &BTreeSet::new()), ["10.0.0.1:7", "10.0.0.2:7"]);
    assert!(of_endpoints(&Endpoints::default()).is_empty());
    let none_ready = json!({"subsets": [{"notReadyAddresses": [{"ip": "10.0.0.3"}, {"ip": "10.0.0.4"}]}]});
    let all = of_endpoints(&serde_json::from_value(none_ready).unwrap());
    assert_eq!(*endpoints_of(&all.iter(), 7, &BTreeSet::from(["10.0.0.3".parse().unwrap()])), ["10.0.0.3:7"]);
}

fn any_slice() -> impl Strategy<Value = EndpointSlice> {
    let conditions = prop::sample::select(vec!["{}", READY, NOT_READY, DRAINING, ENDING]);
    let endpoints = prop::collection::vec((0..6_u8, conditions), 0..6);
    (any::<bool>(), endpoints).prop_map(|(v4, endpoints)| {
        let (family, prefix) = if v4 { ("IPv4", "10.0.0.") } else { ("IPv6", "fd00::") };
        let addresses: Vec<_> =
            endpoints.iter().map(|(number, conditions)| (format!("{prefix}{number}"), *conditions)).collect();
        let endpoints: Vec<_> =
            addresses.iter().map(|(address, conditions)| (address.as_str(), *conditions)).collect();
        slice(family, &endpoints)
    })
}

proptest! {
    #[test]
    fn neither_order_nor_repetition_matters(
        (slices, shuffled) in prop::collection::vec(any_slice(), 0..5)
            .prop_flat_map(|slices| (Just(slices.clone()), Just(slices).prop_shuffle())),
        again in 0..5_usize,
    ) {
        let expected = of(&slices);
        let mut other = shuffled;
        other.extend(slices.get(again).cloned());
        prop_assert_eq!(of(&other), expected.clone());
        prop_assert!(expected.is_sorted());

        // What an observer of single endpoints would say.
        let families = || slices.iter().flat_map(|slice| slice.endpoints.iter().map(|endpoint| endpoint.addresses[0].contains('.')));
        let v4 = families().any(|v4| v4);
        prop_assert!(expected.iter().all(|endpoint| endpoint.contains('.') == v4));
        let of_family = || slices.iter().flat_map(|slice| &slice.endpoints).filter(|endpoint| endpoint.addresses[0].contains('.') == v4);
        let condition = |endpoint: &Endpoint| endpoint.conditions.clone().unwrap_or_default();
        let ready = of_family().any(|endpoint| condition(endpoint).ready.unwrap_or(true));
        let draining = of_family().any(|endpoint| condition(endpoint).serving.unwrap_or(true));
        prop_assert_eq!(expected.is_empty(), !(ready || draining));
    }
}
