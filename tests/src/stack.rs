//! A router and runners in this process, with real pods: wrapper-servers of this machine that run shell scripts. As
//! `porch-fn up` has it.

use std::net::SocketAddr;

use porch_fn_router as router;
use porch_fn_runner as runner;
use porch_fn_runner::pods::local::{LocalCluster, LocalFunctions, LocalOptions};
use porch_fn_status_page::Status;
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep};

use crate::client::Client;
use crate::fleet::{PREFIX, get};
use crate::process::{Sandbox, binary, eventually};

const INPUT: &str = "kind: ResourceList\n";

/// Router, runners and their pods. Ends when it is dropped.
#[derive(Debug)]
pub struct Stack {
    /// Where the functions' scripts are; `$TMPDIR` for them.
    pub sandbox: Sandbox,
    /// Taken by tests that end it.
    pub router: Option<router::App>,
    /// Each may be ended by dropping it.
    pub runners: Vec<runner::App>,
    admin: SocketAddr,
    callers: JoinSet<()>,
}

impl Stack {
    /// So many runners, with more flags, and functions: an image without the default prefix, and its script.
    ///
    /// # Panics
    /// When they do not start.
    pub async fn start(runners: usize, more: &[&str], functions: &[(&str, &str)]) -> Self {
        let sandbox = Sandbox::new();
        let mut local = LocalFunctions::default();
        for (number, (image, script)) in functions.iter().enumerate() {
            let path = sandbox.script(&format!("functions/{number}"), script);
            local.add(image, vec![path.display().to_string()], PREFIX).expect("a function");
        }
        // By its temporary directory a process is known as one of the sandbox.
        let mark = format!("TMPDIR={}", sandbox.directory().display());
        let pods = LocalCluster::new(LocalOptions {
            wrapper: vec!["env".into(), mark.into(), binary("wrapper-server").into()],
            max_message: 6_291_456,
            log_level: 0,
            functions: local.clone(),
        });
        let own = ["porch-fn-runner", "--address=127.0.0.1", "--port=0", "--admin-port=0"];
        let args = own.iter().chain(more).map(Into::into);
        let (flags, set) = porch_fn_flags::parse_with_set::<runner::Flags>(args).expect("flags");
        let mut started = Vec::new();
        for _ in 0..runners {
            let shared = runner::Pods::Shared(pods.clone(), local.clone());
            started.push(runner::start(flags.clone(), &set, shared).await.expect("a runner"));
        }
        let targets: Vec<_> = started.iter().map(|runner| runner.address().to_string()).collect();
        let target = format!("--runners=static:///{}", targets.join(","));
        let args = ["porch-fn-router", "--address=127.0.0.1", "--port=0", "--admin-port=0", &target];
        let flags: router::Flags = porch_fn_flags::parse(args.iter().map(Into::into)).expect("flags");
        let router = router::start(flags).await.expect("a router");
        let admin = router.admin_address();
        let stack = Self { sandbox, router: Some(router), runners: started, admin, callers: JoinSet::new() };
        eventually("all runners are healthy", async || {
            stack.status().await.shards.iter().all(|shard| shard.info.state == "healthy").then_some(())
        })
        .await;
        stack
    }

    /// The router's admin port.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// A client of the router.
    ///
    /// # Panics
    /// When it has been taken.
    pub fn client(&self) -> Client {
        Client::new(self.router.as_ref().expect("a router").address())
    }

    /// The router's `/status.json`.
    ///
    /// # Panics
    /// When it is not that.
    pub async fn status(&self) -> Status {
        let (status, page) = get(self.admin, "/status.json").await;
        assert_eq!(status, 200, "{page}");
        serde_json::from_str(&page).expect("the page")
    }

    /// Has `callers` call `image` over and over, each with this pause after an answer, until the stack is dropped.
    pub fn keep_calling(&mut self, image: &'static str, callers: usize, pause: Duration) {
        for _ in 0..callers {
            let client = self.client();
            self.callers.spawn(async move {
                loop {
                    // It may fail, and ends in the middle with the test.
                    let _ = client.try_call(image, INPUT, None).await;
                    sleep(pause).await;
                }
            });
        }
    }
}
