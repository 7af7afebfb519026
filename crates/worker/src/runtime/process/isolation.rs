//! The isolation of models' processes: which one a replica gets, and what this machine lacks for it.
//!
//! ```text
//!   level = the larger of   what the operator set (else: the runtime's own default)
//!                     and   what the deployment asks for
//!   whole, or not at all: a level that somebody asked for; else as far as the machine allows
//! ```
//! The mechanisms of the machine are found once, when the worker starts. Whatever is missing is said in the log then, in the note
//! of every replica, and by `berth doctor`.

use std::{
    io,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use berth_sandbox::{self as sandbox, Launcher, Limits, Network, Sandbox, Storage, User, Users, is_open};
use berth_spec::{FailureCategory, Isolation, IsolationOffer, network::Destination};

use super::{
    egress,
    plan::{Executable, Plan},
};
use crate::{
    cgroup::Cgroup,
    config::{IsolationSettings, SandboxNetwork},
    runtime::LoadError,
};

/// The memory of a model for each byte that its files may take of it. As the kernel does for a machine: a model that writes too much hears
/// of it, and goes on, before the memory that is left for itself ends and with it the process.
const MEMORY_PER_FILES: u64 = 2;

/// The isolation of one replica's processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::runtime) struct Confinement {
    /// The level that its processes run at: never less than the operator or the deployment asks for.
    pub(in crate::runtime) level: Isolation,
    /// For the note of the replica, where there is something to say.
    pub(in crate::runtime) note: Option<String>,
    /// Hosts that it reaches through a proxy; empty: there is none.
    pub(in crate::runtime) hosts: Vec<Destination>,
}

/// The level for a replica, and who asked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Decision {
    level: Isolation,
    source: LevelSource,
}

/// The origin of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LevelSource {
    Default,
    Operator,
    Deployment,
}

/// The operator's word is the least that a deployment gets; it may ask for more.
fn decide(operator: Option<Isolation>, otherwise: Isolation, asked: Option<Isolation>) -> Decision {
    let least = operator.unwrap_or(otherwise);
    match asked {
        Some(asked) if asked > least => Decision { level: asked, source: LevelSource::Deployment },
        // What it asks for it gets whole, also where it is the default.
        Some(asked) if asked == least && operator.is_none() => {
            Decision { level: asked, source: LevelSource::Deployment }
        }
        _ if operator.is_some() => Decision { level: least, source: LevelSource::Operator },
        _ => Decision { level: least, source: LevelSource::Default },
    }
}

/// Decides how each replica is isolated, by the settings and by what this machine can do, and makes the command of its processes.
#[derive(Debug)]
pub(in crate::runtime) struct Isolator {
    settings: IsolationSettings,
    launcher: Option<Launcher>,
    /// Mechanisms that this machine lacks for a sandbox.
    missing: Vec<&'static str>,
    /// The worker's own folder.
    hidden: PathBuf,
    users: Arc<Users>,
}

impl Isolator {
    /// Tries what this machine can do, and says what it cannot. Blocks for some milliseconds.
    pub(in crate::runtime) fn open(settings: &IsolationSettings, data: PathBuf) -> io::Result<Self> {
        let launcher = settings.launcher.as_ref().map(Launcher::find).transpose()?;
        let missing = launcher.as_ref().map(Launcher::missing).unwrap_or_default();
        let level = settings.level.unwrap_or(Isolation::Sandbox);
        match &launcher {
            None => {}
            Some(_) if level == Isolation::None => tracing::warn!(
                event = "models_not_isolated",
                "models in Python run as this user, with its files and network"
            ),
            Some(_) if level == Isolation::Process || missing.is_empty() => {
                tracing::info!(event = "models_isolated", isolation = %level);
            }
            Some(_) => {
                tracing::warn!(event = "models_isolated_in_part", isolation = %level, missing = missing.join(", "));
            }
        }
        Ok(Self { settings: settings.clone(), launcher, missing, hidden: data, users: Arc::default() })
    }

    /// The isolation of a model in Python. The deployment may ask for more than the worker's own.
    pub(in crate::runtime) fn of_card(
        &self,
        asked: Option<Isolation>,
        hosts: &[Destination],
    ) -> Result<Confinement, LoadError> {
        let decision = decide(self.settings.level, Isolation::Sandbox, asked);
        self.check(decision, "--isolation")?;
        let hosts = self.hosts(decision.level, hosts)?;
        let note = match (decision.level, self.missing.as_slice()) {
            _ if self.launcher.is_none() => None,
            (Isolation::Sandbox, []) if self.settings.network != SandboxNetwork::Machine => None,
            (Isolation::Sandbox, []) => Some("its sandbox has the machine's network".to_owned()),
            (Isolation::Sandbox, missing) => Some(format!("its sandbox lacks {}", missing.join(", "))),
            (level, _) => Some(format!("isolation: {level}")),
        };
        Ok(Confinement { level: decision.level, note: raised(note, decision, asked), hosts })
    }

