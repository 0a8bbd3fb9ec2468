//! The status page's data about real pods, which the runners report.

use std::ffi::OsString;

use porch_fn_status_page::Status;
use porch_fn_tests::client::Client;
use porch_fn_tests::process::{Sandbox, binary, eventually, flag};
use porch_fn_tests::stack::Stack;
use serde_json::Value;
use tonic::Code;

use super::INPUT;

const GOOD: &str = "good:v1";
const BAD: &str = "bad:v1";

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn the_page_lists_called_images_with_owner_pods_and_failures() {
    let functions = [(GOOD, "exec cat"), (BAD, "echo 'no such field: spec' >&2; exit 3")];
    let stack = Stack::start(3, &[], &functions).await;
    let client = stack.client();
    assert_eq!(client.call(GOOD, INPUT).await.output(), INPUT);
    assert_eq!(client.call(BAD, INPUT).await.code, Code::Internal);
    // The router caches a page for two seconds, and the start of the stack requested one.
    let page = eventually("both images have a pod", async || {
        let all_reported = |page: &Status| page.shards.iter().all(|shard| shard.told == "yes");
        Some(stack.status().await).filter(|page| page.totals.ready == 2 && all_reported(page))
    })
    .await;
    assert_eq!(page.images.len(), 2);
    for name in [GOOD, BAD] {
        let full = format!("ghcr.io/kptdev/krm-functions-catalog/{name}");
        let found = page.images.iter().find(|one| one.info.image == full).expect(name);
        // All three runners report the pod, and the page counts it once.
        assert_eq!((found.ready, found.starting, found.terminating, found.waiting), (1, 0, 0, 0));
        let owner = page.shards.iter().find(|shard| shard.info.address == found.info.owner).expect(name);
        assert!(owner.pods >= 1);
    }
    assert_eq!(page.shards.iter().map(|shard| shard.pods).sum::<u64>(), 2);
    assert!(page.shards.iter().all(|shard| !shard.version.is_empty()));
    assert!(page.shards.iter().all(|shard| shard.exec_hash == page.shards[0].exec_hash));
    assert_eq!(page.notes, Vec::<String>::new());
    let [failure] = page.failures.as_slice() else { panic!("one failure: {page:?}") };
    assert_eq!((&*failure.by, &*failure.code, failure.count), ("runner", "INTERNAL", 1));
    assert!(failure.text.contains("no such field: spec"), "{}", failure.text);
    assert!(!failure.text.contains("unable to evaluate"), "{}", failure.text);
    assert!(page.shards.iter().any(|shard| shard.info.address == failure.shard));
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn porch_fn_top_and_metrics_per_function_show_calls_and_queues() {
    const LOCAL: &str = "example.com/local:v1";
    let sandbox = Sandbox::new();
    let mut flags =
        sandbox.local_pods(&[("example.com/good:v1", "exec cat"), ("example.com/bad:v1", "exit 3")]);
    flags.extend(sandbox.executables(&[(LOCAL, "exec cat")]));
    flags.push("--metrics-per-function=2".into());
    let runner = sandbox.runner(&flags).await;
    let router = sandbox.router(&[&runner], &["--metrics-per-function=2"]).await;
    let client = Client::new(router.address());
    for image in ["example.com/good:v1", "example.com/bad:v1", LOCAL, LOCAL] {
        client.try_call(image, INPUT, None).await.unwrap();
    }
    let address = flag("address", router.admin().to_string());
    let top = async |args: &[&str]| {
        let words = ["top"].iter().chain(args).map(OsString::from).chain([address.clone()]);
        let printed = sandbox.run(binary("porch-fn"), words, b"").await;
        assert!(printed.status.success(), "{printed:?}");
        String::from_utf8(printed.stdout).unwrap()
    };
    // The router keeps its page for 2 s, and a busy runner may report late.
    let page = eventually("all calls and waits are reported", async || {
        let page: Value = serde_json::from_str(&top(&["-o", "json", "--limit=2"]).await).unwrap();
        let totals = &page["totals"]["numbers"];
        (totals["calls"] == 4 && !totals["minute"]["queue_p95_ms"].is_null()).then_some(page)
    })
    .await;
    assert_eq!(page["images"].as_array().unwrap().len(), 2);
    let first = &page["images"][0];
    assert_eq!((&first["image"], &first["numbers"]["calls"]), (&LOCAL.into(), &2.into()), "{page:#}");
    for quantile in ["p50_ms", "p95_ms", "p99_ms", "queue_p50_ms", "queue_p95_ms"] {
        assert!(first["numbers"]["minute"][quantile].is_number(), "{quantile}: {page:#}");
    }
    assert_eq!(page["totals"]["numbers"]["failed"], 1);
    let table = top(&["--sort-by=errors"]).await;
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[0].starts_with("IMAGE  ") && lines[1].starts_with("all  "), "{table}");
    assert!(lines[2].starts_with("example.com/bad:v1  ") && lines[2].contains(" 0.0 "), "{table}");

    let documented = include_str!("../../../docs/monitoring.md");
    for (server, family, labels) in [
        (&router, "porch_fn_router_function_calls_total", "image=\"other\",outcome=\"ok\""),
        (&router, "porch_fn_router_function_call_seconds_count", "image=\"other\""),
        (&runner, "porch_fn_runner_function_queue_wait_seconds_count", "image=\"other\""),
    ] {
        // The first two images have series of their own.
        assert_eq!(server.metric(&format!("{family}{{{labels}}}")).await, Some(2), "{family}");
        let name = family.trim_end_matches("_count");
        assert!(documented.contains(&format!("`{name}{{")), "{name} is not in docs/monitoring.md");
    }
}
