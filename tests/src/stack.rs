//! A router and runners in this process, as `porch-fn up` has them. Their pods are wrapper-servers
//! of this machine that run shell scripts.

use std::net::SocketAddr;

use porch_fn_router as router;
use porch_fn_runner as runner;
use porch_fn_runner::pods::ImageCommands;
use porch_fn_runner::pods::local::{LocalCluster, LocalOptions};
use porch_fn_status_page::Status;
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep};

use crate::client::Client;
use crate::fleet::{PREFIX, start_router};
use crate::process::{Sandbox, binary, get_json, until_runners_are_healthy};

/// Router, runners and their pods. Ends when it is dropped.
#[derive(Debug)]
pub struct Stack {
    /// Where the functions' scripts are.
    pub sandbox: Sandbox,
    /// Taken by tests that end it.
    pub router: Option<router::App>,
    /// Dropping one ends it.
    pub runners: Vec<runner::App>,
    admin: SocketAddr,
    callers: JoinSet<()>,
}

impl Stack {
    /// Functions are an image without the default prefix, and its script.
    pub async fn start(runners: usize, more: &[&str], functions: &[(&str, &str)]) -> Self {
        let sandbox = Sandbox::new();
        let mut local = ImageCommands::default();
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
            functions: local,
        });
        let own = ["porch-fn-runner", "--address=127.0.0.1", "--port=0", "--admin-port=0"];
        let args = own.iter().chain(more).map(Into::into);
        let (flags, set) = porch_fn_flags::parse_with_set::<runner::Flags>(args).expect("flags");
        let mut started = Vec::new();
        for _ in 0..runners {
            started.push(runner::start(flags.clone(), &set, Some(pods.clone())).await.expect("a runner"));
        }
        let router = start_router(started.iter().map(runner::App::address), &[]).await;
        let admin = router.admin_address();
        until_runners_are_healthy(admin).await;
        Self { sandbox, router: Some(router), runners: started, admin, callers: JoinSet::new() }
    }

    /// The router's admin port.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// A client of the router, which must not have been taken.
    pub fn client(&self) -> Client {
        Client::new(self.router.as_ref().expect("a router").address())
    }

    /// The router's `/status.json`.
    pub async fn status(&self) -> Status {
        serde_json::from_value(get_json(self.admin, "/status.json").await).expect("the page")
    }

    /// Has `callers` call `image` over and over, each with this pause after an answer, until the
    /// stack is dropped.
    pub fn keep_calling(&mut self, image: &'static str, callers: usize, pause: Duration) {
        for _ in 0..callers {
            let client = self.client();
            self.callers.spawn(async move {
                loop {
                    // It may fail, and the end of the test interrupts it.
                    let _ = client.try_call(image, "kind: ResourceList\n", None).await;
                    sleep(pause).await;
                }
            });
        }
    }
}
