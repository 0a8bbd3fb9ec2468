//! Whether routers have found the runners, however either side writes addresses.

use super::*;

const A: &[&str] = &["10.0.0.1", "fd00::1"];
const B: &[&str] = &["10.0.0.2", "fd00::2"];

/// What is said of one router that knows `known`, beside ready runners with these addresses.
fn said(known: &[&str], runners: &[&[&str]]) -> Option<(Level, String)> {
    let runners = runners.iter().zip(["runner-a", "runner-b"]).map(|(ips, pod)| Asked {
        ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        ..runner(pod, "10.0.0.9")
    });
    let facts = Facts { routers: vec![router("router", known)], runners: runners.collect(), ..facts() };
    let mut said = all(&facts).into_iter().filter(|finding| finding.check == "discovery");
    let found = said.next().map(|finding| (finding.level, finding.text));
    assert_eq!(said.next(), None);
    found
}

#[test]
fn an_address_is_the_same_however_it_is_written() {
    let well = Some((Level::Ok, "1 routers have found the 2 runners that are ready".to_owned()));
    for (known, runners) in [
        (["10.0.0.1:9445", "10.0.0.2:9445"], [A, B]),
        // The pods' first address is of the other family.
        (["[fd00::1]:9445", "[fd00::2]:9445"], [A, B]),
        (["[fd00:0:0::1]:9445", "[FD00::2]:9445"], [A, B]),
        (["10.0.0.1:9445", "10.0.0.2:9445"], [&A[..1], &B[..1]]),
    ] {
        assert_eq!(said(&known, &runners), well, "{known:?}");
    }
    assert_eq!(said(&["10.0.0.1:9445", "[fd00::1]:9445", "10.0.0.2:9445"], &[A, B]), well);
}

#[test]
fn a_router_that_knows_others_than_those_that_are_ready_is_named() {
    let warning = |text: &str| Some((Level::Warning, text.to_owned()));
    assert_eq!(said(&["[fd00::1]:9445"], &[A, B]), warning("router router does not know of runner-b"));
    assert_eq!(said(&[], &[A, B]), warning("router router does not know of runner-a, runner-b"));
    assert_eq!(
        said(&["10.0.0.1:9445", "10.0.0.3:9445"], &[A]),
        warning("router router knows 2 runners, and 1 are ready")
    );
    assert_eq!(said(&["10.0.0.1:9445"], &[A, &[]]), warning("router router does not know of runner-b"));
}

#[test]
fn names_say_nothing_of_addresses() {
    assert_eq!(said(&["runner-0.shards:9445", "runner-1.shards:9445"], &[A, B]), None);
    assert_eq!(said(&["runner-0.shards:9445", "10.0.0.2:9445"], &[A, B]), None);
}
