//! The format of timestamps in annotations.

use jiff::Timestamp;
use porch_fn_pool::Time;

/// RFC 3339 in UTC with milliseconds, the resolution of [`Time`]. A time after the year 9999
/// becomes the last moment of that year.
pub fn format_time(time: Time) -> String {
    format!("{:.3}", timestamp(time))
}

/// Parses RFC 3339. Returns `None` for any other text and for times before 1970.
pub fn parse_time(text: &str) -> Option<Time> {
    from_timestamp(text.parse().ok()?)
}

/// Rounds down to the millisecond. Returns `None` before 1970.
pub fn from_timestamp(timestamp: Timestamp) -> Option<Time> {
    u64::try_from(timestamp.as_millisecond()).ok().map(Time::from_millis)
}

/// The same moment. A time after the year 9999 becomes the last moment of that year.
pub fn timestamp(time: Time) -> Timestamp {
    let millis = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_to_milliseconds() {
        let time = Time::from_millis(1_700_000_000_123);
        assert_eq!(format_time(time), "2023-11-14T22:13:20.123Z");
        assert_eq!(format_time(Time::from_millis(1_700_000_000_000)), "2023-11-14T22:13:20.000Z");
        assert_eq!(parse_time("2023-11-14T23:13:20.1239+01:00"), Some(time));
        for text in ["", "soon", "1700000000", "1969-12-31T23:59:59Z"] {
            assert_eq!(parse_time(text), None, "{text:?}");
        }
    }
}
