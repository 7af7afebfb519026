//! A runtime's own process: started, restarted when it dies, ended with the worker. Its output goes to a bounded file.
//!
//! ```text
//! start ─▶ running ─died, or it hangs: SIGKILL─▶ waits (0.5 s, doubled up to 30 s) ─▶ start …
//!             └─ the runtime is dropped ─▶ SIGTERM, some seconds, SIGKILL: its whole process group
//! ```
//! One thread per runtime starts it and looks after it, because the launcher ties the process to the thread. That its models are
//! gone after a restart is seen by their requests.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io::{self, BufReader, Read, Write as _},
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use berth_sandbox::{Isolation, Launcher, Network, Sandbox};
use berth_spec::Gpu;
use fs_err as fs;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::runtime::process::{
    backoff::Backoff,
    log_reader::{Tail, next_line},
};

/// The interval at which a process is looked at: nobody waits longer to hear of its end, and a look costs nothing.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The time that a process has to end after SIGTERM: models are unloaded before that.
const GRACE: Duration = Duration::from_secs(10);

/// The most bytes of a file of output. There are two: the one that is written and the one before. The 64 logs that are kept of models
/// that have ended take 1 GiB at most.
const LONGEST_LOG: u64 = 8 << 20;

/// The variable that names the GPUs which a process sees.
const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// Variables of the worker that every program gets: where things are, and no credentials.
const INHERITED: [&str; 8] =
    ["PATH", "HOME", "LANG", "TMPDIR", "TZ", "LD_LIBRARY_PATH", VISIBLE_DEVICES, "NVIDIA_VISIBLE_DEVICES"];

/// The program of a model server, as an operator declares it. The worker starts it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Program {
    /// The executable and its arguments; no shell reads them.
    pub command: Vec<String>,
    /// Its environment, beside the worker's PATH, HOME and the like.
    pub environment: BTreeMap<String, String>,
    /// The folder that it runs in; `None`: the worker's.
    pub folder: Option<PathBuf>,
    /// The file for its standard output and error, which is rotated. Its folder is made.
    pub log: PathBuf,
    /// The launcher that confines processes; `None`: it is started as it is.
    pub launcher: Option<PathBuf>,
}

impl Program {
    /// Shows the program all GPUs of its worker: one process holds many models, and each of them may be given any
    /// device. A declared environment counts more, and so does the worker's own, which may name some of the devices.
    #[must_use]
    pub(crate) fn with_gpus(self, gpus: &[Gpu]) -> Self {
        self.seeing(gpus, std::env::var_os(VISIBLE_DEVICES).as_deref())
    }

    /// The same, with the variable of the worker itself.
    fn seeing(mut self, gpus: &[Gpu], own: Option<&OsStr>) -> Self {
        if own.is_none() && !gpus.is_empty() {
            let ids: Vec<&str> = gpus.iter().map(|gpu| gpu.id.as_str()).collect();
            self.environment.entry(VISIBLE_DEVICES.to_owned()).or_insert_with(|| ids.join(","));
        }
        self
    }
}

/// The owner of a running program. It ends with this.
pub(super) struct Supervisor {
    /// A word has the program start again, and the end of this ends it.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    tail: Tail,
    deaths: Arc<AtomicU32>,
}

impl Supervisor {
    /// Starts the program.
    ///
    /// # Errors
    /// If it cannot be started at all.
    pub(super) fn start(name: &str, program: Program) -> io::Result<Self> {
        if let Some(folder) = program.log.parent() {
            fs::create_dir_all(folder)?;
        }
        let launcher = program.launcher.as_ref().map(Launcher::find).transpose()?;
        let tail = Tail::default();
        let (stop, stopped) = mpsc::channel();
        let (started, word) = mpsc::channel();
        let (name, output, deaths) = (name.to_owned(), tail.clone(), Arc::<AtomicU32>::default());
        let counted = Arc::clone(&deaths);
        let thread = std::thread::Builder::new().name(format!("runtime-{name}-process"));
        let thread = thread.spawn(move || {
            let watcher = Watcher { name, program, launcher, tail: output, deaths: counted };
            watcher.run(&stopped, &started);
        })?;
        let supervisor = Self { stop: Some(stop), thread: Some(thread), tail, deaths };
        word.recv().map_err(|_| io::Error::other("its thread ended"))??;
        Ok(supervisor)
    }

