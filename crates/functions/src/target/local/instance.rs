//! One process of a function: started, asked over its Unix socket, ended.
//!
//! Its standard input is a socket that ends when this process does, however that happens: it ends then, too.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::net::UnixStream as Input,
    },
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use berth_sandbox::User;
use berth_spec::{ByteSize, network::Destination};
use berth_worker::cgroup::{Cgroup, Limits};
use bytes::Bytes;
use rustix::{
    fs::{Mode, OFlags, open, openat},
    process::{Pid, Signal, kill_process_group},
};
use tokio::{io::AsyncReadExt as _, net::UnixStream, process::Child};
use tokio_util::task::AbortOnDropHandle;

use super::{
    egress::{self, Function},
    exchange::{CallError, HEALTH, exchange},
    isolator::{Confined, NetworkAccess, Program},
    version::Launcher,
};
use crate::{
    build::{BuildLog, Manifest, PYTHON_VERSION, fenced, find_node},
    deployment::Language,
};

/// Program of Python functions.
const PYTHON_HOST: &str = concat!(include_str!("../../host/convention.py"), include_str!("../../host/host.py"));

/// Program of JavaScript functions.
const NODE_HOST: &str = concat!(
    include_str!("../../host/core.cjs"),
    include_str!("../../host/convention.js"),
    include_str!("../../host/host.cjs")
);

/// Processes and threads of a function: Node.js and Python take some ten each, and a fork bomb ends here.
const PROCESSES: u32 = 256;

/// Beginning of the names of folders with a socket.
const FOLDER: &str = "berth-function-";

/// Socket of a function, in its folder.
const SOCKET: &str = "s";

/// The age at which a folder without a socket is nobody's: a start takes less.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// The longest time in which a sandbox is made: milliseconds, and seconds on a machine that does a hundred other things.
const SANDBOX_WITHIN: Duration = Duration::from_secs(30);

/// The longest answer to that: a process with all its cores busy answers late.
const HEALTH_LIMIT: Duration = Duration::from_secs(5);

/// Interval at which a start is looked at: a cold request waits no longer than it has to.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

pub(super) struct Start<'a> {
    /// The key of the function.
    pub(super) key: &'a str,
    pub(super) manifest: &'a Manifest,
    pub(super) app: &'a Path,
    pub(super) env: &'a BTreeMap<String, String>,
    pub(super) hosts: &'a [Destination],
    pub(super) memory_mib: u64,
    pub(super) limit: Duration,
}

/// A running process.
#[derive(Debug)]
pub(super) struct Instance {
    child: Mutex<Child>,
    group: Option<Pid>,
    limits: Cgroup,
    /// Its socket, once that is there. A function may put another file in its place: what that leads to is not asked.
    socket: OnceLock<OwnedFd>,
    /// The folder that it writes, with its socket: `folder`, or one in memory, which takes its place once the sandbox is made.
    own: OwnedFd,
    /// Folder of the host program.
    folder: PathBuf,
    input: Input,
    /// Readers of its output, and its way to the hosts of its spec.
    tasks: Vec<AbortOnDropHandle<()>>,
    _user: Option<User>,
}

