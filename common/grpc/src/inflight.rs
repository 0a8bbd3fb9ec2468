//! Admission by bytes: how much a hop holds of messages, and for which images.
//!
//! Calls differ by orders of magnitude in size, so their number says nothing about memory. What is
//! counted is what messages announce, before they are read: a call that does not fit is refused at
//! once and costs nothing. Answers, whose work is done, have as much again for themselves, and so
//! have calls that have sent their headers alone. So messages stay below twice the limit, and no
//! image can take all of what calls may have.

mod ledger;

use std::fmt;
use std::future::{Future, pending};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::ledger::{Ledger, Place};

/// What a call is charged beside its message: headers, buffers, its task. It bounds the number of calls.
pub const CALL_OVERHEAD: usize = 16 * 1024;
/// The limit is this when the flag is not given, or more for large messages.
const DEFAULT_LIMIT: usize = 512 * 1024 * 1024;

/// Whose limit it is: says how refusals read, and whether they may be sent elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hop {
    /// Nobody is before it who could try another.
    Router,
    /// The router tries another.
    Runner,
}

/// Why something does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Limit,
    Share,
    Answer,
    /// It did not come in time, and another needed its room.
    Slow,
}

/// A message that does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    why: Why,
    limit: usize,
    hop: Hop,
}

/// What has arrived of a message.
#[derive(Debug, Clone, Copy)]
pub enum Arrived {
    /// The prefix, which announces so many bytes.
    Prefix(usize),
    /// A good part more of the rest.
    Part,
}

/// `--max-inflight-bytes` is too small to be of use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "--max-inflight-bytes {asked} has no room for two messages of --max-request-body-size {max_message}: {least} is \
     the least"
)]
pub struct LimitError {
    asked: usize,
    max_message: usize,
    least: usize,
}

/// What a hop holds.
#[derive(Debug)]
pub struct Inflight {
    limit: usize,
    hop: Hop,
    ledger: Mutex<Ledger<Arc<Notify>>>,
    origin: Instant,
}

/// Bytes that are held until this is dropped. The default one holds nothing and has no limit.
#[derive(Debug, Default)]
pub struct Charge {
    inflight: Option<Arc<Inflight>>,
    bytes: usize,
    image: Option<Arc<str>>,
    /// It is an answer's.
    answer: bool,
    /// The message is coming in. The ledger counts its bytes meanwhile, since it may take them
    /// back.
    receiving: Option<Receiving>,
}

/// A call's place while its message is coming in.
#[derive(Debug)]
struct Receiving {
    place: Place,
    evicted: Arc<Notify>,
}

/// The limit in bytes: what `--max-inflight-bytes` says, or what suits messages of up to `max_message` bytes.
///
/// # Errors
/// When two messages would not fit: one call of an image can then keep out all others.
pub fn inflight_limit(asked: Option<usize>, max_message: usize) -> Result<usize, LimitError> {
    let least = max_message.saturating_add(CALL_OVERHEAD).saturating_mul(2);
    match asked {
        None => Ok(max_message.saturating_mul(4).max(DEFAULT_LIMIT)),
        Some(asked) if asked < least => Err(LimitError { asked, max_message, least }),
        Some(asked) => Ok(asked),
    }
}

// === impl Why ===

impl Why {
    const ALL: [Self; 4] = [Self::Limit, Self::Share, Self::Answer, Self::Slow];

    #[cfg(feature = "metrics")]
    fn as_str(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Share => "share",
            Self::Answer => "answer",
            Self::Slow => "slow",
        }
    }
}

// === impl Refused ===

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { why, limit, hop } = self;
        let what = match why {
            Why::Limit => {
                format!("too many bytes in flight: {limit} bytes of messages are the limit of this {hop}")
            }
            Why::Share => format!(
                "too many bytes in flight for this function: it alone has more than its share of the {limit} bytes of \
                 messages that are the limit of this {hop}"
            ),
            Why::Answer => format!(
                "too many bytes in flight: with the function's answer, answers alone would hold more than the {limit} \
                 bytes of messages that are the limit of this {hop}"
            ),
            Why::Slow => format!(
                "the message came too slowly: {limit} bytes of messages are the limit of this {hop}, and others needed \
                 the room"
            ),
        };
        write!(f, "{what}; retry later, or raise --max-inflight-bytes or the number of {hop}s")
    }
}

