//! Third-party programs: gRPC clients that use other libraries, KRM functions that use other SDKs,
//! and installed tools. `tests/run` builds missing programs. It skips the tests of programs that it
//! cannot build or install.

use std::path::PathBuf;

use serde_json::Value;

use crate::process::Sandbox;

/// The path of a program of `tests/clients`.
pub fn client(name: &str) -> PathBuf {
    built("clients", name)
}

/// The path of a KRM function of `tests/functions`.
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

/// The path of the first program on `PATH` that has one of these names.
pub fn installed(names: &[&str]) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut programs =
        std::env::split_paths(&path).flat_map(|directory| names.iter().map(move |name| directory.join(name)));
    let found = programs.find(|program| program.is_file());
    found.unwrap_or_else(|| panic!("{names:?} is missing: tests/run --install installs it"))
}

/// The output of `grpcgo` or `grpcpy`, which tests/clients/README.md describes.
#[derive(Debug)]
pub struct Report(Value);

impl Report {
    /// Runs the client and parses its output.
    pub async fn of(sandbox: &Sandbox, client: &PathBuf, args: &[&str]) -> Self {
        let ended = sandbox.run(client, args, b"").await;
        let stdout = String::from_utf8_lossy(&ended.stdout);
        let report = serde_json::from_str(&stdout);
        let stderr = String::from_utf8_lossy(&ended.stderr);
        Self(report.unwrap_or_else(|_| panic!("{} {args:?}: {stdout}{stderr}", client.display())))
    }

    pub fn code(&self) -> &str {
        self.0["code"].as_str().unwrap_or_default()
    }

    pub fn message(&self) -> &str {
        self.0["message"].as_str().unwrap_or_default()
    }

    pub fn log(&self) -> &str {
        self.0["log"].as_str().unwrap_or_default()
    }

    /// The time from the first call's start to the last call's end.
    pub fn elapsed(&self) -> std::time::Duration {
        std::time::Duration::from_secs_f64(self.0["elapsed_ms"].as_f64().unwrap_or_default() / 1000.0)
    }

    /// The number of connections. Only `grpcgo` can count them.
    pub fn connections(&self) -> Option<u64> {
        self.0["connections"].as_u64()
    }

    /// Asserts that all calls succeeded with the same answer.
    #[track_caller]
    pub fn assert_succeeded(&self, calls: u64) {
        assert_eq!(self.0["count"], serde_json::json!({ "OK": calls }), "{}", self.0);
        assert_eq!(self.0["equal"], true, "{}", self.0);
    }
}
