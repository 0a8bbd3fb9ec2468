//! Admission control by bytes: limits the bytes of messages that a hop (a router or a runner)
//! holds, in total and per function image.
//!
//! Calls differ by orders of magnitude in size, so their number does not bound memory. A hop counts
//! the size that a message announces, before it reads the message. A call that does not fit is
//! refused at once and holds no bytes. Requests, answers, and calls that have sent only headers
//! each have their own account with the same limit. So all messages together hold at most twice the
//! limit, and calls that have sent only headers at most once the limit. No image can use the whole
//! limit for requests.
//!
//! Until a call's message is complete, its bytes are recorded as a *place*: an entry in the ledger.
//! To make room for another call, the ledger may evict the call: the place is removed, and the call
//! is refused.

mod ledger;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::{Future, pending};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use self::ledger::{Account, Ledger, Place};

/// Bytes that are charged for a call in addition to its message, for headers, buffers and the task.
/// So the limit in bytes also limits the number of calls.
pub const CALL_OVERHEAD: usize = 16 * 1024;
/// The smallest default limit in bytes; [`inflight_limit`] raises it if messages may be large.
const DEFAULT_LIMIT: usize = 512 * 1024 * 1024;

/// The program that enforces the limit. The text of a refusal depends on the program, and so does
/// whether the refused call may be sent elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hop {
    /// After a refusal, the caller cannot try another router.
    Router,
    /// After a refusal, the router tries another runner.
    Runner,
    /// After a refusal, the runner tries another pod.
    Wrapper,
}

/// Why a message was refused: the limit that it would exceed, or its slowness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// The limit of all calls.
    Limit,
    /// The share of one image.
    Share,
    /// The limit of all answers.
    Answer,
    /// The message arrived too slowly or not at all, and another call needed its room.
    Slow,
}

/// The refusal of a message that does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    why: Why,
    limit: usize,
    hop: Hop,
}

/// The messages that a hop holds.
#[derive(Debug)]
pub struct Inflight {
    limit: usize,
    hop: Hop,
    ledger: Mutex<Ledger>,
}

/// Bytes that are charged until this value is dropped. The default charge holds nothing and has no
/// limit.
#[derive(Debug, Default)]
pub struct Charge {
    inflight: Option<Arc<Inflight>>,
    bytes: usize,
    image: Option<Arc<str>>,
    account: Account,
    /// Set while the message arrives: the call's place, and the notification that the call has lost
    /// its place. The place's bytes are not in `bytes`.
    receiving: Option<(Place, Arc<Notify>)>,
}

/// Returns the limit in bytes: `--max-inflight-bytes`, or a default for messages of up to
/// `max_message` bytes.
///
/// # Errors
/// A text for the user, when the limit has no room for two messages. With such a limit, one call
/// could block all other calls.
pub fn inflight_limit(asked: Option<usize>, max_message: usize) -> Result<usize, String> {
    let least = max_message.saturating_add(CALL_OVERHEAD).saturating_mul(2);
    match asked {
        None => Ok(max_message.saturating_mul(4).max(DEFAULT_LIMIT)),
        Some(asked) if asked < least => Err(format!(
            "--max-inflight-bytes {asked} has no room for two messages of --max-request-body-size {max_message}: \
             set at least {least}"
        )),
        Some(asked) => Ok(asked),
    }
}

// === impl Refused ===

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { why, limit, hop } = self;
        let (hop, remedy) = match hop {
            Hop::Router => ("router", "--max-inflight-bytes or the number of routers"),
            Hop::Runner => ("runner", "--max-inflight-bytes or the number of runners"),
            Hop::Wrapper => ("pod", "--max-parallel-pods-per-function"),
        };
        let what = match why {
            Why::Limit => {
                format!("too many bytes in flight: {limit} bytes of messages are the limit of this {hop}")
            }
            Why::Share => format!(
                "too many bytes in flight for this function: its messages would exceed its share of this {hop}'s limit \
                 of {limit} bytes"
            ),
            Why::Answer => format!(
                "too many bytes in flight: with the function's answer, the answers of all calls would exceed this \
                 {hop}'s limit of {limit} bytes"
            ),
            Why::Slow => format!(
                "the message arrived too slowly: this {hop} has reached its limit of {limit} bytes, and other calls \
                 needed the room"
            ),
        };
        write!(f, "{what}; retry later, or raise {remedy}")
    }
}

impl std::error::Error for Refused {}

