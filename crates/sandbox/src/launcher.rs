//! The launcher from outside: found once, then asked for a command per process.

use std::{
    hash::{BuildHasher as _, RandomState},
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    FLAG,
    spec::{Isolation, Mechanisms, Network, Order, Sandbox},
};

/// The program that starts others in sandboxes, and what this machine allows it.
#[derive(Debug, Clone)]
pub struct Launcher {
    program: PathBuf,
    mechanisms: Mechanisms,
    is_root: bool,
}

impl Launcher {
    /// Tries what works on this machine, the strongest first. `program` calls [`entered`](crate::entered) before anything
    /// else. Blocks for some milliseconds.
    ///
    /// # Errors
    /// If the program cannot be run at all.
    pub fn find(program: impl Into<PathBuf>) -> io::Result<Self> {
        let is_root = rustix::process::geteuid().is_root();
        let mut launcher = Self { program: program.into(), mechanisms: Mechanisms::default(), is_root };
        let alone = launcher.trial(Mechanisms { system_calls: true, landlock: 1, ..Mechanisms::default() })?;
        let (landlock, system_calls) = match alone {
            Some(landlock) => (landlock, true),
            None => (launcher.trial(Mechanisms { landlock: 1, ..Mechanisms::default() })?.unwrap_or(0), false),
        };
        let with = |user_namespace, [files, processes, network]: [bool; 3]| Mechanisms {
            user_namespace,
            files,
            processes,
            network,
            own_user: is_root && files && !user_namespace,
            landlock,
            system_calls,
        };
        let combinations =
            [[true, true, true], [true, false, true], [true, true, false], [true, false, false], [false, false, true]];
        launcher.mechanisms = with(false, [false; 3]);
        for combination in combinations {
            // Root needs no user namespace, and has a user for each process instead.
            for user_namespace in if is_root { [false, true].as_slice() } else { &[true] } {
                let mechanisms = with(*user_namespace, combination);
                if launcher.trial(mechanisms)?.is_some() {
                    launcher.mechanisms = mechanisms;
                    return Ok(launcher);
                }
            }
        }
        Ok(launcher)
    }

    /// The mechanisms that work here.
    #[must_use]
    pub fn mechanisms(&self) -> Mechanisms {
        self.mechanisms
    }

    /// Names of the mechanisms that do not, for people.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        self.mechanisms.missing(self.is_root)
    }

    /// The command that starts `program` in a sandbox. The caller adds arguments, environment and streams. The process that is
    /// started waits for the program and ends as it does; it ends when the calling thread does.
    ///
    /// # Errors
    /// If a path of the sandbox is no UTF-8.
    pub fn command(&self, sandbox: &Sandbox, program: &Path) -> io::Result<Command> {
        let order = self.order(sandbox.clone(), None);
        let mut command = Command::new(&self.program);
        command.arg(FLAG).arg(serde_json::to_string(&order)?).arg("--").arg(program);
        Ok(command)
    }

    /// The same for this program itself: once it is confined it goes on with `name`, which [`entered`](crate::entered) was
    /// given. Nothing is run anew, so that its file need not be seen in the sandbox, nor be the one that it was.
    ///
    /// # Errors
    /// If a path of the sandbox is no UTF-8.
    pub fn command_own(&self, sandbox: &Sandbox, name: &str) -> io::Result<Command> {
        let order = self.order(sandbox.clone(), Some(name.to_owned()));
        let mut command = Command::new(&self.program);
        command.arg(FLAG).arg(serde_json::to_string(&order)?);
        Ok(command)
    }

    fn order(&self, mut sandbox: Sandbox, own: Option<String>) -> Order {
        let mut mechanisms = self.mechanisms;
        if sandbox.isolation != Isolation::Sandbox {
            mechanisms = Mechanisms { system_calls: mechanisms.system_calls, ..Mechanisms::default() };
        }
        if sandbox.network == Network::Machine {
            mechanisms.network = false;
        }
        mechanisms.own_user &= sandbox.user.is_some();
        if !mechanisms.own_user {
            sandbox.user = None;
        }
        Order { sandbox, mechanisms, parent: std::process::id(), own }
    }

    /// Runs nothing in a sandbox of these mechanisms. `None`: it cannot be made; else the version of Landlock.
    fn trial(&self, mechanisms: Mechanisms) -> io::Result<Option<u32>> {
        let folder = Trial::new()?;
        let user = mechanisms.own_user.then_some(TRIAL_USER);
        let sandbox = Sandbox { folder: folder.0.clone(), user, ..Sandbox::default() };
        let order = Order { sandbox, mechanisms, parent: std::process::id(), own: None };
        let mut command = Command::new(&self.program);
        command.arg(FLAG).arg(serde_json::to_string(&order)?).current_dir("/").env_clear();
        let said = command.stdin(Stdio::null()).stderr(Stdio::null()).output()?;
        Ok(said.status.success().then(|| String::from_utf8_lossy(&said.stdout).trim().parse().ok()).flatten())
    }
}

/// A user for trials: any that is not root.
const TRIAL_USER: u32 = 65_534;

/// An empty folder for one trial, removed when it is dropped.
struct Trial(PathBuf);

impl Trial {
    fn new() -> io::Result<Self> {
        // The number is random: one of this process may be in use already, by what an earlier process with the same number left behind.
        let name = format!("berth-sandbox-{:016x}", RandomState::new().hash_one(0));
        let folder = std::env::temp_dir().join(name);
        fs_err::create_dir(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        // An instrumented build leaves its profile in it. What cannot be removed costs disk, nothing else.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_has_a_folder_of_its_own_and_leaves_nothing() {
        let forgotten = Trial::new().expect("a folder");
        let trial = Trial::new().expect("another");
        assert_ne!(forgotten.0, trial.0);
        let process = std::process::id().to_string();
        let names = |trial: &Trial| trial.0.to_string_lossy().split('-').any(|part| part == process);
        assert!(!names(&forgotten) && !names(&trial), "a later process may have the same number");
        let folder = trial.0.clone();
        fs_err::write(folder.join("default.profraw"), "what a build with counters leaves").expect("written");
        drop(trial);
        assert!(!folder.exists());
    }
}
