//! Images of Debian's registry in sandboxes of `porch-fn up`. Each answer must be equal to the
//! output of the same function when it is started directly on the same input.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use porch_fn_tests::foreign;
use porch_fn_tests::image::{Compressed, Image, Layer, push, push_index};
use porch_fn_tests::image_user::{ImageUser, Up};
use porch_fn_tests::process::{Sandbox, eventually};
use porch_fn_tests::registry::{Access, Registry};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::Code;

use super::{cat, function_image};

const ITEMS: &str = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n- apiVersion: v1\n  kind: \
                     ConfigMap\n  metadata:\n    name: a\n  data:\n    text: 'grüße'\n";
const NAMESPACE: &str = "functionConfig:\n  apiVersion: v1\n  kind: ConfigMap\n  metadata:\n    name: config\n  data:\n    \
                         namespace: shop\n";
const STARLARK: &str = "functionConfig:\n  apiVersion: fn.kpt.dev/v1alpha1\n  kind: StarlarkRun\n  metadata:\n    name: x\n  \
                        source: |\n    for item in ctx.resource_list[\"items\"]:\n      item[\"data\"][\"more\"] = \"1\"\n";
const REPLACEMENTS: &str = "functionConfig:\n  apiVersion: fn.kpt.dev/v1alpha1\n  kind: ApplyReplacements\n  metadata:\n    \
                            name: x\n  replacements:\n  - source:\n      kind: ConfigMap\n      name: a\n      fieldPath: \
                            metadata.name\n    targets:\n    - select:\n        kind: ConfigMap\n      fieldPaths:\n      - \
                            data.text\n";
const PYTHON: &str =
    "import json, sys\ntext = sys.stdin.read()\nassert json.loads('[1]') == [1]\nsys.stdout.write(text)\n";
const NODE: &str = "let text = '';\nprocess.stdin.on('data', (part) => (text += part));\n\
                    process.stdin.on('end', () => process.stdout.write(text));\n";

async fn registry(sandbox: &Sandbox) -> Registry<'_> {
    Registry::start(sandbox, "registry", Ipv4Addr::LOCALHOST.into(), Access::default()).await
}

/// The output of a program that is started directly.
async fn by_hand(sandbox: &Sandbox, program: &Path, input: &str) -> Vec<u8> {
    let ended = sandbox.run(program, [""; 0], input.as_bytes()).await;
    assert!(ended.status.success(), "{ended:?}");
    ended.stdout
}

#[tokio::test]
#[ignore = "needs docker-registry and tests/functions; tests/run runs it"]
async fn functions_of_all_kinds() {
    let sandbox = Sandbox::new();
    let registry = registry(&sandbox).await;
    let address = registry.address();
    let script = Layer::new().file("f.py", 0o644, PYTHON.as_bytes());
    let python =
        Image::new(&["python", "/f.py"]).layer_as(Layer::of_python(), Compressed::Zstd).layer(script);
    let node = Image::new(&["node", "/f.js"]).layer(Layer::of_programs(&["node"])).layer(Layer::new().file(
        "f.js",
        0o644,
        NODE.as_bytes(),
    ));
    push(address, "f/python:v1", &python).await;
    push(address, "f/node:v1", &node).await;
    let other = Image::new(&["/none"]).for_architecture("s390x").layer(Layer::new().folder("x", 0o755));
    let here = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    push_index(address, "f/index:v1", &[("s390x", &other), (here, &cat())]).await;
    let with_user =
        cat().layer(Layer::new().file("etc/passwd", 0o644, b"app:x:7:8::/:/bin/sh\n")).with("User", "app");
    push(address, "f/user:v1", &with_user).await;
    let mut expected: Vec<(&str, String, Vec<u8>)> =
        ["python", "node", "index", "user"].map(|name| (name, ITEMS.to_owned(), ITEMS.into())).into();
    let catalog =
        [("set-namespace", NAMESPACE), ("starlark", STARLARK), ("apply-replacements", REPLACEMENTS)];
    for (name, config) in catalog {
        let input = format!("{ITEMS}{config}");
        let program = foreign::function(name);
        push(address, &format!("f/{name}:v1"), &function_image(name)).await;
        let output = by_hand(&sandbox, &program, &input).await;
        expected.push((name, input, output));
    }
    for user in ImageUser::all() {
        let up = Up::start(&user, &[]).await;
        let client = up.client();
        for (name, input, expected) in &expected {
            let answer = client.call(&registry.image(&format!("f/{name}:v1")), input.clone()).await;
            assert_eq!(answer.code, Code::Ok, "{name}: {answer:?}");
            assert!(answer.resource_list == *expected, "{name}: {answer:?}");
        }
        let answer = client.call(&registry.image("f/none:v1"), ITEMS).await;
        assert_eq!(answer.code, Code::NotFound);
        assert!(answer.message.contains("was not found in its registry"), "{}", answer.message);
    }
}

#[tokio::test]
#[ignore = "needs docker-registry; tests/run runs it"]
async fn pods_are_replaced_when_a_tag_moves() {
    let sandbox = Sandbox::new();
    let registry = registry(&sandbox).await;
    let version = |text: &str| {
        let script = format!("cat; echo '# {text}'");
        let layer = Layer::of_programs(&["sh", "cat"]).script("function", &script);
        Image::new(&["/function"]).layer(layer)
    };
    push(registry.address(), "f/moving:v1", &version("first")).await;
    let user = ImageUser::own();
    let up = Up::start(&user, &["--", "--image-metadata-ttl=1s", "--scan-interval=1s"]).await;
    let image = registry.image("f/moving:v1");
    let (client, image) = (up.client(), image.as_str());
    let output = async || String::from_utf8(client.call(image, ITEMS).await.resource_list.to_vec()).unwrap();
    assert!(output().await.ends_with("# first\n"));
    push(registry.address(), "f/moving:v1", &version("second")).await;
    eventually("the new version runs", async || output().await.ends_with("# second\n").then_some(())).await;
}

