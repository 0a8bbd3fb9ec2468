//! `porch-fn exec-config`: a runner with what it prints runs the folder's executables.

use porch_fn_tests::client::Client;
use porch_fn_tests::process::{Sandbox, binary, flag};

const INPUT: &str = "kind: ResourceList\n";

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_runner_runs_what_is_printed_for_a_folder() {
    let sandbox = Sandbox::new();
    for name in ["set-labels", "mine", "theirs"] {
        sandbox.script(&format!("functions/{name}"), &format!("echo {name} >&2; exec cat"));
    }
    sandbox.write("functions/starlark", "no executable");
    let folder = sandbox.path("functions");
    let args = ["exec-config", folder.to_str().unwrap(), "--tag", "mine=v1.2.3"];
    let ended = sandbox.run(binary("porch-fn"), args, b"").await;
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.success(), "{said}");
    // A script leaves its draft beside it, which is one more that is not known.
    assert!(said.contains("its version is not known: theirs (--tag theirs=TAG)\n"), "{said}");
    assert!(!said.contains("starlark"), "{said}");

    let config = sandbox.write("exec.yaml", &ended.stdout);
    let flags = [flag("functions", folder), flag("config", config), "--pod-backend=none".into()];
    let runner = sandbox.server("porch-fn-runner", flags).await;
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