impl Instance {
    /// Starts a process and waits until it is ready.
    pub(super) async fn start(start: Start<'_>, launcher: &Launcher, log: Arc<BuildLog>) -> Result<Self, String> {
        let folder = private_folder().map_err(|error| error.to_string())?;
        let guard = Folder(folder.clone());
        let variables = launcher.toolchain.environment();
        let (program, host, text) = match start.manifest.language {
            Language::Python => {
                let version = start.manifest.version.as_deref().unwrap_or(PYTHON_VERSION);
                let python = launcher.toolchain.python(version).await.map_err(|fault| fault.message)?;
                (python, "host.py", PYTHON_HOST)
            }
            Language::JavaScript => {
                let (node, _) =
                    find_node(&variables, start.manifest.version.as_deref()).await.map_err(|error| error.text())?;
                (node, "host.cjs", NODE_HOST)
            }
        };
        let host = folder.join(host);
        fs_err::write(&host, text).map_err(|error| error.to_string())?;
        let memory = ByteSize::mib(start.memory_mib);
        let limits = fenced(&launcher.parents, Limits { memory: Some(memory), cpus: None, processes: PROCESSES });
        let is_python = start.manifest.language == Language::Python;
        let confined = Program {
            path: &program,
            app: start.app,
            folder: &folder,
            hosts: start.hosts,
            variables: &variables,
            group: &limits,
            memory,
            // Node.js reserves far more than it uses, and hangs where it may not.
            data: limits.own_limit().filter(|_| is_python),
        };
        let own = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let own = open(&folder, own, Mode::empty()).map_err(|error| error.to_string())?;
        let Confined { mut command, network, user, in_memory } = launcher.isolator.command(confined).await?;
        if is_python {
            command.args(["-s", "-B", "-u"]);
        }
        command.arg(&host).arg(start.app).args([&start.manifest.module, &start.manifest.function]);
        command.arg(folder.join(SOCKET)).envs(environment(variables, network, &start, &folder));
        let (input, theirs) = Input::pair().map_err(|error| error.to_string())?;
        command.stdin(Stdio::from(OwnedFd::from(theirs)));
        let mut child = command.spawn().map_err(|error| format!("cannot run {}: {error}", program.display()))?;
        // It holds a copy of the process's end.
        drop(command);
        let readers = [follow(child.stdout.take(), &log), follow(child.stderr.take(), &log)];
        let mut instance = Self {
            group: child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)),
            child: Mutex::new(child),
            limits,
            socket: OnceLock::new(),
            own,
            folder: guard.taken(),
            input,
            tasks: readers.into_iter().flatten().collect(),
            _user: user,
        };
        if network == NetworkAccess::Hosts {
            let function =
                Function { key: start.key.to_owned(), metrics: Arc::clone(&launcher.metrics), log: Arc::clone(&log) };
            instance.open_way(start.hosts, launcher.isolator.own_ports(), function).await?;
        }
        if in_memory {
            instance.take_folder().await?;
        }
        instance.ready(start.limit, &log).await?;
        Ok(instance)
    }

    /// Lets it reach hosts.
    async fn open_way(&mut self, hosts: &[Destination], own_ports: Vec<u16>, function: Function) -> Result<(), String> {
        match self.received(berth_sandbox::receive).await {
            Ok(listener) => {
                self.tasks.push(egress::serve(listener, hosts, own_ports, function));
                Ok(())
            }
            // It has ended, and its last words say why.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            Err(error) => Err(format!("it has no way to the hosts of spec.network: {error}")),
        }
    }

    /// Takes the folder that its sandbox has made in memory, with copies of the files in ours, which is of no more use.
    async fn take_folder(&mut self) -> Result<(), String> {
        match self.received(berth_sandbox::receive_folder).await {
            Ok(own) => {
                self.own = own;
                let _ = std::fs::remove_dir_all(&self.folder);
                Ok(())
            }
            // It has ended, and its last words say why.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            Err(error) => Err(format!("its sandbox has sent no folder: {error}")),
        }
    }

    /// Takes what the sandbox sends over its standard input.
    async fn received<T: Send + 'static>(&self, receive: fn(&Input) -> io::Result<T>) -> io::Result<T> {
        let from = self.input.try_clone()?;
        from.set_read_timeout(Some(SANDBOX_WITHIN))?;
        tokio::task::spawn_blocking(move || receive(&from)).await.map_err(io::Error::other)?
    }

    /// The path of its socket for this process.
    fn address(&self) -> io::Result<PathBuf> {
        let socket = match self.socket.get() {
            Some(socket) => socket,
            None => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let found = openat(&self.own, SOCKET, flags, Mode::empty())?;
                self.socket.get_or_init(|| found)
            }
        };
        Ok(format!("/proc/self/fd/{}", socket.as_raw_fd()).into())
    }

    /// Waits until it answers.
    async fn ready(&self, limit: Duration, log: &BuildLog) -> Result<(), String> {
        let end = Instant::now() + limit;
        loop {
            if self.address().is_ok() && self.is_healthy().await {
                return Ok(());
            }
            if !self.is_alive() {
                // Its last words may be on their way.
                tokio::time::sleep(POLL_INTERVAL).await;
                let why = if self.limits.ran_out_of_memory() { "out of memory (spec.limits.memoryMiB): " } else { "" };
                return Err(format!("its process ended: {why}{}", last_words(&log.tail())));
            }
            if Instant::now() >= end {
                return Err(format!("its process was not ready within {} s", limit.as_secs()));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// True if its host program answers in time. It does so beside any request.
    pub(super) async fn is_healthy(&self) -> bool {
        let Ok(request) = http::Request::get(HEALTH).body(Bytes::new()) else { return false };
        let answered = tokio::time::timeout(HEALTH_LIMIT, self.call(request)).await;
        matches!(answered, Ok(Ok(answer)) if answer.status().is_success())
    }

    pub(super) fn is_alive(&self) -> bool {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(child.try_wait(), Ok(None))
    }

    /// One request over a connection of its own: on a Unix socket that costs microseconds, and none is broken when it is
    /// needed.
    pub(super) async fn call(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>, CallError> {
        let connected = match self.address() {
            Ok(address) => UnixStream::connect(address).await,
            Err(error) => Err(error),
        };
        let answered = match connected {
            Ok(stream) => exchange(stream, request).await,
            Err(error) => Err(CallError::Gone(error.to_string())),
        };
        answered.map_err(|error| match error {
            CallError::Gone(why) if self.limits.ran_out_of_memory() => CallError::Gone(format!("{why}, out of memory")),
            error => error,
        })
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            // Nobody is left in it where all have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The last lines that say something.
fn last_words(tail: &str) -> String {
    let lines: Vec<&str> = tail.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let error = lines.iter().rposition(|line| line.contains("Error") || line.contains("error:"));
    let from = error.unwrap_or(lines.len().saturating_sub(1)).min(lines.len());
    let words: String = lines[from..].iter().take(2).copied().collect::<Vec<_>>().join(" ").chars().take(500).collect();
    match place_of_mistake(&lines[..from], &words) {
        Some(place) => format!("{words} ({place})"),
        None => words,
    }
}

/// `handler.py, line 3` of code that Python cannot read: its message alone does not say where.
fn place_of_mistake(before: &[&str], words: &str) -> Option<String> {
    if !["SyntaxError", "IndentationError", "TabError"].iter().any(|kind| words.starts_with(kind)) {
        return None;
    }
    let line = before.iter().rev().find_map(|line| line.strip_prefix("File \""))?;
    let (path, rest) = line.split_once("\", line ")?;
    let number = rest.split(',').next()?;
    let file = path.rsplit_once("/app/").map_or(path, |(_, file)| file);
    Some(format!("{file}, line {number}"))
}

fn environment(
    variables: Vec<(OsString, OsString)>,
    network: NetworkAccess,
    start: &Start<'_>,
    home: &Path,
) -> Vec<(OsString, OsString)> {
    let mut environment = match network {
        NetworkAccess::Machine => variables,
        NetworkAccess::Closed => egress::environment(variables, &[]),
        NetworkAccess::Hosts => egress::environment(variables, start.hosts),
    };
    environment.extend(start.env.iter().map(|(name, value)| (name.into(), value.into())));
    environment.extend([
        ("HOME".into(), home.into()),
        ("BERTH_FUNCTION".into(), (&start.manifest.name).into()),
        ("PYTHONDONTWRITEBYTECODE".into(), "1".into()),
        ("TF_CPP_MIN_LOG_LEVEL".into(), "2".into()),
    ]);
    environment
}

fn follow(
    pipe: Option<impl tokio::io::AsyncRead + Unpin + Send + 'static>,
    log: &Arc<BuildLog>,
) -> Option<AbortOnDropHandle<()>> {
    let (mut pipe, log) = (pipe?, Arc::clone(log));
    let read = async move {
        let mut buffer = vec![0; 8 << 10];
        while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
            log.add(&buffer[..read]);
        }
    };
    Some(AbortOnDropHandle::new(tokio::runtime::Handle::current().spawn(read)))
}

/// A folder that only we can look into, with a path short enough for a socket.
fn private_folder() -> io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt as _;
    let name = format!("{FOLDER}{:016x}", rand::random::<u64>());
    let folder = std::env::temp_dir().join(name);
    std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
    Ok(folder)
}

/// Removes the folders of processes that were killed. Blocks.
pub(super) fn clear_left_behind() {
    clear(&std::env::temp_dir());
}

/// The folder of temporary files may be shared with other containers, where numbers of processes mean nothing: a folder is in
/// use while something listens on its socket.
fn clear(parent: &Path) {
    for entry in fs_err::read_dir(parent).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(FOLDER);
        if !ours || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let folder = entry.path();
        let is_left = match std::os::unix::net::UnixStream::connect(folder.join(SOCKET)) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => age(&folder).is_some_and(|age| age > FORGOTTEN),
            // Another user's stays.
            _ => false,
        };
        if is_left {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

fn age(folder: &Path) -> Option<Duration> {
    fs_err::metadata(folder).ok()?.modified().ok()?.elapsed().ok()
}

/// Removes a folder unless it is taken.
struct Folder(PathBuf);

impl Folder {
    fn taken(mut self) -> PathBuf {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn the_last_words_say_where_python_stumbled() {
        let trace = "Traceback (most recent call last):\n  File \"/tmp/berth-function-1/host.py\", line 9, in <module>\n    main()\n  \
                     File \"/d/run/words-7-0/app/handler.py\", line 3\n    def predict(body)\n                     ^\n\
                     SyntaxError: expected ':'\n";
        assert_eq!(last_words(trace), "SyntaxError: expected ':' (handler.py, line 3)");
        assert_eq!(last_words("a\nValueError: no\n"), "ValueError: no");
        assert_eq!(last_words("one\ntwo\n"), "two");
        assert_eq!(last_words(""), "");
    }

    #[test]
    fn folders_are_cleared_where_nothing_listens() {
        let parent = tempfile::tempdir().expect("a folder");
        let make = |name: &str| {
            let folder = parent.path().join(name);
            fs_err::create_dir(&folder).expect("made");
            folder
        };
        let (used, left, starts, other) =
            (make("berth-function-1"), make("berth-function-2"), make("berth-function-3"), make("x"));
        let _listener = UnixListener::bind(used.join(SOCKET)).expect("bound");
        drop(UnixListener::bind(left.join(SOCKET)).expect("bound"));
        clear(parent.path());
        assert_eq!([used, left, starts, other].map(|folder| folder.exists()), [true, false, true, true]);
    }
}
