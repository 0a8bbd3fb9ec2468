//! Starts pods from the template in Porch's documentation, with a foreign wrapper-server. The
//! runner's unit tests parse the same template. `alone::deploy` tests one with our wrapper-server.

use std::fs;

use porch_fn_tests::foreign;

use crate::rig::{CONNECTS, INPUT, Setup};

/// A ConfigMap whose `data` contains the pod template from Porch's documentation.
const DOCUMENTED: &str = include_str!("../../../../runner/config/src/template/documented.yaml");
const NAME: &str = "kpt-function-eval-pod-template";
const WRAPPER: &str = "docker.io/nephio/porch-wrapper-server:latest";

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_foreign_wrapper_server_works() {
    let server = foreign::client("echoserver");
    let setup = Setup::new().await;
    let image = wrapper_of(&setup, &server).await;
    // The foreign program accepts the flags of Porch's wrapper-server, but it listens on 127.0.0.1
    // by default.
    let command = "            - /wrapper-server-tools/wrapper-server\n";
    let with_args = format!("{command}          args: [--address, 0.0.0.0]\n");
    let text = DOCUMENTED.replace(WRAPPER, &image).replace(command, &with_args);
    assert!(text.contains("0.0.0.0"));
    setup.kubectl(&["apply", "-f", "-"], &text).await;
    for connect in CONNECTS {
        let connect = format!("--pod-connect={connect}");
        let runner = setup.runner_with(NAME, &[&setup.image], &[&connect]).await;
        let answer = runner.call(INPUT).await;
        assert_eq!(answer.output(), INPUT);
        assert!(answer.log().starts_with("image "), "the foreign program answers: {}", answer.log());
    }
    setup.pod().await;
}

/// Pushes a copy of our wrapper image in which `program` replaces the wrapper-server.
async fn wrapper_of(setup: &Setup, program: &std::path::Path) -> String {
    let file = setup.sandbox.write("layer/wrapper-server/wrapper-server", "");
    fs::copy(program, file).unwrap();
    let (root, layer) = (setup.sandbox.path("layer"), setup.sandbox.path("layer.tar"));
    let (root, layer) = (root.to_str().unwrap(), layer.to_str().unwrap());
    let image = format!("{}/{}:test", setup.cluster.registry(), setup.namespace.name());
    let base = setup.cluster.wrapper_image();
    for (program, args) in [
        ("tar", &["-C", root, "--owner=0", "--group=0", "-cf", layer, "."][..]),
        ("crane", &["append", "--insecure", "-b", &base, "-f", layer, "-t", &image]),
    ] {
        let ended = setup.sandbox.run(program, args, b"").await;
        assert!(ended.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&ended.stderr));
    }
    image
}
