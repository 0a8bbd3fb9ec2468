//! How `porch-fn` connects to the API server.

use std::ffi::OsString;

use porch_fn_tests::process::{PATIENCE, Sandbox, binary, flag};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::time::timeout;

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn porch_fn_connects_through_the_environments_proxy_unless_no_proxy_lists_the_server() {
    let sandbox = Sandbox::new();
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let api = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let [proxy_address, api_address] = [&proxy, &api].map(|listener| listener.local_addr().unwrap());
    let kubeconfig = sandbox.kubeconfig(&format!("https://{api_address}"));
    let connect = format!("CONNECT {api_address} ");
    for (no_proxy, listener, greeting) in
        [("127.0.0.1", &proxy, connect.as_bytes()), ("127.0.0.2", &api, b"\x16\x03".as_slice())]
    {
        let variables = [format!("HTTPS_PROXY=http://{proxy_address}"), format!("NO_PROXY={no_proxy}")];
        let program = [binary("porch-fn").into(), "shards".into(), flag("kubeconfig", &kubeconfig)];
        let words = variables.into_iter().map(OsString::from).chain(program);
        let (ended, greeted) =
            tokio::join!(sandbox.run("env", words, b""), first_bytes(listener, greeting.len()));
        assert_eq!(greeted, greeting, "NO_PROXY={no_proxy}: {ended:?}");
        assert!(!ended.status.success(), "the server sent no answer");
    }
}

/// Accepts the next client, returns its first bytes and closes the connection.
async fn first_bytes(listener: &TcpListener, length: usize) -> Vec<u8> {
    let (mut stream, _) = timeout(PATIENCE, listener.accept()).await.expect("a client").unwrap();
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await.unwrap();
    bytes
}
