//! Tests of whole servers in this process, and of the manifests in deploy/.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod dependencies;
mod detail;
mod inflight;
mod manifests;
mod rights;
mod router;
mod runner;
mod settings;
mod wrapper;

use porch_fn_runner::App;
use porch_fn_tests::client::Client;
use porch_fn_tests::process::Sandbox;
use porch_fn_tests::stack::start_runner;

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
        let args = sandbox.executables(functions).into_iter().chain(flags.iter().map(Into::into));
        let app = start_runner(args, None).await;
        let client = Client::new(app.address());
        Self { sandbox, app, client }
    }
}
