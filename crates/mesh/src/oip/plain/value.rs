//! One JSON value as a tensor of the signature, and elements of tensors as JSON.

use berth_spec::{Datatype, InferError, Signature, Tensor, TensorSpec, tensor::BytesElements, tensor::element_count};
use bytes::Bytes;
use half::{bf16, f16};

use crate::oip::{
    answer::{write_float, write_int},
    json::{Scanner, Syntax, write_string},
    tensor_data,
};

/// The input of this name.
pub(super) fn input<'a>(signature: &'a Signature, name: &str) -> Option<&'a TensorSpec> {
    signature.inputs.iter().chain(&signature.optional).find(|spec| spec.name == name)
}

/// The lengths of the nested arrays at the scanner, by their first elements; a plain value has none. Takes the value.
pub(super) fn lengths(scanner: &mut Scanner<'_>, into: &mut Vec<i64>) -> Result<(), Syntax> {
    if scanner.peek() != Some(b'[') {
        return scanner.skip();
    }
    scanner.open(b'[', "expected an array")?;
    let at = into.len();
    into.push(0);
    if scanner.closes(b']') {
        return Ok(());
    }
    lengths(scanner, into)?;
    loop {
        into[at] += 1;
        if !scanner.more(b']')? {
            return Ok(());
        }
        scanner.skip()?;
    }
}

/// The side on which dimensions of 1 are added to a value that has fewer than its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PaddingSide {
    /// Before: the value is one row.
    First,
    /// Behind: the value is a list of rows.
    Last,
}

/// Reads the value at the scanner as the data of an input. Dimensions that it lacks are 1.
pub(super) fn read(scanner: &mut Scanner<'_>, spec: &TensorSpec, missing: PaddingSide) -> Result<Tensor, InferError> {
    let (start, mut shape) = (*scanner, Vec::new());
    lengths(scanner, &mut shape)?;
    let plain = shape.is_empty();
    let ones = vec![1; spec.shape.len().saturating_sub(shape.len())];
    let shape = match missing {
        PaddingSide::First => [ones, shape].concat(),
        PaddingSide::Last => [shape, ones].concat(),
    };
    let label = format!("input {:?}", spec.name);
    let elements = element_count(&shape).unwrap_or(usize::MAX);
    let data = if plain {
        let value = &start.rest()[..start.rest().len() - scanner.rest().len()];
        let array = [b"[", value, b"]"].concat();
        tensor_data::read(&mut Scanner::new(&array), spec.datatype, elements, &label)?
    } else {
        tensor_data::read(&mut { start }, spec.datatype, elements, &label)?
    };
    Tensor::new(spec.name.clone(), spec.datatype, shape, data.into())
        .map_err(|error| InferError::Invalid(error.to_string()))
}

/// Elements of a tensor, to be written one by one.
pub(super) struct Elements<'a> {
    tensor: &'a Tensor,
    texts: Vec<&'a [u8]>,
}

impl<'a> Elements<'a> {
    pub(super) fn of(tensor: &'a Tensor) -> Self {
        let texts = match tensor.datatype {
            Datatype::Bytes => BytesElements::new(&tensor.data).map(Option::unwrap_or_default).collect(),
            _ => Vec::new(),
        };
        Self { tensor, texts }
    }

    /// Appends the element at `index` as JSON; nothing where there is none.
    pub(super) fn write(&self, out: &mut Vec<u8>, index: usize) -> Result<(), InferError> {
        if self.tensor.datatype != Datatype::Bytes {
            write_element(out, self.tensor.datatype, &self.tensor.data, index);
            return Ok(());
        }
        let text = str::from_utf8(self.texts.get(index).copied().unwrap_or_default()).map_err(|_| {
            InferError::Invalid(format!(
                "element {index} of output {:?} is not UTF-8, so JSON cannot carry it: use /v2/models/NAME/infer with binary data",
                self.tensor.name
            ))
        })?;
        write_string(out, text);
        Ok(())
    }

    /// Appends the elements from `at` on as arrays of these lengths; gives the index of the next one.
    pub(super) fn write_nested(&self, out: &mut Vec<u8>, lengths: &[i64], at: usize) -> Result<usize, InferError> {
        let Some((&length, inner)) = lengths.split_first() else {
            self.write(out, at)?;
            return Ok(at + 1);
        };
        let mut next = at;
        out.push(b'[');
        for index in 0..length {
            if index > 0 {
                out.push(b',');
            }
            next = self.write_nested(out, inner, next)?;
        }
        out.push(b']');
        Ok(next)
    }
}

/// Appends the number at `index` of little-endian `data` as JSON; nothing where there is none, and for BYTES.
fn write_element(out: &mut Vec<u8>, datatype: Datatype, data: &Bytes, index: usize) {
    fn at<const N: usize>(data: &[u8], index: usize) -> [u8; N] {
        data.as_chunks::<N>().0.get(index).copied().unwrap_or([0; N])
    }
    match datatype {
        Datatype::Bool => out.extend_from_slice(if at::<1>(data, index) == [0] { b"false" } else { b"true" }),
        Datatype::Uint8 => write_int(out, u8::from_le_bytes(at(data, index))),
        Datatype::Uint16 => write_int(out, u16::from_le_bytes(at(data, index))),
        Datatype::Uint32 => write_int(out, u32::from_le_bytes(at(data, index))),
        Datatype::Uint64 => write_int(out, u64::from_le_bytes(at(data, index))),
        Datatype::Int8 => write_int(out, i8::from_le_bytes(at(data, index))),
        Datatype::Int16 => write_int(out, i16::from_le_bytes(at(data, index))),
        Datatype::Int32 => write_int(out, i32::from_le_bytes(at(data, index))),
        Datatype::Int64 => write_int(out, i64::from_le_bytes(at(data, index))),
        Datatype::Fp16 => write_float(out, f16::from_le_bytes(at(data, index)).to_f32()),
        Datatype::Bf16 => write_float(out, bf16::from_le_bytes(at(data, index)).to_f32()),
        Datatype::Fp32 => write_float(out, f32::from_le_bytes(at(data, index))),
        Datatype::Fp64 => write_float(out, f64::from_le_bytes(at(data, index))),
        Datatype::Bytes => {}
    }
}
