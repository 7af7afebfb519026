//! Checks that no other process uses this node's name, before the process joins under it.
//!
//! ```text
//! Asking ──"free", from all who answer──────────────────────────────────────────▶ Free
//!   │ ──nobody answers for `UNANSWERED`─────────────────────────────────────────▶ Free
//!   ├─"I know one elsewhere, and pass it on"─▶ Passed ─"it is gone", or timeout ──▶ Free
//!   └─"I go by it", from that process itself ───────────────────────────────────▶ Taken
//! ```
//! Two processes with one name are one member to all others, which know the address of the later one only. So a process asks
//! before it says a word that others could take for the member's. Only the process that goes by the name can refuse it:
//! what others know of it may be old. Where the words are lost, both are members in the end, and say so
//! ([`super::Effect::Namesake`]).

use std::{
    collections::BTreeSet,
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use berth_spec::Member;
use tokio::net::UdpSocket;

use super::packet::{self, Kind, NameAnswer, NameQuery, NameReply};
use crate::pki::Identity;

/// Interval between two questions; a lost one is repeated within the settle time of a second.
const ASK_INTERVAL: Duration = Duration::from_millis(100);

/// Time for further answers after the first one. Nodes on one network answer within it.
const SETTLE: Duration = Duration::from_millis(50);

/// Time without any answer after which the name counts as free. A first node, whose seeds are not up, starts that
/// much later.
const UNANSWERED: Duration = Duration::from_secs(1);

/// Time to wait for a process that others know by the name and that does not answer. Others detect a dead node within
/// two seconds, so five are safe.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(5);

/// Seeds that are asked: enough to find somebody who answers, and few packets before a node is a member.
const ASKED: usize = 8;

/// Sources of answers that are counted separately. More than are asked, because a host name may stand for several
/// addresses.
const ANSWERS: usize = 64;

/// Answers so far, and what they mean for the name.
#[derive(Debug)]
struct NameCheck {
    begun: Instant,
    /// Time of the first answer.
    answered: Option<Instant>,
    /// Nodes that know another process by the name.
    forwarders: BTreeSet<SocketAddr>,
}

impl NameCheck {
    const fn new(now: Instant) -> Self {
        Self { begun: now, answered: None, forwarders: BTreeSet::new() }
    }

    /// Records an answer. `Err` has the address of the process that uses the name.
    fn hear(&mut self, from: SocketAddr, said: &NameAnswer, now: Instant) -> Result<(), SocketAddr> {
        self.answered.get_or_insert(now);
        match said {
            NameAnswer::Free => drop(self.forwarders.remove(&from)),
            NameAnswer::Passed if self.forwarders.len() < ANSWERS => drop(self.forwarders.insert(from)),
            NameAnswer::Passed => {}
            NameAnswer::Taken { at } => return Err(*at),
        }
        Ok(())
    }

    /// Time at which the name counts as free.
    fn free_at(&self) -> Instant {
        match self.answered {
            _ if !self.forwarders.is_empty() => self.begun + FORWARD_TIMEOUT,
            Some(answered) => answered + SETTLE,
            None => self.begun + UNANSWERED,
        }
    }
}

/// Asks until the name is known to be free or taken; returns the other process's address. Without seeds, the name is
/// free.
pub(super) async fn taken(
    socket: &UdpSocket,
    identity: &Identity,
    me: &Member,
    seeds: &[SocketAddr],
) -> io::Result<Option<SocketAddr>> {
    let seeds: Vec<SocketAddr> = seeds.iter().copied().filter(|seed| *seed != me.gossip).take(ASKED).collect();
    if seeds.is_empty() {
        return Ok(None);
    }
    let call = NameQuery { name: me.name.clone(), start: me.incarnation, gossip: me.gossip, passed: false };
    let call = packet::write(Kind::NameQuery, &call);
    let now = || tokio::time::Instant::now().into_std();
    let (mut name_check, mut ask_at) = (NameCheck::new(now()), now());
    let (mut sealed, mut buffer) = (Vec::new(), vec![0; super::packet::ROOM]);
    while now() < name_check.free_at() {
        if now() >= ask_at {
            ask_at = now() + ASK_INTERVAL;
            for seed in &seeds {
                say(socket, identity, &call, *seed, &mut sealed).await;
            }
        }
        let wake = tokio::time::Instant::from_std(ask_at.min(name_check.free_at()));
        let received = tokio::time::timeout_at(wake, socket.recv_from(&mut buffer)).await;
        // It is time for something; or a former datagram met a closed port.
        let Ok(Ok((length, from))) = received else { continue };
        let keyring = identity.keyring();
        // An answer names the start that asked: a recorded one is of another.
        let Ok((packet, _)) = keyring.open(&mut buffer[..length]) else { continue };
        match Kind::split(packet) {
            Some((Kind::NameReply, content)) => {
                let Some(reply) = packet::read::<NameReply>(content).filter(|reply| reply.start == me.incarnation)
                else {
                    continue;
                };
                if let Err(at) = name_check.hear(from, &reply.said, now()) {
                    return Ok(Some(at));
                }
            }
            // All start at once, and nobody is a member yet: each has only its own name.
            Some((Kind::NameQuery, content)) => {
                let other = packet::read::<NameQuery>(content).filter(|call| call.name != me.name && !call.passed);
                if let Some(NameQuery { start, gossip, .. }) = other {
                    let free = packet::write(Kind::NameReply, &NameReply { start, said: NameAnswer::Free });
                    say(socket, identity, &free, gossip, &mut sealed).await;
                }
            }
            _ => {}
        }
    }
    Ok(None)
}

async fn say(socket: &UdpSocket, identity: &Identity, packet: &[u8], to: SocketAddr, sealed: &mut Vec<u8>) {
    identity.seal(packet, sealed);
    // What is not sent is lost, and said again.
    let _ = socket.send_to(sealed, to).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_knows_another_is_waited_for_until_it_says_otherwise() {
        let (a, b) = (SocketAddr::from(([10, 0, 0, 1], 1)), SocketAddr::from(([10, 0, 0, 2], 1)));
        let begun = Instant::now();
        let after = |millis| begun + Duration::from_millis(millis);
        let mut name_check = NameCheck::new(begun);
        assert_eq!(name_check.free_at(), begun + UNANSWERED);
        assert_eq!(name_check.hear(a, &NameAnswer::Free, after(1)), Ok(()));
        assert_eq!(name_check.free_at(), after(1) + SETTLE);
        assert_eq!(name_check.hear(b, &NameAnswer::Passed, after(2)), Ok(()));
        assert_eq!(name_check.hear(a, &NameAnswer::Free, after(3)), Ok(()));
        assert_eq!(name_check.free_at(), begun + FORWARD_TIMEOUT, "a does not know what b knows");
        assert_eq!(name_check.hear(b, &NameAnswer::Free, after(1_500)), Ok(()));
        assert!(name_check.free_at() <= after(1_500), "b has given it up");
        assert_eq!(name_check.hear(a, &NameAnswer::Taken { at: b }, after(1_501)), Err(b));
    }
}
