//! The filter of system calls: a deny list of what reaches into other processes or into the kernel's rarely used parts,
//! where most holes were found. What compute code calls is on none of it.
//!
//! Three filters, since each has one answer: foreign numbers and `clone3`, whose flags no filter can read, do not exist
//! (libraries fall back to `clone`); the rest is refused.

use std::{collections::BTreeMap, io};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Is, SeccompCondition as Condition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter,
};

/// Reaching into others, mounting, other namespaces, the kernel itself, its keys, its clocks.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_fanotify_init,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];

/// Kinds of sockets that may be made. Others reach past a network namespace (`AF_VSOCK`) or into seldom used code.
const SOCKETS: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Flags of `clone` that make namespaces.
const NAMESPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u64;

/// Requests of `ioctl` that put words into a terminal's input.
const INTO_TERMINALS: [u64; 2] = [libc::TIOCSTI, libc::TIOCLINUX];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Filters the system calls of this process and of all that it starts.
pub(crate) fn filter() -> io::Result<()> {
    let filters = filters().map_err(|error| io::Error::other(format!("seccomp: {error}")))?;
    // The strongest answer of all counts, so that their order says nothing.
    filters
        .iter()
        .try_for_each(|filter| apply_filter(filter))
        .map_err(|error| io::Error::other(format!("seccomp: {error}")))
}

fn filters() -> Result<Vec<BpfProgram>, seccompiler::Error> {
    let absent: Rules = [(libc::SYS_clone3, Vec::new())].into();
    let mut filters = vec![compiled(absent, libc::ENOSYS)?, compiled(refused()?, libc::EPERM)?];
    filters.extend(foreign_numbers());
    Ok(filters)
}

fn refused() -> Result<Rules, seccompiler::Error> {
    let mut rules: Rules = REFUSED.iter().map(|number| (*number, Vec::new())).collect();
    let other = |kind: &libc::c_int| Condition::new(0, Length::Dword, Is::Ne, u64::from(kind.unsigned_abs()));
    let sockets = SOCKETS.iter().map(other).collect::<Result<Vec<_>, _>>()?;
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(sockets)?]);
    // Any of the flags is refused: one rule per flag.
    let flags = (0..32).map(|bit| 1_u64 << bit).filter(|bit| NAMESPACES & bit != 0);
    let flags = flags.map(|flag| SeccompRule::new(vec![Condition::new(0, Length::Qword, Is::MaskedEq(flag), flag)?]));
    rules.insert(libc::SYS_clone, flags.collect::<Result<_, _>>()?);
    let requests = INTO_TERMINALS.iter();
    let requests = requests.map(|request| SeccompRule::new(vec![Condition::new(1, Length::Dword, Is::Eq, *request)?]));
    rules.insert(libc::SYS_ioctl, requests.collect::<Result<_, _>>()?);
    Ok(rules)
}

fn compiled(rules: Rules, error: libc::c_int) -> Result<BpfProgram, seccompiler::Error> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(error.unsigned_abs()), arch)?;
    Ok(filter.try_into()?)
}

/// The calls of the x32 interface have numbers of their own, which a list of numbers does not know.
#[cfg(target_arch = "x86_64")]
fn foreign_numbers() -> Option<BpfProgram> {
    const X32: u32 = 0x4000_0000;
    let step = |code: u32, jt, jf, k| seccompiler::sock_filter { code: code as u16, jt, jf, k };
    Some(vec![
        // The number of the call is the first word of what a filter sees.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 1, X32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs()),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ])
}

#[cfg(not(target_arch = "x86_64"))]
fn foreign_numbers() -> Option<BpfProgram> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_compile_on_this_processor() {
        let filters = filters().expect("compiled");
        assert!(filters.len() >= 2 && filters.iter().all(|filter| filter.len() < 4_096));
    }
}
