//! Prints the outcome like kpt, and writes it to `--results-dir`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use porch_fn_grpc::code_name;
use porch_fn_package::Output;
use porch_fn_proto::evaluator::EvaluateFunctionResponse;
use serde_json::{Value, json};
use tonic::Code;

use super::call::Status;
use crate::failure::{Exit, Failure};
use crate::output::{escaped, note};

/// The file in `--results-dir`, like kpt's.
const RESULTS_FILE: &str = "results.yaml";
/// What to do about a function that no runner has.
const NOT_FOUND: &str = "the runners have no such function. Runners without function pods run only the images of \
                         --config";

/// Prints the outcome of one function's call on standard error.
pub(super) struct Report<'a> {
    pub(super) image: &'a str,
    /// Print error texts as they are.
    pub(super) verbose: bool,
    pub(super) results: Option<&'a Path>,
}

/// The parts of the error text of a function that ran and failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Parts {
    results: Vec<String>,
    stderr: String,
    /// Why the function's output is not a ResourceList. Empty: it is one.
    reason: String,
}

// === impl Report ===

impl Report<'_> {
    /// `selected` is the number of resources that the function gets, if not all.
    pub(super) fn running(&self, selected: Option<usize>) {
        let count = selected.map(|count| format!(" on {count} resource(s)")).unwrap_or_default();
        note(format_args!("[RUNNING] \"{}\"{count}", escaped(self.image)));
    }

    pub(super) fn passed(&self, response: &EvaluateFunctionResponse, output: &Output) -> Result<(), Failure> {
        let stderr = String::from_utf8_lossy(&response.log);
        note(self.block("PASS", &output.results, &stderr));
        let results = porch_fn_package::results_yaml(&response.resource_list);
        let results = results.and_then(|yaml| serde_saphyr::from_str(&yaml).ok());
        self.write(0, &results.unwrap_or_else(|| json!([])), &stderr)
    }

    /// Returns the exit code if everything is printed, else the error to print.
    pub(super) fn failed(&self, status: &Status) -> Result<ExitCode, Failure> {
        let parts = parts(&status.message);
        let found = parts.as_ref().filter(|_| !self.verbose);
        let (results, stderr) = found.map_or((&[][..], ""), |parts| (&parts.results, &parts.stderr));
        note(self.block("FAIL", results, stderr));
        let exit = exit(status.code);
        let whole = || Parts { stderr: status.message.clone(), ..Parts::default() };
        let Parts { results, stderr, reason } = parts.clone().unwrap_or_else(whole);
        let results: Vec<Value> = results.iter().map(|line| result(line)).collect();
        self.write(exit as u8, &json!(results), &stderr)?;
        if found.is_some() {
            if reason.is_empty() {
                return Ok(exit.into());
            }
            return Err(Failure::with_code(reason, exit));
        }
        // The text may come from the function, and so may have control characters of a terminal.
        let lines = || status.message.lines().map(escaped).collect::<Vec<_>>().join("\n");
        let message = if self.verbose { status.message.clone() } else { lines() };
        let mut text = format!("{}: {message}", code_name(status.code));
        if status.code == Code::NotFound {
            let _ = match status.functions.as_str() {
                // The runner with sandboxes says itself why it cannot have the image.
                "" if status.message.contains("failed to start") => Ok(()),
                "" => write!(text, "; {NOT_FOUND}"),
                functions => write!(text, "; there are {functions}; add others with --local-functions"),
            };
        }
        Err(Failure::of_lines(text, exit))
    }

    /// Formats the outcome like kpt.
    fn block(&self, outcome: &str, results: &[String], stderr: &str) -> String {
        let mut text = format!("[{outcome}] \"{}\"", escaped(self.image));
        let stderr: Vec<_> = stderr.lines().map(str::to_owned).collect();
        for (title, lines) in [("Results", results), ("Stderr", &stderr)] {
            if !lines.is_empty() {
                let _ = write!(text, "\n  {title}:");
            }
            for line in lines {
                let _ = write!(text, "\n    {}", escaped(line));
            }
        }
        text
    }

    /// Writes a `FunctionResultList` like kpt's.
    fn write(&self, exit_code: u8, results: &Value, stderr: &str) -> Result<(), Failure> {
        let Some(directory) = self.results else { return Ok(()) };
        let item = json!({"image": self.image, "exitCode": exit_code, "results": results, "stderr": stderr});
        let list = json!({
            "apiVersion": "kpt.dev/v1",
            "kind": "FunctionResultList",
            "metadata": {"name": "fnresults"},
            "exitCode": exit_code,
            "items": [item],
        });
        let path = directory.join(RESULTS_FILE);
        let written = fs::create_dir_all(directory).and_then(|()| {
            let text = serde_saphyr::to_string(&list).map_err(std::io::Error::other)?;
            fs::write(&path, format!("{}\n", text.trim_end()))
        });
        written.map_err(|error| {
            Failure::new(format!("cannot write {}: {error}; see --results-dir", path.display()))
        })
    }
}

