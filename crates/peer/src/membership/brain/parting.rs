//! How a node goes: it says so under a last number, a few times, and is silent then.

use std::time::{Duration, Instant};

use super::{Effect, Membership, Phase};
use crate::membership::node::Node;

/// Rounds of gossip in which a leaving node tells so, and the time between them.
const FAREWELLS: u32 = 5;
const FAREWELL_EVERY: Duration = Duration::from_millis(40);

impl Membership {
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
