//! A REST inference body becomes a request.

use std::{borrow::Cow, fmt};

use berth_spec::{Datatype, InferError, Signature, Tensor, inference::Parameter, tensor::element_count};
use bytes::Bytes;

use super::{
    Decoded, Layout,
    decoded::OutputForm,
    json::Scanner,
    parameter::{self, flag, no_shared_memory, unsigned},
    tensor_data,
};

/// Decodes a decompressed body. `signature` is the model's: raw bodies are understood by it, the others do not need it.
/// Blobs are slices of `body`, not copies.
pub fn decode(body: &Bytes, layout: Layout, signature: &Signature) -> Result<Decoded, InferError> {
    match layout {
        Layout::Json => decode_json(body, Blobs::default()),
        Layout::Binary { json } if json <= body.len() => {
            decode_json(&body[..json], Blobs { rest: body.slice(json..), expected: true })
        }
        Layout::Binary { json } => Err(InferError::Invalid(format!(
            "the body has {} bytes, which is less than the {json} of its JSON part",
            body.len()
        ))),
        Layout::Raw => super::raw::decode(body, signature),
    }
}

/// What follows the JSON part: taken from the front, one piece per input that has `binary_data_size`.
#[derive(Default)]
struct Blobs {
    rest: Bytes,
    /// The request has the header of the extension.
    expected: bool,
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

fn decode_json(text: &[u8], mut blobs: Blobs) -> Result<Decoded, InferError> {
    let mut decoded = Decoded::default();
    let mut seen = Seen::default();
    let mut scanner = Scanner::new(text);
    scanner.object::<InferError>(|scanner, key| {
        match key {
            "id" => {
                seen.once(Field::Id, key)?;
                decoded.request.id = optional_string(scanner)?;
            }
            "parameters" => {
                seen.once(Field::Parameters, key)?;
                parameter::read(scanner, |name, value| parameter::take(&mut decoded, name, value))?;
            }
            "inputs" => {
                seen.once(Field::Inputs, key)?;
                scanner.array::<InferError>(|scanner| {
                    let index = decoded.request.inputs.len();
                    decoded.request.inputs.push(read_input(scanner, index, &mut blobs)?);
                    Ok(())
                })?;
            }
            "outputs" => {
                seen.once(Field::Outputs, key)?;
                if !scanner.take_word("null") {
                    scanner.array::<InferError>(|scanner| {
                        decoded.want(read_output(scanner)?);
                        Ok(())
                    })?;
                }
            }
            _ => scanner.skip()?,
        }
        Ok(())
    })?;
    scanner.end()?;
    if !seen.has(Field::Inputs) {
        return Err(InferError::Invalid("the request has no \"inputs\"".to_owned()));
    }
    if !blobs.rest.is_empty() {
        return Err(InferError::Invalid(format!(
            "{} bytes of the body are left after the last input with binary_data_size",
            blobs.rest.len()
        )));
    }
    decoded.check_names()
}

/// The keys that mean something, as bits.
#[derive(Clone, Copy)]
enum Field {
    Id = 1,
    Parameters = 2,
    Inputs = 4,
    Outputs = 8,
    Name = 16,
    Datatype = 32,
    Shape = 64,
    Data = 128,
}

/// Which keys an object had.
#[derive(Default)]
struct Seen(u8);

impl Seen {
    const fn has(&self, field: Field) -> bool {
        self.0 & field as u8 != 0
    }

    fn once(&mut self, field: Field, key: &str) -> Result<(), InferError> {
        if self.has(field) {
            return Err(InferError::Invalid(format!("{key:?} is given twice")));
        }
        self.0 |= field as u8;
        Ok(())
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
    seen: Seen,
    name: Option<Cow<'a, str>>,
    datatype: Option<Datatype>,
    shape: Vec<i64>,
    /// Where `data` is, if it came before datatype and shape.
    data_at: Option<Scanner<'a>>,
    data: Option<Vec<u8>>,
    binary_size: Option<u64>,
}

fn read_input(scanner: &mut Scanner<'_>, index: usize, blobs: &mut Blobs) -> Result<Tensor, InferError> {
    let mut input = Input {
        index,
        seen: Seen::default(),
        name: None,
        datatype: None,
        shape: Vec::new(),
        data_at: None,
        data: None,
        binary_size: None,
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
            "shared_memory_region" => return Err(no_shared_memory(&self.label())),
            // The protocol has no others, and models are not given those of tensors.
            _ => {}
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

    fn finish(mut self, blobs: &mut Blobs) -> Result<Tensor, InferError> {
        for (field, key) in [(Field::Name, "name"), (Field::Datatype, "datatype"), (Field::Shape, "shape")] {
            if !self.seen.has(field) {
                return Err(self.invalid(&format!("it has no {key:?}")));
            }
        }
        if let Some(mut scanner) = self.data_at.take() {
            self.read_data(&mut scanner)?;
        }
        let data = match (self.data.take(), self.binary_size) {
            (Some(data), None) => data.into(),
            (None, Some(size)) => blobs.take(size, &self.label())?,
            (None, None) => return Err(self.invalid(&"it has no \"data\"")),
            (Some(_), Some(_)) => return Err(self.invalid(&"it has both \"data\" and binary_data_size")),
        };
        let datatype = self.datatype.expect("checked above: the key was seen, and seeing it sets it");
        let name = self.name.map(Cow::into_owned).unwrap_or_default();
        if self.binary_size.is_some() {
            return super::raw::tensor(name, datatype, self.shape, data);
        }
        Tensor::new(name, datatype, self.shape, data).map_err(|error| InferError::Invalid(error.to_string()))
    }
}

fn read_output(scanner: &mut Scanner<'_>) -> Result<OutputForm, InferError> {
    let mut output = OutputForm::default();
    let mut seen = Seen::default();
    scanner.object::<InferError>(|scanner, key| {
        match key {
            "name" => {
                seen.once(Field::Name, key)?;
                output.name = scanner.string()?.into_owned();
            }
            "parameters" => {
                seen.once(Field::Parameters, key)?;
                parameter::read(scanner, |name, value| {
                    match name {
                        "binary_data" => output.binary = Some(flag(name, &value)?),
                        "classification" => output.classification = Some(parameter::classes(&value)?),
                        "shared_memory_region" => return Err(no_shared_memory(&"an output")),
                        _ => {}
                    }
                    Ok(())
                })?;
            }
            _ => scanner.skip()?,
        }
        Ok(())
    })?;
    if !seen.has(Field::Name) {
        return Err(InferError::Invalid("a requested output has no \"name\"".to_owned()));
    }
    Ok(output)
}

fn optional_string(scanner: &mut Scanner<'_>) -> Result<Option<String>, InferError> {
    if scanner.take_word("null") { Ok(None) } else { Ok(Some(scanner.string()?.into_owned())) }
}
