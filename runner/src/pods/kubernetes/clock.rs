//! Measures how far the API server's clock is ahead of this machine's clock. All runners compare
//! timestamps in pods (`reclaim-after`, the time after which a pod may be deleted), so the pool
//! uses the API server's clock. Otherwise a machine whose clock is slow would write timestamps that
//! have already passed for other runners.

use std::time::{Duration, SystemTime};

use http::header::DATE;
use http::{HeaderValue, Request};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::client::Body;
use porch_fn_kubernetes::bounded;
use tokio::time::sleep;

use super::client::Causes;
use crate::metrics::Metrics;

/// How often the clocks are compared.
const EVERY: Duration = Duration::from_mins(1);
/// A difference above this is logged as a warning.
const LARGE: SignedDuration = SignedDuration::from_secs(5);

/// Measures the difference once. Returns `None` if the API server does not answer, or if its answer
/// has no valid `Date` header.
pub(crate) async fn ahead(client: &Client) -> Option<SignedDuration> {
    // Every account may request the version, and even a refusal has a `Date` header.
    let request = Request::get("/version").body(Body::empty()).ok()?;
    let sent = Timestamp::try_from(SystemTime::now()).ok()?;
    let answer = bounded(client.send(request)).await;
    let received = Timestamp::try_from(SystemTime::now()).ok()?;
    match answer {
        Ok(answer) => difference(answer.headers().get(DATE)?, sent, received),
        Err(error) => {
            tracing::debug!(error = %Causes(&error), "the API server's clock is unknown");
            None
        }
    }
}

/// Compares the clocks forever, for metrics and the log only. The pool uses the difference that was
/// measured at startup.
pub(crate) async fn follow(client: Client, metrics: std::sync::Arc<Metrics>) {
    let mut is_logged = false;
    loop {
        if let Some(ahead) = ahead(&client).await {
            metrics.clock_ahead.set(ahead.as_secs_f64());
            let large = ahead.abs() > LARGE;
            if large && !is_logged {
                let ahead_seconds = ahead.as_secs_f64();
                tracing::warn!(
                    ahead_seconds,
                    "the API server's clock is ahead of this machine's clock by these seconds: check the time service of \
                     the node and of the control plane"
                );
            }
            is_logged = large;
        }
        sleep(EVERY).await;
    }
}

/// Returns how far `date` is ahead of the middle between `sent` and `received`. The header has
/// whole seconds, so the true time is half a second later on average. A difference that this
/// rounding explains counts as zero.
fn difference(date: &HeaderValue, sent: Timestamp, received: Timestamp) -> Option<SignedDuration> {
    let date = jiff::fmt::rfc2822::parse(date.to_str().ok()?).ok()?.timestamp();
    if date <= received && sent <= date + SignedDuration::from_secs(1) {
        return Some(SignedDuration::ZERO);
    }
    let theirs = date + SignedDuration::from_millis(500);
    let ours = sent + received.duration_since(sent) / 2;
    Some(theirs.duration_since(ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_the_request_is_compared_with_the_middle_of_the_second() {
        let date = HeaderValue::from_static("Sun, 06 Nov 1994 08:49:37 GMT");
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let ahead = difference(&date, at("1994-11-06T08:49:30Z"), at("1994-11-06T08:49:31Z"));
        assert_eq!(ahead, Some(SignedDuration::from_secs(7)));
        let ahead = difference(&date, at("1994-11-06T09:49:37Z"), at("1994-11-06T09:49:38Z"));
        assert_eq!(ahead, Some(SignedDuration::from_hours(-1)));
        for (sent, received) in [("36.9", "37.1"), ("37.0", "37.0"), ("37.9", "38.5"), ("38.0", "38.1")] {
            let at = |second: &str| at(&format!("1994-11-06T08:49:{second}Z"));
            let ahead = difference(&date, at(sent), at(received));
            assert_eq!(ahead, Some(SignedDuration::ZERO), "{sent} {received}");
        }
        let no_date = HeaderValue::from_static("yesterday");
        assert_eq!(difference(&no_date, Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH), None);
    }
}
