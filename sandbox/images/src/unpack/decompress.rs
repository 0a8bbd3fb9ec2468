//! The tar stream of a layer: gzip, zstd, or not compressed. The first bytes decide, because media
//! types are often wrong.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

/// Size of the buffer before the decompressor, in bytes.
const BUFFER: usize = 256 << 10;

/// Returns the decompressed stream.
///
/// # Errors
/// The stream's first bytes cannot be read, or the decompressor has no memory.
pub fn decompressed<'a>(stream: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut stream = BufReader::with_capacity(BUFFER, stream);
    Ok(match stream.fill_buf()? {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(stream)),
        // A frame, or a skippable frame in front of it.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
            Box::new(zstd::stream::read::Decoder::with_buffer(stream)?)
        }
        _ => Box::new(stream),
    })
}
