//! One process of a model: started, spoken to, ended.
//!
//! Its standard input is the line (a socket); it has no name on disk and nobody else can find it. It is started by the
//! thread that supervises it, because the kernel ties its life to that very thread (`PR_SET_PDEATHSIG`).

use std::{
    io::{self, BufReader, Write as _},
    net::Shutdown,
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt as _},
    },
    path::PathBuf,
    process::{Child, ExitStatus, Stdio},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use berth_spec::ByteSize;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio_util::sync::DropGuard;

use super::{
    egress,
    ended::Ended,
    footprint::ProcessMemory,
    frame::{self, Frame, Kind},
    frame_writer::FrameWriter,
    log_reader::{self, Tail},
    message,
    plan::Plan,
};
use crate::{
    cgroup::{Cgroup, Limits},
    runtime::metrics::ModelMetrics,
    time_slice,
};

/// The wait of a write before it checks that the reader is still there: a stop takes effect soon during a large
/// request.
const WRITE_PATIENCE: Duration = Duration::from_millis(250);

/// The time that a process has to end by itself, and then after a signal: a model can write something at its end, and
/// one that ignores both does not hold up its unloading.
const GRACE: Duration = Duration::from_secs(2);

/// The longest time in which a sandbox is made: milliseconds, and seconds on a machine that does a hundred other things.
const LISTENER_WITHIN: Duration = Duration::from_secs(30);

/// Processes and threads of one model: with all its pools it has fewer than a hundred on most machines, and a fork bomb any
/// number.
const PROCESSES: u32 = 1024;

/// The bytes that are read ahead: answers of most runs fit.
const READ_AHEAD: usize = 32 << 10;

/// A running process with the socket to it, the threads that read from it, and its control group. Killed if it still runs when
/// dropped.
pub(in crate::runtime) struct Process {
    child: Child,
    memory: ProcessMemory,
    line: Arc<UnixStream>,
    cgroup: Cgroup,
    pub(in crate::runtime) tail: Tail,
    reader: Option<JoinHandle<()>>,
    noise: Option<JoinHandle<()>>,
    scratch: PathBuf,
    /// Ends its way to the hosts that are declared for it.
    egress: Option<DropGuard>,
    /// True once it was waited for: its number may be another process's by now.
    reaped: bool,
}

impl Process {
    /// Starts it, tells it what to load, and hands every frame that it sends to `on_frame`, which gets `None` at the end.
    pub(in crate::runtime) fn start(
        plan: &Arc<Plan>,
        metrics: &Arc<ModelMetrics>,
        on_frame: impl FnMut(Option<Frame>) + Send + 'static,
    ) -> io::Result<Self> {
        let limits = Limits { memory: plan.bounds.memory, cpus: plan.bounds.cpus, processes: PROCESSES };
        let (cgroup, undone) = Cgroup::raise(&plan.processes.parents, limits);
        if let Some(why) = undone {
            tracing::warn!(event = "model_not_fenced", deployment_id = %plan.deployment, why);
        }
        let scratch = plan.scratch()?;
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_write_timeout(Some(WRITE_PATIENCE))?;
        let (output, print) = io::pipe()?;
        let command = plan.processes.isolator.command(plan, &scratch, &cgroup);
        let mut command = command.inspect_err(|_| remove(&scratch))?;
        command.current_dir(&scratch).process_group(0);
        command.env_clear().envs(plan.program.environment(&scratch));
        let hosts = &plan.confinement.hosts;
        if !hosts.is_empty() {
            command.envs(egress::environment());
        }
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(print.try_clone()?).stderr(print);
        let child = command.spawn();
        // It holds copies of the process's ends.
        drop(command);
        let child = child.inspect_err(|_| remove(&scratch))?;
        let (memory, line, tail) = (ProcessMemory::of(child.id()), Arc::new(ours), Tail::default());
        let mut process =
            Self { child, memory, line, cgroup, tail, reader: None, noise: None, scratch, egress: None, reaped: false };
        process.noise = Some(log_reader::listen(output, plan.deployment.clone(), process.tail.clone())?);
        if !hosts.is_empty() {
            process.egress = process.open_egress(plan, metrics)?;
        }
        let from = process.line.try_clone()?;
        let reader = std::thread::Builder::new().name("berth-model-line".to_owned());
        let read = move || {
            time_slice::shorten();
            read(from, on_frame);
        };
        process.reader = Some(reader.spawn(read)?);
        match process.tell_what_to_load(plan) {
            // It has ended already: its last words say why.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(process),
            told => told.map(|()| process),
        }
    }