#[tokio::test]
#[ignore = "needs docker-registry; tests/run runs it"]
async fn an_interrupted_layer_goes_on_and_a_mirror_is_asked_first() {
    let sandbox = Sandbox::new();
    let registry = registry(&sandbox).await;
    let large = vec![7; 8 << 20];
    let image = cat().layer_as(Layer::new().file("large", 0o644, &large), Compressed::Not);
    push(registry.address(), "mirrored/f:v1", &image).await;
    let (proxy, cut) = cutting_proxy(registry.address()).await;
    let user = ImageUser::own();
    let mirror = format!("--registry-mirror=example.com=http://{proxy}/mirrored");
    let pulled = user.run(&["images", "pull", "example.com/f:v1", &mirror], b"").await;
    assert!(pulled.status.success(), "{}", String::from_utf8_lossy(&pulled.stderr));
    assert!(cut.load(Ordering::Relaxed) > 0, "no connection was cut");
    let ran = user.run(&["run", "example.com/f:v1"], ITEMS.as_bytes()).await;
    assert!(ran.stdout == ITEMS.as_bytes());
}

#[tokio::test]
#[ignore = "needs docker-registry; tests/run runs it"]
async fn eight_processes_pull_an_image_at_once() {
    let sandbox = Sandbox::new();
    let registry = registry(&sandbox).await;
    let large = Layer::new().file("large", 0o644, &vec![7; 8 << 20]);
    push(registry.address(), "f/shared:v1", &cat().layer(large)).await;
    let image = registry.image("f/shared:v1");
    for user in ImageUser::all() {
        let args = ["run", &image];
        let calls = (0..8).map(|_| user.run(&args, ITEMS.as_bytes()));
        for ended in join_all(calls).await {
            assert!(ended.status.success() && ended.stdout == ITEMS.as_bytes(), "{ended:?}");
        }
        let tmp = std::fs::read_dir(user.store().join("tmp")).unwrap().count();
        assert_eq!(tmp, 0, "unfinished content");
    }
}

#[tokio::test]
#[ignore = "needs docker-registry and tests/clients; tests/run runs it"]
async fn kustomize_runs_functions_without_an_engine() {
    const FUNCTION: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: NAME\n  annotations:\n    \
                            config.kubernetes.io/function: |\n      container:\n        image: IMAGE\n";
    const RESOURCE: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n";
    const ALL: &str = "resources: [a.yaml]\ntransformers: [first.yaml, second.yaml]\n";
    let sandbox = Sandbox::new();
    let registry = registry(&sandbox).await;
    for (name, script) in [("add", "sed 's/name: a$/name: b/'"), ("fail", "echo no >&2; exit 7")] {
        let layer = Layer::of_programs(&["sh", "sed"]).script("function", script);
        push(registry.address(), &format!("f/{name}:v1"), &Image::new(&["/function"]).layer(layer)).await;
    }
    let kustomize = foreign::client("kustomize");
    for user in ImageUser::all() {
        let installed = user.run(&["shim", "install", "--as", "docker"], b"").await;
        assert!(installed.status.success(), "{installed:?}");
        let folder = user.sandbox().path("home/.local/share/porch-fn/bin");
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
        let build = async |second: &str| {
            let package = user.sandbox().path("home/package");
            let _ = std::fs::create_dir(&package);
            let function = |place: &str, name: &str| {
                let image = registry.image(&format!("f/{name}:v1"));
                (place.to_owned(), FUNCTION.replace("NAME", place).replace("IMAGE", &image))
            };
            let resource = ("a".to_owned(), RESOURCE.to_owned());
            let files = [function("first", "add"), function("second", second), resource];
            for (name, content) in files {
                std::fs::write(package.join(format!("{name}.yaml")), content).unwrap();
            }
            std::fs::write(package.join("kustomization.yaml"), ALL).unwrap();
            let mut command = user.command(&kustomize);
            command.args(["build", "--enable-alpha-plugins", "--as-current-user"]).arg(package);
            command.env("PATH", &path).env("USER", "test").output().await.unwrap()
        };
        let built = build("add").await;
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        assert_eq!(String::from_utf8_lossy(&built.stdout), RESOURCE.replace("name: a", "name: b"));
        let failed = build("fail").await;
        let stderr = String::from_utf8_lossy(&failed.stderr);
        assert!(stderr.starts_with("no\n") && stderr.contains("exit status 7"), "{stderr}");
    }
}

/// A proxy that ends each answer after 3 MiB.
async fn cutting_proxy(to: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    const LONGEST: u64 = 3 << 20;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (address, cut) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&cut);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let counted = Arc::clone(&counted);
            tokio::spawn(async move {
                let server = TcpStream::connect(to).await.unwrap();
                let (mut from_client, mut to_client) = client.into_split();
                let (from_server, mut to_server) = server.into_split();
                tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
                let sent = tokio::io::copy(&mut from_server.take(LONGEST), &mut to_client).await;
                counted.fetch_add(usize::from(sent.is_ok_and(|sent| sent == LONGEST)), Ordering::Relaxed);
                let _ = to_client.shutdown().await;
            });
        }
    });
    (address, cut)
}
