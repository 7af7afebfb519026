//! Leaving the cluster. A node that is told to stop repeats a notice while it hands over; at the end it announces its
//! departure under a last number and falls silent.
//!
//! The notice goes to each member directly and repeatedly: it matters to all of them at once and holds only for
//! seconds.

use std::time::{Duration, Instant};

use super::{Effect, Membership, Phase};
use crate::membership::{
    node::Node,
    packet::{self, Kind, Leaving},
};

/// Interval between leave notices. A lost one is repeated after a quarter of a second, before the hand-over goes on
/// without that member.
const PARTING_EVERY: Duration = Duration::from_millis(250);

/// Rounds of gossip in which a leaving node tells so, and the time between them.
const FAREWELLS: u32 = 5;
const FAREWELL_EVERY: Duration = Duration::from_millis(40);

impl Membership {
    /// This node will go, and answers still.
    pub(super) fn announce_parting(&mut self, now: Instant) {
        self.parting_at = Some(now);
        self.view.part(&self.me.name.clone());
        self.tell_parting(now);
        self.look(now);
    }

    /// Says to all others that this node will go, if it will.
    pub(super) fn tell_parting(&mut self, now: Instant) {
        if self.parting_at.is_none_or(|at| at > now) {
            return;
        }
        self.parting_at = Some(now + PARTING_EVERY);
        let node = self.foca.identity();
        let packet = packet::write(Kind::Leaving, &Leaving { name: self.me.name.clone(), start: node.start });
        let others: Vec<_> = self.foca.iter_members().map(|member| member.id().gossip).collect();
        for to in others {
            self.send(to, packet.clone());
        }
    }

    /// Another node will go.
    pub(super) fn parts(&mut self, said: &Leaving, now: Instant) {
        if self.view.node(&said.name).is_some_and(|node| node.start == said.start) {
            self.view.part(&said.name);
            if self.phase == Phase::In {
                self.look(now);
            }
        }
    }

    pub(super) fn leave(&mut self, now: Instant) {
        self.phase = Phase::Leaving { rounds: FAREWELLS, next: now + FAREWELL_EVERY };
        let node = Node { leaving: true, ..self.foca.identity().renewed() };
        self.swim(now, |foca, out| foca.change_identity(node, out));
        self.swim(now, |foca, out| foca.leave_cluster(out));
    }

    pub(super) fn farewell(&mut self, rounds: u32, next: Instant, now: Instant) {
        if now < next {
            return;
        }
        if rounds == 0 {
            self.phase = Phase::Gone;
            self.effects.push(Effect::Left);
            return;
        }
        self.phase = Phase::Leaving { rounds: rounds - 1, next: now + FAREWELL_EVERY };
        self.swim(now, |foca, out| foca.gossip(out));
    }
}
