//! Which states of a pod no waiting mends, by statuses as kubelets write them.

use porch_fn_pool::Reason;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const FUNCTION: Container = Container::Function;

fn other() -> Container {
    Container::Other("proxy".into())
}

fn pod(status: &Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "f-0", "uid": "u"}, "status": status})).unwrap()
}

fn container(name: &str, restarts: i32, state: &Value, last_state: &Value) -> Value {
    json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": restarts,
           "state": state, "lastState": last_state})
}

/// A status with these containers beside each other.
fn status(containers: &[Value]) -> Value {
    json!({"phase": "Pending", "podIP": "10.0.0.7", "containerStatuses": containers})
}

fn waiting(reason: &str, message: &str) -> Value {
    json!({"waiting": {"reason": reason, "message": message}})
}

fn running() -> Value {
    json!({"running": {"startedAt": "2026-01-02T03:04:05Z"}})
}

/// A run that ended after so many seconds, at most 50.
fn end(exit_code: i32, reason: &str, seconds: u32) -> Value {
    json!({"terminated": {
        "exitCode": exit_code, "reason": reason, "message": "last words",
        "startedAt": "2026-01-02T03:04:05Z", "finishedAt": format!("2026-01-02T03:04:{:02}Z", 5 + seconds),
    }})
}

/// The function container alone, in this state.
fn function(state: &Value) -> Value {
    status(&[container("function", 0, state, &json!({}))])
}

fn seen(status: &Value) -> Phase {
    phase(&pod(status), &mut Tries::default())
}

fn failed(cause: Cause) -> Phase {
    Phase::Failed(cause.into())
}

fn waits(cause: Cause) -> Phase {
    Phase::Pending(Some(cause.into()))
}

#[test]
fn a_pod_runs_when_its_function_does_and_has_an_address() {
    assert_eq!(phase(&Pod::default(), &mut Tries::default()), Phase::Pending(None));
    assert_eq!(seen(&json!({})), Phase::Pending(None));
    assert_eq!(seen(&function(&waiting("ContainerCreating", ""))), Phase::Pending(None));
    assert_eq!(seen(&function(&running())), Phase::Running);
    let mut unaddressed = function(&running());
    unaddressed["podIP"] = Value::Null;
    assert_eq!(seen(&unaddressed), Phase::Pending(None));
    let proxy = container("proxy", 0, &running(), &json!({}));
    assert_eq!(seen(&status(&[proxy])), Phase::Pending(None));
}

#[test]
fn what_no_retry_mends_fails_at_once() {
    let cases = [
        ("InvalidImageName", Cause::InvalidImage as fn(Container) -> Cause),
        ("ErrImageNeverPull", Cause::NeverPulled),
        ("SignatureValidationFailed", Cause::ImageRefused),
        ("CreateContainerConfigError", Cause::Config),
        ("RunContainerError", Cause::NotStarted),
        ("PostStartHookError", Cause::StartHook),
        ("CrashLoopBackOff", Cause::CrashLoop),
    ];
    for (reason, cause) in cases {
        let state = waiting(reason, "some text");
        assert_eq!(seen(&function(&state)), failed(cause(FUNCTION)), "{reason}");
        let proxy = container("proxy", 0, &state, &json!({}));
        let beside = status(&[container("function", 0, &running(), &json!({})), proxy.clone()]);
        assert_eq!(seen(&beside), failed(cause(other())), "{reason}");
        assert_eq!(seen(&json!({"initContainerStatuses": [proxy]})), failed(cause(other())), "{reason}");
    }
}

#[test]
fn a_container_that_cannot_be_created_yet_waits() {
    let state = waiting("CreateContainerError", "context deadline exceeded");
    assert_eq!(seen(&function(&state)), waits(Cause::NotCreated(FUNCTION)));
}

