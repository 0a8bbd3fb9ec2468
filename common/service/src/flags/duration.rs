//! Durations as Go writes them, since manifests and documentation carry Go's form.

use std::{fmt, str::FromStr, time::Duration};

use super::values::quote;

/// A non-negative duration that parses and prints as Go's `time.Duration` does: `30m` in, `30m0s` out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GoDuration(pub Duration);

/// A text that is not a duration we accept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Not in Go's form.
    #[error("{} is not a duration; use forms such as 30m, 1h30m, 500ms", quote(.0))]
    Syntax(String),
    /// Below zero, which none of our flags can mean.
    #[error("{} is negative; use 0 or forms such as 30m, 1h30m, 500ms", quote(.0))]
    Negative(String),
    /// Past what Go's type holds, about 292 years.
    #[error("{} is too long; use at most 2562047h", quote(.0))]
    TooLong(String),
}

/// Go's units in nanoseconds. Both spellings of micro are Go's.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// The longest duration of Go, in nanoseconds.
const MAX_NANOS: u64 = i64::MAX as u64;

/// Parses Go's form: one or more of a decimal number with a unit (`ns`, `us`, `ms`, `s`, `m`, `h`), or `0`.
///
/// # Errors
/// [`DurationError`], whose text quotes the input and names forms that are accepted.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let unsigned = match text.as_bytes().first() {
        Some(b'-') => return Err(DurationError::Negative(text.to_owned())),
        Some(b'+') => &text[1..],
        _ => text,
    };
    if unsigned == "0" {
        return Ok(Duration::ZERO);
    }
    if unsigned.is_empty() {
        return Err(DurationError::Syntax(text.to_owned()));
    }
    let mut rest = unsigned;
    let mut total = 0_u64;
    while !rest.is_empty() {
        let (part, after) = leading_part(rest).map_err(|error| match error {
            PartError::Syntax => DurationError::Syntax(text.to_owned()),
            PartError::Overflow => DurationError::TooLong(text.to_owned()),
        })?;
        total = total
            .checked_add(part)
            .filter(|total| *total <= MAX_NANOS)
            .ok_or_else(|| DurationError::TooLong(text.to_owned()))?;
        rest = after;
    }
    Ok(Duration::from_nanos(total))
}

enum PartError {
    Syntax,
    Overflow,
}

/// Takes one number and its unit off the front: its nanoseconds, and what follows.
fn leading_part(text: &str) -> Result<(u64, &str), PartError> {
    let (whole, text) = split_digits(text);
    let (fraction, text) = match text.strip_prefix('.') {
        Some(text) => split_digits(text),
        None => ("", text),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(PartError::Syntax);
    }
    let (unit, text) =
        text.split_at(text.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(text.len()));
    let (_, unit) = UNITS.iter().find(|(name, _)| *name == unit).ok_or(PartError::Syntax)?;

    let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().map_err(|_| PartError::Overflow)? };
    let nanos = whole.checked_mul(*unit).ok_or(PartError::Overflow)?;
    // Go computes the fraction in floating point, so that 0.3333333333333333333h is 20 minutes.
    let (fraction, scale) = leading_fraction(fraction);
    let extra = (fraction as f64 * (*unit as f64 / scale)) as u64;
    Ok((nanos.checked_add(extra).ok_or(PartError::Overflow)?, text))
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// The digits as a number and the power of ten to divide it by. Digits past a `u64`'s precision are dropped.
fn leading_fraction(digits: &str) -> (u64, f64) {
    let mut value = 0_u64;
    let mut scale = 1.0;
    for digit in digits.bytes() {
        let next = value.checked_mul(10).and_then(|value| value.checked_add(u64::from(digit - b'0')));
        let Some(next) = next.filter(|next| *next <= MAX_NANOS) else { break };
        value = next;
        scale *= 10.0;
    }
    (value, scale)
}

// === impl GoDuration ===

impl FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_duration(text).map(Self)
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.subsec_nanos();
        let seconds = self.0.as_secs();
        if seconds == 0 {
            return match nanos {
                0 => f.write_str("0s"),
                1..1_000 => write!(f, "{nanos}ns"),
                1_000..1_000_000 => write!(f, "{}\u{b5}s", Decimal(u64::from(nanos), 1_000)),
                _ => write!(f, "{}ms", Decimal(u64::from(nanos), 1_000_000)),
            };
        }
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        // Below 60 s, so the product cannot overflow.
        let rest = seconds % 60 * 1_000_000_000 + u64::from(nanos);
        write!(f, "{}s", Decimal(rest, 1_000_000_000))
    }
}

