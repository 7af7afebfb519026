//! The memory of a process and of those that it started, as the kernel sees it.
//!
//! To tell the share of a process in its pages the kernel walks over all of them, some 30 ms for each GiB. Its count of resident pages
//! costs microseconds: while that stands still, the last walk holds.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use berth_spec::ByteSize;

/// A model with more processes than this is counted in part.
const MOST_PROCESSES: usize = 256;

/// The age of a walk at which it is repeated in any case: a process that writes to pages which it shared has more of its own then, and
/// no more that are resident.
const OLDEST_WALK: Duration = Duration::from_secs(30);

/// A change of a process by this share of its resident memory has its pages walked again. It is the step in which a worker tells its
/// overhead.
const STEPS: u64 = 64;

/// The smallest such change, in KiB: less is noise of the allocator.
const LEAST_STEP: u64 = 1 << 10;

/// The measured memory of a process and its descendants, shared pages by share.
pub(super) struct ProcessMemory {
    process: u32,
    walk: Option<Walk>,
}

/// The result of a walk over all pages.
struct Walk {
    at: Instant,
    /// Resident memory of each process, in KiB.
    resident: BTreeMap<u32, u64>,
    sum: ByteSize,
}

impl ProcessMemory {
    pub(super) fn of(process: u32) -> Self {
        Self { process, walk: None }
    }

    /// Measures it. `None` where it cannot be seen.
    pub(super) fn measure(&mut self, now: Instant) -> Option<ByteSize> {
        self.walk_pages(resident(self.process), now)
    }

    /// Measures it where that may give something else than the last time.
    pub(super) fn refresh(&mut self, now: Instant) -> Option<ByteSize> {
        let resident = resident(self.process);
        match self.walk.as_ref().filter(|walk| walk.holds(&resident, now)) {
            Some(walk) => Some(walk.sum),
            None => self.walk_pages(resident, now),
        }
    }

    fn walk_pages(&mut self, resident: BTreeMap<u32, u64>, now: Instant) -> Option<ByteSize> {
        let sum: u64 = resident.iter().map(|(&process, &resident)| share(process).unwrap_or(resident)).sum();
        self.walk = (sum > 0).then_some(Walk { at: now, resident, sum: ByteSize(sum << 10) });
        self.walk.as_ref().map(|walk| walk.sum)
    }
}

impl Walk {
    /// True if the memory is as it was, for all that resident pages tell.
    fn holds(&self, resident: &BTreeMap<u32, u64>, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < OLDEST_WALK
            && self.resident.len() == resident.len()
            && self.resident.iter().zip(resident).all(|((process, before), (other, after))| {
                process == other && before.abs_diff(*after) < (before / STEPS).max(LEAST_STEP)
            })
    }
}

/// The resident memory of a process and its descendants, in KiB.
fn resident(process: u32) -> BTreeMap<u32, u64> {
    let (mut waiting, mut all) = (vec![process], BTreeMap::new());
    while let Some(process) = waiting.pop() {
        let statm = fs_err::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default();
        let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
        all.insert(process, (pages * rustix::param::page_size() as u64) >> 10);
        if all.len() < MOST_PROCESSES {
            let children = fs_err::read_to_string(format!("/proc/{process}/task/{process}/children"));
            let children = children.unwrap_or_default();
            waiting.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    all
}

/// The share of a process in its resident pages, in KiB. `None` where only its owner may know.
fn share(process: u32) -> Option<u64> {
    let text = fs_err::read_to_string(format!("/proc/{process}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_walked_again_when_their_number_moves_and_now_and_then() {
        let at = Instant::now();
        let walk = Walk { at, resident: BTreeMap::from([(7, 4_000), (9, 640_000)]), sum: ByteSize::mib(600) };
        let holds = |resident: &[(u32, u64)], age: Duration| walk.holds(&resident.iter().copied().collect(), at + age);
        let soon = Duration::from_secs(2);
        assert!(holds(&[(7, 4_000), (9, 640_000)], soon));
        assert!(holds(&[(7, 4_900), (9, 631_000)], soon), "noise");
        assert!(!holds(&[(7, 5_100), (9, 640_000)], soon), "a small process by more than 1 MiB");
        assert!(!holds(&[(7, 4_000), (9, 655_000)], soon), "a large one by more than a 64th");
        assert!(!holds(&[(7, 4_000)], soon) && !holds(&[(7, 4_000), (8, 640_000)], soon), "other processes");
        assert!(!holds(&[(7, 4_000), (9, 640_000)], OLDEST_WALK));
    }

    #[test]
    fn a_process_that_is_there_is_measured() {
        let mut own = ProcessMemory::of(std::process::id());
        let (measured, again) = (own.measure(Instant::now()), own.refresh(Instant::now()));
        assert!(measured > Some(ByteSize::mib(1)) && again > Some(ByteSize::mib(1)), "{measured:?}, {again:?}");
        assert_eq!(ProcessMemory::of(u32::MAX).measure(Instant::now()), None);
    }
}
