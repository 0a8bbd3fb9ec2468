//! The Kubernetes client, shared by all programs. Every request has a timeout. Requests are not
//! retried here, because only the caller knows how to handle a missing answer.

mod follow;
mod proxy;

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tokio::time::timeout;

pub use self::follow::{BETWEEN_WATCHES, Change, FollowError, Follower, Restarts};
pub use self::proxy::choose_proxy;

/// Timeout of one request, including the time in the client's queue.
pub const TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one watch request lasts, in seconds. If the connection is lost without an error, the
/// client notices it after [`READ_TIMEOUT`], which is slightly longer.
pub const WATCH_SECONDS: u32 = 60;
/// A connection on which nothing arrives for this long counts as lost. A watch receives something
/// sooner, at least its end.
pub const READ_TIMEOUT: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 15);

/// Why no client for the API server could be created.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// `--kubeconfig` cannot be used.
    #[error("--kubeconfig {path}: {source}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: Box<KubeconfigError>,
    },
    /// The process does not run in a cluster.
    #[error("this process has no service account ({0}); set --kubeconfig")]
    NotInCluster(#[source] Box<InClusterError>),
    /// The configuration is not valid for a client.
    #[error("cannot create a client for the API server: {0}")]
    Client(#[source] Box<kube::Error>),
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The API server or the connection to it returned an error.
    #[error(transparent)]
    Kube(#[from] kube::Error),
    /// No answer in time.
    #[error("no answer from the API server within {}s", TIMEOUT.as_secs())]
    Timeout,
}

/// Creates a client for the API server. `kubeconfig` is `--kubeconfig`; without it, the client uses
/// the pod's service account. `program` is the client's name.
///
/// # Errors
/// [`ConnectError`], which the user can fix. No request is sent, so an unreachable API server is
/// not noticed here.
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

/// Sets the user agent to `program` and this version, such as `porch-fn-runner/0.2.0`. Audit logs
/// and the API server's metrics use it as the client's name.
pub fn set_user_agent(config: &mut Config, program: &str) {
    let agent = format!("{program}/{}", env!("CARGO_PKG_VERSION"));
    // The name is visible ASCII, so this does not fail. Requests also work without the header.
    config.headers.extend(HeaderValue::try_from(agent).ok().map(|agent| (USER_AGENT, agent)));
}

/// A client that does not hang on an unreachable API server and does not retry requests.
///
/// # Errors
/// When the configuration's certificates are not valid.
pub fn client(mut config: Config) -> Result<Client, kube::Error> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    config.default_retry = false;
    Client::try_from(config)
}

/// Waits for `request` for at most [`TIMEOUT`].
///
/// # Errors
/// [`RequestError`]: the request's own error, or the timeout.
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
    async fn the_error_names_an_unreadable_kubeconfig() {
        let error = connect(Some(Path::new("/no/such/file")), "porch-fn").await.err().unwrap().to_string();
        assert!(error.starts_with("--kubeconfig /no/such/file: "), "{error}");
    }

    #[tokio::test]
    async fn requests_name_the_program_in_the_user_agent() {
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
