//! Tests which pod states are permanent faults. The statuses are like those of real kubelets.

use serde_json::{Value, json};

use super::log_lines::{Line, MAX_TEXT, lines};
use super::*;
use crate::pods::kubernetes::fake::{self, container, pod_waits, waiting};

/// A status with these containers.
fn status(containers: &[Value]) -> Value {
    json!({"phase": "Pending", "podIP": "10.0.0.7", "containerStatuses": containers})
}

fn running() -> Value {
    json!({"running": {"startedAt": "2026-01-02T03:04:05Z"}})
}

/// A run that ended after `seconds`, at most 50.
fn end(exit_code: i32, reason: &str, seconds: u32) -> Value {
    json!({"terminated": {
        "exitCode": exit_code, "reason": reason, "message": "last words",
        "startedAt": "2026-01-02T03:04:05Z", "finishedAt": format!("2026-01-02T03:04:{:02}Z", 5 + seconds),
    }})
}

/// Only the function container, in this state.
fn function(state: &Value) -> Value {
    status(&[container("function", 0, state, &json!({}))])
}

/// The phase in short: `running`, `pending`, `waits KIND` or `failed KIND`, with the kind of the
/// reason. ` of proxy` follows if the reason is about the container `proxy`.
fn brief(phase: &Phase) -> String {
    let (word, reason) = match phase {
        Phase::Failed(reason) => ("failed", reason),
        Phase::Pending(Some(reason)) => ("waits", reason),
        Phase::Pending(None) => return "pending".to_owned(),
        Phase::Running => return "running".to_owned(),
    };
    let Reason { kind, text } = reason;
    let of_proxy =
        if text.contains("the container `proxy` of the function's pod") { " of proxy" } else { "" };
    format!("{word} {kind}{of_proxy}")
}

fn seen(status: &Value) -> String {
    brief(&phase(&fake::pod("u", 1, status), &mut History::default()))
}

/// The last phase of a pod that had these states.
fn last(statuses: &[Value]) -> String {
    let mut history = History::default();
    let phases = statuses.iter().map(|status| brief(&phase(&fake::pod("u", 1, status), &mut history)));
    phases.last().unwrap()
}

#[test]
fn single_states() {
    assert_eq!(brief(&phase(&Pod::default(), &mut History::default())), "pending");
    let mut unaddressed = function(&running());
    unaddressed["podIP"] = Value::Null;
    let condition = |kind: &str, value: &str, reason: &str| json!({"conditions": [{"type": kind, "status": value, "reason": reason, "message": "0/3 nodes"}]});
    let (success, failure) = (end(0, "Completed", 1), end(1, "Error", 1));
    let init =
        |now: &Value, before: &Value| json!({"initContainerStatuses": [container("proxy", 1, now, before)]});
    let crash = |name| container(name, 1, &failure, &failure);
    let pulls = container("function", 0, &waiting("ErrImagePull", "connection refused"), &json!({}));
    for (status, expected) in [
        (json!({}), "pending"),
        (function(&waiting("ContainerCreating", "")), "pending"),
        (function(&running()), "running"),
        (unaddressed, "pending"),
        (status(&[container("proxy", 0, &running(), &json!({}))]), "pending"),
        (condition("PodScheduled", "False", "Unschedulable"), "waits unschedulable"),
        (condition("PodScheduled", "False", "SchedulingGated"), "pending"),
        (condition("PodScheduled", "True", "Unschedulable"), "pending"),
        (condition("Ready", "False", "Unschedulable"), "pending"),
        // It is no fault if an init container ends.
        (init(&success, &success), "pending"),
        (init(&success, &failure), "pending"),
        (init(&failure, &success), "pending"),
        (init(&failure, &failure), "failed exited of proxy"),
        // The function's fault is reported first, and failures are reported before waits.
        (status(&[crash("proxy"), crash("function")]), "failed exited"),
        (status(&[pulls, crash("proxy")]), "failed exited of proxy"),
    ] {
        assert_eq!(seen(&status), expected, "{status}");
    }
}

#[test]
fn a_function_without_its_wrapper_is_not_at_fault() {
    let not_started = waiting("RunContainerError", "no such file");
    let of_function = container("function", 1, &not_started, &json!({}));
    let of_wrapper = container(names::WRAPPER_CONTAINER, 0, &waiting("InvalidImageName", ""), &json!({}));
    for (containers, expected) in [
        (&[of_function.clone()][..], "failed not_started"),
        (&[of_wrapper, of_function], "failed invalid_image"),
    ] {
        assert_eq!(seen(&status(containers)), expected);
    }
}

