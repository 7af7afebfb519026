//! Properties that hold for any datagrams that a node gets from others of its cluster, once they are opened.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use berth_peer::{
    PROTOCOL,
    membership::{Effect, Event, Membership, Metrics, Policy},
};
use berth_spec::{Health, Member, Roles, WorkerId};

/// Packets that one datagram may cause at once, and the bytes of each.
const PACKETS: usize = 64;
const BYTES: usize = 1_400;

/// Packets, each behind its length in two bytes, that come one after the other. The node lives on, says no more than it should, and
/// never takes itself for dead.
pub(crate) fn gossip(data: &[u8]) {
    let mut now = Instant::now();
    let address = ([10, 0, 0, 1], 7946).into();
    let me = Member {
        name: WorkerId::new("n0").expect("a name"),
        incarnation: 100,
        gossip: address,
        peer: address,
        roles: Roles::ALL,
        labels: BTreeMap::new(),
        version: "0.1.0".to_owned(),
        protocol: PROTOCOL,
    };
    let name = me.name.clone();
    let mut node = Membership::new(me, Policy::default(), 7, Metrics::default(), now).expect("it fits");
    let check = |effects: Vec<Effect>| {
        assert!(effects.len() <= PACKETS, "{} effects", effects.len());
        for effect in effects {
            match effect {
                Effect::Send { packet, .. } => assert!(packet.len() <= BYTES, "{} bytes", packet.len()),
                Effect::Table(table) => assert_eq!(table[&name].1, Health::Alive),
                _ => {}
            }
        }
    };
    let mut rest = data;
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*length)).min(after.len());
        let (packet, after) = after.split_at(length);
        check(node.on(Event::Datagram(packet), now));
        rest = after;
        now += Duration::from_millis(20);
        if node.wake_at().is_some_and(|due| due <= now) {
            check(node.on(Event::Wake, now));
        }
    }
    for _ in 0..20 {
        let Some(due) = node.wake_at() else { return };
        now = now.max(due);
        check(node.on(Event::Wake, now));
    }
}
