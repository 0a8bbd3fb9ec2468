//! One server that simulates thousands of runners or function pods. It listens on many addresses
//! and answers each call with its input. A gate can hold calls back.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use memchr::memmem;
use porch_fn_grpc::listen::Listener;
use porch_fn_grpc::{Call, Evaluate, Hop, Inflight, Options, Reply, Server, serve};
use porch_fn_lifecycle::drain;
use porch_fn_lifecycle::health::Health;
use porch_fn_proto::Chunks;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// A call whose input contains this text is answered when the gate is open.
pub const HELD: &str = "# held";

/// The server, and its gate.
struct Echo(watch::Receiver<bool>);

impl Evaluate for Echo {
    // A request also parses as a response: field 1 is the package in both messages.
    async fn evaluate(&self, call: Call) -> Reply {
        if memmem::find(&call.message.contiguous(), HELD.as_bytes()).is_some() {
            let _ = self.0.clone().wait_for(|is_open| *is_open).await;
        }
        Reply { framed: call.framed, ..Reply::evaluated(Chunks::default(), Bytes::new()) }
    }
}

/// Serves on all addresses of this machine, including all of 127/8, until the drain begins. Port 0
/// selects a free port. Returns the port.
pub async fn serve_echo(port: u16, drain: drain::Watch) -> u16 {
    serve_echo_with(port, drain, watch::channel(true).1).await
}

/// Like [`serve_echo`], with a gate for calls with [`HELD`].
pub async fn serve_echo_with(port: u16, drain: drain::Watch, gate: watch::Receiver<bool>) -> u16 {
    let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let listener = TcpListener::bind(address).await.expect("a free port");
    let port = listener.local_addr().expect("a bound address").port();
    let health = Health::new();
    health.set("", true);
    let options = Options {
        max_message: 8 * 1024 * 1024,
        max_headers: porch_fn_grpc::MAX_REQUEST_HEADERS + porch_fn_grpc::ADDED_HEADERS,
        default_timeout: Duration::from_mins(1),
        max_timeout: Duration::MAX,
        inflight: Inflight::new(usize::MAX / 4, Hop::Runner),
        report_load: true,
        observer: None,
        tracer: None,
    };
    let server = Server::new(Arc::new(Echo(gate)), &health, options);
    let handler = move |request| {
        let server = Arc::clone(&server);
        async move { server.handle(request).await }
    };
    let options = serve::Options::between_hops(60_000);
    tokio::spawn(serve::serve(Listener::Tcp(listener), None, options, handler, drain));
    port
}
