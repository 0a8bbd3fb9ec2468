//! Measures one of ten runners in a namespace with 50,000 function pods: its memory, its CPU time,
//! and the duration of calls to warm pods. Meanwhile pods change, all pods are listed again, and
//! thousands of images appear.
//!
//! The test contains the API server, and one server on all addresses of 127/8 for all pods.

mod api;
mod objects;
mod waiting;

use std::fs;
use std::time::Duration;

use porch_fn_lifecycle::drain;
use porch_fn_tests::echo::serve_echo;
use porch_fn_tests::load::{Load, Plan, Routers};
use porch_fn_tests::process::{Sandbox, Server, eventually, figure, flag};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use api::Api;
use objects::{NAMESPACE, image};

const IMAGES: usize = 5_000;
const PODS_EACH: usize = 10;
/// The port of function pods.
const PORT: u16 = 9446;
/// The number of images that are called.
const WARM: usize = 200;
const CALLS_PER_SECOND: f64 = 300.0;
/// About half of the changes come from pods that start and end: each pod lives for half an hour and
/// changes eight times. The other half are writes of reclaim-after, the time after which a pod may
/// be deleted. 25 % of the pods are in use, and each of them gets one such write a minute.
const CHANGES_PER_SECOND: usize = 450;
const LASTS: Duration = Duration::from_secs(20);

/// A runner under measurement.
struct Runner {
    server: Server,
    _sandbox: Sandbox,
}

impl Runner {
    async fn start(api: &Api) -> Self {
        let sandbox = Sandbox::new();
        let peers: Vec<_> = (1..=10).map(|n| format!("127.0.0.1:{n}")).collect();
        let server = sandbox.runner([
            flag("kubeconfig", api.kubeconfig(&sandbox)),
            flag("pod-namespace", NAMESPACE),
            flag("wrapper-server-image", "registry.example/wrapper-server:v1"),
            flag("max-parallel-pods-per-function", PODS_EACH.to_string()),
            // There is no registry. Pods report their digests, which stay valid for this time.
            flag("image-metadata-ttl", "24h"),
            flag("peers", format!("static:///{}", peers.join(","))),
            flag("shard-address", "127.0.0.1:1"),
        ]);
        let server = server.await;
        server.wait_ready().await;
        Self { server, _sandbox: sandbox }
    }

    fn report_memory(&self, what: &str) {
        let usage = self.server.usage();
        let files = fs::read_dir(format!("/proc/{}/fd", self.server.pid().unwrap())).unwrap().count();
        let [now, peak] = [usage.resident, usage.peak].map(|kib| kib / 1024);
        figure(&format!("{what}: {now} MiB, at most {peak} MiB, {files} open files"));
    }

    /// The number of calls to pods, and how many of them waited at most 1 ms for a pod.
    async fn waits(&self) -> (u64, u64) {
        let (_, metrics) = self.server.page("/metrics").await;
        let buckets = metrics.lines().filter(|line| {
            line.starts_with("porch_fn_runner_queue_wait_seconds_bucket") && line.contains("\"Pod\"")
        });
        let count = |bound: &str| {
            let bucket = buckets.clone().find(|line| line.contains(&format!("le=\"{bound}\"")));
            bucket.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
        };
        (count("+Inf"), count("0.001"))
    }

    /// Waits until the runner reports this number of images and all pods that it owns are ready.
    /// Returns the number of these pods.
    async fn wait_all_serve(&self, images: usize) -> u64 {
        let metric = async |name: &str| self.server.metric(&format!("porch_fn_runner_{name}")).await;
        eventually("the runner's own pods are ready", async || {
            let known = metric("functions").await? == images as u64;
            let all = metric("pods{state=\"starting\"}").await? == 0;
            metric("pods{state=\"ready\"}").await.filter(|_| known && all)
        })
        .await
    }

    fn load(&self) -> Load {
        let images: Vec<_> = (0..WARM).map(image).collect();
        Load::through(&Routers::new([self.server.address()]), Plan::per_second(CALLS_PER_SECOND, &images))
    }

