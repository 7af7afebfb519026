//! Finds other nodes, and their cards, despite packet loss.

use std::{net::SocketAddr, time::Instant};

use berth_spec::WorkerId;
use rand::{RngExt as _, seq::IteratorRandom as _};

use super::{CARD, Membership, Phase};
use crate::membership::{
    node::Node,
    packet::{self, Card, DescribeRequest, Kind, PACKET},
};

/// Addresses that a lonely node announces itself to in one round; enough to reach a live seed.
const ANNOUNCE_TO: usize = 8;

impl Membership {
    /// Repeats the announcement of this node: to all known addresses while it is alone, to one member after another
    /// while it is new. foca sends it only once, and the packet or its answer may be lost.
    pub(super) fn announce(&mut self, now: Instant) {
        if now < self.announce_at {
            return;
        }
        let (alone, young) = (self.foca.num_members() == 0, now < self.fresh_since + self.policy.young);
        let after = match (alone, young) {
            (_, true) => self.policy.announce_every,
            (true, false) => self.policy.reach_every,
            (false, false) => self.policy.compare_every,
        };
        self.announce_at = now + after.mul_f64(self.rng.random_range(0.75..1.0));
        if alone {
            let known = self.seeds.iter().copied().chain(self.view.reachable()).filter(|at| *at != self.me.gossip);
            let some = known.sample(&mut self.rng, ANNOUNCE_TO);
            for seed in some {
                self.swim(now, |foca, out| foca.announce(Node::seed(seed), out));
            }
        } else if let Some(member) = self.foca.iter_members().choose(&mut self.rng) {
            let node = member.id().clone();
            self.swim(now, |foca, out| foca.announce(node, out));
        }
    }

    /// Contacts a failed member and a missing seed, which ends partitions that outlast foca's memory.
    pub(super) fn reach(&mut self, now: Instant) {
        if now < self.reach_at {
            return;
        }
        self.reach_at = now + self.policy.reach_every.mul_f64(self.rng.random_range(0.75..1.0));
        let missing = |seed: &SocketAddr| *seed != self.me.gossip && !self.view.is_there(*seed);
        let seed = self.seeds.iter().copied().filter(missing).choose(&mut self.rng);
        let failed = self.view.failed().choose(&mut self.rng);
        for at in [seed, failed].into_iter().flatten() {
            self.swim(now, |foca, out| foca.announce(Node::seed(at), out));
        }
    }

    /// Requests missing cards from their owners and from members that may have them.
    pub(super) fn ask(&mut self, now: Instant) {
        let names = self.cards.due(now);
        if names.is_empty() {
            return;
        }
        let me = self.cards.own().clone();
        for name in &names {
            if let Some(to) = self.view.node(name).map(|node| node.gossip) {
                self.send(
                    to,
                    packet::write(
                        Kind::DescribeRequest,
                        &DescribeRequest { me: me.clone(), names: vec![name.clone()] },
                    ),
                );
            }
        }
        if let Some(other) = self.foca.iter_members().choose(&mut self.rng).map(|member| member.id().gossip) {
            let mut room = PACKET - CARD - 16;
            let fits = |name: &WorkerId| {
                let size = name.as_str().len() + 1;
                room.checked_sub(size).inspect(|left| room = *left).is_some()
            };
            let names = names.into_iter().filter(fits).collect();
            self.send(other, packet::write(Kind::DescribeRequest, &DescribeRequest { me, names }));
        }
    }

    pub(super) fn asked(&mut self, ask: DescribeRequest, now: Instant) {
        if let Some(answer) = packet::pack_cards(self.cards.of(&ask.names)) {
            self.send(ask.me.gossip, answer);
        }
        self.learn(vec![ask.me], now);
    }

    pub(super) fn learn(&mut self, cards: Vec<Card>, now: Instant) {
        let mut news = false;
        for card in cards {
            news |= self.cards.learn(card);
        }
        if news && self.phase == Phase::In {
            self.changed = true;
            self.look(now);
        }
    }
}
