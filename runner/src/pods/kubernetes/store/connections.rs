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

use super::{Connect, KnownPod, State, Store};
use crate::pods::kubernetes::names;
use crate::pods::probe::{CONNECTION, Locate, NoPod};

/// A connection without a call for so long is closed.
const IDLE: Duration = Duration::from_mins(5);
/// How often idle connections are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Connections that are looked at under one lock, for which calls wait.
const AT_ONCE: usize = 256;

/// What was dialled, and the pod's own address: either may change.
type To = (IpAddr, IpAddr);

/// The way to a pod.
#[derive(Debug, Default)]
pub(super) enum Link {
    /// Never dialled, or given up.
    #[default]
    None,
    /// Made; its first user dials it.
    Made {
        to: To,
        connection: Arc<Connection>,
        /// It follows one that was closed because it was idle.
        reopens: bool,
    },
    /// It was up and idle, and was closed.
    Idle { to: To },
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
        let link = self.link(&mut state, uid).ok().flatten()?;
        let Link::Made { connection, reopens, .. } = link else { return None };
        let may_dial = *reopens && self.connect != Connect::PodIp && !connection.is_lost();
        (connection.is_up() || may_dial).then(|| Arc::clone(connection))
    }

    /// Ends the connection to the pod. The next one is dialled anew.
    pub(in crate::pods::kubernetes) fn cut(&self, uid: &Uid) {
        let link = self.state.lock().pods.get_mut(uid).map(|pod| std::mem::take(&mut pod.link));
        if let Some(Link::Made { connection, .. }) = link {
            connection.close();
        }
    }

    /// Closes idle connections, for ever.
    pub(in crate::pods::kubernetes) async fn follow_idle(&self) {
        loop {
            sleep(LOOK_EVERY).await;
            self.close_idle();
        }
    }

    /// Closes the connections that have had no call for [`IDLE`].
    fn close_idle(&self) {
        loop {
            // Dropped without the lock: each closes its socket.
            let idle = self.state.lock().take_idle();
            if idle.is_empty() {
                return;
            }
        }
    }

    /// The way to the pod, as made now or before; `None` while it has no address.
    fn link<'a>(&self, state: &'a mut State, uid: &Uid) -> Result<Option<&'a Link>, NoPod> {
        let State { pods, services, used, .. } = state;
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
        if !matches!(&pod.link, Link::Made { to: made, .. } if *made == to) {
            let Some(connection) = self.make(pod, ip) else { return Ok(None) };
            let reopens = matches!(pod.link, Link::Idle { to: closed } if closed == to);
            pod.link = Link::Made { to, connection: Arc::new(connection), reopens };
        }
        used.put(uid.clone(), Instant::now());
        Ok(Some(&pod.link))
    }

    fn make(&self, pod: &KnownPod, ip: IpAddr) -> Option<Connection> {
        let address = SocketAddr::new(ip, names::PORT).to_string();
        let authority = match &self.connect {
            Connect::PodIp => address.clone(),
            Connect::Service { suffix } => format!("{}.{suffix}:{}", pod.seen.object_name, names::PORT),
        };
        // The domain in it was checked at the start.
        Connection::named(address, authority, CONNECTION).ok()
    }
}

impl Locate for Store {
    fn locate(&self, uid: &Uid) -> Result<Option<Arc<Connection>>, NoPod> {
        let mut state = self.state.lock();
        Ok(match self.link(&mut state, uid)? {
            Some(Link::Made { connection, .. }) => Some(Arc::clone(connection)),
            Some(Link::None | Link::Idle { .. }) | None => None,
        })
    }
}

// === impl State ===

impl State {
    /// Takes out some of the connections that are idle for long enough; none when there are no
    /// more.
    fn take_idle(&mut self) -> Vec<Arc<Connection>> {
        let mut idle = Vec::new();
        for _ in 0..AT_ONCE {
            let due = self.used.peek_lru().filter(|(_, at)| at.elapsed() >= IDLE);
            let Some(uid) = due.map(|(uid, _)| uid.clone()) else { break };
            let Some(pod) = self.pods.get_mut(&uid) else {
                self.used.pop(&uid);
                continue;
            };
            match &pod.link {
                // A call has it, or a probe: it is looked at again when as much time has passed
                // once more.
                Link::Made { connection, .. } if Arc::strong_count(connection) > 1 => {
                    self.used.put(uid, Instant::now());
                }
                // One that was lost stays: a call that comes has to learn it.
                Link::Made { to, connection, .. } if connection.is_up() => {
                    idle.push(Arc::clone(connection));
                    pod.link = Link::Idle { to: *to };
                    self.used.pop(&uid);
                }
                Link::Made { .. } | Link::Idle { .. } | Link::None => {
                    self.used.pop(&uid);
                }
            }
        }
        idle
    }
}

#[cfg(test)]
mod tests;