    /// Calls each of the images several times, so that the runner is connected to their pods.
    async fn warm_up(&self) {
        let load = self.load();
        eventually("pods are warm", async || (load.answered() >= 5 * WARM).then_some(())).await;
        load.stop().await.assert_all_succeeded();
    }

    /// Reports calls, their waits for a pod, and CPU time during `work`.
    async fn measure(&self, what: &str, work: impl Future) {
        let (usage, (calls, fast)) = (self.server.usage(), self.waits().await);
        let load = self.load();
        work.await;
        let report = load.stop().await;
        report.assert_all_succeeded();
        let cores = self.server.usage().cores_since(&usage) * 100.0;
        let (calls, fast) = (self.waits().await.0 - calls, self.waits().await.1 - fast);
        let share = fast as f64 / calls as f64 * 100.0;
        figure(&format!("{what}: {report}; {share:.2} % had a pod within 1 ms; {cores:.1} % of a core"));
    }
}

/// Changes pods at a steady pace until the result is dropped.
fn changes(api: &Api, per_second: usize) -> JoinSet<()> {
    let (api, names) = (api.clone(), api.names());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut ticks = interval(Duration::from_millis(20));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for tick in 0.. {
            ticks.tick().await;
            // The stride 7919 is a prime that does not divide the number of pods. So a round
            // reaches each pod once.
            let batch = (tick * per_second / 50)..((tick + 1) * per_second / 50);
            let batch: Vec<_> = batch.map(|n| names[n * 7919 % names.len()].clone()).collect();
            api.touch(&batch);
        }
    });
    tasks
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes, 15,000 open files and port 9446; tests/run nightly runs it"]
async fn a_runner_with_fifty_thousand_pods() {
    let (_signal, drain) = drain::channel();
    serve_echo(PORT, drain).await;
    let api = Api::start().await;
    Runner::start(&api).await.report_memory("without pods");

    api.add((0..IMAGES).flat_map(|image| (0..PODS_EACH).map(move |slot| (image, slot))));
    let began = Instant::now();
    let runner = Runner::start(&api).await;
    figure(&format!("with {} pods: ready {:.1?} after the start", IMAGES * PODS_EACH, began.elapsed()));
    let own = runner.wait_all_serve(IMAGES).await;
    figure(&format!("its own {own} pods are ready {:.1?} after the start", began.elapsed()));
    runner.warm_up().await;
    runner.report_memory("with all pods");
    runner.measure("calls alone", sleep(LASTS)).await;

    let busy = changes(&api, CHANGES_PER_SECOND);
    runner.measure(&format!("{CHANGES_PER_SECOND} changes a second"), sleep(LASTS)).await;
    let relist = async {
        sleep(LASTS / 10).await;
        api.expire_watches();
        let (listed, watched) = eventually("all pods are listed again", async || api.last_list()).await;
        figure(&format!("the list of all pods took {:.1?}", watched - listed));
        sleep(LASTS / 10).await;
    };
    runner.measure("before, during and after the relist", relist).await;
    drop(busy);
    runner.report_memory("after the relist");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes and port 9446; tests/run nightly runs it"]
async fn five_thousand_images_appear_in_ten_seconds() {
    const WITHIN: Duration = Duration::from_secs(10);
    const STEPS: usize = 500;
    let (_signal, drain) = drain::channel();
    serve_echo(PORT, drain).await;
    let api = Api::start().await;
    api.add((0..WARM).map(|image| (image, 0)));
    let runner = Runner::start(&api).await;
    runner.warm_up().await;
    runner.measure("calls alone", sleep(WITHIN)).await;

    let began = Instant::now();
    let add_images = async {
        for step in 0..STEPS {
            let images = (IMAGES * step / STEPS)..(IMAGES * (step + 1) / STEPS);
            api.add(images.map(|image| (WARM + image, 0)));
            sleep_until(began + WITHIN.mul_f64((step + 1) as f64 / STEPS as f64)).await;
        }
    };
    let what = format!("{IMAGES} images with a pod each appear in {WITHIN:?}");
    runner.measure(&what, add_images).await;
    let own = runner.wait_all_serve(WARM + IMAGES).await;
    figure(&format!("its own {own} pods are ready {:.1?} after the first", began.elapsed()));
}
