//! The way to the API server, the same for all who ask it. Every request has a time limit, and none
//! is repeated here: whoever asks knows what an answer that never came means.

mod follow;
mod proxy;

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tokio::time::timeout;

pub use self::follow::{BETWEEN_WATCHES, Change, FollowError, Follower, Page, Restarts, Selection};
pub use self::proxy::choose_proxy;

/// How long one request may take, waiting for its turn included.
pub const TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one watch request lasts: a connection that died in silence is noticed about then.
pub const WATCH_SECONDS: u32 = 60;
/// A connection that is silent for so long is dead; a watch speaks up sooner, if only to end.
pub const READ_TIMEOUT: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 15);

/// Why there is no way to the API server.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// `--kubeconfig` cannot be used.
    #[error("--kubeconfig {path}: {source}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<KubeconfigError>,
    },
    /// Not in a cluster.
    #[error("there is no service account here ({0}): give --kubeconfig")]
    NotInCluster(#[source] Box<InClusterError>),
    /// The configuration makes no client.
    #[error("no client for the API server can be made: {0}")]
    Client(#[source] Box<kube::Error>),
}

/// Why a request has no answer that helps.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The API server, or the way to it, says no.
    #[error(transparent)]
    Kube(#[from] kube::Error),
    /// No answer in time.
    #[error("no answer from the API server within {}s", TIMEOUT.as_secs())]
    Timeout,
}

/// The way to the API server for `program`; `kubeconfig` is `--kubeconfig`, without which it is the
/// pod's own service account.
///
/// # Errors
/// [`ConnectError`], which the user can mend. Whether anybody answers is not asked.
pub async fn connect(kubeconfig: Option<&Path>, program: &str) -> Result<Client, ConnectError> {
    let mut config = match kubeconfig {
        None => Config::incluster().map_err(|error| ConnectError::NotInCluster(Box::new(error)))?,
        Some(path) => {
            let failed = |source| ConnectError::Kubeconfig { path: path.into(), source: Box::new(source) };
            let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
            let options = KubeConfigOptions::default();
            let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(failed)?;
            choose_proxy(&mut config);
            config
        }
    };
    set_user_agent(&mut config, program);
    client(config).map_err(|error| ConnectError::Client(Box::new(error)))
}

/// Has requests say that they come from `program` of this version: `porch-fn-runner/0.1.0`. Audit
/// logs and the API server's metrics name clients by it.
pub fn set_user_agent(config: &mut Config, program: &str) {
    let agent = format!("{program}/{}", env!("CARGO_PKG_VERSION"));
    // A program's name is visible ASCII; without the header requests work all the same.
    config.headers.extend(HeaderValue::try_from(agent).ok().map(|agent| (USER_AGENT, agent)));
}

/// A client that neither hangs on a dead API server nor repeats requests by itself.
///
/// # Errors
/// When the configuration's certificates cannot be used.
pub fn client(mut config: Config) -> Result<Client, kube::Error> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    config.default_retry = false;
    Client::try_from(config)
}

/// Waits for `request`, bounded.
///
/// # Errors
/// [`RequestError`]: its own, or that it took too long.
pub async fn bounded<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, RequestError> {
    match timeout(TIMEOUT, request).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(RequestError::Timeout),
    }
}

// === impl RequestError ===

impl RequestError {
    /// The status code of the answer, if there was one.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Kube(kube::Error::Api(status)) => Some(status.code),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_kubeconfig_that_cannot_be_read_is_named() {
        let error = connect(Some(Path::new("/no/such/file")), "porch-fn").await.err().unwrap().to_string();
        assert!(error.starts_with("--kubeconfig /no/such/file: "), "{error}");
    }

    #[tokio::test]
    async fn requests_say_which_program_sends_them() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
             clusters: [{{name: a, cluster: {{server: 'http://{address}'}}}}]\n\
             contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\nusers: [{{name: a, user: {{}}}}]\n"
        );
        std::fs::write(&path, kubeconfig).unwrap();
        let client = connect(Some(&path), "porch-fn-runner").await.unwrap();
        let asking = tokio::spawn(async move { client.apiserver_version().await });
        let (mut stream, _) = server.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
        }
        asking.abort();
        let request = String::from_utf8(request).unwrap().to_lowercase();
        let expected = format!("\r\nuser-agent: porch-fn-runner/{}\r\n", env!("CARGO_PKG_VERSION"));
        assert!(request.contains(&expected), "{request}");
    }
}
