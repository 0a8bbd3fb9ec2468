//! Asks pods for their health: the wrapper itself says when it serves, not the kubelet's second-grained view.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use porch_fn_pool::Uid;
use porch_fn_service::conn::{self, Channel, Connection};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tracing::Instrument;

/// How often a starting pod is asked for its health.
const INTERVAL: Duration = Duration::from_millis(15);
/// How long one answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// How long one dial may take while the pod is [`YOUNG`]: what was sent before a Service's rules were in place is
/// lost, and the kernel would repeat it only after a second.
const FIRST_DIALS: Duration = Duration::from_millis(100);
const YOUNG: Duration = Duration::from_secs(3);

/// How pods are dialled. No pings: a user's wrapper may be a grpc-go server, which hangs up on those who ping it.
pub(super) const CONNECTION: conn::Options = conn::Options {
    connect_timeout: Duration::from_secs(2),
    ping: None,
    user_timeout: Duration::from_secs(10),
};

/// Where a pod's wrapper is found.
pub(super) trait Locate {
    /// The connection to the pod's wrapper: `Ok(None)` when it has no address yet.
    fn locate(&self, uid: &Uid) -> Result<Option<Arc<Connection>>, NoPod>;
}

/// The pod does not exist (any more).
#[derive(Debug, Clone, Copy)]
pub(super) struct NoPod;

/// The probes under way, one per pod. Dropping them ends them.
#[derive(Debug, Default)]
pub(super) struct Probes {
    running: Mutex<Running>,
}

#[derive(Debug, Default)]
struct Running {
    tasks: JoinSet<()>,
    by_pod: HashMap<Uid, AbortHandle>,
}

impl Probes {
    /// Runs `probe` for the pod, instead of an earlier one.
    pub(super) fn start(&self, uid: Uid, probe: impl Future<Output = ()> + Send + 'static) {
        let mut running = self.running.lock();
        while running.tasks.try_join_next().is_some() {}
        running.by_pod.retain(|_, probe| !probe.is_finished());
        let span = tracing::debug_span!("probe", %uid);
        let handle = running.tasks.spawn(probe.instrument(span));
        if let Some(earlier) = running.by_pod.insert(uid, handle) {
            earlier.abort();
        }
    }

    /// Ends the pod's probe.
    pub(super) fn stop(&self, uid: &Uid) {
        if let Some(probe) = self.running.lock().by_pod.remove(uid) {
            probe.abort();
        }
    }
}

/// Asks again and again until the pod serves; `Err` when it is gone.
pub(super) async fn until_serving(pods: &impl Locate, uid: &Uid) -> Result<(), NoPod> {
    let mut first_dial = None;
    loop {
        if let Some(connection) = pods.locate(uid)? {
            let young = first_dial.get_or_insert_with(Instant::now).elapsed() < YOUNG;
            if serves(&connection, if young { FIRST_DIALS } else { ANSWER_TIMEOUT }).await {
                return Ok(());
            }
        }
        sleep(INTERVAL).await;
    }
}

/// Asks once.
pub(super) async fn serves(connection: &Connection, dial_timeout: Duration) -> bool {
    let Ok(Ok(sender)) = timeout(dial_timeout, connection.sender()).await else { return false };
    let mut client = HealthClient::with_origin(Channel(sender), connection.origin().clone());
    let answer = timeout(ANSWER_TIMEOUT, client.check(HealthCheckRequest::default())).await;
    matches!(answer, Ok(Ok(answer)) if answer.get_ref().status() == ServingStatus::Serving)
}
