//! Tensors as the Open Inference Protocol knows them.

use std::{fmt, str::FromStr};

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The element types of the Open Inference Protocol, with BF16 as Triton adds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Datatype {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Fp16,
    Bf16,
    Fp32,
    Fp64,
    Bytes,
}

impl Datatype {
    /// All of them, in the order of the protocol's table.
    pub const ALL: [Self; 14] = [
        Self::Bool,
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::Fp16,
        Self::Bf16,
        Self::Fp32,
        Self::Fp64,
        Self::Bytes,
    ];

    /// Bytes per element; `None` for BYTES, whose elements vary.
    #[must_use]
    pub const fn size(self) -> Option<usize> {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => Some(1),
            Self::Uint16 | Self::Int16 | Self::Fp16 | Self::Bf16 => Some(2),
            Self::Uint32 | Self::Int32 | Self::Fp32 => Some(4),
            Self::Uint64 | Self::Int64 | Self::Fp64 => Some(8),
            Self::Bytes => None,
        }
    }

    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Uint8 => "UINT8",
            Self::Uint16 => "UINT16",
            Self::Uint32 => "UINT32",
            Self::Uint64 => "UINT64",
            Self::Int8 => "INT8",
            Self::Int16 => "INT16",
            Self::Int32 => "INT32",
            Self::Int64 => "INT64",
            Self::Fp16 => "FP16",
            Self::Bf16 => "BF16",
            Self::Fp32 => "FP32",
            Self::Fp64 => "FP64",
            Self::Bytes => "BYTES",
        }
    }
}

impl fmt::Display for Datatype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The name on the wire is not one of [`Datatype::ALL`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a datatype: use BOOL, UINT8..UINT64, INT8..INT64, FP16, BF16, FP32, FP64 or BYTES")]
pub struct UnknownDatatype(pub String);

impl FromStr for Datatype {
    type Err = UnknownDatatype;
    fn from_str(name: &str) -> Result<Self, UnknownDatatype> {
        Self::ALL.into_iter().find(|d| d.as_str() == name).ok_or_else(|| UnknownDatatype(name.to_owned()))
    }
}

/// One input or output in a model's signature. A dimension of -1 is variable.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TensorSpec {
    /// The tensor's name.
    pub name: String,
    /// The element type.
    pub datatype: Datatype,
    /// Row-major dimensions, the batch dimension included; -1 where any size goes.
    pub shape: Vec<i64>,
}

/// Inputs and outputs of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Signature {
    /// Inputs in the model's order.
    pub inputs: Vec<TensorSpec>,
    /// Outputs in the model's order.
    pub outputs: Vec<TensorSpec>,
    /// Inputs that may be left out: the model has a value of its own for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub optional: Vec<TensorSpec>,
    /// Names of the classes that an output tells apart, by their index; empty: they have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
}

/// A tensor with its data.
///
/// `data` is row-major and little-endian without padding. BOOL is one byte of 0 or 1. BYTES is, per element, a 4-byte
/// little-endian length and then the bytes (the wire form of gRPC raw contents and of the binary extension). Whoever
/// builds a `Tensor` from outside has checked that `data` fits `datatype` and `shape` ([`Tensor::new`]).
#[derive(Clone, PartialEq, Eq)]
pub struct Tensor {
    /// The tensor's name.
    pub name: String,
    /// The element type.
    pub datatype: Datatype,
    /// Dimensions; every one is at least 0.
    pub shape: Vec<i64>,
    /// The elements, in the form that is described above.
    pub data: Bytes,
}

/// The reason why bytes are not a tensor of the datatype and shape that they came with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTensor {
    /// A negative dimension in a tensor that carries data.
    #[error("tensor {name:?} has shape {shape:?}: dimensions must not be negative")]
    NegativeDimension {
        /// The tensor's name.
        name: String,
        /// The shape as it was given.
        shape: Vec<i64>,
    },
    /// The number of elements or bytes does not fit in 63 bits.
    #[error("tensor {name:?} has shape {shape:?}, whose number of bytes overflows")]
    Overflow {
        /// The tensor's name.
        name: String,
        /// The shape as it was given.
        shape: Vec<i64>,
    },
    /// The data has another length than shape and datatype say.
    #[error("tensor {name:?} of {datatype} {shape:?} needs {expected}, got {got}")]
    Length {
        /// The tensor's name.
        name: String,
        /// The datatype, which decides the bytes per element.
        datatype: Datatype,
        /// The shape, which decides the number of elements.
        shape: Vec<i64>,
        /// The amount that was needed, with the unit.
        expected: String,
        /// The amount that was there, with the unit.
        got: String,
    },
}

/// The number of elements of a shape; `None` if a dimension is negative or the product overflows `i64`.
#[must_use]
pub fn element_count(shape: &[i64]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1_i64, |n, &dim| if dim < 0 { None } else { n.checked_mul(dim) })
        .and_then(|n| usize::try_from(n).ok())
}

impl Tensor {
    /// Checks that `data` is what `datatype` and `shape` say.
    pub fn new(name: String, datatype: Datatype, shape: Vec<i64>, data: Bytes) -> Result<Self, InvalidTensor> {
        if shape.iter().any(|&dim| dim < 0) {
            return Err(InvalidTensor::NegativeDimension { name, shape });
        }
        let bytes = element_count(&shape).and_then(|n| n.checked_mul(datatype.size().unwrap_or(4)).map(|b| (n, b)));
        let Some((elements, expected)) = bytes else { return Err(InvalidTensor::Overflow { name, shape }) };
        let length =
            |expected: String, got: String, name, shape| InvalidTensor::Length { name, datatype, shape, expected, got };
        if datatype == Datatype::Bytes {
            let mut found = 0;
            for element in BytesElements::new(&data) {
                if element.is_none() {
                    let got = "a length prefix that points past the data".to_owned();
                    return Err(length("length-prefixed elements".to_owned(), got, name, shape));
                }
                found += 1;
            }
            if found != elements {
                return Err(length(format!("{elements} elements"), found.to_string(), name, shape));
            }
        } else if data.len() != expected {
            return Err(length(format!("{expected} bytes"), data.len().to_string(), name, shape));
        }
        Ok(Self { name, datatype, shape, data })
    }

    /// The number of elements: the product of the dimensions, 1 for a scalar.
    #[must_use]
    pub fn elements(&self) -> usize {
        element_count(&self.shape).unwrap_or(0)
    }
}

/// Walks BYTES data; yields `None` once where a length prefix is cut or points past the end, then stops.
#[derive(Debug, Clone)]
pub struct BytesElements<'a> {
    rest: &'a [u8],
}

impl<'a> BytesElements<'a> {
    /// Over `data` in the wire form of BYTES.
    #[must_use]
    pub fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }
}

impl<'a> Iterator for BytesElements<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let Some((prefix, rest)) = self.rest.split_first_chunk::<4>() else {
            self.rest = &[];
            return Some(None);
        };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > rest.len() {
            self.rest = &[];
            return Some(None);
        }
        let (element, rest) = rest.split_at(length);
        self.rest = rest;
        Some(Some(element))
    }
}

impl fmt::Debug for Tensor {
    /// The form, never the payload.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {:?} ({} bytes)", self.name, self.datatype, self.shape, self.data.len())
    }
}
