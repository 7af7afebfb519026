//! Typed contents: the elements of a tensor in the field of its datatype.

use berth_spec::{
    Datatype, InferError, Tensor,
    tensor::{BytesElements, element_count},
};
use berth_wire::oip::InferTensorContents;
use bytes::Bytes;

/// True if there is a field for the datatype.
pub(super) const fn has_typed_form(datatype: Datatype) -> bool {
    !matches!(datatype, Datatype::Fp16 | Datatype::Bf16)
}

/// The elements in all fields together.
pub(super) fn count(contents: &InferTensorContents) -> usize {
    contents.bool_contents.len()
        + contents.int_contents.len()
        + contents.int64_contents.len()
        + contents.uint_contents.len()
        + contents.uint64_contents.len()
        + contents.fp32_contents.len()
        + contents.fp64_contents.len()
        + contents.bytes_contents.len()
}

/// The bytes of the elements in all fields together.
pub(super) fn size(contents: &InferTensorContents) -> usize {
    let words = contents.int_contents.len() + contents.uint_contents.len() + contents.fp32_contents.len();
    let longs = contents.int64_contents.len() + contents.uint64_contents.len() + contents.fp64_contents.len();
    let texts = contents.bytes_contents.iter().map(|element| element.len() + 4).sum::<usize>();
    contents.bool_contents.len() + 4 * words + 8 * longs + texts
}

/// The field of a datatype, by name, and the elements that it has.
fn field(contents: &InferTensorContents, datatype: Datatype) -> (&'static str, usize) {
    match datatype {
        Datatype::Bool => ("bool_contents", contents.bool_contents.len()),
        Datatype::Int8 | Datatype::Int16 | Datatype::Int32 => ("int_contents", contents.int_contents.len()),
        Datatype::Int64 => ("int64_contents", contents.int64_contents.len()),
        Datatype::Uint8 | Datatype::Uint16 | Datatype::Uint32 => ("uint_contents", contents.uint_contents.len()),
        Datatype::Uint64 => ("uint64_contents", contents.uint64_contents.len()),
        Datatype::Fp32 => ("fp32_contents", contents.fp32_contents.len()),
        Datatype::Fp64 => ("fp64_contents", contents.fp64_contents.len()),
        Datatype::Bytes => ("bytes_contents", contents.bytes_contents.len()),
        Datatype::Fp16 | Datatype::Bf16 => ("raw_input_contents", 0),
    }
}

/// A tensor from typed contents. The elements must all be in the field of its datatype, and as many as its shape says.
pub(super) fn read(
    name: String,
    datatype: Datatype,
    shape: Vec<i64>,
    contents: InferTensorContents,
) -> Result<Tensor, InferError> {
    let invalid = |what: String| InferError::Invalid(format!("input {name:?}: {what}"));
    let (field, found) = field(&contents, datatype);
    let total = count(&contents);
    if total != found {
        return Err(invalid(format!("elements of {datatype} belong in {field}, {} are elsewhere", total - found)));
    }
    // Refused by `Tensor::new`, with the message that says why.
    let expected = element_count(&shape).unwrap_or(found);
    if found != expected {
        let raw = if has_typed_form(datatype) { "" } else { ": it has no typed form, send it there" };
        return Err(invalid(format!("{field} has {found} elements, but its shape has {expected}{raw}")));
    }
    let misfit = |index: usize| invalid(format!("element {index} of {field} does not fit {datatype}"));
    let data = match datatype {
        Datatype::Bool => contents.bool_contents.into_iter().map(u8::from).collect(),
        Datatype::Int8 => {
            narrow(&contents.int_contents, |value| i8::try_from(value).ok().map(i8::to_le_bytes)).map_err(misfit)?
        }
        Datatype::Int16 => {
            narrow(&contents.int_contents, |value| i16::try_from(value).ok().map(i16::to_le_bytes)).map_err(misfit)?
        }
        Datatype::Int32 => bytes_of(&contents.int_contents, i32::to_le_bytes),
        Datatype::Int64 => bytes_of(&contents.int64_contents, i64::to_le_bytes),
        Datatype::Uint8 => {
            narrow(&contents.uint_contents, |value| u8::try_from(value).ok().map(u8::to_le_bytes)).map_err(misfit)?
        }
        Datatype::Uint16 => {
            narrow(&contents.uint_contents, |value| u16::try_from(value).ok().map(u16::to_le_bytes)).map_err(misfit)?
        }
        Datatype::Uint32 => bytes_of(&contents.uint_contents, u32::to_le_bytes),
        Datatype::Uint64 => bytes_of(&contents.uint64_contents, u64::to_le_bytes),
        Datatype::Fp32 => bytes_of(&contents.fp32_contents, f32::to_le_bytes),
        Datatype::Fp64 => bytes_of(&contents.fp64_contents, f64::to_le_bytes),
        Datatype::Bytes => prefixed(&contents.bytes_contents).map_err(misfit)?,
        Datatype::Fp16 | Datatype::Bf16 => Vec::new(),
    };
    Tensor::new(name, datatype, shape, data.into()).map_err(|error| InferError::Invalid(error.to_string()))
}

