//! Keeps a target's set of servers up to date.
//!
//! One task per target queries its source and publishes complete sets through a `watch` channel. A
//! slow reader gets only the newest set. A DNS name is looked up again every few seconds; a Service
//! is watched.

#[cfg(test)]
pub(crate) mod tests;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hickory_resolver::net::NetError;
use porch_fn_kubernetes::{ConnectError, connect};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::dns::{DnsResolver, Lookup, no_answer};
use crate::kubernetes;
use crate::publish::{Publisher, Snapshot, sorted};
use crate::target::{HostPort, Target};

/// Timeout of one lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two lookups of a name. The TTL is ignored: cluster DNS often sets 30 s, which is
/// too long for a new runner to wait for calls.
const LOOKUP_PAUSE: Duration = Duration::from_secs(5);
/// Pause while the name has no addresses. It is shorter, because no call can be served then.
const EMPTY_PAUSE: Duration = Duration::from_secs(1);

/// Why discovery cannot start. The user can fix it.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// hickory refused the configuration.
    #[error("cannot set up DNS from /etc/resolv.conf: {0}; correct that file or use static:///HOST:PORT")]
    Dns(#[from] NetError),
    /// There is no usable configuration for the API server.
    #[error("{target} needs the API server: {source}")]
    Kubernetes {
        /// The target.
        target: String,
        /// The reason.
        source: ConnectError,
    },
}

/// Watches a target. A DNS name is looked up at the target's DNS server, or at the system's. A
/// Service is watched at the API server of `kubeconfig`, or else of the pod's service account.
/// `program` is the client's name in the API server's logs.
///
/// Returns the task, which the caller must spawn, and the snapshots. The receiver is notified of
/// the first answer, even of an empty one, and then of each change of the set. The set of a
/// static list or an IP address is complete from the start and never changes.
///
/// The task ends when the last receiver is dropped.
///
/// # Errors
/// [`SetupError`]. A server that does not answer is not an error here.
pub async fn watch(
    target: Target,
    kubeconfig: Option<&Path>,
    program: &str,
) -> Result<(impl Future<Output = ()> + Send + use<>, watch::Receiver<Snapshot>), SetupError> {
    let (sender, receiver) = watch::channel(Snapshot::default());
    let sender = Arc::new(sender);
    let publisher = Publisher::new(target.to_string(), Arc::clone(&sender));
    let fixed = |hosts: &[HostPort]| -> BoxFuture<'static, ()> {
        let endpoints = sorted(hosts.iter().map(ToString::to_string));
        sender.send_replace(Snapshot { is_answered: true, endpoints, last_error: None });
        std::future::pending().boxed()
    };
    let updates = match target {
        Target::Static(hosts) => fixed(&hosts),
        Target::Dns { name, .. } if name.ip().is_some() => fixed(&[name]),
        Target::Dns { name, server } => {
            let resolver = DnsResolver::new(server)?;
            let mut addresses = Addresses { name, publisher, known: [Vec::new(), Vec::new()] };
            let run = async move {
                loop {
                    let host = addresses.name.host.clone();
                    sleep(addresses.update(resolver.lookup(&host)).await).await;
                }
            };
            run.boxed()
        }
        Target::Kubernetes { namespace, service, port } => {
            let failed = |source| SetupError::Kubernetes { target: publisher.label.clone(), source };
            let client = connect(kubeconfig, program).await.map_err(failed)?;
            kubernetes::follow(namespace, service, port, client, publisher).boxed()
        }
    };
    let task = async move {
        tokio::select! {
            () = sender.closed() => {}
            () = updates => {}
        }
    };
    Ok((task, receiver))
}

/// The addresses of a name.
struct Addresses {
    name: HostPort,
    publisher: Publisher,
    /// IPv4 and IPv6 addresses. If the lookup of one family fails, its last addresses stay.
    known: [Vec<IpAddr>; 2],
}

impl Addresses {
    /// Runs a lookup and applies its answer. Returns the time until the next lookup.
    async fn update(&mut self, lookup: impl Future<Output = Result<Lookup, String>>) -> Duration {
        let HostPort { host, port } = &self.name;
        let answer = timeout(LOOKUP_TIMEOUT, lookup).await.unwrap_or_else(|_| Err(no_answer(host)));
        let lookup = match answer {
            Ok(lookup) => lookup,
            Err(error) => return self.publisher.record_failure(&error),
        };
        for (known, answered) in self.known.iter_mut().zip(lookup.addresses) {
            *known = answered.unwrap_or_else(|| std::mem::take(known));
        }
        let endpoint = |address: &IpAddr| SocketAddr::new(*address, *port).to_string();
        let endpoints = sorted(self.known.iter().flatten().map(endpoint));
        let hint = (!lookup.name_exists)
            .then(|| format!("the name {host:?} does not exist in DNS; correct the target").into());
        let pause = if endpoints.is_empty() { EMPTY_PAUSE } else { LOOKUP_PAUSE };
        self.publisher.record_success(hint);
        self.publisher.publish(endpoints);
        pause
    }
}
