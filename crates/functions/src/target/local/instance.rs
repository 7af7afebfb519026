//! One process of a function: started, asked over its Unix socket, ended.
//!
//! Its standard input is a pipe that ends when this process does, however that happens: it ends then, too.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use berth_spec::ByteSize;
use berth_worker::cgroup::{Cgroup, Limits};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::AsyncReadExt as _,
    net::UnixStream,
    process::{Child, ChildStdin},
};
use tokio_util::task::AbortOnDropHandle;

use super::version::Launcher;
use crate::{
    build::{BuildLog, Manifest, PYTHON_VERSION, Reach, Walls, fenced, find_node},
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

/// The largest answer: it is held in memory until it is whole.
const LARGEST_ANSWER: usize = 64 << 20;

/// Processes and threads of a function: Node.js and Python take some ten each, and a fork bomb ends here.
const PROCESSES: u32 = 256;

/// Beginning of the names of folders with a socket.
const FOLDER: &str = "berth-function-";

/// Socket of a function, in its folder.
const SOCKET: &str = "s";

/// The age at which a folder without a socket is nobody's: a start takes less.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// Path at which the host programs answer for themselves.
const HEALTH: &str = "/.berth/health";

/// The longest answer to that: a process with all its cores busy answers late.
const HEALTH_LIMIT: Duration = Duration::from_secs(5);

/// Interval at which a start is looked at: a cold request waits no longer than it has to.
const LOOK: Duration = Duration::from_millis(10);

pub(super) struct Start<'a> {
    pub(super) manifest: &'a Manifest,
    pub(super) app: &'a Path,
    pub(super) env: &'a BTreeMap<String, String>,
    pub(super) memory_mib: u64,
    pub(super) limit: Duration,
}

/// Reason why a process gave no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("its process is gone ({0})")]
    Gone(String),
    #[error("its answer has more than {LARGEST_ANSWER} bytes")]
    TooLarge,
}

/// A running process.
#[derive(Debug)]
pub(super) struct Instance {
    child: Mutex<Child>,
    group: Option<Pid>,
    limits: Cgroup,
    socket: PathBuf,
    /// Folder of the socket and the host program.
    folder: PathBuf,
    _input: Option<ChildStdin>,
    _readers: Vec<AbortOnDropHandle<()>>,
}

impl Instance {
    /// Starts a process and waits until it is ready.
    pub(super) async fn start(start: Start<'_>, launcher: &Launcher, log: Arc<BuildLog>) -> Result<Self, String> {
        if let Some(refusal) = launcher.refusal() {
            return Err(refusal.to_owned());
        }
        let folder = private_folder().map_err(|error| error.to_string())?;
        let guard = Folder(folder.clone());
        let socket = folder.join(SOCKET);
        let (program, host, text) = match start.manifest.language {
            Language::Python => {
                let version = start.manifest.version.as_deref().unwrap_or(PYTHON_VERSION);
                let python = launcher.toolchain.python(version).await.map_err(|fault| fault.message)?;
                (python, "host.py", PYTHON_HOST)
            }
            Language::JavaScript => {
                let environment = launcher.toolchain.environment();
                let (node, _) =
                    find_node(&environment, start.manifest.version.as_deref()).await.map_err(|error| error.text())?;
                (node, "host.cjs", NODE_HOST)
            }
        };
        let host = folder.join(host);
        fs_err::write(&host, text).map_err(|error| error.to_string())?;
        let memory = Some(ByteSize::mib(start.memory_mib));
        let limits = fenced(&launcher.parents, Limits { memory, cpus: None, processes: PROCESSES });
        let readable = vec![start.app.to_owned()];
        let walls = Walls { readable, writable: vec![folder.clone()], reach: Reach::Machine, at: start.app };
        let mut command = launcher.bubblewrap.command(&program, &limits, None, walls);
        if start.manifest.language == Language::Python {
            command.args(["-s", "-B", "-u"]);
        }
        command.arg(&host).arg(start.app).args([&start.manifest.module, &start.manifest.function]).arg(&socket);
        command.envs(environment(launcher, &start, &folder)).stdin(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("cannot run {}: {error}", program.display()))?;
        let readers = [follow(child.stdout.take(), &log), follow(child.stderr.take(), &log)];
        let instance = Self {
            group: child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)),
            _input: child.stdin.take(),
            child: Mutex::new(child),
            limits,
            socket,
            folder: guard.taken(),
            _readers: readers.into_iter().flatten().collect(),
        };
        instance.ready(start.limit, &log).await?;
        Ok(instance)
    }

    /// Waits until it answers.
    async fn ready(&self, limit: Duration, log: &BuildLog) -> Result<(), String> {
        let end = Instant::now() + limit;
        loop {
            if self.socket.exists() && self.is_healthy().await {
                return Ok(());
            }
            if !self.is_alive() {
                // Its last words may be on their way.
                tokio::time::sleep(LOOK).await;
                let why = if self.limits.ran_out_of_memory() { "out of memory (spec.limits.memoryMiB): " } else { "" };
                return Err(format!("its process ended: {why}{}", last_words(&log.tail())));
            }
            if Instant::now() >= end {
                return Err(format!("its process was not ready within {} s", limit.as_secs()));
            }
            tokio::time::sleep(LOOK).await;
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
        let gone = |error: &dyn std::error::Error| {
            let memory = if self.limits.ran_out_of_memory() { ", out of memory" } else { "" };
            CallError::Gone(format!("{error}{memory}"))
        };
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| gone(&error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| gone(&error))?;
        let asked = async {
            let answer = sender.send_request(sent(request)).await.map_err(|error| gone(&error))?;
            let (mut head, body) = answer.into_parts();
            // They are of this connection, not of the client's.
            for name in ["connection", "keep-alive", "transfer-encoding", "upgrade"] {
                head.headers.remove(name);
            }
            let body = Limited::new(body, LARGEST_ANSWER).collect().await;
            let body = body.map_err(|error| match error.is::<LengthLimitError>() {
                true => CallError::TooLarge,
                false => gone(&*error),
            })?;
            Ok(http::Response::from_parts(head, body.to_bytes()))
        };
        tokio::pin!(asked);
        tokio::select! {
            answer = &mut asked => answer,
            // The connection may end before its answer is taken.
            _ = connection => asked.await,
        }
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

/// A request as a function sees it.
fn sent(request: http::Request<Bytes>) -> http::Request<Full<Bytes>> {
    let (mut head, body) = request.into_parts();
    let url = head.uri.to_string();
    if let Ok(url) = http::HeaderValue::from_str(&url) {
        head.headers.insert("x-berth-url", url);
    }
    for name in ["connection", "transfer-encoding", "content-length", "expect", "upgrade", "te", "keep-alive"] {
        head.headers.remove(name);
    }
    head.headers.insert(http::header::HOST, http::HeaderValue::from_static("function"));
    let path = if head.uri.path() == HEALTH { HEALTH } else { "/" };
    head.uri = http::Uri::from_static(path);
    head.version = http::Version::HTTP_11;
    http::Request::from_parts(head, Full::new(body))
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

fn environment(launcher: &Launcher, start: &Start<'_>, home: &Path) -> Vec<(OsString, OsString)> {
    let mut environment = launcher.toolchain.environment();
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
