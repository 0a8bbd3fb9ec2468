//! A registry that is away: what is warm or was seen goes on, what is new is told why.

use kube::ResourceExt;
use kube::api::DeleteParams;
use porch_fn_tests::load::Load;
use tokio::time::sleep;

use super::*;

const LASTING: Duration = Duration::from_secs(10);
const UNREACHABLE: &str = "the image's registry cannot be reached: check it, and the runner's way to it (proxy, DNS, \
                           firewall), and retry; the runner's log has the cause";
/// What a question to a registry may take, whatever becomes of it.
const LOOKUP: Duration = Duration::from_secs(20);

/// In which way it is away.
#[derive(Debug, Clone, Copy)]
enum Away {
    /// Connections are refused.
    Killed,
    /// Connections are taken and nothing is answered.
    Stopped,
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_registry_that_refuses_connections_costs_no_call_of_an_image_seen_before() {
    outage(Away::Killed, LASTING).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_registry_that_hangs_costs_no_call_of_an_image_seen_before() {
    outage(Away::Stopped, LASTING).await;
}

async fn outage(away: Away, lasting: Duration) {
    let Some(stand) = Stand::start().await else { return };
    let mut place = stand.registry("open", Access::default()).await;
    let (warm, seen, new) = (
        place.push("warm:v1", "word").await,
        place.push("seen:v1", "word").await,
        place.push("new:v1", "word").await,
    );
    // So short that everything known is old during the outage.
    let flags = [place.insecure(), "--image-metadata-ttl=1s".to_owned(), "--scan-interval=1s".to_owned()];
    let (runner, client) = stand.runner(&flags).await;
    for image in [&warm, &seen] {
        assert_eq!(client.call(image, INPUT).await.output(), INPUT);
    }
    let load = Load::start(runner.address(), 4, std::slice::from_ref(&warm));
    let start = Instant::now();
    match away {
        Away::Killed => place.registry.kill().await,
        Away::Stopped => place.registry.stop(),
    }

    let (answer, told) = timed(&client, &new).await;
    answer.fails(Code::Unknown, &failed(&new, UNREACHABLE));
    let bound = match away {
        Away::Killed => Duration::from_secs(1),
        // Less than two questions.
        Away::Stopped => LOOKUP + Duration::from_secs(10),
    };
    assert!(told < bound, "{told:?}");

    let (mut made, mut slowest) = (0, Duration::ZERO);
    while made < 2 || start.elapsed() < lasting {
        remove(&stand, &seen).await;
        let (answer, took) = timed(&client, &seen).await;
        assert_eq!(answer.output(), INPUT);
        (made, slowest) = (made + 1, slowest.max(took));
        sleep(Duration::from_millis(500)).await;
    }
    let before = load.answered();
    match away {
        Away::Killed => place.registry.restart().await,
        Away::Stopped => place.registry.go_on(),
    }
    let back = Instant::now();
    let recovered = loop {
        let answer = client.call(&new, INPUT).await;
        if answer.code == Code::Ok {
            break back.elapsed();
        }
        answer.fails(Code::Unknown, &failed(&new, UNREACHABLE));
        assert!(back.elapsed() < Duration::from_secs(30), "it is not asked again");
        sleep(Duration::from_millis(50)).await;
    };
    let report = load.stop().await;
    figure(&format!(
        "registry {away:?} for {:.0?}: {before} warm calls, {:?} failed, slowest {:.1?}; {made} pods of an image seen before, \
         slowest call {slowest:.1?}; a new image told after {told:.1?}, and answered {recovered:.1?} after the end",
        back - start,
        report.failed,
        report.slowest,
    ));
    report.all_succeeded();
}

/// What a pod was made from is written on it.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_runner_that_starts_knows_the_images_of_the_pods_there_are() {
    let Some(stand) = Stand::start().await else { return };
    let mut place = stand.registry("open", Access::default()).await;
    let image = place.push("seen:v1", "word").await;
    let flags = [place.insecure()];
    let (runner, client) = stand.runner(&flags).await;
    assert_eq!(client.call(&image, INPUT).await.output(), INPUT);
    drop((runner, client));
    place.registry.kill().await;
    let (_runner, client) = stand.runner(&flags).await;
    assert_eq!(client.call(&image, INPUT).await.output(), INPUT, "by the pod that runs");
    remove(&stand, &image).await;
    assert_eq!(client.call(&image, INPUT).await.output(), INPUT, "by a new one");
}

/// Deletes the image's pods.
async fn remove(stand: &Stand, image: &str) {
    let of = |pod: &Pod| function_of(pod).starts_with(image) && pod.metadata.deletion_timestamp.is_none();
    for pod in stand.namespace.pods().await.iter().filter(|pod| of(pod)) {
        stand.namespace.api::<Pod>().delete(&pod.name_any(), &DeleteParams::default()).await.unwrap();
    }
    let gone = |pods: &[Pod]| (!pods.iter().any(of)).then_some(());
    stand.namespace.until("the pods go", gone).await;
}

/// Runs of minutes, for `tests/faults`.
mod slow {
    use super::*;

    #[tokio::test]
    #[ignore = "takes minutes; tests/faults runs it"]
    async fn a_registry_that_is_killed_for_a_minute_costs_no_call_of_an_image_seen_before() {
        outage(Away::Killed, Duration::from_mins(1)).await;
    }

    #[tokio::test]
    #[ignore = "takes minutes; tests/faults runs it"]
    async fn a_registry_that_hangs_for_a_minute_costs_no_call_of_an_image_seen_before() {
        outage(Away::Stopped, Duration::from_mins(1)).await;
    }
}
