//! The backend of `tests/bench`: it answers each call with the call's own message, on each port
//! that it gets as an argument. It has little work of its own, so a benchmark measures the proxy
//! before it.

use porch_fn_lifecycle::drain;
use porch_fn_tests::echo::serve_echo;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (_signal, drain) = drain::channel();
    for port in std::env::args().skip(1) {
        serve_echo(port.parse().expect("a port"), drain.clone()).await;
    }
    std::future::pending::<()>().await;
}
