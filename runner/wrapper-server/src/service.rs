//! One call through the wrapper: it runs a process and judges its output.

use std::sync::Arc;

use porch_fn_grpc::{Call, Evaluate, Reply};
use porch_fn_proto::peek;
use porch_fn_telemetry::trace_context;
use tonic::Code;

use crate::outcome;
use crate::prestart::Prestart;
use crate::process::{Limits, Program, run};

/// The wrapper's evaluator.
pub(crate) struct Wrapper {
    /// The function.
    pub(crate) program: Program,
    /// With `--prestart`.
    pub(crate) prestart: Option<Arc<Prestart>>,
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
        let variables = trace_context::environment(&call.headers);
        let (_running, waiting) = match &self.prestart {
            Some(prestart) => {
                let (running, waiting) = prestart.begin(!variables.is_empty());
                (Some(running), waiting)
            }
            None => (None, None),
        };
        let limits = Limits { join_lines: self.flatten_log, ..outcome::limits(self.max_message) };
        let deadline = Some(call.deadline);
        let ran = match waiting {
            Some(waiting) => waiting.run(stdin, &limits, deadline).await,
            None => {
                let mut program = self.program.clone();
                program.variables = variables;
                run(&program, stdin, &limits, deadline).await
            }
        };
        outcome::reply(outcome::judge, &peeked.image, ran, self.max_message, call.place).await
    }
}
