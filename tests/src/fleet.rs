//! A whole router in this process, in front of fake runners.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use porch_fn_image::shard_key;
use porch_fn_ring::{Identity, Ring};
use porch_fn_router::{App, Flags, start};
use porch_fn_status_page::Shards;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Duration, sleep};

use crate::caller::{Caller, RawCaller};
use crate::fake_runner::{FakeRunner, soon};

/// The default of `--default-image-prefix`.
pub const PREFIX: &str = "ghcr.io/kptdev/krm-functions-catalog";

/// Between two looks at `/shards`, which cannot be waited on.
const POLL: Duration = Duration::from_millis(5);

/// A router and its runners.
#[derive(Debug)]
pub struct Fleet {
    /// The router. Taken by tests that drain it.
    pub router: App,
    /// The runners, named `0`, `1` and so on.
    pub runners: Vec<FakeRunner>,
    ring: Ring,
    admin: SocketAddr,
}

impl Fleet {
    /// A router with its default flags in front of `count` runners, all of which it found healthy.
    pub async fn of(count: usize) -> Self {
        Self::with(count, &[]).await
    }

    /// The same with more flags.
    pub async fn with(count: usize, flags: &[&str]) -> Self {
        let mut runners = Vec::new();
        for index in 0..count {
            runners.push(FakeRunner::start(&index.to_string()).await);
        }
        let fleet = Self::start(runners, flags).await;
        fleet.wait_all("healthy").await;
        fleet
    }

    /// A router in front of `runners`, which it may not have reached yet.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start(runners: Vec<FakeRunner>, flags: &[&str]) -> Self {
        let addresses: Vec<_> = runners.iter().map(|runner| runner.address().to_string()).collect();
        let target = format!("--runners=static:///{}", addresses.join(","));
        let base = ["porch-fn-router", "--address=127.0.0.1", "--port=0", "--admin-port=0", &target];
        let args = base.iter().chain(flags).map(Into::into);
        let flags: Flags = porch_fn_flags::parse(args).expect("valid flags");
        let router = start(flags).await.expect("a router");
        let ring = Ring::new(addresses.into_iter().map(Identity::from)).expect("a ring");
        let admin = router.admin_address();
        Self { router, runners, ring, admin }
    }

    /// A caller on a connection of its own.
    pub async fn caller(&self) -> Caller {
        Caller::connect(self.router.address()).await
    }

    /// A bare caller on a connection of its own.
    pub async fn raw(&self) -> RawCaller {
        RawCaller::connect(self.router.address()).await
    }

    /// The runner that the ring gives `key`.
    ///
    /// # Panics
    /// When there are no runners.
    pub fn owner(&self, key: &str) -> &FakeRunner {
        let owner = self.ring.owner(key).expect("a runner").as_str();
        self.runners.iter().find(|runner| runner.address().to_string() == owner).expect("one of them")
    }

    /// An image whose preference order begins with these runners.
    ///
    /// # Panics
    /// When `order` names a runner twice or one that is not there.
    pub fn image(&self, order: &[usize]) -> String {
        let wanted: Vec<_> = order.iter().map(|&index| self.runners[index].address().to_string()).collect();
        let starts = |image: &String| {
            let preference = self.ring.preference(&shard_key(image, None, PREFIX));
            let names = preference.iter().map(|&node| self.ring.nodes()[usize::from(node)].as_str());
            names.take(wanted.len()).eq(wanted.iter().map(String::as_str))
        };
        // The first of thousands: enough for any order of a handful of runners.
        let mut images = (0..100_000).map(|number| format!("example.com/fn/f{number}:v1"));
        images.find(starts).expect("an image with that order")
    }

    /// A page of the admin port.
    pub async fn get(&self, path: &str) -> (u16, String) {
        get(self.admin, path).await
    }

    /// The router's `/shards`.
    ///
    /// # Panics
    /// When it is not the page.
    pub async fn shards(&self) -> Shards {
        let (status, page) = self.get("/shards").await;
        assert_eq!(status, 200);
        serde_json::from_str(&page).expect("the page")
    }

    /// Waits until the router has each of these runners in this state.
    pub async fn wait_states(&self, wanted: &[(usize, &str)]) {
        let address = |index: usize| self.runners[index].address().to_string();
        let reached = async {
            loop {
                let page = self.shards().await;
                let states: BTreeMap<_, _> =
                    page.shards.into_iter().map(|shard| (shard.address, shard.state)).collect();
                if wanted.iter().all(|&(index, state)| states[&address(index)] == state) {
                    return;
                }
                sleep(POLL).await;
            }
        };
        soon(&format!("states {wanted:?}"), reached).await;
    }

    /// Waits until the router has all runners in this state.
    pub async fn wait_all(&self, state: &str) {
        let wanted: Vec<_> = (0..self.runners.len()).map(|index| (index, state)).collect();
        self.wait_states(&wanted).await;
    }

    /// Waits until so many calls are in the router.
    pub async fn wait_calls(&self, calls: usize) {
        let reached = async {
            while self.shards().await.images.iter().map(|image| image.in_flight).sum::<usize>() != calls {
                sleep(POLL).await;
            }
        };
        soon(&format!("{calls} calls in the router"), reached).await;
        let shards = self.shards().await.shards;
        assert!(calls > 0 || shards.iter().all(|shard| shard.in_flight == 0), "{shards:?}");
    }

    /// Calls taken by each runner so far.
    pub fn taken(&self) -> Vec<usize> {
        self.runners.iter().map(FakeRunner::taken).collect()
    }

    /// A counter of `/metrics`; 0 while it is not there.
    ///
    /// # Panics
    /// When its value is no number.
    pub async fn metric(&self, series: &str) -> u64 {
        let (_, text) = self.get("/metrics").await;
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().expect("a number"))
    }

    /// Waits until a gauge of `/metrics` has this value.
    pub async fn wait_metric(&self, series: &str, value: u64) {
        let reached = async {
            while self.metric(series).await != value {
                sleep(POLL).await;
            }
        };
        soon(&format!("{series} = {value}"), reached).await;
    }
}

/// A page over plain HTTP/1.1.
///
/// # Panics
/// When there is no answer.
pub async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n");
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = soon("an admin page", exchange).await.expect("an admin page");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a response");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, body.to_owned())
}
