//! Sparse files of PAX archives, in the three formats of GNU tar. The tar library reads only the
//! format of older archives, and would give a file's map as the file's content.
//! <https://www.gnu.org/software/tar/manual/html_node/Sparse-Formats.html>

use std::io::{self, Read};
use std::iter::Peekable;
use std::vec::IntoIter;

use tar::Entry;

use super::Refusal;
use super::guard::MAX_HEADERS;

const BLOCK: usize = 512;

/// What an entry's attributes say about its sparse file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sparse {
    /// The file's name, if the entry has another one.
    pub(super) name: Option<Vec<u8>>,
    /// The file's size with its holes.
    pub(super) size: u64,
    /// Offsets and lengths, by turns. `None`: the entry's data begins with them.
    map: Option<Vec<u64>>,
}

/// A part of the file that has data.
#[derive(Debug, Clone, Copy)]
struct Part {
    begin: u64,
    end: u64,
}

/// The whole file, with zeros in its holes.
#[derive(Debug)]
pub(super) struct Expanded<R> {
    data: R,
    parts: Peekable<IntoIter<Part>>,
    position: u64,
    size: u64,
}

// === impl Sparse ===

impl Sparse {
    /// Returns `None` if the entry is not such a file.
    pub(super) fn of<R: Read>(entry: &mut Entry<'_, R>) -> Result<Option<Self>, Refusal> {
        let Ok(Some(attributes)) = entry.pax_extensions() else { return Ok(None) };
        let attributes = attributes.flatten().filter_map(|attribute| {
            Some((attribute.key_bytes().strip_prefix(b"GNU.sparse.")?, attribute.value_bytes()))
        });
        Self::parse(attributes)
    }

    fn parse<'a>(attributes: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Result<Option<Self>, Refusal> {
        let (mut sparse, mut map, mut size, mut major) = (Self::default(), Vec::new(), None, None);
        for (key, value) in attributes {
            match key {
                b"name" => sparse.name = Some(value.to_owned()),
                b"size" | b"realsize" => size = Some(number(value)?),
                b"major" => major = Some(number(value)?),
                b"offset" | b"numbytes" => map.push(number(value)?),
                b"map" if value.is_empty() => {}
                b"map" => map = value.split(|byte| *byte == b',').map(number).collect::<Result<_, _>>()?,
                // `minor` is 0, and `numblocks` is the length of the map.
                _ => {}
            }
        }
        match (size, major) {
            (None, None) if sparse.name.is_none() && map.is_empty() => return Ok(None),
            (Some(size), Some(1)) => sparse.size = size,
            (Some(size), None | Some(0)) => (sparse.size, sparse.map) = (size, Some(map)),
            _ => return Err(Refusal::Sparse),
        }
        Ok(Some(sparse))
    }

    /// Expands the file's data. `data` is the entry's.
    pub(super) fn expand<R: Read>(self, mut data: R) -> io::Result<Expanded<R>> {
        let map = self.map.map_or_else(|| read_map(&mut data), Ok)?;
        let parts = parts(&map, self.size).ok_or_else(malformed)?;
        Ok(Expanded { data, parts: parts.into_iter().peekable(), position: 0, size: self.size })
    }
}

// === impl Expanded ===

impl<R: Read> Read for Expanded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.parts.next_if(|part| part.end <= self.position).is_some() {}
        let next = self.parts.peek().copied().unwrap_or(Part { begin: self.size, end: self.size });
        let is_hole = self.position < next.begin;
        let left = if is_hole { next.begin } else { next.end } - self.position;
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let buffer = &mut buffer[..most];
        let read = if is_hole {
            buffer.fill(0);
            buffer.len()
        } else {
            self.data.read(buffer)?
        };
        self.position += read as u64;
        Ok(read)
    }
}