/// `.0 / .1` in decimal without trailing zeros; `.1` is a power of ten.
struct Decimal(u64, u64);

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0 / self.1)?;
        let mut rest = self.0 % self.1;
        let mut place = self.1;
        if rest > 0 {
            f.write_str(".")?;
        }
        while rest > 0 {
            place /= 10;
            write!(f, "{}", rest / place)?;
            rest %= place;
        }
        Ok(())
    }
}

impl From<Duration> for GoDuration {
    fn from(duration: Duration) -> Self {
        Self(duration)
    }
}

impl From<GoDuration> for Duration {
    fn from(duration: GoDuration) -> Self {
        duration.0
    }
}

/// The same for a flag of which zero makes no sense.
///
/// # Errors
/// When it is no duration, or shorter than a millisecond.
pub fn positive(text: &str) -> Result<GoDuration, String> {
    let duration = parse_duration(text).map_err(|error| error.to_string())?;
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
    fn durations_parse_as_in_go() {
        let ns = Duration::from_nanos;
        for (text, expected) in [
            ("0", Duration::ZERO),
            ("+0", Duration::ZERO),
            ("5s", Duration::from_secs(5)),
            ("+5s", Duration::from_secs(5)),
            ("30m", Duration::from_mins(30)),
            ("1h30m", Duration::from_mins(90)),
            ("500ms", Duration::from_millis(500)),
            ("1.5h", Duration::from_mins(90)),
            (".5s", Duration::from_millis(500)),
            ("1.s", Duration::from_secs(1)),
            ("1m1.5s2ms3us4\u{b5}s5\u{3bc}s6ns", ns(61_502_012_006)),
            ("10.5s4m", ns(250_500_000_000)),
            ("52763797000ns", ns(52_763_797_000)),
            ("0.3333333333333333333h", Duration::from_mins(20)),
            ("0.100000000000000000000h", Duration::from_mins(6)),
            ("0.830103483285477580700h", ns(2_988_372_539_827)),
            ("9223372036854775807ns", ns(i64::MAX as u64)),
            ("2562047h47m16.854775807s", ns(i64::MAX as u64)),
        ] {
            assert_eq!(parse_duration(text), Ok(expected), "{text}");
        }
        for text in [
            "",
            "+",
            "3",
            "00",
            "s",
            ".",
            ".s",
            "1h 30m",
            "30 minutes",
            "1x",
            "1e3s",
            "1s2",
            "\u{661}s",
            "+-5s",
            "1 s",
        ] {
            assert!(matches!(parse_duration(text), Err(DurationError::Syntax(_))), "{text}");
        }
        for text in ["-1s", "-", "-0", "-x"] {
            assert!(matches!(parse_duration(text), Err(DurationError::Negative(_))), "{text}");
        }
        for text in ["9223372036854775808ns", "2562048h", "99999999999999999999s", "9223372036854775807ns1ns"]
        {
            assert!(matches!(parse_duration(text), Err(DurationError::TooLong(_))), "{text}");
        }
    }

    #[test]
    fn durations_print_as_in_go() {
        for (nanos, expected) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1\u{b5}s"),
            (2_200_000, "2.2ms"),
            (500_000_000, "500ms"),
            (3_300_000_000, "3.3s"),
            (60_000_000_000, "1m0s"),
            (300_000_000_000, "5m0s"),
            (245_001_000_000, "4m5.001s"),
            (3_600_000_000_000, "1h0m0s"),
            (18_367_001_000_000, "5h6m7.001s"),
            (480_000_000_001, "8m0.000000001s"),
            (i64::MAX as u64, "2562047h47m16.854775807s"),
        ] {
            assert_eq!(GoDuration(Duration::from_nanos(nanos)).to_string(), expected);
        }
        assert_eq!(GoDuration(Duration::MAX).to_string(), "5124095576030431h0m15.999999999s");
    }

    proptest! {
        #[test]
        fn durations_survive_printing_and_parsing(nanos in 0..=i64::MAX as u64) {
            let duration = GoDuration(Duration::from_nanos(nanos));
            prop_assert_eq!(duration.to_string().parse::<GoDuration>(), Ok(duration));
        }

        #[test]
        fn durations_never_panic(text in "[-+]?[0-9.]{0,22}[a-zµ]{0,3}[0-9.]{0,5}[a-z]{0,2}") {
            let _ = parse_duration(&text);
        }
    }
}
