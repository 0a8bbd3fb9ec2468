//! The codes and texts for a function's exit and output, as Porch knows them.

use super::*;
use crate::process::{Environment, Program, run};

const MAX: usize = 6 << 20;
const IMAGE: &str = "ghcr.io/kptdev/krm-functions-catalog/set-namespace:v0.4.1";
const OK: &str = r"printf 'kind: ResourceList\nitems: []\n'";

async fn evaluate_within(script: &str, max_message: usize) -> Result<Evaluated, Failure> {
    let program = Program::new("sh", ["-c", script], Environment::Inherit);
    let input = [Bytes::from_static(b"kind: ResourceList\n")];
    judge(IMAGE, run(&program, input, &limits(max_message), None).await, max_message)
}

async fn evaluate(script: &str) -> Result<Evaluated, Failure> {
    evaluate_within(script, MAX).await
}

#[track_caller]
fn fails(outcome: Result<Evaluated, Failure>, code: Code, message: &str) {
    let failure = outcome.unwrap_err();
    assert_eq!((failure.code, failure.message), (code, message.replace("IMAGE", IMAGE)));
}

#[tokio::test]
async fn exit_0_with_a_resource_list_is_the_answer() {
    let evaluated = evaluate("cat; echo note >&2").await.unwrap();
    assert_eq!(
        evaluated,
        Evaluated {
            resource_list: Bytes::from_static(b"kind: ResourceList\n"),
            log: Bytes::from_static(b"note\n"),
            warning: None
        }
    );
}

#[tokio::test]
async fn exit_0_with_an_error_result_is_an_answer_with_a_warning() {
    let evaluated =
        evaluate("cat; echo 'results: [{severity: error, message: bad}]'; printf '\\377' >&2").await.unwrap();
    assert_eq!(
        &evaluated.resource_list[..],
        b"kind: ResourceList\nresults: [{severity: error, message: bad}]\n"
    );
    assert_eq!(&evaluated.log[..], b"\xff");
    let warning = format!("function \"{IMAGE}\" succeeded but reported an error: [error]: bad");
    assert_eq!(evaluated.warning, Some(warning));
    assert_eq!(evaluate("cat; echo 'results: [{severity: warning}]'").await.unwrap().warning, None);
}

#[tokio::test]
async fn anything_else_is_internal() {
    let results = "results: [{severity: error, message: bad, resourceRef: {apiVersion: v1, kind: Pod, namespace: ns, name: n}, \
                   field: {path: spec.x}}, {message: look}]";
    let empty = "failed to parse the output of function \"IMAGE\" with stderr 'why\n': \
                 expected exactly one object, got 0: the function must write a ResourceList to stdout";
    for (script, expected) in [
        (
            "echo not yaml: at: all; echo why >&2",
            "failed to parse the output of function \"IMAGE\" with stderr 'why\n': invalid YAML at line 1, column 13: \
             mapping values are not allowed in this context: only the ResourceList may go to stdout, all else to stderr",
        ),
        ("echo why >&2", empty),
        ("echo why >&2; exit 1", empty),
        ("echo why >&2; kill -KILL $$", empty),
        (
            "echo - a; exit 1",
            "failed to parse the output of function \"IMAGE\" with stderr '': \
             the function's stdout must be a mapping, found a list at line 1, column 1",
        ),
        (
            &format!("cat; echo '{results}'; echo why >&2; exit 1"),
            "failed to evaluate function \"IMAGE\" with structured results: [error] v1/Pod/ns/n spec.x: bad\n\n[info]: look \
             and stderr: why\n",
        ),
        (
            &format!("{OK}; exit 7"),
            "failed to evaluate function \"IMAGE\" with structured results:  and stderr: ",
        ),
    ] {
        fails(evaluate(script).await, Code::Internal, expected);
    }
}

async fn execute(script: &str) -> Result<Evaluated, Failure> {
    let program = Program::new("sh", ["-c", script], Environment::Inherit);
    let input = [Bytes::from_static(b"kind: ResourceList\n")];
    let ran = run(&program, input, &limits(MAX), None).await;
    judge_apart(judge_exit, IMAGE, ran, MAX, ()).await
}

