//! One call through the wrapper: it runs a process and judges its output.

use porch_fn_grpc::{Call, Evaluate, Reply};
use porch_fn_proto::peek;
use porch_fn_telemetry::trace_context;
use tonic::Code;

use crate::outcome;
use crate::process::{Limits, Program, run};

/// The wrapper's evaluator.
pub(crate) struct Wrapper {
    /// The function.
    pub(crate) program: Program,
    /// Largest message, in bytes.
    pub(crate) max_message: usize,
    /// Whether the lines of the function's stderr are joined by ` | `.
    pub(crate) flatten_log: bool,
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
        let mut program = self.program.clone();
        program.variables = trace_context::environment(&call.headers);
        let limits = Limits { join_lines: self.flatten_log, ..outcome::limits(self.max_message) };
        let ran = run(&program, stdin, &limits, Some(call.deadline)).await;
        outcome::reply(outcome::judge, &peeked.image, ran, self.max_message, call.place).await
    }
}