fn bytes_of<T: Copy, const N: usize>(elements: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    elements.iter().flat_map(|&element| bytes(element)).collect()
}

/// Elements of a narrower type; the index of the first that does not fit otherwise.
fn narrow<T: Copy, const N: usize>(elements: &[T], bytes: impl Fn(T) -> Option<[u8; N]>) -> Result<Vec<u8>, usize> {
    let mut data = Vec::with_capacity(elements.len() * N);
    for (index, &element) in elements.iter().enumerate() {
        data.extend_from_slice(&bytes(element).ok_or(index)?);
    }
    Ok(data)
}

/// The wire form of BYTES; the index of the first element that is longer than its length can say otherwise.
fn prefixed(elements: &[Bytes]) -> Result<Vec<u8>, usize> {
    let mut data = Vec::with_capacity(elements.iter().map(|element| element.len() + 4).sum());
    for (index, element) in elements.iter().enumerate() {
        let length = u32::try_from(element.len()).map_err(|_| index)?;
        data.extend_from_slice(&length.to_le_bytes());
        data.extend_from_slice(element);
    }
    Ok(data)
}

/// The typed contents of a tensor whose datatype has them; others come back empty.
pub(super) fn write(tensor: &Tensor) -> InferTensorContents {
    let data = &tensor.data;
    let mut contents = InferTensorContents::default();
    match tensor.datatype {
        Datatype::Bool => contents.bool_contents = data.iter().map(|&byte| byte != 0).collect(),
        Datatype::Int8 => contents.int_contents = elements(data, |bytes| i8::from_le_bytes(bytes).into()),
        Datatype::Int16 => contents.int_contents = elements(data, |bytes| i16::from_le_bytes(bytes).into()),
        Datatype::Int32 => contents.int_contents = elements(data, i32::from_le_bytes),
        Datatype::Int64 => contents.int64_contents = elements(data, i64::from_le_bytes),
        Datatype::Uint8 => contents.uint_contents = elements(data, |bytes| u8::from_le_bytes(bytes).into()),
        Datatype::Uint16 => contents.uint_contents = elements(data, |bytes| u16::from_le_bytes(bytes).into()),
        Datatype::Uint32 => contents.uint_contents = elements(data, u32::from_le_bytes),
        Datatype::Uint64 => contents.uint64_contents = elements(data, u64::from_le_bytes),
        Datatype::Fp32 => contents.fp32_contents = elements(data, f32::from_le_bytes),
        Datatype::Fp64 => contents.fp64_contents = elements(data, f64::from_le_bytes),
        Datatype::Bytes => {
            let elements = BytesElements::new(data).flatten();
            contents.bytes_contents = elements.map(|element| data.slice_ref(element)).collect();
        }
        Datatype::Fp16 | Datatype::Bf16 => {}
    }
    contents
}

fn elements<T, const N: usize>(data: &[u8], element: impl Fn([u8; N]) -> T) -> Vec<T> {
    data.as_chunks::<N>().0.iter().map(|&bytes| element(bytes)).collect()
}
