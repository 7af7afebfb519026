//! Messages with raw tensors and nothing else that takes work, which nearly all are: read and written without the generated code. That
//! makes a message of its own, with a dozen allocations, between the bytes and the tensors.
//!
//! ```text
//! ModelInferRequest ──read──▶ Decoded        InferResponse ──framed──▶ ModelInferResponse
//!        └── has parameters, typed contents, an error … ──▶ the generated code, which tells errors, too
//! ```

use berth_spec::{InferResponse, Tensor};
use bytes::{BufMut as _, Bytes, BytesMut};
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint, encoded_len_varint};

use super::{
    super::{AnswerForm, Decoded, decoded::OutputForm, raw},
    frame::FRAME_PREFIX,
};

/// The longest request that is read so: a longer one has more work in it than this saves.
const MAX_REQUEST_BYTES: usize = 8 << 10;

/// Fields that requests and answers have in common.
const MODEL_NAME: u32 = 1;
const MODEL_VERSION: u32 = 2;
const ID: u32 = 3;
const TENSORS: u32 = 5;

/// Fields of requests only.
const OUTPUTS: u32 = 6;
const RAW_INPUT_CONTENTS: u32 = 7;

/// A field of answers only.
const RAW_OUTPUT_CONTENTS: u32 = 6;

/// Fields of a tensor; a requested output has the first.
const NAME: u32 = 1;
const DATATYPE: u32 = 2;
const SHAPE: u32 = 3;

/// The bytes of a key: all fields here have small numbers.
const KEY: usize = 1;

/// Reads a request; `None` if the generated code must.
#[must_use]
pub fn read(message: &Bytes) -> Option<Decoded> {
    if message.len() > MAX_REQUEST_BYTES {
        return None;
    }
    let (mut rest, mut decoded) = (&message[..], Decoded::default());
    let (mut heads, mut contents) = (Vec::new(), Vec::new());
    while let Some((field, content)) = next_field(&mut rest)? {
        match field {
            // Read before, and to be text all the same.
            MODEL_NAME | MODEL_VERSION => drop(str::from_utf8(content).ok()?),
            ID => decoded.request.id = text(content).filter(|id| !id.is_empty()).map(Some)?,
            TENSORS => heads.push(content),
            OUTPUTS => decoded.want(read_output(content)?),
            RAW_INPUT_CONTENTS => contents.push(content),
            _ => return None,
        }
    }
    if heads.is_empty() || heads.len() != contents.len() {
        return None;
    }
    decoded.request.inputs.reserve_exact(heads.len());
    for (head, content) in heads.into_iter().zip(contents) {
        decoded.request.inputs.push(read_input(head, message.slice_ref(content))?);
    }
    decoded.form.binary = true;
    decoded.check_names().ok()
}

fn read_input(mut head: &[u8], data: Bytes) -> Option<Tensor> {
    let (mut name, mut datatype, mut shape) = (String::new(), None, Vec::new());
    while let Some((field, mut content)) = next_field(&mut head)? {
        match field {
            NAME => name = text(content)?,
            DATATYPE => datatype = Some(str::from_utf8(content).ok()?.parse().ok()?),
            SHAPE => {
                while !content.is_empty() {
                    shape.push(decode_varint(&mut content).ok()?.cast_signed());
                }
            }
            _ => return None,
        }
    }
    raw::tensor(name, datatype?, shape, data).ok()
}

fn read_output(mut output: &[u8]) -> Option<OutputForm> {
    let mut form = OutputForm::default();
    while let Some((field, content)) = next_field(&mut output)? {
        match field {
            NAME => form.name = text(content)?,
            _ => return None,
        }
    }
    Some(form)
}

fn text(content: &[u8]) -> Option<String> {
    str::from_utf8(content).ok().map(str::to_owned)
}

