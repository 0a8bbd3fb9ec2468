//! HPACK, as far as tests need it: an encoder without compression, and a decoder.
//! <https://www.rfc-editor.org/rfc/rfc7541>

use std::collections::VecDeque;

use super::Field;

/// The static table: `name|value`, from index 1.
const STATIC: &str = "\
    :authority|;:method|GET;:method|POST;:path|/;:path|/index.html;:scheme|http;:scheme|https;\
    :status|200;:status|204;:status|206;:status|304;:status|400;:status|404;:status|500;\
    accept-charset|;accept-encoding|gzip, deflate;accept-language|;accept-ranges|;accept|;\
    access-control-allow-origin|;age|;allow|;authorization|;cache-control|;content-disposition|;\
    content-encoding|;content-language|;content-length|;content-location|;content-range|;\
    content-type|;cookie|;date|;etag|;expect|;expires|;from|;host|;if-match|;if-modified-since|;\
    if-none-match|;if-range|;if-unmodified-since|;last-modified|;link|;location|;max-forwards|;\
    proxy-authenticate|;proxy-authorization|;range|;referer|;refresh|;retry-after|;server|;\
    set-cookie|;strict-transport-security|;transfer-encoding|;user-agent|;vary|;via|;\
    www-authenticate|";
/// The lengths of Huffman's codes in bits, by byte. The code is canonical: codes of one length are
/// numbered in the order of their bytes.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7,
    7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21,
    23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24,
    21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];
/// The default size of the dynamic table in bytes.
const TABLE: usize = 4096;

/// Encodes fields as literals that are never indexed.
pub fn encode(fields: &[Field]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0x10);
        for text in [name, value] {
            integer(&mut block, text.len());
            block.extend(text.as_bytes());
        }
    }
    block
}

/// A field in the dynamic table, and then `count` references to it of one byte each.
pub fn encode_repeated(name: &str, value: &str, count: usize) -> Vec<u8> {
    let mut block = vec![0x40];
    for text in [name, value] {
        integer(&mut block, text.len());
        block.extend(text.as_bytes());
    }
    // The newest entry follows the 61 static ones.
    block.resize(block.len() + count, 0x80 | 0x3e);
    block
}

/// The length of a text: an integer with a prefix of seven bits.
fn integer(block: &mut Vec<u8>, value: usize) {
    let Some(mut rest) = value.checked_sub(0x7f) else {
        block.push(value as u8);
        return;
    };
    block.push(0x7f);
    while rest >= 128 {
        block.push(0x80 | (rest & 0x7f) as u8);
        rest >>= 7;
    }
    block.push(rest as u8);
}

/// The decoder of one direction of a connection.
#[derive(Debug, Default)]
pub struct Decoder {
    table: VecDeque<Field>,
}

/// The rest of a block.
struct Block<'a>(&'a [u8]);

impl Decoder {
    /// Decodes a block. `None` if it is malformed.
    pub fn decode(&mut self, block: &[u8]) -> Option<Vec<Field>> {
        let (mut block, mut fields) = (Block(block), Vec::new());
        while let Some(&first) = block.0.first() {
            if first & 0x80 != 0 {
                let index = block.integer(7)?;
                fields.push(self.entry(index)?);
                continue;
            }
            if first & 0xe0 == 0x20 {
                // The size of the table never grows, and a smaller one loses nothing here.
                block.integer(5)?;
                continue;
            }
            let is_indexed = first & 0xc0 == 0x40;
            let name = match block.integer(if is_indexed { 6 } else { 4 })? {
                0 => block.text()?,
                index => self.entry(index)?.0,
            };
            let field = (name, block.text()?);
            if is_indexed {
                self.table.push_front(field.clone());
                let size = |table: &VecDeque<Field>| -> usize {
                    table.iter().map(|(name, value)| name.len() + value.len() + 32).sum()
                };
                while size(&self.table) > TABLE {
                    self.table.pop_back();
                }
            }
            fields.push(field);
        }
        Some(fields)
    }

    fn entry(&self, index: usize) -> Option<Field> {
        let index = index.checked_sub(1)?;
        if let Some(entry) = STATIC.split(';').nth(index) {
            let (name, value) = entry.split_once('|')?;
            return Some((name.to_owned(), value.to_owned()));
        }
        self.table.get(index - 61).cloned()
    }
}

impl Block<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn integer(&mut self, bits: u32) -> Option<usize> {
        let most = (1 << bits) - 1;
        let mut value = usize::from(self.byte()?) & most;
        if value < most {
            return Some(value);
        }
        for shift in (0..28).step_by(7) {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn text(&mut self) -> Option<String> {
        let is_huffman = self.0.first()? & 0x80 != 0;
        let length = self.integer(7)?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        let bytes = if is_huffman { inflate(text) } else { text.to_vec() };
        String::from_utf8(bytes).ok()
    }
}

/// Decodes Huffman's code. Ignores a padding.
fn inflate(text: &[u8]) -> Vec<u8> {
    let mut counts = [0u32; 32];
    for &length in &LENGTHS {
        counts[usize::from(length)] += 1;
    }
    let bits = text.iter().flat_map(|byte| (0..8).rev().map(move |bit| u32::from(byte >> bit & 1)));
    // `first` is the first code of this length.
    let (mut found, mut code, mut length, mut first) = (Vec::new(), 0u32, 0usize, 0u32);
    for bit in bits {
        (first, code) = ((first + counts[length]) << 1, code << 1 | bit);
        length = (length + 1).min(31);
        let number = code.wrapping_sub(first);
        if number < counts[length] {
            let mut bytes = (0..=255u8).filter(|&byte| usize::from(LENGTHS[usize::from(byte)]) == length);
            found.extend(bytes.nth(number as usize));
            (code, length, first) = (0, 0, 0);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::fields;
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let list = fields([(":path", "/a"), ("X-illegal", "\r\n"), ("long", &"é".repeat(3000))]);
        assert_eq!(Decoder::default().decode(&encode(&list)), Some(list));
        let repeated = Decoder::default().decode(&encode_repeated("a", "", 3)).unwrap();
        assert_eq!(repeated, fields([("a", ""); 4]));
    }

    /// <https://www.rfc-editor.org/rfc/rfc7541#appendix-C.6>
    #[test]
    fn the_examples_of_the_standard_are_decoded() {
        let first = b"\x48\x82\x64\x02\x58\x85\xae\xc3\x77\x1a\x4b\x61\x96\xd0\x7a\xbe\x94\x10\x54\xd4\x44\xa8\x20\x05\
            \x95\x04\x0b\x81\x66\xe0\x82\xa6\x2d\x1b\xff\x6e\x91\x9d\x29\xad\x17\x18\x63\xc7\x8f\x0b\x97\xc8\xe9\xae\x82\xae\
            \x43\xd3";
        let mut decoder = Decoder::default();
        let expected = fields([
            (":status", "302"),
            ("cache-control", "private"),
            ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
            ("location", "https://www.example.com"),
        ]);
        assert_eq!(decoder.decode(first), Some(expected.clone()));
        let second = decoder.decode(b"\x48\x83\x64\x0e\xff\xc1\xc0\xbf").unwrap();
        assert_eq!(second, [fields([(":status", "307")]), expected[1..].to_vec()].concat());
    }
}
