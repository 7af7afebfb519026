//! Programs of strangers: bounded in time, memory, processes, files and output, in a group that ends as a whole, with nothing
//! of our environment; in a container where an image is set, else in bubblewrap where the machine has it.
//!
//! ```text
//! sh: joins the control groups, lowers its limits ──exec──▶ bwrap: read-only system, no network ──exec──▶ program
//! ```
//! A program that fetches packages has a network that leads to registries alone (`fetching`).

mod fetching;
mod walls;

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, OnceLock},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::Command,
};
use tracing::Instrument as _;

use berth_spec::ByteSize;
use berth_worker::{
    capacity::Capacity,
    cgroup::{Cgroup, CgroupParents, Limits},
};

pub(crate) use self::walls::{NetworkReach, Walls};
use self::{
    fetching::{FetchNetwork, RegistryProxy},
    walls::{SETTINGS, certificates},
};
use super::{
    BuildError, BuildLog,
    container::{Container, StepContainer},
    registries::Registries,
    size_of,
};

/// Memory of one step of a build, in MiB: a bundler of a large project takes one to two GiB.
pub(super) const MEMORY_MIB: u64 = 4_096;

/// Processes and threads of one step: bundlers and compilers start one for each core, and a fork bomb ends here.
pub(super) const PROCESSES: u32 = 512;

/// Processors of one step: bundlers start a thread for each that the machine has, and gain little beyond two.
const CPUS: f32 = 2.0;

/// The most bytes of a build's folder: the largest packages (PyTorch with CUDA) take about 5 GiB when they are
/// installed.
const DISK: u64 = 6 << 30;

/// Interval at which the folder is measured: a fast disk writes a few GiB in it, and the walk over many files takes a while.
const MEASURE: Duration = Duration::from_secs(5);

/// Joins the groups, lowers limits, and becomes the program. Arguments: the seconds of processor time that each process gets, or
/// nothing; the number of groups, their files, the program.
const SCRIPT: &str = r#"t=$1; n=$2; shift 2
while [ "$n" -gt 0 ]; do echo $$ > "$1" || exit 125; shift; n=$((n-1)); done
ulimit -c 0; ulimit -f 4194304; [ -z "$t" ] || ulimit -t "$t"
exec "$@""#;

/// Place where programs of strangers run.
#[derive(Debug)]
pub(super) struct Sandbox {
    bubblewrap: Arc<Bubblewrap>,
    parents: CgroupParents,
    /// Processors of one step.
    cpus: f32,
    /// Where there is one, steps of builds run in it.
    container: Option<Container>,
    /// The network of steps that fetch packages.
    fetching: FetchNetwork,
}

/// Control groups of a program of strangers. Bounds that this machine cannot give are left out, and the log says so.
pub(crate) fn fenced(parents: &CgroupParents, limits: Limits) -> Cgroup {
    let (group, undone) = Cgroup::raise(parents, limits);
    let Some(why) = undone else { return group };
    tracing::warn!(event = "function_not_fenced", why);
    if limits.cpus.is_none() {
        return group;
    }
    // A kernel without quotas has the other bounds all the same.
    drop(group);
    fenced(parents, Limits { cpus: None, ..limits })
}

/// Processors of one step on this machine: a control group may not have more than the one above it.
pub(super) fn cpus() -> f32 {
    Capacity::probe().cpus.min(CPUS)
}

/// The bubblewrap program, tried when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct Bubblewrap {
    found: Option<PathBuf>,
    works: OnceLock<bool>,
    /// Certificates that the environment names.
    certificates: Vec<PathBuf>,
    /// Berth's folder of data, which is hidden where it lies in a folder that programs see.
    data: Option<PathBuf>,
}

impl Bubblewrap {
    /// The program, where it works.
    pub(crate) fn program(&self) -> Option<&PathBuf> {
        let found = self.found.as_ref();
        let works = *self.works.get_or_init(|| {
            let works = found.is_some_and(|program| works(program));
            let isolation = if works { "bubblewrap" } else { "processes" };
            tracing::info!(event = "function_isolation", isolation, "isolation of builds and functions");
            works
        });
        found.filter(|_| works)
    }

