//! The launcher from inside: a fresh process with one thread that becomes the confined program, or waits for it.
//!
//! ```text
//! outer ─ groups, namespaces ─ fork ─▶ init (process 1) ─ file tree ─ fork ─▶ confine, exec
//!   │ waits, ends as it did    ◀─ status ─ reaps                                │
//!   └───────────── without a process namespace: file tree, confine, exec ──────┘
//! ```
//! Each dies with its parent, and a process namespace with its init: nothing is left behind, however the worker ends.
#![expect(unsafe_code, reason = "fork has no safe wrapper")]

use std::{
    ffi::OsString,
    io::{self, PipeReader, PipeWriter, Read as _, Write as _},
    os::unix::{fs::chown, process::CommandExt as _},
    process::{Command, ExitCode},
};

use nix::{
    sys::{
        signal::{SigSet, Signal, raise},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{ForkResult, Pid},
};
use rustix::process::{DumpableBehavior, Resource, Rlimit};

use crate::{
    FLAG, confine, loopback,
    namespaces::{self, die_with_parent},
    own_network, passing, root,
    spec::{Network, Order},
};

/// The exit code where the sandbox could not be made.
pub(crate) const NOT_MADE: u8 = 125;

/// The exit code where the program could not be started.
pub(crate) const NOT_STARTED: u8 = 126;

/// Continuations of this program in a sandbox, by name; `None`: there is none of that name.
pub type Own = fn(&str) -> Option<ExitCode>;

/// Does the launcher's work if this process was started as one. `None`: it was not. Called first in `main`, before any thread.
/// `own` is what [`Launcher::command_own`](crate::Launcher::command_own) names.
#[must_use]
pub fn entered(own: Own) -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    let flag = words.next()?;
    if flag == own_network::FLAG {
        return Some(own_network::start(words));
    }
    if flag != FLAG {
        return None;
    }
    let order = words.next().unwrap_or_default();
    let program: Vec<OsString> = words.skip(1).collect();
    let order = order.to_str().and_then(|text| serde_json::from_str::<Order>(text).ok());
    let Some(order) = order else { return Some(refused(NOT_MADE, "the order of the sandbox cannot be read")) };
    Some(match launch(&order, &program, own) {
        Ok(code) => code,
        Err(error) => refused(NOT_MADE, &error.to_string()),
    })
}

fn refused(code: u8, why: &str) -> ExitCode {
    // The worker keeps the last lines of its processes.
    let _ = writeln!(io::stderr(), "berth: the sandbox: {why}");
    ExitCode::from(code)
}

fn launch(order: &Order, program: &[OsString], own: Own) -> io::Result<ExitCode> {
    let Order { sandbox, mechanisms, parent, .. } = order;
    close_files()?;
    die_with_parent()?;
    if rustix::process::getppid().is_none_or(|found| found.as_raw_nonzero().get() as u32 != *parent) {
        return Err(io::Error::other("the worker is gone"));
    }
    let no_core = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, no_core)?;
    for group in &sandbox.groups {
        // The memory may be unbounded then, which is told, and nothing else is wrong.
        if let Err(error) = fs_err::write(group.join("cgroup.procs"), "0") {
            let _ = writeln!(io::stderr(), "berth: cannot join the control group: {error}");
        }
    }
    if let Some(user) = sandbox.user {
        chown(&sandbox.folder, Some(user), Some(user))?;
    }
    namespaces::leave(*mechanisms).map_err(|error| told("namespaces", &error))?;
    if !mechanisms.processes {
        return become_program(order, program, own);
    }
    // The handshake: the child is known to die with us before it does anything.
    let (ready, mut tell_ready) = io::pipe()?;
    let (mut go, tell_go) = io::pipe()?;
    // SAFETY: this process has one thread.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => {
            drop((tell_ready, go));
            outer(child, ready, tell_go)
        }
        ForkResult::Child => {
            drop((ready, tell_go));
            die_with_parent()?;
            tell_ready.write_all(b"r")?;
            go.read_exact(&mut [0])?;
            drop(go);
            init(order, program, own, tell_ready)
        }
    }
}

