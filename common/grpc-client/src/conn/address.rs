//! Where a peer listens, and the byte stream to it: TCP, TLS or a Unix socket.

use std::sync::Arc;

use porch_fn_grpc::serve::Stream;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream};

use super::{ConnectError, Peer};

/// Connects to `host:port` or to a Unix socket, and completes the TLS handshake.
pub(super) async fn connect(peer: &Peer) -> Result<Box<dyn Stream>, ConnectError> {
    let failed = |error| ConnectError::Connect(Arc::new(error));
    if let Some(path) = &peer.unix {
        return Ok(Box::new(UnixStream::connect(path).await.map_err(failed)?));
    }
    let stream = TcpStream::connect(&*peer.address).await.map_err(failed)?;
    // The connection also works without these socket options, so errors are ignored.
    let _ = stream.set_nodelay(true);
    // Other systems of the command line, such as macOS, lack this option.
    #[cfg(target_os = "linux")]
    let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(peer.options.user_timeout));
    if let Some((idle, interval)) = peer.options.keepalive {
        let keepalive = TcpKeepalive::new().with_time(idle).with_interval(interval);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
    }
    let Some(connector) = &peer.tls else { return Ok(Box::new(stream)) };
    let host = peer.address.rsplit_once(':').map_or(&*peer.address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let secured = connector.connect(stream, host).await;
    Ok(Box::new(secured.map_err(|error| ConnectError::Tls(Arc::new(error)))?))
}
