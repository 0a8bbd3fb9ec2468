//! The resolver against a DNS server on loopback, and against the system's hosts file.

use RecordType::{A, AAAA};

use std::time::Duration;

use super::fake::{FakeDns, Reply};
use super::*;
use crate::target::Target;
use crate::watch::watch;

const SECOND: Duration = Duration::from_secs(1);

/// A resolver that asks only `dns`, with a search list and `ndots`.
fn resolver(dns: &FakeDns, search: &[&str], ndots: usize) -> DnsResolver {
    let search = search.iter().map(|domain| Name::from_ascii(domain).unwrap()).collect();
    let mut options = ResolverOpts::default();
    (options.ndots, options.attempts, options.timeout) = (ndots, 1, 4 * SECOND);
    let config = ResolverConfig::from_parts(None, search, Vec::new());
    DnsResolver::build(Some(dns.address), config, options).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn found(v4: &[&str], v6: &[&str]) -> Lookup {
    let addresses = [v4, v6].map(|family| Some(family.iter().map(|address| ip(address)).collect()));
    Lookup { addresses, name_exists: true }
}

async fn addresses(resolver: &DnsResolver, host: &str) -> Vec<IpAddr> {
    let mut addresses =
        resolver.lookup(host).await.unwrap().addresses.into_iter().flatten().flatten().collect::<Vec<_>>();
    addresses.sort();
    addresses
}

#[tokio::test]
async fn an_answer_has_both_families_and_is_never_cached() {
    let dns = FakeDns::start().await;
    let resolver = resolver(&dns, &[], 1);
    dns.set("both.test", A, Reply::Addresses(vec![ip("10.0.0.1")]));
    dns.set("both.test", AAAA, Reply::Addresses(vec![ip("fd00::1")]));
    assert_eq!(resolver.lookup("both.test").await.unwrap(), found(&["10.0.0.1"], &["fd00::1"]));
    for address in ["10.0.0.1", "10.0.0.2"] {
        dns.set_addresses("v4.test", &[address]);
        assert_eq!(resolver.lookup("v4.test").await.unwrap(), found(&[address], &[]));
    }
    dns.set_addresses("v6.test", &["fd00::1"]);
    assert_eq!(resolver.lookup("v6.test.").await.unwrap(), found(&[], &["fd00::1"]));
    dns.set_addresses("my_runners.test", &["::ffff:10.0.0.1"]);
    assert_eq!(resolver.lookup("my_runners.test").await.unwrap(), found(&[], &["10.0.0.1"]), "IPv4 in IPv6");
    dns.set("alias.test", A, Reply::Alias("real.test", vec![ip("10.0.0.1")]));
    dns.set("alias.test", AAAA, Reply::Alias("real.test", Vec::new()));
    dns.set_addresses("real.test", &[]);
    assert_eq!(resolver.lookup("alias.test").await.unwrap(), found(&["10.0.0.1"], &[]));
    // An empty answer and a missing name are answers, not failures.
    dns.set_addresses("empty.test", &[]);
    assert_eq!(resolver.lookup("empty.test").await.unwrap(), found(&[], &[]));
    let none = Lookup { name_exists: false, ..found(&[], &[]) };
    assert_eq!(resolver.lookup("none.test").await, Ok(none));
}

#[tokio::test]
async fn errors_and_silence_are_failures() {
    let dns = FakeDns::start().await;
    let resolver = resolver(&dns, &[], 1);
    for (reply, text) in [
        (Reply::Code(ResponseCode::ServFail), "Server Failure"),
        (Reply::Code(ResponseCode::Refused), "Query Refused"),
        (Reply::Silence, "no DNS server answered for \"bad.test\"; check"),
    ] {
        dns.set("bad.test", A, reply.clone());
        dns.set("bad.test", AAAA, reply);
        let error = resolver.lookup("bad.test").await.unwrap_err();
        assert!(error.contains(text), "{error}");
    }
    assert!(resolver.lookup("a..b").await.unwrap_err().contains("is not a DNS name"));
    // Only one address family is answered.
    for (known, failing, address, expected) in [
        (A, AAAA, "10.0.0.1", [Some(vec![ip("10.0.0.1")]), None]),
        (AAAA, A, "fd00::1", [None, Some(vec![ip("fd00::1")])]),
    ] {
        dns.set("half.test", known, Reply::Addresses(vec![ip(address)]));
        dns.set("half.test", failing, Reply::Code(ResponseCode::ServFail));
        assert_eq!(resolver.lookup("half.test").await.unwrap().addresses, expected);
    }
    dns.set("half.test", AAAA, Reply::Addresses(Vec::new()));
    assert!(resolver.lookup("half.test").await.is_err(), "nothing is known about IPv4");
    drop(dns);
    assert!(resolver.lookup("half.test").await.is_err(), "the server is gone");
}

#[tokio::test]
async fn the_search_list_ndots_and_the_hosts_file_apply() {
    let dns = FakeDns::start().await;
    let mut resolver = resolver(&dns, &["ns.svc.cluster.local", "svc.cluster.local"], 2);
    dns.set_addresses("runners.ns.svc.cluster.local", &["10.0.0.1"]);
    assert_eq!(addresses(&resolver, "runners.ns").await, [ip("10.0.0.1")]);
    assert_eq!(dns.asked(), ["runners.ns.ns.svc.cluster.local", "runners.ns.svc.cluster.local"]);

    dns.set_addresses("runners.ns", &["10.0.0.2"]);
    assert_eq!(addresses(&resolver, "runners.ns.").await, [ip("10.0.0.2")], "a final dot: no search");

    // A name with at least `ndots` dots is looked up as it is first, then with the search list.
    dns.set_addresses("a.b.c.svc.cluster.local", &["10.0.0.3"]);
    assert_eq!(addresses(&resolver, "a.b.c").await, [ip("10.0.0.3")]);
    assert_eq!(dns.asked()[3..], ["a.b.c", "a.b.c.ns.svc.cluster.local", "a.b.c.svc.cluster.local"]);

    // If one lookup fails and no other finds the name, the result is an error, not an empty answer.
    for kind in [A, AAAA] {
        dns.set("some.ns.svc.cluster.local", kind, Reply::Code(ResponseCode::ServFail));
    }
    assert!(resolver.lookup("some").await.is_err());
    dns.set_addresses("some.svc.cluster.local", &["10.0.0.1"]);
    assert_eq!(addresses(&resolver, "some").await, [ip("10.0.0.1")], "the search continues");

    let asked = dns.asked().len();
    resolver.hosts.read_hosts_conf("10.0.0.9 pinned\nfd00::9 pinned6.svc.cluster.local".as_bytes()).unwrap();
    assert_eq!(addresses(&resolver, "pinned.").await, [ip("10.0.0.9")]);
    assert_eq!(dns.asked().len(), asked, "a name in the hosts file is not looked up in DNS");
    assert_eq!(addresses(&resolver, "pinned6").await, [ip("fd00::9")]);
    let local = addresses(&DnsResolver::new(None).unwrap(), "localhost").await;
    assert!(!local.is_empty() && local.iter().all(IpAddr::is_loopback), "{local:?}");
}

/// Watches a target that names its DNS server, while addresses appear and disappear.
#[tokio::test]
async fn a_watched_name_follows_dns() {
    let dns = FakeDns::start().await;
    let target = Target::parse(&format!("dns://{}/runners.test.:9445", dns.address), 1).unwrap();
    let (task, mut snapshots) = watch(target, None, "test").await.unwrap();
    tokio::spawn(task);
    for (addresses, expected) in
        [(&["127.0.0.1", "::1"][..], &[][..]), (&[], &["127.0.0.1:9445", "[::1]:9445"]), (&[], &[])]
    {
        tokio::time::timeout(30 * SECOND, snapshots.changed()).await.expect("no change").unwrap();
        assert_eq!(*snapshots.borrow_and_update().endpoints, *expected);
        dns.set_addresses("runners.test", addresses);
    }
}
