//! Forwards a local port to a port of a pod. `kube` opens one stream to the pod per connection, but
//! does not listen on a local port.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Portforwarder};
use parking_lot::Mutex;
use porch_fn_kubernetes::{RequestError, bounded};
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
    /// Opens the first stream immediately, so that a missing permission fails here.
    pub(super) async fn start(pods: Api<Pod>, pod: String, port: u16) -> Result<Self, Failure> {
        let listening = |error| Failure::unreachable(format!("cannot listen on a local port: {error}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(listening)?;
        let address = listener.local_addr().map_err(listening)?;
        let first = open(&pods, &pod, port).await.map_err(|error| {
            let fix = "check that you may get and create pods/portforward";
            Failure::unreachable(format!("cannot forward a port of pod {pod}: {}; {fix}", Causes(&error)))
        })?;
        let last_error = Arc::new(Mutex::new(None));
        let mut task = JoinSet::new();
        task.spawn(accept(listener, Some(first), pods, pod.clone(), port, Arc::clone(&last_error)));
        Ok(Self { address, pod, last_error, _task: task })
    }

    /// Returns the last error of the forwarding, if any. The client of the local port only sees a
    /// closed connection.
    pub(crate) fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }
}

async fn open(pods: &Api<Pod>, pod: &str, port: u16) -> Result<Portforwarder, RequestError> {
    bounded(pods.portforward(pod, &[port])).await
}

async fn accept(
    listener: TcpListener,
    mut first: Option<Portforwarder>,
    pods: Api<Pod>,
    pod: String,
    port: u16,
    last_error: Arc<Mutex<Option<String>>>,
) {
    let mut connections = JoinSet::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                *last_error.lock() = Some(format!("cannot accept a local connection: {error}"));
                break;
            }
        };
        let (opened, pods, pod) = (first.take(), pods.clone(), pod.clone());
        let last_error = Arc::clone(&last_error);
        connections.spawn(async move {
            let opened = match opened {
                Some(opened) => Ok(opened),
                None => open(&pods, &pod, port).await,
            };
            let error = match opened {
                Ok(forwarder) => copy(stream, forwarder, port).await,
                Err(error) => Some(Causes(&error).to_string()),
            };
            if error.is_some() {
                *last_error.lock() = error;
            }
        });
    }
    connections.join_all().await;
}

/// Copies the bytes of one connection until it ends. Returns the error that the pod reported.
async fn copy(mut stream: TcpStream, mut forwarder: Portforwarder, port: u16) -> Option<String> {
    let (mut to_pod, error) = (forwarder.take_stream(port)?, forwarder.take_error(port)?);
    let mut error = pin!(error.fuse());
    // `biased` polls the error first. Without an error, copying continues until both sides close.
    let found = tokio::select! {
        biased;
        Some(found) = &mut error => Some(found),
        _ = copy_bidirectional(&mut stream, &mut to_pod) => error.now_or_never().flatten(),
    };
    forwarder.abort();
    found
}
