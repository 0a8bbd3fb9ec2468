//! Forwards a local port to a port of a pod. `kube` opens one stream to the pod per connection, but
//! does not listen on a local port.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Portforwarder};
use parking_lot::Mutex;
use porch_fn_kubernetes::bounded;
use porch_fn_telemetry::Causes;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::failure::Failure;

/// A port forward. It ends when this value is dropped.
pub(crate) struct Forward {
    /// The local listen address, on the loopback interface: other machines cannot connect.
    pub(crate) address: SocketAddr,
    /// Name of the pod that receives the connections.
    pub(crate) pod: String,
    last_error: Arc<Mutex<Option<String>>>,
    /// Accepts connections. Dropping it closes the listener and all connections.
    _task: JoinSet<()>,
}

// === impl Forward ===

impl Forward {
    /// Opens a stream immediately, so that a missing permission fails here.
    pub(super) async fn start(pods: Api<Pod>, pod: String, port: u16) -> Result<Self, Failure> {
        let listening = |error| Failure::unreachable(format!("cannot listen on a local port: {error}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(listening)?;
        let address = listener.local_addr().map_err(listening)?;
        let tried = open(&pods, &pod, port).await.map_err(|error| {
            let fix = "check that you may get and create pods/portforward";
            Failure::unreachable(format!("cannot forward a port of pod {pod}: {error}; {fix}"))
        })?;
        tried.abort();
        let last_error = Arc::<Mutex<Option<String>>>::default();
        let (of_task, to) = (Arc::clone(&last_error), pod.clone());
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (copied, last_error) = (copy(stream, pods.clone(), to.clone(), port), of_task.clone());
                connections.spawn(async move {
                    if let Err(error) = copied.await {
                        *last_error.lock() = Some(error);
                    }
                });
            }
            connections.join_all().await;
        });
        Ok(Self { address, pod, last_error, _task: task })
    }

    /// Returns the last error of the forwarding, if any. The client of the local port only sees a
    /// closed connection.
    pub(crate) fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }
}

async fn open(pods: &Api<Pod>, pod: &str, port: u16) -> Result<Portforwarder, String> {
    bounded(pods.portforward(pod, &[port])).await.map_err(|error| Causes(&error).to_string())
}

/// Copies the bytes of one connection until it ends, or the pod reports an error.
async fn copy(mut stream: TcpStream, pods: Api<Pod>, pod: String, port: u16) -> Result<(), String> {
    let mut forwarder = open(&pods, &pod, port).await?;
    let parts = (forwarder.take_stream(port), forwarder.take_error(port));
    let (Some(mut to_pod), Some(error)) = parts else { return Ok(()) };
    let mut error = pin!(error.fuse());
    // `biased` polls the error first. Without an error, copying continues until both sides close.
    let found = tokio::select! {
        biased;
        Some(found) = &mut error => Some(found),
        _ = copy_bidirectional(&mut stream, &mut to_pod) => error.now_or_never().flatten(),
    };
    forwarder.abort();
    found.map_or(Ok(()), Err)
}
