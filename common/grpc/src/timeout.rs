//! The `grpc-timeout` header: the time that remains until the caller's deadline.

use std::time::Duration;

use http::HeaderMap;
use tonic::Request;

const HEADER: &str = "grpc-timeout";

/// The header is not a number of at most eight digits with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed grpc-timeout: at most eight digits and one of H, M, S, m, u, n are expected")]
pub struct Malformed;

/// Reads the remaining time from request headers; `None` if there is no such header.
///
/// # Errors
/// The header is malformed. grpc-go refuses such a call, too.
pub fn parse_timeout(headers: &HeaderMap) -> Result<Option<Duration>, Malformed> {
    headers.get(HEADER).map(|value| value.to_str().ok().and_then(parse).ok_or(Malformed)).transpose()
}

fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    // The protocol allows at most eight digits.
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

/// Sets the remaining time, which must be below 10,000 years. Rounds down, so that a hop never
/// waits longer than its caller. Zero becomes one nanosecond, because some servers reject a zero
/// timeout.
pub fn format_timeout(headers: &mut HeaderMap, remaining: Duration) {
    let mut request = Request::new(());
    request.set_timeout(remaining.max(Duration::from_nanos(1)));
    headers.extend(request.into_parts().0.into_headers());
}

#[cfg(test)]
mod tests {
    use http::HeaderName;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_unit_is_read_and_malformed_values_are_refused() {
        let parse = |text: &str| {
            let value = text.parse().unwrap();
            parse_timeout(&HeaderMap::from_iter([(HeaderName::from_static(HEADER), value)]))
        };
        assert_eq!(parse_timeout(&HeaderMap::new()), Ok(None));
        for (text, time) in [
            ("2H", Duration::from_hours(2)),
            ("3M", Duration::from_mins(3)),
            ("4S", Duration::from_secs(4)),
            ("500m", Duration::from_millis(500)),
            ("6u", Duration::from_micros(6)),
            ("99999999n", Duration::from_nanos(99_999_999)),
        ] {
            assert_eq!(parse(text), Ok(Some(time)));
        }
        for bad in ["", "S", "1", "1s", "-1S", "123456789n", "1.5S", "é"] {
            assert_eq!(parse(bad), Err(Malformed), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_sent_timeout_is_never_longer_and_hardly_shorter(nanos in 1u64..u64::MAX / 2) {
            let remaining = Duration::from_nanos(nanos);
            let mut headers = HeaderMap::from_iter([(HeaderName::from_static(HEADER), "9H".parse().unwrap())]);
            format_timeout(&mut headers, remaining);
            prop_assert_eq!(headers.len(), 1, "the old timeout is replaced");
            let sent = parse_timeout(&headers).unwrap().unwrap();
            prop_assert!(sent <= remaining);
            prop_assert!(remaining.as_secs_f64() * 0.999 <= sent.as_secs_f64() + 1e-9);
        }
    }
}
