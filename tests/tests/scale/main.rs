//! One runner of ten in a namespace with 50,000 function pods: what it needs of memory and of a
//! core, and how long calls to warm pods take while pods change, while all are listed again, and
//! while thousands of images become known.
//!
//! The API server is this test, and so are the pods: one server that answers on all addresses of
//! 127/8. Calls go through the runner's own port, so that each figure has the whole way of a call
//! in it and not only the pool's part.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod api;
mod objects;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use porch_fn_grpc::serve;
use porch_fn_grpc::{Call, Evaluate, Options, Reply, Server};
use porch_fn_lifecycle::drain;
use porch_fn_lifecycle::health::Health;
use porch_fn_proto::Chunks;
use porch_fn_proto::evaluator::EvaluateFunctionRequest;
use porch_fn_tests::load::{Load, Plan, Report, Routers};
use porch_fn_tests::process::{self, Sandbox, eventually, figure, flag};
use prost::Message;
use tokio::net::TcpListener;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use api::Api;
use objects::{NAMESPACE, image};

const IMAGES: usize = 5_000;
const PODS_EACH: usize = 10;
/// The port of function pods.
const PORT: u16 = 9446;
/// Images that are called.
const WARM: usize = 200;
const CALLS_PER_SECOND: f64 = 300.0;
/// Changes of pods in a second. Pods that live for half an hour and change eight times make half of
/// it; the other half are pods in use, one in four, that are pushed once a minute.
const CHANGES_PER_SECOND: usize = 450;
const LASTS: Duration = Duration::from_secs(20);
/// Of the kernel's clock, by which it counts a process's time, in each second.
const TICKS: f64 = 100.0;

/// The function in every pod.
struct Echo;

impl Evaluate for Echo {
    async fn evaluate(&self, call: Call) -> Reply {
        let request = EvaluateFunctionRequest::decode(call.message.contiguous()).unwrap();
        Reply::evaluated(Chunks::from(request.resource_list), Bytes::new())
    }
}

/// All pods, until the drain begins.
async fn pods(drain: drain::Watch) {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).await.expect("a free port");
    let health = Health::new();
    health.set("", true);
    let options = Options {
        max_message: 1024 * 1024,
        default_timeout: Duration::from_mins(1),
        max_timeout: Duration::MAX,
        inflight: None,
        places: None,
        tell_load: false,
        observer: None,
        tracer: None,
    };
    let server = Server::new(Arc::new(Echo), &health, options);
    let handler = move |request| {
        let server = Arc::clone(&server);
        async move { server.handle(request).await }
    };
    let options = serve::Options { max_age: None, max_connections: 60_000 };
    tokio::spawn(serve::serve(listener, None, options, handler, drain));
}

/// A runner under measurement.
struct Runner {
    server: process::Server,
    _sandbox: Sandbox,
}

/// What a runner has done so far.
struct Usage {
    /// Of one core.
    seconds: f64,
    at: Instant,
    /// How many calls had waited for a pod at most so long, in seconds.
    granted: Vec<(f64, u64)>,
    /// How many it had answered at most so long after they came in.
    answered: Vec<(f64, u64)>,
}

// === impl Runner ===

impl Runner {
    async fn start(api: &Api) -> Self {
        let sandbox = Sandbox::new();
        let peers: Vec<_> = (1..=10).map(|n| format!("127.0.0.1:{n}")).collect();
        let server = sandbox.server(
            "porch-fn-runner",
            [
                flag("kubeconfig", api.kubeconfig(&sandbox)),
                flag("pod-namespace", NAMESPACE),
                flag("wrapper-server-image", "registry.example/wrapper-server:v1"),
                flag("max-parallel-pods-per-function", PODS_EACH.to_string()),
                // Nobody asks a registry: there is none.
                flag("image-metadata-ttl", "24h"),
                flag("peers", format!("static:///{}", peers.join(","))),
                flag("shard-address", "127.0.0.1:1"),
            ],
        );
        Self { server: server.await, _sandbox: sandbox }
    }

    fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.server.pid().unwrap())).unwrap()
    }

    /// In MiB, now and at most.
    fn memory(&self) -> (usize, usize) {
        let status = self.proc("status");
        let of = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse::<usize>().unwrap() / 1024
        };
        (of("VmRSS:"), of("VmHWM:"))
    }

    async fn usage(&self) -> Usage {
        let stat = self.proc("stat");
        // Behind the name, which may hold anything: state is the third field, user time the 14th,
        // system time the 15th.
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
        let (_, metrics) = self.server.page("/metrics").await;
        let buckets = |name: &str| {
            let prefix = format!("porch_fn_runner_{name}_seconds_bucket{{");
            let lines = metrics.lines().filter_map(|line| line.strip_prefix(&prefix));
            let of_pods = lines.filter_map(|line| line.split_once("} ").filter(|_| line.contains("\"Pod\"")));
            let bound = |labels: &str| labels.split('"').find_map(|part| part.parse().ok());
            of_pods.filter_map(|(labels, count)| Some((bound(labels)?, count.parse().ok()?))).collect()
        };
        let (granted, answered) = (buckets("queue_wait"), buckets("call"));
        Usage { seconds: ticks / TICKS, at: Instant::now(), granted, answered }
    }

    fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.server.pid().unwrap())).unwrap().count()
    }

    /// Waits until it knows so many images, and each of its own pods was asked and serves.
    async fn until_all_serve(&self, images: usize) -> u64 {
        let metric = async |name: &str| self.server.metric(&format!("porch_fn_runner_{name}")).await;
        eventually("its own pods serve", async || {
            let known = metric("functions").await? == images as u64;
            let all = metric("pods{state=\"starting\"}").await? == 0;
            metric("pods{state=\"ready\"}").await.filter(|_| known && all)
        })
        .await
    }

    /// Calls the images that are to be warm, until each is.
    async fn warm(&self, images: &[String]) {
        let load = self.load(images);
        eventually("pods are warm", async || (load.answered() >= 5 * images.len()).then_some(())).await;
        load.stop().await.all_succeeded();
    }

    fn load(&self, images: &[String]) -> Load {
        Load::through(&Routers::new([self.server.address()]), Plan::per_second(CALLS_PER_SECOND, images))
    }

    /// Reports calls, their waits for a pod, and time of a core since `before`.
    async fn account(&self, what: &str, before: Usage, report: &Report) {
        report.all_succeeded();
        let after = self.usage().await;
        figure(&format!("{what}: {report}; {:.1} % of a core", before.cores(&after) * 100.0));
        figure(&format!("{what}: had a pod: {}", shares(&before.granted, &after.granted)));
        figure(&format!("{what}: were answered: {}", shares(&before.answered, &after.answered)));
    }
}

// === impl Usage ===

impl Usage {
    /// Cores that were used in between.
    fn cores(&self, later: &Self) -> f64 {
        (later.seconds - self.seconds) / (later.at - self.at).as_secs_f64()
    }
}

/// How many of the calls between two states of a histogram took how long.
fn shares(before: &[(f64, u64)], after: &[(f64, u64)]) -> String {
    let calls: Vec<_> = before.iter().zip(after).map(|(a, b)| (b.0, (b.1 - a.1) as f64)).collect();
    let all = calls.last().map_or(0.0, |(_, calls)| *calls);
    let within = calls.iter().filter(|(bound, _)| *bound <= 0.3);
    let within =
        within.map(|(bound, calls)| format!("{:.2} % within {} ms", calls / all * 100.0, bound * 1000.0));
    within.collect::<Vec<_>>().join(", ")
}

/// Changes pods at a steady pace until it is dropped.
fn changes(api: &Api, per_second: usize) -> tokio::task::JoinSet<()> {
    let (api, names) = (api.clone(), api.names());
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        let mut ticks = interval(Duration::from_millis(20));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for tick in 0.. {
            ticks.tick().await;
            // A stride that meets each pod once, since their number is no multiple of it.
            let batch = (tick * per_second / 50)..((tick + 1) * per_second / 50);
            let batch: Vec<_> = batch.map(|n| names[n * 7919 % names.len()].clone()).collect();
            api.touch(&batch);
        }
    });
    tasks
}

