//! Inputs that fit a signature, for validation inferences and for finding out how a model treats its rows.

use berth_spec::{Datatype, Signature, Tensor, TensorSpec};
use bytes::{BufMut, Bytes, BytesMut};
use half::{bf16, f16};

/// Elements in one generated tensor at most: a signature that needs more is not sampled.
const MAX_ELEMENTS: usize = 1 << 24;

/// Zeros, falses and empty strings of the signature's shapes, variable dimensions set to 1. `None`: a shape is too
/// large to be generated.
#[must_use]
pub(super) fn zeros(signature: &Signature) -> Option<Vec<Tensor>> {
    generate(signature, 1, 1, |datatype, _, _, data| put(datatype, 0.0, data))
}

/// `rows` rows that differ from each other in value and magnitude, variable dimensions other than the first set to
/// `size`. The same every time.
#[must_use]
pub(super) fn rows(signature: &Signature, rows: usize, size: i64) -> Option<Vec<Tensor>> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    generate(signature, rows as i64, size, |datatype, row, _, data| {
        // Marsaglia's xorshift64: enough to tell rows apart.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let unit = (state >> 11) as f64 / (1_u64 << 53) as f64;
        let value = match datatype {
            // Indices and categories: small ones are within most tables.
            Datatype::Bool | Datatype::Bytes => (unit * 2.0).floor(),
            Datatype::Fp16 | Datatype::Bf16 | Datatype::Fp32 | Datatype::Fp64 => {
                (unit * 2.0 - 1.0) * 10_f64.powi(i32::try_from(row % 3).unwrap_or(0))
            }
            _ => (unit * 2.0).floor(),
        };
        put(datatype, value, data);
    })
}

fn generate(
    signature: &Signature,
    rows: i64,
    size: i64,
    mut fill: impl FnMut(Datatype, usize, usize, &mut BytesMut),
) -> Option<Vec<Tensor>> {
    let mut tensor = |spec: &TensorSpec| {
        let variable = |(index, &dim): (usize, &i64)| {
            if dim >= 0 {
                dim
            } else if index == 0 {
                rows
            } else {
                size
            }
        };
        let shape: Vec<i64> = spec.shape.iter().enumerate().map(variable).collect();
        let count = berth_spec::tensor::element_count(&shape).filter(|&count| count <= MAX_ELEMENTS)?;
        let per_row = count / shape.first().map_or(1, |&rows| usize::try_from(rows).unwrap_or(1).max(1));
        let mut data = BytesMut::new();
        for index in 0..count {
            fill(spec.datatype, index / per_row.max(1), index, &mut data);
        }
        Some(Tensor { name: spec.name.clone(), datatype: spec.datatype, shape, data: Bytes::from(data) })
    };
    signature.inputs.iter().map(&mut tensor).collect()
}

/// Appends `value` as one element.
fn put(datatype: Datatype, value: f64, data: &mut BytesMut) {
    match datatype {
        Datatype::Bool | Datatype::Uint8 => data.put_u8(value as u8),
        Datatype::Int8 => data.put_i8(value as i8),
        Datatype::Uint16 => data.put_u16_le(value as u16),
        Datatype::Int16 => data.put_i16_le(value as i16),
        Datatype::Uint32 => data.put_u32_le(value as u32),
        Datatype::Int32 => data.put_i32_le(value as i32),
        Datatype::Uint64 => data.put_u64_le(value as u64),
        Datatype::Int64 => data.put_i64_le(value as i64),
        Datatype::Fp16 => data.put_slice(&f16::from_f64(value).to_le_bytes()),
        Datatype::Bf16 => data.put_slice(&bf16::from_f64(value).to_le_bytes()),
        Datatype::Fp32 => data.put_f32_le(value as f32),
        Datatype::Fp64 => data.put_f64_le(value),
        // An empty string, or "b": a second category.
        Datatype::Bytes if value == 0.0 => data.put_u32_le(0),
        Datatype::Bytes => {
            data.put_u32_le(1);
            data.put_u8(b'b');
        }
    }
}

/// The elements of a tensor as numbers, to compare two; BYTES and integers beyond 2^53 are compared as bytes instead.
#[must_use]
pub(super) fn numbers(tensor: &Tensor) -> Option<Vec<f64>> {
    fn of<const N: usize>(data: &[u8], read: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        data.as_chunks::<N>().0.iter().map(|chunk| read(*chunk)).collect()
    }
    Some(match tensor.datatype {
        Datatype::Fp16 => of(&tensor.data, |bytes| f16::from_le_bytes(bytes).to_f64()),
        Datatype::Bf16 => of(&tensor.data, |bytes| bf16::from_le_bytes(bytes).to_f64()),
        Datatype::Fp32 => of(&tensor.data, |bytes| f64::from(f32::from_le_bytes(bytes))),
        Datatype::Fp64 => of(&tensor.data, f64::from_le_bytes),
        _ => return None,
    })
}
