//! Encodes requests and responses without copying the package in them.

use bytes::{Bytes, BytesMut};
use prost::encoding::{WireType, encode_key, encode_varint};

use crate::Chunks;
use crate::peek::{IMAGE_FIELD, RESOURCE_LIST_FIELD, TAG_FIELD};

/// Field number of `EvaluateFunctionResponse.log`.
const LOG_FIELD: u32 = 2;

/// Encodes an `EvaluateFunctionRequest`. As in proto3, empty fields are left out.
pub fn encode_request(resource_list: Chunks, image: &str, tag: &str) -> Chunks {
    let text = |text: &str| Bytes::copy_from_slice(text.as_bytes()).into();
    encode([(RESOURCE_LIST_FIELD, resource_list), (IMAGE_FIELD, text(image)), (TAG_FIELD, text(tag))])
}

/// Encodes an `EvaluateFunctionResponse`. As in proto3, empty fields are left out.
pub fn encode_response(resource_list: Chunks, log: Bytes) -> Chunks {
    encode([(RESOURCE_LIST_FIELD, resource_list), (LOG_FIELD, log.into())])
}

fn encode<const N: usize>(fields: [(u32, Chunks); N]) -> Chunks {
    let mut out = Chunks::default();
    for (field, value) in fields.into_iter().filter(|(_, value)| !value.is_empty()) {
        let mut head = BytesMut::with_capacity(16);
        encode_key(field, WireType::LengthDelimited, &mut head);
        encode_varint(value.len() as u64, &mut head);
        out.push(head.freeze());
        value.into_iter().for_each(|part| out.push(part));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluator::{EvaluateFunctionRequest, EvaluateFunctionResponse};
    use proptest::prelude::*;
    use prost::Message;

    proptest! {
        #[test]
        fn prost_decodes_the_encoded_messages(
            list in prop::collection::vec(any::<u8>(), 0..300), image in ".{0,20}", tag in ".{0,5}",
        ) {
            let list = Bytes::from(list);
            let request = encode_request(list.clone().into(), &image, &tag).contiguous();
            let decoded = EvaluateFunctionRequest::decode(request).unwrap();
            let exec_path = String::new();
            let expected = EvaluateFunctionRequest { resource_list: list.clone(), image, tag, exec_path };
            prop_assert_eq!(decoded, expected);
            let response = encode_response(list.clone().into(), Bytes::from_static(b"log")).contiguous();
            let decoded = EvaluateFunctionResponse::decode(response).unwrap();
            prop_assert_eq!(decoded.resource_list, list);
            prop_assert_eq!(&decoded.log[..], b"log");
        }
    }
}
