//! One port of a pod as a port of this machine.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Portforwarder};
use parking_lot::Mutex;
use porch_fn_service::kubernetes::{Causes, RequestError, bounded};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

use super::ClusterError;

/// Connections at once. One command makes one or two.
const MAX_CONNECTIONS: usize = 16;
/// After a connection that could not be taken. Most often files have run out, and the next fails as fast.
const PAUSE: Duration = Duration::from_millis(50);

/// Forwards until it is dropped.
pub(crate) struct Forward {
    /// Where this machine listens, and nobody else can.
    pub(crate) address: SocketAddr,
    /// The pod that it leads to.
    pub(crate) pod: String,
    trouble: Arc<Mutex<Option<String>>>,
    task: AbortHandle,
}

/// Where connections lead.
#[derive(Clone)]
struct Target {
    pods: Api<Pod>,
    pod: String,
    port: u16,
    trouble: Arc<Mutex<Option<String>>>,
}

// === impl Forward ===

impl Forward {
    /// Opens the first way at once, so that one that is forbidden is an error here.
    pub(super) async fn start(pods: Api<Pod>, pod: String, port: u16) -> Result<Self, ClusterError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(ClusterError::Listen)?;
        let address = listener.local_addr().map_err(ClusterError::Listen)?;
        let trouble = Arc::default();
        let target = Target { pods, pod: pod.clone(), port, trouble: Arc::clone(&trouble) };
        let first = target.open().await;
        let first = first.map_err(|source| ClusterError::Forward { pod: pod.clone(), source })?;
        let task = tokio::spawn(accept(listener, target, Some(first))).abort_handle();
        Ok(Self { address, pod, trouble, task })
    }

    /// What came in the way, if anything did: to whoever dials, all of it is a closed connection.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        // With it go the connections, which its JoinSet owns.
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, target: Target, mut first: Option<Portforwarder>) {
    let mut connections = JoinSet::new();
    loop {
        while connections.len() >= MAX_CONNECTIONS {
            connections.join_next().await;
        }
        let Some(stream) = taken(listener.accept().await, &target.trouble).await else { continue };
        let (opened, target) = (first.take(), target.clone());
        connections.spawn(async move { target.carry(stream, opened).await });
    }
}

async fn taken(
    accepted: io::Result<(TcpStream, SocketAddr)>,
    trouble: &Mutex<Option<String>>,
) -> Option<TcpStream> {
    match accepted {
        Ok((stream, _)) => Some(stream),
        Err(error) => {
            *trouble.lock() = Some(format!("no connection can be taken here: {error}"));
            sleep(PAUSE).await;
            None
        }
    }
}

// === impl Target ===

impl Target {
    async fn open(&self) -> Result<Portforwarder, RequestError> {
        bounded(self.pods.portforward(&self.pod, &[self.port])).await
    }

    /// Carries one connection to its end.
    async fn carry(&self, mut stream: TcpStream, opened: Option<Portforwarder>) {
        let opened = match opened {
            Some(opened) => Ok(opened),
            None => self.open().await,
        };
        let mut forwarder = match opened {
            Ok(forwarder) => forwarder,
            Err(error) => return self.note(Causes(&error).to_string()),
        };
        let (Some(mut way), Some(error)) =
            (forwarder.take_stream(self.port), forwarder.take_error(self.port))
        else {
            return;
        };
        let mut error = pin!(error.fuse());
        // Without an error, what is still on its way is carried to its end.
        let trouble = tokio::select! {
            biased;
            Some(trouble) = &mut error => Some(trouble),
            _ = copy_bidirectional(&mut stream, &mut way) => error.now_or_never().flatten(),
        };
        if let Some(trouble) = trouble {
            self.note(trouble);
        }
        forwarder.abort();
    }

    fn note(&self, trouble: String) {
        *self.trouble.lock() = Some(trouble);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_connection_that_cannot_be_taken_is_noted_and_waited_for() {
        let (start, trouble) = (Instant::now(), Mutex::new(None));
        let accepted = Err(io::Error::other("too many open files"));
        assert!(taken(accepted, &trouble).await.is_none());
        assert!(start.elapsed() >= PAUSE);
        let noted = "no connection can be taken here: too many open files";
        assert_eq!(trouble.into_inner().as_deref(), Some(noted));
    }
}