    /// A program with no environment, in a process group and in control groups of its own, within walls where bubblewrap works.
    /// `cpu`: processor time of each of its processes.
    pub(crate) fn command(
        &self,
        program: &Path,
        group: &Cgroup,
        cpu: Option<Duration>,
        mut walls: Walls<'_>,
    ) -> Command {
        let doors: Vec<PathBuf> = group.groups().iter().map(|folder| folder.join("cgroup.procs")).collect();
        let mut command = Command::new("/bin/sh");
        let seconds = cpu.map(|cpu| cpu.as_secs().to_string()).unwrap_or_default();
        command.args(["-c", SCRIPT, "sh"]).arg(seconds).arg(doors.len().to_string()).args(&doors);
        command.args(walls.reach.around());
        if let Some(bubblewrap) = self.program() {
            walls.readable.extend(prefix_of(program));
            command.arg(bubblewrap).args(self.arguments(&walls));
        }
        command.arg(program).env_clear().current_dir(walls.at);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
        command
    }
}

/// Folder of the installation that a program belongs to: the parent of its `bin`. `None` for `/bin`, which programs see: its parent
/// is the whole machine.
pub(super) fn prefix_of(program: &Path) -> Option<PathBuf> {
    program.parent().and_then(Path::parent).filter(|prefix| prefix.parent().is_some()).map(Path::to_owned)
}

fn works(program: &Path) -> bool {
    let try_it = std::process::Command::new(program)
        .args(["--unshare-all", "--ro-bind", "/", "/", "--", "/bin/true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    try_it.is_ok_and(|status| status.success())
}

/// Network of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Network {
    None,
    /// Registries of packages, and no other host; that of the machine in a container, and where this machine cannot keep a program
    /// to registries.
    Registries,
    /// One of its own, from which nothing that listens on the machine's loopback is reached; in bubblewrap, which has none, that of
    /// the machine.
    Own,
}

/// A program with its arguments.
pub(super) struct StepCommand<'a> {
    /// Words for people: `npm ci`.
    pub(super) name: &'a str,
    pub(super) program: &'a Path,
    pub(super) arguments: Vec<OsString>,
}

/// One program.
pub(super) struct Step<'a> {
    /// Words for people: `npm ci`.
    pub(super) name: &'a str,
    /// Name of the function that is built.
    pub(super) function: &'a str,
    pub(super) program: &'a Path,
    /// Id of the image that the program was found in; `None`: this machine.
    pub(super) image: Option<&'a str>,
    pub(super) arguments: Vec<OsString>,
    pub(super) environment: Vec<(OsString, OsString)>,
    /// Folder of the build; the program may write here.
    pub(super) folder: &'a Path,
    /// Folder that it runs in.
    pub(super) at: &'a Path,
    /// Other folders that it may write.
    pub(super) writable: Vec<PathBuf>,
    /// Other folders that it may read.
    pub(super) readable: Vec<PathBuf>,
    pub(super) network: Network,
    pub(super) limit: Duration,
}

enum StepBounds<'a> {
    Group(Cgroup),
    Container(StepContainer<'a>),
}

impl StepBounds<'_> {
    /// Ends what may outlive the program that was started.
    async fn close(&mut self) {
        if let Self::Container(running) = self {
            running.remove().await;
        }
    }

    /// The error of a program that ended badly, where a bound or podman is the reason.
    fn error(&self, step: &Step<'_>, status: std::process::ExitStatus, said: &str) -> Option<BuildError> {
        match self {
            Self::Group(group) => group.ran_out_of_memory().then(|| {
                let message = format!("{} took more than {MEMORY_MIB} MiB of memory and was ended", step.name);
                BuildError::lasting("OutOfMemory", message)
            }),
            Self::Container(running) => running.error(step, status, said),
        }
    }
}

/// Makes a file anew where programs of strangers may have left a link, a pipe or a folder: what is there goes, and is not followed.
pub(super) fn fresh(path: &Path) -> io::Result<fs_err::File> {
    clear(path)?;
    // A link that is there is refused.
    fs_err::OpenOptions::new().write(true).create_new(true).open(path)
}

/// The same for a folder.
pub(super) fn fresh_folder(path: &Path) -> io::Result<()> {
    clear(path)?;
    fs_err::create_dir(path)
}

