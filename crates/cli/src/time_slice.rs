//! Time slices of threads that serve requests: shorter than the kernel's.
#![expect(unsafe_code, reason = "no crate wraps sched_setattr")]

use std::{io, time::Duration};

/// The time for which a thread has its core before others have their turn; the kernel takes no less. A thread that yields gives away the rest
/// of its slice, and by default, of 1.4 ms and more, would have its core back as much later.
const SLICE: Duration = Duration::from_micros(100);

/// Shortens the slice of the calling thread. Kernels before 6.12 have one slice for all threads, and change nothing.
pub(crate) fn shorten() {
    if let Err(error) = set() {
        tracing::debug!(event = "time_slice_not_set", %error, "this thread has the slices of others");
    }
}

fn set() -> io::Result<()> {
    // Priority and policy stay as whoever started the process has set them.
    let mut attributes = get()?;
    if !matches!(attributes.sched_policy as i32, libc::SCHED_OTHER | libc::SCHED_BATCH) {
        return Ok(());
    }
    attributes.sched_runtime = SLICE.as_nanos() as u64;
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

fn done(code: libc::c_long) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slice_is_short_and_the_rest_stays() {
        let before = get().expect("attributes");
        set().expect("set");
        let after = get().expect("attributes");
        assert_eq!((after.sched_policy, after.sched_nice), (before.sched_policy, before.sched_nice));
        // Older kernels say nothing of slices.
        assert!([before.sched_runtime, SLICE.as_nanos() as u64].contains(&after.sched_runtime));
    }
}