fn told(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Waits for the init, and ends as the program did.
fn outer(child: Pid, mut from: PipeReader, mut go: PipeWriter) -> io::Result<ExitCode> {
    // Whoever asks the model to end asks its whole group: we stay, to say how it went.
    let asked: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT].into_iter().collect();
    asked.thread_block()?;
    from.read_exact(&mut [0])?;
    go.write_all(b"g")?;
    drop(go);
    let mut status = [0; 2];
    let said = from.read_exact(&mut status);
    let of_init = waitpid(child, None)?;
    let (kind, number) = match (said, of_init) {
        (Ok(()), _) => (status[0], status[1]),
        (Err(_), WaitStatus::Signaled(_, signal, _)) => (SIGNALLED, signal as u8),
        (Err(_), WaitStatus::Exited(_, code)) => (EXITED, code as u8),
        (Err(_), _) => (EXITED, NOT_MADE),
    };
    if kind == SIGNALLED
        && let Ok(signal) = Signal::try_from(i32::from(number))
    {
        asked.thread_unblock()?;
        raise(signal)?;
        // The first one only ends the handler of stack overflows.
        raise(signal)?;
    }
    Ok(ExitCode::from(number))
}

/// End of the program: the first of two bytes; the second is the code or the signal.
const EXITED: u8 = 0;
const SIGNALLED: u8 = 1;

/// The first process of the namespace: makes the file tree, starts the program, and takes in whom others left behind.
fn init(order: &Order, program: &[OsString], own: Own, mut tell: PipeWriter) -> io::Result<ExitCode> {
    // The program may have the same user: it must not write into this process.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    prepare(order)?;
    // SAFETY: this process has one thread.
    let child = match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            drop(tell);
            return confined(order, program, own);
        }
    };
    loop {
        let status = match waitpid(None, Some(WaitPidFlag::__WALL)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == child => [EXITED, code as u8],
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => [SIGNALLED, signal as u8],
            Ok(_) | Err(nix::errno::Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        };
        tell.write_all(&status)?;
        return Ok(ExitCode::SUCCESS);
    }
}

fn become_program(order: &Order, program: &[OsString], own: Own) -> io::Result<ExitCode> {
    prepare(order)?;
    confined(order, program, own)
}

fn prepare(order: &Order) -> io::Result<()> {
    if order.mechanisms.network && order.sandbox.network == Network::None {
        loopback::up().map_err(|error| told("loopback", &error))?;
        if let Some(port) = order.sandbox.listener {
            passing::send_listener(port).map_err(|error| told("listener", &error))?;
        }
    }
    if order.mechanisms.files {
        root::enter(&order.sandbox, order.mechanisms).map_err(|error| told("file tree", &error))?;
    }
    Ok(())
}

fn confined(order: &Order, program: &[OsString], own: Own) -> io::Result<ExitCode> {
    std::env::set_current_dir(&order.sandbox.folder)?;
    let landlock = confine::confine(order)?;
    if let Some(name) = &order.own {
        return Ok(own(name).unwrap_or_else(|| refused(NOT_STARTED, &format!("{name} is unknown"))));
    }
    let Some((program, arguments)) = program.split_first() else {
        // A trial.
        return write!(io::stdout(), "{landlock}").map(|()| ExitCode::SUCCESS);
    };
    let error = Command::new(program).args(arguments).exec();
    Ok(refused(NOT_STARTED, &format!("cannot run {}: {error}", program.display())))
}

/// Closes what a library of the worker may have left open: the program gets its three streams and nothing else.
fn close_files() -> io::Result<()> {
    let open = |entry: io::Result<fs_err::DirEntry>| entry.ok()?.file_name().to_str()?.parse::<i32>().ok();
    let files: Vec<i32> = fs_err::read_dir("/proc/self/fd")?.filter_map(open).filter(|file| *file > 2).collect();
    for file in files {
        // The listing itself is closed already.
        let _ = nix::unistd::close(file);
    }
    Ok(())
}
