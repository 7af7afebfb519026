//! Health of all other members as this node displays it.
//!
//! ```text
//!          ┌── a new number ──┐
//!          ↓                  │
//! Up ⇄ Suspect       Doubted ─┴─ confirm over ─→ Failed ── forget_after ─→ gone
//!  │      │             ↑                           │
//!  └──────┴─ buried ────┘                           └── a new number ─→ Up (recovering for a while)
//!  └──────┴─ says that it goes ─→ Left ── forget_after ─→ gone
//! ```
//!
//! A doubted node is shown as suspect: others have buried it, and this node tries itself (`accused`) before it believes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::Instant,
};

use berth_spec::{Health, Member, WorkerId};

use super::{cards::Cards, node::Node, policy::Policy};
use crate::members::MemberTable;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DisplayState {
    Up,
    Suspect,
    Doubted { since: Instant },
    Failed { since: Instant },
    Left { since: Instant },
}

#[derive(Debug)]
struct MemberEntry {
    node: Node,
    shown: DisplayState,
    recovering_until: Option<Instant>,
}

/// All nodes but this one.
#[derive(Debug, Default)]
pub(super) struct View {
    nodes: BTreeMap<WorkerId, MemberEntry>,
    /// Members that say that they will go, this node among them.
    leaving: BTreeSet<WorkerId>,
    changed: bool,
}

impl View {
    /// A node that takes part.
    pub(super) fn up(&mut self, node: &Node, suspect: bool, now: Instant, policy: &Policy) {
        let Some(name) = &node.name else { return };
        if node.leaving {
            return self.down(node, now);
        }
        let shown = if suspect { DisplayState::Suspect } else { DisplayState::Up };
        let seen = self.nodes.entry(name.clone()).or_insert_with(|| {
            self.changed = true;
            MemberEntry { node: node.clone(), shown, recovering_until: None }
        });
        if matches!(seen.shown, DisplayState::Failed { .. }) {
            seen.recovering_until = Some(now + policy.recovering);
        }
        if seen.node.start != node.start {
            // Started anew, it stays.
            self.changed |= self.leaving.remove(name);
        }
        if seen.shown != shown || seen.node != *node {
            (seen.node, seen.shown) = (node.clone(), shown);
            self.changed = true;
        }
    }

    /// Records that a present member will leave.
    pub(super) fn mark_leaving(&mut self, name: &WorkerId) {
        self.changed |= self.leaving.insert(name.clone());
    }

    /// A node that no longer does.
    pub(super) fn down(&mut self, node: &Node, now: Instant) {
        let Some(seen) = node.name.as_ref().and_then(|name| self.nodes.get_mut(name)) else { return };
        if seen.node.is_later_than(node) {
            return;
        }
        self.changed = true;
        seen.node = node.clone();
        seen.shown = match seen.shown {
            DisplayState::Left { .. } => seen.shown,
            _ if node.leaving => DisplayState::Left { since: now },
            DisplayState::Up | DisplayState::Suspect => DisplayState::Doubted { since: now },
            _ => seen.shown,
        };
    }

    /// Applies the passage of time. Returns members that can be forgotten.
    pub(super) fn settle(&mut self, now: Instant, policy: &Policy) -> Vec<WorkerId> {
        for seen in self.nodes.values_mut() {
            if let DisplayState::Doubted { since } = seen.shown
                && now >= since + policy.confirm
            {
                seen.shown = DisplayState::Failed { since: now };
                self.changed = true;
            }
            self.changed |= seen.recovering_until.take_if(|until| *until <= now).is_some();
        }
        let old = |seen: &MemberEntry| match seen.shown {
            DisplayState::Failed { since } | DisplayState::Left { since } => now >= since + policy.forget_after,
            _ => false,
        };
        let forgotten: Vec<WorkerId> =
            self.nodes.iter().filter(|(_, seen)| old(seen)).map(|(name, _)| name.clone()).collect();
        for name in &forgotten {
            self.changed = true;
            self.nodes.remove(name);
            self.leaving.remove(name);
        }
        forgotten
    }

    /// True if the table changed since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// True if a node failed or left.
    pub(super) fn is_gone(&self, name: &WorkerId) -> bool {
        let gone = |seen: &MemberEntry| matches!(seen.shown, DisplayState::Failed { .. } | DisplayState::Left { .. });
        self.nodes.get(name).is_some_and(gone)
    }

    /// The number under which a node is known.
    pub(super) fn node(&self, name: &WorkerId) -> Option<&Node> {
        self.nodes.get(name).map(|seen| &seen.node)
    }

    /// Time at which the next doubted node is declared failed.
    pub(super) fn wake_at(&self, policy: &Policy) -> Option<Instant> {
        let doubted = |seen: &MemberEntry| match seen.shown {
            DisplayState::Doubted { since } => Some(since + policy.confirm),
            _ => None,
        };
        self.nodes.values().filter_map(doubted).min()
    }

    /// Addresses of members that may return: all that did not leave.
    pub(super) fn reachable(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.nodes.values().filter(|seen| !matches!(seen.shown, DisplayState::Left { .. })).map(|seen| seen.node.gossip)
    }

    /// Addresses of failed members.
    pub(super) fn failed(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.nodes
            .values()
            .filter(|seen| matches!(seen.shown, DisplayState::Failed { .. }))
            .map(|seen| seen.node.gossip)
    }

    /// True if some member has this address.
    pub(super) fn is_there(&self, gossip: SocketAddr) -> bool {
        self.nodes
            .values()
            .any(|seen| matches!(seen.shown, DisplayState::Up | DisplayState::Suspect) && seen.node.gossip == gossip)
    }

    /// Builds the table of all members with a card. Unchanged members are shared with `before`.
    pub(super) fn table(&self, me: &Arc<Member>, cards: &Cards, before: &MemberTable) -> MemberTable {
        let mut table = MemberTable::default();
        table.set(Arc::clone(me), Health::Alive);
        for (name, seen) in &self.nodes {
            let Some(card) = cards.get(name) else { continue };
            let health = match seen.shown {
                // It was started anew; where it is now its new card will say.
                DisplayState::Up if card.start < seen.node.start => Health::Suspect,
                DisplayState::Up => Health::Alive,
                DisplayState::Suspect | DisplayState::Doubted { .. } => Health::Suspect,
                DisplayState::Failed { .. } => Health::Failed,
                DisplayState::Left { .. } => Health::Left,
            };
            let member = match before.get(name) {
                Some((member, _)) if member.incarnation == card.start => Arc::clone(member),
                _ => Arc::new(card.member()),
            };
            table.set(member, health);
        }
        let recovering = self.nodes.iter().filter(|(_, seen)| seen.recovering_until.is_some());
        table.set_leaving(self.leaving.clone());
        table.set_recovering(recovering.map(|(name, _)| name.clone()).collect::<BTreeSet<_>>());
        table
    }
}
