//! The `grpc-timeout` header: the time that remains until the caller's deadline.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};

const HEADER: &str = "grpc-timeout";
/// The protocol allows at most eight digits.
const MAX_VALUE: u128 = 99_999_999;

/// Reads the remaining time from request headers. `None` when the header is missing or malformed: a
/// malformed one is ignored, as tonic does.
pub fn parse_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(HEADER)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(value * 3600),
        "M" => Duration::from_secs(value * 60),
        "S" => Duration::from_secs(value),
        "m" => Duration::from_millis(value),
        "u" => Duration::from_micros(value),
        "n" => Duration::from_nanos(value),
        _ => return None,
    })
}

/// Sets the remaining time, in the finest unit that holds it. Rounds down, so that a hop never
/// waits longer than its caller; zero becomes one nanosecond, since a zero timeout is not valid
/// everywhere.
pub fn format_timeout(headers: &mut HeaderMap, remaining: Duration) {
    let nanos = remaining.as_nanos().max(1);
    let units = [
        (1, "n"),
        (1_000, "u"),
        (1_000_000, "m"),
        (1_000_000_000, "S"),
        (60_000_000_000, "M"),
        (3_600_000_000_000, "H"),
    ];
    let (value, unit) = units
        .iter()
        .map(|&(size, unit)| (nanos / size, unit))
        .find(|&(value, _)| value <= MAX_VALUE)
        .unwrap_or((MAX_VALUE, "H"));
    if let Ok(text) = HeaderValue::try_from(format!("{value}{unit}")) {
        headers.insert(HEADER, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_unit_is_read_and_anything_else_ignored() {
        let parse = |text: &str| {
            parse_timeout(&HeaderMap::from_iter([(
                http::HeaderName::from_static(HEADER),
                text.parse().ok()?,
            )]))
        };
        for (text, time) in [
            ("2H", Duration::from_hours(2)),
            ("3M", Duration::from_mins(3)),
            ("4S", Duration::from_secs(4)),
            ("500m", Duration::from_millis(500)),
            ("6u", Duration::from_micros(6)),
            ("99999999n", Duration::from_nanos(99_999_999)),
        ] {
            assert_eq!(parse(text), Some(time));
        }
        for bad in ["", "S", "1", "1s", "-1S", "123456789n", "1.5S", "é"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_longest_times_are_sent_in_hours() {
        let sent = |remaining| {
            let mut headers = HeaderMap::new();
            format_timeout(&mut headers, remaining);
            headers[HEADER].to_str().unwrap().to_owned()
        };
        assert_eq!(sent(Duration::from_mins(99_999_999)), "99999999M");
        assert_eq!(sent(Duration::from_mins(100_000_000)), "1666666H");
        assert_eq!(sent(Duration::MAX), "99999999H");
    }

    proptest! {
        #[test]
        fn what_is_sent_is_never_longer_and_hardly_shorter(nanos in 1u64..u64::MAX / 2) {
            let remaining = Duration::from_nanos(nanos);
            let mut headers = HeaderMap::new();
            format_timeout(&mut headers, remaining);
            let sent = parse_timeout(&headers).unwrap();
            prop_assert!(sent <= remaining);
            prop_assert!(remaining.as_secs_f64() * 0.999 <= sent.as_secs_f64() + 1e-9);
        }
    }
}
