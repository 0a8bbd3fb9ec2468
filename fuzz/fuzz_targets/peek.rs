//! Parses a call's body, cut into slices. The first byte of the input is the size of a slice.
//! Asserts that slices do not change the result, and that a protobuf library reads the same.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use porch_fn_proto::evaluator::EvaluateFunctionRequest;
use porch_fn_proto::{Chunks, FrameReader, PREFIX_LEN, peek};
use prost::Message;

const LIMIT: usize = 1 << 16;

fuzz_target!(|data: &[u8]| {
    let Some((cut, body)) = data.split_first() else { return };
    let cut = usize::from(*cut).max(1);

    let mut reader = FrameReader::new(LIMIT);
    let read = body.chunks(cut).try_for_each(|part| reader.push(Bytes::copy_from_slice(part)));
    if read.is_ok()
        && let Ok((whole, _)) = reader.finish()
    {
        assert!(whole.len() <= PREFIX_LEN + LIMIT);
        assert_eq!(whole.contiguous(), body);
    }

    // The message without its prefix, even if the prefix is invalid.
    let message = body.get(PREFIX_LEN..).unwrap_or(body);
    let whole = peek(&Chunks::from(Bytes::copy_from_slice(message)));
    let sliced: Chunks = message.chunks(cut).map(Bytes::copy_from_slice).collect();
    let peeked = match (peek(&sliced), whole) {
        (Ok(sliced), Ok(whole)) => {
            assert_eq!((&*sliced.image, &*sliced.tag), (&*whole.image, &*whole.tag));
            assert_eq!(sliced.resource_list, whole.resource_list);
            whole
        }
        (Err(sliced), Err(whole)) => return assert_eq!(sliced, whole),
        (sliced, whole) => panic!("{sliced:?} in slices, {whole:?} in one"),
    };
    if let Ok(decoded) = EvaluateFunctionRequest::decode(message) {
        assert_eq!(decoded.image, *peeked.image);
        assert_eq!(decoded.tag, *peeked.tag);
        assert_eq!(decoded.resource_list, sliced.slice(peeked.resource_list).contiguous());
    }
});
