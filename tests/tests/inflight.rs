//! Overload of runners, through their front doors and the router's: bytes in flight, turns of the exec runtime.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;

use bytes::Bytes;
use futures_util::future::{FutureExt, join_all};
use porch_fn_grpc::{CALL_OVERHEAD, is_shed, load_of};
use porch_fn_proto::PREFIX_LEN;
use porch_fn_ring::{Identity, Ring};
use porch_fn_runner::Pods;
use porch_fn_tests::caller::{RawCall, RawCaller, framed};
use porch_fn_tests::client::Client;
use porch_fn_tests::fleet::get;
use porch_fn_tests::process::{Sandbox, eventually};
use tonic::Code;

/// Images `example.com/gated0:v1` and so on wait until there is a file `go`; `example.com/quick0:v1` do not.
const GATED: &str = "echo gated >>$DIR/order; until [ -e $DIR/go ]; do sleep 0.01; done; cat";
const QUICK: &str = "echo quick >>$DIR/order; cat";

/// A runner in this process with those exec functions.
struct Runner {
    sandbox: Sandbox,
    app: porch_fn_runner::App,
}

impl Runner {
    async fn start(flags: &[&str]) -> Self {
        let sandbox = Sandbox::new();
        let mut entries = Vec::new();
        for (name, script) in [("gated", GATED), ("quick", QUICK)] {
            let directory = sandbox.directory().display();
            sandbox.script(&format!("functions/{name}"), &format!("DIR={directory}\n{script}"));
            let images: Vec<_> = (0..20).map(|number| format!("'example.com/{name}{number}:v1'")).collect();
            entries.push(format!("{{function: {name}, images: [{}]}}", images.join(", ")));
        }
        let config = format!("functions: [{}]\n", entries.join(", "));
        let config = format!("--config={}", sandbox.write("config.yaml", config).display());
        let functions = format!("--functions={}", sandbox.path("functions").display());
        let own =
            ["porch-fn-runner", "--address=127.0.0.1", "--port=0", "--admin-port=0", &config, &functions];
        let args = [&own[..], flags].concat();
        let (flags, set) = porch_fn_flags::parse_with_set(args.iter().map(Into::into)).unwrap();
        let app = porch_fn_runner::start(flags, &set, Pods::Flags).await.unwrap();
        Self { sandbox, app }
    }

    /// One with `limit` bytes of messages, and as many executables at once as fit.
    async fn limited(limit: usize) -> Self {
        let limit = format!("--max-inflight-bytes={limit}");
        Self::start(&["--max-request-body-size=65536", &limit, "--max-parallel-executions=100"]).await
    }

    fn client(&self) -> Client {
        Client::new(self.app.address())
    }

    async fn raw(&self) -> RawCaller {
        RawCaller::connect(self.app.address()).await
    }

    async fn wait(&self, series: &str, value: u64) {
        wait(self.app.admin_address(), &format!("porch_fn_runner_{series}"), value).await;
    }

    /// Which functions ran, in their order.
    fn order(&self) -> Vec<String> {
        let order = std::fs::read_to_string(self.sandbox.path("order")).unwrap_or_default();
        order.lines().map(str::to_owned).collect()
    }

    fn go(&self) {
        self.sandbox.write("go", "");
    }
}

async fn metric(admin: SocketAddr, series: &str) -> u64 {
    let (_, text) = get(admin, "/metrics").await;
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse().unwrap())
}

async fn wait(admin: SocketAddr, series: &str, value: u64) {
    let look = async || (metric(admin, series).await == value).then_some(());
    eventually(&format!("{series} is {value}"), look).await;
}

fn package() -> Bytes {
    vec![b'x'; 50_000].into()
}

/// What a call with that package is charged.
fn charge() -> usize {
    framed("example.com/gated0:v1", package()).len() - PREFIX_LEN + CALL_OVERHEAD
}

async fn begin(raw: &RawCaller, image: &str) -> RawCall {
    let mut call = raw.begin(raw.head()).await;
    call.send(framed(image, package()), true);
    call
}

