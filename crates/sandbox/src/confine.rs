//! The last steps of a process before it becomes the program: it gives up what it will not need, and cannot have it back.

use std::io;

use rustix::{
    process::{Gid, Resource, Rlimit, Uid, getrlimit, setrlimit},
    thread::{
        CapabilitiesSecureBits, CapabilitySet, CapabilitySets, clear_ambient_capability_set,
        remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits, set_no_new_privs,
        set_thread_groups, set_thread_res_gid, set_thread_res_uid,
    },
};

use crate::{
    files,
    spec::{Limits, Mechanisms, Order},
    syscalls,
};

/// The highest capability that the kernel may have: it knows 41 today.
const CAPABILITIES: u32 = 63;

/// Confines this process. Returns the version of Landlock that holds it.
pub(crate) fn confine(order: &Order) -> io::Result<u32> {
    let Order { sandbox, mechanisms, .. } = order;
    limit(sandbox.limits, *mechanisms)?;
    match sandbox.user {
        Some(user) => change_user(user)?,
        None => drop_capabilities()?,
    }
    set_no_new_privs(true)?;
    let landlock = if mechanisms.landlock > 0 { files::restrict(sandbox, *mechanisms)? } else { 0 };
    if mechanisms.system_calls {
        syscalls::filter()?;
    }
    Ok(landlock)
}

fn limit(limits: Limits, mechanisms: Mechanisms) -> io::Result<()> {
    // Processes are counted per user: where others have the same, the limit would be theirs, too.
    let alone = mechanisms.own_user || mechanisms.user_namespace;
    let wanted = [
        (Resource::Nproc, alone.then_some(limits.processes)),
        (Resource::Nofile, Some(limits.files)),
        (Resource::Fsize, Some(limits.file_size)),
        (Resource::Data, limits.data),
    ];
    for (resource, value) in wanted {
        let Some(value) = value else { continue };
        let value = value.min(getrlimit(resource).maximum.unwrap_or(u64::MAX));
        setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })?;
    }
    Ok(())
}

/// Another user from here on. One that is not root has no capabilities.
fn change_user(user: u32) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(user));
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    Ok(set_thread_res_uid(user, user, user)?)
}

/// Gives up all capabilities; a program that root starts gets none back.
fn drop_capabilities() -> io::Result<()> {
    if rustix::thread::capabilities(None)?.permitted.is_empty() {
        return Ok(());
    }
    for number in 0..=CAPABILITIES {
        // Kernels end at different numbers.
        let Some(one) = CapabilitySet::from_bits(1 << number) else { continue };
        match remove_capability_from_bounding_set(one) {
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(rustix::io::Errno::PERM) => break,
            Err(error) => return Err(error.into()),
        }
    }
    // It needs one itself: where that is not there, there is no root to be feared either.
    let _ = set_capabilities_secure_bits(CapabilitiesSecureBits::NO_ROOT | CapabilitiesSecureBits::NO_ROOT_LOCKED);
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}
