//! A function's stderr, kept within a bound.
//!
//! The beginning contains the first error and the end the last one. So both are kept, and the
//! middle is left out. A function that floods stderr still gets its answer.

use std::collections::VecDeque;

use bytes::Bytes;

use super::Limits;

/// Largest length of the line about the part that is left out, in bytes.
pub(crate) const MARKER_LIMIT: usize = 64;

/// The text between joined lines, as in Porch's `--flatten-log`.
const JOINT: &[u8] = b" | ";

/// The head and the tail of a stream, with a count of the bytes between them.
#[derive(Debug, Clone)]
pub struct Stderr {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    limits: Limits,
    left_out: usize,
}

impl Stderr {
    /// Creates an empty stream. It keeps the head and the tail that `limits` set.
    pub fn new(limits: Limits) -> Self {
        Self { head: Vec::new(), tail: VecDeque::new(), limits, left_out: 0 }
    }

    /// Takes the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min(self.limits.stderr_head - self.head.len()));
        self.head.extend_from_slice(head);
        // If the piece is longer than the tail, only its end is kept.
        let (skipped, rest) = rest.split_at(rest.len().saturating_sub(self.limits.stderr_tail));
        self.tail.extend(rest);
        let overflow = self.tail.len().saturating_sub(self.limits.stderr_tail);
        self.tail.drain(..overflow);
        self.left_out += skipped.len() + overflow;
    }

    /// Returns the kept bytes: at most `limit` bytes, and a further line in the place of the part
    /// that is left out.
    pub fn into_bytes(self, limit: usize) -> Bytes {
        let Limits { stderr_head, stderr_tail, join_lines, .. } = self.limits;
        let (mut head, mut tail, mut left_out) = (self.head, Vec::from(self.tail), self.left_out);
        let is_whole = left_out == 0;
        if is_whole {
            head.append(&mut tail);
        }
        if join_lines {
            let last = if is_whole { &mut head } else { &mut tail };
            while last.pop_if(|byte| is_line_end(*byte)).is_some() {}
            let blank = head.iter().take_while(|&&byte| is_line_end(byte)).count();
            (head, tail) = (joined(&head[blank..]), joined(&tail));
        }
        if is_whole && head.len() <= limit.min(stderr_head.saturating_add(stderr_tail)) {
            return head.into();
        }

        // Joined lines may be longer than the limits.
        let after_head = head.split_off(head.len().min(stderr_head).min(limit / 2));
        if is_whole {
            tail = after_head;
        } else {
            left_out += after_head.len();
        }
        // A cut UTF-8 character would look like invalid output of the function.
        let whole = whole_characters(&head);
        left_out += head.len() - whole;
        head.truncate(whole);
        let overflow = tail.len().saturating_sub(stderr_tail.min(limit - whole));
        let partial = tail[overflow..].iter().take(3).take_while(|&&byte| byte & 0xc0 == 0x80).count();
        left_out += overflow + partial;
        tail.drain(..overflow + partial);

        let line_end = if join_lines { JOINT } else { b"\n" };
        if !head.is_empty() && !head.ends_with(line_end) {
            head.extend_from_slice(line_end);
        }
        head.extend_from_slice(format!("[... {left_out} bytes of stderr left out ...]").as_bytes());
        if !(join_lines && tail.is_empty()) {
            head.extend_from_slice(line_end);
        }
        head.append(&mut tail);
        head.into()
    }

    /// All kept bytes as text. Bytes that are not UTF-8 are replacement characters.
    pub fn into_text(self) -> String {
        String::from_utf8_lossy(&self.into_bytes(usize::MAX)).into_owned()
    }
}

fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

/// Replaces each `\n`, `\r\n` and `\r` in `text` by [`JOINT`].
fn joined(text: &[u8]) -> Vec<u8> {
    let mut joined = Vec::with_capacity(text.len());
    let mut last = 0;
    for &byte in text {
        match byte {
            b'\n' if last == b'\r' => {}
            b'\n' | b'\r' => joined.extend_from_slice(JOINT),
            _ => joined.push(byte),
        }
        last = byte;
    }
    joined
}

