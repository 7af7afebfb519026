//! How good a worker is for a replica.

use std::cmp::Reverse;

use berth_spec::{ByteSize, Time, WorkerId};

/// How good a worker is for a replica that it can take; the smallest is chosen. Fields in order of importance.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    /// What has to leave: nothing is best, then the least important, then the longest unused.
    pub evicts: Evicts,
    /// It does not hold the revision already (left from before): it would have to be loaded.
    pub cold: bool,
    /// How many of the preferred labels it lacks.
    pub unpreferred: usize,
    /// The most free memory first: replicas spread out.
    pub free: Reverse<ByteSize>,
    /// The name, so that the choice is always the same.
    pub worker: WorkerId,
}

/// What has to leave for a replica.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Evicts {
    /// The highest priority among the victims.
    pub priority: u8,
    /// The latest use among the victims.
    pub last_used: Time,
    /// Their memory.
    pub bytes: ByteSize,
}
