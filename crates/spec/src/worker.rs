//! What a worker says of itself.

use std::collections::BTreeMap;

use crate::{
    ByteSize, Time, WorkerId,
    deployment::ModelFormat,
    member::{REGION, ZONE},
};

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
    /// GPUs that models may use.
    pub gpus: Vec<Gpu>,
    /// The most models that it holds at once; `None`: as many as fit.
    pub max_models: Option<u32>,
    /// The formats that it has a runtime for.
    pub formats: Vec<ModelFormat>,
    /// Its version of Berth.
    pub version: String,
}

impl WorkerInfo {
    /// Its region, if it has one.
    #[must_use]
    pub fn region(&self) -> Option<&str> {
        self.labels.get(REGION).map(String::as_str)
    }

    /// Its zone, if it has one.
    #[must_use]
    pub fn zone(&self) -> Option<&str> {
        self.labels.get(ZONE).map(String::as_str)
    }
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gpu {
    /// What it is, as its driver names it, in lower case with dashes: `nvidia-h200`.
    pub kind: String,
    /// Its memory.
    pub memory: ByteSize,
}

/// Whether a worker means to stay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkerState {
    /// It does.
    #[default]
    Serving,
    /// It was told to stop: its models move elsewhere while it still answers.
    Leaving,
}

/// What a worker says of its load (seed G §6.3, §6.4). Told when it changes noticeably.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// When it was looked at.
    pub at: Time,
    /// Processor time in use, in percent of all cores: now, over a minute, over five minutes.
    pub cpu_percent: [f32; 3],
    /// Memory of the machine or control group in use, models and all.
    pub memory_used: ByteSize,
    /// Loads that wait for a turn.
    pub queue: u32,
    /// Requests per minute over the last minute.
    pub requests_per_minute: u32,
}
