//! The status page's data about real pods, which the runners report.

use porch_fn_status_page::Status;
use porch_fn_tests::process::eventually;
use porch_fn_tests::stack::Stack;
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
