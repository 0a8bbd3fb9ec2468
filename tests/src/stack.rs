//! A router and runners in this process, as in `porch-fn up`. Their pods are local wrapper-servers
//! that run shell scripts.

use std::ffi::OsString;
use std::net::SocketAddr;

use porch_fn_flags::LogFormat;
use porch_fn_router as router;
use porch_fn_runner as runner;
use porch_fn_runner::pods::ImageCommands;
use porch_fn_runner::pods::local::{LocalCluster, LocalOptions};
use porch_fn_status_page::Status;
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep};

use crate::client::Client;
use crate::fleet::{PREFIX, start_router};
use crate::process::{Sandbox, binary, get_json, wait_runners_healthy};

/// Starts a runner in this process, with additional flags.
pub async fn start_runner(
    args: impl IntoIterator<Item: Into<OsString>>,
    pods: Option<LocalCluster>,
) -> runner::App {
    let own = ["porch-fn-runner", "--address=127.0.0.1", "--port=0", "--admin-port=0"].map(OsString::from);
    let args = own.into_iter().chain(args.into_iter().map(Into::into));
    let (flags, set) = porch_fn_flags::parse_with_set::<runner::Flags>(args).expect("valid flags");
    runner::start(flags, &set, pods).await.expect("a runner")
}

/// A router, its runners and their pods. All end when this value is dropped.
#[derive(Debug)]
pub struct Stack {
    /// The folder of the functions' scripts.
    pub sandbox: Sandbox,
    /// A test ends the router by setting this field to `None`.
    pub router: Option<router::App>,
    pub runners: Vec<runner::App>,
    admin: SocketAddr,
    callers: JoinSet<()>,
}

impl Stack {
    /// Starts a router, and runners with the flags `more`. Each function is given as an image name
    /// (to which the default prefix is added) and a script.
    pub async fn start(runners: usize, more: &[&str], functions: &[(&str, &str)]) -> Self {
        let sandbox = Sandbox::new();
        let mut local = ImageCommands::default();
        for (number, (image, script)) in functions.iter().enumerate() {
            let path = sandbox.script(&format!("functions/{number}"), script);
            local.add(image, vec![path.display().to_string()], PREFIX).expect("a function");
        }
        // The sandbox recognizes its processes by the variable TMPDIR.
        let mark = format!("TMPDIR={}", sandbox.directory().display());
        let pods = LocalCluster::new(LocalOptions {
            wrapper: vec!["env".into(), mark.into(), binary("wrapper-server").into()],
            max_message: 6_291_456,
            log_level: 0,
            log_format: LogFormat::Text,
            functions: local,
            sandboxes: None,
        });
        let mut started = Vec::new();
        for _ in 0..runners {
            started.push(start_runner(more, Some(pods.clone())).await);
        }
        let router = start_router(started.iter().map(runner::App::address), &[]).await;
        let admin = router.admin_address();
        wait_runners_healthy(admin).await;
        Self { sandbox, router: Some(router), runners: started, admin, callers: JoinSet::new() }
    }

    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// A client of the router. Panics if a test has ended the router.
    pub fn client(&self) -> Client {
        Client::new(self.router.as_ref().expect("a router").address())
    }

    /// The router's `/status.json`.
    pub async fn status(&self) -> Status {
        serde_json::from_value(get_json(self.admin, "/status.json").await).expect("the page")
    }

    /// Starts `callers` callers that call `image` until the stack is dropped. Each pauses after an
    /// answer.
    pub fn keep_calling(&mut self, image: &'static str, callers: usize, pause: Duration) {
        for _ in 0..callers {
            let client = self.client();
            self.callers.spawn(async move {
                loop {
                    // The call may fail, because a test may end the router.
                    let _ = client.try_call(image, "kind: ResourceList\n", None).await;
                    sleep(pause).await;
                }
            });
        }
    }
}
