//! Ranks workers for a replica. `README.md` says why in this order.

use std::cmp::Reverse;

use berth_spec::{ByteSize, Time, WorkerId};

use crate::draft::{LoadLevel, Queue};

/// Rank of a worker that can take a replica; the smallest is chosen. Fields in order of importance.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    /// Evictions needed: none is best, then the least important, then the longest unused.
    pub evicts: Evicts,
    /// Does not hold the revision already: it would have to be loaded.
    pub cold: bool,
    /// Runs an older version, and nodes of a newer one have joined lately: its replicas are moved before long.
    pub replaced: bool,
    /// Its memory is short, whatever is set aside: it says so itself.
    pub short: bool,
    /// Preferred labels that it lacks, the type's included.
    pub unpreferred: usize,
    /// Other replicas nearby: one fault should not hit all of them.
    pub colocation: Colocation,
    /// Most of the requests come from another region.
    pub far: bool,
    /// Loads that wait there.
    pub queue: Queue,
    /// Mismatch of its load and the model's: busy models go to quiet workers, quiet ones to busy workers with room.
    pub mismatch: Mismatch,
    /// Has GPUs, which the model does not need and others may.
    pub spares_no_gpu: bool,
    /// The most free memory first: replicas spread out.
    pub free: Reverse<ByteSize>,
    /// The name, so that the choice is always the same.
    pub worker: WorkerId,
}

/// Evictions needed for a replica.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Evicts {
    /// The highest priority among the victims.
    pub priority: u8,
    /// The latest use among the victims.
    pub last_used: Time,
    /// Their memory.
    pub bytes: ByteSize,
}

/// Replicas of the same revision near a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Colocation {
    /// Replicas in the worker's region.
    pub region: u32,
    /// Replicas in the worker's zone.
    pub zone: u32,
}

/// Mismatch of a worker's load and a model's; 0 is best.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mismatch(pub u8);

impl Mismatch {
    /// Of a worker for a model whose rate for each copy has this pace.
    pub(crate) fn of(model: LoadLevel, worker: LoadLevel) -> Self {
        let worker = match worker {
            LoadLevel::Quiet => 0,
            LoadLevel::Steady => 1,
            LoadLevel::Busy => 2,
        };
        Self(match model {
            LoadLevel::Busy => worker,
            LoadLevel::Steady => worker / 2,
            LoadLevel::Quiet => 2 - worker,
        })
    }
}

impl Score {
    /// The reason why this worker is better than the `other`, for people: the first thing in which they differ.
    #[must_use]
    pub fn beats(&self, other: &Self) -> String {
        if self.evicts != other.evicts {
            return self.evicts.beats(&other.evicts);
        }
        if self.cold != other.cold {
            return "it holds the model already, left from before".to_owned();
        }
        if self.replaced != other.replaced {
            return "the other is of an older version, which is being replaced".to_owned();
        }
        if self.short != other.short {
            return "the memory of the other's machine is short".to_owned();
        }
        if self.unpreferred != other.unpreferred {
            return format!("it lacks {} of the preferred labels, the other {}", self.unpreferred, other.unpreferred);
        }
        if self.colocation.region != other.colocation.region {
            let (here, there) = (self.colocation.region, other.colocation.region);
            return format!("its region has {here} of the replicas, the other's {there}");
        }
        if self.colocation.zone != other.colocation.zone {
            return format!(
                "its zone has {} of the replicas, the other's {}",
                self.colocation.zone, other.colocation.zone
            );
        }
        if self.far != other.far {
            return "most of the requests come from its region".to_owned();
        }
        if self.queue != other.queue {
            return "fewer loads wait there".to_owned();
        }
        if self.mismatch != other.mismatch {
            return "its load suits the model's rate better".to_owned();
        }
        if self.spares_no_gpu != other.spares_no_gpu {
            return "the other has GPUs, which are left for models that need them".to_owned();
        }
        if self.free != other.free {
            let (free, others) = (self.free.0, other.free.0);
            return format!("it has {} free, the other {}", free.beside(others), others.beside(free));
        }
        "they are equal, and its name comes first".to_owned()
    }
}

impl Evicts {
    fn beats(&self, other: &Self) -> String {
        if self.priority == 0 {
            return format!("nothing leaves for it, {} would leave the other", other.bytes);
        }
        if self.priority != other.priority {
            let (ours, theirs) = (self.priority, other.priority);
            return format!("what leaves for it has at most priority {ours}, on the other {theirs}");
        }
        if self.last_used != other.last_used {
            return "what leaves for it was not used for longer".to_owned();
        }
        format!("{} leaves for it, on the other {}", self.bytes.beside(other.bytes), other.bytes.beside(self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_models_go_to_quiet_workers_and_quiet_ones_to_busy_workers() {
        let best = |model| {
            [LoadLevel::Quiet, LoadLevel::Steady, LoadLevel::Busy]
                .into_iter()
                .min_by_key(|worker| Mismatch::of(model, *worker))
        };
        assert_eq!((best(LoadLevel::Busy), best(LoadLevel::Quiet)), (Some(LoadLevel::Quiet), Some(LoadLevel::Busy)));
        assert_eq!(
            Mismatch::of(LoadLevel::Steady, LoadLevel::Quiet),
            Mismatch::of(LoadLevel::Steady, LoadLevel::Steady)
        );
    }
}
