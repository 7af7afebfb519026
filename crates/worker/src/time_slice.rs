//! Time slices of the threads that pass requests and answers on: shorter than those of threads that compute.
#![expect(
    unsafe_code,
    reason = "no crate wraps sched_setattr, and clock_getres only with features that nothing else needs"
)]

use std::{io, time::Duration};

use berth_peer::LoopThreads;

/// The least that the kernel takes. A thread that yields puts itself off by its slice, which is 0.7 ms and more by default.
const SLICE: Duration = Duration::from_micros(100);

/// The tick of most kernels, where this one does not say, or says what no tick is, as sandboxes with a kernel of their own do.
const COMMON_TICK: Duration = Duration::from_millis(4);

/// Threads whose event loops have short slices, and whose other threads have those of the kernel.
#[must_use]
pub fn loop_threads() -> LoopThreads {
    LoopThreads { prepare_loop: shorten, prepare_pool: || try_set(Duration::ZERO), tick: tick(coarse()) }
}

/// Makes the slice of the calling thread as short as that of a loop. A thread that passes answers on to a loop needs it, too: one with a longer
/// slice is interrupted by each loop that it wakes, and does not interrupt the loop that wakes it.
pub(crate) fn shorten() {
    try_set(SLICE);
}

/// Changes the slice of the calling thread; zero: as by default. Kernels before 6.12 have one slice for all threads, and change nothing.
fn try_set(slice: Duration) {
    if let Err(error) = set(slice) {
        tracing::debug!(event = "time_slice_not_set", %error, "this thread has the time slice of others");
    }
}

fn set(slice: Duration) -> io::Result<()> {
    // Priority and policy stay as whoever started the process has set them.
    let mut attributes = get()?;
    if !matches!(attributes.sched_policy as i32, libc::SCHED_OTHER | libc::SCHED_BATCH) {
        return Ok(());
    }
    attributes.sched_runtime = slice.as_nanos() as u64;
    // SAFETY: the pointer is to attributes that live through the call, and which begin with their size.
    done(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) })
}

/// The scheduling attributes of the calling thread.
fn get() -> io::Result<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as u32;
    let mut attributes = libc::sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel writes as many bytes as it is told, which are those of the attributes.
    done(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) })?;
    Ok(attributes)
}

/// The period of the kernel's tick, by which its coarse clock goes.
fn tick(coarse: Duration) -> Duration {
    let ticks = Duration::from_millis(1)..=Duration::from_millis(10);
    if ticks.contains(&coarse) { coarse } else { COMMON_TICK }
}

/// The resolution of the kernel's coarse clock; zero: it does not say.
fn coarse() -> Duration {
    let mut found = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes to the value that the pointer is to.
    let code = unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut found) };
    if code == 0 { Duration::from_nanos(u64::try_from(found.tv_nsec).unwrap_or_default()) } else { Duration::ZERO }
}

fn done(code: libc::c_long) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_short_and_default_again_and_the_rest_stays() {
        let before = get().expect("attributes");
        let after = |slice| {
            set(slice).expect("set");
            let after = get().expect("attributes");
            assert_eq!((after.sched_policy, after.sched_nice), (before.sched_policy, before.sched_nice));
            after.sched_runtime
        };
        // Kernels before 6.12 say zero.
        let has_slices = before.sched_runtime > 0;
        assert_eq!(after(SLICE), if has_slices { SLICE.as_nanos() as u64 } else { 0 });
        assert_eq!(after(Duration::ZERO), before.sched_runtime);
    }

    #[test]
    fn a_tick_is_that_of_the_coarse_clock() {
        for milliseconds in [1, 4, 10] {
            assert_eq!(tick(Duration::from_millis(milliseconds)), Duration::from_millis(milliseconds));
        }
        for other in [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(1)] {
            assert_eq!(tick(other), COMMON_TICK);
        }
        assert!(!coarse().is_zero());
    }
}
