//! Every form of a target, and the error text of every mistake.

use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Target {
    Target::parse(text, 9445).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn every_form_is_parsed_and_printed() {
    for (text, printed) in [
        ("static:///a:1,b:2", "static:///a:1,b:2"),
        ("static:///a, b", "static:///a:9445,b:9445"),
        ("static:///[::1]:1,[::2],::3,127.0.0.1:4", "static:///[::1]:1,[::2]:9445,[::3]:9445,127.0.0.1:4"),
        ("static:///localhost:1", "static:///localhost:1"),
        ("dns:///runners:1", "dns:///runners:1"),
        ("dns:///runners.ns.svc.cluster.local.:1", "dns:///runners.ns.svc.cluster.local.:1"),
        ("dns:///my_runners", "dns:///my_runners:9445"),
        ("dns://10.0.0.10/runners", "dns://10.0.0.10:53/runners:9445"),
        ("dns://10.0.0.10:5353/runners:1", "dns://10.0.0.10:5353/runners:1"),
        ("dns://[fd00::10]:5353/runners:1", "dns://[fd00::10]:5353/runners:1"),
        ("dns://[fd00::10]/[::1]", "dns://[fd00::10]:53/[::1]:9445"),
        ("runners", "dns:///runners:9445"),
        (" runners:1\n", "dns:///runners:1"),
        ("1runner:1", "dns:///1runner:1"),
        ("10.0.0.1:1", "dns:///10.0.0.1:1"),
        ("::1", "dns:///[::1]:9445"),
        ("[0:0::1]:65535", "dns:///[::1]:65535"),
        ("kubernetes:///porch-system/runners:1", "kubernetes:///porch-system/runners:1"),
        ("kubernetes:///1/r", "kubernetes:///1/r:9445"),
    ] {
        let target = parse(text);
        assert_eq!(target.to_string(), printed, "{text}");
        assert_eq!(parse(printed), target, "{text}");
    }
}

#[test]
fn each_error_is_one_line_with_the_accepted_forms() {
    let long = "x".repeat(64);
    let too_long = [&long[1..]; 4].join(".");
    for (problem, targets) in [
        (
            "names no host",
            &["", "  ", "dns:///", "static:///", "static:///a:1,,b:2", "kubernetes:///ns/"][..],
        ),
        ("has an unknown scheme", &["xds:///a:1"]),
        (
            "needs three slashes",
            &["static://a:1", "static://x/a:1", "dns://a:1", "kubernetes://ns/runners:1"],
        ),
        ("is a list, which only static:/// takes", &["a:1,b:2", "dns:///a:1,b:2"]),
        (
            "has too many colons: write an IPv6 address with a port as [ADDRESS]:PORT",
            &["fd00::1:9445:x", "[a]:1", "[::1]1", "static:/a:1"],
        ),
        (
            "has no port between 1 and 65535",
            &["x:0", "static:///x:0", "kubernetes:///ns/x:0", "a:", "a:+1", "a:65536", "a:http", "[::1]:"],
        ),
        (
            "has no valid host name",
            &[
                ":9445",
                "9445",
                "10.0.0.256:1",
                "a..b:1",
                "a b:1",
                "a\nb",
                "b\u{e9}:1",
                "a/b:1",
                "kubernetes:///ns/a/b:1",
                &long,
                &too_long,
            ],
        ),
        (
            "does not name a namespace and a Service",
            &[
                "kubernetes:///runners:1",
                "kubernetes:////runners:1",
                "kubernetes:///Ns/runners:1",
                "kubernetes:///ns.x/runners:1",
                "kubernetes:///ns/run_ners:1",
                "kubernetes:///ns/-a:1",
            ],
        ),
        ("is not the IP:PORT of a DNS server", &["dns://ns1/a:1", "dns://10.0.0.1:0/a:1"]),
    ] {
        for text in targets {
            let error = Target::parse(text, 9445).expect_err(text).to_string();
            assert!(error.ends_with(&format!(" {problem}; {ACCEPTED}")), "{text}: {error}");
            assert!(!error.contains('\n'), "{text}: {error}");
        }
    }
    assert!(Target::parse(&long[1..], 1).is_ok());
}

proptest! {
    #[test]
    fn parsing_never_panics_and_a_printed_target_parses_to_itself(
        text in r"(dns|static|kubernetes|x)?(:|:/|://|:///)?(([a-z0-9.:\[\]/,é-]|\PC){0,20})",
    ) {
        match Target::parse(&text, 9445) {
            Ok(target) => prop_assert_eq!(Target::parse(&target.to_string(), 1), Ok(target)),
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
        }
    }
}