    /// Takes the listener of its network, and serves it. `None`: the process has ended, which its reader sees.
    fn open_egress(&self, plan: &Plan, metrics: &Arc<ModelMetrics>) -> io::Result<Option<DropGuard>> {
        self.line.set_read_timeout(Some(LISTENER_WITHIN))?;
        let listener = berth_sandbox::receive(&self.line);
        self.line.set_read_timeout(None)?;
        match listener {
            Ok(listener) => {
                plan.processes.egress()?.open(listener, &plan.confinement.hosts, Arc::clone(metrics)).map(Some)
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn tell_what_to_load(&mut self, plan: &Plan) -> io::Result<()> {
        let cgroups: Vec<String> = self.cgroup.groups().iter().map(|path| path.display().to_string()).collect();
        let mut limits = message::Limits::default();
        if !plan.processes.isolator.launches(&plan.confinement) {
            limits.parent = Some(std::process::id());
            limits.cgroups = cgroups.iter().map(String::as_str).collect();
            limits.data = self.cgroup.own_limit().map(|limit| limit.0);
        }
        let head = plan.program.load(limits)?;
        self.send(Kind::Load, &head, &[], || true)
    }

    /// Sends a frame; `wanted` says now and then whether it still has to go.
    pub(in crate::runtime) fn send(
        &mut self,
        kind: Kind,
        head: &[u8],
        body: &[&[u8]],
        wanted: impl Fn() -> bool,
    ) -> io::Result<()> {
        if let Some(frame) = frame::in_one_piece(kind, head, body) {
            return self.write(&frame, &wanted);
        }
        let length = body.iter().map(|part| part.len()).sum();
        let first = [&frame::prefix(kind, head.len(), length)[..], head].concat();
        self.write(&first, &wanted)?;
        body.iter().try_for_each(|part| self.write(part, &wanted))
    }

    /// The writing end of its line, for the runs.
    pub(in crate::runtime) fn frame_writer(&self) -> FrameWriter {
        FrameWriter::new(Arc::clone(&self.line))
    }

    /// Tells it that nobody waits for a run any more.
    pub(in crate::runtime) fn stop(&mut self, run: u64, wanted: impl Fn() -> bool) -> io::Result<()> {
        self.send(Kind::Stop, &serde_json::to_vec(&message::StopRun { run })?, &[], wanted)
    }

    /// Writes the bytes of frames; `wanted` says now and then whether they still have to go.
    pub(super) fn write(&mut self, mut bytes: &[u8], wanted: &impl Fn() -> bool) -> io::Result<()> {
        while !bytes.is_empty() {
            match (&*self.line).write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && wanted() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Measures the memory of the process and of those that it started; `None` where it cannot be seen. The larger of
    /// two words: a group does not count what the process had before it joined, and its pages do not say what the
    /// kernel holds for it.
    pub(in crate::runtime) fn measure(&mut self) -> Option<ByteSize> {
        self.cgroup.memory().max(self.memory.measure(Instant::now()))
    }

    /// The same in microseconds, a little behind at times.
    pub(in crate::runtime) fn memory(&mut self) -> Option<ByteSize> {
        self.cgroup.memory().max(self.memory.refresh(Instant::now()))
    }

    /// True if it has ended already.
    pub(in crate::runtime) fn has_ended(&mut self) -> bool {
        self.reaped |= matches!(self.child.try_wait(), Ok(Some(_)) | Err(_));
        self.reaped
    }

    /// Asks it to end, then makes it. `polite`: it may be asked at all.
    pub(in crate::runtime) fn end(mut self, polite: bool) -> Ended {
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
        self.cgroup.kill();
        let status = status.or_else(|| self.child.wait().ok());
        self.reaped = true;
        let _ = self.line.shutdown(Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            // It catches what it throws.
            let _ = reader.join();
        }
        drop(self.egress.take());
        self.last_words();
        Ended::of(status, ours, &self.cgroup, self.tail.text())
    }

    fn last_words(&mut self) {
        let Some(noise) = self.noise.take() else { return };
        let until = Instant::now() + log_reader::LAST_WORDS;
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
            self.cgroup.kill();
            let _ = self.child.wait();
        }
        let _ = self.line.shutdown(Shutdown::Both);
        remove(&self.scratch);
    }
}

fn read(from: UnixStream, mut on_frame: impl FnMut(Option<Frame>)) {
    // The usual frame in one read.
    let mut from = BufReader::with_capacity(READ_AHEAD, from);
    loop {
        match frame::read(&mut from) {
            Ok(frame) => on_frame(Some(frame)),
            Err(error) => {
                if !matches!(error, frame::Broken::Closed) {
                    tracing::warn!(event = "model_line_broke", %error);
                    // Whatever it is doing, it no longer speaks our language: it will see that the line is closed.
                    let _ = from.get_ref().shutdown(Shutdown::Both);
                }
                return on_frame(None);
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
