//! Measures the memory that a load took.
//!
//! The binary's own allocator is not glibc's, so what glibc has handed out is ONNX Runtime's, to the byte. Where that
//! says nothing (another C library), the resident set does, more coarsely.
#![expect(unsafe_code, reason = "mallinfo2 and malloc_trim have no safe wrapper")]

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_spec::ByteSize;
use tokio_util::sync::CancellationToken;

/// The least that is believed of any model: session, graph and names.
const FLOOR: u64 = 64 << 10;

/// Bytes on the heap and in the resident set of this process at one moment; `None` where the system does not tell.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryUse {
    heap: Option<u64>,
    resident: Option<u64>,
}

impl MemoryUse {
    /// Reads both from the allocator and `/proc`.
    #[must_use]
    pub(super) fn now() -> Self {
        Self { heap: heap(), resident: resident() }
    }

    /// No measurement: something else takes or gives back memory meanwhile.
    #[must_use]
    pub(super) fn unknown() -> Self {
        Self { heap: None, resident: None }
    }

    /// The resident memory with so much more than then.
    pub(super) fn resident_after(self, more: ByteSize) -> ByteSize {
        ByteSize(self.resident.unwrap_or(u64::MAX)) + more
    }

    /// The growth since `self`, and `true` if that is a measurement. An artifact's bytes are in memory at least: a
    /// smaller measurement (something else was freed meanwhile) is not believed, and an earlier one of the same content
    /// stands in for it.
    #[must_use]
    pub(super) fn grown(self, artifact: ByteSize, earlier: Option<ByteSize>) -> (ByteSize, bool) {
        let now = Self::now();
        let grown = |before: Option<u64>, now: Option<u64>| now?.checked_sub(before?);
        let plausible = |&bytes: &u64| bytes >= artifact.0 / 2;
        let measured = grown(self.heap, now.heap).filter(plausible);
        let earlier = || earlier.map(|earlier| earlier.0);
        match measured.or_else(earlier).or_else(|| grown(self.resident, now.resident).filter(plausible)) {
            Some(bytes) => (ByteSize(bytes.max(FLOOR)), true),
            None => (ByteSize((artifact.0 + artifact.0 / 2).max(FLOOR)), false),
        }
    }
}

/// Files below this are loaded sooner than a thread that watches could begin.
const WATCHED_FROM: ByteSize = ByteSize(256 << 10);

/// The interval of looks at the memory while a session is made: a peak that is shorter is not seen.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(2);

/// Watches the process while it does something.
pub(super) struct Peak;

impl Peak {
    /// Does the work; gives the most that was resident until it ended or was `given_up`, nothing for a small file.
    pub(super) fn of<T>(artifact: ByteSize, given_up: &CancellationToken, work: impl FnOnce() -> T) -> (T, ByteSize) {
        if artifact < WATCHED_FROM {
            return (work(), ByteSize::ZERO);
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watch = || {
                let mut peak = 0;
                while !done.load(Relaxed) && !given_up.is_cancelled() {
                    std::thread::park_timeout(SAMPLE_INTERVAL);
                    peak = resident().unwrap_or_default().max(peak);
                }
                peak
            };
            // Where no thread can be had, nothing is seen.
            let watch = std::thread::Builder::new().name("load-watch".to_owned()).spawn_scoped(scope, watch);
            let result = work();
            done.store(true, Relaxed);
            let peak = watch.ok().and_then(|watch| {
                watch.thread().unpark();
                watch.join().ok()
            });
            (result, ByteSize(peak.unwrap_or_default()))
        })
    }
}

/// Bytes that glibc has handed out: from its arenas, and mapped for large pieces.
#[cfg(target_env = "gnu")]
fn heap() -> Option<u64> {
    // SAFETY: it reads the allocator's own counters, under its locks.
    let info = unsafe { libc::mallinfo2() };
    Some((info.uordblks + info.hblkhd) as u64)
}

#[cfg(not(target_env = "gnu"))]
fn heap() -> Option<u64> {
    None
}

/// The resident set, in bytes.
pub(super) fn resident() -> Option<u64> {
    // It stays open: a load reads it several times, while a request waits.
    static STATM: OnceLock<Option<File>> = OnceLock::new();
    let mut text = [0; 128];
    let length = STATM.get_or_init(|| File::open("/proc/self/statm").ok()).as_ref()?.read_at(&mut text, 0).ok()?;
    let pages: u64 = std::str::from_utf8(&text[..length]).ok()?.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Gives freed memory back to the system. Takes some milliseconds where much was freed.
pub(super) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches only what is free.
    unsafe {
        libc::malloc_trim(0);
    }
}
