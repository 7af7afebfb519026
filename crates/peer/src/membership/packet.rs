//! Datagrams before they are sealed: one byte says the kind, the rest is postcard.
//!
//! A later version may add kinds; who does not know one drops it. A kind never changes its content.

use berth_spec::{Member, Roles, WorkerId};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{collections::BTreeMap, net::SocketAddr};

use super::node::Node;
use crate::pki::OVERHEAD;

/// The largest datagram that crosses any network without being cut in pieces, with room for tunnels.
pub(super) const DATAGRAM: usize = 1_400;

/// The largest packet, kind included.
pub(super) const PACKET: usize = DATAGRAM - OVERHEAD;

/// Room for one datagram. Longer ones are not ours.
pub(super) const ROOM: usize = 2 * DATAGRAM;

/// The kinds of packets. The numbers are the wire's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// Packet of foca itself.
    Swim = 1,
    /// Carries a [`DescribeRequest`].
    DescribeRequest = 2,
    /// [`Card`]s, as many as fit.
    Cards = 3,
    /// Carries a [`SuspicionNotice`].
    SuspicionNotice = 4,
    /// Carries a [`NewerStart`].
    NewerStart = 5,
    /// Carries a [`Leaving`] notice.
    Leaving = 6,
    /// Carries a [`NameQuery`].
    NameQuery = 7,
    /// Carries a [`NameReply`].
    NameReply = 8,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Swim,
        Self::DescribeRequest,
        Self::Cards,
        Self::SuspicionNotice,
        Self::NewerStart,
        Self::Leaving,
        Self::NameQuery,
        Self::NameReply,
    ];

    /// The kind of a packet, and its content. `None`: empty, or of a kind that this version does not know.
    pub(super) fn split(packet: &[u8]) -> Option<(Self, &[u8])> {
        let (first, rest) = packet.split_first()?;
        Self::ALL.into_iter().find(|kind| *kind as u8 == *first).map(|kind| (kind, rest))
    }
}

/// "What do these say of themselves? And this am I."
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct DescribeRequest {
    pub(super) me: Card,
    pub(super) names: Vec<WorkerId>,
}

/// "I am about to take you for dead."
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SuspicionNotice {
    pub(super) by: Node,
    /// Suspected node, with the number that the sender knows.
    pub(super) accused: Node,
    /// The incarnation inside the protocol that is suspected; `None`: it is taken for dead already.
    pub(super) suspected: Option<u16>,
}

/// "I know a later start of a node with your name."
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NewerStart {
    pub(super) start: u64,
}

/// Notice that the sender will stop: it still answers, but should get no new work.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Leaving {
    pub(super) name: WorkerId,
    pub(super) start: u64,
}

/// "I am starting, and am to go by this name: does anybody else?"
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct NameQuery {
    pub(super) name: WorkerId,
    /// The start that asks: an answer to an earlier one means nothing.
    pub(super) start: u64,
    /// Address for the answer.
    pub(super) gossip: SocketAddr,
    /// True if another member passed the question on to the known owner.
    pub(super) passed: bool,
}

/// The answer to a [`NameQuery`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NameReply {
    /// Copy of [`NameQuery::start`].
    pub(super) start: u64,
    pub(super) said: NameAnswer,
}

/// Answer of one node about a name that another wants.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum NameAnswer {
    /// Free, as far as the sender knows.
    Free,
    /// Passed on to the known owner.
    Passed,
    /// Used by the sender, whose peer port is at this address.
    Taken { at: SocketAddr },
}

/// Self-description of a node. Changes only when the process restarts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Card {
    pub(super) name: WorkerId,
    pub(super) start: u64,
    pub(super) gossip: SocketAddr,
    pub(super) peer: SocketAddr,
    /// Bits: controller 1, worker 2, gateway 4. Further ones are of later versions.
    roles: u8,
    labels: BTreeMap<String, String>,
    version: String,
    protocol: (u16, u16),
}

impl Card {
    pub(super) fn of(member: &Member) -> Self {
        let Roles { controller, worker, gateway } = member.roles;
        Self {
            name: member.name.clone(),
            start: member.incarnation,
            gossip: member.gossip,
            peer: member.peer,
            roles: u8::from(controller) | u8::from(worker) << 1 | u8::from(gateway) << 2,
            labels: member.labels.clone(),
            version: member.version.clone(),
            protocol: member.protocol,
        }
    }

    pub(super) fn member(&self) -> Member {
        let has = |bit: u8| self.roles & bit != 0;
        Member {
            name: self.name.clone(),
            incarnation: self.start,
            gossip: self.gossip,
            peer: self.peer,
            roles: Roles { controller: has(1), worker: has(2), gateway: has(4) },
            labels: self.labels.clone(),
            version: self.version.clone(),
            protocol: self.protocol,
        }
    }

    /// Bytes on the wire.
    pub(super) fn size(&self) -> usize {
        postcard::experimental::serialized_size(self).unwrap_or(usize::MAX)
    }
}

/// Encodes a packet: the number of its kind, then the content.
pub(super) fn write<T: Serialize>(kind: Kind, content: &T) -> Vec<u8> {
    let packet = postcard::to_extend(content, vec![kind as u8]);
    packet.expect("plain data into a vector: nothing that postcard refuses")
}

/// Decodes the content of a packet. `None` if it is of another kind or truncated.
pub(super) fn read<T: DeserializeOwned>(content: &[u8]) -> Option<T> {
    postcard::from_bytes(content).ok()
}

/// Packets with all these cards, each as full as it gets.
pub(super) fn pack_cards<'a>(cards: impl Iterator<Item = &'a Card>) -> Option<Vec<u8>> {
    let (mut some, mut size) = (Vec::new(), 1 + 2);
    for card in cards {
        size += card.size();
        if size > PACKET {
            break;
        }
        some.push(card);
    }
    (!some.is_empty()).then(|| write(Kind::Cards, &some))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn cards_come_back_as_they_were_sent(
            bits in 0_u8..8, start: u64, ports: (u16, u16), protocol: (u16, u16),
            labels in prop::collection::btree_map("[a-z]{1,9}", "[a-z0-9-]{0,9}", 0..6),
        ) {
            let member = Member {
                name: WorkerId::new("node-1").expect("a name"),
                incarnation: start,
                gossip: SocketAddr::from(([10, 0, 0, 1], ports.0)),
                peer: SocketAddr::from(([0_u16, 0, 0, 0, 0, 0, 0, 1], ports.1)),
                roles: Roles { controller: bits & 1 != 0, worker: bits & 2 != 0, gateway: bits & 4 != 0 },
                labels,
                version: "1.2.3".into(),
                protocol,
            };
            let packet = pack_cards([Card::of(&member)].iter()).expect("it fits");
            let (kind, content) = Kind::split(&packet).expect("a kind");
            prop_assert_eq!(kind, Kind::Cards);
            let cards: Vec<Card> = read(content).expect("cards");
            prop_assert_eq!(cards[0].member(), member);
        }

        #[test]
        fn whatever_comes_is_read_or_refused(bytes: Vec<u8>) {
            if let Some((_, content)) = Kind::split(&bytes) {
                let _ = (read::<DescribeRequest>(content), read::<Vec<Card>>(content), read::<SuspicionNotice>(content));
                let _ = (read::<NewerStart>(content), read::<Leaving>(content));
                let _ = (read::<NameQuery>(content), read::<NameReply>(content));
            }
        }
    }
}