fn clear(path: &Path) -> io::Result<()> {
    match fs_err::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs_err::remove_dir_all(path),
        Ok(_) => fs_err::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Path of a program.
pub(super) fn on_path(environment: &[(OsString, OsString)], program: &str) -> Option<PathBuf> {
    let path = environment.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.clone()).unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Ends a process group.
struct EndsGroup(Option<Pid>);

impl Drop for EndsGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // Nobody is left in it where all have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Sandbox {
    /// Looks for control groups. `environment`: all of Berth's; `data`: Berth's folder of data; `launcher`: a program that makes
    /// networks; `registries`: those that steps get packages from.
    pub(super) fn find(
        environment: &[(OsString, OsString)],
        bubblewrap: Option<PathBuf>,
        launcher: Option<PathBuf>,
        container: Option<Container>,
        data: Option<&Path>,
        registries: Registries,
    ) -> Self {
        let bubblewrap = Bubblewrap {
            found: bubblewrap,
            works: OnceLock::new(),
            certificates: certificates(environment),
            data: data.map(Path::to_owned),
        };
        let fetching = FetchNetwork::new(launcher, registries);
        Self { bubblewrap: Arc::new(bubblewrap), parents: CgroupParents::find(), cpus: cpus(), container, fetching }
    }

    /// The container that steps run in.
    pub(super) fn container(&self) -> Option<&Container> {
        self.container.as_ref()
    }

    pub(super) fn bubblewrap(&self) -> &Arc<Bubblewrap> {
        &self.bubblewrap
    }

    pub(super) fn isolation(&self) -> &'static str {
        if self.container.is_some() {
            return "container";
        }
        if self.bubblewrap.program().is_some() { "bubblewrap" } else { "processes" }
    }

    /// Runs a step to its end; its output goes to the log.
    pub(super) async fn run(&self, step: Step<'_>, log: &BuildLog) -> Result<(), BuildError> {
        let span = tracing::info_span!("step", program = step.name);
        self.run_it(step, log).instrument(span).await
    }

    async fn run_it(&self, step: Step<'_>, log: &BuildLog) -> Result<(), BuildError> {
        log.line(&format!("$ {}", step.name));
        let (mut command, mut fence, mut proxy) = self.fence(&step, log).await?;
        command.args(&step.arguments).stdin(proxy.as_mut().map_or_else(Stdio::null, RegistryProxy::input));
        let start = |error| BuildError::passing("BuildFailed", format!("cannot start {}: {error}", step.name));
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                if let StepBounds::Container(running) = &mut fence {
                    running.not_begun();
                }
                return Err(start(error));
            }
        };
        // It holds a copy of the program's input, whose end is the end of the program.
        drop(command);
        let requests = proxy.as_ref().map(RegistryProxy::requests);
        let (out, errors) = (child.stdout.take(), child.stderr.take());
        let ends = EndsGroup(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
        let ended = async {
            let status = child.wait().await;
            // Processes that it left behind would hold its outputs open.
            drop(ends);
            status
        };
        let all = async { tokio::join!(ended, follow(out, log), follow(errors, log)) };
        let done = tokio::select! {
            done = tokio::time::timeout(step.limit, all) => done.map_err(|_| {
                BuildError::lasting("BuildTimeout", format!("{} did not end within {} s", step.name, step.limit.as_secs()))
            }),
            bytes = grows(step.folder) => {
                let message = format!("{} has written {bytes} bytes, more than {DISK}", step.name);
                Err(BuildError::lasting("TooLarge", message))
            }
            why = fetching::serve(proxy) => {
                Err(BuildError::passing("BuildFailed", format!("{} has no way to the registries: {why}", step.name)))
            }
        };
        let status = match done {
            Ok((status, ..)) => status.map_err(start)?,
            Err(error) => {
                // The folder goes with the error: nothing may write to it then.
                fence.close().await;
                return Err(error);
            }
        };
        if let StepBounds::Container(running) = &mut fence {
            running.ended(status).await;
        }
        let said = log.tail();
        // Also where it has succeeded: a package that may be missing was left out.
        requests.iter().flat_map(|requests| requests.refusals()).for_each(|refusal| log.line(&refusal));
        if status.success() {
            return Ok(());
        }
        Err(fence.error(&step, status, &said).unwrap_or_else(|| {
            let failed = refusal(&step, &status, &said);
            match requests {
                Some(requests) => requests.error(failed),
                None => failed,
            }
        }))
    }
}

