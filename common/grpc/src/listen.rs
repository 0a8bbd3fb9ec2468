//! Binds ports before anything else starts, so that port 0 works and a conflict is an early error.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;

/// Why a port could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; see {flag}")]
pub struct ListenError {
    address: SocketAddr,
    flag: &'static str,
    source: io::Error,
}

/// Listens on `address`. Without an address, listens on all IPv4 and IPv6 interfaces.
///
/// # Errors
/// When the port cannot be bound. The text names `flag`.
pub async fn listen(
    address: Option<IpAddr>,
    port: u16,
    flag: &'static str,
) -> Result<(TcpListener, SocketAddr), ListenError> {
    allow_open_files();
    match address {
        Some(address) => bind(SocketAddr::new(address, port), flag).await,
        // A dual-stack socket. If the kernel has no IPv6, IPv4 is used.
        None => match bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port), flag).await {
            Err(error) if error.source.kind() != io::ErrorKind::AddrInUse => {
                bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port), flag).await
            }
            bound => bound,
        },
    }
}

/// Raises the soft limit of open files to the hard limit, like Go's runtime. Each connection needs
/// one file, and on many systems the soft limit is 1,024.
pub fn allow_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, the server can hold fewer connections.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

async fn bind(address: SocketAddr, flag: &'static str) -> Result<(TcpListener, SocketAddr), ListenError> {
    let failed = |source| ListenError { address, flag, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_error_for_a_port_in_use_names_the_flag() {
        let (_held, address) = listen(None, 0, "--port").await.unwrap();
        assert!(address.ip().is_unspecified());
        let error = listen(None, address.port(), "--port").await.unwrap_err();
        assert!(error.to_string().ends_with("see --port"), "{error}");
    }
}
