//! Members of a cluster: the nodes, their roles, and their health as the others see it.

use std::{collections::BTreeMap, fmt, net::SocketAddr, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::WorkerId;

/// The label that names a node's region: latency between regions is high, and one may fail whole.
pub const REGION: &str = "region";

/// The label that names a node's zone: what fails together inside a region.
pub const ZONE: &str = "zone";

/// A node as the others know it. It is named like its worker, whether it has one or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The node's name, unique in the cluster.
    pub name: WorkerId,
    /// Grows with each start of the process.
    pub incarnation: u64,
    /// Its address for gossip (UDP).
    pub gossip: SocketAddr,
    /// Its address for connections of other nodes (TLS).
    pub peer: SocketAddr,
    /// The roles that it runs.
    pub roles: Roles,
    /// Its labels: [`REGION`], [`ZONE`] and whatever selectors match.
    pub labels: BTreeMap<String, String>,
    /// Its version of Berth, by which upgrades are followed.
    pub version: String,
    /// The oldest and the newest protocol between nodes that it speaks.
    pub protocol: (u16, u16),
}

impl Member {
    /// The value of its label [`REGION`]; `None`: it has none.
    #[must_use]
    pub fn region(&self) -> Option<&str> {
        self.labels.get(REGION).map(String::as_str)
    }
}

/// Health of a node by the judgement of the members together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Health {
    /// Answers probes.
    Alive,
    /// Did not answer a probe, directly or through others; may still refute that.
    Suspect,
    /// Taken for dead.
    Failed,
    /// Left, by its own word.
    Left,
}

impl Health {
    /// The word in status, metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Alive => "Alive",
            Self::Suspect => "Suspect",
            Self::Failed => "Failed",
            Self::Left => "Left",
        }
    }

    /// True if it may still answer.
    #[must_use]
    pub const fn is_there(self) -> bool {
        matches!(self, Self::Alive | Self::Suspect)
    }
}

/// Roles of a node: the parts of Berth that it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Roles {
    /// May be elected to decide.
    pub controller: bool,
    /// Holds models.
    pub worker: bool,
    /// Takes requests of clients.
    pub gateway: bool,
}

impl Roles {
    /// All of them: the default.
    pub const ALL: Self = Self { controller: true, worker: true, gateway: true };

    /// No role: what roles are read into, and what a certificate may not have.
    pub const NONE: Self = Self { controller: false, worker: false, gateway: false };

    /// True if each of `others` is among these.
    #[must_use]
    pub const fn contain(self, others: Self) -> bool {
        (self.controller || !others.controller) && (self.worker || !others.worker) && (self.gateway || !others.gateway)
    }

    /// The roles that are in these, in `others`, or in both.
    #[must_use]
    pub const fn union(self, others: Self) -> Self {
        Self {
            controller: self.controller || others.controller,
            worker: self.worker || others.worker,
            gateway: self.gateway || others.gateway,
        }
    }

    const WORDS: [&'static str; 3] = ["controller", "worker", "gateway"];

    const fn flags(self) -> [bool; 3] {
        [self.controller, self.worker, self.gateway]
    }
}

impl Default for Roles {
    fn default() -> Self {
        Self::ALL
    }
}

impl fmt::Display for Roles {
    /// `controller,worker,gateway`, those that it has.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = Self::WORDS.into_iter().zip(self.flags()).filter(|(_, has)| *has);
        f.write_str(&words.map(|(word, _)| word).collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Roles {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut roles = Self::NONE;
        for word in text.split(',').map(str::trim) {
            match word {
                "controller" => roles.controller = true,
                "worker" => roles.worker = true,
                "gateway" => roles.gateway = true,
                _ => {
                    return Err(format!(
                        "{word:?} is no role: give some of controller,worker,gateway, with commas between"
                    ));
                }
            }
        }
        Ok(roles)
    }
}

/// A term of leadership: a later leader has a higher one. It is the revision at which the store created the leader's key,
/// so every write of a leader can be made to hold only while its term does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number for a gateway that is connected to the controller; a new connection is a new number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GatewayId(pub u64);

/// An operator's word on a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cordon {
    /// Takes new replicas.
    #[default]
    Open,
    /// Takes no new replicas; those that it holds stay.
    Cordoned,
    /// Takes no new replicas, and those that it holds move elsewhere: copies first, then they leave.
    Draining,
}

impl Cordon {
    /// The word in status and in the store.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Cordoned => "cordoned",
            Self::Draining => "draining",
        }
    }

    /// True if it takes new replicas.
    #[must_use]
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_come_back_as_they_were_said() {
        for text in ["controller,worker,gateway", "worker", "controller,gateway"] {
            assert_eq!(text.parse::<Roles>().expect("roles").to_string(), text);
        }
        assert_eq!("gateway, worker".parse::<Roles>().expect("roles").to_string(), "worker,gateway");
        assert!("".parse::<Roles>().is_err() && "worker,cook".parse::<Roles>().is_err());
    }
}