#[test]
fn a_refused_image_fails_at_the_first_pull() {
    let refusals = [
        r#"rpc error: code = NotFound desc = failed to pull and unpack image "r.io/f:v1": failed to resolve reference "r.io/f:v1": r.io/f:v1: not found"#,
        r#"Back-off pulling image "r.io/f:v1": ErrImagePull: rpc error: code = NotFound desc = no such thing"#,
        "pull access denied, repository does not exist or may require authorization",
        "unexpected status from HEAD request to https://r.io/v2/f/manifests/v1: 401 Unauthorized",
        "unexpected status from GET request to https://r.io/token: 403 Forbidden",
        "denied: requested access to the resource is denied",
        "unauthorized: authentication required",
        "Error: manifest unknown",
        r#"failed to authorize: denied: Permission "artifactregistry.repositories.downloadArtifacts" denied on resource"#,
    ];
    for message in refusals {
        for reason in ["ErrImagePull", "ImagePullBackOff"] {
            let state = function(&waiting(reason, message));
            assert_eq!(seen(&state), failed(Cause::ImageRefused(FUNCTION)), "{reason}: {message}");
        }
    }
}

/// What a pod with a pull secret comes to when its function container waits with these, one after the other.
fn pulls_with_secret(states: &[(&str, &str)]) -> Vec<Phase> {
    let mut tries = Tries::default();
    let phase = |(reason, message): &(&str, &str)| {
        let mut pod = pod(&function(&waiting(reason, message)));
        pod.spec = serde_json::from_value(json!({"containers": [], "imagePullSecrets": [{"name": "auth"}]}))
            .unwrap();
        phase(&pod, &mut tries)
    };
    states.iter().map(phase).collect()
}

#[test]
fn without_access_a_pod_with_a_pull_secret_has_a_second_try() {
    let (waits, failed) = (waits(Cause::ImageRefused(FUNCTION)), failed(Cause::ImageRefused(FUNCTION)));
    for message in [
        "unexpected status from HEAD request to https://r.io/v2/f/manifests/v1: 401 Unauthorized",
        "failed to fetch anonymous token: 403 Forbidden",
        "denied: requested access to the resource is denied",
        "pull access denied, repository does not exist or may require authorization: authorization failed: no basic auth credentials",
    ] {
        let (pull, back_off) = (("ErrImagePull", message), ("ImagePullBackOff", message));
        assert_eq!(pulls_with_secret(&[pull, back_off]), [waits.clone(), waits.clone()], "{message}");
        assert_eq!(pulls_with_secret(&[pull, back_off, pull]).pop(), Some(failed.clone()), "{message}");
    }
    // No Secret makes an image that is not there.
    for message in ["r.io/f:v1: not found", "Error: manifest unknown"] {
        assert_eq!(pulls_with_secret(&[("ErrImagePull", message)]).pop(), Some(failed.clone()), "{message}");
    }
}

#[test]
fn other_pull_errors_wait_for_a_second_try() {
    let errors = [
        "dial tcp: lookup r.io: no such host",
        "dial tcp 10.0.0.1:443: connect: connection refused",
        "unexpected status code 503 Service Unavailable",
        "toomanyrequests: You have reached your pull rate limit",
        "mkdir /var/lib/containerd: permission denied",
        r#"Back-off pulling image "denied.io/unauthorized/forbidden:not-found""#,
        "",
    ];
    for message in errors {
        for reason in ["ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError"] {
            let state = function(&waiting(reason, message));
            assert_eq!(seen(&state), waits(Cause::ImageNotPulled(FUNCTION)), "{reason}: {message}");
        }
    }
}

/// The phases of one pod whose function container waits for these reasons, one after the other.
fn pulls(reasons: &[&str]) -> Vec<Phase> {
    let mut tries = Tries::default();
    let state = |reason: &&str| pod(&function(&waiting(reason, "connection refused")));
    reasons.iter().map(|reason| phase(&state(reason), &mut tries)).collect()
}