impl Sandbox {
    /// The command of a step without its arguments, its bounds, and its way to registries.
    async fn fence(
        &self,
        step: &Step<'_>,
        log: &BuildLog,
    ) -> Result<(Command, StepBounds<'_>, Option<RegistryProxy>), BuildError> {
        if let Some(container) = &self.container {
            let network = container.network(step, log).await;
            let running = container.begin(step);
            return Ok((running.command(step, network)?, StepBounds::Container(running), None));
        }
        let memory = Some(ByteSize::mib(MEMORY_MIB));
        let group = fenced(&self.parents, Limits { memory, cpus: Some(self.cpus), processes: PROCESSES });
        let mut writable = step.writable.clone();
        writable.push(step.folder.to_owned());
        let mut readable = step.readable.clone();
        let reach = match step.network {
            Network::None => NetworkReach::Nothing,
            Network::Own => NetworkReach::Machine,
            Network::Registries => {
                readable.extend(SETTINGS.map(PathBuf::from));
                self.fetching.launch(&self.bubblewrap).await.map_or_else(
                    |why| {
                        log.line(&format!("this step reaches the whole network of the machine: {why}"));
                        NetworkReach::Machine
                    },
                    NetworkReach::Registries,
                )
            }
        };
        let walls = Walls { readable, writable, reach, at: step.at };
        // A process in a group with a quota takes no more than this. Where there is no quota, it is the bound.
        let cpu = step.limit.mul_f32(CPUS);
        let mut command = self.bubblewrap.command(step.program, &group, Some(cpu), walls);
        let NetworkReach::Registries(_) = reach else {
            command.envs(step.environment.iter().map(|(name, value)| (name, value)));
            return Ok((command, StepBounds::Group(group), None));
        };
        command.envs(fetching::environment(&step.environment));
        let proxy = self.fetching.open();
        let none = |error| BuildError::passing("BuildFailed", format!("there is no way to the registries: {error}"));
        Ok((command, StepBounds::Group(group), Some(proxy.map_err(none)?)))
    }
}

/// The error of a program that ended badly: its last words, and whether another attempt is worth it.
fn refusal(step: &Step<'_>, status: &std::process::ExitStatus, tail: &str) -> BuildError {
    const NETWORK: [&str; 14] = [
        "ENOTFOUND",
        "ETIMEDOUT",
        "ECONNRESET",
        "ECONNREFUSED",
        "EAI_AGAIN",
        "error sending request",
        "dns error",
        "Connection refused",
        "Connection reset",
        "timed out",
        "502 Bad Gateway",
        "503 Service Unavailable",
        "429 Too Many Requests",
        "Temporary failure in name resolution",
    ];
    let begin = tail.rfind("\n$ ").map_or(0, |at| at + 1);
    let words: Vec<&str> = tail[begin..].lines().skip(1).map(str::trim).filter(|line| !line.is_empty()).collect();
    let telling = words.iter().position(|line| {
        let line = line.to_ascii_lowercase();
        ["error", "no solution", "×", "cannot"].iter().any(|word| line.contains(word))
    });
    let from = telling.unwrap_or(words.len().saturating_sub(3));
    let said: String = words[from..].iter().take(6).copied().collect::<Vec<_>>().join(" ").chars().take(700).collect();
    let message = format!("{} failed ({status}): {said}", step.name);
    if step.network != Network::None && NETWORK.iter().any(|word| tail[begin..].contains(word)) {
        return BuildError::away("RegistryUnreachable", message);
    }
    BuildError::lasting("BuildFailed", message)
}

/// Resolves when a folder has grown too large, with its size.
async fn grows(folder: &Path) -> u64 {
    loop {
        tokio::time::sleep(MEASURE).await;
        let folder = folder.to_owned();
        let size = tokio::task::spawn_blocking(move || size_of(&folder)).await.unwrap_or_default();
        if size > DISK {
            return size;
        }
    }
}

