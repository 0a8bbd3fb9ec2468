//! What a function says on stderr, kept within a bound.
//!
//! The beginning names the first fault and the end the last, so both are kept and the middle is left out. A function
//! that floods stderr still gets its answer.

use std::collections::VecDeque;

use bytes::Bytes;

/// The longest that the line about what was left out can get, in bytes.
pub(crate) const MARKER_LIMIT: usize = 64;

/// The head and the tail of a stream, with a count of what was left out between them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stderr {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    head_limit: usize,
    tail_limit: usize,
    left_out: u64,
    /// Set when lines are joined.
    lines: Option<Lines>,
}

/// What stands between joined lines, as in Porch's `--flatten-log`.
const JOINT: &[u8] = b" | ";

/// Joins the lines of a stream that comes in pieces. Line ends are `\n`, `\r\n` and `\r`; those at
/// the beginning are left out at once, and those at the end once it is known that nothing follows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Lines {
    begun: bool,
    after_cr: bool,
    /// Joints that nothing has followed yet.
    trailing: usize,
}

impl Lines {
    fn join(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut joined = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            let after_cr = std::mem::replace(&mut self.after_cr, byte == b'\r');
            match byte {
                b'\n' if after_cr => {}
                b'\n' | b'\r' if self.begun => {
                    joined.extend_from_slice(JOINT);
                    self.trailing += 1;
                }
                b'\n' | b'\r' => {}
                _ => {
                    self.begun = true;
                    self.trailing = 0;
                    joined.push(byte);
                }
            }
        }
        joined
    }
}

impl Stderr {
    /// Nothing yet. Up to `head_limit` and `tail_limit` bytes will be kept.
    pub fn new(head_limit: usize, tail_limit: usize) -> Self {
        Self { head_limit, tail_limit, ..Self::default() }
    }

    /// The same with its lines joined by ` | `. The limits are those of the joined text.
    #[must_use]
    pub fn with_joined_lines(self) -> Self {
        Self { lines: Some(Lines::default()), ..self }
    }

    /// Takes the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        match &mut self.lines {
            Some(lines) => {
                let joined = lines.join(bytes);
                self.keep(&joined);
            }
            None => self.keep(bytes),
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min(self.head_limit - self.head.len()));
        self.head.extend_from_slice(head);
        // Of a long piece only its end can stay.
        let (skipped, rest) = rest.split_at(rest.len().saturating_sub(self.tail_limit));
        self.tail.extend(rest);
        let overflow = self.tail.len().saturating_sub(self.tail_limit);
        self.tail.drain(..overflow);
        self.left_out += (skipped.len() + overflow) as u64;
    }

    /// Leaves out as much more as needed to keep `limit` bytes at most, besides the line that says so.
    pub fn shrink(&mut self, limit: usize) {
        if self.head.len() + self.tail.len() <= limit {
            return;
        }
        let after_head = self.head.split_off(self.head.len().min(limit / 2));
        if self.left_out == 0 {
            // There is no gap yet: what follows the head still leads up to the tail.
            let tail = std::mem::replace(&mut self.tail, after_head.into());
            self.tail.extend(tail);
        } else {
            self.left_out += after_head.len() as u64;
        }
        let overflow = self.tail.len().saturating_sub(limit - self.head.len());
        self.tail.drain(..overflow);
        self.left_out += overflow as u64;
    }

    /// Everything that was kept, with a line in the place of what was left out.
    pub fn into_bytes(self) -> Bytes {
        let line_end = if self.lines.is_some() { JOINT } else { b"\n" };
        let mut kept = self.head;
        let (mut tail, mut left_out) = (Vec::from(self.tail), self.left_out);
        if left_out > 0 {
            // Half a character would show as a fault of the function's.
            let whole = whole_characters(&kept);
            left_out += (kept.len() - whole) as u64;
            kept.truncate(whole);
            let partial = tail.iter().take(3).take_while(|&&byte| byte & 0xc0 == 0x80).count();
            left_out += partial as u64;
            tail.drain(..partial);
            if !kept.is_empty() && !kept.ends_with(line_end) {
                kept.extend_from_slice(line_end);
            }
            kept.extend_from_slice(format!("[... {left_out} bytes of stderr left out ...]").as_bytes());
            kept.extend_from_slice(line_end);
        }
        kept.append(&mut tail);
        for _ in 0..self.lines.map_or(0, |lines| lines.trailing) {
            let Some(text) = kept.strip_suffix(JOINT) else { break };
            kept.truncate(text.len());
        }
        kept.into()
    }

    /// The same as text. What is not UTF-8 shows as replacement characters.
    pub fn into_text(self) -> String {
        String::from_utf8_lossy(&self.into_bytes()).into_owned()
    }
}

