//! Tests of whole servers in this process, each on free ports, and of values in the manifests of
//! deploy/.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod inflight;
mod manifests;
mod rights;
mod router;
mod runner;
mod settings;
mod wrapper;

use porch_fn_runner::{App, Flags, start};
use porch_fn_tests::client::Client;
use porch_fn_tests::process::Sandbox;

/// A runner in this process whose executables are shell scripts.
struct Runner {
    sandbox: Sandbox,
    app: App,
    client: Client,
}

impl Runner {
    /// Each function consists of its images, separated by commas, and a script. In the script,
    /// `$TMPDIR` is the sandbox.
    async fn start(functions: &[(&str, &str)], flags: &[&str]) -> Self {
        let sandbox = Sandbox::new();
        let own = ["porch-fn-runner", "--address=127.0.0.1", "--port=0", "--admin-port=0"];
        let executables = sandbox.executables(functions);
        let args = own.iter().map(Into::into).chain(executables).chain(flags.iter().map(Into::into));
        let (flags, set) = porch_fn_flags::parse_with_set::<Flags>(args).unwrap();
        let app = start(flags, &set, None).await.unwrap();
        let client = Client::new(app.address());
        Self { sandbox, app, client }
    }
}
