//! Numbers of any type as the type that a model's column has, and the type of values that a model answers.

use berth_spec::{Datatype, Tensor, card::signature::Column};
use bytes::{Bytes, BytesMut};
use half::{bf16, f16};
use serde_json::Value;

/// Type of the elements of a value, and the number of its dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ElementKind {
    pub(super) datatype: Datatype,
    pub(super) depth: usize,
}

impl ElementKind {
    /// The kind of both: whole numbers among others are numbers. `None`: they have none in common.
    pub(super) fn joined(self, other: Self) -> Option<Self> {
        let datatype = match (self.datatype, other.datatype) {
            (one, same) if one == same => one,
            (Datatype::Int64, Datatype::Fp64) | (Datatype::Fp64, Datatype::Int64) => Datatype::Fp64,
            _ => return None,
        };
        (self.depth == other.depth).then_some(Self { datatype, ..self })
    }
}

/// The kind of a value; `None` for objects, nulls, empty arrays, and arrays of several kinds.
pub(super) fn kind(value: &Value) -> Option<ElementKind> {
    let datatype = match value {
        Value::Array(inner) => {
            let all = inner.iter().map(kind).reduce(|one, other| one?.joined(other?))??;
            return Some(ElementKind { depth: all.depth + 1, ..all });
        }
        Value::Bool(_) => Datatype::Bool,
        Value::Number(number) if number.is_i64() => Datatype::Int64,
        Value::Number(_) => Datatype::Fp64,
        Value::String(_) => Datatype::Bytes,
        Value::Null | Value::Object(_) => return None,
    };
    Some(ElementKind { datatype, depth: 0 })
}

/// The tensor under the column's name, its numbers in 64 bits where the column has those. What is no number stays as it is: it is
/// refused by its type.
pub(super) fn named(column: &Column, input: &Tensor) -> Tensor {
    let wide = (column.datatype == Datatype::Fp64).then(|| wide(input.datatype, &input.data)).flatten();
    let (datatype, data) = match wide {
        Some(data) => (Datatype::Fp64, data),
        None => (input.datatype, input.data.clone()),
    };
    Tensor { name: column.name.clone(), datatype, shape: input.shape.clone(), data }
}

/// Little-endian numbers as FP64; `None` for what is FP64 already, or no number.
fn wide(datatype: Datatype, data: &[u8]) -> Option<Bytes> {
    fn each<const N: usize>(data: &[u8], number: impl Fn([u8; N]) -> f64) -> Option<Bytes> {
        let (chunks, _) = data.as_chunks::<N>();
        let mut wide = BytesMut::with_capacity(chunks.len() * 8);
        chunks.iter().for_each(|chunk| wide.extend_from_slice(&number(*chunk).to_le_bytes()));
        Some(wide.freeze())
    }
    #[expect(clippy::cast_precision_loss, reason = "frameworks take large integers as floating point, too")]
    match datatype {
        Datatype::Int8 => each(data, |bytes: [u8; 1]| i8::from_le_bytes(bytes).into()),
        Datatype::Int16 => each(data, |bytes: [u8; 2]| i16::from_le_bytes(bytes).into()),
        Datatype::Int32 => each(data, |bytes: [u8; 4]| i32::from_le_bytes(bytes).into()),
        Datatype::Int64 => each(data, |bytes: [u8; 8]| i64::from_le_bytes(bytes) as f64),
        Datatype::Uint8 => each(data, |bytes: [u8; 1]| bytes[0].into()),
        Datatype::Uint16 => each(data, |bytes: [u8; 2]| u16::from_le_bytes(bytes).into()),
        Datatype::Uint32 => each(data, |bytes: [u8; 4]| u32::from_le_bytes(bytes).into()),
        Datatype::Uint64 => each(data, |bytes: [u8; 8]| u64::from_le_bytes(bytes) as f64),
        Datatype::Fp16 => each(data, |bytes: [u8; 2]| f16::from_le_bytes(bytes).to_f64()),
        Datatype::Bf16 => each(data, |bytes: [u8; 2]| bf16::from_le_bytes(bytes).to_f64()),
        Datatype::Fp32 => each(data, |bytes: [u8; 4]| f32::from_le_bytes(bytes).into()),
        Datatype::Fp64 | Datatype::Bool | Datatype::Bytes => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_one_kind_or_none() {
        let of = |json: Value| kind(&json).map(|kind| (kind.datatype, kind.depth));
        use serde_json::json;
        for (value, found) in [
            (json!(1), Some((Datatype::Int64, 0))),
            (json!([1, 2.5]), Some((Datatype::Fp64, 1))),
            (json!([["a"], ["b", "c"]]), Some((Datatype::Bytes, 2))),
            (json!([true]), Some((Datatype::Bool, 1))),
            (json!([1, "a"]), None),
            (json!([1, [2]]), None),
            (json!([]), None),
            (json!(null), None),
        ] {
            assert_eq!(of(value.clone()), found, "{value}");
        }
    }

    #[test]
    fn numbers_keep_their_value() {
        let read = |datatype, data: &[u8]| {
            wide(datatype, data).map(|wide| f64::from_le_bytes(wide[..].try_into().expect("one")))
        };
        assert_eq!(read(Datatype::Int8, &[0xFE]), Some(-2.0));
        assert_eq!(read(Datatype::Int64, &7_i64.to_le_bytes()), Some(7.0));
        assert_eq!(read(Datatype::Uint16, &65_535_u16.to_le_bytes()), Some(65_535.0));
        assert_eq!(read(Datatype::Fp16, &f16::from_f32(0.5).to_le_bytes()), Some(0.5));
        assert_eq!(read(Datatype::Fp32, &1.5_f32.to_le_bytes()), Some(1.5));
        assert_eq!(read(Datatype::Bytes, &[0, 0, 0, 0]), None);
    }
}
