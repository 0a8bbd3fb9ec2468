//! Finds the commit and the date that `--version` prints.
//!
//! The date is that of `SOURCE_DATE_EPOCH` or of the commit, and not today's. So two builds of one
//! commit give the same bytes.

use std::env;
use std::path::Path;
use std::process::Command;

/// Printed if there is neither the variable nor a git repository.
const UNKNOWN: &str = "unknown";
/// Length of a short commit id.
const SHORT: usize = 12;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Git writes this log at each commit and checkout.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|log| Path::new(log).exists());
    if let Some(log) = log {
        println!("cargo::rerun-if-changed={log}");
    }
    let commit = variable("PORCH_FN_COMMIT").or_else(|| git(&["rev-parse", "HEAD"]));
    let commit = commit.map(|commit| commit.chars().take(SHORT).collect());
    let seconds = variable("SOURCE_DATE_EPOCH").or_else(|| git(&["log", "-1", "--format=%ct"]));
    let date = seconds.and_then(|seconds| date(seconds.parse().ok()?));
    for (name, value) in [("PORCH_FN_COMMIT", commit), ("PORCH_FN_DATE", date)] {
        println!("cargo::rustc-env={name}={}", value.unwrap_or_else(|| UNKNOWN.to_owned()));
    }
}

/// Returns the variable's value, unless it is empty.
fn variable(name: &str) -> Option<String> {
    println!("cargo::rerun-if-env-changed={name}");
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns git's answer about the repository of this file. Without git, and if a repository of
/// something else is around this folder, there is none.
fn git(args: &[&str]) -> Option<String> {
    let run = |args: &[&str]| {
        let ended = Command::new("git").args(args).output().ok().filter(|ended| ended.status.success())?;
        String::from_utf8(ended.stdout).ok().map(|text| text.trim().to_owned())
    };
    run(&["ls-files", "--error-unmatch", "build.rs"])?;
    run(args)
}

/// Returns the day, in UTC, of a time in seconds since 1970.
fn date(seconds: i64) -> Option<String> {
    let time = jiff::Timestamp::from_second(seconds).ok()?.to_string();
    time.split('T').next().map(str::to_owned)
}
