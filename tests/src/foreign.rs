//! Programs that are not ours: gRPC clients on other libraries, KRM functions on other SDKs, and
//! tools of the machine. `tests/run` builds what is missing, and runs no tests of programs that it
//! could not get.

use std::path::PathBuf;

use serde_json::Value;

use crate::process::Sandbox;

/// A client or server of `tests/clients`.
pub fn client(name: &str) -> PathBuf {
    built("clients", name)
}

/// A KRM function of `tests/functions`.
pub fn function(name: &str) -> PathBuf {
    built("functions", name)
}

fn built(kind: &str, name: &str) -> PathBuf {
    let cache = std::env::var_os("PORCH_FN_TEST_CACHE")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".cache"), PathBuf::from);
    let path = cache.join(kind).join(name);
    assert!(path.is_file(), "{} is missing: tests/{kind}/build makes it", path.display());
    path
}

/// A program on `PATH`, which may have any of these names.
pub fn installed(names: &[&str]) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut programs =
        std::env::split_paths(&path).flat_map(|directory| names.iter().map(move |name| directory.join(name)));
    let found = programs.find(|program| program.is_file());
    found.unwrap_or_else(|| panic!("{names:?} is missing: tests/run --install installs it"))
}

/// What `grpcgo` or `grpcpy` prints; tests/clients/README.md describes it.
#[derive(Debug)]
pub struct Report(Value);

impl Report {
    /// Runs one of the two.
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
    #[track_caller]
    pub fn succeeded(&self, calls: u64) {
        assert_eq!(self.0["count"], serde_json::json!({ "OK": calls }), "{}", self.0);
        assert_eq!(self.0["equal"], true, "{}", self.0);
    }
}