    /// The number of times that it ended by itself.
    pub(super) fn deaths(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.deaths)
    }

    /// Ends a program that hangs, so that it is started again.
    pub(super) fn restart(&self) {
        if let Some(stop) = &self.stop {
            // Its thread ends with this.
            let _ = stop.send(());
        }
    }

    /// The last lines that it wrote.
    pub(super) fn last_words(&self) -> String {
        self.tail.text()
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It ends within the grace.
            let _ = thread.join();
        }
    }
}

struct Watcher {
    name: String,
    program: Program,
    launcher: Option<Launcher>,
    tail: Tail,
    deaths: Arc<AtomicU32>,
}

impl Watcher {
    fn run(&self, stopped: &Receiver<()>, started: &Sender<io::Result<()>>) {
        let mut backoff = Backoff::default();
        let mut first = Some(started);
        loop {
            let began = Instant::now();
            let how = match self.spawn() {
                Ok(mut child) => {
                    tracing::info!(event = "runtime_started", runtime = self.name, pid = child.id());
                    tell(first.take(), Ok(()));
                    let Some(status) = self.ended(&mut child, stopped) else { return };
                    // What it started must not hold its port.
                    signal(&child, Signal::KILL);
                    described(status)
                }
                Err(error) if first.is_some() => return tell(first.take(), Err(error)),
                Err(error) => error.to_string(),
            };
            self.deaths.fetch_add(1, Relaxed);
            let pause = backoff.after(began.elapsed());
            tracing::warn!(
                event = "runtime_died",
                runtime = self.name,
                how,
                again_in_ms = pause.as_millis(),
                log = %self.program.log.display(),
            );
            if stopped.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    }

    /// Waits for the end of the process; `None`: it was told to end.
    fn ended(&self, child: &mut Child, stopped: &Receiver<()>) -> Option<ExitStatus> {
        loop {
            match stopped.recv_timeout(POLL_INTERVAL) {
                Ok(()) => signal(child, Signal::KILL),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.end(child);
                    return None;
                }
            }
            if let Ok(Some(status)) = child.try_wait() {
                return Some(status);
            }
        }
    }

    fn end(&self, child: &mut Child) {
        signal(child, Signal::TERM);
        let until = Instant::now() + GRACE;
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        signal(child, Signal::KILL);
        let status = child.wait().map_or_else(|error| error.to_string(), described);
        tracing::info!(event = "runtime_stopped", runtime = self.name, status);
    }

    fn spawn(&self) -> io::Result<Child> {
        let Program { command: words, environment, folder, log, .. } = &self.program;
        let (program, arguments) = words.split_first().ok_or_else(|| io::Error::other("the command is empty"))?;
        let mut command = match &self.launcher {
            Some(launcher) => {
                let place = folder.clone().unwrap_or_else(|| PathBuf::from("/"));
                let sandbox = Sandbox {
                    isolation: Isolation::Process,
                    network: Network::Machine,
                    folder: place,
                    gpus: true,
                    ..Sandbox::default()
                };
                launcher.command(&sandbox, &found(program)?)?
            }
            None => Command::new(program),
        };
        let (output, print) = io::pipe()?;
        command.args(arguments).process_group(0);
        if let Some(folder) = folder {
            command.current_dir(folder);
        }
        command.env_clear();
        command.envs(INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?)))).envs(environment);
        command.stdin(Stdio::null()).stdout(print.try_clone()?).stderr(print);
        let child = command.spawn()?;
        // It holds copies of the process's end of the pipe.
        drop(command);
        let (log, tail) = (log.clone(), self.tail.clone());
        let reader = std::thread::Builder::new().name(format!("runtime-{}-output", self.name));
        // It ends when nobody can write any more.
        drop(reader.spawn(move || keep(output, &log, &tail))?);
        Ok(child)
    }
}

fn tell(started: Option<&Sender<io::Result<()>>>, how: io::Result<()>) {
    if let Some(started) = started {
        // Whoever started it waits for this word.
        let _ = started.send(how);
    }
}

