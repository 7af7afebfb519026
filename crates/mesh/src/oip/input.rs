//! One input of a JSON request: its keys in any order, its data in the text or among the blobs.

use std::{borrow::Cow, fmt};

use berth_spec::{Datatype, InferError, Tensor, inference::Parameter, tensor::element_count};
use bytes::Bytes;

use super::{
    json::Scanner,
    parameter::{self, unsigned},
    raw,
    seen::{Field, SeenKeys},
    shared::{Range, RangeParameters},
    tensor_data,
};

/// The bytes that follow the JSON part: taken from the front, one piece per input that has `binary_data_size`.
#[derive(Debug, Default)]
pub(super) struct Blobs {
    pub(super) rest: Bytes,
    /// The request has the header of the extension.
    pub(super) expected: bool,
}

impl Blobs {
    fn take(&mut self, size: u64, label: &Label<'_>) -> Result<Bytes, InferError> {
        if !self.expected {
            return Err(InferError::Invalid(format!(
                "{label} has binary_data_size, but the request has no header Inference-Header-Content-Length"
            )));
        }
        match usize::try_from(size) {
            Ok(size) if size <= self.rest.len() => Ok(self.rest.split_to(size)),
            _ => Err(InferError::Invalid(format!(
                "{label} has a binary_data_size of {size}, but {} bytes are left of the body",
                self.rest.len()
            ))),
        }
    }
}

/// An input in errors: by name, or by position before the name was seen.
struct Label<'a> {
    name: Option<&'a str>,
    index: usize,
}

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            Some(name) => write!(f, "input {name:?}"),
            None => write!(f, "input number {}", self.index),
        }
    }
}

/// An input while its keys come in, in whatever order.
struct Input<'a> {
    index: usize,
    seen: SeenKeys,
    name: Option<Cow<'a, str>>,
    datatype: Option<Datatype>,
    shape: Vec<i64>,
    /// The place of `data`, if it came before datatype and shape.
    data_at: Option<Scanner<'a>>,
    data: Option<Vec<u8>>,
    binary_size: Option<u64>,
    shared: RangeParameters,
}

/// Reads the input at the scanner, the `index`th of its request. One in shared memory has no data yet, and a range.
pub(super) fn read(
    scanner: &mut Scanner<'_>,
    index: usize,
    blobs: &mut Blobs,
) -> Result<(Tensor, Option<Range>), InferError> {
    let mut input = Input {
        index,
        seen: SeenKeys::default(),
        name: None,
        datatype: None,
        shape: Vec::new(),
        data_at: None,
        data: None,
        binary_size: None,
        shared: RangeParameters::default(),
    };
    scanner.object::<InferError>(|scanner, key| {
        match key {
            "name" => {
                input.seen.once(Field::Name, key)?;
                input.name = Some(scanner.string()?);
            }
            "datatype" => {
                input.seen.once(Field::Datatype, key)?;
                let datatype = scanner.string()?.parse();
                input.datatype = Some(datatype.map_err(|error| input.invalid(&error))?);
            }
            "shape" => {
                input.seen.once(Field::Shape, key)?;
                input.read_shape(scanner)?;
            }
            "data" => {
                input.seen.once(Field::Data, key)?;
                input.read_data(scanner)?;
            }
            "parameters" => {
                input.seen.once(Field::Parameters, key)?;
                parameter::read(scanner, |name, value| input.take(name, &value))?;
            }
            _ => scanner.skip()?,
        }
        Ok(())
    })?;
    input.finish(blobs)
}

impl<'a> Input<'a> {
    fn label(&self) -> Label<'_> {
        Label { name: self.name.as_deref(), index: self.index }
    }

    fn invalid(&self, what: &dyn fmt::Display) -> InferError {
        InferError::Invalid(format!("{}: {what}", self.label()))
    }

    fn take(&mut self, name: &str, value: &Parameter) -> Result<(), InferError> {
        match name {
            "binary_data_size" => {
                let size = unsigned(name, value, "a whole number of bytes").map_err(|error| self.invalid(&error))?;
                self.binary_size = Some(size);
            }
            // The protocol has no others, and models are not given those of tensors.
            _ => self.shared.take(name, value).map_err(|error| self.invalid(&error))?,
        }
        Ok(())
    }

    fn read_shape(&mut self, scanner: &mut Scanner<'_>) -> Result<(), InferError> {
        self.shape.reserve(4);
        scanner.array::<InferError>(|scanner| {
            let Some(b'-' | b'0'..=b'9') = scanner.peek() else {
                return Err(self.invalid(&"its shape must be an array of whole numbers"));
            };
            let dimension = scanner.number()?.to_whole().ok().and_then(|dimension| i64::try_from(dimension).ok());
            match dimension {
                Some(dimension) if dimension >= 0 => self.shape.push(dimension),
                Some(dimension) => {
                    return Err(self.invalid(&format!("its shape has {dimension}: dimensions must not be negative")));
                }
                None => return Err(self.invalid(&"its shape has a dimension that is not a whole number below 2^63")),
            }
            Ok(())
        })
    }

    /// The number of elements, if their bytes can be counted.
    fn elements(&self, datatype: Datatype) -> Result<usize, InferError> {
        element_count(&self.shape)
            .filter(|elements| elements.checked_mul(datatype.size().unwrap_or(4)).is_some())
            .ok_or_else(|| self.invalid(&format!("its shape {:?} overflows the number of bytes", self.shape)))
    }

    fn read_data(&mut self, scanner: &mut Scanner<'a>) -> Result<(), InferError> {
        let Some(datatype) = self.datatype.filter(|_| self.seen.has(Field::Shape)) else {
            self.data_at = Some(*scanner);
            return Ok(scanner.skip()?);
        };
        let elements = self.elements(datatype)?;
        self.data = Some(tensor_data::read(scanner, datatype, elements, &self.label())?);
        Ok(())
    }

    fn finish(mut self, blobs: &mut Blobs) -> Result<(Tensor, Option<Range>), InferError> {
        for (field, key) in [(Field::Name, "name"), (Field::Datatype, "datatype"), (Field::Shape, "shape")] {
            if !self.seen.has(field) {
                return Err(self.invalid(&format!("it has no {key:?}")));
            }
        }
        if let Some(mut scanner) = self.data_at.take() {
            self.read_data(&mut scanner)?;
        }
        let range = std::mem::take(&mut self.shared).range().map_err(|error| self.invalid(&error))?;
        let datatype = self.datatype.expect("checked above: the key was seen, and seeing it sets it");
        if range.is_some() {
            if self.data.is_some() || self.binary_size.is_some() {
                return Err(self.invalid(&"it has data, and is in shared memory"));
            }
            let name = self.name.map(Cow::into_owned).unwrap_or_default();
            return Ok((Tensor { name, datatype, shape: self.shape, data: Bytes::new() }, range));
        }
        let data = match (self.data.take(), self.binary_size) {
            (Some(data), None) => data.into(),
            (None, Some(size)) => blobs.take(size, &self.label())?,
            (None, None) => return Err(self.invalid(&"it has no \"data\"")),
            (Some(_), Some(_)) => return Err(self.invalid(&"it has both \"data\" and binary_data_size")),
        };
        let name = self.name.map(Cow::into_owned).unwrap_or_default();
        let tensor = if self.binary_size.is_some() {
            raw::tensor(name, datatype, self.shape, data)
        } else {
            Tensor::new(name, datatype, self.shape, data).map_err(|error| InferError::Invalid(error.to_string()))
        };
        tensor.map(|tensor| (tensor, None))
    }
}
