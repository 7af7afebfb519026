//! The description of a sandbox, as the worker writes it and the launcher reads it.

use std::{fmt, path::PathBuf, str::FromStr};

use serde::{Deserialize, Serialize};

/// The strength of the isolation of code that is not Berth's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// A process with a memory limit, nothing more.
    None,
    /// Limits, no new privileges and a filter of system calls; files and network are the worker's.
    Process,
    /// Also files, network, processes and user of its own, as far as the kernel allows.
    #[default]
    Sandbox,
}

impl Isolation {
    /// The words in orders and messages, the weakest first.
    pub const WORDS: [(&'static str, Self); 3] =
        [("none", Self::None), ("process", Self::Process), ("sandbox", Self::Sandbox)];
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::WORDS.iter().find(|(_, value)| value == self).map_or("none", |(word, _)| word))
    }
}

impl FromStr for Isolation {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::WORDS.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| "write none, process or sandbox".to_owned())
    }
}

/// The network that a process reaches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// A loopback of its own, with nobody on it.
    #[default]
    None,
    /// The network of the machine, as any process has it.
    Machine,
}

impl Network {
    /// The words in orders and messages.
    pub const WORDS: [(&'static str, Self); 2] = [("none", Self::None), ("machine", Self::Machine)];
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::WORDS.iter().find(|(_, value)| value == self).map_or("none", |(word, _)| word))
    }
}

impl FromStr for Network {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::WORDS.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| "write none or machine".to_owned())
    }
}

/// Bounds on what a process takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Processes and threads of its user.
    pub processes: u64,
    /// Open files of a process.
    pub files: u64,
    /// Bytes that one file may grow to.
    pub file_size: u64,
    /// Memory for data, where no control group limits it.
    pub data: Option<u64>,
    /// Bytes of all files in memory together (`/tmp`, `/dev/shm`, and the folder with [`Storage::Memory`]); none: half of the machine's
    /// memory.
    pub memory_files: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // A model with all its thread pools takes fewer than a hundred on most machines, and a fork bomb any number.
            processes: 1_024,
            // Loaders of sharded weights open some hundreds.
            files: 4_096,
            // The largest single files of weights are below.
            file_size: 64 << 30,
            data: None,
            memory_files: None,
        }
    }
}

/// The storage of the folder that a process writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// The folder itself, which has no bound.
    #[default]
    Disk,
    /// Memory, where there is a file tree; copies of the folder's files are in it.
    Memory,
    /// The same, and sent to the starter over the socket that is the standard input, after a listener.
    MemorySent,
}

/// A sandbox for one process and those that it starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Strength of the isolation; the rest counts as far as that asks for it.
    pub isolation: Isolation,
    /// The folder that the process may write, and runs in. Nobody else uses it.
    pub folder: PathBuf,
    /// Storage of that folder: on disk, or in memory.
    #[serde(default)]
    pub storage: Storage,
    /// Files and folders that it may read and run, beside those of the system.
    pub readable: Vec<PathBuf>,
    /// Folders that it must not see, though they may lie inside of readable ones.
    pub hidden: Vec<PathBuf>,
    /// True if it uses GPUs.
    pub gpus: bool,
    /// Network that the process reaches.
    pub network: Network,
    /// A port of its loopback whose listener is sent to the starter, over the socket that is its standard input, before anything
    /// else; for a network of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listener: Option<u16>,
    /// Folders of control groups to join.
    pub groups: Vec<PathBuf>,
    /// Bounds that every process in it has.
    pub limits: Limits,
    /// A user of its own; taken where [`Mechanisms::own_user`] is.
    pub user: Option<u32>,
}

/// The mechanisms of the kernel that are used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mechanisms {
    /// The namespaces are made inside of a user namespace, as an ordinary user does.
    pub user_namespace: bool,
    /// A file tree of its own.
    pub files: bool,
    /// Process numbers of its own, where nobody else is.
    pub processes: bool,
    /// A network of its own, with nothing but a loopback.
    pub network: bool,
    /// A user of its own: only root can.
    pub own_user: bool,
    /// The version of Landlock's interface; 0: there is none.
    pub landlock: u32,
    /// A filter of system calls (seccomp).
    pub system_calls: bool,
}

impl Mechanisms {
    /// Names of those that this machine lacks, for people.
    #[must_use]
    pub fn missing(&self, is_root: bool) -> Vec<&'static str> {
        let own_user = match self.files {
            true => "a user of its own (needs CAP_SETUID and CAP_SETGID)",
            false => "a user of its own (needs the file tree)",
        };
        let all = [
            (self.files, "a file tree of its own (mount namespace)"),
            (self.processes, "process numbers of its own (pid namespace)"),
            (self.network, "a network of its own (network namespace)"),
            (self.own_user || !is_root, own_user),
            (self.landlock > 0, "Landlock"),
            (self.system_calls, "a filter of system calls (seccomp)"),
        ];
        all.into_iter().filter(|(has, _)| !has).map(|(_, name)| name).collect()
    }
}

/// All that the launcher is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) sandbox: Sandbox,
    pub(crate) mechanisms: Mechanisms,
    /// The process that it must not outlive.
    pub(crate) parent: u32,
    /// Goes on as this program, with what has this name, and runs no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) own: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_go_both_ways() {
        for (word, value) in Isolation::WORDS {
            assert_eq!((word.parse(), value.to_string().as_str()), (Ok(value), word));
        }
        for (word, value) in Network::WORDS {
            assert_eq!((word.parse(), value.to_string().as_str()), (Ok(value), word));
        }
        assert!("jail".parse::<Isolation>().is_err());
    }

    #[test]
    fn an_ordinary_user_misses_no_user() {
        let all = Mechanisms {
            files: true,
            processes: true,
            network: true,
            landlock: 1,
            system_calls: true,
            ..Mechanisms::default()
        };
        assert!(all.missing(false).is_empty());
        assert_eq!(all.missing(true).len(), 1);
        assert_eq!(Mechanisms::default().missing(false).len(), 5);
    }
}
