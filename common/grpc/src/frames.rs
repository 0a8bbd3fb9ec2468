//! Counts the frames of an HTTP/2 byte stream, below the library that decodes them. Pure: time is an
//! argument.
//!
//! Frames that carry no call cost the receiver work and the sender nothing: a change of the window
//! costs it a visit of each stream. The library neither counts them nor stops to let other tasks run.
//! <https://www.rfc-editor.org/rfc/rfc9113#section-10.5>

use std::time::Duration;

use bytes::Buf;
use tokio::time::Instant;

/// The bytes that a client sends before its first frame.
pub(crate) const PREFACE: usize = 24;
/// Length of a frame's header: three bytes of length, type, flags, and four bytes of stream.
const HEADER: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const ACK: u8 = 1;

/// A peer that does more than the limits below in this time is ended.
const WINDOW: Duration = Duration::from_secs(10);
/// Changes of settings. gRPC libraries change them once per connection, and grpc-go up to eight times
/// more while it measures the connection.
const MAX_SETTINGS: u32 = 20;
/// Frames without progress of a call.
const MAX_CONTROL: u32 = 1000;
/// Headers of an answer: interim ones, those before the message, and the trailers.
const HEADERS_OF_ANSWER: u32 = 3;

/// Follows a byte stream from frame to frame.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// The header of the next frame, as far as it is here.
    header: [u8; HEADER],
    filled: usize,
    /// Bytes until the next header, which are all payload of one frame.
    pub(crate) skip: usize,
}

/// What a frame is to those who count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Headers: a call begins, ends or both.
    Headers,
    /// Data: a call makes progress.
    Data,
    /// New settings.
    Settings,
    /// Everything else.
    Control,
}

/// The frames of a peer in the last [`WINDOW`].
#[derive(Debug)]
pub(crate) struct Tally {
    since: Instant,
    settings: u32,
    control: u32,
    /// How many headers the peer may still send to us.
    headers: u32,
}

// === impl Frames ===

impl Frames {
    /// Begins after `skip` bytes.
    pub(crate) fn new(skip: usize) -> Self {
        Self { skip, ..Self::default() }
    }

    /// Follows the stream to the end of `bytes`, or to the header of a frame after which `count` asks
    /// to stop. Returns how many bytes these are. `count` gets the length of the frame's payload, too.
    pub(crate) fn follow(&mut self, bytes: &[u8], mut count: impl FnMut(Kind, usize) -> bool) -> usize {
        let mut rest = bytes;
        while rest.has_remaining() {
            let payload = self.skip.min(rest.len());
            self.skip -= payload;
            rest.advance(payload);
            let part = rest.len().min(HEADER - self.filled);
            rest.copy_to_slice(&mut self.header[self.filled..self.filled + part]);
            self.filled += part;
            if self.filled < HEADER {
                break;
            }
            let [first, second, third, kind, flags, ..] = self.header;
            self.filled = 0;
            self.skip = u32::from_be_bytes([0, first, second, third]) as usize;
            let kind = match kind {
                HEADERS | CONTINUATION => Kind::Headers,
                DATA if self.skip > 0 => Kind::Data,
                SETTINGS if flags & ACK == 0 => Kind::Settings,
                _ => Kind::Control,
            };
            if count(kind, self.skip) {
                break;
            }
        }
        bytes.len() - rest.len()
    }
}

// === impl Tally ===

impl Tally {
    /// The peer may send as many `headers` before we send any.
    pub(crate) fn new(now: Instant, headers: u32) -> Self {
        Self { since: now, settings: 0, control: 0, headers }
    }

    /// We have sent a frame. Headers and data are progress of a call.
    pub(crate) fn sent(&mut self, kind: Kind) {
        if kind == Kind::Headers {
            self.headers = self.headers.saturating_add(HEADERS_OF_ANSWER);
        }
        if matches!(kind, Kind::Headers | Kind::Data) {
            self.control = 0;
        }
    }

