//! `porch-fn porch-config` on an API server that has the FunctionConfigs of a version of Porch: what is printed leads
//! there, and back to what was there.

use std::path::PathBuf;
use std::process::Output;
use std::sync::{Arc, Mutex};

use porch_fn_tests::process::{Sandbox, binary};
use porch_fn_tests::rights::objects;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const GROUP: &str = "config.porch.kpt.dev";

/// An API server that has a schema and objects, and the way to it.
struct Porch {
    sandbox: Sandbox,
    kubeconfig: PathBuf,
    objects: Arc<Mutex<Vec<Value>>>,
}

impl Porch {
    async fn start(version: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("packages/porch").join(version);
        let mut crd = objects(&folder.join("crds/config.porch.kpt.dev_functionconfigs.yaml")).remove(0);
        let mut schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take();
        schema["x-kubernetes-group-version-kind"] =
            json!([{"group": GROUP, "kind": "FunctionConfig", "version": "v1alpha1"}]);
        let schema =
            json!({"components": {"schemas": {"dev.kpt.porch.config.v1alpha1.FunctionConfig": schema}}});
        let shipped = objects(&folder.join("23-function-configurations.yaml"));
        let sandbox = Sandbox::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let kept = Arc::new(Mutex::new(shipped));
        tokio::spawn(serve(listener, schema.to_string(), Arc::clone(&kept)));
        let server = json!({"name": "it", "cluster": {"server": format!("http://{address}")}});
        let context = json!({"name": "it", "context": {"cluster": "it", "user": "me"}});
        let users = [json!({"name": "me", "user": {}})];
        let config =
            json!({"clusters": [server], "contexts": [context], "users": users, "current-context": "it"});
        let kubeconfig = sandbox.write("kubeconfig", config.to_string());
        Self { sandbox, kubeconfig, objects: kept }
    }

    async fn porch_config(&self, args: &[&str]) -> Output {
        let way = ["--kubeconfig", self.kubeconfig.to_str().unwrap()];
        let args: Vec<_> = ["porch-config"].iter().chain(args).chain(&way).copied().collect();
        self.sandbox.run(binary("porch-fn"), args, b"").await
    }

    /// What is printed, as `kubectl apply` reads it.
    fn read(&self, ended: &Output) -> Vec<Value> {
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        objects(&self.sandbox.write("printed.yaml", &ended.stdout))
    }
}

/// An object as `kubectl apply` leaves it, with its note of what it has applied.
fn applied(mut object: Value) -> Value {
    let note = object.to_string();
    object["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = note.into();
    object
}

/// Answers two requests: the schema, and the list.
async fn serve(listener: TcpListener, schema: String, objects: Arc<Mutex<Vec<Value>>>) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let path = path(&mut stream).await;
        let (code, body) = if path == format!("/openapi/v3/apis/{GROUP}/v1alpha1") {
            (200, schema.clone())
        } else if path
            .starts_with(&format!("/apis/{GROUP}/v1alpha1/namespaces/porch-fn-system/functionconfigs"))
        {
            let items = objects.lock().unwrap().clone();
            let list =
                json!({"kind": "FunctionConfigList", "metadata": {"resourceVersion": "1"}, "items": items});
            (200, list.to_string())
        } else {
            (
                404,
                json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"}).to_string(),
            )
        };
        let head =
            format!("HTTP/1.1 {code} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
        // Whoever hangs up has what it wants.
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
async fn functions_of_the_next_porch_are_led_to_the_routers_and_back() {
    let porch = Porch::start("next").await;
    let shipped = porch.objects.lock().unwrap().clone();
    let ended = porch.porch_config(&["generate"]).await;
    let led = porch.read(&ended);
    assert_eq!(led.len(), shipped.len());
    for object in &led {
        assert_eq!(object["spec"]["binaryExecutor"], json!({"tags": ["*"], "path": "/porch-fn/none"}));
    }
    let said = String::from_utf8(ended.stderr).unwrap();
    for part in ["function-router.porch-system:9445", "--warm-up-pod-cache=false", "until they are restarted"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    let made = porch.read(&porch.porch_config(&["generate", "mine"]).await);
    assert_eq!(made.iter().map(|object| object["metadata"]["name"].clone()).collect::<Vec<_>>(), ["mine"]);

    *porch.objects.lock().unwrap() = led.into_iter().chain(made).map(applied).collect();
    let ended = porch.porch_config(&["remove"]).await;
    assert_eq!(porch.read(&ended), shipped);
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("kubectl -n porch-fn-system delete functionconfigs mine"), "{said}");
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn porch_1_6_is_refused_since_it_needs_no_such_objects() {
    let porch = Porch::start("1.6").await;
    let ended = porch.porch_config(&["generate"]).await;
    assert!(!ended.status.success() && ended.stdout.is_empty());
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("no version constraints (kptdev/porch#1186)"), "{said}");
}
