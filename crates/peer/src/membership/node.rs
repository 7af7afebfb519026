//! Identity of a node inside the protocol. Small, because each packet carries several.

use std::net::SocketAddr;

use berth_spec::WorkerId;
use foca::Identity;
use serde::{Deserialize, Serialize};

/// A node under one number. Field order is the wire's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Node {
    /// Name; `None` only in an announcement to a seed whose name is unknown.
    pub(super) name: Option<WorkerId>,
    /// [`berth_spec::Member::incarnation`]: grows with each start of the process.
    pub(super) start: u64,
    /// Grows each time it was buried alive.
    pub(super) renewal: u32,
    /// Set when the node announces its departure.
    pub(super) leaving: bool,
    /// Address for gossip (UDP), as the node says it.
    pub(super) gossip: SocketAddr,
}

impl Node {
    /// Placeholder for whichever node answers at a seed address.
    pub(super) fn seed(gossip: SocketAddr) -> Self {
        Self { name: None, start: 0, renewal: 0, leaving: false, gossip }
    }

    /// The node under its next number.
    pub(super) fn renewed(&self) -> Self {
        Self { renewal: self.renewal.saturating_add(1), ..self.clone() }
    }

    /// Ordering key of two numbers of one name.
    const fn number(&self) -> (u64, u32, bool) {
        (self.start, self.renewal, self.leaving)
    }

    /// True if this number is later than the other's.
    pub(super) fn is_later_than(&self, other: &Self) -> bool {
        self.number() > other.number()
    }
}

/// Of two nodes with one name there is one. An address without a name may be anybody's.
#[derive(Debug, Clone)]
pub(super) struct MemberAddr(Option<WorkerId>);

impl PartialEq for MemberAddr {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        }
    }
}

impl Identity for Node {
    type Addr = MemberAddr;

    fn renew(&self) -> Option<Self> {
        // Who goes does not come back when it hears that it is gone.
        (!self.leaving).then(|| self.renewed())
    }

    fn addr(&self) -> MemberAddr {
        MemberAddr(self.name.clone())
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        self.is_later_than(adversary)
    }
}