/// Returns whether the function failed, or no function answered.
fn exit(code: Code) -> Exit {
    match code {
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::ResourceExhausted
        | Code::Unimplemented => Exit::Unreachable,
        _ => Exit::Failed,
    }
}

/// Takes the results and the function's stderr out of an error text. The texts are those of Porch's
/// wrapper-server. `None`: the text is of another kind.
fn parts(message: &str) -> Option<Parts> {
    not_parsed(message).or_else(|| with_results(message))
}

/// Parts of the text about a function whose output is not a ResourceList.
fn not_parsed(message: &str) -> Option<Parts> {
    let (_, rest) = message.split_once("failed to parse the output of function ")?;
    let (_, rest) = rest.split_once(" with stderr '")?;
    let (stderr, reason) = rest.rsplit_once("': ")?;
    let reason = reason.trim();
    let reason = ended(reason).unwrap_or_else(|| format!("the function failed: {reason}"));
    Some(Parts { stderr: stderr.trim().to_owned(), reason, ..Parts::default() })
}

/// How the function ended, if it did not end well. That is the cause. Porch's text begins with what its
/// output lacks.
fn ended(reason: &str) -> Option<String> {
    let (output, end) = reason.strip_suffix(')')?.rsplit_once(" (")?;
    let output = if output.contains("got 0") { String::new() } else { format!(": {output}") };
    if let Some(code) = end.strip_prefix("exit status ") {
        return Some(format!("the function exited with code {code}{output}"));
    }
    Some(match end.strip_prefix("signal: ")? {
        "killed" => "the function was killed: it may need more memory (signal: killed)".to_owned(),
        signal => format!("the function was ended by a signal: {signal}"),
    })
}

/// Parts of the text about a function that returned results.
fn with_results(message: &str) -> Option<Parts> {
    let (head, rest) = message.split_once(" with structured results: ")?;
    // The exec runtime puts the stderr into parentheses in the head.
    let (results, stderr) = rest.split_once(" and stderr: ").unwrap_or((rest, head));
    let results = results.split("\n\n").map(str::trim).filter(|line| !line.is_empty());
    let results = results.map(str::to_owned).collect();
    Some(Parts { results, stderr: stderr.trim().to_owned(), ..Parts::default() })
}

