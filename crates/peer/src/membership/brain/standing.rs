//! Defence of this node: refutes its own death, and claims its name against another process.

use std::{sync::Arc, time::Instant};

use berth_spec::Member;
use foca::State;

use super::{Effect, Membership, Phase};
use crate::membership::{
    node::Node,
    packet::{self, Kind, NameAnswer, NameQuery, NameReply, NewerStart, SuspicionNotice},
};

/// Claims of the name before a node gives way to another process with the same name. A clock that went back takes one of them.
const CLAIMS: u32 = 3;

impl Membership {
    /// Refutes a suspicion or a declaration of death at once.
    pub(super) fn accused(&mut self, SuspicionNotice { by, accused, suspected }: SuspicionNotice, now: Instant) {
        if accused.name.as_ref() != Some(&self.me.name) || self.phase != Phase::In {
            return;
        }
        if suspected.is_none() && accused.start > self.foca.identity().start {
            // A later start of this name was there and is gone: the name is free again.
            self.claims = 0;
            return self.claim(accused.start, now);
        }
        if accused == *self.foca.identity() {
            let charge = match suspected {
                Some(incarnation) => foca::Member::new(accused, incarnation, State::Suspect),
                None => foca::Member::down(accused),
            };
            self.swim(now, |foca, out| foca.apply_many(std::iter::once(charge), true, out));
        }
        self.swim(now, |foca, out| foca.announce(by, out));
    }

    /// Tells a node that speaks under an older start than is known: its clock went back, or there are two.
    pub(super) fn heard(&mut self, node: &Node) {
        let known = node.name.as_ref().and_then(|name| self.view.node(name));
        let Some(known) = known.filter(|known| known.start > node.start) else { return };
        let packet = if node.name.as_ref().is_some_and(|name| self.view.is_gone(name)) {
            // What is later is dead: who speaks may take the name, however often it claimed it in vain.
            let (by, accused) = (self.foca.identity().clone(), known.clone());
            packet::write(Kind::SuspicionNotice, &SuspicionNotice { by, accused, suspected: None })
        } else {
            packet::write(Kind::NewerStart, &NewerStart { start: known.start })
        };
        self.send(node.gossip, packet);
    }

    /// Answers a starting process that asks for a name. The owner refuses, unless it is leaving; a member that knows
    /// another owner passes the question on, because its knowledge may be outdated.
    pub(super) fn called(&mut self, call: NameQuery) {
        let (start, to, mine) = (call.start, call.gossip, call.name == self.me.name);
        if mine && to == self.me.gossip || call.passed && !mine {
            return;
        }
        let holder = self.view.node(&call.name).filter(|node| node.gossip != to && !self.view.is_gone(&call.name));
        let said = match holder.map(|node| node.gossip) {
            _ if mine && (self.phase != Phase::In || self.leave_notice_at.is_some()) => NameAnswer::Free,
            _ if mine => NameAnswer::Taken { at: self.me.peer },
            Some(holder) => {
                self.send(holder, packet::write(Kind::NameQuery, &NameQuery { passed: true, ..call }));
                NameAnswer::Passed
            }
            None => NameAnswer::Free,
        };
        self.send(to, packet::write(Kind::NameReply, &NameReply { start, said }));
    }

    /// Takes a later start than the one that others know under this name.
    pub(super) fn claim(&mut self, known: u64, now: Instant) {
        let mine = self.foca.identity();
        if self.phase != Phase::In || known <= mine.start {
            return;
        }
        if self.claims >= CLAIMS {
            self.effects.push(Effect::Namesake);
            return;
        }
        self.claims += 1;
        if self.claims == CLAIMS {
            // A clock that went back takes one claim. The other may give way first, and then nothing more is heard.
            self.effects.push(Effect::Namesake);
        }
        let node = Node { start: known + 1, renewal: 0, ..mine.clone() };
        self.me = Arc::new(Member { incarnation: node.start, ..(*self.me).clone() });
        self.cards.set_own_start(node.start);
        self.changed = true;
        self.swim(now, |foca, out| foca.change_identity(node, out));
        self.start_over(now);
        (self.announce_at, self.look_at) = (now, now);
    }
}
