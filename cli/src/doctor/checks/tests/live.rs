//! Tests of the checks that need the programs' answers.

use super::*;

type Addresses = &'static [&'static str];

fn page(facts: &mut Facts, router: usize) -> &mut Status {
    &mut facts.routers[router].answer.as_mut().unwrap().page
}

fn replace(facts: &mut Facts, runner: usize, from: &str, to: &str) {
    let metrics = &mut facts.runners[runner].answer.as_mut().unwrap().metrics;
    *metrics = metrics.replace(from, to);
}

#[test]
fn answers_of_the_programs_are_compared() {
    use Level::{Problem, Unknown, Warning};
    let cases: [(_, _, _, fn(&mut Facts)); 8] = [
        (Problem, "reachability", "for router router-a, runner 10.0.0.2:9445 is unreachable", |facts| {
            page(facts, 0).shards[1].info.state = "unreachable".to_owned();
        }),
        (Problem, "discovery", "router router-b cannot look up its runners: no such host", |facts| {
            page(facts, 1).discovery_error = Some("no such host".to_owned());
        }),
        (Problem, "executables", "configured differently: runner-a | runner-b", |facts| {
            replace(facts, 1, "exec_config_hash 5", "exec_config_hash 6");
        }),
        (Problem, "ring", "routers and runners see different runners", |facts| {
            replace(facts, 0, "ring_hash 7", "ring_hash 8");
        }),
        (Problem, "configuration", "on 1 of 2 runners: --pod-cache-config cannot be used", |facts| {
            replace(facts, 0, "cache-config\"} 1", "cache-config\"} 0");
        }),
        // Expect one finding, although the runner also reports the source `functionconfigs` as
        // invalid.
        (Warning, "configuration", "on 1 of 2 runners: 1 FunctionConfigs have faults", |facts| {
            replace(
                facts,
                0,
                "problems 0",
                "problems 1\nporch_fn_runner_config_valid{source=\"functionconfigs\"} 0",
            );
        }),
        (Warning, "versions", "several versions run: 1.0.0, 1.1.0", |facts| {
            page(facts, 0).version = "1.1.0".to_owned();
        }),
        (Unknown, "runners", "doctor cannot query these ready pods: runner-a: forbidden", |facts| {
            facts.runners[0].answer = Err("forbidden".to_owned());
        }),
    ];
    for (level, check, part, change) in cases {
        let mut facts = facts();
        change(&mut facts);
        expect(&facts, level, check, part);
    }
}

#[test]
fn routers_must_know_each_ready_runner_by_one_of_its_addresses() {
    const A: &[&str] = &["10.0.0.1", "fd00::1"];
    const B: &[&str] = &["10.0.0.2", "fd00::2"];
    let all_known = "1 routers have found the 2 runners that are ready";
    let cases: [(Addresses, [Addresses; 2], &str); 10] = [
        (&["10.0.0.1:9445", "10.0.0.2:9445"], [A, B], all_known),
        // The router knows IPv6 addresses, and each pod's first address is IPv4.
        (&["[fd00::1]:9445", "[fd00::2]:9445"], [A, B], all_known),
        (&["[fd00:0:0::1]:9445", "[FD00::2]:9445"], [A, B], all_known),
        (&["10.0.0.1:9445", "10.0.0.2:9445"], [&A[..1], &B[..1]], all_known),
        (&["10.0.0.1:9445", "[fd00::1]:9445", "10.0.0.2:9445"], [A, B], all_known),
        (&["[fd00::1]:9445"], [A, B], "router router does not know of runner-b"),
        (&[], [A, B], "router router does not know of runner-a, runner-b"),
        (&["10.0.0.1:9445", "10.0.0.2:9445", "10.0.0.3:9445"], [A, B], "knows 3 runners, and 2 are ready"),
        (&["10.0.0.1:9445"], [A, &[]], "router router does not know of runner-b"),
        // Host names cannot be matched to pods.
        (&["runner-0.shards:9445", "10.0.0.2:9445"], [A, B], ""),
    ];
    for (known, runners, expected) in cases {
        let runners = runners.iter().zip(["runner-a", "runner-b"]).map(|(ips, pod)| Asked {
            ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
            ..runner(pod, "10.0.0.9")
        });
        let facts = Facts { routers: vec![router("router", known)], runners: runners.collect(), ..facts() };
        let found = all(&facts).into_iter().filter(|finding| finding.check == "discovery");
        let texts: Vec<_> = found.map(|finding| finding.text).collect();
        assert!(texts.len() == usize::from(!expected.is_empty()), "{known:?}: {texts:?}");
        assert!(texts.concat().ends_with(expected), "{known:?}: {texts:?}");
    }
}

#[test]
fn a_template_that_runners_refuse_is_reported_by_name() {
    let config_map = TemplateSource::ConfigMap("mine".to_owned(), Ok(Vec::new()));
    for (template, flag, name) in [
        (TemplateSource::Object, "", "base-pod-template or base-service-template"),
        (config_map, "mine", "--function-pod-template"),
    ] {
        let mut facts = Facts { template, ..facts() };
        let flags = facts.installed.runner_flags.as_mut();
        flags.unwrap().function_pod_template = flag.to_owned();
        for runner in [0, 1] {
            replace(&mut facts, runner, "\"pod-cache-config\"} 1", "\"function-pod-template\"} 0");
        }
        let text = format!("on 2 of 2 runners: {name} cannot be used");
        expect(&facts, Level::Problem, "configuration", &text);
        assert!(all(&facts).iter().all(|finding| finding.check != "pod template"));
    }
}