    /// The hosts that go through a proxy: where the sandbox has a network of its own. The operator's setting is the most.
    fn hosts(&self, level: Isolation, hosts: &[Destination]) -> Result<Vec<Destination>, LoadError> {
        let fenced = level == Isolation::Sandbox && self.launcher.is_some();
        if hosts.is_empty() || !fenced || self.settings.network == SandboxNetwork::Machine {
            return Ok(Vec::new());
        }
        let refused = |message: &str| Err(LoadError::new(FailureCategory::Runtime, message));
        if self.settings.network == SandboxNetwork::None {
            return refused(
                "it declares hosts (network.hosts), and this worker allows no network: start it with --sandbox-network \
                 declared, or remove them",
            );
        }
        if !self.launcher.as_ref().is_some_and(|launcher| launcher.mechanisms().network) {
            return refused(
                "it declares hosts (network.hosts), and this machine lacks a network of its own for them (network namespace): \
                 `berth doctor` tells the remedy",
            );
        }
        Ok(hosts.to_vec())
    }

    /// Ports of the node, where models do not get.
    pub(in crate::runtime) fn own_ports(&self) -> Vec<u16> {
        self.settings.own_ports.clone()
    }

    /// The isolation of a graph; `None`: it runs in the worker's own process.
    pub(in crate::runtime) fn of_graph(&self, asked: Option<Isolation>) -> Result<Option<Confinement>, LoadError> {
        let decision = decide(self.settings.onnx, Isolation::None, asked);
        if decision.level == Isolation::None {
            return Ok(None);
        }
        if self.launcher.is_none() {
            let message = "isolation needs the program `berth`, which starts processes of models: this worker has none";
            return Err(LoadError::new(FailureCategory::Runtime, message));
        }
        self.check(decision, "--onnx-isolation")?;
        let level = decision.level;
        let note = match (level, self.missing.as_slice()) {
            (Isolation::Sandbox, missing @ [_, ..]) => {
                format!("runs in a process of its own (isolation: {level}, which lacks {})", missing.join(", "))
            }
            _ => format!("runs in a process of its own (isolation: {level})"),
        };
        Ok(Some(Confinement { level, note: raised(Some(note), decision, asked), hosts: Vec::new() }))
    }

    /// The strongest isolation that processes of models get here.
    pub(in crate::runtime) fn offer(&self) -> Option<IsolationOffer> {
        self.launcher.as_ref()?;
        let gives = |level: &Isolation| self.missing_for(*level).is_empty();
        let most = Isolation::ALL.into_iter().rev().find(gives).unwrap_or(Isolation::None);
        let next = Isolation::ALL.into_iter().find(|level| *level > most);
        let lacking = next.map(|level| self.missing_for(level).join(", "));
        let lacks = lacking
            .map(|lacking| format!("this machine lacks {lacking} for more; `berth doctor` there tells the remedy"));
        Some(IsolationOffer { most, lacks: lacks.unwrap_or_default() })
    }

    /// Refuses a level that somebody asked for where this machine lacks a part of it.
    fn check(&self, decision: Decision, flag: &str) -> Result<(), LoadError> {
        let missing = self.missing_for(decision.level);
        if missing.is_empty() {
            return Ok(());
        }
        let (level, lacking) = (decision.level, missing.join(", "));
        let message = match decision.source {
            LevelSource::Default => return Ok(()),
            LevelSource::Operator => format!(
                "{flag} {level} is set, and this machine lacks {lacking}: `berth doctor` tells the remedy; without the setting \
                 models run with what there is"
            ),
            LevelSource::Deployment => format!(
                "the deployment asks for runtime.isolation {level:?}, and this machine lacks {lacking}: `berth doctor` tells the \
                 remedy, or place it on other workers (spec.selector)",
                level = level.as_str(),
            ),
        };
        Err(LoadError::new(FailureCategory::Runtime, message))
    }

