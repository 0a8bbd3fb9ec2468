//! Commands of `porch-fn` with a runner or an API server.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::{Arc, Mutex};

use porch_fn_tests::client::Client;
use porch_fn_tests::process::{PATIENCE, Sandbox, binary, flag};
use porch_fn_tests::rights::objects;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::INPUT;

const GROUP: &str = "config.porch.kpt.dev";

fn kubeconfig(sandbox: &Sandbox, server: &str) -> PathBuf {
    let config = json!({
        "clusters": [{"name": "it", "cluster": {"server": server}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "me"}}],
        "current-context": "it",
    });
    sandbox.write("kubeconfig", config.to_string())
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_runner_accepts_the_exec_config_of_a_folder() {
    let sandbox = Sandbox::new();
    for name in ["set-labels", "mine", "theirs"] {
        sandbox.script(&format!("functions/{name}"), &format!("echo {name} >&2; exec cat"));
    }
    sandbox.write("functions/starlark", "no executable");
    let folder = sandbox.path("functions");
    let args = ["exec-config", folder.to_str().unwrap(), "--tag", "mine=v1.2.3"];
    let ended = sandbox.run(binary("porch-fn"), args, b"").await;
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.success(), "{stderr}");
    assert!(stderr.contains("its version is not known: theirs (--tag theirs=TAG)\n"), "{stderr}");
    assert!(!stderr.contains("starlark"), "{stderr}");

    let config = sandbox.write("exec.yaml", &ended.stdout);
    let flags = [flag("functions", folder), flag("config", config), "--pod-backend=none".into()];
    let runner = sandbox.runner(flags).await;
    let client = Client::new(runner.address());
    for (image, name) in [
        ("set-labels:v0.2.4", "set-labels\n"),
        ("ghcr.io/kptdev/krm-functions-catalog/set-labels:0.2.4", "set-labels\n"),
        ("mine:v1.2.3", "mine\n"),
    ] {
        let answer = client.call(image, INPUT).await;
        assert_eq!(answer.output(), INPUT);
        assert_eq!(answer.log(), name, "{image}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn requests_to_the_api_server_go_through_the_environments_proxy_unless_no_proxy_names_it() {
    let sandbox = Sandbox::new();
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let api = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let [proxy_address, api_address] = [&proxy, &api].map(|listener| listener.local_addr().unwrap());
    let kubeconfig = kubeconfig(&sandbox, &format!("https://{api_address}"));
    let connect = format!("CONNECT {api_address} ");
    for (no_proxy, asked, greeting) in
        [("127.0.0.1", &proxy, connect.as_bytes()), ("127.0.0.2", &api, b"\x16\x03".as_slice())]
    {
        let variables = [format!("HTTPS_PROXY=http://{proxy_address}"), format!("NO_PROXY={no_proxy}")];
        let program = [binary("porch-fn").into(), "shards".into(), flag("kubeconfig", &kubeconfig)];
        let words = variables.into_iter().map(OsString::from).chain(program);
        let (ended, greeted) =
            tokio::join!(sandbox.run("env", words, b""), first_bytes(asked, greeting.len()));
        assert_eq!(greeted, greeting, "NO_PROXY={no_proxy}: {ended:?}");
        assert!(!ended.status.success(), "nobody answered");
    }
}

/// The first bytes of the next client, whose connection is closed then.
async fn first_bytes(listener: &TcpListener, length: usize) -> Vec<u8> {
    let (mut stream, _) = timeout(PATIENCE, listener.accept()).await.expect("a client").unwrap();
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await.unwrap();
    bytes
}

/// An API server with the FunctionConfigs of a version of Porch.
struct Porch {
    sandbox: Sandbox,
    kubeconfig: PathBuf,
    objects: Arc<Mutex<Vec<Value>>>,
}

impl Porch {
    async fn start(version: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("packages/porch").join(version);
        let mut crd = objects(&folder.join("crds/config.porch.kpt.dev_functionconfigs.yaml")).remove(0);
        let mut schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take();
        schema["x-kubernetes-group-version-kind"] =
            json!([{"group": GROUP, "kind": "FunctionConfig", "version": "v1alpha1"}]);
        let schema =
            json!({"components": {"schemas": {"dev.kpt.porch.config.v1alpha1.FunctionConfig": schema}}});
        let shipped = Arc::new(Mutex::new(objects(&folder.join("23-function-configurations.yaml"))));
        let sandbox = Sandbox::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let kubeconfig = kubeconfig(&sandbox, &format!("http://{}", listener.local_addr().unwrap()));
        tokio::spawn(serve(listener, schema.to_string(), Arc::clone(&shipped)));
        Self { sandbox, kubeconfig, objects: shipped }
    }

    async fn porch_config(&self, args: &[&str]) -> Output {
        let kubeconfig = ["--kubeconfig", self.kubeconfig.to_str().unwrap()];
        let args = [&["porch-config"], args, &kubeconfig].concat();
        self.sandbox.run(binary("porch-fn"), args, b"").await
    }

    /// The printed objects, as `kubectl apply` reads them.
    fn read(&self, ended: &Output) -> Vec<Value> {
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        objects(&self.sandbox.write("printed.yaml", &ended.stdout))
    }
}

/// An object as `kubectl apply` leaves it, with its annotation.
fn applied(mut object: Value) -> Value {
    let text = object.to_string();
    object["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = text.into();
    object
}

/// Answers two requests: the schema, and the list.
async fn serve(listener: TcpListener, schema: String, objects: Arc<Mutex<Vec<Value>>>) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let path = path(&mut stream).await;
        let list_path = format!("/apis/{GROUP}/v1alpha1/namespaces/porch-fn-system/functionconfigs");
        let (code, body) = if path == format!("/openapi/v3/apis/{GROUP}/v1alpha1") {
            (200, schema.clone())
        } else if path.starts_with(&list_path) {
            let items = objects.lock().unwrap().clone();
            let list =
                json!({"kind": "FunctionConfigList", "metadata": {"resourceVersion": "1"}, "items": items});
            (200, list.to_string())
        } else {
            let status = json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"});
            (404, status.to_string())
        };
        let head =
            format!("HTTP/1.1 {code} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
        // A client that hangs up has what it needs.
        let _ = stream.write_all((head + &body).as_bytes()).await;
    }
}

async fn path(stream: &mut TcpStream) -> String {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(request).unwrap().split(' ').nth(1).unwrap().to_owned()
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn porch_config_migrates_the_next_porch_to_the_routers_and_rolls_back() {
    let porch = Porch::start("next").await;
    let shipped = porch.objects.lock().unwrap().clone();
    let ended = porch.porch_config(&["generate"]).await;
    let migrated = porch.read(&ended);
    assert_eq!(migrated.len(), shipped.len());
    for object in &migrated {
        assert_eq!(object["spec"]["binaryExecutor"], json!({"tags": ["*"], "path": "/porch-fn/none"}));
    }
    let stderr = String::from_utf8(ended.stderr).unwrap();
    for part in ["function-router.porch-system:9445", "--warm-up-pod-cache=false", "until they are restarted"]
    {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    let made = porch.read(&porch.porch_config(&["generate", "mine"]).await);
    assert_eq!(made.iter().map(|object| object["metadata"]["name"].clone()).collect::<Vec<_>>(), ["mine"]);

    *porch.objects.lock().unwrap() = migrated.into_iter().chain(made).map(applied).collect();
    let ended = porch.porch_config(&["remove"]).await;
    assert_eq!(porch.read(&ended), shipped);
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert!(stderr.contains("kubectl -n porch-fn-system delete functionconfigs mine"), "{stderr}");
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn porch_config_refuses_porch_1_6_which_needs_no_such_objects() {
    let porch = Porch::start("1.6").await;
    let ended = porch.porch_config(&["generate"]).await;
    assert!(!ended.status.success() && ended.stdout.is_empty());
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert!(stderr.contains("no version constraints (kptdev/porch#1186)"), "{stderr}");
}
