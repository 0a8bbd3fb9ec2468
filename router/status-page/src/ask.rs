//! Asks the runners what they hold, when somebody looks at the status page: all in parallel, and one round for all
//! viewers within two seconds.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use porch_fn_grpc_client::conn::{Channel, Connection};
use porch_fn_proto::shard::DescribeRequest;
use porch_fn_proto::shard::shard_client::ShardClient;
use porch_fn_ring::Identity;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::Code;

use crate::answers::{Answer, Answers};

/// How long a round is good for.
const HOLDS: Duration = Duration::from_secs(2);
/// How long a runner may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a round may take. Runners that have not been asked by then count as silent.
const ROUND_TIMEOUT: Duration = Duration::from_secs(4);
/// Runners asked at once.
const AT_ONCE: usize = 16;
/// Largest answer in bytes.
const MAX_ANSWER: usize = 1024 * 1024;

/// Asks, and remembers for a moment.
#[derive(Debug, Default)]
pub(crate) struct Asker {
    /// Held during a round: viewers that come meanwhile wait for it.
    last: Mutex<Option<(Instant, Arc<Answers>)>>,
}

impl Asker {
    /// The answers of `runners`, as of two seconds ago at most.
    pub(crate) async fn ask(&self, runners: Vec<(Identity, Arc<Connection>)>) -> Arc<Answers> {
        let mut last = self.last.lock().await;
        if let Some((at, answers)) = &*last
            && at.elapsed() < HOLDS
        {
            return Arc::clone(answers);
        }
        let answers = Arc::new(round(runners).await);
        *last = Some((Instant::now(), Arc::clone(&answers)));
        answers
    }
}

async fn round(runners: Vec<(Identity, Arc<Connection>)>) -> Answers {
    let until = Instant::now() + ROUND_TIMEOUT;
    let asked = runners.into_iter().map(async |(runner, connection)| {
        let answer = timeout(ANSWER_TIMEOUT, describe(&runner, &connection)).await;
        (runner, answer.unwrap_or(Answer::Silent))
    });
    let mut asked = stream::iter(asked).buffer_unordered(AT_ONCE);
    let mut answers = Answers::default();
    while let Ok(Some((runner, answer))) = timeout_at(until, asked.next()).await {
        answers.add(runner.as_str(), answer);
    }
    answers
}

/// Asks on the connection that calls use. The outcome does not count for the runner's health.
async fn describe(runner: &Identity, connection: &Connection) -> Answer {
    let Ok(sender) = connection.sender().await else { return Answer::Silent };
    let client = ShardClient::with_origin(Channel(sender), connection.origin().clone());
    match client.max_decoding_message_size(MAX_ANSWER).describe(DescribeRequest {}).await {
        Ok(response) => Answer::Report(Box::new(response.into_inner())),
        Err(status) if status.code() == Code::Unimplemented => Answer::Older,
        Err(status) => {
            tracing::debug!(%runner, %status, "a runner did not report what it holds");
            Answer::Silent
        }
    }
}
