//! Estimates the work for a message, in bytes that are looked at one by one. Slices that are passed on count nothing.

use berth_spec::InferResponse;
use berth_wire::oip::ModelInferRequest;
use prost::encoding::{WireType, decode_key, decode_varint};

use super::{super::AnswerForm, contents};

/// The field of `raw_input_contents`, whose bytes stay slices of the message.
const RAW_INPUT_CONTENTS: u32 = 7;

/// To read a `ModelInferRequest` out of these bytes. Counts up to about `enough`.
#[must_use]
pub fn to_read(message: &[u8], enough: usize) -> usize {
    let (mut rest, mut raw) = (message, 0);
    while message.len() - rest.len() - raw < enough {
        let Ok((field, WireType::LengthDelimited)) = decode_key(&mut rest) else { break };
        let length = decode_varint(&mut rest).ok().and_then(|length| usize::try_from(length).ok());
        let Some((content, after)) = length.and_then(|length| rest.split_at_checked(length)) else { break };
        rest = after;
        if field == RAW_INPUT_CONTENTS {
            raw += content.len();
        }
    }
    message.len() - rest.len() - raw
}

/// To [`decode`](super::decode) a message: its typed contents, and raw ones whose elements are checked.
#[must_use]
pub fn to_decode(message: &ModelInferRequest) -> usize {
    let typed = message.inputs.iter().filter_map(|input| input.contents.as_ref()).map(contents::size).sum::<usize>();
    let checked = message.inputs.iter().zip(&message.raw_input_contents);
    let checked = checked.filter(|(input, _)| matches!(input.datatype.as_str(), "BYTES" | "BOOL"));
    typed + checked.map(|(_, blob)| blob.len()).sum::<usize>()
}

/// To [`encode`](super::encode) an answer: the outputs that are not sent as they are.
#[must_use]
pub fn to_encode(response: &InferResponse, form: &AnswerForm) -> usize {
    let outputs = response.outputs.iter();
    let made = outputs.filter(|output| !form.binary || form.classification(&output.name).is_some());
    made.map(|output| output.data.len()).sum()
}