/// The file of a program that is named as in a shell.
fn found(program: &str) -> io::Result<PathBuf> {
    if program.contains('/') {
        return Ok(PathBuf::from(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = std::env::split_paths(&path).map(|folder| folder.join(program));
    all.find(|file| file.is_file())
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("there is no program {program:?} in the PATH")))
}

fn signal(child: &Child, signal: Signal) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // There may be nobody left.
        let _ = kill_process_group(group, signal);
    }
}

fn described(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "it ended".to_owned(),
    }
}

/// Copies output into the file, within its bounds, and keeps the last lines.
fn keep(output: impl Read, path: &Path, tail: &Tail) {
    let mut output = BufReader::new(output);
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path).ok();
    while let Some(line) = next_line(&mut output) {
        let long = file.as_ref().and_then(|file| file.metadata().ok()).is_some_and(|about| about.len() > LONGEST_LOG);
        if long {
            // A full disk must not stop the runtime: then its output is lost.
            let _ = fs::rename(path, path.with_extension("log.1"));
            file = fs::OpenOptions::new().create(true).append(true).open(path).ok();
        }
        if let Some(file) = &mut file {
            let _ = writeln!(file, "{line}");
        }
        tail.push(line);
    }
}

#[cfg(test)]
mod tests {
    use berth_spec::ByteSize;

    use super::*;

    fn shell(log: &Path, script: &str) -> Program {
        let command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        let environment = [("WORD".to_owned(), "hello".to_owned())].into();
        Program { command, environment, log: log.to_owned(), ..Program::default() }
    }

    fn until(mut done: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !done() {
            assert!(Instant::now() < end, "it did not happen");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_program_is_started_again_and_ends_with_its_owner() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("logs/one.log");
        let supervisor = Supervisor::start("one", shell(&log, "echo $WORD $$; exit 3")).expect("started");
        until(|| fs::read_to_string(&log).is_ok_and(|text| text.lines().count() >= 2));
        assert!(supervisor.last_words().contains("hello"));
        drop(supervisor);

        let lasting = Supervisor::start("two", shell(&log, "echo pid $$; sleep 600 & wait")).expect("started");
        let pid = || lasting.last_words().lines().find_map(|line| line.strip_prefix("pid ")?.parse::<i32>().ok());
        until(|| pid().is_some());
        let pid = pid().and_then(Pid::from_raw).expect("a number");
        drop(lasting);
        // Orphans are in the group until somebody has collected them.
        until(|| rustix::process::test_kill_process_group(pid).is_err());
    }

    #[test]
    fn a_program_that_hangs_is_ended_and_started_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        let supervisor = Supervisor::start("hangs", shell(&log, "echo up; kill -STOP $$")).expect("started");
        let starts = || fs::read_to_string(&log).map_or(0, |text| text.lines().count());
        until(|| starts() == 1);
        supervisor.restart();
        until(|| starts() == 2);
        // Its end need not wait until one that hangs has ended by itself.
        supervisor.restart();
    }

    #[test]
    fn a_program_sees_the_gpus_of_its_worker_unless_somebody_says() {
        let gpu = |id: &str| Gpu { id: id.to_owned(), kind: "nvidia-l4".to_owned(), memory: ByteSize::gib(24) };
        let both = [gpu("GPU-a"), gpu("GPU-b")];
        for (why, gpus, declared, own, expected) in [
            ("all of the worker's", &both[..], None, None, Some("GPU-a,GPU-b")),
            ("the operator chose", &both, Some("1"), None, Some("1")),
            ("the worker itself sees one, which is inherited", &both, None, Some("1"), None),
            ("none were found, which says nothing", &[], None, None, None),
        ] {
            let declared = declared.map(|value: &str| (VISIBLE_DEVICES.to_owned(), value.to_owned()));
            let program = Program { environment: declared.into_iter().collect(), ..Program::default() };
            let seeing = program.seeing(gpus, own.map(OsStr::new));
            assert_eq!(seeing.environment.get(VISIBLE_DEVICES).map(String::as_str), expected, "{why}");
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = Program {
            command: vec!["/nonexistent/server".to_owned()],
            log: folder.path().join("log"),
            ..Program::default()
        };
        assert!(Supervisor::start("none", program).is_err());
    }
}