async fn follow(pipe: Option<impl AsyncRead + Unpin>, log: &BuildLog) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = vec![0; 16 << 10];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        log.add(&buffer[..read]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_file_follows_nothing_that_was_planted() {
        let folder = tempfile::tempdir().expect("a folder");
        let (target, elsewhere) = (folder.path().join("target"), folder.path().join("elsewhere"));
        fs_err::write(&target, "ours").expect("written");
        fs_err::create_dir(&elsewhere).expect("a folder");
        let plant: [&dyn Fn(&Path); 5] = [
            &|path: &Path| fs_err::os::unix::fs::symlink(&target, path).expect("a link"),
            &|path: &Path| fs_err::os::unix::fs::symlink(&elsewhere, path).expect("a link"),
            &|path: &Path| fs_err::os::unix::fs::symlink(folder.path().join("not/there"), path).expect("a link"),
            &|path: &Path| fs_err::create_dir_all(path.join("deep")).expect("a folder"),
            &|path: &Path| fs_err::write(path, "an earlier one, which is longer").expect("written"),
        ];
        for (number, plant) in plant.iter().enumerate() {
            let file = folder.path().join(format!("file{number}"));
            plant(&file);
            io::Write::write_all(&mut fresh(&file).expect("a file"), b"text").expect("written");
            assert!(!file.is_symlink() && fs_err::read_to_string(&file).expect("read") == "text");
            let made = folder.path().join(format!("folder{number}"));
            plant(&made);
            fresh_folder(&made).expect("a folder");
            assert!(!made.is_symlink() && fs_err::read_dir(&made).expect("a folder").next().is_none());
        }
        assert_eq!(fs_err::read_to_string(&target).expect("read"), "ours");
        assert!(fs_err::read_dir(&elsewhere).expect("a folder").next().is_none());
    }

    #[tokio::test]
    async fn each_process_gets_its_processor_time() {
        async fn said(cpu: Option<Duration>) -> String {
            let (reach, at) = (NetworkReach::Nothing, Path::new("/"));
            let walls = Walls { readable: Vec::new(), writable: Vec::new(), reach, at };
            let mut command = Bubblewrap::default().command(Path::new("/bin/sh"), &Cgroup::default(), cpu, walls);
            let output = command.args(["-c", "ulimit -t"]).output().await.expect("a shell");
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        assert_eq!(said(Some(Duration::from_secs(7))).await, "7");
        assert_ne!(said(None).await, "7");
    }

    /// Runs where bubblewrap does.
    #[tokio::test]
    async fn a_step_in_bubblewrap_sees_and_writes_what_is_its_own() {
        let home = tempfile::tempdir().expect("a folder");
        let data = home.path().join("data");
        let [folder, other] = ["1", "2"].map(|name| data.join("functions/builds/work").join(name));
        for folder in [&folder, &other] {
            fs_err::create_dir_all(folder).expect("a folder");
        }
        fs_err::write(home.path().join("key"), "secret").expect("written");
        let environment: [(OsString, OsString); 1] = [("PATH".into(), std::env::var_os("PATH").unwrap_or_default())];
        let bubblewrap = on_path(&environment, "bwrap");
        // These tests are no launcher.
        let launcher = None;
        let registries = Registries::find(&[], None, &[]);
        let sandbox = Sandbox::find(&environment, bubblewrap, launcher, None, Some(&data), registries);
        if sandbox.isolation() != "bubblewrap" {
            eprintln!("bubblewrap does not work on this machine: nothing is checked");
            return;
        }
        let script = r#"for path in "$@"; do test -e "$path" && echo "sees $path"; done
            for path in /usr /bin /lib; do (: > "$path/berth-planted") 2>/dev/null && echo "writes $path"; done
            : > planted; readlink /proc/self/ns/net"#;
        let homes = ["/root", "/home"].map(PathBuf::from).into_iter().filter(|path| !home.path().starts_with(path));
        let hidden: Vec<OsString> = homes.chain([home.path().join("key"), other]).map(Into::into).collect();
        let machine = fs_err::read_link("/proc/self/ns/net").expect("a link").display().to_string();
        for network in [Network::None, Network::Own] {
            let log = BuildLog::create(&home.path().join("log")).expect("a log");
            let step = Step {
                name: "look",
                function: "words",
                program: Path::new("/bin/sh"),
                image: None,
                arguments: ["-c", script, "sh"].map(OsString::from).into_iter().chain(hidden.clone()).collect(),
                environment: environment.to_vec(),
                folder: &folder,
                at: &folder,
                writable: Vec::new(),
                readable: Vec::new(),
                network,
                limit: Duration::from_secs(60),
            };
            sandbox.run(step, &log).await.expect("it looks");
            let said = log.tail();
            let words: Vec<&str> = said.lines().collect();
            assert!(words.len() == 2 && words[0] == "$ look", "it sees or writes more: {said}");
            assert_eq!(words[1] == machine, network == Network::Own, "{said}");
            fs_err::remove_file(folder.join("planted")).expect("its own folder is written");
        }
    }

    #[test]
    fn the_whole_machine_is_no_installation() {
        let prefix = |program: &str| prefix_of(Path::new(program));
        assert_eq!(prefix("/usr/bin/node"), Some("/usr".into()));
        assert_eq!((prefix("/bin/python3"), prefix("/node"), prefix("python3")), (None, None, None));
    }
}
