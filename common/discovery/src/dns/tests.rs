//! The resolver against a DNS server on loopback, and against the system's hosts file.

use super::{
    super::{
        target::Target,
        watch::{Source, watch},
    },
    fake::{A, AAAA, FakeDns, NXDOMAIN, REFUSED, Reply, SERVFAIL},
    *,
};

const SECOND: Duration = Duration::from_secs(1);

/// A resolver that asks `dns` alone, with a search list and `ndots`.
fn resolver(dns: &FakeDns, search: &[&str], ndots: usize) -> DnsResolver {
    build(dns, search, ndots, 5 * SECOND)
}

/// For the tests in which a question stays unanswered. Others are answered, which a busy machine needs time for.
fn hasty_resolver(dns: &FakeDns) -> DnsResolver {
    build(dns, &[], 1, 3 * SECOND)
}

fn build(dns: &FakeDns, search: &[&str], ndots: usize, timeout: Duration) -> DnsResolver {
    let search = search.iter().map(|domain| Name::from_ascii(domain).unwrap()).collect();
    let mut options = ResolverOpts::default();
    options.ndots = ndots;
    options.attempts = 1;
    options.timeout = timeout;
    let config = ResolverConfig::from_parts(None, search, Vec::new());
    DnsResolver::build(Some(dns.address), config, options).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

async fn addresses(resolver: &DnsResolver, host: &str) -> Vec<IpAddr> {
    let mut addresses = resolver.lookup(host).await.unwrap().addresses;
    addresses.sort();
    addresses
}

#[tokio::test]
async fn both_families_and_the_smallest_ttl() {
    let dns = FakeDns::start().await;
    dns.set("runners.test", A, Reply::Addresses(vec![(ip("10.0.0.1"), 20), (ip("10.0.0.2"), 7)]));
    dns.set("runners.test", AAAA, Reply::Addresses(vec![(ip("fd00::1"), 9)]));
    let resolver = resolver(&dns, &[], 1);
    let lookup = resolver.lookup("runners.test").await.unwrap();
    assert_eq!(lookup.valid_for, 7 * SECOND);
    assert_eq!((lookup.name_exists, lookup.unanswered), (true, None));
    assert_eq!(addresses(&resolver, "runners.test").await, ["10.0.0.1", "10.0.0.2", "fd00::1"].map(ip));
}

#[tokio::test]
async fn one_family_alone_is_a_whole_answer() {
    let dns = FakeDns::start().await;
    dns.set_addresses("v4.test", &["10.0.0.1"], 5);
    dns.set_addresses("v6.test", &["fd00::1"], 5);
    let resolver = resolver(&dns, &[], 1);
    assert_eq!(resolver.lookup("v4.test").await, Ok(Lookup::new(vec![ip("10.0.0.1")], 5 * SECOND)));
    assert_eq!(resolver.lookup("v6.test.").await, Ok(Lookup::new(vec![ip("fd00::1")], 5 * SECOND)));
}

#[tokio::test]
async fn a_change_is_seen_before_the_ttl_ends() {
    let dns = FakeDns::start().await;
    let resolver = resolver(&dns, &[], 1);
    for address in ["10.0.0.1", "10.0.0.2"] {
        dns.set_addresses("runners.test", &[address], 3600);
        assert_eq!(addresses(&resolver, "runners.test").await, [ip(address)]);
    }
}

#[tokio::test]
async fn no_such_name_and_no_addresses_are_answers() {
    let dns = FakeDns::start().await;
    dns.set_addresses("empty.test", &[], 30);
    let resolver = resolver(&dns, &[], 1);
    let empty = Lookup::new(Vec::new(), MIN_VALID_FOR);
    assert_eq!(resolver.lookup("empty.test").await, Ok(empty.clone()));
    assert_eq!(resolver.lookup("none.test").await, Ok(Lookup { name_exists: false, ..empty }));
}

#[tokio::test]
async fn errors_and_silence_are_failures() {
    let dns = FakeDns::start().await;
    let resolver = hasty_resolver(&dns);
    for (code, text) in [(SERVFAIL, "Server Failure"), (REFUSED, "Query Refused")] {
        dns.set("bad.test", A, Reply::Code(code));
        dns.set("bad.test", AAAA, Reply::Code(code));
        let error = resolver.lookup("bad.test").await.unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    dns.set("bad.test", A, Reply::Silence);
    dns.set("bad.test", AAAA, Reply::Silence);
    assert_eq!(resolver.lookup("bad.test").await, Err(LookupError::timeout("bad.test")));
    assert!(resolver.lookup("a..b").await.unwrap_err().to_string().contains("is not a DNS name"));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_failure() {
    let dns = FakeDns::start().await;
    let resolver = hasty_resolver(&dns);
    drop(dns);
    assert!(resolver.lookup("runners.test").await.is_err());
}

#[tokio::test]
async fn half_an_answer_is_told_from_a_whole_one() {
    let dns = FakeDns::start().await;
    let resolver = hasty_resolver(&dns);
    dns.set_addresses("half.test", &["10.0.0.1"], 5);
    dns.set("half.test", AAAA, Reply::Code(SERVFAIL));
    let lookup = resolver.lookup("half.test").await.unwrap();
    assert_eq!((lookup.addresses, lookup.unanswered), (vec![ip("10.0.0.1")], Some(Family::V6)));

    dns.set_addresses("half.test", &["fd00::1"], 5);
    dns.set("half.test", A, Reply::Silence);
    let lookup = resolver.lookup("half.test").await.unwrap();
    assert_eq!((lookup.addresses, lookup.unanswered), (vec![ip("fd00::1")], Some(Family::V4)));

    // Nothing is known about IPv6, so it would be wrong to call the name empty.
    dns.set_addresses("half.test", &[], 5);
    dns.set("half.test", AAAA, Reply::Code(SERVFAIL));
    assert!(resolver.lookup("half.test").await.is_err());
}

#[tokio::test]
async fn the_search_list_and_ndots_apply() {
    let dns = FakeDns::start().await;
    let search = ["ns.svc.cluster.local", "svc.cluster.local"];
    let resolver = resolver(&dns, &search, 2);
    dns.set_addresses("runners.ns.svc.cluster.local", &["10.0.0.1"], 5);
    assert_eq!(addresses(&resolver, "runners.ns").await, [ip("10.0.0.1")]);
    assert_eq!(dns.asked(A), ["runners.ns.ns.svc.cluster.local", "runners.ns.svc.cluster.local"]);

    dns.set_addresses("runners.ns", &["10.0.0.2"], 5);
    assert_eq!(addresses(&resolver, "runners.ns.").await, [ip("10.0.0.2")], "a final dot: no search");

    // As many dots as `ndots`: as it is first, then the search list.
    dns.set_addresses("a.b.c.svc.cluster.local", &["10.0.0.3"], 5);
    assert_eq!(addresses(&resolver, "a.b.c").await, [ip("10.0.0.3")]);
    assert_eq!(dns.asked(A)[3..], ["a.b.c", "a.b.c.ns.svc.cluster.local", "a.b.c.svc.cluster.local"]);
}

#[tokio::test]
async fn a_failure_in_the_search_list_is_never_taken_for_an_empty_answer() {
    let dns = FakeDns::start().await;
    let resolver = resolver(&dns, &["one.test", "two.test"], 2);
    for kind in [A, AAAA] {
        dns.set("runners.one.test", kind, Reply::Code(SERVFAIL));
        dns.set("runners.two.test", kind, Reply::Code(NXDOMAIN));
    }
    assert!(resolver.lookup("runners").await.is_err());
    dns.set_addresses("runners.two.test", &["10.0.0.1"], 5);
    assert_eq!(addresses(&resolver, "runners").await, [ip("10.0.0.1")], "the search goes on");
}

#[tokio::test]
async fn an_alias_counts_with_its_ttl() {
    let dns = FakeDns::start().await;
    dns.set("alias.test", A, Reply::Alias("real.test", 3, vec![(ip("10.0.0.1"), 60)]));
    dns.set("alias.test", AAAA, Reply::Alias("real.test", 4, Vec::new()));
    dns.set_addresses("real.test", &[], 60);
    let lookup = resolver(&dns, &[], 1).lookup("alias.test").await.unwrap();
    assert_eq!((lookup.addresses, lookup.valid_for), (vec![ip("10.0.0.1")], 3 * SECOND));
}

#[tokio::test]
async fn an_answer_too_long_for_udp_arrives_whole() {
    let dns = FakeDns::start().await;
    let many: Vec<IpAddr> = (0..200).map(|last| Ipv4Addr::new(10, 0, 0, last).into()).collect();
    dns.set("many.test", A, Reply::Addresses(many.iter().map(|address| (*address, 5)).collect()));
    dns.set("many.test", AAAA, Reply::Addresses(Vec::new()));
    assert_eq!(addresses(&resolver(&dns, &[], 1), "many.test").await, many);
}

#[tokio::test]
async fn names_with_underscores_and_ipv4_in_ipv6_work() {
    let dns = FakeDns::start().await;
    dns.set("my_runners.test", A, Reply::Addresses(Vec::new()));
    dns.set("my_runners.test", AAAA, Reply::Addresses(vec![(ip("::ffff:10.0.0.1"), 5)]));
    assert_eq!(addresses(&resolver(&dns, &[], 1), "my_runners.test").await, [ip("10.0.0.1")]);
}

/// Through the system's own configuration: its hosts file names localhost, whatever its DNS does.
#[tokio::test]
async fn localhost_needs_no_dns() {
    let lookup = DnsResolver::new(None).unwrap().lookup("localhost").await.unwrap();
    assert!(lookup.addresses.iter().all(IpAddr::is_loopback), "{lookup:?}");
    assert!(!lookup.addresses.is_empty());
}

#[tokio::test]
async fn a_name_in_the_hosts_file_is_not_asked_for() {
    let dns = FakeDns::start().await;
    let mut resolver = resolver(&dns, &["svc.test"], 1);
    resolver.hosts.read_hosts_conf("10.0.0.9 pinned\nfd00::9 pinned6.svc.test".as_bytes()).unwrap();
    assert_eq!(addresses(&resolver, "pinned.").await, [ip("10.0.0.9")]);
    assert_eq!(addresses(&resolver, "pinned6").await, [ip("fd00::9")]);
    assert_eq!(dns.asked(A), [""; 0]);
    assert_eq!(dns.asked(AAAA), [""; 0]);
}

/// The whole way: a target that names its DNS server, watched through an addition, an outage and an end.
#[tokio::test]
async fn a_watched_name_follows_dns() {
    let dns = FakeDns::start().await;
    dns.set_addresses("runners.test", &["127.0.0.1"], 1);
    let target = Target::parse(&format!("dns://{}/runners.test.:9445", dns.address), 1).unwrap();
    let (task, mut snapshots) = watch(Source::of(target, None, "test").await.unwrap());
    tokio::spawn(task);
    let mut next = async || {
        tokio::time::timeout(30 * SECOND, snapshots.changed()).await.expect("no change").unwrap();
        snapshots.borrow_and_update().endpoints.to_vec()
    };
    assert_eq!(next().await, ["127.0.0.1:9445"]);
    dns.set_addresses("runners.test", &["127.0.0.1", "::1"], 1);
    assert_eq!(next().await, ["127.0.0.1:9445", "[::1]:9445"]);
    dns.set_addresses("runners.test", &[], 1);
    assert_eq!(next().await, [""; 0]);
}
