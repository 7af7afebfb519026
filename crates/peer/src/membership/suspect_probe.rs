//! Direct notices to suspected nodes, repeated until each refutes or is declared dead.
//!
//! foca passes suspicion on as gossip, which may not reach the suspect in time where packets are lost. A direct word and
//! a direct answer, tried every [`NOTICE_INTERVAL`], make a false death as unlikely as that many losses in a row.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use berth_spec::WorkerId;

use super::node::Node;

/// Interval between notices to a suspect; several fit into `suspect_for`.
pub(super) const NOTICE_INTERVAL: Duration = Duration::from_millis(50);

/// Pending suspicion of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Suspicion {
    pub(super) node: Node,
    /// The incarnation that is suspected; `None`: it is said to be dead.
    pub(super) suspected: Option<u16>,
    until: Instant,
}

/// Nodes that are notified of a suspicion.
#[derive(Default)]
pub(super) struct SuspectProbe {
    charges: BTreeMap<WorkerId, Suspicion>,
    next: Option<Instant>,
}

impl SuspectProbe {
    pub(super) fn accuse(&mut self, node: Node, suspected: Option<u16>, now: Instant, window: Duration) {
        let Some(name) = node.name.clone() else { return };
        self.charges.insert(name, Suspicion { node, suspected, until: now + window });
        self.next = Some(now);
    }

    pub(super) fn acquit(&mut self, name: &WorkerId) {
        self.charges.remove(name);
        if self.charges.is_empty() {
            self.next = None;
        }
    }

    pub(super) const fn wake_at(&self) -> Option<Instant> {
        self.next
    }

    /// Suspects whose next notice is due.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Suspicion> {
        if self.next.is_none_or(|next| next > now) {
            return Vec::new();
        }
        self.charges.retain(|_, charge| charge.until > now);
        self.next = (!self.charges.is_empty()).then(|| now + NOTICE_INTERVAL);
        self.charges.values().cloned().collect()
    }
}