/// The length of `bytes` without a last character that is cut off.
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

    fn kept(pieces: &[&[u8]], head: usize, tail: usize) -> Stderr {
        let mut stderr = Stderr::new(head, tail);
        for piece in pieces {
            stderr.push(piece);
        }
        stderr
    }

    fn text(stderr: Stderr) -> String {
        String::from_utf8(stderr.into_bytes().into()).unwrap()
    }

    #[test]
    fn keeps_a_short_stream_whole() {
        assert_eq!(text(kept(&[], 4, 4)), "");
        assert_eq!(text(kept(&[b"12", b"345", b"678"], 4, 4)), "12345678");
    }

    #[test]
    fn marks_what_is_left_out_on_a_line_of_its_own() {
        let cut = kept(&[b"1234", b"56", b"789"], 4, 4);
        assert_eq!(text(cut), "1234\n[... 1 bytes of stderr left out ...]\n6789");
        let cut = kept(&[b"123\n", b"xxxxxxxxxx", b"abcd"], 4, 4);
        assert_eq!(text(cut), "123\n[... 10 bytes of stderr left out ...]\nabcd");
        let cut = kept(&[b"123456"], 0, 2);
        assert_eq!(text(cut), "[... 4 bytes of stderr left out ...]\n56");
    }

    fn joined(pieces: &[&[u8]], head: usize, tail: usize) -> String {
        let mut stderr = Stderr::new(head, tail).with_joined_lines();
        for piece in pieces {
            stderr.push(piece);
        }
        text(stderr)
    }

    #[test]
    fn joins_lines_as_porchs_flatten_log_does() {
        for (stream, expected) in [
            ("", ""),
            ("\n", ""),
            ("one", "one"),
            ("one\ntwo\nthree", "one | two | three"),
            ("\n\none\ntwo\n\n", "one | two"),
            ("one\n\ntwo", "one |  | two"),
            ("  one \n\ttwo ", "  one  | \ttwo "),
            ("one\r\ntwo\nthree\r\n", "one | two | three"),
            ("one\rtwo\r", "one | two"),
            ("one\r\r\ntwo", "one |  | two"),
            ("one | \n", "one | "),
        ] {
            assert_eq!(joined(&[stream.as_bytes()], 100, 100), expected, "{stream:?}");
            let bytes: Vec<_> = stream.as_bytes().chunks(1).collect();
            assert_eq!(joined(&bytes, 100, 100), expected, "{stream:?} byte by byte");
            assert_eq!(joined(&bytes, 3, 100), expected, "{stream:?} in two parts");
        }
    }

    #[test]
    fn joined_lines_keep_within_the_limits() {
        assert_eq!(joined(&[b"1234\n", b"5678"], 4, 4), "1234 | [... 3 bytes of stderr left out ...] | 5678");
        let flood = [b'\n'; 1000];
        assert_eq!(joined(&[b"12", &flood], 2, 6), "12 | [... 2994 bytes of stderr left out ...]");
        let mut stderr = Stderr::new(100, 100).with_joined_lines();
        stderr.push(b"1\n2\n3\n4\n5\n");
        stderr.shrink(4);
        assert!(text(stderr).len() <= 4 + MARKER_LIMIT);
    }

    #[test]
    fn cuts_between_characters() {
        let cut = kept(&["aé".as_bytes(), b"-----", "éz".as_bytes()], 2, 2);
        assert_eq!(text(cut), "a\n[... 9 bytes of stderr left out ...]\nz");
    }

    #[test]
    fn shrinks_to_both_ends() {
        let mut whole = kept(&[b"12345678"], 100, 100);
        whole.shrink(4);
        assert_eq!(text(whole), "12\n[... 4 bytes of stderr left out ...]\n78");
        let mut cut = kept(&[b"12345678"], 3, 3);
        cut.shrink(4);
        assert_eq!(text(cut), "12\n[... 4 bytes of stderr left out ...]\n78");
        let mut empty = kept(&[b"12345678"], 3, 3);
        empty.shrink(0);
        assert_eq!(text(empty), "[... 8 bytes of stderr left out ...]\n");
    }

    proptest! {
        #[test]
        fn never_keeps_more_than_its_limits(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..20),
            head in 0usize..50,
            tail in 0usize..50,
            limit in 0usize..100,
        ) {
            let pieces: Vec<_> = pieces.iter().map(Vec::as_slice).collect();
            let whole = pieces.concat();
            let mut stderr = kept(&pieces, head, tail);
            prop_assert!(whole.starts_with(&stderr.head));
            prop_assert!(whole.ends_with(stderr.tail.make_contiguous()));
            prop_assert_eq!(stderr.head.len() + stderr.tail.len() + stderr.left_out as usize, whole.len());
            prop_assert!(stderr.head.len() <= head && stderr.tail.len() <= tail);
            if whole.len() <= head + tail {
                prop_assert_eq!(&stderr.clone().into_bytes()[..], &whole[..]);
            }
            stderr.shrink(limit);
            prop_assert!(whole.starts_with(&stderr.head));
            prop_assert!(whole.ends_with(stderr.tail.make_contiguous()));
            prop_assert_eq!(stderr.head.len() + stderr.tail.len() + stderr.left_out as usize, whole.len());
            prop_assert!(stderr.into_bytes().len() <= limit + MARKER_LIMIT);
        }
    }
}
