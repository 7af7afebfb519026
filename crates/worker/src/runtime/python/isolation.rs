//! The isolation of models' processes: which sandbox a process gets, and what this machine lacks for it.
//!
//! Found once, when the runtime opens. Whatever is missing is said in the log then, in the note of every replica, and by
//! `berth doctor`.

use std::{
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use berth_sandbox::{Isolation, Launcher, Limits, Network, Sandbox};
use berth_spec::FailureCategory;

use super::{cgroup::Cgroup, plan::Plan};
use crate::{config::IsolationSettings, runtime::LoadError};

/// Users for models of a worker that is root: numbers that no account has, as systemd's list of numbers says.
const USERS: std::ops::Range<u32> = 60_578..61_184;

/// Starts processes of models.
#[derive(Debug)]
pub(super) struct Isolator {
    level: Isolation,
    /// True if what is missing may not be left out.
    strict: bool,
    launcher: Option<Launcher>,
    missing: Vec<&'static str>,
    /// Folders that every model may read.
    readable: Vec<PathBuf>,
    network: Network,
    /// The worker's own folder.
    hidden: PathBuf,
    next_user: AtomicU32,
}

impl Isolator {
    /// Tries what this machine can do, and says what it cannot. Blocks for some milliseconds.
    pub(super) fn open(settings: &IsolationSettings, data: PathBuf) -> io::Result<Self> {
        let level = settings.level.unwrap_or_default();
        let program = settings.launcher.as_ref().filter(|_| level != Isolation::None);
        let launcher = program.map(Launcher::find).transpose()?;
        let all = launcher.as_ref().map(Launcher::missing).unwrap_or_default();
        let missing = match level {
            Isolation::Sandbox => all,
            _ => Vec::new(),
        };
        match &launcher {
            None if settings.launcher.is_none() => {}
            None => tracing::warn!(
                event = "models_not_isolated",
                "models in Python run as this user, with its files and network"
            ),
            Some(_) if missing.is_empty() => tracing::info!(event = "models_isolated", isolation = %level),
            Some(_) => {
                tracing::warn!(event = "models_isolated_in_part", isolation = %level, missing = missing.join(", "))
            }
        }
        Ok(Self {
            level,
            strict: settings.level == Some(Isolation::Sandbox),
            launcher,
            missing,
            readable: settings.readable.clone(),
            network: settings.network,
            hidden: data,
            next_user: AtomicU32::new(0),
        })
    }

    /// For the note of a replica: what its isolation lacks.
    pub(super) fn note(&self) -> Option<String> {
        self.launcher.as_ref()?;
        match (self.level, self.missing.as_slice()) {
            (Isolation::Sandbox, []) if self.network == Network::None => None,
            (Isolation::Sandbox, []) => Some("its sandbox has the machine's network".to_owned()),
            (Isolation::Sandbox, missing) => Some(format!("its sandbox lacks {}", missing.join(", "))),
            (level, _) => Some(format!("isolation: {level}")),
        }
    }

    /// Refuses to load where the operator wants a whole sandbox and this machine has none.
    pub(super) fn check(&self) -> Result<(), LoadError> {
        if !self.strict || self.missing.is_empty() {
            return Ok(());
        }
        let message = format!(
            "--isolation sandbox is set, and this machine lacks {}: `berth doctor` tells the remedy; without the setting models \
             run with what there is",
            self.missing.join(", ")
        );
        Err(LoadError::new(FailureCategory::Runtime, message))
    }

    /// True if processes are started by the launcher, which joins groups and sets limits.
    pub(super) fn launches(&self) -> bool {
        self.launcher.is_some()
    }

    /// A user for one replica.
    pub(super) fn user(&self) -> u32 {
        USERS.start + self.next_user.fetch_add(1, Ordering::Relaxed) % (USERS.end - USERS.start)
    }

    /// The command that starts a process of a model in a folder of its own.
    pub(super) fn command(&self, plan: &Plan, folder: &Path, cgroup: &Cgroup) -> io::Result<Command> {
        let Some(launcher) = &self.launcher else { return Ok(Command::new(&plan.python)) };
        let mut readable = plan.readable();
        readable.extend(self.readable.iter().cloned());
        let memory = plan.memory.map(|memory| memory.0);
        let shut = readable.iter().find(|path| !is_open(path));
        let user = match shut {
            Some(path) if launcher.mechanisms().own_user => {
                let path = path.display();
                tracing::warn!(event = "model_user_shared", deployment_id = %plan.deployment, %path, "only its owner may read this");
                None
            }
            Some(_) => None,
            None => Some(plan.user),
        };
        let sandbox = Sandbox {
            isolation: self.level,
            folder: folder.to_owned(),
            readable,
            hidden: vec![self.hidden.clone()],
            gpus: plan.has_devices(),
            network: self.network,
            groups: cgroup.groups().to_vec(),
            limits: Limits { data: cgroup.own_limit().map(|limit| limit.0), memory_files: memory, ..Limits::default() },
            user,
        };
        launcher.command(&sandbox, &plan.python)
    }
}

/// True if any user may read a file, or list and enter a folder.
fn is_open(path: &Path) -> bool {
    fs_err::metadata(path).is_ok_and(|about| {
        let wanted = if about.is_dir() { 0o5 } else { 0o4 };
        about.mode() & wanted == wanted
    })
}

/// The folders of an interpreter: of an environment, those of the Python that it was made with, too.
pub(super) fn prefixes(python: &Path) -> Vec<PathBuf> {
    /// An environment's link, a version's link, and the file: more is a circle.
    const LINKS: usize = 8;
    let mut found = Vec::new();
    let mut at = python.to_owned();
    for _ in 0..LINKS {
        found.extend(at.parent().and_then(Path::parent).map(Path::to_owned));
        let Ok(target) = fs_err::read_link(&at) else { break };
        at = at.parent().unwrap_or(Path::new("/")).join(target);
    }
    let real = fs_err::canonicalize(python).ok();
    found.extend(real.as_deref().and_then(Path::parent).and_then(Path::parent).map(Path::to_owned));
    // `/bin/python3` is a part of the system.
    found.retain(|prefix| prefix.components().count() > 1);
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn an_environment_stands_on_the_python_that_made_it() {
        let root = tempfile::tempdir().expect("a folder");
        let at = |path: &str| root.path().join(path);
        for folder in ["env/bin", "pythons/3.12.1/bin"] {
            fs_err::create_dir_all(at(folder)).expect("made");
        }
        fs_err::write(at("pythons/3.12.1/bin/python3.12"), "").expect("written");
        symlink("3.12.1", at("pythons/3.12")).expect("linked");
        symlink(at("pythons/3.12/bin/python3.12"), at("env/bin/python")).expect("linked");
        let found = prefixes(&at("env/bin/python"));
        for expected in ["env", "pythons/3.12", "pythons/3.12.1"] {
            assert!(found.contains(&at(expected)), "{expected}: {found:?}");
        }
        assert!(prefixes(Path::new("/python")).is_empty());
    }

    #[test]
    fn without_a_launcher_nothing_is_promised() {
        let isolator = Isolator::open(&IsolationSettings::default(), PathBuf::from("/nowhere")).expect("opened");
        assert_eq!((isolator.note(), isolator.launches()), (None, false));
        assert!(isolator.check().is_ok());
    }
}
