//! Workers grouped into buckets that rank alike for any replica, sorted by free memory within a bucket: the best worker for
//! a replica is the best of the first ones in each bucket that can take it, so nobody has to look at a thousand.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use berth_spec::{ByteSize, Load, WorkerId};

use super::Version;
use crate::world::TrackedWorker;

/// What a worker is for any replica: all that [`Score`](super::Score) looks at beside free memory, labels and what the
/// worker holds already.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WorkerBucket<'w> {
    /// It is of an older version, and nodes of a newer one have joined lately.
    pub(crate) replaced: bool,
    /// Its memory is short.
    pub(crate) short: bool,
    /// Loads that wait there.
    pub(crate) queue: Queue,
    /// How busy it is.
    pub(crate) load_level: LoadLevel,
    /// It has GPUs.
    pub(crate) gpus: bool,
    /// Where it is.
    pub(crate) region: Option<&'w str>,
    /// Where in the region.
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

/// How busy a worker is, or a model. Steps, so that noise makes no difference.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoadLevel {
    /// Nothing to speak of.
    #[default]
    Quiet,
    /// As one would have it.
    Steady,
    /// Near what it can do.
    Busy,
}

/// Requests per minute below which a worker, or a copy of a model, is quiet. ModelMesh leaves such instances alone
/// (100). Halved: models that are used now and then compete with busy ones for quiet workers. Doubled: models of three
/// requests a second go where the busy ones are.
const QUIET_RATE: f32 = 100.0;

/// Requests per minute above which a worker, or a copy of a model, is busy: half of what a copy should have at most by
/// default. Halved: most models in use ask for quiet workers, and nobody gets one. Doubled: only models that are about
/// to get another copy do.
const BUSY_RATE: f32 = 1_000.0;

/// Processor time in percent over a minute, below which a worker is quiet and above which it is busy. Halved: hardly any
/// worker is quiet. Doubled: hardly any is busy before its requests queue.
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
    /// Where a worker belongs to which `coming` replicas are on their way.
    pub(crate) fn of(tracked: &'w TrackedWorker, coming: u32, newest: Option<&Version<'_>>) -> Self {
        let info = tracked.info.as_ref();
        let version = || info.and_then(|info| Version::read(&info.version));
        Self {
            replaced: newest.is_some_and(|newest| version().is_some_and(|version| version < *newest)),
            short: tracked.load.degraded,
            queue: Queue::of(coming.max(tracked.load.queue)),
            load_level: LoadLevel::of_load(&tracked.load),
            gpus: info.is_some_and(|info| !info.gpus.is_empty()),
            region: info.and_then(|info| info.region()),
            zone: info.and_then(|info| info.zone()),
        }
    }
}

/// Workers in one bucket, the most free memory first.
type ByRoom<'w> = BTreeSet<(Reverse<ByteSize>, &'w WorkerId)>;

/// All workers that can be reached.
#[derive(Debug, Default)]
pub(crate) struct WorkerBuckets<'w> {
    buckets: BTreeMap<WorkerBucket<'w>, ByRoom<'w>>,
    places: BTreeMap<&'w WorkerId, (WorkerBucket<'w>, Reverse<ByteSize>)>,
}

impl<'w> WorkerBuckets<'w> {
    /// Puts a worker where it belongs now.
    pub(crate) fn put(&mut self, worker: &'w WorkerId, bucket: WorkerBucket<'w>, free: ByteSize) {
        let place = (bucket, Reverse(free));
        if let Some((bucket, free)) = self.places.insert(worker, place).filter(|before| *before != place)
            && let Some(workers) = self.buckets.get_mut(&bucket)
        {
            workers.remove(&(free, worker));
            if workers.is_empty() {
                self.buckets.remove(&bucket);
            }
        }
        self.buckets.entry(bucket).or_default().insert((Reverse(free), worker));
    }

    /// Each bucket with its workers that have `need` to spare, the most free memory first.
    pub(crate) fn roomy(
        &self,
        need: ByteSize,
    ) -> impl Iterator<Item = (&WorkerBucket<'w>, impl Iterator<Item = &'w WorkerId>)> {
        self.buckets.iter().map(move |(bucket, workers)| {
            (bucket, workers.iter().take_while(move |(free, _)| free.0 >= need).map(|(_, worker)| *worker))
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