#[test]
fn permanent_faults_fail_at_once() {
    for (reason, expected) in [
        ("InvalidImageName", "failed invalid_image"),
        ("ErrImageNeverPull", "failed never_pulled"),
        ("SignatureValidationFailed", "failed image_refused"),
        ("CreateContainerConfigError", "failed container_config"),
        ("CreateContainerError", "waits container_not_created"),
        ("RunContainerError", "failed not_started"),
        ("PostStartHookError", "failed start_hook"),
        ("CrashLoopBackOff", "failed crash_loop"),
    ] {
        let state = waiting(reason, "some text");
        assert_eq!(seen(&function(&state)), expected);
        let proxy = container("proxy", 0, &state, &json!({}));
        let beside = status(&[container("function", 0, &running(), &json!({})), proxy.clone()]);
        assert_eq!(seen(&beside), format!("{expected} of proxy"));
        assert_eq!(seen(&json!({"initContainerStatuses": [proxy]})), format!("{expected} of proxy"));
    }
}

/// Tests the phases after two failed pulls, without and with a pull secret.
#[test]
fn failed_pulls_have_a_second_attempt_unless_the_registry_refused() {
    let (no_image, no_access, other) = (["failed", "failed"], ["failed", "waits"], ["waits", "waits"]);
    for (message, [plain, with_secret]) in [
        (
            r#"rpc error: code = NotFound desc = failed to resolve reference "r.io/f:v1": r.io/f:v1: not found"#,
            no_image,
        ),
        ("Error: manifest unknown", no_image),
        (
            "pull access denied, repository does not exist or may require authorization: no basic auth credentials",
            no_access,
        ),
        (
            "unexpected status from HEAD request to https://r.io/v2/f/manifests/v1: 401 Unauthorized",
            no_access,
        ),
        ("dial tcp: lookup r.io: no such host", other),
        ("mkdir /var/lib/containerd: permission denied", other),
        (r#"Back-off pulling image "denied.io/unauthorized/forbidden:not-found""#, other),
        ("", other),
    ] {
        let kind = if plain == "waits" { "image_not_pulled" } else { "image_refused" };
        for (secrets, first) in [(json!([]), plain), (json!([{"name": "auth"}]), with_secret)] {
            let mut history = History::default();
            let mut after = |reason: &str| {
                let mut pod = fake::pod("u", 1, &pod_waits("function", reason, message));
                pod.spec =
                    serde_json::from_value(json!({"containers": [], "imagePullSecrets": secrets})).unwrap();
                brief(&phase(&pod, &mut history))
            };
            let phases = ["ErrImagePull", "ImagePullBackOff", "ErrImagePull"].map(&mut after);
            let first = format!("{first} {kind}");
            assert_eq!(phases, [first.clone(), first, format!("failed {kind}")], "{message}");
        }
        for reason in ["ImagePullBackOff", "RegistryUnavailable", "ImageInspectError"] {
            assert_eq!(seen(&pod_waits("function", reason, message)), format!("{plain} {kind}"), "{message}");
        }
    }
}

#[test]
fn failed_pulls_are_counted_when_they_begin() {
    let (waits, failed) = ("waits image_not_pulled", "failed image_not_pulled");
    let (pull, back_off) = ("ErrImagePull", "ImagePullBackOff");
    for (reasons, expected) in [
        // The same state again, for example after a new list, does not count as a new pull.
        (&[pull, pull, pull][..], waits),
        (&[back_off, back_off], waits),
        (&[pull, back_off, back_off], waits),
        (&[pull, back_off, pull], failed),
        // The watch did not report the first failed pull.
        (&[back_off, pull], failed),
        (&[pull, "ContainerCreating"], "pending"),
        (&[pull, "ContainerCreating", pull], failed),
    ] {
        let states: Vec<_> = reasons.iter().map(|reason| pod_waits("function", reason, "refused")).collect();
        assert_eq!(last(&states), expected, "{reasons:?}");
    }
    // Each container has its own count, and a pulled image clears it.
    let of = |name| pod_waits(name, pull, "refused");
    assert_eq!(last(&[of("function"), of("proxy")]), "waits image_not_pulled of proxy");
    assert_eq!(last(&[of("function"), function(&running()), of("function")]), waits);
}

#[test]
fn a_crash_fails_at_its_second_exit() {
    let (first, short) = (json!({}), end(3, "Error", 9));
    let done = end(0, "Completed", 0);
    let unstarted = json!({"terminated": {"exitCode": 128, "reason": "StartError",
        "startedAt": "1970-01-01T00:00:00Z", "finishedAt": "2026-01-02T03:04:05Z"}});
    let back_off = waiting("CrashLoopBackOff", "back-off 10s restarting failed container");
    for (restarts, now, before, expected) in [
        (1, &short, &short, "failed exited"),
        (1, &done, &done, "failed exited"),
        (1, &end(137, "OOMKilled", 1), &short, "failed out_of_memory"),
        // The container has ended only once.
        (0, &short, &first, "pending"),
        (1, &running(), &short, "running"),
        (0, &short, &short, "pending"),
        // One of the runs was long.
        (1, &end(3, "Error", 10), &short, "pending"),
        (1, &short, &end(3, "Error", 10), "pending"),
        (7, &running(), &end(137, "OOMKilled", 40), "running"),
        // The entrypoint cannot be started, so there is no start time.
        (0, &unstarted, &first, "pending"),
        (1, &unstarted, &unstarted, "failed not_started"),
        (1, &back_off, &end(2, "Error", 20), "failed exited"),
        (1, &back_off, &end(137, "OOMKilled", 20), "failed out_of_memory"),
        (1, &back_off, &end(128, "ContainerCannotRun", 0), "failed not_started"),
        (1, &back_off, &first, "failed crash_loop"),
    ] {
        let status = status(&[container("function", restarts, now, before)]);
        assert_eq!(seen(&status), expected, "{restarts} {now} {before}");
    }
}

#[test]
fn a_pod_that_has_ended_has_failed() {
    let ended = |name, code, reason| container(name, 0, &end(code, reason, 1), &json!({}));
    let function = |code, reason| ended("function", code, reason);
    for (phase, reason, containers, expected) in [
        ("Failed", json!("Evicted"), vec![function(137, "Error")], "failed evicted"),
        ("Failed", json!("DeadlineExceeded"), vec![], "failed active_deadline"),
        ("Failed", json!("OutOfcpu"), vec![], "failed node_lost"),
        ("Failed", json!(null), vec![function(137, "ContainerStatusUnknown")], "failed node_lost"),
        ("Failed", json!(null), vec![function(7, "Error")], "failed exited"),
        ("Failed", json!(null), vec![function(137, "OOMKilled")], "failed out_of_memory"),
        ("Failed", json!(null), vec![function(128, "StartError")], "failed not_started"),
        ("Failed", json!(null), vec![ended("proxy", 2, "Error"), function(7, "Error")], "failed exited"),
        ("Failed", json!(null), vec![function(0, ""), ended("proxy", 2, "Error")], "failed exited of proxy"),
        ("Succeeded", json!(null), vec![function(0, "Completed")], "failed completed"),
    ] {
        let status = json!({"phase": phase, "reason": reason, "containerStatuses": containers});
        assert_eq!(seen(&status), expected);
    }
}

#[test]
fn a_failed_pod_stays_failed_for_the_same_reason() {
    let crash = status(&[container("function", 1, &end(1, "Error", 1), &end(1, "Error", 1))]);
    for later in [function(&running()), pod_waits("function", "CrashLoopBackOff", "")] {
        assert_eq!(last(&[crash.clone(), later]), "failed exited");
    }
}

#[test]
fn each_message_is_logged_once() {
    let mut logged = Logged::default();
    let mut lines = |status: &Value| {
        let pod = fake::pod("u", 1, status);
        let new = logged.take_new(&pod).into_iter();
        new.map(|Line { container, reason, end, .. }| {
            (container.unwrap_or_default().to_owned(), reason.to_owned(), end.map(|(code, _)| code))
        })
        .collect::<Vec<_>>()
    };
    let mut function = |restarts, now: Value, before: Value| {
        lines(&status(&[container("function", restarts, &now, &before)]))
    };
    let (first, second) = (|| end(1, "Error", 1), || end(2, "Error", 1));
    let ended = |code| vec![("function".to_owned(), "Error".to_owned(), Some(code))];
    assert_eq!(function(0, running(), json!({})), []);
    assert_eq!(function(0, first(), json!({})), ended(1));
    assert_eq!(function(1, running(), first()), [], "the same end");
    assert_eq!(function(1, second(), first()), ended(2));
    let back_off = function(1, waiting("CrashLoopBackOff", "back-off"), second());
    assert_eq!(back_off, [("function".to_owned(), "CrashLoopBackOff".to_owned(), None)]);
    assert_eq!(function(2, running(), second()), []);
}

#[test]
fn messages_are_logged_unchanged_but_long_ones_lose_their_start() {
    let pending = json!({
        "reason": "Evicted", "message": "low on memory",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}],
        "containerStatuses": [
            container("function", 0, &waiting("ErrImagePull", "no such host"), &json!({})),
            container("proxy", 0, &json!({"waiting": {"reason": "ContainerCreating"}}), &json!({})),
        ],
        "initContainerStatuses": [container("copy", 0, &end(0, "Completed", 1), &json!({}))],
    });
    let pending = fake::pod("u", 1, &pending);
    let text = lines(&pending).into_iter().map(|Line { reason, message, .. }| format!("{reason}: {message}"));
    let expected = ["Unschedulable: 0/3 nodes", "Evicted: low on memory", "ErrImagePull: no such host"];
    assert_eq!(text.collect::<Vec<_>>(), expected);

    let mut state = end(1, "Error", 1);
    state["terminated"]["message"] = json!(format!("ä{}end", "x".repeat(MAX_TEXT - 4)));
    let mut ended = fake::pod("u", 1, &function(&state));
    assert_eq!(lines(&ended)[0].message, format!("{}end", "x".repeat(MAX_TEXT - 4)), "the start is cut");
    ended.metadata.deletion_timestamp = Some(jiff::Timestamp::UNIX_EPOCH.into());
    assert_eq!(lines(&ended), [], "a deleted pod");
}