#[test]
fn failed_pulls_are_counted_by_their_begin() {
    let (waits, failed) = (waits(Cause::ImageNotPulled(FUNCTION)), failed(Cause::ImageNotPulled(FUNCTION)));
    let (pull, back_off) = ("ErrImagePull", "ImagePullBackOff");
    let last = |reasons: &[&str]| pulls(reasons).pop().unwrap();
    // The same state again, as after a new list, is no new pull.
    assert_eq!(last(&[pull, pull, pull]), waits);
    assert_eq!(last(&[back_off, back_off]), waits);
    assert_eq!(last(&[pull, back_off, back_off]), waits);
    assert_eq!(pulls(&[pull, back_off, pull]), [waits.clone(), waits.clone(), failed.clone()]);
    // The first failed pull was not seen.
    assert_eq!(last(&[back_off, pull]), failed);
    assert_eq!(pulls(&[pull, "ContainerCreating", pull]), [waits, Phase::Pending(None), failed]);
}

#[test]
fn each_container_has_its_own_tries() {
    let mut tries = Tries::default();
    let fails = waiting("ErrImagePull", "connection refused");
    let one = |name| pod(&status(&[container(name, 0, &fails, &json!({}))]));
    assert_eq!(phase(&one("function"), &mut tries), waits(Cause::ImageNotPulled(FUNCTION)));
    assert_eq!(phase(&one("proxy"), &mut tries), waits(Cause::ImageNotPulled(other())));
}

#[test]
fn an_image_that_came_clears_its_tries() {
    let mut tries = Tries::default();
    let fails = pod(&function(&waiting("ErrImagePull", "connection refused")));
    phase(&fails, &mut tries);
    assert_eq!(phase(&pod(&function(&running())), &mut tries), Phase::Running);
    assert_eq!(tries, Tries::default());
}

#[test]
fn a_crash_fails_at_its_second_exit() {
    let crash = |restarts, now, before| seen(&status(&[container("function", restarts, &now, &before)]));
    let second = |now, before| crash(1, now, before);
    let short = || end(3, "Error", 9);
    assert_eq!(second(short(), short()), failed(Cause::Exited(FUNCTION, 3)));
    assert_eq!(second(end(0, "Completed", 0), end(0, "Completed", 0)), failed(Cause::Exited(FUNCTION, 0)));
    assert_eq!(second(end(137, "OOMKilled", 1), short()), failed(Cause::OutOfMemory(FUNCTION)));
    // The first exit, or the restart after it.
    assert_eq!(crash(0, short(), json!({})), Phase::Pending(None));
    assert_eq!(crash(1, running(), short()), Phase::Running);
    assert_eq!(crash(0, short(), short()), Phase::Pending(None));
    // One of the runs was long.
    assert_eq!(second(end(3, "Error", 10), short()), Phase::Pending(None));
    assert_eq!(second(short(), end(3, "Error", 10)), Phase::Pending(None));
    assert_eq!(crash(7, running(), end(137, "OOMKilled", 40)), Phase::Running);
}

#[test]
fn an_entrypoint_that_cannot_be_started_has_no_start_time() {
    for reason in ["StartError", "ContainerCannotRun"] {
        let end = json!({"terminated": {"exitCode": 128, "reason": reason,
            "startedAt": "1970-01-01T00:00:00Z", "finishedAt": "2026-01-02T03:04:05Z"}});
        let first = status(&[container("function", 0, &end, &json!({}))]);
        assert_eq!(seen(&first), Phase::Pending(None));
        let second = status(&[container("function", 1, &end, &end)]);
        assert_eq!(seen(&second), failed(Cause::NotStarted(FUNCTION)));
    }
}

#[test]
fn a_crash_loop_tells_the_last_exit() {
    let back_off = waiting("CrashLoopBackOff", "back-off 10s restarting failed container");
    let crash = |before| seen(&status(&[container("proxy", 1, &back_off, &before)]));
    assert_eq!(crash(end(2, "Error", 20)), failed(Cause::Exited(other(), 2)));
    assert_eq!(crash(end(137, "OOMKilled", 20)), failed(Cause::OutOfMemory(other())));
    assert_eq!(crash(end(128, "StartError", 0)), failed(Cause::NotStarted(other())));
    assert_eq!(crash(json!({})), failed(Cause::CrashLoop(other())));
}

