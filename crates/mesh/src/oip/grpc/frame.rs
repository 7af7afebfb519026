//! The framing of gRPC messages: a flag, a length, the message.

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message;

/// A flag that says whether the message is compressed, and its length.
pub(crate) const FRAME_PREFIX: usize = 5;

/// A message with its gRPC frame of [`FRAME_PREFIX`] bytes, not compressed.
pub(crate) fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(FRAME_PREFIX + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode(&mut framed).expect("there is room for it");
    framed.freeze()
}

/// The length of the first message in `bytes`, and its flag; `None`: too little is here to know.
pub(crate) fn first(bytes: &[u8]) -> Option<(u8, usize)> {
    let [flag, length @ ..] = bytes.first_chunk::<FRAME_PREFIX>()?;
    usize::try_from(u32::from_be_bytes(*length)).ok().map(|length| (*flag, length))
}

/// A `ModelInferResponse` as the one in a framed `ModelStreamInferResponse`: what is to come before and after it.
/// `last` says that no answer to the request follows.
pub(crate) fn as_stream_response(length: usize, last: bool) -> (Bytes, &'static [u8]) {
    // A map entry of field 4, `parameters`: "triton_final_response" → bool_param true. Parts of a message add up.
    const LAST: &[u8] = b"\x22\x1b\x0a\x15triton_final_response\x12\x02\x08\x01";
    /// The key of the field `infer_response`.
    const INFER_RESPONSE: u8 = 0x12;
    let suffix: &[u8] = if last { LAST } else { &[] };
    let inner = length + suffix.len();
    let whole = 1 + prost::length_delimiter_len(inner) + inner;
    let mut head = BytesMut::with_capacity(FRAME_PREFIX + 1 + 10);
    head.put_u8(0);
    head.put_u32(u32::try_from(whole).unwrap_or(u32::MAX));
    head.put_u8(INFER_RESPONSE);
    prost::encode_length_delimiter(inner, &mut head).expect("a growing buffer takes it");
    (head.freeze(), suffix)
}

#[cfg(test)]
mod tests {
    use berth_wire::oip::{
        InferParameter, ModelInferResponse, ModelStreamInferResponse, infer_parameter::ParameterChoice,
    };

    use super::*;

    #[test]
    fn a_response_is_wrapped_without_being_read() {
        for (size, last) in [(0, false), (0, true), (100, true), (100_000, false), (100_000, true)] {
            let mut response = ModelInferResponse { model_name: "m".repeat(size), ..ModelInferResponse::default() };
            let plain = response.encode_to_vec();
            let (head, suffix) = as_stream_response(plain.len(), last);
            let whole = [&head[..], &plain, suffix].concat();
            assert_eq!(first(&whole), Some((0, whole.len() - FRAME_PREFIX)));
            if last {
                let value = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
                response.parameters.insert("triton_final_response".to_owned(), value);
            }
            let read = ModelStreamInferResponse::decode(&whole[FRAME_PREFIX..]).expect("a message");
            assert_eq!(read, ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) });
        }
    }
}
