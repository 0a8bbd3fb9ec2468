//! One call through the wrapper: it runs a process and judges its output.

use porch_fn_grpc::{Call, Evaluate, Places, Reply};
use porch_fn_proto::peek;
use porch_fn_telemetry::trace_context;
use tonic::Code;

use crate::outcome;
use crate::process::{Limits, Program, run};

/// The wrapper's evaluator.
#[derive(Debug)]
pub struct Wrapper {
    program: Program,
    max_message: usize,
    flatten_log: bool,
}

impl Wrapper {
    /// Runs `program` with messages of at most `max_message` bytes. With `flatten_log` the lines of
    /// its stderr are joined by ` | `.
    pub fn new(program: Program, max_message: usize, flatten_log: bool) -> Self {
        Self { program, max_message, flatten_log }
    }

    /// The places of a wrapper that runs at most `max_calls` at once.
    pub fn places(max_calls: usize) -> Places {
        let text = format!(
            "{max_calls} calls already run in this function's pod: retry later, raise \
             --max-parallel-pods-per-function, or raise the wrapper-server's --max-concurrent-calls"
        );
        Places::new(max_calls, text)
    }
}

impl Evaluate for Wrapper {
    async fn evaluate(&self, call: Call) -> Reply {
        let peeked = match peek(&call.message) {
            Ok(peeked) => peeked,
            Err(error) => return Reply::failed(Code::Internal, &error.to_string()),
        };
        let stdin = call.message.slice(peeked.resource_list);
        // Free the request's other parts while the function runs.
        drop((call.message, call.framed));
        let program = self.program.clone().with_variables(trace_context::environment(&call.headers));
        let limits = Limits { join_lines: self.flatten_log, ..outcome::limits(self.max_message) };
        let ran = run(&program, stdin, &limits, Some(call.deadline)).await;
        outcome::reply(outcome::judge, &peeked.image, ran, self.max_message, call.place).await
    }
}
