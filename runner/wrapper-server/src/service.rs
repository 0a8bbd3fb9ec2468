//! One call through the wrapper: it runs a process and judges its output.

use std::sync::Arc;

use porch_fn_grpc::{Call, Evaluate, Reply};
use porch_fn_proto::peek;
use porch_fn_telemetry::trace_context;
use tokio::sync::Semaphore;
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
    /// `--max-concurrent-calls`.
    pub(crate) max_calls: usize,
    /// The calls that may begin now, of `max_calls`. The message of each call is complete, so nobody
    /// holds one without work.
    pub(crate) free: Arc<Semaphore>,
}

impl Evaluate for Wrapper {
    async fn evaluate(&self, call: Call) -> Reply {
        let Ok(place) = Arc::clone(&self.free).try_acquire_owned() else {
            let text = format!(
                "{} calls already run in this function's pod: retry later, raise --max-parallel-pods-per-function, or \
                 raise the wrapper-server's --max-concurrent-calls",
                self.max_calls
            );
            return Reply::shed(Code::ResourceExhausted, &text);
        };
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
        outcome::reply(outcome::judge, &peeked.image, ran, self.max_message, place).await
    }
}
