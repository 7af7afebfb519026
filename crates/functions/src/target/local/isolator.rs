//! The isolation of processes of functions: the sandbox that models have, as far as this machine allows.
//!
//! ```text
//! launcher that makes a file tree ─▶ user, files, processes, network, system calls of a sandbox
//! else bubblewrap, where it works ─▶ files, processes and network of its own
//! else                            ─▶ what the launcher can do without a file tree
//! ```
//! It is found with the first process, and the log says it once.

use std::{
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use berth_sandbox::{self as sandbox, Launcher, Network, Sandbox, Storage, User, Users, is_open};
use berth_spec::{ByteSize, Isolation, network::Destination};
use berth_worker::{
    cgroup::Cgroup,
    config::{IsolationSettings, SandboxNetwork},
    egress::PORT,
    runtime::python::prefixes,
};
use tokio::{process::Command, sync::OnceCell};

use crate::build::{Bubblewrap, NetworkReach, Walls};

/// The largest file of a function.
const LARGEST_FILE: u64 = 2 << 30;

/// Folders with keys of others inside of folders that every sandbox shows.
const KEYS: [&str; 2] = ["/etc/ssl/private", "/etc/pki/tls/private"];

/// Parts of a sandbox that bubblewrap does not give.
const BUBBLEWRAP_LACKS: [&str; 2] = ["Landlock", "a filter of system calls (seccomp)"];

/// Variables that name files and folders of certificates.
const CERTIFICATES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// The network of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NetworkAccess {
    /// A loopback of its own.
    Closed,
    /// The same, and a proxy to the hosts of its spec.
    Hosts,
    /// The network of the machine.
    Machine,
}

/// Confines processes.
#[derive(Debug)]
pub(super) struct Isolator {
    settings: IsolationSettings,
    bubblewrap: Arc<Bubblewrap>,
    /// Berth's folder of data.
    data: PathBuf,
    users: Arc<Users>,
    /// The launcher, where it is better than bubblewrap.
    launcher: OnceCell<Option<Launcher>>,
}

/// A program that is to be confined.
pub(super) struct Program<'a> {
    pub(super) path: &'a Path,
    /// Folder of the code.
    pub(super) app: &'a Path,
    /// The folder that it may write, with the files that it begins with.
    pub(super) folder: &'a Path,
    pub(super) hosts: &'a [Destination],
    /// Berth's own variables, which may name certificates.
    pub(super) variables: &'a [(OsString, OsString)],
    pub(super) group: &'a Cgroup,
    pub(super) memory: ByteSize,
    /// Limit of its data, where no control group limits its memory.
    pub(super) data: Option<ByteSize>,
}

/// A confined program: its arguments, variables and input are still to be given.
pub(super) struct Confined {
    pub(super) command: Command,
    pub(super) network: NetworkAccess,
    /// The user that it has, until it ends.
    pub(super) user: Option<User>,
    /// True if its folder is one in memory, which its sandbox sends over its standard input.
    pub(super) in_memory: bool,
}

impl Isolator {
    pub(super) fn new(settings: IsolationSettings, bubblewrap: Arc<Bubblewrap>, data: PathBuf) -> Self {
        Self { settings, bubblewrap, data, users: Arc::default(), launcher: OnceCell::new() }
    }

    /// Ports of this node, where functions do not get.
    pub(super) fn own_ports(&self) -> Vec<u16> {
        self.settings.own_ports.clone()
    }

    /// A sentence about what this machine lacks for a sandbox; empty: nothing.
    pub(super) async fn note(&self) -> String {
        match self.lacking(self.launcher().await) {
            lacking if lacking.is_empty() => String::new(),
            lacking => {
                format!("Its sandbox lacks {}; `berth doctor` on its machine tells the remedy.", lacking.join(", "))
            }
        }
    }

