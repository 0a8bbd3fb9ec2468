//! Asks the runners what they hold, when somebody looks at the status page: all in parallel, and one round for all who
//! look within two seconds.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::{StreamExt, stream};
use porch_fn_proto::shard::DescribeRequest;
use porch_fn_proto::shard::shard_client::ShardClient;
use porch_fn_service::conn::Channel;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::Code;

use super::gathered::{Gathered, Told};
use crate::shard::Shard;
use crate::view::View;
use crate::wellness::{Reason, Standing};

/// How long an answer is good.
const HOLDS: Duration = Duration::from_secs(2);
/// How long a runner may take.
const ANSWER: Duration = Duration::from_secs(1);
/// How long a round may take. Who has not been asked by then is as if it had not answered.
const ROUND: Duration = Duration::from_secs(4);
/// Runners asked at once.
const AT_ONCE: usize = 16;
/// Largest answer in bytes.
const MAX_ANSWER: usize = 1024 * 1024;

/// Asks, and remembers for a moment.
#[derive(Debug)]
pub(super) struct Asker {
    view: Arc<ArcSwap<View>>,
    /// Held during a round: who comes meanwhile waits for it.
    last: Mutex<Option<(Instant, Arc<Gathered>)>>,
}

impl Asker {
    /// Asks the runners of `view`.
    pub(super) fn new(view: Arc<ArcSwap<View>>) -> Self {
        Self { view, last: Mutex::default() }
    }

    /// What they say, as of two seconds ago at most.
    pub(super) async fn ask(&self) -> Arc<Gathered> {
        let mut last = self.last.lock().await;
        if let Some((at, gathered)) = &*last
            && at.elapsed() < HOLDS
        {
            return Arc::clone(gathered);
        }
        let gathered = Arc::new(round(&self.view.load_full()).await);
        *last = Some((Instant::now(), Arc::clone(&gathered)));
        gathered
    }
}

async fn round(view: &View) -> Gathered {
    let until = Instant::now() + ROUND;
    let mut asked = Vec::new();
    for shard in view.shards() {
        if !matches!(shard.standing(), Standing::Out(Reason::Unreachable | Reason::Unknown)) {
            asked.push(ask(Arc::clone(shard)));
        }
    }
    let mut answers = stream::iter(asked).buffer_unordered(AT_ONCE);
    let mut gathered = Gathered::default();
    while let Ok(Some((shard, told))) = timeout_at(until, answers.next()).await {
        gathered.add(shard.identity().as_str(), told);
    }
    gathered
}

async fn ask(shard: Arc<Shard>) -> (Arc<Shard>, Told) {
    let told = timeout(ANSWER, describe(&shard)).await.unwrap_or(Told::Silent);
    (shard, told)
}

/// On the connection that calls use. What comes of it says nothing of the runner's health.
async fn describe(shard: &Shard) -> Told {
    let connection = shard.connection();
    let Ok(sender) = connection.sender().await else { return Told::Silent };
    let client = ShardClient::with_origin(Channel(sender), connection.origin().clone());
    match client.max_decoding_message_size(MAX_ANSWER).describe(DescribeRequest {}).await {
        Ok(response) => Told::Answer(Box::new(response.into_inner())),
        Err(status) if status.code() == Code::Unimplemented => Told::Older,
        Err(status) => {
            tracing::debug!(shard = %shard.identity(), %status, "a runner did not say what it holds");
            Told::Silent
        }
    }
}
