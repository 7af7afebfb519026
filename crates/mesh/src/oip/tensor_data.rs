//! The `data` of a tensor in JSON: flat or nested, written straight to the bytes of its datatype.

use berth_spec::{Datatype, InferError};

use super::{
    element::{self, Element, Misfit},
    json::Scanner,
};

/// The reason why `data` is not the data of its tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum DataError {
    #[error("element {index} {misfit}")]
    Element { index: usize, misfit: Misfit },
    #[error("its data is not rectangular: arrays at one depth must have one length")]
    Ragged,
    #[error("its data has more than the {0} elements of its shape")]
    Excess(usize),
    #[error("its data has {found} elements, but its shape has {expected}")]
    Missing { found: usize, expected: usize },
    #[error(transparent)]
    Syntax(#[from] super::json::Syntax),
}

/// Reads the array at the scanner as `elements` elements of `datatype`. `label` names the tensor in errors.
pub(super) fn read(
    scanner: &mut Scanner<'_>,
    datatype: Datatype,
    elements: usize,
    label: &dyn std::fmt::Display,
) -> Result<Vec<u8>, InferError> {
    let read = match datatype {
        Datatype::Bool => Data::read::<element::Bool>,
        Datatype::Uint8 => Data::read::<element::Uint8>,
        Datatype::Uint16 => Data::read::<element::Uint16>,
        Datatype::Uint32 => Data::read::<element::Uint32>,
        Datatype::Uint64 => Data::read::<element::Uint64>,
        Datatype::Int8 => Data::read::<element::Int8>,
        Datatype::Int16 => Data::read::<element::Int16>,
        Datatype::Int32 => Data::read::<element::Int32>,
        Datatype::Int64 => Data::read::<element::Int64>,
        Datatype::Fp16 => Data::read::<element::Fp16>,
        Datatype::Bf16 => Data::read::<element::Bf16>,
        Datatype::Fp32 => Data::read::<element::Fp32>,
        Datatype::Fp64 => Data::read::<element::Fp64>,
        Datatype::Bytes => Data::read::<element::Text>,
    };
    // An element takes at least two bytes of JSON: a huge shape over a small body reserves little.
    let capacity = elements.min(scanner.rest().len() / 2 + 1);
    let bytes = capacity * datatype.size().unwrap_or(16);
    let mut data = Data { out: Vec::with_capacity(bytes), expected: elements, found: 0, levels: Vec::new() };
    let error = match read(&mut data, scanner, 0) {
        Ok(()) if data.found == elements => return Ok(data.out),
        Ok(()) => DataError::Missing { found: data.found, expected: elements },
        Err(error) => error,
    };
    Err(match error {
        DataError::Syntax(error) | DataError::Element { misfit: Misfit::Syntax(error), .. } => error.into(),
        error => InferError::Invalid(format!("{label}: {error}")),
    })
}

struct Data {
    out: Vec<u8>,
    expected: usize,
    found: usize,
    /// By depth, once the first array there has closed: its length and what it holds. Stays empty for flat data.
    levels: Vec<Option<Level>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Level {
    length: usize,
    nested: bool,
}

impl Data {
    /// Reads an array `depth` levels below the outermost. The scanner's bound on nesting bounds the recursion.
    fn read<E: Element>(&mut self, scanner: &mut Scanner<'_>, depth: usize) -> Result<(), DataError> {
        scanner.open(b'[', "expected an array as data")?;
        let level = if scanner.closes(b']') {
            Level { length: 0, nested: false }
        } else if scanner.peek() == Some(b'[') {
            Level { length: self.arrays::<E>(scanner, depth + 1)?, nested: true }
        } else {
            Level { length: self.elements::<E>(scanner)?, nested: false }
        };
        if depth == 0 {
            return Ok(());
        }
        if self.levels.len() < depth {
            self.levels.resize(depth, None);
        }
        let same = *self.levels[depth - 1].get_or_insert(level) == level;
        if same { Ok(()) } else { Err(DataError::Ragged) }
    }

    fn arrays<E: Element>(&mut self, scanner: &mut Scanner<'_>, depth: usize) -> Result<usize, DataError> {
        let mut length = 0;
        loop {
            if scanner.peek() != Some(b'[') {
                return Err(DataError::Ragged);
            }
            self.read::<E>(scanner, depth)?;
            length += 1;
            if !scanner.more(b']')? {
                return Ok(length);
            }
        }
    }

    fn elements<E: Element>(&mut self, scanner: &mut Scanner<'_>) -> Result<usize, DataError> {
        let before = self.found;
        loop {
            if self.found == self.expected {
                return Err(DataError::Excess(self.expected));
            }
            E::read(scanner, &mut self.out).map_err(|misfit| DataError::Element { index: self.found, misfit })?;
            self.found += 1;
            if !scanner.more(b']')? {
                return Ok(self.found - before);
            }
        }
    }
}
