//! Routers and runners run as Deployments, and are scaled, restarted and killed under load. No call
//! fails, and no function pod is created again.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::{Cluster, Discovery, Installation, Plan, ROUTER, RUNNERS, Recorder, SETTLES};
use porch_fn_tests::load::{self, Load, Report, Routers};
use porch_fn_tests::process::figure;
use tokio::time::{Instant, sleep};

use crate::rig::{INPUT, alive, births};

pub(crate) const CALLERS: usize = 16;
pub(crate) const IMAGES: usize = 20;
/// A limit that no phase reaches.
const LONGEST: Duration = Duration::from_mins(15);

/// An installation whose functions are warm.
pub(crate) struct Stand {
    pub(crate) installation: Installation,
    pub(crate) images: Vec<String>,
    pub(crate) record: Recorder<Pod>,
    /// The number of function pods after the warm-up.
    pub(crate) made: usize,
}

impl Stand {
    pub(crate) async fn start(cluster: &Cluster, plan: &Plan, images: Vec<String>) -> Self {
        let installation = Installation::new(cluster, plan).await;
        installation.routers_agree().await;
        let record = installation.functions.record::<Pod>().await;
        let client = Client::new(installation.address());
        let start = Instant::now();
        let first_calls = images.iter().map(|image| client.call(image, INPUT));
        let answers: Vec<_> = stream::iter(first_calls).buffer_unordered(8).collect().await;
        assert!(answers.iter().all(|answer| answer.output() == INPUT));
        let made = births(&record).len();
        figure(&format!("{} functions warm after {:.1?}", images.len(), start.elapsed()));
        assert_eq!(made, images.len(), "a pod each");
        Self { installation, images, record, made }
    }

    /// Runs load during `happens` and until the routers have settled. Asserts that no call fails.
    pub(crate) async fn under_load(&self, what: &str, happens: impl AsyncFnOnce()) -> Report {
        let routers = Routers::new([self.installation.address()]);
        let load = Load::through(&routers, load::Plan::callers(CALLERS, &self.images).max_duration(LONGEST));
        let start = Instant::now();
        happens().await;
        self.installation.routers_agree().await;
        let took = start.elapsed();
        sleep(SETTLES).await;
        let report = load.stop().await;
        let made = births(&self.record).len() - self.made;
        figure(&format!("{what} in {took:.1?}: {report}; {made} function pods made since warm-up"));
        if !report.failed.is_empty() {
            for deployment in [ROUTER, RUNNERS] {
                println!("{}", self.installation.logs(deployment).await);
            }
        }
        report.assert_all_succeeded();
        report
    }

    /// Asserts that every function still has the pod that the warm-up made.
    pub(crate) async fn no_pod_was_made(&self) {
        assert_eq!(births(&self.record).len(), self.made, "function pods were made");
        let pods = self.installation.functions.pods().await;
        assert_eq!(pods.iter().filter(|pod| alive(pod)).count(), self.made);
    }

    pub(crate) async fn scaled(&self, sizes: &[u32]) {
        for &size in sizes {
            let scale = async || self.installation.scale(RUNNERS, size).await;
            self.under_load(&format!("scaled to {size} runners"), scale).await;
        }
    }
}

/// Pushes function images that only this test uses.
pub(crate) async fn functions(cluster: &Cluster, prefix: &str) -> Vec<String> {
    let names = (0..IMAGES).map(|number| format!("{prefix}/function-{number}:v1"));
    let pushed = names.map(|name| async move { cluster.function_named(&name).await });
    stream::iter(pushed).buffered(4).collect().await
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn runners_scaled_2_4_1_3_cost_no_call_and_no_pod() {
    let cluster = Cluster::connect().await;
    let plan = Plan::new(&cluster, Discovery::EndpointSlices, 2);
    let stand = Stand::start(&cluster, &plan, functions(&cluster, "scaled").await).await;
    stand.scaled(&[4, 1, 3]).await;
    stand.no_pod_was_made().await;
}
