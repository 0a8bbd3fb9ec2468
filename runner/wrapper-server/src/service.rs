//! One call through the wrapper: a place, a process, a judgement.

use porch_fn_proto::peek;
use porch_fn_service::grpc::{Call, Evaluate, Reply};
use porch_fn_service::trace_context;
use tokio::sync::Semaphore;
use tonic::Code;

use crate::outcome::{self, Evaluated, Failure};
use crate::process::{Limits, Program, run};

/// The wrapper's evaluator.
#[derive(Debug)]
pub struct Wrapper {
    program: Program,
    max_message: usize,
    max_calls: usize,
    flatten_log: bool,
    places: Semaphore,
}

impl Wrapper {
    /// Runs `program`, at most `max_calls` times at once (zero counts as one), with messages of at most `max_message`
    /// bytes. With `flatten_log` the lines of its stderr are joined by ` | `.
    pub fn new(program: Program, max_message: usize, max_calls: usize, flatten_log: bool) -> Self {
        let max_calls = max_calls.clamp(1, Semaphore::MAX_PERMITS);
        Self { program, max_message, max_calls, flatten_log, places: Semaphore::new(max_calls) }
    }

    async fn run(&self, call: Call) -> Result<Evaluated, Failure> {
        let peeked = peek(&call.message)
            .map_err(|error| Failure { code: Code::Internal, message: error.to_string() })?;
        let stdin = call.message.slice(peeked.resource_list);
        // Let go of the request's other parts while the function runs.
        drop((call.message, call.framed));
        let program = self.program.clone().with_variables(trace_context::environment(&call.headers));
        let limits = Limits { join_lines: self.flatten_log, ..outcome::limits(self.max_message) };
        let ran = run(&program, stdin, &limits, Some(call.deadline)).await;
        outcome::judge_apart(outcome::judge, &peeked.image, ran, self.max_message).await
    }
}

impl Evaluate for Wrapper {
    async fn evaluate(&self, call: Call) -> Reply {
        let Ok(_place) = self.places.try_acquire() else {
            let text = format!(
                "{} calls already run in this function's pod: retry later, raise \
                 --max-parallel-pods-per-function, or raise the wrapper-server's --max-concurrent-calls",
                self.max_calls
            );
            return Reply::shed(Code::ResourceExhausted, &text);
        };
        match self.run(call).await {
            Ok(evaluated) => {
                if let Some(warning) = evaluated.warning {
                    tracing::warn!("{warning}");
                }
                Reply::evaluated(evaluated.resource_list.into(), evaluated.log)
            }
            Err(failure) => Reply::failed(failure.code, &failure.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Environment;

    #[test]
    fn any_number_of_places_is_accepted() {
        for (asked, given) in [(0, 1), (3, 3), (usize::MAX, Semaphore::MAX_PERMITS)] {
            let program = Program::new("cat", [""; 0], Environment::Inherit);
            assert_eq!(Wrapper::new(program, 1024, asked, false).max_calls, given);
        }
    }
}
