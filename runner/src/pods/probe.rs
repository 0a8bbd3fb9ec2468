//! Probes the wrapper-servers of pods for their health. The kubelet probes only once a second,
//! which is too slow.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use porch_fn_grpc_client::conn::{self, Channel, Connection, Sender};
use tokio::time::{Instant, sleep, timeout};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// How often a starting pod is probed.
pub(super) const INTERVAL: Duration = Duration::from_millis(15);
/// Time limit for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for the first dials. Packets sent before a Service's rules exist are lost, and the
/// kernel resends them only after a second.
const FIRST_DIAL_TIMEOUT: Duration = Duration::from_millis(50);
/// How long the time limit above applies, from the first dial.
const FIRST_DIALS: Duration = Duration::from_secs(3);
/// How long a probe may fail before the reason is logged.
const WARN_AFTER: Duration = Duration::from_secs(10);

/// Options of connections to pods. They have no pings: a user's wrapper may be a grpc-go server,
/// which closes connections that ping. With these times the kernel closes a connection after 11 s
/// of silence, at the third keepalive probe.
pub(super) const CONNECTION: conn::Options = conn::Options {
    connect_timeout: Duration::from_secs(2),
    ping: None,
    user_timeout: Duration::from_secs(10),
    keepalive: Some((Duration::from_secs(5), Duration::from_secs(3))),
};

/// Probes the pod repeatedly until it serves. `locate` returns `None` if the pod has no address or
/// does not exist; the probe then waits until the caller stops it.
pub(super) async fn until_serving(locate: impl Fn() -> Option<Arc<Connection>>) {
    let begin = Instant::now();
    let mut first_dial = None;
    let mut has_warned = false;
    loop {
        let obstacle = match locate() {
            Some(connection) => {
                let is_early = first_dial.get_or_insert_with(Instant::now).elapsed() < FIRST_DIALS;
                match check(&connection, if is_early { FIRST_DIAL_TIMEOUT } else { ANSWER_TIMEOUT }).await {
                    Ok(()) => return,
                    Err(obstacle) => obstacle,
                }
            }
            None => {
                "it has no address, or its Service has none: check the pod's events and its Service".into()
            }
        };
        if !has_warned && begin.elapsed() > WARN_AFTER {
            has_warned = true;
            tracing::warn!(error = %obstacle, "a function pod does not serve yet");
        }
        sleep(INTERVAL).await;
    }
}

/// Whether a pod that has served answers within this time. Any answer counts.
pub(super) async fn answers(connection: Option<Arc<Connection>>, within: Duration) -> bool {
    let Some(connection) = connection else { return false };
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
async fn check(connection: &Connection, dial_timeout: Duration) -> Result<(), String> {
    let dial = timeout(dial_timeout, connection.sender()).await;
    let sender = dial
        .map_err(|_| "no connection in time".to_owned())
        .and_then(|dialled| dialled.map_err(|error| error.to_string()));
    let sender = sender.map_err(|error| {
        format!(
            "its wrapper-server cannot be dialled ({error}): check NetworkPolicies and the Service's selector"
        )
    })?;
    let ask = timeout(ANSWER_TIMEOUT, client(connection, sender).check(HealthCheckRequest::default())).await;
    let error = match ask.as_ref().map(|answer| answer.as_ref().map(|answer| answer.get_ref().status())) {
        Ok(Ok(ServingStatus::Serving)) => return Ok(()),
        Ok(Ok(status)) => return Err(format!("its wrapper-server reports {status:?}")),
        Ok(Err(status)) => status.message(),
        Err(_) => "no answer in time",
    };
    Err(format!("its wrapper-server does not answer a health check ({error})"))
}