#[tokio::test]
async fn an_executable_that_fails_shows_its_results_behind_porchs_text() {
    let results =
        "results: [{severity: error, message: bad, resourceRef: {kind: Pod, name: n}}, {message: look}]";
    let text = "Failed to execute function \"IMAGE\": exit status 1 (why\n)";
    let with_results = format!("{text} with structured results: [error] Pod/n: bad\n\n[info]: look");
    let large = "head -c 100000 /dev/zero | tr '\\0' '#'";
    for (output, expected) in [
        (format!("cat; echo '{results}'"), with_results.as_str()),
        (format!("cat; echo '{results}'; {large}"), &with_results),
        ("cat".to_owned(), text),
        ("cat; echo 'results: []'".to_owned(), text),
        (format!("echo prose; echo '{results}'"), text),
        ("cat; echo 'results: 3'".to_owned(), text),
        (large.to_owned(), text),
        ("true".to_owned(), text),
    ] {
        let script = format!("{output}; echo why >&2; exit 1");
        fails(execute(&script).await, Code::Internal, expected);
    }
    // A function that succeeds is not asked for more than an output.
    let succeeded = format!("cat; echo '{results}'; echo prose");
    assert_eq!(execute(&succeeded).await.unwrap().warning, None);
}

#[tokio::test]
async fn a_function_that_cannot_be_started_is_internal() {
    let program = Program::new("no-such-function", [""; 0], Environment::Inherit);
    let ran = run(&program, Vec::new(), &limits(MAX), None).await;
    fails(
        judge(IMAGE, ran, MAX),
        Code::Internal,
        "Failed to execute function \"IMAGE\": exec: \"no-such-function\": executable file not found in $PATH ()",
    );
}

#[tokio::test]
async fn too_long_an_output_exhausts_the_limit() {
    fails(
        evaluate_within("yes", 1000).await,
        Code::ResourceExhausted,
        "grpc: trying to send message larger than max (1001 vs. 1000): the output of function \"IMAGE\" is too long; \
         raise --max-request-body-size of router, runner and wrapper-server, and Porch's --max-request-body-size \
         (--function-runner-grpc-max-message-size in v1.5), to one value",
    );
}

#[test]
fn a_passed_deadline_has_gos_text() {
    fails(judge(IMAGE, Err(RunError::Deadline), MAX), Code::DeadlineExceeded, "context deadline exceeded");
}

#[tokio::test]
async fn answer_and_log_fit_into_one_message() {
    // The size of the message that carries both.
    let size = |evaluated: &Evaluated| {
        let field = |bytes: &Bytes| {
            if bytes.is_empty() {
                0
            } else {
                1 + (64 - (bytes.len() as u64).leading_zeros()).div_ceil(7) as usize + bytes.len()
            }
        };
        field(&evaluated.resource_list) + field(&evaluated.log)
    };
    for padding in [0, 3_000, 5_800, 5_900] {
        let script = format!(
            "{OK}; head -c {padding} /dev/zero | tr '\\0' '#'; (echo first; yes; echo last) 2>/dev/null | head -c 5000 >&2"
        );
        let evaluated = evaluate_within(&script, 6_000).await.unwrap();
        assert!(size(&evaluated) <= 6_000, "{padding}");
        assert_eq!(evaluated.resource_list.len(), 29 + padding);
        let log = String::from_utf8(evaluated.log.into()).unwrap();
        assert_eq!(log.contains("left out"), (3_000..5_900).contains(&padding), "{padding}");
        assert_eq!(log.starts_with("first"), padding < 5_900, "{padding}");
    }
    // Just as much as fits, and one byte more.
    let of = |length: usize| format!("{OK}; head -c {} /dev/zero | tr '\\0' '#'", length - 29);
    let evaluated = evaluate_within(&of(5_995), 6_000).await.unwrap();
    assert!(size(&evaluated) <= 6_000);
    assert_eq!(evaluate_within(&of(5_996), 6_000).await.unwrap_err().code, Code::ResourceExhausted);
}

#[tokio::test]
async fn messages_are_bounded() {
    let script = "echo kind: ResourceList; echo results:; yes -- '- message: é' | head -n 100000; head -c 1000000 /dev/urandom >&2; exit 1";
    for failure in [evaluate(script).await.unwrap_err(), execute(script).await.unwrap_err()] {
        // Bytes that are not UTF-8 become replacement characters, of three bytes.
        assert!(failure.message.len() < 3 * (STDERR_HEAD + STDERR_TAIL) + resource_list::TEXT_LIMIT + 1_000);
        for text in ["more results left out", "bytes of stderr left out"] {
            assert!(failure.message.contains(text), "{text}");
        }
    }
    let failure = judge(&"\u{1}".repeat(MAX), Err(RunError::StdoutTooLarge { limit: MAX }), MAX).unwrap_err();
    assert!(failure.message.len() < 4 * IMAGE_LIMIT + 1_000);
}