#[test]
fn init_containers_end_by_design() {
    let init = |now, before| seen(&json!({"initContainerStatuses": [container("proxy", 1, &now, &before)]}));
    let (well, badly) = (|| end(0, "Completed", 1), || end(1, "Error", 1));
    assert_eq!(init(well(), well()), Phase::Pending(None));
    assert_eq!(init(well(), badly()), Phase::Pending(None));
    assert_eq!(init(badly(), well()), Phase::Pending(None));
    assert_eq!(init(badly(), badly()), failed(Cause::Exited(other(), 1)));
}

#[test]
fn a_pod_that_is_over_has_failed() {
    let over = |phase: &str, reason: Value, containers: &[Value]| {
        seen(&json!({"phase": phase, "reason": reason, "containerStatuses": containers}))
    };
    let ended = |name, code, reason| container(name, 0, &end(code, reason, 1), &json!({}));
    let none = || Value::Null;
    assert_eq!(over("Failed", json!("Evicted"), &[ended("function", 137, "Error")]), failed(Cause::Evicted));
    assert_eq!(over("Failed", json!("DeadlineExceeded"), &[]), failed(Cause::ActiveDeadline));
    assert_eq!(over("Failed", json!("OutOfcpu"), &[]), failed(Cause::NodeLost));
    assert_eq!(
        over("Failed", none(), &[ended("function", 137, "ContainerStatusUnknown")]),
        failed(Cause::NodeLost)
    );
    assert_eq!(over("Failed", none(), &[ended("function", 7, "Error")]), failed(Cause::Exited(FUNCTION, 7)));
    assert_eq!(
        over("Failed", none(), &[ended("function", 137, "OOMKilled")]),
        failed(Cause::OutOfMemory(FUNCTION))
    );
    assert_eq!(
        over("Failed", none(), &[ended("function", 128, "StartError")]),
        failed(Cause::NotStarted(FUNCTION))
    );
    let both = [ended("proxy", 2, "Error"), ended("function", 7, "Error")];
    assert_eq!(over("Failed", none(), &both), failed(Cause::Exited(FUNCTION, 7)));
    let proxy = [ended("function", 0, "Completed"), ended("proxy", 2, "Error")];
    assert_eq!(over("Failed", none(), &proxy), failed(Cause::Exited(other(), 2)));
    assert_eq!(over("Succeeded", none(), &[ended("function", 0, "Completed")]), failed(Cause::Completed));
}

#[test]
fn an_unschedulable_pod_waits() {
    let condition = |kind: &str, value: &str, reason: &str| {
        seen(
            &json!({"conditions": [{"type": kind, "status": value, "reason": reason, "message": "0/3 nodes"}]}),
        )
    };
    assert_eq!(condition("PodScheduled", "False", "Unschedulable"), waits(Cause::Unschedulable));
    assert_eq!(condition("PodScheduled", "False", "SchedulingGated"), Phase::Pending(None));
    assert_eq!(condition("PodScheduled", "True", "Unschedulable"), Phase::Pending(None));
    assert_eq!(condition("Ready", "False", "Unschedulable"), Phase::Pending(None));
}

#[test]
fn the_function_is_blamed_first_and_whatever_fails_before_what_waits() {
    let crash = |name| container(name, 1, &end(1, "Error", 1), &end(1, "Error", 1));
    assert_eq!(seen(&status(&[crash("a"), crash("function")])), failed(Cause::Exited(FUNCTION, 1)));
    let pulls = container("function", 0, &waiting("ErrImagePull", "connection refused"), &json!({}));
    assert_eq!(seen(&status(&[pulls, crash("proxy")])), failed(Cause::Exited(other(), 1)));
}