    /// Counts a frame of the peer. Returns whether the peer sends too many.
    pub(crate) fn is_flooded_by(&mut self, kind: Kind, now: Instant) -> bool {
        if now.duration_since(self.since) >= WINDOW {
            (self.since, self.settings, self.control) = (now, 0, 0);
        }
        match kind {
            Kind::Headers if self.headers > 0 => (self.headers, self.control) = (self.headers - 1, 0),
            Kind::Headers | Kind::Control => self.control += 1,
            Kind::Data => self.control = 0,
            Kind::Settings => self.settings += 1,
        }
        self.settings > MAX_SETTINGS || self.control > MAX_CONTROL
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        let [.., first, second, third] = length.to_be_bytes();
        let mut bytes = vec![first, second, third, kind, flags, 0, 0, 0, 1];
        // Payloads that look like headers of frames.
        bytes.extend((0..length).map(|byte| byte as u8 % 7));
        bytes
    }

    const FRAMES: [(u8, u8, usize, Kind); 8] = [
        (DATA, 0, 0, Kind::Control),
        (DATA, 1, 1, Kind::Data),
        (DATA, 0, 70_000, Kind::Data),
        (HEADERS, 4, 30, Kind::Headers),
        (SETTINGS, 0, 6, Kind::Settings),
        (SETTINGS, ACK, 0, Kind::Control),
        (8, 0, 4, Kind::Control),
        (200, 9, 9, Kind::Control),
    ];

    proptest! {
        #[test]
        fn frames_are_found_in_any_pieces(
            which in prop::collection::vec(0..FRAMES.len(), 0..20),
            pieces in prop::collection::vec(1usize..300, 1..50),
            pause in 1usize..5,
        ) {
            let frames: Vec<_> = which.into_iter().map(|number| FRAMES[number]).collect();
            let mut bytes = vec![b'P'; PREFACE];
            bytes.extend(frames.iter().flat_map(|(kind, flags, length, _)| frame(*kind, *flags, *length)));
            let (mut found, mut follower) = (Vec::new(), Frames::new(PREFACE));
            let mut rest = &bytes[..];
            let mut pieces = pieces.iter().cycle();
            while !rest.is_empty() {
                let piece = &rest[..rest.len().min(*pieces.next().unwrap())];
                let taken = follower.follow(piece, |kind, _| {
                    found.push(kind);
                    found.len() % pause == 0
                });
                prop_assert!(taken > 0);
                rest = &rest[taken..];
            }
            prop_assert_eq!(found, frames.iter().map(|(.., kind)| *kind).collect::<Vec<_>>());
        }
    }

    #[test]
    fn only_frames_without_progress_are_a_flood() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut tally = Tally::new(start, u32::MAX);
        for _ in 0..MAX_CONTROL {
            assert!(!tally.is_flooded_by(Kind::Control, after(1)));
        }
        assert!(!tally.is_flooded_by(Kind::Data, after(1)));
        for _ in 0..MAX_CONTROL {
            assert!(!tally.is_flooded_by(Kind::Control, after(2)));
        }
        tally.sent(Kind::Data);
        for _ in 0..MAX_CONTROL {
            assert!(!tally.is_flooded_by(Kind::Control, after(9)));
        }
        assert!(!tally.is_flooded_by(Kind::Control, after(10)), "another window");
        for _ in 0..MAX_CONTROL - 1 {
            assert!(!tally.is_flooded_by(Kind::Control, after(11)));
        }
        assert!(tally.is_flooded_by(Kind::Control, after(11)));
    }

    #[test]
    fn progress_does_not_pay_for_settings() {
        let mut tally = Tally::new(Instant::now(), u32::MAX);
        let now = Instant::now();
        for number in 0..=MAX_SETTINGS {
            tally.sent(Kind::Data);
            assert_eq!(tally.is_flooded_by(Kind::Settings, now), number == MAX_SETTINGS);
        }
    }

    #[test]
    fn a_server_sends_headers_only_for_what_we_have_sent() {
        let now = Instant::now();
        let mut tally = Tally::new(now, 0);
        tally.sent(Kind::Headers);
        for _ in 0..HEADERS_OF_ANSWER + MAX_CONTROL {
            assert!(!tally.is_flooded_by(Kind::Headers, now));
        }
        assert!(tally.is_flooded_by(Kind::Headers, now));
    }
}
