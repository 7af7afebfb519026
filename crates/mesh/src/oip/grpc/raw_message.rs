//! Reads and writes messages that have only raw tensors, without the generated code, which would build an intermediate message with a
//! dozen allocations.
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

/// The longest request read here; for longer ones the saving is small beside the rest.
const MAX_REQUEST_BYTES: usize = 8 << 10;

/// The most bytes besides raw contents. What they become takes up to 16 times as much, and is not counted as memory of the request.
pub const MAX_HEAD_BYTES: usize = 512;

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

/// The length of a key: all fields here have small numbers.
const KEY_BYTES: usize = 1;

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
            // The caller has read these; they must still be UTF-8.
            MODEL_NAME | MODEL_VERSION => drop(str::from_utf8(content).ok()?),
            ID => decoded.request.id = text(content).filter(|id| !id.is_empty()).map(Some)?,
            TENSORS => heads.push(content),
            OUTPUTS => decoded.want(read_output(content)?),
            RAW_INPUT_CONTENTS => contents.push(content),
            _ => return None,
        }
    }
    let raw: usize = contents.iter().map(|content| content.len()).sum();
    if heads.is_empty() || heads.len() != contents.len() || message.len() - raw > MAX_HEAD_BYTES {
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

/// Reads the next field; `Some(None)` at the end, `None` where it is cut off or has no length.
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
pub fn can_write(response: &InferResponse, form: &AnswerForm) -> bool {
    form.binary && response.parameters.is_empty() && !form.places() && !form.classifies()
}

/// The answer as a `ModelInferResponse` in its frame, byte by byte as the generated code writes it.
#[must_use]
pub fn framed(response: &InferResponse) -> Bytes {
    let length = length(response);
    let mut framed = BytesMut::with_capacity(FRAME_PREFIX + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    for (field, text) in texts(response) {
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

/// The bytes of the answer without its frame.
#[must_use]
pub fn length(response: &InferResponse) -> usize {
    let tensor = |tensor: &Tensor| with_length(head_length(tensor)) + with_length(tensor.data.len());
    texts(response).iter().map(|(_, text)| text_length(text)).sum::<usize>()
        + response.outputs.iter().map(tensor).sum::<usize>()
}

fn texts(response: &InferResponse) -> [(u32, &str); 3] {
    let id = response.id.as_deref().unwrap_or_default();
    [(MODEL_NAME, &*response.model_name), (MODEL_VERSION, &*response.model_version), (ID, id)]
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
    KEY_BYTES + encoded_len_varint(length as u64) + length
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
    use berth_spec::{Datatype, InferRequest, inference::RequestedOutput, tensor::element_count};
    use berth_wire::oip::ModelInferRequest;
    use proptest::{collection::vec, option, prelude::*, sample::select};
    use prost::Message as _;

    use super::{
        super::{decode, encode, frame, message},
        *,
    };

    fn tensors() -> impl Strategy<Value = Vec<Tensor>> {
        let datatypes = select(vec![Datatype::Bool, Datatype::Int8, Datatype::Fp64]);
        let tensor = (".{0,3}", vec(0_i64..300, 0..4), datatypes, any::<u8>());
        let tensor = tensor.prop_filter_map("too large", |(name, shape, datatype, first)| {
            let bytes = element_count(&shape).filter(|elements| *elements < 600)? * datatype.size()?;
            let data: Vec<u8> = (0..bytes).map(|at| (at as u8).wrapping_add(first)).collect();
            let data = if datatype == Datatype::Bool { data.iter().map(|byte| byte & 1).collect() } else { data };
            Tensor::new(name, datatype, shape, data.into()).ok()
        });
        vec(tensor, 0..4)
    }

    /// A message as the generated code reads it, as text and with the data, which the text leaves out; `None`: an error.
    fn generated(bytes: &[u8]) -> Option<(String, Vec<Tensor>)> {
        decode(ModelInferRequest::decode(bytes).ok()?).ok().map(told)
    }

    fn read_here(bytes: &[u8]) -> Option<(String, Vec<Tensor>)> {
        read(&Bytes::copy_from_slice(bytes)).map(told)
    }

    fn told(decoded: Decoded) -> (String, Vec<Tensor>) {
        (format!("{decoded:?}"), decoded.request.inputs)
    }

    /// A message with a raw scalar, and these bytes of a field before it.
    fn with(field: &[u8]) -> Vec<u8> {
        [field, b"\x2a\x09\x0a\x01x\x12\x04INT8\x3a\x01\x07"].concat()
    }

    #[test]
    fn unusual_messages_are_read_alike_or_left_to_the_generated_code() {
        for (field, is_read) in [
            (&b""[..], true),
            (b"\x0a\x01m\x12\x017\x0a\x01n", true), // a model, its version, another model
            (b"\x1a\x01a\x1a\x01b", true),          // two ids
            (b"\x32\x03\x0a\x01y", true),           // an output
            (b"\x1a\x00", false),                   // an empty id
            (b"\x0a\x01\xff", false),               // a name that is no text
            (b"\x22\x00", false),                   // a parameter
            (b"\x48\x01", false),                   // an unknown field
            (b"\x3a\x01\x07", false),               // more contents than tensors
            (b"\x32\x05\x0a\x01y\x12\x00", false),  // an output with a parameter
        ] {
            let bytes = with(field);
            let here = read_here(&bytes);
            assert_eq!(here.is_some(), is_read, "{field:?}");
            assert!(here.is_none() || here == generated(&bytes), "{field:?}");
        }
        for (head, is_read) in [
            (&b"\x0a\x01x\x0a\x01y\x12\x04INT8"[..], true),  // two names
            (b"\x12\x04FP64\x12\x04INT8\x1a\x01\x01", true), // two datatypes, no name
            (b"\x12\x04INT8\x1a\x01\x01\x1a\x01\x01", true), // a shape in two pieces
            (b"\x12\x04INT8\x18\x01", false),                // a shape that is not packed
            (b"\x12\x04INT8\x1a\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", false), // a negative dimension
            (b"\x12\x04BOOL", false),                        // neither 0 nor 1
            (b"\x12\x04WHAT", false),
            (b"\x0a\x01x", false),            // no datatype
            (b"\x12\x04INT8\x2a\x00", false), // typed contents
        ] {
            let length = u8::try_from(head.len()).expect("short");
            let bytes = [&[0x2a, length], head, b"\x3a\x01\x07"].concat();
            let here = read_here(&bytes);
            assert_eq!(here.is_some(), is_read, "{head:?}");
            assert!(here.is_none() || here == generated(&bytes), "{head:?}");
        }
    }

    #[test]
    fn what_would_take_much_memory_is_left_to_the_generated_code() {
        let outputs = |count: u16| {
            let outputs = (0..count).map(|at| RequestedOutput { name: format!("{at:03}"), classification: None });
            let data = Bytes::from_static(&[7]);
            let inputs = vec![Tensor::new("x".to_owned(), Datatype::Int8, vec![1], data).expect("a tensor")];
            let request = InferRequest { inputs, outputs: outputs.collect(), ..InferRequest::default() };
            read_here(&message("m", "", request).encode_to_vec()).is_some()
        };
        assert!(outputs(60) && !outputs(80));
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
            let raw: usize = request.inputs.iter().map(|input| input.data.len()).sum();
            let has_inputs = !request.inputs.is_empty();
            let mut bytes = message("model", "7", request).encode_to_vec();
            let is_short = bytes.len() <= MAX_REQUEST_BYTES && bytes.len() - raw <= MAX_HEAD_BYTES;
            prop_assert_eq!(read_here(&bytes), generated(&bytes).filter(|_| has_inputs && is_short));
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
            prop_assert!(can_write(&response, &form));
            prop_assert_eq!(framed(&response), framed_by_generated(response, &form));
        }
    }
}
