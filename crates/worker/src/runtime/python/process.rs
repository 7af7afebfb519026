//! One process of a model: started, spoken to, ended.
//!
//! Its standard input is the line (a socket); it has no name on disk and nobody else can find it. It is started by the
//! thread that supervises it, because the kernel ties its life to that very thread (`PR_SET_PDEATHSIG`).

use std::{
    io::{self, Write as _},
    net::Shutdown,
    os::{
        fd::OwnedFd,
        unix::{
            net::UnixStream,
            process::{CommandExt as _, ExitStatusExt as _},
        },
    },
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use berth_spec::ByteSize;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::{
    fence::{Fence, Grounds},
    frame::{self, Frame, Kind},
    message,
    noise::{self, Tail},
    plan::Plan,
};

/// How long a write waits before it looks whether there is still somebody to write to. Halved or doubled, nothing is
/// seen but a stop during a large request.
const WRITE_PATIENCE: Duration = Duration::from_millis(250);

/// How long a process has to end by itself, and then after being asked by signal. Halved, a model that writes something
/// at its end may be cut off; doubled, one that ignores both holds up its unloading.
const GRACE: Duration = Duration::from_secs(2);

/// A running process.
pub(super) struct Process {
    child: Child,
    line: UnixStream,
    fence: Fence,
    pub(super) tail: Tail,
    reader: Option<JoinHandle<()>>,
    noise: Option<JoinHandle<()>>,
    scratch: PathBuf,
    /// It was waited for: its number may be somebody else's by now.
    reaped: bool,
}

/// How a process ended.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    /// For people: `killed by signal 9`.
    pub(super) how: String,
    /// The kernel killed it for memory, or what looks like that.
    pub(super) memory: bool,
    /// Its last lines.
    pub(super) tail: String,
}

impl Process {
    /// Starts it, tells it what to load, and hands every frame that it sends to `hear`, which gets `None` at the end.
    pub(super) fn start(
        plan: &Arc<Plan>,
        grounds: &Grounds,
        hear: impl FnMut(Option<Frame>) + Send + 'static,
    ) -> io::Result<Self> {
        let (fence, undone) = Fence::raise(grounds, plan.memory, plan.cpus);
        if let Some(why) = undone {
            tracing::warn!(event = "model_not_fenced", deployment_id = %plan.deployment, why);
        }
        let scratch = plan.scratch()?;
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_write_timeout(Some(WRITE_PATIENCE))?;
        let (output, print) = io::pipe()?;
        let mut command = Command::new(&plan.python);
        command.args(["-s", "-m", "berth.host"]).current_dir(&scratch).process_group(0);
        command.env_clear().envs(plan.environment(&scratch));
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(print.try_clone()?).stderr(print);
        let child = command.spawn();
        // It holds copies of the process's ends.
        drop(command);
        let child = child.inspect_err(|_| remove(&scratch))?;
        let tail = Tail::default();
        let mut process = Self { child, line: ours, fence, tail, reader: None, noise: None, scratch, reaped: false };
        process.noise = Some(noise::listen(output, plan.deployment.clone(), process.tail.clone())?);
        let from = process.line.try_clone()?;
        let reader = std::thread::Builder::new().name("berth-py-line".to_owned());
        process.reader = Some(reader.spawn(move || read(from, hear))?);
        process.tell_what_to_load(plan)?;
        Ok(process)
    }

    fn tell_what_to_load(&mut self, plan: &Plan) -> io::Result<()> {
        let cgroups: Vec<String> = self.fence.groups().iter().map(|path| path.display().to_string()).collect();
        let limits = message::Limits {
            parent: std::process::id(),
            cgroups: cgroups.iter().map(String::as_str).collect(),
            data: self.fence.own_limit().map(|limit| limit.0),
        };
        let head = serde_json::to_vec(&plan.load(limits))?;
        self.send(Kind::Load, &head, &[], || true)
    }

    /// Sends a frame; `wanted` says now and then whether it still has to go.
    pub(super) fn send(
        &mut self,
        kind: Kind,
        head: &[u8],
        body: &[&[u8]],
        wanted: impl Fn() -> bool,
    ) -> io::Result<()> {
        let length = body.iter().map(|part| part.len()).sum();
        let prefix = frame::prefix(kind, head.len(), length);
        // Small frames in one piece: each write wakes the process.
        let mut first = Vec::with_capacity(prefix.len() + head.len() + length.min(SMALL));
        first.extend_from_slice(&prefix);
        first.extend_from_slice(head);
        if length <= SMALL {
            body.iter().for_each(|part| first.extend_from_slice(part));
            return self.write(&first, &wanted);
        }
        self.write(&first, &wanted)?;
        body.iter().try_for_each(|part| self.write(part, &wanted))
    }

    fn write(&mut self, mut bytes: &[u8], wanted: &impl Fn() -> bool) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.line.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && wanted() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The memory of the process and of those that it started; `None` where it cannot be seen. The larger of two
    /// words: a group does not count what the process had before it joined, and its pages do not say what the kernel
    /// holds for it.
    pub(super) fn memory(&self) -> Option<ByteSize> {
        self.fence.memory().max(resident(self.child.id()))
    }

