//! The findings that doctor reports.

use std::fmt::Write as _;

use serde::Serialize;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// Nothing is wrong.
    Ok,
    /// Possibly intended, but worth knowing.
    Info,
    /// Doctor could not check it.
    Unknown,
    /// It works, but should be fixed.
    Warning,
    /// Calls fail or will fail.
    Problem,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// Name of the check, at most two words.
    pub(super) check: &'static str,
    pub(super) level: Level,
    /// What was found.
    pub(super) text: String,
    /// How to fix it; empty if there is nothing to fix.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) fix: String,
}

impl Finding {
    /// The only finding if there are no facts to check.
    pub(super) fn unreachable(text: String) -> Self {
        Self { check: "cluster", level: Level::Unknown, text, fix: String::new() }
    }
}

/// The findings of one check.
#[derive(Debug)]
pub(super) struct Report {
    check: &'static str,
    pub(super) findings: Vec<Finding>,
}

// === impl Report ===

impl Report {
    pub(super) fn new(check: &'static str) -> Self {
        Self { check, findings: Vec::new() }
    }

    /// Returns whether the check has reported nothing yet.
    pub(super) fn is_empty(&self) -> bool {
        self.findings.is_empty()
    }

    pub(super) fn add(&mut self, level: Level, text: impl Into<String>, fix: impl Into<String>) {
        self.findings.push(Finding { check: self.check, level, text: text.into(), fix: fix.into() });
    }

    pub(super) fn ok(&mut self, text: impl Into<String>) {
        self.add(Level::Ok, text, "");
    }

    pub(super) fn info(&mut self, text: impl Into<String>, fix: impl Into<String>) {
        self.add(Level::Info, text, fix);
    }

    pub(super) fn unknown(&mut self, text: impl Into<String>, fix: impl Into<String>) {
        self.add(Level::Unknown, text, fix);
    }

    pub(super) fn warning(&mut self, text: impl Into<String>, fix: impl Into<String>) {
        self.add(Level::Warning, text, fix);
    }

    pub(super) fn problem(&mut self, text: impl Into<String>, fix: impl Into<String>) {
        self.add(Level::Problem, text, fix);
    }
}

/// Formats the findings for people: each finding with its fix below, then a line with counts.
pub(super) fn text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or_default();
    let mut text = String::new();
    for Finding { check, level, text: found, fix } in findings {
        let word = ["ok", "info", "unknown", "warning", "PROBLEM"][*level as usize];
        let _ = writeln!(text, "{word:<9}{check:<width$}   {found}");
        if !fix.is_empty() {
            let what = if *level == Level::Info { "to change it" } else { "fix" };
            let _ = writeln!(text, "{:<9}{:<width$}   {what}: {fix}", "", "");
        }
    }
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (problems, warnings, unknown) = (count(Level::Problem), count(Level::Warning), count(Level::Unknown));
    let _ = writeln!(text, "\nproblems: {problems}, warnings: {warnings}, not checked: {unknown}");
    text
}