/// The map at the begin of the data: the number of parts and their numbers, one per line, up to a
/// whole block.
fn read_map(data: &mut impl Read) -> io::Result<Vec<u64>> {
    let (mut numbers, mut line, mut read) = (Vec::new(), Vec::new(), 0);
    loop {
        let mut block = [0; BLOCK];
        data.read_exact(&mut block)?;
        read += BLOCK as u64;
        for byte in block {
            if byte != b'\n' {
                line.push(byte);
                continue;
            }
            numbers.push(number(&line).map_err(|_| malformed())?);
            line.clear();
            if numbers[0].checked_mul(2) == Some(numbers.len() as u64 - 1) {
                numbers.remove(0);
                return Ok(numbers);
            }
        }
        if read >= MAX_HEADERS {
            return Err(malformed());
        }
    }
}

/// The parts with data. `None`: they overlap, are not in order, or exceed the file.
fn parts(map: &[u64], size: u64) -> Option<Vec<Part>> {
    let (pairs, rest) = map.as_chunks::<2>();
    let mut position = 0;
    let mut parts = Vec::with_capacity(pairs.len());
    for [begin, length] in pairs {
        let end = begin.checked_add(*length)?;
        if *begin < position || end > size {
            return None;
        }
        position = end;
        parts.push(Part { begin: *begin, end });
    }
    rest.is_empty().then_some(parts)
}

fn number(text: &[u8]) -> Result<u64, Refusal> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    text.and_then(|text| text.parse().ok()).ok_or(Refusal::Sparse)
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the map of a sparse file is malformed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(attributes: &[(&str, &str)]) -> Result<Option<Sparse>, Refusal> {
        Sparse::parse(attributes.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes())))
    }

    fn expanded(sparse: Sparse, data: &[u8]) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        sparse.expand(data)?.read_to_end(&mut all)?;
        Ok(all)
    }

    #[test]
    fn the_three_formats() {
        let oldest = [
            ("size", "6"),
            ("numblocks", "2"),
            ("offset", "1"),
            ("numbytes", "2"),
            ("offset", "5"),
            ("numbytes", "1"),
        ];
        let older = [("name", "f"), ("size", "6"), ("numblocks", "2"), ("map", "1,2,5,1")];
        for attributes in [&oldest[..], &older] {
            let sparse = parse(attributes).unwrap().unwrap();
            assert_eq!(sparse.size, 6);
            assert_eq!(expanded(sparse, b"abc").unwrap(), b"\0ab\0\0c");
        }
        let mut data = b"2\n1\n2\n5\n1\n".to_vec();
        data.resize(BLOCK, 0);
        data.extend(b"abc");
        let newest = [("major", "1"), ("minor", "0"), ("name", "f"), ("realsize", "6")];
        let sparse = parse(&newest).unwrap().unwrap();
        assert_eq!(sparse.name.as_deref(), Some(&b"f"[..]));
        assert_eq!(expanded(sparse, &data).unwrap(), b"\0ab\0\0c");
        assert_eq!(parse(&[("numblocks", "0")]), Ok(None));
        let hole = parse(&[("size", "2"), ("map", "")]).unwrap().unwrap();
        assert_eq!(expanded(hole, b"").unwrap(), b"\0\0");
    }

    #[test]
    fn malformed_maps_are_refused() {
        for attributes in [
            &[("major", "1")][..],
            &[("size", "x")],
            &[("size", "+1")],
            &[("size", "1"), ("major", "2")],
            &[("size", "1"), ("map", "1,,2")],
            &[("map", "0,1")],
        ] {
            assert_eq!(parse(attributes), Err(Refusal::Sparse), "{attributes:?}");
        }
        for map in ["1,2,2,1", "0,7", "0", "18446744073709551615,1", "3,1,0,1"] {
            let sparse = parse(&[("size", "6"), ("map", map)]).unwrap().unwrap();
            assert!(expanded(sparse, b"abcdefg").is_err(), "{map}");
        }
        let newest = || parse(&[("major", "1"), ("realsize", "6")]).unwrap().unwrap();
        for begin in ["", "x\n", "1\n0\n", "9223372036854775808\n0\n"] {
            let mut data = begin.as_bytes().to_vec();
            data.resize(BLOCK, 0);
            assert!(expanded(newest(), &data).is_err(), "{begin:?}");
        }
        assert!(expanded(newest(), &vec![b'1'; 2 << 20]).is_err());
    }
}