    /// Whether it has ended already.
    pub(super) fn has_ended(&mut self) -> bool {
        self.reaped |= matches!(self.child.try_wait(), Ok(Some(_)) | Err(_));
        self.reaped
    }

    /// Asks it to end, then makes it. `polite`: it may be asked at all.
    pub(super) fn end(mut self, polite: bool) -> Ended {
        let mut status = None;
        if polite {
            // It may be gone already.
            let _ = self.send(Kind::Shutdown, b"", &[], || false);
            let _ = self.line.shutdown(Shutdown::Write);
            status = self.wait(GRACE);
            if status.is_none() {
                self.signal(Signal::TERM);
                status = self.wait(GRACE);
            }
        } else {
            // What dies by itself is given the moment that it takes to be gone: the status says why.
            status = status.or_else(|| self.wait(Duration::from_millis(100)));
        }
        let ours = status.is_none();
        self.signal(Signal::KILL);
        self.fence.kill();
        let status = status.or_else(|| self.child.wait().ok());
        self.reaped = true;
        let _ = self.line.shutdown(Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            // It catches what it throws.
            let _ = reader.join();
        }
        self.last_words();
        let memory = self.fence.ran_out_of_memory();
        Ended {
            how: described(status, ours),
            memory: memory || suspicious(status, ours, &self.fence),
            tail: self.tail.text(),
        }
    }

    fn last_words(&mut self) {
        let Some(noise) = self.noise.take() else { return };
        let until = Instant::now() + noise::LAST_WORDS;
        while !noise.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + patience;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    self.reaped = true;
                    return Some(status);
                }
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// To the process and everything that it started and did not move to a group of its own.
    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // They may be gone, which is what is wanted. The group keeps its number while anybody is in it.
            let _ = kill_process_group(pid, signal);
            if !self.reaped {
                let _ = kill_process(pid, signal);
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.reaped {
            self.signal(Signal::KILL);
            self.fence.kill();
            let _ = self.child.wait();
        }
        let _ = self.line.shutdown(Shutdown::Both);
        remove(&self.scratch);
    }
}

/// A body that is copied into one piece with its head. Doubled, larger requests are copied once more; halved, more of
/// them take two system calls.
const SMALL: usize = 64 << 10;

fn read(mut from: UnixStream, mut hear: impl FnMut(Option<Frame>)) {
    loop {
        match frame::read(&mut from) {
            Ok(frame) => hear(Some(frame)),
            Err(error) => {
                if !matches!(error, frame::Broken::Closed) {
                    tracing::warn!(event = "model_line_broke", %error);
                    // Whatever it is doing, it no longer speaks our language: it will see that the line is closed.
                    let _ = from.shutdown(Shutdown::Both);
                }
                return hear(None);
            }
        }
    }
}

fn remove(scratch: &std::path::Path) {
    if let Err(error) = fs_err::remove_dir_all(scratch)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(event = "scratch_not_removed", %error);
    }
}

fn described(status: Option<ExitStatus>, ours: bool) -> String {
    match status {
        _ if ours => "it did not end when asked, and was killed".to_owned(),
        None => "it ended, and nobody knows how".to_owned(),
        Some(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("it ended with code {code}"),
            (None, Some(signal)) => format!("it was killed by signal {signal}{}", signal_name(signal)),
            (None, None) => "it ended".to_owned(),
        },
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        4 => " (illegal instruction: a package was built for another processor)",
        6 => " (abort)",
        7 | 11 => " (a crash in native code)",
        9 => " (the system kills like that when memory runs out)",
        15 => " (somebody asked it to end)",
        _ => "",
    }
}

/// SIGKILL that was not ours, where no control group could tell: nearly always memory.
fn suspicious(status: Option<ExitStatus>, ours: bool, fence: &Fence) -> bool {
    !ours && fence.own_limit().is_some() && status.and_then(|status| status.signal()) == Some(9)
}

/// The memory of a process and its descendants, shared pages by share.
fn resident(process: u32) -> Option<ByteSize> {
    let mut waiting = vec![process];
    let (mut sum, mut seen) = (0, 0);
    while let Some(process) = waiting.pop() {
        seen += 1;
        let folder = PathBuf::from(format!("/proc/{process}"));
        sum += pss(&folder).unwrap_or(0);
        // A model with more processes than this is counted in part.
        if seen < 256 {
            let children = fs_err::read_to_string(folder.join(format!("task/{process}/children"))).unwrap_or_default();
            waiting.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    (sum > 0).then_some(ByteSize(sum << 10))
}

fn pss(folder: &std::path::Path) -> Option<u64> {
    let text = fs_err::read_to_string(folder.join("smaps_rollup")).ok();
    let pss =
        text.as_deref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("Pss:")).map(str::to_owned));
    let line = pss.or_else(|| {
        let text = fs_err::read_to_string(folder.join("status")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("VmRSS:")).map(str::to_owned)
    })?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}