impl std::error::Error for Refused {}

impl Refused {
    /// Whether the hop before may try elsewhere. A function that has run does not run again.
    pub(super) fn is_shed(&self) -> bool {
        self.hop == Hop::Runner && self.why != Why::Answer
    }
}

impl fmt::Display for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Router => "router",
            Self::Runner => "runner",
        })
    }
}

// === impl Inflight ===

impl Inflight {
    /// Nothing held yet, of `limit` bytes.
    pub fn new(limit: usize, hop: Hop) -> Arc<Self> {
        Arc::new(Self { limit, hop, ledger: Mutex::new(Ledger::new(limit)), origin: Instant::now() })
    }

    /// Charges a call with headers of this many bytes, whose message has yet to say how large it
    /// is. Until [`Charge::received`] it may lose its place.
    ///
    /// # Errors When its headers alone are above the limit.
    pub fn enter(self: &Arc<Self>, headers: usize) -> Result<Charge, Refused> {
        let tell = Arc::new(Notify::new());
        let evicted = Arc::clone(&tell);
        let place =
            self.step(|ledger, _, evicted| ledger.enter(headers.max(CALL_OVERHEAD), tell, evicted))?;
        let receiving = Some(Receiving { place, evicted });
        Ok(Charge { inflight: Some(Arc::clone(self)), bytes: 0, image: None, answer: false, receiving })
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.ledger().held()
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger<Arc<Notify>>> {
        // No step of the ledger can panic halfway.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes something, and tells those that lose their place to it.
    fn step<R>(
        &self,
        take: impl FnOnce(&mut Ledger<Arc<Notify>>, Duration, &mut Vec<Arc<Notify>>) -> Result<R, Why>,
    ) -> Result<R, Refused> {
        let mut evicted = Vec::new();
        let taken = take(&mut self.ledger(), self.origin.elapsed(), &mut evicted);
        // A permit is kept for a call that does not listen yet.
        for evicted in evicted {
            evicted.notify_one();
        }
        taken.map_err(|why| self.refused(why))
    }

    fn refused(&self, why: Why) -> Refused {
        Refused { why, limit: self.limit, hop: self.hop }
    }
}

// === impl Charge ===

impl Charge {
    /// Charges `bytes` more.
    ///
    /// # Errors
    /// When they are too many.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Refused> {
        let Some(inflight) = &self.inflight else { return Ok(()) };
        if self.answer {
            inflight.ledger().take_answer(bytes).map_err(|why| inflight.refused(why))?;
            self.bytes += bytes;
        } else {
            let image = self.image.as_ref();
            inflight.step(|ledger, now, evicted| ledger.take(bytes, image, now, evicted))?;
            self.bytes += bytes;
        }
        Ok(())
    }

    /// Takes what has arrived of the message.
    ///
    /// # Errors
    /// When it is too large, or the call has lost its place.
    pub fn arrived(&mut self, arrived: Arrived) -> Result<(), Refused> {
        if let (Some(inflight), Some(Receiving { place, .. })) = (&self.inflight, &mut self.receiving) {
            *place = inflight.step(|ledger, now, evicted| match arrived {
                Arrived::Prefix(size) => ledger.announce(*place, size, now, evicted),
                Arrived::Part => ledger.progress(*place, now),
            })?;
        }
        Ok(())
    }

    /// Returns when the call has lost its place.
    pub fn evicted(&self) -> impl Future<Output = Refused> + Send + use<> {
        let inflight = self.inflight.clone();
        let evicted = self.receiving.as_ref().map(|receiving| Arc::clone(&receiving.evicted));
        async move {
            let (Some(inflight), Some(evicted)) = (inflight, evicted) else { return pending().await };
            evicted.notified().await;
            inflight.refused(Why::Slow)
        }
    }

    /// The message is in: the call keeps its place.
    ///
    /// # Errors
    /// When it has lost it.
    pub fn received(&mut self) -> Result<(), Refused> {
        if let (Some(inflight), Some(Receiving { place, .. })) = (&self.inflight, self.receiving.take()) {
            let bytes = inflight.ledger().received(place);
            self.bytes += bytes.ok_or_else(|| inflight.refused(Why::Slow))?;
        }
        Ok(())
    }

    /// Gives `bytes` back that are held no longer.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        if let Some(inflight) = &self.inflight {
            let mut ledger = inflight.ledger();
            if self.answer { ledger.give_answer(bytes) } else { ledger.give(bytes, self.image.as_ref()) }
        }
    }

    /// Says whose call it is.
    ///
    /// # Errors
    /// When that image holds more than its share, this call included.
    pub fn claim(&mut self, image: &str) -> Result<(), Refused> {
        if let (Some(inflight), None) = (&self.inflight, &self.image) {
            let bytes = self.bytes;
            self.image =
                Some(inflight.step(|ledger, now, evicted| ledger.claim(image, bytes, now, evicted))?);
        }
        Ok(())
    }

    /// Charges an answer of `bytes`.
    ///
    /// # Errors
    /// When answers have reached the limit.
    pub fn answer(&self, bytes: usize) -> Result<Charge, Refused> {
        let Some(inflight) = &self.inflight else { return Ok(Charge::default()) };
        let taken = inflight.ledger().take_answer(bytes);
        taken.map_err(|why| inflight.refused(why))?;
        let inflight = Some(Arc::clone(inflight));
        Ok(Charge { inflight, bytes, image: None, answer: true, receiving: None })
    }

    /// `bytes`, which hold what they need of the charge until the last copy of them is dropped.
    pub(super) fn ride_on(mut self, bytes: Bytes) -> Bytes {
        self.shrink(self.bytes.saturating_sub(bytes.len()));
        if self.bytes == 0 { bytes } else { Bytes::from_owner(Charged { bytes, _charge: self }) }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        // Whatever it still has is given back below.
        let _ = self.received();
        self.shrink(self.bytes);
    }
}

