//! What doctor reports.

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
    /// It works, and should be fixed.
    Warning,
    /// Calls fail, or will.
    Problem,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// The check that found it: two words at most.
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
    /// A finding of a check whose name the table of checks adds.
    pub(super) fn new(level: Level, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { check: "", level, text: text.into(), fix: fix.into() }
    }

    pub(super) fn ok(text: impl Into<String>) -> Self {
        Self::new(Level::Ok, text, "")
    }

    pub(super) fn info(text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(Level::Info, text, fix)
    }

    pub(super) fn unknown(text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(Level::Unknown, text, fix)
    }

    pub(super) fn warning(text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(Level::Warning, text, fix)
    }

    pub(super) fn problem(text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(Level::Problem, text, fix)
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

    /// The report for people is that of the golden tests.
    #[test]
    fn programs_get_each_finding_with_its_fix() {
        let findings = [Finding::ok("2 of 2 ready"), Finding::problem("they differ", "make them the same")];
        let read: serde_json::Value = serde_json::from_str(&json(&findings)).unwrap();
        let expected = serde_json::json!([
            {"check": "", "level": "ok", "text": "2 of 2 ready"},
            {"check": "", "level": "problem", "text": "they differ", "fix": "make them the same"},
        ]);
        assert_eq!(read, expected);
    }
}
