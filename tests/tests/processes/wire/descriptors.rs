//! Each method of each service of proto/ and of health, from the descriptor set, so a service that is
//! added later is here by itself. A caller that sends half a message, or none, is ended in 6 s, holds
//! hardly any memory, and does not delay a drain.

use std::time::Duration;
use tokio::time::Instant;

use futures_util::future::join_all;
use porch_fn_tests::process::{Usage, figure};
use porch_fn_tests::raw::{Wire, call_of, data, headers, hpack::encode, message};

use super::case::MORE_MEMORY;
use super::target::{Kind, Method, Target};

/// The same call, this often on one connection, whose window holds 32 messages of 512 KiB.
const CALLS: usize = 30;
const ENDED: Duration = Duration::from_secs(6);
/// For a test on a busy machine.
const SLACK: Duration = Duration::from_secs(1);

/// A connection with calls that are not complete, and their streams.
struct Unfinished {
    name: String,
    wire: Wire,
    streams: Vec<u32>,
}

/// Begins the calls of all methods: half a message, and none.
async fn begin(target: &Target, calls: usize) -> Vec<Unfinished> {
    let mut begun = Vec::new();
    for method in Method::all() {
        // The largest message that each method of this server takes.
        let size = if method.is_evaluation() { target.limit.min(1 << 20) } else { 64 * 1024 };
        let whole = message(&method.message_of(size));
        for (kind, sent) in [("half a message", &whole[..size / 2]), ("none", &[])] {
            let wire = Wire::open(target.address).await;
            // The server's windows hold only after its settings.
            wire.settle(ENDED).await;
            let mut streams = Vec::new();
            for _ in 0..calls {
                let stream = wire.stream();
                let mut bytes = headers(stream, &encode(&call_of(&method.path)), false);
                if !sent.is_empty() {
                    bytes.extend(data(stream, sent, false));
                }
                wire.send(bytes).await;
                streams.push(stream);
            }
            begun.push(Unfinished { name: format!("{} with {kind}", method.path), wire, streams });
        }
    }
    begun
}

async fn are_ended(kind: Kind) {
    let target = Target::start(kind).await;
    Usage::reset_peak(target.pid());
    let (began, mut failures) = (Instant::now(), Vec::new());
    let begun = begin(&target, CALLS).await;
    let sent = began.elapsed();
    for Unfinished { name, wire, streams } in &begun {
        let ended = join_all(streams.iter().map(|&stream| wire.ended(stream, ENDED + SLACK + sent))).await;
        let left = ended.iter().filter(|stream| stream.is_none()).count();
        if left > 0 {
            failures.push(format!("{name}: {left} of {} calls have not ended", streams.len()));
        }
    }
    let took = began.elapsed();
    let met = target.beside.since(began).await;
    let more = target.usage().peak.saturating_sub(target.idle);
    let calls: usize = begun.iter().map(|unfinished| unfinished.streams.len()).sum();
    figure(&format!(
        "{kind:?}: {calls} unfinished calls ended after {took:.1?}, {} MiB more, p99 beside {:.0?}",
        more / 1024,
        met.p99
    ));
    failures.extend(met.failures.first().cloned());
    if more > MORE_MEMORY {
        failures.push(format!("{more} KiB more for {calls} calls"));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

async fn do_not_delay_a_drain(kind: Kind) {
    let mut target = Target::start(kind).await;
    let begun = begin(&target, 1).await;
    for unfinished in &begun {
        unfinished.wire.settle(ENDED).await;
    }
    let took = target.terminate().await;
    figure(&format!("{kind:?}: a drain with {} unfinished calls took {took:.1?}", begun.len()));
    assert!(took <= ENDED + SLACK, "{took:?}");
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn unfinished_calls_of_each_method_are_ended() {
    join_all(Kind::ALL.map(are_ended)).await;
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn unfinished_calls_of_each_method_do_not_delay_a_drain() {
    join_all([Kind::Router, Kind::Runner, Kind::Wrapper].map(do_not_delay_a_drain)).await;
}
