//! A request on its way to a model's process.

use std::sync::Arc;

use berth_spec::Datatype;
use bytes::Bytes;

/// JSON, and arrays of numbers beside it.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::runtime) struct Document {
    pub(in crate::runtime) json: Bytes,
    pub(in crate::runtime) beside: Vec<Array>,
}

/// An array that is not in the JSON: row-major, little-endian.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::runtime) struct Array {
    pub(in crate::runtime) name: Arc<str>,
    pub(in crate::runtime) datatype: Datatype,
    pub(in crate::runtime) shape: Arc<[i64]>,
    pub(in crate::runtime) data: Bytes,
}

impl Document {
    /// Its bytes.
    pub(in crate::runtime) fn len(&self) -> usize {
        self.json.len() + self.beside.iter().map(|array| array.data.len()).sum::<usize>()
    }
}
