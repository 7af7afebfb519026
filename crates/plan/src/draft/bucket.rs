//! Workers grouped into buckets that rank alike for any replica, sorted by free memory within a bucket: the best worker for
//! a replica is the best of the first ones in each bucket that can take it, so nobody has to look at a thousand.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use berth_spec::{ByteSize, Load};

use super::Version;
use crate::world::{TrackedWorker, WorkerIndex};

/// Properties of a worker that rank it for any replica: all that [`Score`](crate::Score) looks at beside free memory,
/// labels and the replicas already there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WorkerBucket<'w> {
    /// Runs an older version, and nodes of a newer one have joined lately.
    pub(crate) replaced: bool,
    /// Its memory is short, by its own report.
    pub(crate) short: bool,
    /// Loads that wait there.
    pub(crate) queue: Queue,
    /// Load of the worker: requests and processor time.
    pub(crate) load_level: LoadLevel,
    /// Has GPUs, which are spared for models that need them.
    pub(crate) gpus: bool,
    /// The worker's region, by its label.
    pub(crate) region: Option<&'w str>,
    /// The worker's zone inside of its region, by its label.
    pub(crate) zone: Option<&'w str>,
}

/// Loads that wait on a worker, on a scale where each step is four times as many: 0 to 3 are as good as none, since so
/// many are loaded at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Queue(pub u32);

impl Queue {
    pub(crate) fn of(loads: u32) -> Self {
        Self(loads.max(1).ilog2() / 2)
    }
}

/// Load of a worker or of a model, in coarse steps, so that noise changes nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoadLevel {
    /// Nothing to speak of.
    #[default]
    Quiet,
    /// Between the two: works, with room for more.
    Steady,
    /// Near what it can do.
    Busy,
}

/// Requests per minute below which a worker, or a copy of a model, is quiet: ModelMesh leaves such instances alone,
/// too.
const QUIET_RATE: f32 = 100.0;

/// Requests per minute above which a worker, or a copy of a model, is busy: half of a copy's default target rate.
const BUSY_RATE: f32 = 1_000.0;

/// Processor time in percent over a minute below which a worker is quiet, and above which it is busy. Requests begin
/// to queue not far above the second.
const QUIET_CPU: f32 = 20.0;
const BUSY_CPU: f32 = 60.0;

impl LoadLevel {
    /// Of so many requests per minute.
    pub(crate) fn of_rate(per_minute: f32) -> Self {
        Self::of(per_minute, QUIET_RATE, BUSY_RATE)
    }

    fn of_load(load: &Load) -> Self {
        // The count of requests is exact far beyond what a worker answers in a minute.
        let by_rate = Self::of_rate(load.requests_per_minute as f32);
        by_rate.max(Self::of(load.cpu_percent[1], QUIET_CPU, BUSY_CPU))
    }

    fn of(value: f32, quiet: f32, busy: f32) -> Self {
        if value < quiet {
            Self::Quiet
        } else if value < busy {
            Self::Steady
        } else {
            Self::Busy
        }
    }
}

impl<'w> WorkerBucket<'w> {
    /// The loads that wait on a worker to which `coming` replicas are on their way.
    pub(super) fn queue(tracked: &TrackedWorker, coming: u32) -> Queue {
        Queue::of(coming.max(tracked.load.queue))
    }

    /// The bucket of a worker to which `coming` replicas are on their way.
    pub(super) fn of(tracked: &'w TrackedWorker, coming: u32, newest: Option<&Version<'_>>) -> Self {
        let info = tracked.info.as_ref();
        let version = || info.and_then(|info| Version::read(&info.version));
        Self {
            replaced: newest.is_some_and(|newest| version().is_some_and(|version| version < *newest)),
            short: tracked.load.degraded,
            queue: Self::queue(tracked, coming),
            load_level: LoadLevel::of_load(&tracked.load),
            gpus: info.is_some_and(|info| !info.gpus.is_empty()),
            region: info.and_then(|info| info.region()),
            zone: info.and_then(|info| info.zone()),
        }
    }
}

/// A worker in the order of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ordinal(usize);

/// Workers in one bucket, the most free memory first, then by name.
type ByRoom = BTreeSet<(Reverse<ByteSize>, Ordinal)>;

/// All workers that can be reached.
#[derive(Debug, Default)]
pub(crate) struct WorkerBuckets<'w> {
    buckets: BTreeMap<WorkerBucket<'w>, ByRoom>,
    /// The place of each worker, by its number; `None`: it cannot be reached.
    places: Vec<Option<BucketedWorker<'w>>>,
    /// The workers in the order of names: the last tie breaker.
    by_name: Vec<WorkerIndex>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BucketedWorker<'w> {
    ordinal: Ordinal,
    bucket: WorkerBucket<'w>,
    free: ByteSize,
}

impl<'w> WorkerBuckets<'w> {
    /// Adds a worker. Workers have to come in the order of their names.
    pub(super) fn add(&mut self, worker: WorkerIndex, bucket: WorkerBucket<'w>, free: ByteSize) {
        let ordinal = Ordinal(self.by_name.len());
        self.by_name.push(worker);
        if self.places.len() <= worker.get() {
            self.places.resize(worker.get() + 1, None);
        }
        self.places[worker.get()] = Some(BucketedWorker { ordinal, bucket, free });
        self.buckets.entry(bucket).or_default().insert((Reverse(free), ordinal));
    }

    /// The bucket that a worker is in; `None`: it cannot be reached.
    pub(super) fn bucket(&self, worker: WorkerIndex) -> Option<&WorkerBucket<'w>> {
        self.places.get(worker.get())?.as_ref().map(|place| &place.bucket)
    }

    /// Moves a worker to where it belongs with so many loads that wait and so much free memory.
    pub(super) fn update(&mut self, worker: WorkerIndex, queue: Queue, free: ByteSize) {
        let Some(Some(place)) = self.places.get_mut(worker.get()) else { return };
        let bucket = WorkerBucket { queue, ..place.bucket };
        let before = std::mem::replace(place, BucketedWorker { bucket, free, ..*place });
        let ordinal = before.ordinal;
        if (before.bucket, before.free) == (bucket, free) {
            return;
        }
        if let Some(workers) = self.buckets.get_mut(&before.bucket) {
            workers.remove(&(Reverse(before.free), ordinal));
            if workers.is_empty() {
                self.buckets.remove(&before.bucket);
            }
        }
        self.buckets.entry(bucket).or_default().insert((Reverse(free), ordinal));
    }

    /// Each bucket with its workers that have `need` to spare, the most free memory first.
    pub(crate) fn roomy(
        &self,
        need: ByteSize,
    ) -> impl Iterator<Item = (&WorkerBucket<'w>, impl Iterator<Item = WorkerIndex>)> {
        self.buckets.iter().map(move |(bucket, workers)| {
            let roomy = workers.iter().take_while(move |(free, _)| free.0 >= need);
            (bucket, roomy.map(|(_, ordinal)| self.by_name[ordinal.0]))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps() {
        assert_eq!([0, 3, 4, 15, 16, 64].map(|loads| Queue::of(loads).0), [0, 0, 1, 1, 2, 3]);
        assert_eq!(
            [0.0, 99.0, 100.0, 1_000.0].map(LoadLevel::of_rate),
            [LoadLevel::Quiet, LoadLevel::Quiet, LoadLevel::Steady, LoadLevel::Busy]
        );
        let hot = Load { cpu_percent: [0.0, 80.0, 0.0], ..Load::default() };
        assert_eq!(LoadLevel::of_load(&hot), LoadLevel::Busy);
    }
}
