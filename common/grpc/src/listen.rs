//! Binds ports before anything else starts, so that port 0 works and a conflict is an early error.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket, UnixListener};

/// How many connections may wait to be accepted, as with Go: Linux's default of
/// `net.core.somaxconn`, which also limits it. The caller of a connection above the limit tries
/// again only after a second.
const BACKLOG: u32 = 4096;

/// A socket that accepts connections.
#[derive(Debug)]
pub enum Listener {
    /// A port.
    Tcp(TcpListener),
    /// A socket in the file system. Only processes that can open it can connect.
    Unix(UnixListener),
}

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
pub fn listen(
    address: Option<IpAddr>,
    port: u16,
    flag: &'static str,
) -> Result<(TcpListener, SocketAddr), ListenError> {
    allow_open_files();
    let bind = |ip: IpAddr| bind(SocketAddr::new(ip, port), flag);
    // IPv6's address means a dual-stack socket. If the kernel has no IPv6, IPv4 is used.
    match bind(address.unwrap_or(Ipv6Addr::UNSPECIFIED.into())) {
        Err(error) if address.is_none() && error.source.kind() != ErrorKind::AddrInUse => {
            bind(Ipv4Addr::UNSPECIFIED.into())
        }
        bound => bound,
    }
}

/// Raises the soft limit of open files to the hard limit, like Go's runtime. Each connection needs
/// one file, and on many systems the soft limit is 1,024.
pub fn allow_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, the server can hold fewer connections.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn bind(address: SocketAddr, flag: &'static str) -> Result<(TcpListener, SocketAddr), ListenError> {
    let bound = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // Allows a restart while connections of the last process still close.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        // `TcpListener::bind` would let only 128 connections wait.
        let listener = socket.listen(BACKLOG)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    bound().map_err(|source| ListenError { address, flag, source })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::future::join_all;
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn the_error_for_a_port_in_use_names_the_flag() {
        let (_held, address) = listen(None, 0, "--port").unwrap();
        assert!(address.ip().is_unspecified());
        let error = listen(None, address.port(), "--port").unwrap_err();
        assert!(error.to_string().ends_with("see --port"), "{error}");
    }

    #[tokio::test]
    async fn a_burst_of_connections_waits_to_be_accepted() {
        let (_listener, address) = listen(Some(Ipv4Addr::LOCALHOST.into()), 0, "--port").unwrap();
        let waiting = join_all((0..300).map(|_| TcpStream::connect(address)));
        timeout(Duration::from_secs(10), waiting).await.expect("no connection is tried again");
    }
}