    /// The command of a program.
    ///
    /// # Errors
    /// The reason why it does not start, for people.
    pub(super) async fn command(&self, program: Program<'_>) -> Result<Confined, String> {
        let launcher = self.launcher().await;
        refusal(self.settings.level, &self.lacking(launcher))?;
        let has_network = launcher.is_some_and(|launcher| launcher.mechanisms().network);
        let network = network(self.settings.network, has_network, program.hosts)?;
        let Some(launcher) = launcher else {
            let reach = if network == NetworkAccess::Machine { NetworkReach::Machine } else { NetworkReach::Nothing };
            let (readable, writable) = (vec![program.app.to_owned()], vec![program.folder.to_owned()]);
            let walls = Walls { readable, writable, reach, at: program.app };
            let command = self.bubblewrap.command(program.path, program.group, None, walls);
            return Ok(Confined { command, network, user: None, in_memory: false });
        };
        let readable = readable(&program);
        let user = match readable.iter().find(|path| path.exists() && !is_open(path)) {
            _ if !launcher.mechanisms().own_user => None,
            Some(path) if self.settings.level == Some(Isolation::Sandbox) => {
                let path = path.display();
                return Err(format!(
                    "--isolation sandbox is set, and only its owner may read {path}, which a user of its own needs: chmod -R o+rX {path}"
                ));
            }
            Some(path) => {
                let path = path.display();
                tracing::warn!(event = "function_user_shared", %path, "only its owner may read this");
                None
            }
            None => Some(self.user().await?),
        };
        let in_memory = launcher.mechanisms().files;
        let sandbox = Sandbox {
            isolation: sandbox::Isolation::Sandbox,
            folder: program.folder.to_owned(),
            storage: Storage::MemorySent,
            readable,
            hidden: KEYS.iter().map(PathBuf::from).chain([self.data.clone()]).collect(),
            gpus: false,
            network: if network == NetworkAccess::Machine { Network::Machine } else { Network::None },
            listener: (network == NetworkAccess::Hosts).then_some(PORT),
            groups: program.group.groups().to_vec(),
            limits: sandbox::Limits {
                file_size: LARGEST_FILE,
                data: program.data.map(|data| data.0),
                memory_files: Some(program.memory.0),
                ..sandbox::Limits::default()
            },
            user: user.as_ref().map(User::number),
        };
        let command = launcher.command(&sandbox, program.path).map_err(|error| error.to_string())?;
        let mut command = Command::from(command);
        command.env_clear().current_dir(program.folder).process_group(0).kill_on_drop(true);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(Confined { command, network, user, in_memory })
    }

    async fn user(&self) -> Result<User, String> {
        let users = Arc::clone(&self.users);
        tokio::task::spawn_blocking(move || users.take()).await.map_err(|error| error.to_string())
    }

    async fn launcher(&self) -> Option<&Launcher> {
        self.launcher.get_or_init(|| self.find()).await.as_ref()
    }

    /// Tries what this machine can do, and says what it cannot.
    async fn find(&self) -> Option<Launcher> {
        let (program, bubblewrap) = (self.settings.launcher.clone(), Arc::clone(&self.bubblewrap));
        let tried = tokio::task::spawn_blocking(move || {
            let launcher = program.map(Launcher::find).transpose()?;
            let is_best = |launcher: &Launcher| launcher.mechanisms().files || bubblewrap.program().is_none();
            io::Result::Ok(launcher.filter(is_best))
        });
        let found = tried.await.map_err(io::Error::other).flatten();
        let launcher = found.unwrap_or_else(|error| {
            tracing::warn!(event = "function_launcher_failed", %error);
            None
        });
        match self.lacking(launcher.as_ref()).as_slice() {
            [] => tracing::info!(event = "functions_isolated", network = %self.settings.network),
            missing => {
                let missing = missing.join(", ");
                tracing::warn!(event = "functions_isolated_in_part", network = %self.settings.network, missing);
            }
        }
        launcher
    }

    fn lacking(&self, launcher: Option<&Launcher>) -> Vec<&'static str> {
        match launcher {
            Some(launcher) => launcher.missing(),
            None if self.bubblewrap.program().is_some() => BUBBLEWRAP_LACKS.to_vec(),
            None => vec!["all parts of it"],
        }
    }
}