/// The next field, if there is one. The outer `None`: it is not one with a length, or is cut off.
fn next_field<'a>(rest: &mut &'a [u8]) -> Option<Option<(u32, &'a [u8])>> {
    if rest.is_empty() {
        return Some(None);
    }
    let (field, WireType::LengthDelimited) = decode_key(rest).ok()? else { return None };
    let length = usize::try_from(decode_varint(rest).ok()?).ok()?;
    let (content, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(Some((field, content)))
}

/// True if [`framed`] writes this answer.
#[must_use]
pub fn writes(response: &InferResponse, form: &AnswerForm) -> bool {
    form.binary && response.parameters.is_empty() && !form.places() && !form.classifies()
}

/// The answer as a `ModelInferResponse` in its frame, byte by byte as the generated code writes it.
#[must_use]
pub fn framed(response: &InferResponse) -> Bytes {
    let id = response.id.as_deref().unwrap_or_default();
    let texts = [(MODEL_NAME, &*response.model_name), (MODEL_VERSION, &*response.model_version), (ID, id)];
    let length = texts.iter().map(|(_, text)| text_length(text)).sum::<usize>()
        + response.outputs.iter().map(|tensor| with_length(head_length(tensor))).sum::<usize>()
        + response.outputs.iter().map(|tensor| with_length(tensor.data.len())).sum::<usize>();
    let mut framed = BytesMut::with_capacity(FRAME_PREFIX + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    for (field, text) in texts {
        put_text(field, text, &mut framed);
    }
    for tensor in &response.outputs {
        put_length(TENSORS, head_length(tensor), &mut framed);
        put_text(NAME, &tensor.name, &mut framed);
        put_text(DATATYPE, tensor.datatype.as_str(), &mut framed);
        if !tensor.shape.is_empty() {
            put_length(SHAPE, shape_length(&tensor.shape), &mut framed);
            tensor.shape.iter().for_each(|dimension| encode_varint(dimension.cast_unsigned(), &mut framed));
        }
    }
    for tensor in &response.outputs {
        put_length(RAW_OUTPUT_CONTENTS, tensor.data.len(), &mut framed);
        framed.put_slice(&tensor.data);
    }
    framed.freeze()
}

/// The bytes of a tensor without its contents.
fn head_length(tensor: &Tensor) -> usize {
    let shape = if tensor.shape.is_empty() { 0 } else { with_length(shape_length(&tensor.shape)) };
    text_length(&tensor.name) + text_length(tensor.datatype.as_str()) + shape
}

fn shape_length(shape: &[i64]) -> usize {
    shape.iter().map(|dimension| encoded_len_varint(dimension.cast_unsigned())).sum()
}

/// The bytes of a text: none where it is empty.
fn text_length(text: &str) -> usize {
    if text.is_empty() { 0 } else { with_length(text.len()) }
}

/// The bytes of a field with so many bytes in it.
fn with_length(length: usize) -> usize {
    KEY + encoded_len_varint(length as u64) + length
}

fn put_text(field: u32, text: &str, framed: &mut BytesMut) {
    if !text.is_empty() {
        put_length(field, text.len(), framed);
        framed.put_slice(text.as_bytes());
    }
}

fn put_length(field: u32, length: usize, framed: &mut BytesMut) {
    encode_key(field, WireType::LengthDelimited, framed);
    encode_varint(length as u64, framed);
}

#[cfg(test)]
mod tests {
    use berth_spec::{Datatype, InferRequest, inference::RequestedOutput};
    use berth_wire::oip::ModelInferRequest;
    use proptest::{collection::vec, option, prelude::*};
    use prost::Message as _;

    use super::{
        super::{decode, encode, frame, message},
        *,
    };

    fn tensors() -> impl Strategy<Value = Vec<Tensor>> {
        let tensor = (".{0,3}", vec(0_i64..300, 0..3), any::<bool>()).prop_map(|(name, shape, wide)| {
            let (elements, datatype) =
                (shape.iter().product::<i64>() % 40, if wide { Datatype::Fp64 } else { Datatype::Int8 });
            let bytes = if wide { 8 } else { 1 } * usize::try_from(elements).expect("few");
            let (shape, data) = (vec![1, elements], vec![7; bytes]);
            Tensor::new(name, datatype, shape, data.into()).expect("a tensor")
        });
        vec(tensor, 0..4)
    }

    /// A message as the generated code reads it, as text; `None`: an error.
    fn generated(bytes: &[u8]) -> Option<String> {
        let message = ModelInferRequest::decode(bytes).ok()?;
        decode(message).ok().map(|decoded| format!("{decoded:?}"))
    }

    fn framed_by_generated(response: InferResponse, form: &AnswerForm) -> Bytes {
        frame::framed(&encode(response, form).expect("an answer"))
    }

    proptest! {
        #[test]
        fn requests_are_read_as_by_the_generated_code(
            inputs in tensors(),
            outputs in vec(".{0,3}", 0..3),
            id in option::of(".{1,9}"),
            cut in any::<prop::sample::Index>(),
            flip in any::<u8>(),
        ) {
            let outputs = outputs.into_iter().map(|name| RequestedOutput { name, classification: None }).collect();
            let request = InferRequest { id, inputs, outputs, ..InferRequest::default() };
            let inputs = request.inputs.len();
            let mut bytes = message("model", "7", request).encode_to_vec();
            let read_here = |bytes: &[u8]| read(&Bytes::copy_from_slice(bytes)).map(|decoded| format!("{decoded:?}"));
            let (here, there) = (read_here(&bytes), generated(&bytes));
            prop_assert_eq!(&here, &there.filter(|_| inputs > 0));
            // Whatever comes instead is read alike, or left to the generated code.
            let at = cut.index(bytes.len());
            bytes[at] ^= flip;
            if let Some(here) = read_here(&bytes) {
                prop_assert_eq!(Some(here), generated(&bytes));
            }
            bytes.truncate(at);
            if let Some(here) = read_here(&bytes) {
                prop_assert_eq!(Some(here), generated(&bytes));
            }
        }

        #[test]
        fn answers_are_written_as_by_the_generated_code(
            outputs in tensors(),
            model in ".{0,9}",
            version in ".{0,3}",
            id in option::of(".{0,200}"),
        ) {
            let parameters = Default::default();
            let response =
                InferResponse { model_name: model.into(), model_version: version.into(), id, parameters, outputs };
            let mut form = AnswerForm::default();
            form.binary = true;
            prop_assert!(writes(&response, &form));
            prop_assert_eq!(framed(&response), framed_by_generated(response, &form));
        }
    }
}
