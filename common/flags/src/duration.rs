//! Durations in Go's format, which existing manifests and documentation use.

use std::{fmt, str::FromStr, time::Duration};

use super::values::quote;

/// A non-negative duration that parses and prints like Go's `time.Duration`: `30m` in, `30m0s` out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GoDuration(pub Duration);

const SYNTAX: &str = "is not a duration; use forms such as 30m, 1h30m, 500ms";
/// The error for a negative duration: no flag of ours accepts one.
const NEGATIVE: &str = "is negative; use 0 or forms such as 30m, 1h30m, 500ms";
/// The error above the maximum of Go's type, about 292 years.
const TOO_LONG: &str = "is too long; use at most 2562047h";

/// Go's units in seconds. Go accepts both Unicode characters for micro.
const UNITS: [(&str, f64); 8] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("\u{b5}s", 1e-6),
    ("\u{3bc}s", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

/// The maximum duration of Go.
const MAX: Duration = Duration::from_nanos(i64::MAX as u64);

/// Parses Go's format: one or more decimal numbers, each with a unit (`ns`, `us`, `ms`, `s`, `m`,
/// `h`), or `0`.
///
/// # Errors
/// A text that quotes the input and names accepted forms.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let error = |problem| format!("{} {problem}", quote(text));
    if text.starts_with('-') {
        return Err(error(NEGATIVE));
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    let is_number = |c: char| c == '.' || c.is_ascii_digit();
    let mut total = Duration::ZERO;
    loop {
        let (number, after) = rest.split_at(rest.find(|c| !is_number(c)).unwrap_or(rest.len()));
        let (unit, after) = after.split_at(after.find(is_number).unwrap_or(after.len()));
        // `number` has only digits and points, so a sign, an exponent or a word is an error.
        let number: f64 = number.parse().map_err(|_| error(SYNTAX))?;
        let (_, seconds) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(|| error(SYNTAX))?;
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| error(TOO_LONG))?;
        total = total.checked_add(part).filter(|total| *total <= MAX).ok_or_else(|| error(TOO_LONG))?;
        rest = after;
        if rest.is_empty() {
            return Ok(total);
        }
    }
}

// === impl GoDuration ===

impl FromStr for GoDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_duration(text).map(Self)
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = f64::from(self.0.subsec_nanos());
        let seconds = self.0.as_secs();
        match (seconds, self.0.subsec_nanos()) {
            (0, 0) => return f.write_str("0s"),
            (0, 1..1_000) => return write!(f, "{nanos}ns"),
            (0, 1_000..1_000_000) => return write!(f, "{}\u{b5}s", nanos / 1e3),
            (0, _) => return write!(f, "{}ms", nanos / 1e6),
            _ => {}
        }
        if seconds >= 3600 {
            write!(f, "{}h", seconds / 3600)?;
        }
        if seconds >= 60 {
            write!(f, "{}m", seconds / 60 % 60)?;
        }
        // The number has at most eleven digits, which a float prints exactly.
        write!(f, "{}s", ((seconds % 60) as f64 * 1e9 + nanos) / 1e9)
    }
}

impl From<GoDuration> for Duration {
    fn from(duration: GoDuration) -> Self {
        duration.0
    }
}

/// Parses a duration flag that must not be zero.
///
/// # Errors
/// When it is not a duration, or shorter than a millisecond.
pub fn positive(text: &str) -> Result<GoDuration, String> {
    let duration = parse_duration(text)?;
    if duration < Duration::from_millis(1) {
        return Err("at least 1ms is needed".to_owned());
    }
    Ok(GoDuration(duration))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_parsed_and_printed_like_in_go() {
        let ns = Duration::from_nanos;
        for (text, expected, printed) in [
            ("+0", Duration::ZERO, "0s"),
            ("+5s", Duration::from_secs(5), "5s"),
            ("30m", Duration::from_mins(30), "30m0s"),
            ("1.5h", Duration::from_mins(90), "1h30m0s"),
            (".5s", Duration::from_millis(500), "500ms"),
            ("1.s", Duration::from_secs(1), "1s"),
            ("1100ns", ns(1100), "1.1\u{b5}s"),
            ("1m1.5s2ms3us4\u{b5}s5\u{3bc}s6ns", ns(61_502_012_006), "1m1.502012006s"),
            ("10.5s4m", ns(250_500_000_000), "4m10.5s"),
            ("0.3333333333333333333h", Duration::from_mins(20), "20m0s"),
            ("2562047h47m16.854775807s", MAX, "2562047h47m16.854775807s"),
        ] {
            assert_eq!(parse_duration(text), Ok(expected), "{text}");
            assert_eq!(GoDuration(expected).to_string(), printed);
        }
        for (texts, problem) in [
            (
                &["", "+", "3", "00", "s", ".", ".s", "1.2.3s", "1h 30m", "1x", "1e3s", "1s2", "+-5s"][..],
                SYNTAX,
            ),
            (&["-1s", "-", "-0", "-x"], NEGATIVE),
            (&["2562047h47m16.854775808s", "2562048h", "99999999999999999999s"], TOO_LONG),
        ] {
            for text in texts {
                assert!(parse_duration(text).unwrap_err().ends_with(problem), "{text}");
            }
        }
    }

    proptest! {
        #[test]
        fn durations_survive_printing_and_parsing(nanos in 0..=i64::MAX as u64) {
            let duration = GoDuration(Duration::from_nanos(nanos));
            prop_assert_eq!(duration.to_string().parse::<GoDuration>(), Ok(duration));
        }
    }
}
