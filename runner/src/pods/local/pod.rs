//! A pod of this machine, whatever it runs: a process, and what the process needs.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use porch_fn_grpc_client::conn::Connection;
use porch_fn_pool::{ImageContent, ImageKey, Reason};
use porch_fn_registry::Images;
use tokio::process::Child;
use tokio::sync::oneshot;
use tokio::time::{interval, timeout};
use tonic::async_trait;
use wrapper_server::go_exit_text;

use crate::pods::probe::CONNECTION;

/// How long a stopping pod may wait for its calls before it ends them.
pub(super) const GRACE: Duration = Duration::from_secs(10);
/// How long the pod may then take to end its functions and itself.
const LAST_GRACE: Duration = Duration::from_secs(2);
/// How often a pod is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A pod whose wrapper-server listens.
pub struct Pod {
    /// The process that ends with the pod.
    pub child: Child,
    /// Where the wrapper-server listens.
    pub place: Place,
    /// The content of its image, if the image has content.
    pub content: Option<ImageContent>,
    /// What else it consists of.
    pub control: Box<dyn Control>,
}

/// Where a pod's wrapper-server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A port of loopback.
    Tcp(SocketAddr),
    /// A socket.
    Unix(PathBuf),
}

/// What a pod consists of besides its process. Dropping this ends the pod, and the functions that it
/// runs.
pub trait Control: Send {
    /// Asks the pod to finish its calls and to end.
    fn terminate(&self);

    /// Is called now and then while the pod runs.
    fn look(&mut self) {}

    /// What a person can do about the end of the pod.
    fn advice(&self) -> String;
}

/// Starts pods of images that have no command on this machine. The runner knows nothing else of
/// sandboxes: `porch-fn up` brings them. The runner of a cluster may create pods there, so it runs no
/// image itself.
#[async_trait]
pub trait Sandboxes: fmt::Debug + Send + Sync {
    /// What the registries of the images report.
    fn registries(&self) -> Arc<Images>;

    /// Starts a pod. `args` are the wrapper-server's arguments. Gets the image before, unless it is
    /// here and its registry has reported no other content since. Calls `pulling` if that takes a pull.
    ///
    /// # Errors
    /// Why the pod cannot start.
    async fn start(&self, image: &ImageKey, args: Vec<String>, pulling: Pulling<'_>) -> Result<Pod, Reason>;
}

/// Is called before a pull.
pub type Pulling<'a> = &'a (dyn Fn() + Sync);

// === impl Pod ===

impl Pod {
    /// Waits for the end of the pod. Dropping the sender of `stopped` stops it, and the result is
    /// `None`. If it ends by itself, the result is the reason.
    pub(super) async fn run(mut self, stopped: &mut oneshot::Receiver<Infallible>) -> Option<Reason> {
        let mut look = interval(LOOK_EVERY);
        loop {
            tokio::select! {
                ended = self.child.wait() => return Some(exited(ended, &*self.control)),
                Err(_) = &mut *stopped => break,
                _ = look.tick() => self.control.look(),
            }
        }
        self.control.terminate();
        if timeout(GRACE + LAST_GRACE, self.child.wait()).await.is_err() {
            tracing::warn!("a local pod did not end and is killed");
            drop(self.control);
            let _ = self.child.kill().await;
        }
        None
    }
}

/// Why a pod has ended that was not stopped.
pub(super) fn exited(ended: std::io::Result<ExitStatus>, control: &dyn Control) -> Reason {
    let text = match ended {
        Ok(status) => format!("its process ended ({}); {}", go_exit_text(status), control.advice()),
        Err(error) => format!("the runner cannot wait for its process: {error}"),
    };
    Reason::new("exited", text)
}

// === impl Place ===

impl Place {
    /// Adds a connection, which the first call or probe dials. `None` cannot happen: any socket address
    /// is a valid address.
    pub(super) fn connect(self) -> Option<(Self, Arc<Connection>)> {
        let connection = match &self {
            Self::Tcp(address) => Connection::new(address.to_string(), CONNECTION, None).ok()?,
            Self::Unix(path) => Connection::unix(path.as_path(), CONNECTION),
        };
        Some((self, Arc::new(connection)))
    }
}
