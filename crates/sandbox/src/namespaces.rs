//! Leaving the worker's namespaces, and dying with the parent.

use std::io;

use nix::sched::{CloneFlags, unshare};
use rustix::process::{Signal, getegid, geteuid, set_parent_process_death_signal};

use crate::spec::Mechanisms;

/// The number that root has in a user namespace of its own: it has no privileges there, and should not look as if.
const NOT_ROOT: u32 = 1_000;

/// Makes namespaces for this process, and for its children where it cannot change itself (processes).
pub(crate) fn leave(mechanisms: Mechanisms) -> io::Result<()> {
    let wanted = [
        (mechanisms.user_namespace, CloneFlags::CLONE_NEWUSER),
        (mechanisms.files, CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC),
        (mechanisms.processes, CloneFlags::CLONE_NEWPID),
        (mechanisms.network, CloneFlags::CLONE_NEWNET),
    ];
    let flags = wanted.into_iter().filter(|(wanted, _)| *wanted).fold(CloneFlags::empty(), |all, (_, flag)| all | flag);
    if flags.is_empty() {
        return Ok(());
    }
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    unshare(flags)?;
    if mechanisms.user_namespace {
        let inside = |id: u32| if id == 0 { NOT_ROOT } else { id };
        // Without this an ordinary user may not map groups.
        fs_err::write("/proc/self/setgroups", "deny")?;
        fs_err::write("/proc/self/uid_map", format!("{} {user} 1", inside(user)))?;
        fs_err::write("/proc/self/gid_map", format!("{} {group} 1", inside(group)))?;
    }
    // New privileges clear it.
    die_with_parent()
}

/// Has the kernel end this process when its parent ends.
pub(crate) fn die_with_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}