fn warm_images() -> Vec<String> {
    (0..WARM).map(image).collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes, 15,000 open files and port 9446; tests/scale runs it"]
async fn fifty_thousand_pods() {
    let (_signal, drain) = drain::channel();
    pods(drain).await;
    let api = Api::start().await;
    let alone = Runner::start(&api).await;
    eventually("it is ready", async || (alone.server.page("/readyz").await.0 == 200).then_some(())).await;
    figure(&format!("memory without pods: {} MiB", alone.memory().0));
    drop(alone);

    api.add((0..IMAGES).flat_map(|image| (0..PODS_EACH).map(move |slot| (image, slot))));
    let began = Instant::now();
    let runner = Runner::start(&api).await;
    eventually("it is ready", async || (runner.server.page("/readyz").await.0 == 200).then_some(())).await;
    figure(&format!(
        "first list of {} pods: ready {:.1?} after the start",
        IMAGES * PODS_EACH,
        began.elapsed()
    ));
    let (listed, watched) = eventually("the watch after it", async || api.last_list()).await;
    figure(&format!("of this the list itself {:.1?}", watched - listed));
    let own = runner.until_all_serve(IMAGES).await;
    figure(&format!("its own {own} pods serve {:.1?} after the start", began.elapsed()));
    let images = warm_images();
    runner.warm(&images).await;
    let (now, peak) = runner.memory();
    figure(&format!("memory: {now} MiB, at most {peak} MiB; {} open files", runner.open_files()));

    let idle = runner.usage().await;
    sleep(LASTS).await;
    figure(&format!(
        "without calls and changes: {:.1} % of a core",
        idle.cores(&runner.usage().await) * 100.0
    ));

    let (before, load) = (runner.usage().await, runner.load(&images));
    sleep(LASTS).await;
    runner.account("calls alone", before, &load.stop().await).await;

    let busy = changes(&api, CHANGES_PER_SECOND);
    let (before, load) = (runner.usage().await, runner.load(&images));
    sleep(LASTS).await;
    runner.account(&format!("{CHANGES_PER_SECOND} changes a second"), before, &load.stop().await).await;

    let (before, load) = (runner.usage().await, runner.load(&images));
    sleep(LASTS / 10).await;
    let expired = Instant::now();
    api.expire_watches();
    let (listed, watched) = eventually("all is listed again", async || api.last_list()).await;
    sleep(LASTS / 10).await;
    figure(&format!("relist: begun after {:.1?}, took {:.1?}", listed - expired, watched - listed));
    let report = load.stop().await;
    // The pool takes the list in after the watch has begun.
    let meanwhile = listed..watched + Duration::from_secs(1);
    figure(&format!("calls during the relist: {}", report.during(&meanwhile, |_| true)));
    runner.account("before, during and after the relist", before, &report).await;
    drop(busy);
    let (now, peak) = runner.memory();
    figure(&format!("memory: {now} MiB, at most {peak} MiB; {} pushes", api.pushes()));

    sleep(Duration::from_secs(5 * 60 + 15)).await;
    let (now, _) = runner.memory();
    figure(&format!("after 5 minutes without a call: {now} MiB, {} open files", runner.open_files()));
    let (before, load) = (runner.usage().await, runner.load(&images));
    sleep(Duration::from_secs_f64(WARM as f64 / CALLS_PER_SECOND)).await;
    runner.account("the first calls then", before, &load.stop().await).await;
    figure(&format!("other requests: {:?}", api.others()));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes and port 9446; tests/scale runs it"]
async fn five_thousand_images_become_known_in_ten_seconds() {
    let (_signal, drain) = drain::channel();
    pods(drain).await;
    for pods_each in [1, PODS_EACH] {
        become_known(pods_each).await;
    }
}

async fn become_known(pods_each: usize) {
    const WITHIN: Duration = Duration::from_secs(10);
    const STEPS: usize = 500;
    let api = Api::start().await;
    api.add((0..WARM).map(|image| (image, 0)));
    let runner = Runner::start(&api).await;
    let images = warm_images();
    runner.warm(&images).await;

    let (before, load) = (runner.usage().await, runner.load(&images));
    sleep(WITHIN).await;
    runner.account("calls alone", before, &load.stop().await).await;

    let (before, load) = (runner.usage().await, runner.load(&images));
    let began = Instant::now();
    for step in 0..STEPS {
        let images = (IMAGES * step / STEPS)..(IMAGES * (step + 1) / STEPS);
        api.add(images.flat_map(|image| (0..pods_each).map(move |slot| (WARM + image, slot))));
        sleep_until(began + WITHIN * u32::try_from(step + 1).unwrap() / u32::try_from(STEPS).unwrap()).await;
    }
    let what = format!("{IMAGES} images with {pods_each} pods each become known in {WITHIN:?}");
    runner.account(&what, before, &load.stop().await).await;
    let own = runner.until_all_serve(WARM + IMAGES).await;
    figure(&format!("its own {own} pods serve {:.1?} after the first", began.elapsed()));
}
