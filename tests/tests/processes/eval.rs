//! `porch-fn eval` as a process: its arguments, outputs and exit codes.

use std::fs;
use std::process::Output;

use porch_fn_tests::process::{Sandbox, binary};

use super::INPUT;

/// Copies its input, and writes to standard error.
const COPY: &str = "example.com/functions/copy:v1";
/// Refuses the package with one result.
const REFUSE: &str = "example.com/functions/refuse:v1";
const RESULTS: &str = r#"echo '{"kind": "ResourceList", "items": [], "results": [{"message": "bad", "severity": "error"}]}'; echo no >&2; exit 1"#;
const A: &str = "apiVersion: v1\nkind: A\nmetadata:\n  name: a\n";
const B: &str = "apiVersion: v1\nkind: B\nmetadata:\n  name: b\n";

/// Runs `porch-fn eval` in the sandbox's directory.
async fn eval(sandbox: &Sandbox, args: &[&str], stdin: &str) -> Output {
    sandbox.run(binary("porch-fn"), [&["eval"], args].concat(), stdin.as_bytes()).await
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn wrong_arguments_and_input_have_exit_code_64_and_unreachable_servers_2() {
    let sandbox = Sandbox::new();
    for (args, stdin, code, expected) in [
        (&[][..], "", 64, "--image <IMAGE>; usage: porch-fn eval [DIR | -] --image IMAGE"),
        (
            &["-i", "f", ".", "owner=me"],
            "",
            64,
            "'owner=me' found; usage: porch-fn eval [DIR | -] --image IMAGE",
        ),
        (&["-i", "", "-"], INPUT, 64, "name the function's image"),
        (&["-i", "f", "--tag", "garbage!!", "-"], INPUT, 64, "not a semver constraint"),
        (&["-i", "f", "nowhere"], "", 64, "cannot list nowhere"),
        (&["-i", "f", "-"], "", 64, "standard input: there is no YAML document; pass a ResourceList"),
        (&["-i", "f", "-"], "kind: Foo\n", 64, "it has no apiVersion, so it is not a KRM resource"),
        (&["-i", "f", "-", "--match-kind", "A"], INPUT, 64, "--match-... needs"),
        (&["-i", "f", "-", "--address", "127.0.0.1:1"], INPUT, 2, "cannot reach 127.0.0.1:1"),
    ] {
        let ended = eval(&sandbox, args, stdin).await;
        let stderr = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(expected) && ended.stdout.is_empty(), "{args:?}: {stderr}");
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn a_package_is_evaluated_like_by_kpt() {
    let sandbox = Sandbox::new();
    let runner =
        sandbox.runner(sandbox.executables(&[(COPY, "echo note >&2; cat"), (REFUSE, RESULTS)])).await;
    fs::create_dir_all(sandbox.path("package")).unwrap();
    sandbox.write("package/a.yaml", A);
    sandbox.write("package/b.yaml", B);
    let (address, admin) = (runner.address().to_string(), runner.admin().to_string());
    let run = async |args: &[&str], stdin: &str| {
        eval(&sandbox, &[args, &["--address", &address]].concat(), stdin).await
    };

    let passed = run(&["package", "-i", COPY, "-o", "unwrap", "--match-kind", "B"], "").await;
    assert_eq!(text(&passed.stdout), format!("{A}---\n{B}"), "{}", text(&passed.stderr));
    let expected = format!("[RUNNING] \"{COPY}\" on 1 resource(s)\n[PASS] \"{COPY}\"\n  Stderr:\n    note\n");
    assert_eq!(text(&passed.stderr), expected);
    // Documents stay documents, and a ResourceList stays one.
    assert_eq!(text(&run(&["-", "-i", COPY], &format!("{A}---\n{B}")).await.stdout), format!("{A}---\n{B}"));
    assert_eq!(text(&run(&["--package", "-", "--image", COPY], INPUT).await.stdout), INPUT);
    let written = run(&["package", "-i", COPY, "-o", "new"], "").await;
    assert!(written.status.success(), "{}", text(&written.stderr));
    assert_eq!(fs::read_to_string(sandbox.path("new/a.yaml")).unwrap(), A);

    let failed = run(&["package", "-i", REFUSE, "--results-dir", "results"], "").await;
    assert_eq!(failed.status.code(), Some(1));
    let stderr = text(&failed.stderr);
    assert!(stderr.contains(&format!("[FAIL] \"{REFUSE}\"\n")), "{stderr}");
    assert!(stderr.contains("[error]: bad"), "{stderr}");
    let results = fs::read_to_string(sandbox.path("results/results.yaml")).unwrap();
    assert!(results.contains("kind: FunctionResultList") && results.contains("exitCode: 1"), "{results}");

    let unknown = run(&["package", "-i", "example.com/none:v1"], "").await;
    assert_eq!(unknown.status.code(), Some(1));
    assert!(text(&unknown.stderr).contains("not found; the runners have no such function"));
    let http = eval(&sandbox, &["package", "-i", COPY, "--address", &admin], "").await;
    assert_eq!(http.status.code(), Some(2), "{}", text(&http.stderr));
    assert!(text(&http.stderr).contains("is an HTTP port"), "{}", text(&http.stderr));
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn without_a_cluster_an_unknown_function_is_answered_with_those_that_there_are() {
    let sandbox = Sandbox::new();
    let runner = sandbox.runner(sandbox.local_pods(&[(COPY, "exec cat"), (REFUSE, RESULTS)])).await;
    let router = sandbox.router(&[&runner], &[]).await;
    let address = router.address().to_string();
    let unknown = eval(&sandbox, &["-i", "example.com/none:v1", "-", "--address", &address], INPUT).await;
    let expected = format!("not found; there are {COPY}, {REFUSE}; add others with --local-functions\n");
    assert!(text(&unknown.stderr).ends_with(&expected), "{}", text(&unknown.stderr));
}
