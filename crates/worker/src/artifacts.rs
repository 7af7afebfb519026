//! Artifacts: from a location to a checked file on this machine.
use berth_spec::{ByteSize, Digest};
use std::path::PathBuf;

/// A checked artifact on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// Where it is.
    pub path: PathBuf,
    /// What its bytes hash to.
    pub digest: Digest,
    /// How many bytes it has.
    pub size: ByteSize,
}

/// The dependency behind a location.
#[must_use]
pub fn origin(_uri: &str) -> Option<String> {
    None
}
