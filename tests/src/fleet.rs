//! A router in this process, in front of fake runners.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use porch_fn_image::shard_key;
use porch_fn_ring::Ring;
use porch_fn_router::{App, Flags, start};
use porch_fn_status_page::Shards;
use tokio::task::JoinHandle;
use tonic::Status;

use crate::caller::{Caller, RawCaller};
use crate::fake_runner::{FakeRunner, Gate};
pub use crate::process::get;
use crate::process::{eventually, get_json, metric, runners_flag, wait_metric};

/// The default of `--default-image-prefix`.
pub const PREFIX: &str = "ghcr.io/kptdev/krm-functions-catalog";

#[derive(Debug)]
pub struct Fleet {
    pub router: App,
    /// The runners' names are `0`, `1` and so on.
    pub runners: Vec<FakeRunner>,
    ring: Ring,
    admin: SocketAddr,
}

/// Starts a router for these runners, with additional flags.
pub async fn start_router(runners: impl IntoIterator<Item = SocketAddr>, flags: &[&str]) -> App {
    let target = runners_flag(runners);
    let own = ["porch-fn-router", "--address=127.0.0.1", "--port=0", "--admin-port=0", &target];
    let flags: Flags = porch_fn_flags::parse(own.iter().chain(flags).map(Into::into)).expect("valid flags");
    start(flags).await.expect("a router")
}

impl Fleet {
    /// Starts `count` runners and a router, and waits until all runners are healthy.
    pub async fn of(count: usize) -> Self {
        Self::with(count, &[]).await
    }

    /// Like [`of`](Self::of), with additional flags of the router.
    pub async fn with(count: usize, flags: &[&str]) -> Self {
        let mut runners = Vec::new();
        for index in 0..count {
            runners.push(FakeRunner::start(&index.to_string()).await);
        }
        let fleet = Self::start(runners, flags).await;
        fleet.wait_all("healthy").await;
        fleet
    }

    /// Starts `count` runners and a router. Returns them with an image whose preference order is 0,
    /// 1 and so on, and with a caller.
    pub async fn ordered(count: usize, flags: &[&str]) -> (Self, String, Caller) {
        let fleet = Self::with(count, flags).await;
        let image = fleet.image(&(0..count).collect::<Vec<_>>());
        let caller = fleet.caller().await;
        (fleet, image, caller)
    }

    /// Starts a call of `image` that waits on this runner until the gate is open.
    pub async fn hold(&self, runner: usize, image: &str) -> (Gate, JoinHandle<Result<String, Status>>) {
        let (gate, runner) = (Gate::default(), &self.runners[runner]);
        runner.on(image, gate.echo());
        let calls = runner.taken();
        let held = self.caller().await.spawn(image);
        runner.wait("the held call", |log| log.calls.len() > calls).await;
        (gate, held)
    }

    /// Starts a router for `runners`, and does not wait until they are healthy.
    pub async fn start(runners: Vec<FakeRunner>, flags: &[&str]) -> Self {
        let router = start_router(runners.iter().map(FakeRunner::address), flags).await;
        let names = runners.iter().map(|runner| runner.address().to_string());
        let ring = Ring::new(names);
        let admin = router.admin_address();
        Self { router, runners, ring, admin }
    }

    pub async fn caller(&self) -> Caller {
        Caller::connect(self.router.address()).await
    }

    pub async fn raw(&self) -> RawCaller {
        RawCaller::connect(self.router.address()).await
    }

    /// The runner that owns `key` in the ring.
    pub fn owner(&self, key: &str) -> &FakeRunner {
        let owner = self.ring.owner(key).expect("a runner");
        self.runners.iter().find(|runner| runner.address().to_string() == owner).expect("one of the runners")
    }

    /// An image whose preference order begins with these runners.
    pub fn image(&self, order: &[usize]) -> String {
        let wanted: Vec<_> = order.iter().map(|&index| self.runners[index].address().to_string()).collect();
        let starts = |image: &String| {
            let preference = self.ring.preference(&shard_key(image, "", PREFIX));
            let names = preference.iter().map(|&node| &*self.ring.nodes()[usize::from(node)]);
            names.take(wanted.len()).eq(wanted.iter().map(String::as_str))
        };
        // Enough images to find any order of a few runners.
        let mut images = (0..100_000).map(|number| format!("example.com/fn/f{number}:v1"));
        images.find(starts).expect("an image with that order")
    }

    pub async fn get(&self, path: &str) -> (u16, String) {
        get(self.admin, path).await
    }

    /// The router's `/shards` page.
    pub async fn shards(&self) -> Shards {
        serde_json::from_value(get_json(self.admin, "/shards").await).expect("the page")
    }

    /// Waits until each of these runners has this health state at the router.
    pub async fn wait_states(&self, wanted: &[(usize, &str)]) {
        let address = |index: usize| self.runners[index].address().to_string();
        eventually(&format!("states {wanted:?}"), async || {
            let page = self.shards().await;
            let states: BTreeMap<_, _> =
                page.shards.into_iter().map(|shard| (shard.address, shard.state)).collect();
            wanted
                .iter()
                .all(|&(index, state)| states.get(&address(index)).is_some_and(|known| known == state))
                .then_some(())
        })
        .await;
    }

    pub async fn wait_all(&self, state: &str) {
        let wanted: Vec<_> = (0..self.runners.len()).map(|index| (index, state)).collect();
        self.wait_states(&wanted).await;
    }

    /// Waits until the router has this number of calls in flight.
    pub async fn wait_calls(&self, calls: usize) {
        eventually(&format!("{calls} calls in the router"), async || {
            let images = self.shards().await.images;
            (images.iter().map(|image| image.in_flight).sum::<usize>() == calls).then_some(())
        })
        .await;
        let shards = self.shards().await.shards;
        assert!(calls > 0 || shards.iter().all(|shard| shard.in_flight == 0), "{shards:?}");
    }

    /// The number of calls that each runner has received.
    pub fn taken(&self) -> Vec<usize> {
        self.runners.iter().map(FakeRunner::taken).collect()
    }

    /// The value of a counter, 0 if it is missing.
    pub async fn metric(&self, series: &str) -> u64 {
        metric(self.admin, series).await.unwrap_or(0)
    }

    pub async fn wait_metric(&self, series: &str, value: u64) {
        wait_metric(self.admin, series, value).await;
    }
}