/// The length of `bytes` without an incomplete last character.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kept(pieces: &[&[u8]], stderr_head: usize, stderr_tail: usize, join_lines: bool) -> Stderr {
        let mut stderr = Stderr::new(Limits { stdout: 0, stderr_head, stderr_tail, join_lines });
        for piece in pieces {
            stderr.push(piece);
        }
        stderr
    }

    #[test]
    fn both_ends_are_kept_and_the_middle_is_marked() {
        for (pieces, head, tail, limit, expected) in [
            ("", 4, 4, 100, ""),
            ("12|345|678", 4, 4, 100, "12345678"),
            ("1234|56|789", 4, 4, 100, "1234\n[... 1 bytes of stderr left out ...]\n6789"),
            ("123\n|xxxxxxxxxx|abcd", 4, 4, 100, "123\n[... 10 bytes of stderr left out ...]\nabcd"),
            ("123456", 0, 2, 100, "[... 4 bytes of stderr left out ...]\n56"),
            // Text is cut only between characters.
            ("aé|-----|éz", 2, 2, 100, "a\n[... 9 bytes of stderr left out ...]\nz"),
            // A limit below the kept bytes.
            ("12345678", 100, 100, 4, "12\n[... 4 bytes of stderr left out ...]\n78"),
            ("12345678", 3, 3, 4, "12\n[... 4 bytes of stderr left out ...]\n78"),
            ("12345678", 3, 3, 0, "[... 8 bytes of stderr left out ...]\n"),
        ] {
            let bytes: Vec<_> = pieces.split('|').map(str::as_bytes).collect();
            let text = kept(&bytes, head, tail, false).into_bytes(limit);
            assert_eq!(str::from_utf8(&text), Ok(expected), "{pieces}");
        }
    }

    #[test]
    fn lines_are_joined_as_in_porchs_flatten_log() {
        for (stream, head, tail, expected) in [
            ("\n", 100, 100, ""),
            ("one", 100, 100, "one"),
            ("\n\none\ntwo\nthree\n\n", 100, 100, "one | two | three"),
            ("one\n\ntwo", 100, 100, "one |  | two"),
            ("  one \n\ttwo ", 100, 100, "  one  | \ttwo "),
            ("one\r\ntwo\rthree\r\n", 100, 100, "one | two | three"),
            ("one\r\r\ntwo", 100, 100, "one |  | two"),
            ("one | \n", 100, 100, "one | "),
            ("1234\n5678", 4, 4, "1234 | [... 1 bytes of stderr left out ...] | 5678"),
            (&format!("12{}", "\n".repeat(1000)), 2, 6, "12 | [... 994 bytes of stderr left out ...]"),
        ] {
            assert_eq!(kept(&[stream.as_bytes()], head, tail, true).into_text(), expected, "{stream:?}");
            let bytes: Vec<_> = stream.as_bytes().chunks(1).collect();
            assert_eq!(
                kept(&bytes, head.min(4), tail, true).into_text(),
                expected,
                "{stream:?} in two parts"
            );
        }
    }

    proptest! {
        #[test]
        fn never_returns_more_than_the_limits(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..20),
            head in 0usize..50,
            tail in 0usize..50,
            limit in 0usize..100,
            join_lines: bool,
        ) {
            let pieces: Vec<_> = pieces.iter().map(Vec::as_slice).collect();
            let whole = pieces.concat();
            let bytes = kept(&pieces, head, tail, join_lines).into_bytes(limit);
            prop_assert!(bytes.len() <= limit.min(head + tail) + MARKER_LIMIT);
            if !join_lines && whole.len() <= limit.min(head + tail) {
                prop_assert_eq!(&bytes[..], &whole[..]);
            }
        }
    }
}