impl Refused {
    /// Whether the previous hop may send the call elsewhere. After a refused answer it may not,
    /// because the function has run already and must not run twice.
    pub(super) fn is_shed(&self) -> bool {
        self.hop != Hop::Router && self.why != Why::Answer
    }
}

// === impl Inflight ===

impl Inflight {
    /// An empty account with a limit of `limit` bytes.
    pub fn new(limit: usize, hop: Hop) -> Arc<Self> {
        Arc::new(Self { limit, hop, ledger: Mutex::new(Ledger::new(limit)) })
    }

    /// Charges a call for `headers` bytes of headers, before the size of its message is known. The
    /// call may lose its place until [`Charge::received`].
    ///
    /// # Errors
    /// When the headers exceed the limit.
    pub fn enter(self: &Arc<Self>, headers: usize) -> Result<Charge, Refused> {
        let lost = Arc::<Notify>::default();
        let place = self.step(|ledger| ledger.enter(headers.max(CALL_OVERHEAD), Arc::clone(&lost)))?;
        let (inflight, receiving) = (Some(Arc::clone(self)), Some((place, lost)));
        Ok(Charge { inflight, bytes: 0, image: None, account: Account::Calls, receiving })
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.ledger.lock().held()
    }

    fn step<R>(&self, step: impl FnOnce(&mut Ledger) -> Result<R, Why>) -> Result<R, Refused> {
        step(&mut self.ledger.lock()).map_err(|why| self.refused(why))
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
    /// When the limit has no room for them.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Refused> {
        let Some(inflight) = self.inflight.as_ref().filter(|_| bytes > 0) else { return Ok(()) };
        let (account, image) = (self.account, self.image.as_ref());
        inflight.step(|ledger| ledger.take(account, bytes, image, Instant::now()))?;
        self.bytes += bytes;
        Ok(())
    }

    /// Charges the size that the message announces.
    ///
    /// # Errors
    /// When the limit has no room for the message, or the call has lost its place.
    pub fn announced(&mut self, size: usize) -> Result<(), Refused> {
        let (Some(inflight), Some((place, _))) = (&self.inflight, &mut self.receiving) else {
            return self.grow(size);
        };
        *place = inflight.step(|ledger| ledger.announce(*place, size, Instant::now()))?;
        Ok(())
    }

    /// Records that a part of the message has arrived.
    ///
    /// # Errors
    /// When the call has lost its place.
    pub fn progressed(&mut self) -> Result<(), Refused> {
        if let (Some(inflight), Some((place, _))) = (&self.inflight, &mut self.receiving) {
            *place = inflight.step(|ledger| ledger.progress(*place, Instant::now()))?;
        }
        Ok(())
    }

    /// Completes when the call has lost its place.
    pub fn evicted(&self) -> impl Future<Output = Refused> + Send + use<> {
        let receiving = self.inflight.clone().zip(self.receiving.clone());
        async move {
            let Some((inflight, (_, lost))) = receiving else { return pending().await };
            lost.notified().await;
            inflight.refused(Why::Slow)
        }
    }

    /// Records that the message is complete. From now on the call keeps its place.
    ///
    /// # Errors
    /// When the call has lost its place.
    pub fn received(&mut self) -> Result<(), Refused> {
        if let (Some(inflight), Some((place, _))) = (&self.inflight, self.receiving.take()) {
            self.bytes += inflight.step(|ledger| ledger.received(place).ok_or(Why::Slow))?;
        }
        Ok(())
    }

    /// Releases `bytes` of the charge.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        if let Some(inflight) = &self.inflight {
            inflight.ledger.lock().give(self.account, bytes, self.image.as_ref());
        }
    }

    /// Assigns the call to its image.
    ///
    /// # Errors
    /// When the image's calls, with this one, would hold more than the image's share.
    pub fn claim(&mut self, image: &str) -> Result<(), Refused> {
        if let (Some(inflight), None) = (&self.inflight, &self.image) {
            self.image = Some(inflight.step(|ledger| ledger.claim(image, self.bytes, Instant::now()))?);
        }
        Ok(())
    }

    /// Charges an answer of `bytes`.
    ///
    /// # Errors
    /// When all answers together would exceed the limit.
    pub fn answer(&self, bytes: usize) -> Result<Self, Refused> {
        let inflight = self.inflight.clone();
        let account = Account::Answers;
        let mut answer = Self { inflight, bytes: 0, image: None, account, receiving: None };
        answer.grow(bytes)?;
        Ok(answer)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        // If the call has lost its place, the ledger has released the bytes of the place already.
        let _ = self.received();
        self.shrink(self.bytes);
    }
}