/// Returns the result of one line of an error text.
fn result(line: &str) -> Value {
    let severity = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    match severity {
        Some((severity, message)) => {
            let message = message.trim_start_matches(':').trim();
            json!({"message": message, "severity": severity})
        }
        None => json!({"message": line}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: &str = "unable to evaluate f with pod evaluator: rpc error: code = Internal desc = failed to \
        evaluate function \"f\" with structured results: [error] v1/Pod/a spec.x: bad\n\n[info]: look and stderr: \
        one\ntwo \u{1b}[2J";

    fn report(results: Option<&Path>, verbose: bool) -> Report<'_> {
        Report { image: "f", verbose, results }
    }

    fn status(code: Code, message: &str) -> Status {
        Status { code, message: message.to_owned(), functions: String::new() }
    }

    #[test]
    fn a_failed_function_is_printed_like_kpt() {
        let found = parts(FAILED).unwrap();
        assert_eq!(
            report(None, false).block("FAIL", &found.results, &found.stderr),
            "[FAIL] \"f\"\n  Results:\n    [error] v1/Pod/a spec.x: bad\n    [info]: look\n  Stderr:\n    one\n    \
             two \\u{1b}[2J"
        );
        assert_eq!(report(None, false).block("PASS", &[], ""), "[PASS] \"f\"");
        let executable =
            "Failed to execute function \"f\": exit status 1 (no) with structured results: [error]: bad";
        let expected = Parts {
            results: vec!["[error]: bad".to_owned()],
            stderr: "Failed to execute function \"f\": exit status 1 (no)".to_owned(),
            ..Parts::default()
        };
        assert_eq!((parts(executable), parts("a text")), (Some(expected), None));
        let exit = report(None, false).failed(&status(Code::Internal, FAILED)).unwrap();
        assert_eq!(exit, ExitCode::from(1));
        let error = report(None, true).failed(&status(Code::Internal, FAILED)).unwrap_err();
        assert_eq!((error.to_string(), error.code()), (format!("INTERNAL: {FAILED}"), ExitCode::from(1)));
    }

    #[test]
    fn a_function_without_a_resource_list_is_printed_with_its_stderr() {
        let message = "rpc error: failed to parse the output of function \"f\" with stderr 'it's\nbad\n': \
            expected exactly one object, got 0";
        let found = parts(message).unwrap();
        assert_eq!((found.results.as_slice(), found.stderr.as_str()), (&[][..], "it's\nbad"));
        let error = report(None, false).failed(&status(Code::Internal, message)).unwrap_err();
        assert_eq!(error.to_string(), "the function failed: expected exactly one object, got 0");
        assert_eq!(error.code(), ExitCode::from(1));
    }

    /// The cause comes first: a function that exits with an error rarely writes a ResourceList.
    #[test]
    fn the_end_of_a_function_is_said_first() {
        for (reason, expected) in [
            (
                "expected exactly one object, got 0: the function must write a ResourceList to stdout (exit status 3)",
                "the function exited with code 3",
            ),
            (
                "expected exactly one object, got 0: the function must write a ResourceList to stdout (signal: killed)",
                "the function was killed: it may need more memory (signal: killed)",
            ),
            (
                "line 5, column 8: only the ResourceList may go to stdout (exit status 1)",
                "the function exited with code 1: line 5, column 8: only the ResourceList may go to stdout",
            ),
            (
                "expected exactly one object, got 0 (signal: segmentation fault)",
                "the function was ended by a signal: segmentation fault",
            ),
            ("a text (of a function)", "the function failed: a text (of a function)"),
        ] {
            let message = format!("failed to parse the output of function \"f\" with stderr 'no': {reason}");
            assert_eq!(parts(&message).unwrap().reason, expected);
        }
    }

    #[test]
    fn control_characters_of_an_error_text_are_escaped_unless_verbose() {
        let status = status(Code::Internal, "a\n\u{1b}[2J");
        let text = |verbose| report(None, verbose).failed(&status).unwrap_err().to_string();
        assert_eq!(text(false), "INTERNAL: a\n\\u{1b}[2J");
        assert_eq!(text(true), "INTERNAL: a\n\u{1b}[2J");
    }

    #[test]
    fn the_exit_code_tells_failed_functions_from_calls_without_an_answer() {
        for (code, expected) in [
            (Code::Unavailable, 2),
            (Code::DeadlineExceeded, 2),
            (Code::InvalidArgument, 1),
            (Code::Internal, 1),
        ] {
            let error = report(None, false).failed(&status(code, "a text")).unwrap_err();
            assert_eq!(error.code(), ExitCode::from(expected), "{code:?}");
        }
        let error =
            report(None, false).failed(&status(Code::NotFound, "function \"f\" not found")).unwrap_err();
        assert!(
            error.to_string().starts_with("NOT_FOUND: function \"f\" not found; the runners have"),
            "{error}"
        );
    }

    #[test]
    fn results_are_written_like_kpt() {
        let dir = tempfile::tempdir().unwrap();
        let results = dir.path().join("new");
        report(Some(&results), false).failed(&status(Code::Internal, FAILED)).unwrap();
        let written: Value =
            serde_saphyr::from_str(&fs::read_to_string(results.join(RESULTS_FILE)).unwrap()).unwrap();
        assert_eq!((&written["kind"], &written["exitCode"]), (&json!("FunctionResultList"), &json!(1)));
        let expected = json!([
            {"message": "v1/Pod/a spec.x: bad", "severity": "error"},
            {"message": "look", "severity": "info"},
        ]);
        assert_eq!(written["items"][0]["results"], expected);
        let list = b"kind: ResourceList\nitems: []\nresults:\n- message: m\n  severity: info\n".to_vec();
        let response = EvaluateFunctionResponse { resource_list: list.into(), ..Default::default() };
        report(Some(&results), false).passed(&response, &Output::default()).unwrap();
        let written: Value =
            serde_saphyr::from_str(&fs::read_to_string(results.join(RESULTS_FILE)).unwrap()).unwrap();
        let expected = json!([{"message": "m", "severity": "info"}]);
        assert_eq!((&written["exitCode"], &written["items"][0]["results"]), (&json!(0), &expected));
    }
}