/// Calls of `count` gated images that hold their bytes until the runner is told to go.
async fn hold(runner: &Runner, raw: &RawCaller, count: usize) -> Vec<RawCall> {
    let mut held = Vec::new();
    for number in 0..count {
        held.push(begin(raw, &format!("example.com/gated{number}:v1")).await);
    }
    runner.wait("inflight_bytes", (count * charge()) as u64).await;
    eventually("they run", async || (runner.order().len() == count).then_some(())).await;
    held
}

#[tokio::test]
async fn calls_that_are_never_sent_make_room_for_others() {
    // As large as is allowed, and all that fits.
    const ANNOUNCED: u32 = 65_536;
    let limit = 2 * (ANNOUNCED as usize + CALL_OVERHEAD);
    let runner = Runner::limited(limit).await;
    let raw = runner.raw().await;
    let mut silent = Vec::new();
    for _ in 0..2 {
        let mut call = raw.begin(raw.head()).await;
        call.send([&[0], &ANNOUNCED.to_be_bytes()[..]].concat().into(), false);
        silent.push(call);
    }
    runner.wait("inflight_bytes", limit as u64).await;
    let client = runner.client();
    let input = "kind: ResourceList\n";
    eventually("a call gets in", async || {
        let answer = client.call("example.com/quick0:v1", input).await;
        if answer.code == Code::ResourceExhausted {
            return None;
        }
        assert_eq!(answer.output(), input);
        Some(())
    })
    .await;
    // The oldest goes first.
    let evicted = silent.remove(0).answer().await;
    assert_eq!(evicted.code(), Code::ResourceExhausted);
    assert!(evicted.message().starts_with("the message came too slowly"), "{}", evicted.message());
    assert!(is_shed(evicted.status_headers()), "nothing was done");
}

#[tokio::test]
async fn calls_that_send_headers_alone_keep_nobody_out() {
    const ROOM: usize = 10;
    let runner = Runner::limited(ROOM * CALL_OVERHEAD).await;
    let raw = runner.raw().await;
    let mut silent = Vec::new();
    for _ in 0..=ROOM {
        silent.push(raw.begin(raw.head()).await);
    }
    let evicted = silent.remove(0).answer().await;
    assert!(evicted.message().starts_with("the message came too slowly"), "{}", evicted.message());
    let input = "kind: ResourceList\n";
    let answer = runner.client().call("example.com/quick0:v1", input).await;
    assert_eq!(answer.output(), input);
}

#[tokio::test]
async fn a_call_too_many_is_shed_before_its_message_is_in() {
    let limit = 5 * charge() + 2 * CALL_OVERHEAD;
    let runner = Runner::limited(limit).await;
    let raw = runner.raw().await;
    let held = hold(&runner, &raw, 5).await;
    let mut sixth = raw.begin(raw.head()).await;
    sixth.send(framed("example.com/quick0:v1", package()).slice(..PREFIX_LEN + 10), false);
    let answer = sixth.answer().await;
    assert_eq!(answer.code(), Code::ResourceExhausted);
    let expected = format!(
        "too many bytes in flight: {limit} bytes of messages are the limit of this runner; retry later, or raise \
         --max-inflight-bytes or the number of runners"
    );
    assert_eq!(answer.message(), expected);
    assert!(is_shed(answer.status_headers()));
    assert_eq!(load_of(answer.status_headers()), Some(5));
    runner.wait("inflight_refused_total{reason=\"limit\"}", 1).await;

    let small = runner.client().call("example.com/quick0:v1", "package").await;
    assert_eq!((&small.output()[..], load_of(&small.trailers)), (&b"package"[..], Some(5)));
    runner.go();
    for call in held {
        assert_eq!(call.answer().await.code(), Code::Ok);
    }
    runner.wait("inflight_bytes", 0).await;
    let last = runner.client().call("example.com/quick0:v1", "package").await;
    assert_eq!(load_of(&last.trailers), Some(0));
}

