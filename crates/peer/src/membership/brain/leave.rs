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
const LEAVE_NOTICE_INTERVAL: Duration = Duration::from_millis(250);

/// Rounds of gossip in which a leaving node tells so, and the time between them: several, since packets get lost, and a fifth of a second
/// in all.
const LEAVE_ROUNDS: u32 = 5;
const LEAVE_ROUND_INTERVAL: Duration = Duration::from_millis(40);

impl Membership {
    /// Notes that this node will go; it answers still.
    pub(super) fn announce_leave(&mut self, now: Instant) {
        self.leave_notice_at = Some(now);
        self.view.mark_leaving(&self.me.name.clone());
        self.send_leave_notices(now);
        self.look(now);
    }

    /// Says to all others that this node will go, if it will.
    pub(super) fn send_leave_notices(&mut self, now: Instant) {
        if self.leave_notice_at.is_none_or(|at| at > now) {
            return;
        }
        self.leave_notice_at = Some(now + LEAVE_NOTICE_INTERVAL);
        let node = self.foca.identity();
        let packet = packet::write(Kind::Leaving, &Leaving { name: self.me.name.clone(), start: node.start });
        let others: Vec<_> = self.foca.iter_members().map(|member| member.id().gossip).collect();
        for to in others {
            self.send(to, packet.clone());
        }
    }

    /// Another node will go.
    pub(super) fn leave_noticed(&mut self, said: &Leaving, now: Instant) {
        if self.view.node(&said.name).is_some_and(|node| node.start == said.start) {
            self.view.mark_leaving(&said.name);
            if self.phase == Phase::In {
                self.look(now);
            }
        }
    }

    pub(super) fn leave(&mut self, now: Instant) {
        self.phase = Phase::Leaving { rounds: LEAVE_ROUNDS, next: now + LEAVE_ROUND_INTERVAL };
        let node = Node { leaving: true, ..self.foca.identity().renewed() };
        self.swim(now, |foca, out| foca.change_identity(node, out));
        self.swim(now, |foca, out| foca.leave_cluster(out));
    }

    pub(super) fn gossip_leave(&mut self, rounds: u32, next: Instant, now: Instant) {
        if now < next {
            return;
        }
        if rounds == 0 {
            self.phase = Phase::Gone;
            self.effects.push(Effect::Left);
            return;
        }
        self.phase = Phase::Leaving { rounds: rounds - 1, next: now + LEAVE_ROUND_INTERVAL };
        self.swim(now, |foca, out| foca.gossip(out));
    }
}
