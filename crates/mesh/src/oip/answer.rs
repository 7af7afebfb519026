//! A response becomes a REST body.

use std::borrow::Cow;

use berth_spec::{Datatype, InferError, InferResponse, Tensor, inference::Violation, tensor::BytesElements};
use bytes::Bytes;
use half::{bf16, f16};

use super::{AnswerForm, classification::classify, json::write_string, parameter};

/// An encoded answer: JSON, then blobs (binary outputs) that are the model's own buffers, to be written without a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The JSON part, which comes first.
    pub json: Bytes,
    /// Binary outputs, in order. Empty when all is JSON.
    pub blobs: Vec<Bytes>,
    /// True if `Inference-Header-Content-Length: json.len()` goes with it.
    pub binary: bool,
}

impl Encoded {
    /// The bytes of the whole body.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an answer is never empty")]
    pub fn len(&self) -> usize {
        self.json.len() + self.blobs.iter().map(Bytes::len).sum::<usize>()
    }

    /// The value of `Content-Type`: octet-stream with binary outputs, else JSON.
    #[must_use]
    pub const fn content_type(&self) -> &'static str {
        if self.binary { "application/octet-stream" } else { "application/json" }
    }

    /// The whole body in one piece; free when there are no blobs.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        if self.blobs.is_empty() {
            return self.json;
        }
        let mut whole = Vec::with_capacity(self.len());
        whole.extend_from_slice(&self.json);
        for blob in &self.blobs {
            whole.extend_from_slice(blob);
        }
        whole.into()
    }
}

/// The work of [`encode`]: about the bytes of text that it writes. Binary outputs are not touched.
#[must_use]
pub fn effort(response: &InferResponse, form: &AnswerForm) -> usize {
    let written = |output: &&Tensor| !form.is_binary(&output.name) || form.classification(&output.name).is_some();
    response.outputs.iter().filter(written).map(text_length).sum()
}

/// Encodes an answer in the form that its caller wanted.
///
/// An output of BYTES that is not UTF-8 can only be binary: asking for it as JSON is an invalid request.
pub fn encode(response: &InferResponse, form: &AnswerForm) -> Result<Encoded, InferError> {
    let mut out = Vec::with_capacity(estimate(response));
    let mut blobs = Vec::new();
    let mut binary = false;
    out.extend_from_slice(b"{\"model_name\":");
    write_string(&mut out, &response.model_name);
    out.extend_from_slice(b",\"model_version\":");
    write_string(&mut out, &response.model_version);
    if let Some(id) = &response.id {
        out.extend_from_slice(b",\"id\":");
        write_string(&mut out, id);
    }
    if !response.parameters.is_empty() {
        out.extend_from_slice(b",\"parameters\":");
        parameter::write(&mut out, &response.parameters);
    }
    out.extend_from_slice(b",\"outputs\":[");
    for (index, output) in response.outputs.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        let output = match form.classification(&output.name) {
            Some(classes) => Cow::Owned(classify(output, classes, form.labels())?),
            None => Cow::Borrowed(output),
        };
        write_head(&mut out, &output);
        if let Some(range) = form.shared(&output.name) {
            out.extend_from_slice(b",\"parameters\":{\"shared_memory_region\":");
            write_string(&mut out, &range.region);
            out.extend_from_slice(b",\"shared_memory_byte_size\":");
            write_int(&mut out, range.size);
            if range.offset > 0 {
                out.extend_from_slice(b",\"shared_memory_offset\":");
                write_int(&mut out, range.offset);
            }
            out.extend_from_slice(b"}}");
            continue;
        }
        if form.is_binary(&output.name) {
            binary = true;
            out.extend_from_slice(b",\"parameters\":{\"binary_data_size\":");
            write_int(&mut out, output.data.len());
            out.push(b'}');
            blobs.push(output.data.clone());
        } else {
            out.extend_from_slice(b",\"data\":[");
            write_data(&mut out, &output)?;
            out.push(b']');
        }
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
    Ok(Encoded { json: out.into(), blobs, binary })
}

/// The body of an error: `{"error": message, "reason": word}`, the word being for machines; and where there are any,
/// `"violations": [{"path": pointer, "message": message}]`.
#[must_use]
pub fn error_body(message: &str, reason: &str, violations: &[Violation]) -> Vec<u8> {
    let mut body = Vec::with_capacity(message.len() + reason.len() + 32);
    body.extend_from_slice(b"{\"error\":");
    write_string(&mut body, message);
    body.extend_from_slice(b",\"reason\":");
    write_string(&mut body, reason);
    for (index, violation) in violations.iter().enumerate() {
        body.extend_from_slice(if index == 0 { b",\"violations\":[{\"path\":" } else { b",{\"path\":" });
        write_string(&mut body, &violation.path);
        body.extend_from_slice(b",\"message\":");
        write_string(&mut body, &violation.message);
        body.push(b'}');
    }
    if !violations.is_empty() {
        body.push(b']');
    }
    body.push(b'}');
    body
}

