//! Sends hints to the owners of images that will probably be called (see `predict`). A hint never
//! delays a call, and its failure is no failure of a call.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use porch_fn_grpc_client::conn::Channel;
use porch_fn_proto::shard::PrepareRequest;
use porch_fn_proto::shard::shard_client::ShardClient;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::health::HealthState;
use crate::metrics::Metrics;
use crate::predict::Target;
use crate::view::View;

/// Hints that wait to be sent. Further hints are dropped.
const MAX_WAITING: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(1);

/// The sending end.
pub(crate) type Hints = mpsc::Sender<Arc<Target>>;

/// The task that sends them.
pub(crate) struct SendHints {
    targets: mpsc::Receiver<Arc<Target>>,
    view: Arc<ArcSwap<View>>,
    metrics: Arc<Metrics>,
}

pub(crate) fn hints(view: Arc<ArcSwap<View>>, metrics: Arc<Metrics>) -> (Hints, SendHints) {
    let (sender, targets) = mpsc::channel(MAX_WAITING);
    (sender, SendHints { targets, view, metrics })
}

impl SendHints {
    /// Sends one hint after the other, until every sender is gone.
    pub(crate) async fn run(mut self) {
        while let Some(target) = self.targets.recv().await {
            let sent = timeout(TIMEOUT, self.send(&target)).await;
            let outcome = sent.unwrap_or("unanswered");
            self.metrics.record_hint(outcome);
            tracing::debug!(image = %target.key, outcome, "sent a hint to the owner of an image");
        }
    }

    async fn send(&self, target: &Target) -> &'static str {
        let owner = {
            let view = self.view.load();
            let node = view.ring.preference(&target.key).first().copied();
            node.and_then(|node| view.runners.get(usize::from(node))).cloned()
        };
        // A hint to another runner would start no pod: only the owner of the image does.
        let Some(owner) = owner.filter(|owner| owner.state() == HealthState::Healthy) else {
            return "no owner";
        };
        let Ok(sender) = owner.connection.sender().await else { return "unanswered" };
        let mut client = ShardClient::with_origin(Channel(sender), owner.connection.origin().clone());
        let request = PrepareRequest { image: target.image.clone(), tag: target.tag.clone() };
        match client.prepare(request).await {
            Ok(_) => "accepted",
            // A runner of an earlier version answers UNIMPLEMENTED.
            Err(_) => "refused",
        }
    }
}
