//! Tensors in system shared memory, as requests and registrations name them. Whoever serves the request reads and writes them.

use berth_spec::{InferError, inference::Parameter};
use serde::{Deserialize, Serialize};

use super::parameter::unsigned;

/// A region of shared memory, as a client registers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Region {
    /// Name by which requests refer to it; the client chooses it.
    pub name: String,
    /// The name of the shared memory object, `shm_open`'s.
    pub key: String,
    /// Its beginning there, in bytes.
    pub offset: u64,
    /// Its size in bytes.
    #[serde(rename = "byte_size")]
    pub size: u64,
}

/// The body of a registration over REST.
#[derive(Debug, Deserialize)]
struct Registration {
    key: String,
    #[serde(default)]
    offset: u64,
    byte_size: u64,
}

impl Region {
    /// From the body of a registration over REST.
    pub fn from_json(name: &str, body: &[u8]) -> Result<Self, InferError> {
        let Registration { key, offset, byte_size: size } =
            serde_json::from_slice(body).map_err(|error| InferError::Invalid(format!("the registration: {error}")))?;
        Ok(Self { name: name.to_owned(), key, offset, size })
    }
}

/// The part of a region that holds one tensor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Range {
    /// Name of a registered region.
    pub region: String,
    /// Its beginning in the region, in bytes.
    pub offset: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// The parameters of a tensor that name a range, while they come in.
#[derive(Debug, Clone, Default)]
pub(super) struct RangeParameters {
    region: Option<String>,
    offset: Option<u64>,
    size: Option<u64>,
}

impl RangeParameters {
    /// Takes a parameter, if it is one of these.
    pub(super) fn take(&mut self, name: &str, value: &Parameter) -> Result<(), InferError> {
        match name {
            "shared_memory_region" => match value {
                Parameter::Text(region) => self.region = Some(region.clone()),
                _ => return Err(InferError::Invalid(format!("parameter {name:?} must be a string"))),
            },
            "shared_memory_offset" => self.offset = Some(unsigned(name, value, "a whole number of bytes")?),
            "shared_memory_byte_size" => self.size = Some(unsigned(name, value, "a whole number of bytes")?),
            _ => {}
        }
        Ok(())
    }

    /// The range; `None`: the tensor is not in shared memory.
    pub(super) fn range(self) -> Result<Option<Range>, InferError> {
        let Some(region) = self.region else { return Ok(None) };
        let size = self.size.ok_or_else(|| {
            InferError::Invalid("shared_memory_region needs shared_memory_byte_size beside it".to_owned())
        })?;
        Ok(Some(Range { region, offset: self.offset.unwrap_or_default(), size }))
    }
}
