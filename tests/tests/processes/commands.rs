//! Commands of `porch-fn`: help and errors, and how they connect to the API server.

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

/// Runs `porch-fn` in a sandbox, and returns exit code, standard output and standard error.
async fn porch_fn(sandbox: &Sandbox, args: &[&str]) -> (i32, String, String) {
    let ended = sandbox.run(binary("porch-fn"), args, b"").await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (ended.status.code().unwrap(), text(&ended.stdout), text(&ended.stderr))
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn help_version_and_typing_errors_are_answered_like_by_kubectl() {
    let sandbox = Sandbox::new();
    for (args, expected) in [
        (&[][..], "Commands:"),
        (&["help"], "Exit codes:"),
        (&["help", "eval"], "porch-fn eval [DIR | -]"),
        (&["porch-config"], "generate"),
        (&["version"], concat!("porch-fn ", env!("CARGO_PKG_VERSION"), " (")),
        (&["--version"], concat!("porch-fn ", env!("CARGO_PKG_VERSION"), " (")),
    ] {
        let (code, stdout, stderr) = porch_fn(&sandbox, args).await;
        assert!(code == 0 && stdout.contains(expected) && stderr.is_empty(), "{args:?}: {stdout}{stderr}");
    }
    for (args, expected) in [
        (&["evla"][..], "a similar subcommand exists: 'eval'"),
        (&["completion"], "usage: porch-fn completion <SHELL>"),
        (&["config"], "usage: porch-fn config"),
        (&["shards", "--addres=x"], "a similar argument exists: '--address'"),
    ] {
        let (code, stdout, stderr) = porch_fn(&sandbox, args).await;
        assert!(code == 64 && stderr.contains(expected) && stdout.is_empty(), "{args:?}: {stderr}");
    }
    for server in ["porch-fn-router", "porch-fn-runner", "wrapper-server"] {
        let run =
            async |flag| String::from_utf8(sandbox.run(binary(server), [flag], b"").await.stdout).unwrap();
        let version = run("--version").await;
        assert!(version.starts_with(&format!("{server} {} (", env!("CARGO_PKG_VERSION"))), "{version}");
        let (short, long) = (run("-h").await, run("--help").await);
        assert!(short.lines().count() < long.lines().count(), "{server} -h is not shorter");
        for help in [short, long] {
            assert!(help.contains("\nLimits:\n") && !help.contains("[default: ]"), "{help}");
            assert!(!help.contains("[default: \"\"]"), "{help}");
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn doctor_names_the_server_that_it_cannot_reach_and_always_prints_json() {
    let sandbox = Sandbox::new();
    let dead = sandbox.kubeconfig("https://127.0.0.1:1").display().to_string();
    let missing = sandbox.path("missing.conf").display().to_string();
    for (kubeconfig, expected) in [(&dead, "(API server https://127.0.0.1:1)"), (&missing, "no cluster: ")] {
        let kubeconfig = format!("--kubeconfig={kubeconfig}");
        let (code, stdout, stderr) = porch_fn(&sandbox, &["doctor", &kubeconfig]).await;
        assert!(code == 2 && stdout.is_empty() && stderr.contains(expected), "{stderr}");
        assert!(!stderr.contains("'\""), "{stderr}");
        let (code, stdout, _) = porch_fn(&sandbox, &["doctor", &kubeconfig, "-o", "json"]).await;
        let findings: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        assert!(code == 2 && findings[0]["text"].as_str().unwrap().contains(expected), "{stdout}");
        let (code, _, stderr) = porch_fn(&sandbox, &["shards", &kubeconfig]).await;
        assert!(code == 2 && stderr.contains(expected), "{stderr}");
    }
}