    fn missing_for(&self, level: Isolation) -> Vec<&'static str> {
        match (level, &self.launcher) {
            (Isolation::None, _) | (_, None) => Vec::new(),
            (Isolation::Process, Some(launcher)) => {
                let lacks = !launcher.mechanisms().system_calls;
                lacks.then_some("a filter of system calls (seccomp)").into_iter().collect()
            }
            (Isolation::Sandbox, Some(_)) => self.missing.clone(),
        }
    }

    /// True if processes of this level are started by the launcher, which joins groups and sets limits.
    pub(in crate::runtime) fn launches(&self, confinement: &Confinement) -> bool {
        self.launcher.is_some() && confinement.level != Isolation::None
    }

    /// A user for one replica. Blocks for some milliseconds.
    pub(in crate::runtime) fn user(&self) -> User {
        self.users.take()
    }

    /// The command that starts a process of a model in a folder of its own.
    pub(in crate::runtime) fn command(&self, plan: &Plan, folder: &Path, cgroup: &Cgroup) -> io::Result<Command> {
        let executable = plan.program.executable();
        let launcher = self.launcher.as_ref().filter(|_| self.launches(&plan.confinement));
        let Some(launcher) = launcher else {
            let Executable::File { path, arguments } = executable else {
                return Err(io::Error::other("it needs the launcher"));
            };
            let mut command = Command::new(path);
            command.args(arguments);
            return Ok(command);
        };
        let mut readable = plan.program.readable();
        readable.extend(self.settings.readable.iter().cloned());
        let memory_files = plan.memory().map(|memory| memory.0 / MEMORY_PER_FILES);
        let shut = readable.iter().find(|path| !is_open(path));
        let user = match shut {
            Some(path) if launcher.mechanisms().own_user => {
                let path = path.display();
                tracing::warn!(event = "model_user_shared", deployment_id = %plan.deployment, %path, "only its owner may read this");
                None
            }
            Some(_) => None,
            None => Some(plan.user.number()),
        };
        let sandbox = Sandbox {
            isolation: strength(plan.confinement.level),
            folder: folder.to_owned(),
            storage: Storage::Memory,
            readable,
            hidden: vec![self.hidden.clone()],
            gpus: plan.program.has_devices(),
            network: match self.settings.network {
                SandboxNetwork::None | SandboxNetwork::Declared => Network::None,
                SandboxNetwork::Machine => Network::Machine,
            },
            listener: (!plan.confinement.hosts.is_empty()).then_some(egress::PORT),
            groups: cgroup.groups().to_vec(),
            limits: Limits { data: cgroup.own_limit().map(|limit| limit.0), memory_files, ..Limits::default() },
            user,
        };
        match executable {
            Executable::File { path, arguments } => {
                let mut command = launcher.command(&sandbox, path)?;
                command.args(arguments);
                Ok(command)
            }
            Executable::Own(name) => launcher.command_own(&sandbox, name),
        }
    }
}

/// Adds to the note that the deployment asks for less than it gets.
fn raised(note: Option<String>, decision: Decision, asked: Option<Isolation>) -> Option<String> {
    match asked {
        Some(asked) if asked < decision.level => {
            let level = decision.level;
            let least =
                format!("isolation {level} is the least that this worker gives, the deployment asks for {asked}");
            Some(note.map_or_else(|| least.clone(), |note| format!("{note}; {least}")))
        }
        _ => note,
    }
}

fn strength(level: Isolation) -> sandbox::Isolation {
    match level {
        Isolation::None => sandbox::Isolation::None,
        Isolation::Process => sandbox::Isolation::Process,
        Isolation::Sandbox => sandbox::Isolation::Sandbox,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deployment_gets_more_than_the_operator_says_and_never_less() {
        use Isolation::{None as No, Process, Sandbox};
        let cases = [
            (None, Sandbox, None, Sandbox, LevelSource::Default),
            (None, Sandbox, Some(Process), Sandbox, LevelSource::Default),
            (None, Sandbox, Some(Sandbox), Sandbox, LevelSource::Deployment),
            (Some(Process), Sandbox, None, Process, LevelSource::Operator),
            (Some(Process), Sandbox, Some(Sandbox), Sandbox, LevelSource::Deployment),
            (Some(Sandbox), Sandbox, Some(Process), Sandbox, LevelSource::Operator),
            (Some(No), Sandbox, Some(Process), Process, LevelSource::Deployment),
            (None, No, None, No, LevelSource::Default),
            (None, No, Some(Process), Process, LevelSource::Deployment),
            (Some(Process), No, Some(No), Process, LevelSource::Operator),
        ];
        for (operator, otherwise, asked, level, source) in cases {
            assert_eq!(
                decide(operator, otherwise, asked),
                Decision { level, source },
                "{operator:?} {otherwise} {asked:?}"
            );
        }
    }

    #[test]
    fn without_a_launcher_nothing_is_promised() {
        let isolator = Isolator::open(&IsolationSettings::default(), PathBuf::from("/nowhere")).expect("opened");
        let confinement = isolator.of_card(None, &[]).expect("as far as there is");
        assert_eq!((&confinement.note, isolator.launches(&confinement)), (&None, false));
        assert_eq!(isolator.of_graph(None), Ok(None));
        assert!(isolator.of_graph(Some(Isolation::Process)).is_err());
    }

    #[test]
    fn whoever_asks_for_less_than_there_is_is_told() {
        let isolator = Isolator::open(&IsolationSettings::default(), PathBuf::from("/nowhere")).expect("opened");
        let note = isolator.of_card(Some(Isolation::Process), &[]).expect("a level").note.expect("a note");
        assert_eq!(note, "isolation sandbox is the least that this worker gives, the deployment asks for process");
    }
}
