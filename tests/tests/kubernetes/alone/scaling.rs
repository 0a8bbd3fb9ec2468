//! Scales the Deployment of runners under load. No call fails, and no function pod is created
//! again. `nightly::scaling` also restarts and kills runners and routers.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::{
    Cluster, Discovery, Installation, Plan, ROUTER, RUNNERS, Recorder, SETTLE_TIME,
};
use porch_fn_tests::load::{self, Load, Report, Routers};
use porch_fn_tests::process::figure;
use tokio::time::{Instant, sleep};

use crate::rig::{INPUT, alive, births};

const CALLERS: usize = 16;
const IMAGES: usize = 20;
/// The load stops after this time. Each test stops its load earlier.
const LONGEST: Duration = Duration::from_mins(15);

/// An installation whose functions have pods.
pub(crate) struct WarmInstallation {
    pub(crate) installation: Installation,
    pub(crate) images: Vec<String>,
    pub(crate) record: Recorder<Pod>,
    /// The number of function pods after the warm-up.
    warm_pods: usize,
}

impl WarmInstallation {
    pub(crate) async fn start(cluster: &Cluster, plan: &Plan, images: Vec<String>) -> Self {
        let installation = Installation::new(cluster, plan).await;
        installation.wait_routers_agree().await;
        let record = installation.functions.record::<Pod>().await;
        let client = Client::new(installation.address());
        let start = Instant::now();
        client.call_all(&images, INPUT).await;
        let warm_pods = births(&record).len();
        figure(&format!("{} functions warm after {:.1?}", images.len(), start.elapsed()));
        assert_eq!(warm_pods, images.len(), "each function has one pod");
        Self { installation, images, record, warm_pods }
    }

    /// Runs load during `happens` and until the routers have settled. Asserts that no call fails.
    pub(crate) async fn under_load(&self, what: &str, happens: impl AsyncFnOnce()) -> Report {
        let routers = Routers::new([self.installation.address()]);
        let plan = load::Plan { max_duration: LONGEST, ..load::Plan::callers(CALLERS, &self.images) };
        let load = Load::through(&routers, plan);
        let start = Instant::now();
        happens().await;
        self.installation.wait_routers_agree().await;
        let took = start.elapsed();
        sleep(SETTLE_TIME).await;
        let report = load.stop().await;
        let new = births(&self.record).len() - self.warm_pods;
        figure(&format!("{what} in {took:.1?}: {report}; {new} function pods created since the warm-up"));
        if !report.failed.is_empty() {
            for deployment in [ROUTER, RUNNERS] {
                let selector = format!("--selector=app.kubernetes.io/name={deployment}");
                let logs = ["logs", &selector, "--prefix", "--tail=200"];
                println!("{}", self.installation.kubectl(&logs).await);
            }
        }
        report.assert_all_succeeded();
        report
    }

    /// Asserts that every function still has its pod from the warm-up.
    pub(crate) async fn assert_no_new_pod(&self) {
        assert_eq!(births(&self.record).len(), self.warm_pods, "function pods were created");
        let pods = self.installation.functions.pods().await;
        assert_eq!(pods.iter().filter(|pod| alive(pod)).count(), self.warm_pods);
    }

    pub(crate) async fn scale_under_load(&self, sizes: &[u32]) {
        for &size in sizes {
            let scale = async || self.installation.scale(RUNNERS, size).await;
            self.under_load(&format!("scaled to {size} runners"), scale).await;
        }
    }
}

/// Pushes function images for one test.
pub(crate) async fn functions(cluster: &Cluster, prefix: &str) -> Vec<String> {
    let names = (0..IMAGES).map(|number| format!("{prefix}/function-{number}:v1"));
    let pushed = names.map(|name| async move { cluster.function_named(&name).await });
    stream::iter(pushed).buffered(4).collect().await
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn scaling_runners_2_4_1_3_fails_no_call_and_creates_no_pod() {
    let cluster = Cluster::connect().await;
    let plan = Plan::new(&cluster, Discovery::EndpointSlices, 2);
    let warm = WarmInstallation::start(&cluster, &plan, functions(&cluster, "scaled").await).await;
    warm.scale_under_load(&[4, 1, 3]).await;
    warm.assert_no_new_pod().await;
}
