//! Tests of charges (the bytes that a call holds of `--max-inflight-bytes`), and of the error texts
//! when a call is refused.

use std::time::Duration;

use tonic::Code;

use porch_fn_proto::Chunks;

use super::*;
use crate::Outgoing;
use crate::{Reply, is_shed, message_of};

const LIMIT: usize = 10 * CALL_OVERHEAD;

#[test]
fn the_limit_must_have_room_for_two_messages() {
    const MIB: usize = 1024 * 1024;
    let text = "--max-inflight-bytes 7 has no room for two messages of --max-request-body-size 1000: set at least 34768";
    for (asked, max_message, limit) in [
        (None, 6 * MIB, Ok(512 * MIB)),
        (None, 200 * MIB, Ok(800 * MIB)),
        (None, usize::MAX, Ok(usize::MAX)),
        (Some(2 * MIB + 2 * CALL_OVERHEAD), MIB, Ok(2 * MIB + 2 * CALL_OVERHEAD)),
        (Some(7), 1000, Err(text.to_owned())),
    ] {
        assert_eq!(inflight_limit(asked, max_message), limit, "{asked:?} {max_message}");
    }
}

#[test]
fn a_charge_is_released_however_it_ends() {
    let inflight = Inflight::new(LIMIT, Hop::Runner);
    let mut charge = inflight.enter(0).unwrap();
    charge.announced(100).unwrap();
    charge.received().unwrap();
    charge.claim("a").unwrap();
    charge.claim("b").unwrap();
    charge.shrink(40);
    let mut answer = charge.answer(1000).unwrap();
    answer.grow(24).unwrap();
    assert_eq!(inflight.held(), CALL_OVERHEAD + 60 + 1024);
    drop(charge);
    assert_eq!(inflight.held(), 1024);
    let sent = Outgoing::new(Chunks::default(), answer);
    assert_eq!(inflight.held(), 1024);
    drop(sent);
    assert_eq!(inflight.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn each_refusal_has_its_text_and_maybe_the_shed_trailer() {
    for (hop, sheds) in [(Hop::Router, false), (Hop::Runner, true)] {
        let inflight = Inflight::new(LIMIT, hop);
        let mut charge = inflight.enter(0).unwrap();
        charge.received().unwrap();
        charge.claim("a").unwrap();
        let mut second = inflight.enter(0).unwrap();
        second.announced(LIMIT / 2).unwrap();
        second.received().unwrap();
        let share = second.claim("a").unwrap_err();
        let limit = charge.grow(LIMIT).unwrap_err();
        assert_eq!(inflight.held(), 2 * CALL_OVERHEAD + LIMIT / 2, "refused calls hold no bytes");
        let answer = charge.answer(LIMIT + 1).unwrap_err();
        let mut silent = inflight.enter(0).unwrap();
        silent.announced(CALL_OVERHEAD).unwrap();
        let evicted = silent.evicted();
        tokio::time::advance(Duration::from_secs(2)).await;
        charge.grow(2 * CALL_OVERHEAD).unwrap();
        let slow = evicted.await;
        assert_eq!(silent.received(), Err(slow.clone()));
        drop(silent);
        assert_eq!(inflight.held(), 4 * CALL_OVERHEAD + LIMIT / 2, "the evicted call held no bytes");
        for (refused, sheds, text) in [
            (limit, sheds, "too many bytes in flight: 163840 bytes"),
            (share, sheds, "its messages would exceed its share of this "),
            (answer, false, "with the function's answer"),
            (slow, sheds, "has reached its limit of 163840 bytes, and other calls needed the room"),
        ] {
            let reply = Reply::from(refused);
            let message = message_of(reply.status_headers());
            assert_eq!(reply.code(), Code::ResourceExhausted);
            assert_eq!(is_shed(reply.status_headers()), sheds, "{message}");
            let hop = if hop == Hop::Router { "router" } else { "runner" };
            let todo = format!("raise --max-inflight-bytes or the number of {hop}s");
            assert!(message.contains(text) && message.ends_with(&todo), "{message}");
        }
    }
}
