//! Asks the wrapper-servers of pods for their health. The kubelet probes only once a second, which
//! is too slow.

use std::borrow::Cow;
use std::collections::HashMap;
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use porch_fn_grpc_client::conn::{self, Channel, Connection, Sender};
use porch_fn_lifecycle::tasks::pass_on_panic;
use porch_fn_pool::{PodName, Uid};
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
/// How long one dial may take while the pod is [`YOUNG`]: packets sent before a Service's rules
/// exist are lost, and the kernel resends them only after a second.
const FIRST_DIALS: Duration = Duration::from_millis(50);
const YOUNG: Duration = Duration::from_secs(3);

/// How long a probe may fail before the reason is logged.
const WARN_AFTER: Duration = Duration::from_secs(10);

/// How pods are dialled. No pings: a user's wrapper may be a grpc-go server, which closes
/// connections that ping. With these times the kernel closes a connection that has been silent for
/// 11 s, at the third keepalive probe.
pub(super) const CONNECTION: conn::Options = conn::Options {
    connect_timeout: Duration::from_secs(2),
    ping: None,
    user_timeout: Duration::from_secs(10),
    keepalive: Some((Duration::from_secs(5), Duration::from_secs(3))),
};

/// The connection to a pod's wrapper: `Ok(None)` when it has no address yet.
pub(super) type Located = Result<Option<Arc<Connection>>, NoPod>;

/// The pod does not exist (any more).
#[derive(Debug, Clone, Copy)]
pub(super) struct NoPod;

/// The running probes, one per pod. Dropping this ends them.
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
    pub(super) fn start(&self, uid: Uid, name: &PodName, probe: impl Future<Output = ()> + Send + 'static) {
        let mut running = self.running.lock();
        while let Some(ended) = running.tasks.try_join_next() {
            pass_on_panic(ended);
        }
        running.by_pod.retain(|_, probe| !probe.is_finished());
        let span = tracing::info_span!("probe", image = %name.image, slot = name.slot);
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

/// Probes the pod repeatedly until it serves. It also waits if the pod does not exist (any more):
/// the caller decides when to stop.
pub(super) async fn until_serving(locate: impl Fn() -> Located) {
    let begin = Instant::now();
    let mut first_dial = None;
    let mut has_warned = false;
    loop {
        let obstacle = match locate() {
            Ok(Some(connection)) => {
                let young = first_dial.get_or_insert_with(Instant::now).elapsed() < YOUNG;
                match check(&connection, if young { FIRST_DIALS } else { ANSWER_TIMEOUT }).await {
                    Ok(()) => return,
                    Err(obstacle) => obstacle,
                }
            }
            Ok(None) => {
                "it has no address, or its Service has none: look at the pod's events and at the Service"
                    .into()
            }
            Err(NoPod) => "the pod is not there".into(),
        };
        if !has_warned && begin.elapsed() > WARN_AFTER {
            has_warned = true;
            tracing::warn!(%obstacle, "a function pod does not serve yet");
        }
        sleep(INTERVAL).await;
    }
}

/// Whether a pod that has served answers within this time. Any answer counts.
pub(super) async fn answers(located: Located, within: Duration) -> bool {
    let Ok(Some(connection)) = located else { return false };
    let ask = async {
        let Ok(sender) = connection.sender().await else { return false };
        let answer = client(&connection, sender).check(HealthCheckRequest::default()).await;
        // A status without a cause came from the pod, so the pod answered.
        answer.err().is_none_or(|status| status.source().is_none())
    };
    timeout(within, ask).await.unwrap_or(false)
}

fn client(connection: &Connection, sender: Sender) -> HealthClient<Channel> {
    HealthClient::with_origin(Channel(sender), connection.origin().clone())
}

/// Probes once. The error is for the log.
async fn check(connection: &Connection, dial_timeout: Duration) -> Result<(), Cow<'static, str>> {
    let dial = timeout(dial_timeout, connection.sender()).await;
    let sender = dial
        .map_err(|_| "no connection in time".to_owned())
        .and_then(|dialled| dialled.map_err(|error| error.to_string()));
    let sender = sender.map_err(|error| {
        format!(
            "its wrapper-server cannot be dialled ({error}): look at NetworkPolicies and the Service's selector"
        )
    })?;
    let ask = timeout(ANSWER_TIMEOUT, client(connection, sender).check(HealthCheckRequest::default())).await;
    let error = match ask.as_ref().map(|answer| answer.as_ref().map(|answer| answer.get_ref().status())) {
        Ok(Ok(ServingStatus::Serving)) => return Ok(()),
        Ok(Ok(status)) => return Err(format!("its wrapper-server says that it is {status:?}").into()),
        Ok(Err(status)) => status.message(),
        Err(_) => "no answer in time",
    };
    Err(format!("its wrapper-server does not answer a health check ({error})").into())
}
