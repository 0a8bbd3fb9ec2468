//! What a scalar without quotes stands for.
//!
//! YAML's versions and libraries differ in this, so there are two questions: may anybody take the text for
//! something other than a string, and do two spellings mean one value to Kubernetes.

/// Words that YAML 1.1 or 1.2 reads as a boolean or null, in lower case.
const WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];

/// True for plain text that some YAML version reads as null, a boolean, a number, a date or a merge key.
pub(super) fn may_be_special(text: &str) -> bool {
    let is_digit = |c: char| c.is_ascii_digit();
    let lower = text.to_ascii_lowercase();
    let unsigned = lower.strip_prefix(['+', '-']).unwrap_or(&lower);
    let is_word = matches!(text, "" | "~" | "<<" | "=") || WORDS.contains(&lower.as_str());
    let is_date = text.split_once('-').is_some_and(|(year, _)| year.len() == 4 && year.chars().all(is_digit));
    // To the base of 60, as in 12:30:45.
    let is_sexagesimal = unsigned.starts_with(is_digit)
        && unsigned.contains(':')
        && unsigned.chars().all(|c| is_digit(c) || matches!(c, ':' | '.' | '_'));
    is_word || is_date || is_sexagesimal || matches!(unsigned, ".inf" | ".nan") || canonical(text).is_some()
}

/// A value in one spelling.
#[derive(Debug, PartialEq)]
pub(super) enum Canonical {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
}

/// What Go's YAML library, and so Kubernetes, reads: YAML 1.2 with the octal numbers of 1.1. `None` for
/// everything else.
pub(super) fn canonical(text: &str) -> Option<Canonical> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Some(Canonical::Null),
        "true" | "True" | "TRUE" => return Some(Canonical::Bool(true)),
        "false" | "False" | "FALSE" => return Some(Canonical::Bool(false)),
        _ => {}
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let sign = if text.starts_with('-') { -1 } else { 1 };
    let digits = text.replace('_', "").to_ascii_lowercase();
    if let Some(integer) = integer(digits.trim_start_matches(['+', '-'])) {
        return Some(Canonical::Integer(sign * integer));
    }
    let float: f64 = digits.parse().ok()?;
    Some(whole(float).map_or(Canonical::Float(float), Canonical::Integer))
}

/// An integer without a sign.
fn integer(digits: &str) -> Option<i128> {
    // Rust would take a sign behind the prefix.
    if digits.contains(['+', '-']) {
        return None;
    }
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2), ("0", 8)]
        .into_iter()
        .find_map(|(prefix, radix)| i128::from_str_radix(digits.strip_prefix(prefix)?, radix).ok());
    prefixed.or_else(|| digits.parse().ok())
}

/// JSON does not tell 1000.0 from 1000.
fn whole(float: f64) -> Option<i128> {
    // From 2^53 on, a float stands for more than one integer.
    (float.fract() == 0.0 && float.abs() < 9_007_199_254_740_992.0).then_some(float as i128)
}
