//! What the doctor says.

use std::fmt::Write as _;

use serde::Serialize;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// As it may be meant, and worth knowing.
    Info,
    /// It could not be looked at.
    Unknown,
    /// It works, and should be mended.
    Warning,
    /// Calls fail, or will.
    Problem,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// What was looked at: two words at most.
    pub(super) check: &'static str,
    pub(super) level: Level,
    /// What was found.
    pub(super) text: String,
    /// What to do about it; empty where there is nothing to do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) fix: String,
}

// === impl Finding ===

impl Finding {
    pub(super) fn ok(check: &'static str, text: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, text: text.into(), fix: String::new() }
    }

    pub(super) fn info(check: &'static str, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, level: Level::Info, text: text.into(), fix: fix.into() }
    }

    pub(super) fn unknown(check: &'static str, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, level: Level::Unknown, text: text.into(), fix: fix.into() }
    }

    pub(super) fn warning(check: &'static str, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, level: Level::Warning, text: text.into(), fix: fix.into() }
    }

    pub(super) fn problem(check: &'static str, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check, level: Level::Problem, text: text.into(), fix: fix.into() }
    }

    /// Whether this is how things look for seconds after a change.
    pub(super) fn may_pass(&self) -> bool {
        const LIVE: [&str; 5] = ["configuration", "discovery", "executables", "reachability", "ring"];
        self.level >= Level::Warning && LIVE.contains(&self.check)
    }
}

/// For people: each finding with its fix below, and a last line that counts.
pub(super) fn report(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or_default();
    let mut text = String::new();
    for finding in findings {
        let _ = writeln!(text, "{:<9}{:<width$}   {}", finding.level.word(), finding.check, finding.text);
        if !finding.fix.is_empty() {
            let what = if finding.level == Level::Info { "to change it" } else { "fix" };
            let _ = writeln!(text, "{:<9}{:<width$}   {what}: {}", "", "", finding.fix);
        }
    }
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (problems, warnings, unknown) = (count(Level::Problem), count(Level::Warning), count(Level::Unknown));
    let _ = writeln!(text, "\nproblems: {problems}, warnings: {warnings}, not looked at: {unknown}");
    text
}

/// For programs: an array of findings.
pub(super) fn json(findings: &[Finding]) -> String {
    // Strings alone: serialising cannot fail.
    serde_json::to_string_pretty(findings).unwrap_or_default()
}

// === impl Level ===

impl Level {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::Unknown => "unknown",
            Self::Warning => "warning",
            Self::Problem => "PROBLEM",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_each_finding_with_its_fix() {
        let findings = [
            Finding::ok("routers", "2 of 2 ready"),
            Finding::info("Porch", "it calls a", "call b"),
            Finding::problem("message sizes", "they differ", "make them the same"),
        ];
        assert_eq!(
            report(&findings),
            "ok       routers         2 of 2 ready\n\
             info     Porch           it calls a\n\
             \x20                        to change it: call b\n\
             PROBLEM  message sizes   they differ\n\
             \x20                        fix: make them the same\n\
             \nproblems: 1, warnings: 0, not looked at: 0\n"
        );
        let json: serde_json::Value = serde_json::from_str(&json(&findings)).unwrap();
        assert_eq!(json[0], serde_json::json!({"check": "routers", "level": "ok", "text": "2 of 2 ready"}));
        assert_eq!(json[1]["level"], "info");
        assert_eq!(json[2]["fix"], "make them the same");
    }
}
