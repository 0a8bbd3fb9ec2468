//! The connections to pods: dialled when first wanted, closed when there was no call for a while.
//!
//! A runner asks each pod that it owns whether it serves, so it would hold a connection to all of
//! them for as long as they live.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use porch_fn_grpc_client::conn::Connection;
use porch_fn_pool::Uid;
use tokio::time::{Instant, sleep};

use super::{Connect, State, Store};
use crate::pods::kubernetes::names;
use crate::pods::probe::{CONNECTION, Located, NoPod};

/// A connection without a call for so long is closed.
const IDLE: Duration = Duration::from_mins(5);
/// How often idle connections are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The way to a pod.
#[derive(Debug)]
pub(super) struct Link {
    /// What is dialled, and the pod's own address: either may change.
    to: (IpAddr, IpAddr),
    /// Its first user dials it.
    connection: Arc<Connection>,
    /// Whether the connection follows one that was closed because it was idle.
    reopens: bool,
    /// When the connection was last handed out.
    used: Instant,
}

// === impl Store ===

impl Store {
    /// The connection for a call to a pod that serves.
    ///
    /// One that was lost is not dialled again: the pod may be gone, and its address another pod's.
    /// It has to be probed first. One that was closed here says no such thing and is reopened by
    /// the call, through the pod's Service; a pod's own address is not, since the watch may be
    /// late.
    pub(in crate::pods::kubernetes) fn connection(&self, uid: &Uid) -> Option<Arc<Connection>> {
        let mut state = self.state.lock();
        let Link { connection, reopens, .. } = self.link(&mut state, uid).ok()??;
        let may_dial = *reopens && self.connect != Connect::PodIp && !connection.is_lost();
        (connection.is_up() || may_dial).then(|| Arc::clone(connection))
    }

    /// The connection for a probe.
    pub(in crate::pods::kubernetes) fn locate(&self, uid: &Uid) -> Located {
        let mut state = self.state.lock();
        Ok(self.link(&mut state, uid)?.map(|link| Arc::clone(&link.connection)))
    }

    /// Ends the connection to the pod. The next one is dialled anew.
    pub(in crate::pods::kubernetes) fn cut(&self, uid: &Uid) {
        let link = self.state.lock().pods.get_mut(uid).and_then(|pod| pod.link.take());
        if let Some(link) = link {
            link.connection.close();
        }
    }

    /// Closes idle connections, for ever.
    pub(crate) async fn follow_idle(&self) {
        loop {
            sleep(LOOK_EVERY).await;
            self.close_idle();
        }
    }

    /// Replaces the connections that have had no call for [`IDLE`] by ones that are not dialled
    /// yet.
    fn close_idle(&self) {
        let mut idle = Vec::new();
        for pod in self.state.lock().pods.values_mut() {
            let Some(link) = &mut pod.link else { continue };
            // A call has it, or a probe.
            if Arc::strong_count(&link.connection) > 1 {
                link.used = Instant::now();
            // One that was lost stays: a call that comes has to learn it.
            } else if link.used.elapsed() >= IDLE
                && link.connection.is_up()
                && let Some(next) = self.make(&pod.seen.object_name, link.to.0)
            {
                link.reopens = true;
                idle.push(std::mem::replace(&mut link.connection, next));
            }
        }
        // Without the lock: each closes its socket.
        drop(idle);
    }

    /// The way to the pod, as made now or before; `None` while it has no address.
    fn link<'a>(&self, state: &'a mut State, uid: &Uid) -> Result<Option<&'a Link>, NoPod> {
        let State { pods, services, .. } = state;
        let pod = pods.get_mut(uid).ok_or(NoPod)?;
        // Without an IP of its own the pod cannot be behind its Service either.
        let Some(pod_ip) = pod.seen.ip else { return Ok(None) };
        let ip = match &self.connect {
            Connect::PodIp => Some(pod_ip),
            Connect::Service { .. } => {
                let service = services.get(&pod.seen.object_name).filter(|known| known.belongs_to(uid));
                service.and_then(|known| known.address(pod_ip))
            }
        };
        let Some(ip) = ip else { return Ok(None) };
        let to = (ip, pod_ip);
        let used = Instant::now();
        match &mut pod.link {
            Some(link) if link.to == to => link.used = used,
            link => {
                let connection = self.make(&pod.seen.object_name, ip);
                *link = connection.map(|connection| Link { to, connection, reopens: false, used });
            }
        }
        Ok(pod.link.as_ref())
    }

    fn make(&self, object_name: &str, ip: IpAddr) -> Option<Arc<Connection>> {
        let address = SocketAddr::new(ip, names::PORT).to_string();
        let authority = match &self.connect {
            Connect::PodIp => address.clone(),
            Connect::Service { suffix } => format!("{object_name}.{suffix}:{}", names::PORT),
        };
        // The domain in it was checked at the start.
        Connection::named(address, authority, CONNECTION).ok().map(Arc::new)
    }
}

#[cfg(test)]
mod tests;