struct Charged {
    bytes: Bytes,
    _charge: Charge,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(feature = "metrics")]
mod collector {
    use std::fmt::Error;
    use std::sync::Arc;

    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
    use prometheus_client::metrics::MetricType;
    use prometheus_client::metrics::counter::ConstCounter;
    use prometheus_client::metrics::gauge::ConstGauge;
    use prometheus_client::registry::{Registry, Unit};

    use super::{Inflight, Why};

    impl Inflight {
        /// Shows in `registry` what is held, the limit and refusals.
        pub fn register(self: &Arc<Self>, registry: &mut Registry) {
            registry.register_collector(Box::new(Arc::clone(self)));
        }
    }

    impl Collector for Inflight {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
            let (held, refused) = {
                let ledger = self.ledger();
                (ledger.held(), ledger.refused())
            };
            let gauges = [
                ("inflight", "Messages held, with what their calls need beside them", held),
                ("inflight_limit", "Messages that may come in before calls are refused", self.limit),
            ];
            for (name, help, value) in gauges {
                let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
                gauge.encode(encoder.encode_descriptor(
                    name,
                    help,
                    Some(&Unit::Bytes),
                    MetricType::Gauge,
                )?)?;
            }
            let help =
                "Calls refused for bytes in flight: all held, an image's share held, no room for the answer";
            let mut family =
                encoder.encode_descriptor("inflight_refused", help, None, MetricType::Counter)?;
            for why in Why::ALL {
                let counter = ConstCounter::new(refused[why as usize]);
                counter.encode(family.encode_family(&[("reason", why.as_str())])?)?;
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::super::{Reply, is_shed, message_of};
    use super::*;

    const LIMIT: usize = 10 * CALL_OVERHEAD;

    #[test]
    fn the_limit_has_room_for_two_messages() {
        const MIB: usize = 1024 * 1024;
        for (asked, max_message, limit) in [
            (None, 6 * MIB, Ok(512 * MIB)),
            (None, 200 * MIB, Ok(800 * MIB)),
            (None, usize::MAX, Ok(usize::MAX)),
            (Some(2 * MIB + 2 * CALL_OVERHEAD), MIB, Ok(2 * MIB + 2 * CALL_OVERHEAD)),
            (
                Some(7),
                1000,
                Err(
                    "--max-inflight-bytes 7 has no room for two messages of --max-request-body-size 1000: 34768 is \
                     the least",
                ),
            ),
        ] {
            let found = inflight_limit(asked, max_message).map_err(|error| error.to_string());
            assert_eq!(found, limit.map_err(str::to_owned), "{asked:?} {max_message}");
        }
    }

    #[test]
    fn a_charge_is_given_back_however_it_ends() {
        let inflight = Inflight::new(LIMIT, Hop::Runner);
        let mut charge = inflight.enter(0).unwrap();
        charge.arrived(Arrived::Prefix(100)).unwrap();
        charge.received().unwrap();
        charge.claim("a").unwrap();
        charge.claim("b").unwrap();
        charge.shrink(40);
        let mut answer = charge.answer(1000).unwrap();
        answer.grow(24).unwrap();
        assert_eq!(inflight.held(), CALL_OVERHEAD + 60 + 1024);
        drop(charge);
        assert_eq!(inflight.held(), 1024);
        let part = answer.ride_on(Bytes::from_static(b"the last part"));
        let slice = part.slice(4..8);
        drop(part);
        assert_eq!((&slice[..], inflight.held()), (&b"last"[..], 13), "it is still to be sent");
        drop(slice);
        assert_eq!(inflight.held(), 0);
    }

    #[test]
    fn what_does_not_fit_is_refused_in_words_and_with_the_trailer_where_it_helps() {
        for (hop, sheds) in [(Hop::Router, false), (Hop::Runner, true)] {
            let inflight = Inflight::new(LIMIT, hop);
            let mut charge = inflight.enter(0).unwrap();
            charge.received().unwrap();
            charge.claim("a").unwrap();
            let mut second = inflight.enter(0).unwrap();
            second.arrived(Arrived::Prefix(LIMIT / 2)).unwrap();
            second.received().unwrap();
            let share = second.claim("a").unwrap_err();
            let limit = charge.grow(LIMIT).unwrap_err();
            assert_eq!(inflight.held(), 2 * CALL_OVERHEAD + LIMIT / 2, "a refusal takes nothing");
            let answer = charge.answer(LIMIT + 1).unwrap_err();
            for (refused, sheds, text) in [
                (limit, sheds, "too many bytes in flight: 163840 bytes"),
                (share, sheds, "it alone has more than its share of the 163840 bytes"),
                (answer, false, "with the function's answer"),
            ] {
                let reply = Reply::from(refused);
                let message = message_of(reply.status_headers());
                assert_eq!(reply.code(), Code::ResourceExhausted);
                assert_eq!(is_shed(reply.status_headers()), sheds, "{message}");
                let todo = format!("raise --max-inflight-bytes or the number of {hop}s");
                assert!(message.contains(text) && message.ends_with(&todo), "{message}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_never_comes_in_is_told_that_its_place_is_taken() {
        let inflight = Inflight::new(LIMIT, Hop::Router);
        let mut silent = inflight.enter(0).unwrap();
        silent.arrived(Arrived::Prefix(LIMIT - CALL_OVERHEAD)).unwrap();
        let evicted = silent.evicted();
        assert!(inflight.enter(0).unwrap().arrived(Arrived::Prefix(0)).is_err());
        tokio::time::advance(Duration::from_secs(2)).await;
        let mut other = inflight.enter(0).unwrap();
        other.arrived(Arrived::Prefix(0)).unwrap();
        evicted.await;
        let refused = silent.received().unwrap_err();
        assert_eq!(inflight.held(), CALL_OVERHEAD, "its bytes are given back before it hears of it");
        drop(silent);
        assert_eq!(inflight.held(), CALL_OVERHEAD);
        let reply = Reply::from(refused);
        assert_eq!(reply.code(), Code::ResourceExhausted);
        assert!(message_of(reply.status_headers()).starts_with("the message came too slowly"));
        drop(other);
        assert_eq!(inflight.held(), 0);
    }

    #[test]
    fn without_a_limit_nothing_is_refused() {
        let mut charge = Charge::default();
        charge.grow(usize::MAX).unwrap();
        charge.grow(usize::MAX).unwrap();
        charge.claim("a").unwrap();
        assert!(charge.answer(usize::MAX).is_ok());
    }
}
