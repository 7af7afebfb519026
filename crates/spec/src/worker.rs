//! What a worker says of itself.

use std::collections::BTreeMap;

use crate::{ByteSize, WorkerId, deployment::ModelFormat};

/// What a worker is and how much it can hold. Sent when it joins; changes are a new incarnation.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerInfo {
    /// Its name.
    pub id: WorkerId,
    /// Grows with each start of the process, so that an old one's words can be told from a new one's.
    pub incarnation: u64,
    /// Free labels that selectors match.
    pub labels: BTreeMap<String, String>,
    /// Memory that models may take.
    pub memory: ByteSize,
    /// CPU cores.
    pub cpus: f32,
    /// The formats that it has a runtime for.
    pub formats: Vec<ModelFormat>,
    /// Its version of Berth.
    pub version: String,
}