#[test]
fn a_failed_pod_stays_failed_and_for_the_same_reason() {
    let mut tries = Tries::default();
    let crash = container("function", 1, &end(1, "Error", 1), &end(1, "Error", 1));
    let first = phase(&pod(&status(&[crash])), &mut tries);
    assert_eq!(first, failed(Cause::Exited(FUNCTION, 1)));
    assert_eq!(phase(&pod(&function(&running())), &mut tries), first);
    assert_eq!(phase(&pod(&function(&waiting("CrashLoopBackOff", ""))), &mut tries), first);
}

#[test]
fn texts_say_what_to_do() {
    let text = |cause: Cause| Reason::from(cause).to_string();
    assert_eq!(
        text(Cause::ImageRefused(FUNCTION)),
        "the function's image was not found in its registry or may not be pulled: check its name and tag, and the pull \
         secrets of the function namespace"
    );
    assert_eq!(
        text(Cause::Exited(other(), 2)),
        "the container `proxy` of the function's pod ended with exit code 2: check that container in the pod template \
         (--function-pod-template); the runner's log has its last lines"
    );
    assert!(
        text(Cause::Exited(FUNCTION, 127))
            .contains("ended with exit code 127: check that the pod template puts a wrapper-server")
    );
    assert!(text(Cause::OutOfMemory(FUNCTION)).contains("memory limit"));
}

#[test]
fn the_end_of_each_run_is_told_once() {
    let told = |restarts, now: Value, before: Value| {
        let crashes = crashes(&pod(&status(&[container("function", restarts, &now, &before)])));
        crashes.into_iter().map(|crash| (crash.restarts, crash.exit_code, crash.message)).collect::<Vec<_>>()
    };
    let (first, second) = (|| end(1, "Error", 1), || end(2, "Error", 1));
    let one = |restarts, code| vec![(restarts, code, "last words".to_owned())];
    assert_eq!(told(0, running(), json!({})), []);
    assert_eq!(told(0, first(), json!({})), one(0, 1));
    assert_eq!(told(1, running(), first()), one(0, 1));
    assert_eq!(told(1, second(), first()), one(1, 2));
    assert_eq!(told(1, waiting("CrashLoopBackOff", ""), second()), one(1, 2));
    assert_eq!(told(2, running(), second()), one(1, 2));
}

#[test]
fn a_planned_end_is_no_crash() {
    let well = json!({"initContainerStatuses": [container("copy", 0, &end(0, "Completed", 1), &json!({}))]});
    assert_eq!(crashes(&pod(&well)), []);
    let mut deleted = pod(&function(&end(143, "Error", 1)));
    assert_eq!(crashes(&deleted).len(), 1);
    deleted.metadata.deletion_timestamp = Some(jiff::Timestamp::UNIX_EPOCH.into());
    assert_eq!(crashes(&deleted), []);
}

#[test]
fn last_words_are_cut_at_their_begin() {
    let words = format!("ä{}end", "x".repeat(MAX_MESSAGE - 4));
    let mut state = end(1, "Error", 1);
    state["terminated"]["message"] = json!(words);
    let crashes = crashes(&pod(&function(&state)));
    assert_eq!(crashes[0].message, format!("{}end", "x".repeat(MAX_MESSAGE - 4)));
}

#[test]
fn complaints_carry_the_clusters_words() {
    let status = json!({
        "reason": "Evicted", "message": "low on memory",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}],
        "containerStatuses": [
            container("function", 0, &waiting("ErrImagePull", "no such host"), &json!({})),
            container("proxy", 0, &json!({"waiting": {"reason": "ContainerCreating"}}), &json!({})),
        ],
    });
    let told: Vec<_> = complaints(&pod(&status))
        .into_iter()
        .map(|complaint| (complaint.container, complaint.reason, complaint.message))
        .collect();
    let expected = [
        (None, "Unschedulable", "0/3 nodes"),
        (None, "Evicted", "low on memory"),
        (Some("function".to_owned()), "ErrImagePull", "no such host"),
    ];
    assert_eq!(
        told,
        expected.map(|(container, reason, message)| (container, reason.to_owned(), message.to_owned()))
    );
}

