//! The workers by name. A plan asks for them many times per replica, so a name is found by its hash, and each worker has
//! a number under which a plan keeps what it changes there. Iteration is in the order of names.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use berth_spec::WorkerId;

use super::TrackedWorker;

/// The number of a worker. It never changes: workers are not forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WorkerIndex(usize);

impl WorkerIndex {
    pub(crate) fn get(self) -> usize {
        self.0
    }
}

/// Hashes short names in a few instructions (FNV-1a, eight bytes at a time). Names of workers come from operators, not from
/// strangers, and nothing depends on the order of hashes.
#[derive(Debug, Clone)]
pub(crate) struct NameHasher(u64);

impl Default for NameHasher {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3_u64.rotate_left(17) | 1);
            self.0 ^= self.0 >> 29;
        }
    }

    fn finish(&self) -> u64 {
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// Every worker that is known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Workers {
    all: Vec<(WorkerId, TrackedWorker)>,
    by_name: HashMap<WorkerId, WorkerIndex, BuildHasherDefault<NameHasher>>,
    sorted: Vec<WorkerIndex>,
}

impl Workers {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn index(&self, id: &WorkerId) -> Option<WorkerIndex> {
        self.by_name.get(id).copied()
    }

    pub(crate) fn contains_key(&self, id: &WorkerId) -> bool {
        self.by_name.contains_key(id)
    }

    pub(crate) fn get(&self, id: &WorkerId) -> Option<&TrackedWorker> {
        Some(&self.at(self.index(id)?).1)
    }

    pub(crate) fn get_mut(&mut self, id: &WorkerId) -> Option<&mut TrackedWorker> {
        let index = self.index(id)?;
        Some(&mut self.all[index.get()].1)
    }

    /// The worker of a number that [`index`](Self::index) gave.
    pub(crate) fn at(&self, index: WorkerIndex) -> &(WorkerId, TrackedWorker) {
        &self.all[index.get()]
    }

    /// A worker, which is known from now on.
    pub(crate) fn get_or_insert(&mut self, id: &WorkerId) -> &mut TrackedWorker {
        let index = self.index(id).unwrap_or_else(|| self.insert(id));
        &mut self.all[index.get()].1
    }

    fn insert(&mut self, id: &WorkerId) -> WorkerIndex {
        let index = WorkerIndex(self.all.len());
        let place = self.sorted.partition_point(|other| self.at(*other).0 < *id);
        self.all.push((id.clone(), TrackedWorker::default()));
        self.by_name.insert(id.clone(), index);
        self.sorted.insert(place, index);
        index
    }

    /// Every worker with its number.
    pub(crate) fn indexed(&self) -> impl Iterator<Item = (WorkerIndex, &WorkerId, &TrackedWorker)> {
        self.sorted.iter().map(|index| {
            let (id, tracked) = self.at(*index);
            (*index, id, tracked)
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&WorkerId, &TrackedWorker)> {
        self.indexed().map(|(_, id, tracked)| (id, tracked))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &WorkerId> {
        self.iter().map(|(id, _)| id)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &TrackedWorker> {
        self.iter().map(|(_, tracked)| tracked)
    }
}
