//! The connections to pods. The first call or probe dials a connection. A connection without calls
//! is closed after some time.
//!
//! A runner probes every pod that it owns, creates or needs. If it closed no idle connection, it
//! would hold a connection to each of them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use porch_fn_grpc_client::conn::Connection;
use porch_fn_pool::Uid;
use tokio::time::{Instant, sleep};

use super::{Connect, State, Store};
use crate::pods::kubernetes::names;
use crate::pods::probe::CONNECTION;

/// Idle timeout: a connection without calls is closed after this time.
const IDLE: Duration = Duration::from_mins(5);
/// How often connections are checked for idleness.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// The address of a pod and the connection to it.
#[derive(Debug)]
pub(super) struct Link {
    /// The dialled address, and the pod's own address. Either may change.
    to: (IpAddr, IpAddr),
    /// The first call or probe dials it.
    connection: Arc<Connection>,
    /// Whether the connection replaces one that was closed because it was idle.
    reopens: bool,
    /// When the connection was last used.
    used: Instant,
}

// === impl Store ===

impl Store {
    /// The connection for a call to a pod that has served.
    ///
    /// A lost connection is not dialled again: the pod may be gone, and another pod may have its
    /// address. A probe must succeed first. If the store closed the connection because it was idle,
    /// the call dials again, but only through the pod's Service. A call never dials the pod's own
    /// address again: because the watch may be late, another pod may have that address.
    pub(in crate::pods::kubernetes) fn connection(&self, uid: &Uid) -> Option<Arc<Connection>> {
        let mut state = self.state.lock();
        let Link { connection, reopens, .. } = self.link(&mut state, uid)?;
        let may_dial = *reopens && self.connect != Connect::PodIp && !connection.is_lost();
        (connection.is_up() || may_dial).then(|| Arc::clone(connection))
    }

    /// The connection for a probe.
    pub(in crate::pods::kubernetes) fn locate(&self, uid: &Uid) -> Option<Arc<Connection>> {
        let mut state = self.state.lock();
        self.link(&mut state, uid).map(|link| Arc::clone(&link.connection))
    }

    /// With [`Connect::Service`]: the connection for a probe of the pod's own address. A new pod
    /// answers there before its Service has an endpoint.
    pub(in crate::pods::kubernetes) fn locate_directly(&self, uid: &Uid) -> Option<Arc<Connection>> {
        let mut state = self.state.lock();
        let pod = state.pods.get_mut(uid)?;
        let ip = pod.seen.ip.or(pod.announced)?;
        if pod.direct.as_ref().is_none_or(|(known, _)| *known != ip) {
            pod.direct = self.make(&pod.seen.object_name, ip).map(|connection| (ip, connection));
        }
        pod.direct.as_ref().map(|(_, connection)| Arc::clone(connection))
    }

    /// Calls use the direct connection until it is lost or idle. Returns whether they can: the
    /// pod's address has not changed, and its Service is known.
    pub(in crate::pods::kubernetes) fn use_direct(&self, uid: &Uid) -> bool {
        let mut state = self.state.lock();
        let direct = state.pods.get_mut(uid).and_then(|pod| pod.direct.take());
        let Some((ip, connection)) = direct else { return false };
        if self.link(&mut state, uid).is_none() {
            return false;
        }
        match state.pods.get_mut(uid).and_then(|pod| pod.link.as_mut()) {
            Some(link) if link.to.1 == ip => {
                link.connection = connection;
                true
            }
            _ => false,
        }
    }

    /// Closes the connection to the pod. The next use dials a new one.
    pub(in crate::pods::kubernetes) fn cut(&self, uid: &Uid) {
        let link = self.state.lock().pods.get_mut(uid).and_then(|pod| pod.link.take());
        if let Some(link) = link {
            link.connection.close();
        }
    }

    /// Closes idle connections, forever.
    pub(crate) async fn follow_idle(self: Arc<Self>) {
        loop {
            sleep(CHECK_EVERY).await;
            self.close_idle();
        }
    }

    /// Replaces each connection that was not used for [`IDLE`] by a new one that is not dialled
    /// yet.
    fn close_idle(&self) {
        let mut idle = Vec::new();
        for pod in self.state.lock().pods.values_mut() {
            let Some(link) = &mut pod.link else { continue };
            // A call or a probe uses the connection.
            if Arc::strong_count(&link.connection) > 1 {
                link.used = Instant::now();
            // A lost connection stays, so that the next call notices the loss.
            } else if link.used.elapsed() >= IDLE
                && link.connection.is_up()
                && let Some(next) = self.make(&pod.seen.object_name, link.to.0)
            {
                link.reopens = true;
                idle.push(std::mem::replace(&mut link.connection, next));
            }
        }
        // Drops the connections without the lock, because each drop closes a socket.
        drop(idle);
    }

    /// Returns the link to the pod, and creates it if needed. Returns `None` if the pod is gone or
    /// has no address.
    fn link<'a>(&self, state: &'a mut State, uid: &Uid) -> Option<&'a Link> {
        let State { pods, services, .. } = state;
        let pod = pods.get_mut(uid)?;
        // A pod without its own IP is not reachable through its Service either.
        let pod_ip = pod.seen.ip.or(pod.announced)?;
        let ip = match &self.connect {
            Connect::PodIp => pod_ip,
            Connect::Service { .. } => {
                let service = services.get(&pod.seen.object_name).filter(|known| known.belongs_to(uid));
                service?.address(pod_ip)?
            }
        };
        let to = (ip, pod_ip);
        let used = Instant::now();
        match &mut pod.link {
            Some(link) if link.to == to => link.used = used,
            link => {
                let connection = self.make(&pod.seen.object_name, ip);
                *link = connection.map(|connection| Link { to, connection, reopens: false, used });
            }
        }
        pod.link.as_ref()
    }

    fn make(&self, object_name: &str, ip: IpAddr) -> Option<Arc<Connection>> {
        let address = SocketAddr::new(ip, names::PORT).to_string();
        let authority = match &self.connect {
            Connect::PodIp => address.clone(),
            Connect::Service { suffix } => format!("{object_name}.{suffix}:{}", names::PORT),
        };
        // This cannot fail: the domain in the name was checked at startup.
        Connection::named(address, authority, CONNECTION).ok().map(Arc::new)
    }
}

#[cfg(test)]
mod tests;