/// The body of an error with the field `request_id` added; a body that is no JSON object stays as it is.
#[must_use]
pub fn with_request_id(body: &[u8], id: &str) -> Vec<u8> {
    let Some(open) = body.strip_suffix(b"}") else { return body.to_vec() };
    let mut named = Vec::with_capacity(body.len() + id.len() + 16);
    named.extend_from_slice(open);
    named.extend_from_slice(b",\"request_id\":");
    write_string(&mut named, id);
    named.push(b'}');
    named
}

/// About how long the JSON will be, so that writing it seldom moves it: numbers take 4 to 20 characters with their comma.
fn estimate(response: &InferResponse) -> usize {
    128 + response.id.as_deref().map_or(0, str::len) + response.outputs.iter().map(text_length).sum::<usize>()
}

fn text_length(output: &Tensor) -> usize {
    96 + output.name.len() + output.data.len() * 3
}

/// Writes an output up to where its data or parameters come.
fn write_head(out: &mut Vec<u8>, output: &Tensor) {
    out.extend_from_slice(b"{\"name\":");
    write_string(out, &output.name);
    out.extend_from_slice(b",\"datatype\":\"");
    out.extend_from_slice(output.datatype.as_str().as_bytes());
    out.extend_from_slice(b"\",\"shape\":[");
    for (index, &dimension) in output.shape.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_int(out, dimension);
    }
    out.push(b']');
}

pub(super) fn write_int(out: &mut Vec<u8>, value: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// The shortest text that reads back as the same float of its own width.
#[inline]
pub(super) fn write_float<F: zmij::Float + Float>(out: &mut Vec<u8>, value: F) {
    if value.is_finite() {
        out.extend_from_slice(zmij::Buffer::new().format_finite(value).as_bytes());
    } else {
        out.extend_from_slice(value.word().as_bytes());
    }
}

/// The operations that both widths share.
pub(super) trait Float: Copy {
    fn is_finite(self) -> bool;
    /// The word for a value that is not finite.
    fn word(self) -> &'static str;
}

macro_rules! float {
    ($($float:ty)*) => {$(
        impl Float for $float {
            fn is_finite(self) -> bool {
                self.is_finite()
            }

            fn word(self) -> &'static str {
                match self {
                    _ if self.is_nan() => "NaN",
                    _ if self > 0.0 => "Infinity",
                    _ => "-Infinity",
                }
            }
        }
    )*};
}

float!(f32 f64);

fn write_data(out: &mut Vec<u8>, output: &Tensor) -> Result<(), InferError> {
    let data = &output.data;
    match output.datatype {
        Datatype::Bool => each(out, data, |out, [byte]| {
            out.extend_from_slice(if byte == 0 { b"false" } else { b"true" });
        }),
        Datatype::Uint8 => each(out, data, |out, bytes| write_int(out, u8::from_le_bytes(bytes))),
        Datatype::Uint16 => each(out, data, |out, bytes| write_int(out, u16::from_le_bytes(bytes))),
        Datatype::Uint32 => each(out, data, |out, bytes| write_int(out, u32::from_le_bytes(bytes))),
        Datatype::Uint64 => each(out, data, |out, bytes| write_int(out, u64::from_le_bytes(bytes))),
        Datatype::Int8 => each(out, data, |out, bytes| write_int(out, i8::from_le_bytes(bytes))),
        Datatype::Int16 => each(out, data, |out, bytes| write_int(out, i16::from_le_bytes(bytes))),
        Datatype::Int32 => each(out, data, |out, bytes| write_int(out, i32::from_le_bytes(bytes))),
        Datatype::Int64 => each(out, data, |out, bytes| write_int(out, i64::from_le_bytes(bytes))),
        Datatype::Fp16 => each(out, data, |out, bytes| write_float(out, f16::from_le_bytes(bytes).to_f32())),
        Datatype::Bf16 => each(out, data, |out, bytes| write_float(out, bf16::from_le_bytes(bytes).to_f32())),
        Datatype::Fp32 => each(out, data, |out, bytes| write_float(out, f32::from_le_bytes(bytes))),
        Datatype::Fp64 => each(out, data, |out, bytes| write_float(out, f64::from_le_bytes(bytes))),
        Datatype::Bytes => return write_texts(out, output),
    }
    Ok(())
}

/// Writes the elements of `N` bytes each, with commas between them.
#[inline]
fn each<const N: usize>(out: &mut Vec<u8>, data: &[u8], mut write: impl FnMut(&mut Vec<u8>, [u8; N])) {
    let Some((&first, rest)) = data.as_chunks::<N>().0.split_first() else { return };
    write(out, first);
    for &element in rest {
        out.push(b',');
        write(out, element);
    }
}

fn write_texts(out: &mut Vec<u8>, output: &Tensor) -> Result<(), InferError> {
    for (index, element) in BytesElements::new(&output.data).enumerate() {
        let text = str::from_utf8(element.unwrap_or_default()).map_err(|_| {
            InferError::Invalid(format!(
                "element {index} of output {:?} is not UTF-8, so JSON cannot carry it: ask for the output with \"binary_data\": true",
                output.name
            ))
        })?;
        if index > 0 {
            out.push(b',');
        }
        write_string(out, text);
    }
    Ok(())
}
