//! Isolation of models from the worker that runs them, and the network that they reach.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The strength of the isolation of a model. Each level holds what the one before it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// None: a graph runs inside of the worker, Python in a process with a memory limit.
    None,
    /// A process of its own with limits, no new privileges and a filter of system calls; files and network are the worker's.
    Process,
    /// Also files, network, processes and user of its own.
    Sandbox,
}

impl Isolation {
    /// All, the weakest first.
    pub const ALL: [Self; 3] = [Self::None, Self::Process, Self::Sandbox];

    /// The word in manifests and messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Process => "process",
            Self::Sandbox => "sandbox",
        }
    }
}

/// The isolation that a runtime can give its models on a machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IsolationOffer {
    /// The strongest level.
    pub most: Isolation,
    /// For people: what a stronger one lacks; empty: this is the strongest that there is.
    pub lacks: String,
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Isolation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|level| level.as_str() == text);
        found.ok_or_else(|| "write none, process or sandbox".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_go_both_ways_and_stronger_is_more() {
        for level in Isolation::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        assert!(Isolation::ALL.is_sorted());
        assert!("jail".parse::<Isolation>().is_err());
    }
}
