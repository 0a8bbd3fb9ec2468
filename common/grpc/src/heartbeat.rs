//! Detects a silent peer by HTTP/2 pings.

use std::future::{pending, poll_fn};
use std::time::Duration;

use futures_util::FutureExt;
use h2::{Ping, PingPong};
use tokio::time::{Instant, sleep, sleep_until};

use crate::cork::Cork;

/// Pings the peer after each interval in which it has sent nothing. Completes if it then sends nothing
/// for the second of the `times`.
pub async fn silence(cork: &Cork, pings: Option<PingPong>, times: Option<(Duration, Duration)>) {
    let (Some(mut pings), Some((interval, answer))) = (pings, times) else { return pending().await };
    loop {
        let due = cork.read_at() + interval;
        if Instant::now() < due {
            sleep_until(due).await;
            continue;
        }
        // Takes the answer of the last ping, so that the next one may be sent.
        let _ = poll_fn(|context| pings.poll_pong(context)).now_or_never();
        // Fails if that answer is missing although the peer sends other bytes, or if the connection
        // is ending.
        let _ = pings.send_ping(Ping::opaque());
        let sent_at = Instant::now();
        sleep(answer).await;
        if cork.read_at() < sent_at {
            return;
        }
    }
}
