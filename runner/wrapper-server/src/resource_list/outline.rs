//! Recognises a `ResourceList` in the usual block style by its lines, without parsing them.
//!
//! Parsing takes 30 ms per MiB, and Porch parses each answer again. So for a function that
//! succeeded, only the lines at the left edge are read: the keys of the list and the beginning of
//! each item. An output of any other shape is left to the parser.

use memchr::{memchr, memchr_iter};

/// The part of the list that the current line belongs to.
#[derive(Clone, Copy)]
enum Part {
    /// Nothing may follow in indented lines: before the first key, or after a value in its line.
    Closed,
    /// `items`, with the indentation of its elements once it is known.
    Items(Option<usize>),
    /// `functionConfig`, and whether its first line was read.
    Config(bool),
    /// `results`, which the caller parses.
    Results,
}

struct Outline {
    part: Part,
    /// One bit for each entry of [`KEYS`] that was read.
    seen: u8,
    /// Offsets of the key `results` and of the key after it.
    results: Option<(usize, Option<usize>)>,
}

const KEYS: [&[u8]; 5] = [b"apiVersion", b"kind", b"items", b"functionConfig", b"results"];
const KIND: u8 = 1 << 1;

/// Returns the lines of the key `results`, or an empty text if there is no such key. Returns `None`
/// if only a parser can tell whether the output is a `ResourceList`.
///
/// Does not look into an item, so its YAML may be invalid.
pub(super) fn results(output: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(output).ok()?;
    // A carriage return alone ends a line, too.
    if memchr(b'\r', output).is_some() || super::events::control_character(text).is_some() {
        return None;
    }
    let mut outline = Outline { part: Part::Closed, seen: 0, results: None };
    let mut start = 0;
    for end in memchr_iter(b'\n', output).chain([output.len()]) {
        outline.add(&output[start..end], start)?;
        start = end + 1;
    }
    outline.close()?;
    (outline.seen & KIND != 0).then_some(())?;
    Some(outline.results.map_or("", |(from, to)| &text[from..to.unwrap_or(text.len())]))
}

impl Outline {
    /// Reads the line that begins at an offset. `None`: the shape is unusual.
    fn add(&mut self, line: &[u8], offset: usize) -> Option<()> {
        match (line.first(), self.part) {
            (None | Some(b'#'), _)
            | (Some(b' '), Part::Items(Some(0)) | Part::Config(true) | Part::Results) => Some(()),
            (Some(b' '), _) => self.indented(line),
            (Some(b'-'), Part::Items(None | Some(0))) => {
                self.part = Part::Items(Some(0));
                begins_mapping(element(line)?)
            }
            (Some(b'-'), Part::Results) => element(line).map(drop),
            (Some(b'-'), _) => (line == b"---" && self.seen == 0).then_some(()),
            _ => self.key(line, offset),
        }
    }

    fn indented(&mut self, line: &[u8]) -> Option<()> {
        let rest = line.trim_ascii_start();
        let indent = line.len() - rest.len();
        if rest.is_empty() || rest[0] == b'#' {
            return Some(());
        }
        match self.part {
            Part::Items(Some(known)) if indent > known => Some(()),
            Part::Items(known) if known.is_none_or(|known| indent == known) => {
                self.part = Part::Items(Some(indent));
                begins_mapping(element(rest)?)
            }
            Part::Config(false) => {
                self.part = Part::Config(true);
                begins_mapping(rest)
            }
            _ => None,
        }
    }

    /// Reads a key of the list. Each may occur once.
    fn key(&mut self, line: &[u8], offset: usize) -> Option<()> {
        self.close()?;
        let colon = memchr(b':', line)?;
        let key = KEYS.iter().position(|key| *key == &line[..colon])?;
        if self.seen & 1 << key != 0 {
            return None;
        }
        self.seen |= 1 << key;
        if let Some((_, to @ None)) = &mut self.results {
            *to = Some(offset);
        }
        let value = &line[colon + 1..];
        if !value.is_empty() && value[0] != b' ' {
            return None;
        }
        self.part = match (KEYS[key], value.trim_ascii()) {
            (b"kind", b"ResourceList") | (b"items", b"[]") | (b"functionConfig", b"{}") => Part::Closed,
            (b"apiVersion", version) if !version.is_empty() && version.iter().copied().all(is_plain) => {
                Part::Closed
            }
            (b"items", b"") => Part::Items(None),
            (b"functionConfig", b"") => Part::Config(false),
            (b"results", value) => {
                self.results = Some((offset, None));
                if value.is_empty() { Part::Results } else { Part::Closed }
            }
            _ => return None,
        };
        Some(())
    }

    /// Ends a part. `items` and `functionConfig` without a value are null, which is an error.
    fn close(&self) -> Option<()> {
        (!matches!(self.part, Part::Items(None) | Part::Config(false))).then_some(())
    }
}

/// The contents of a list's element.
fn element(line: &[u8]) -> Option<&[u8]> {
    Some(line.strip_prefix(b"- ")?.trim_ascii_start())
}

/// Checks that a line begins a mapping with a key that needs no quotes.
fn begins_mapping(line: &[u8]) -> Option<()> {
    let colon = memchr(b':', line)?;
    let (key, value) = (&line[..colon], &line[colon + 1..]);
    let is_key = key.first()?.is_ascii_alphanumeric() && key.iter().copied().all(is_plain);
    (is_key && value.first().is_none_or(|&first| first == b' ')).then_some(())
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"./_-".contains(&byte)
}
