//! The way of porch-fn to an API server that is, or is not, behind a proxy.

use std::fs;

use porch_fn_tests::process::{PATIENCE, Sandbox, binary};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::time::timeout;

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn the_environments_proxy_leads_to_the_api_server_unless_no_proxy_names_it() {
    let sandbox = Sandbox::new();
    let [proxy, api] = [listener("127.0.0.1:0").await, listener("127.0.0.2:0").await];
    let [proxy_address, api_address] = [&proxy, &api].map(|listener| listener.local_addr().unwrap());
    let kubeconfig = sandbox.path("kubeconfig");
    let server = json!({"name": "it", "cluster": {"server": format!("https://{api_address}")}});
    let context = json!({"name": "it", "context": {"cluster": "it", "user": "me"}});
    let users = [json!({"name": "me", "user": {}})];
    let config =
        json!({"clusters": [server], "contexts": [context], "users": users, "current-context": "it"});
    fs::write(&kubeconfig, config.to_string()).unwrap();

    let connect = format!("CONNECT {api_address} ");
    for (no_proxy, asked, greeting) in
        [("127.0.0.1", &proxy, connect.as_bytes()), ("127.0.0.2", &api, b"\x16\x03".as_slice())]
    {
        let variables = [format!("HTTPS_PROXY=http://{proxy_address}"), format!("NO_PROXY={no_proxy}")];
        let program = [binary("porch-fn").into_os_string(), "shards".into(), "--kubeconfig".into()];
        let words =
            variables.map(Into::into).into_iter().chain(program).chain([kubeconfig.clone().into_os_string()]);
        let (ended, greeted) =
            tokio::join!(sandbox.run("env", words, b""), first_bytes(asked, greeting.len()));
        assert_eq!(greeted, greeting, "NO_PROXY={no_proxy}: {ended:?}");
        assert!(!ended.status.success(), "nobody answered");
    }
}

async fn listener(address: &str) -> TcpListener {
    TcpListener::bind(address).await.unwrap()
}

/// What the next client says first; then it is hung up on.
async fn first_bytes(listener: &TcpListener, length: usize) -> Vec<u8> {
    let asked = timeout(PATIENCE, listener.accept()).await;
    let (mut stream, _) = asked.expect("somebody asks").unwrap();
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await.unwrap();
    bytes
}