#[tokio::test]
async fn one_images_flood_leaves_room_for_the_others() {
    let runner = Runner::limited(15 * charge()).await;
    let (raw, client) = (runner.raw().await, runner.client());
    let mut held = Vec::new();
    for number in 1..=7 {
        held.push(begin(&raw, "example.com/gated0:v1").await);
        eventually("it runs", async || (runner.order().len() == number).then_some(())).await;
    }
    for _ in 0..20 {
        let answer = client.call("example.com/gated0:v1", package()).await;
        assert_eq!(answer.code, Code::ResourceExhausted);
        assert!(answer.message.contains("it alone has more than its share"), "{answer:?}");
        assert!(is_shed(&answer.trailers), "{answer:?}");
    }
    for number in 0..30 {
        let image = format!("example.com/quick{}:v1", number % 3);
        assert_eq!(client.call(&image, package()).await.output(), &package(), "{number}");
    }
    runner.go();
    for call in held {
        assert_eq!(call.answer().await.code(), Code::Ok);
    }
    runner.wait("inflight_bytes", 0).await;
}

#[tokio::test]
async fn what_a_full_runner_sheds_another_takes() {
    let limit = 5 * charge() + 2 * CALL_OVERHEAD;
    let runners = [Runner::limited(limit).await, Runner::limited(limit).await];
    let addresses = runners.each_ref().map(|runner| runner.app.address().to_string());
    let target = format!("--runners=static:///{}", addresses.join(","));
    let args = ["porch-fn-router", "--address=127.0.0.1", "--port=0", "--admin-port=0", &target];
    let flags: porch_fn_router::Flags = porch_fn_flags::parse(args.iter().map(Into::into)).unwrap();
    let router = porch_fn_router::start(flags).await.unwrap();
    wait(router.admin_address(), "porch_fn_router_runners{state=\"healthy\"}", 2).await;
    let ring = Ring::new(addresses.iter().map(|address| Identity::from(address.clone()))).unwrap();
    let images = (0..20).map(|number| format!("example.com/quick{number}:v1"));
    let of_the_first = |image: &String| ring.owner(image).is_some_and(|owner| owner.as_str() == addresses[0]);
    let image = images.into_iter().find(of_the_first).unwrap();

    let raw = runners[0].raw().await;
    let held = hold(&runners[0], &raw, 5).await;
    let client = Client::new(router.address());
    let answer = client.call(&image, package()).await;
    assert_eq!(answer.output(), &package());
    assert!(answer.trailers.keys().all(|name| !name.as_str().starts_with("porch-fn-")), "{answer:?}");
    runners[0].wait("inflight_refused_total{reason=\"limit\"}", 1).await;
    assert_eq!(runners[1].order(), ["quick"]);
    runners[0].go();
    for call in held {
        assert_eq!(call.answer().await.code(), Code::Ok);
    }
    for runner in &runners {
        runner.wait("inflight_bytes", 0).await;
    }
    wait(router.admin_address(), "porch_fn_router_inflight_bytes", 0).await;
}

#[tokio::test]
async fn images_take_turns_in_the_exec_runtime() {
    let runner = Runner::start(&["--max-parallel-executions=1"]).await;
    let client = runner.client();
    let flood = join_all((0..30).map(|_| client.call("example.com/gated0:v1", "")));
    let mut flood = flood.boxed_local();
    let mut charged = 30 * (framed("example.com/gated0:v1", "").len() - PREFIX_LEN + CALL_OVERHEAD);
    tokio::select! {
        _ = &mut flood => panic!("the gate is closed"),
        () = runner.wait("inflight_bytes", charged as u64) => (),
    }
    let quick = client.call("example.com/quick0:v1", "");
    let mut quick = std::pin::pin!(quick);
    charged += framed("example.com/quick0:v1", "").len() - PREFIX_LEN + CALL_OVERHEAD;
    tokio::select! {
        _ = &mut flood => panic!("the gate is closed"),
        _ = &mut quick => panic!("its turn has not come"),
        () = runner.wait("inflight_bytes", charged as u64) => (),
    }
    runner.go();
    tokio::join!(flood, quick);
    let order = runner.order();
    let turn = order.iter().position(|name| name == "quick").unwrap();
    // After the one that ran and the next of the flood.
    assert!(turn <= 4, "{order:?}");
    assert_eq!(order.len(), 31);
}
