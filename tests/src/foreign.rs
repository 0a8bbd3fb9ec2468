//! Programs that are not ours: gRPC clients on other libraries, and KRM functions on others' SDKs.
//!
//! `tests/run` builds them. A machine may lack the tools for some: it says so in `PORCH_FN_TEST_SKIP`, whose
//! programs are skipped here and counted there. Any other that is missing fails its tests, so that a path gone
//! wrong cannot turn them all green.

use std::path::PathBuf;

use serde_json::Value;

use crate::process::Sandbox;

/// A client or server of `tests/clients`, unless it is to be skipped.
pub fn client(name: &str) -> Option<PathBuf> {
    find("clients", name)
}

/// A KRM function of `tests/functions`, unless it is to be skipped.
pub fn function(name: &str) -> Option<PathBuf> {
    find("functions", name)
}

/// # Panics
/// When the program is neither built nor skipped.
fn find(kind: &str, name: &str) -> Option<PathBuf> {
    let skipped = std::env::var("PORCH_FN_TEST_SKIP").unwrap_or_default();
    if skipped.split_whitespace().any(|skipped| skipped == name) {
        eprintln!("skipped: {name} cannot be built on this machine");
        return None;
    }
    let cache = std::env::var_os("PORCH_FN_TEST_CACHE")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".cache"), PathBuf::from);
    let path = cache.join(kind).join(name);
    assert!(path.is_file(), "{} is missing: tests/{kind}/build makes it", path.display());
    Some(path)
}

/// What one of the two clients reports; tests/clients/README.md describes it.
#[derive(Debug)]
pub struct Report(Value);

impl Report {
    /// Runs `grpcgo` or `grpcpy`.
    ///
    /// # Panics
    /// When it makes no call.
    pub async fn of(sandbox: &Sandbox, client: &PathBuf, args: &[&str]) -> Self {
        let ended = sandbox.run(client, args, b"").await;
        let stdout = String::from_utf8_lossy(&ended.stdout);
        let report = serde_json::from_str(&stdout);
        let stderr = String::from_utf8_lossy(&ended.stderr);
        Self(report.unwrap_or_else(|_| panic!("{} {args:?}: {stdout}{stderr}", client.display())))
    }

    /// The code of the first call that failed, else `OK`.
    pub fn code(&self) -> &str {
        self.0["code"].as_str().unwrap_or_default()
    }

    /// Its message.
    pub fn message(&self) -> &str {
        self.0["message"].as_str().unwrap_or_default()
    }

    /// The log of the first call that succeeded.
    pub fn log(&self) -> &str {
        self.0["log"].as_str().unwrap_or_default()
    }

    /// How long all calls took.
    pub fn elapsed(&self) -> std::time::Duration {
        std::time::Duration::from_secs_f64(self.0["elapsed_ms"].as_f64().unwrap_or_default() / 1000.0)
    }

    /// Connections made, where the client can count them.
    pub fn connections(&self) -> Option<u64> {
        self.0["connections"].as_u64()
    }

    /// Asserts that all of `calls` calls succeeded with the same answer.
    ///
    /// # Panics
    /// When one did not.
    #[track_caller]
    pub fn succeeded(&self, calls: u64) {
        assert_eq!(self.0["count"], serde_json::json!({ "OK": calls }), "{}", self.0);
        assert_eq!(self.0["equal"], true, "{}", self.0);
    }
}