fn reasons() -> impl Strategy<Value = &'static str> {
    prop::sample::select(
        &[
            "InvalidImageName",
            "ErrImageNeverPull",
            "SignatureValidationFailed",
            "CreateContainerConfigError",
            "CreateContainerError",
            "RunContainerError",
            "PostStartHookError",
            "CrashLoopBackOff",
            "ErrImagePull",
            "ImagePullBackOff",
            "ImageInspectError",
            "ContainerCreating",
            "NoSuchReason",
            "Error",
            "OOMKilled",
            "StartError",
            "Evicted",
            "DeadlineExceeded",
            "",
        ][..],
    )
}

fn states() -> impl Strategy<Value = Value> {
    let message = "(not found |denied )?.{0,30}";
    prop_oneof![
        Just(running()),
        (reasons(), message).prop_map(|(reason, message)| waiting(reason, &message)),
        (reasons(), message, 0..20_u32).prop_map(|(reason, message, seconds)| {
            let mut end = end(9, reason, seconds);
            end["terminated"]["message"] = json!(message);
            end
        }),
    ]
}

fn statuses() -> impl Strategy<Value = Value> {
    let containers = || prop::collection::btree_map("function|proxy", (0..3_i32, states(), states()), 0..3);
    let phases = prop::sample::select(&["Pending", "Running", "Failed", "Succeeded"][..]);
    (phases, reasons(), ".{0,30}", containers(), containers()).prop_map(|(phase, reason, message, mut init, main)| {
        // No two containers of a pod have one name.
        init.retain(|name, _| !main.contains_key(name));
        let list = |containers: BTreeMap<String, (i32, Value, Value)>| -> Vec<Value> {
            containers.iter().map(|(name, (restarts, now, last))| container(name, *restarts, now, last)).collect()
        };
        json!({
            "phase": phase, "reason": reason, "message": message, "podIP": "10.0.0.7",
            "initContainerStatuses": list(init), "containerStatuses": list(main),
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}],
        })
    })
}

/// Every text there is for pods of the containers `function` and `proxy`, and for exit code 9.
fn table() -> Vec<String> {
    let mut table: Vec<_> =
        [Cause::Evicted, Cause::ActiveDeadline, Cause::Completed, Cause::NodeLost, Cause::Unschedulable]
            .into();
    for container in [FUNCTION, other()] {
        let of = |cause: fn(Container) -> Cause| cause(container.clone());
        table.extend([
            of(Cause::InvalidImage),
            of(Cause::NeverPulled),
            of(Cause::ImageRefused),
            of(Cause::ImageNotPulled),
            of(Cause::Config),
            of(Cause::NotCreated),
            of(Cause::NotStarted),
            of(Cause::StartHook),
            of(Cause::CrashLoop),
            of(Cause::OutOfMemory),
            Cause::Exited(container.clone(), 9),
        ]);
    }
    table.iter().map(ToString::to_string).collect()
}

proptest! {
    #[test]
    fn the_clusters_words_never_reach_callers(statuses in prop::collection::vec(statuses(), 1..6)) {
        let table = table();
        let mut tries = Tries::default();
        for status in &statuses {
            if let Phase::Failed(reason) | Phase::Pending(Some(reason)) = phase(&pod(status), &mut tries) {
                prop_assert!(table.contains(&reason.to_string()), "{reason}");
            }
        }
    }

    #[test]
    fn seeing_a_state_twice_changes_nothing(statuses in prop::collection::vec(statuses(), 1..6)) {
        let mut tries = Tries::default();
        for status in &statuses {
            let pod = pod(status);
            let first = phase(&pod, &mut tries);
            let before = tries.clone();
            prop_assert_eq!(phase(&pod, &mut tries), first);
            prop_assert_eq!(&tries, &before);
        }
    }
}
