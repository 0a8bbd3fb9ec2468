//! Tests the codes and texts for a function's exit and output. src/outcome.rs describes
//! how they differ from Porch's.

use porch_fn_grpc::message_of;
use tonic::Code;

use super::*;
use crate::process::{Environment, Program, run};

const MAX: usize = 6 << 20;
const IMAGE: &str = "ghcr.io/kptdev/krm-functions-catalog/set-namespace:v0.4.1";
const OK: &str = r"printf 'kind: ResourceList\nitems: []\n'";

async fn ran(script: &str, max_message: usize) -> Result<Finished, RunError> {
    let program = Program::new("sh", ["-c", script], Environment::Inherit);
    run(&program, [Bytes::from_static(b"kind: ResourceList\n")], &limits(max_message), None).await
}

async fn evaluate(script: &str, max_message: usize) -> Result<Evaluated, Status> {
    judge(&go_quote(IMAGE), ran(script, max_message).await.unwrap(), max_message)
}

async fn execute(script: &str) -> Result<Evaluated, Status> {
    judge_exit(&go_quote(IMAGE), ran(script, MAX).await.unwrap(), MAX)
}

#[track_caller]
fn assert_fails(outcome: Result<Evaluated, Status>, code: Code, message: &str) {
    let status = outcome.unwrap_err();
    assert_eq!((status.code(), status.message()), (code, &*message.replace("IMAGE", IMAGE)));
}

#[tokio::test]
async fn exit_0_with_a_resource_list_is_the_answer() {
    let bad = "results: [{severity: error, message: bad}]\n";
    let warning = format!("function \"{IMAGE}\" succeeded but reported an error: [error]: bad");
    for (results, warning) in [("", None), ("results: [{severity: warning}]\n", None), (bad, Some(warning))] {
        let script = format!("cat; printf '{results}'; printf '\\377' >&2");
        let resource_list = format!("kind: ResourceList\n{results}").into();
        let expected = Evaluated { resource_list, log: Bytes::from_static(b"\xff"), warning };
        assert_eq!(evaluate(&script, MAX).await.unwrap(), expected);
    }
    // `judge_exit` does not read the output of a function that succeeds, but the output must not be
    // empty.
    let prose = execute("cat; echo 'results: [{severity: error}]'; echo prose").await.unwrap();
    assert_eq!(prose.warning, None);
    let empty = "Failed to execute function \"IMAGE\": it wrote nothing to standard output (why\n)";
    assert_fails(execute("echo why >&2").await, Code::Internal, empty);
}

#[tokio::test]
async fn any_other_exit_or_output_is_internal() {
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
        ("echo why >&2; exit 1", &format!("{empty} (exit status 1)")),
        ("echo why >&2; kill -KILL $$", &format!("{empty} (signal: killed)")),
        (
            "echo - a; exit 1",
            "failed to parse the output of function \"IMAGE\" with stderr '': \
             the function's stdout must be a mapping, found a list at line 1, column 1 (exit status 1)",
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
        assert_fails(evaluate(script, MAX).await, Code::Internal, expected);
    }
    let text = "Failed to execute function \"IMAGE\": exit status 1 (why\n)";
    let with_results =
        format!("{text} with structured results: [error] v1/Pod/ns/n spec.x: bad\n\n[info]: look");
    for (output, expected) in [
        (format!("cat; echo '{results}'"), with_results.as_str()),
        ("cat; echo 'results: []'".to_owned(), text),
        (format!("echo prose; echo '{results}'"), text),
        ("true".to_owned(), text),
    ] {
        let script = format!("{output}; echo why >&2; exit 1");
        assert_fails(execute(&script).await, Code::Internal, expected);
    }
}

#[tokio::test]
async fn each_error_of_a_run_has_its_code_and_text() {
    let program = Program::new("no-such-function", [""; 0], Environment::Inherit);
    let not_found = "Failed to execute function \"IMAGE\": exec: \"no-such-function\": executable file not found in $PATH ()";
    let too_long = "grpc: trying to send message larger than max (1001 vs. 1000): the output of function \"IMAGE\" is too \
                    long; raise --max-request-body-size of router, runner and wrapper-server, and Porch's \
                    --max-request-body-size (--function-runner-grpc-max-message-size in v1.5), to the same value";
    for (ran, code, text) in [
        (run(&program, [], &limits(MAX), None).await, Code::Internal, not_found),
        (ran("yes", 1000).await, Code::ResourceExhausted, too_long),
        (Err(RunError::Deadline), Code::DeadlineExceeded, "context deadline exceeded"),
    ] {
        let reply = reply(judge, IMAGE, ran, 1000, ()).await;
        let message = message_of(reply.status_headers());
        assert_eq!((reply.code(), message), (code, text.replace("IMAGE", IMAGE)));
    }
}

#[tokio::test]
async fn a_large_output_is_judged_like_a_small_one() {
    for size in [10, 100_000] {
        let script = format!("{OK}; head -c {size} /dev/zero | tr '\\0' '#'");
        for (end, code) in [("", Code::Ok), ("; exit 1", Code::Internal)] {
            let ran = ran(&(script.clone() + end), MAX).await;
            assert_eq!(reply(judge, IMAGE, ran, MAX, ()).await.code(), code, "{size}");
        }
    }
}

#[tokio::test]
async fn answer_and_log_fit_into_one_message() {
    // The size of the message with both the answer and the log.
    let size = |evaluated: &Evaluated| {
        porch_fn_proto::encode_response(evaluated.resource_list.clone().into(), evaluated.log.clone()).len()
    };
    for padding in [0, 3_000, 5_800, 5_900] {
        let script = format!(
            "{OK}; head -c {padding} /dev/zero | tr '\\0' '#'; (echo first; yes; echo last) 2>/dev/null | head -c 5000 >&2"
        );
        let evaluated = evaluate(&script, 6_000).await.unwrap();
        assert!(size(&evaluated) <= 6_000, "{padding}");
        assert_eq!(evaluated.resource_list.len(), 29 + padding);
        let log = String::from_utf8(evaluated.log.into()).unwrap();
        assert_eq!(log.contains("left out"), (3_000..5_900).contains(&padding), "{padding}");
        assert_eq!(log.starts_with("first"), padding < 5_900, "{padding}");
    }
    // The largest output that fits, and one byte more.
    let of = |length: usize| format!("{OK}; head -c {} /dev/zero | tr '\\0' '#'", length - 29);
    assert!(size(&evaluate(&of(5_995), 6_000).await.unwrap()) <= 6_000);
    assert!(matches!(ran(&of(5_996), 6_000).await, Err(RunError::StdoutTooLarge)));
}

#[tokio::test]
async fn messages_are_bounded() {
    let script = "echo kind: ResourceList; echo results:; yes -- '- message: é' | head -n 100000; head -c 1000000 /dev/urandom >&2; exit 1";
    for failure in [evaluate(script, MAX).await.unwrap_err(), execute(script).await.unwrap_err()] {
        // Each byte that is not UTF-8 becomes a replacement character of three bytes.
        let most = 3 * (STDERR_HEAD + STDERR_TAIL) + resource_list::TEXT_LIMIT + 1_000;
        assert!(failure.message().len() < most);
        for text in ["more results left out", "bytes of stderr left out"] {
            assert!(failure.message().contains(text), "{text}");
        }
    }
    let reply = reply(judge, &"\u{1}".repeat(MAX), Err(RunError::StdoutTooLarge), MAX, ()).await;
    assert!(message_of(reply.status_headers()).len() < 4 * IMAGE_LIMIT + 1_000);
}