/// Files and folders that a program reads, beside those of the system.
fn readable(program: &Program<'_>) -> Vec<PathBuf> {
    let mut readable = prefixes(program.path);
    readable.push(program.app.to_owned());
    let names = |name: &OsStr| CERTIFICATES.iter().any(|known| name == *known);
    let named = program.variables.iter().filter(|(name, _)| names(name));
    let certificates = named.flat_map(|(_, paths)| std::env::split_paths(paths));
    readable.extend(certificates.filter(|path| path.is_absolute()));
    readable
}

/// Refuses what is less than the operator asks for.
fn refusal(level: Option<Isolation>, lacking: &[&str]) -> Result<(), String> {
    if level != Some(Isolation::Sandbox) || lacking.is_empty() {
        return Ok(());
    }
    Err(format!(
        "--isolation sandbox is set, and the sandbox of functions lacks {} on this machine: `berth doctor` tells the remedy; without the \
         setting functions run with what there is",
        lacking.join(", ")
    ))
}

/// The network of a program. `has_own`: this machine makes one for a process.
fn network(setting: SandboxNetwork, has_own: bool, hosts: &[Destination]) -> Result<NetworkAccess, String> {
    match setting {
        SandboxNetwork::Machine => Ok(NetworkAccess::Machine),
        _ if hosts.is_empty() => Ok(NetworkAccess::Closed),
        SandboxNetwork::None => Err("it names hosts (spec.network.hosts), and --function-network none lets functions reach none: start Berth \
                                     with --function-network declared, or remove them"
            .to_owned()),
        SandboxNetwork::Declared if has_own => Ok(NetworkAccess::Hosts),
        SandboxNetwork::Declared => Err("it names hosts (spec.network.hosts), and this machine lacks a network of its own for it (network \
                                         namespace): `berth doctor` tells the remedy; with --function-network machine functions reach everything"
            .to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_that_is_required_is_whole() {
        let lacking = ["Landlock"];
        assert_eq!(refusal(None, &lacking), Ok(()));
        assert_eq!(refusal(Some(Isolation::Process), &lacking), Ok(()));
        assert_eq!(refusal(Some(Isolation::Sandbox), &[]), Ok(()));
        let refused = refusal(Some(Isolation::Sandbox), &lacking).expect_err("a part is missing");
        assert!(refused.contains("lacks Landlock on this machine"), "{refused}");
    }

    #[test]
    fn a_function_reaches_no_more_than_the_setting_and_its_spec_say() {
        let hosts = ["api.example.com:443".parse().expect("a host")];
        let cases: [(SandboxNetwork, bool, &[Destination], Option<NetworkAccess>); 8] = [
            (SandboxNetwork::Declared, true, &hosts, Some(NetworkAccess::Hosts)),
            (SandboxNetwork::Declared, true, &[], Some(NetworkAccess::Closed)),
            (SandboxNetwork::Declared, false, &[], Some(NetworkAccess::Closed)),
            (SandboxNetwork::Declared, false, &hosts, None),
            (SandboxNetwork::None, true, &[], Some(NetworkAccess::Closed)),
            (SandboxNetwork::None, true, &hosts, None),
            (SandboxNetwork::Machine, true, &hosts, Some(NetworkAccess::Machine)),
            (SandboxNetwork::Machine, false, &[], Some(NetworkAccess::Machine)),
        ];
        for (setting, has_own, hosts, expected) in cases {
            assert_eq!(network(setting, has_own, hosts).ok(), expected, "{setting} {has_own} {hosts:?}");
        }
    }

    #[tokio::test]
    async fn nothing_starts_without_a_sandbox_that_is_required() {
        let home = tempfile::tempdir().expect("a folder");
        let (group, level) = (Cgroup::default(), Some(Isolation::Sandbox));
        for (level, starts) in [(level, false), (None, true)] {
            let settings = IsolationSettings { level, ..IsolationSettings::default() };
            let isolator = Isolator::new(settings, Arc::default(), home.path().to_owned());
            let program = Program {
                path: Path::new("/bin/true"),
                app: home.path(),
                folder: home.path(),
                hosts: &[],
                variables: &[],
                group: &group,
                memory: ByteSize::mib(64),
                data: None,
            };
            assert_eq!(isolator.command(program).await.is_ok(), starts, "{level:?}");
            assert!(isolator.note().await.contains("lacks all parts of it"));
        }
    }
}
