//! All timings of membership, in one place.
//!
//! The design that Berth follows (G9) speaks of three tiers: *healthy* within 60 s of the last word, *suspect* between
//! 60 and 120 s, *failed* after 120 s, and *recovering* when a failed node speaks again. The tiers and their names are
//! kept ([`crate::Tier`]); the times are those of a protocol that probes instead of waiting for heartbeats:
//!
//! | tier | G9 | here (defaults, 5 to 50 nodes) |
//! |---|---|---|
//! | healthy → suspect | 60 s | 0.2–0.4 s: one probe and what it asks of others |
//! | suspect → failed | 60 s | 1.2 s: `suspect_for` + `confirm` |
//! | recovering → healthy | – | 10 s |

use std::{num::NonZero, time::Duration};

use foca::{Config, PeriodicParams};

/// How quickly, and how surely, members learn of each other.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Each node asks one other node this often whether it lives. Halved: failures are known sooner, twice the packets.
    /// Doubled: later. Must be more than twice the longest time between two nodes and back.
    pub probe_every: Duration,
    /// How long a node may take to answer before others are asked to ask it. Halved: busy nodes cause more packets.
    /// Doubled: less time is left for the others. Less than `probe_every`.
    pub probe_timeout: Duration,
    /// How many others are asked, and to how many news is passed on each time. Halved: lossy networks cause false
    /// suspicion. Doubled: more packets.
    pub indirect: NonZero<usize>,
    /// How long a suspect may take to refute. Halved: nodes that stall for half a second are buried. Doubled: failures
    /// are known later.
    pub suspect_for: Duration,
    /// How long each node tries for itself to reach one that others have buried, before it believes them. Halved: news
    /// of the dead that is stale may be believed. Doubled: failures are known later.
    pub confirm: Duration,
    /// How often news is passed on, while there is any. Halved: it spreads sooner, in more packets. Doubled: later.
    pub gossip_every: Duration,
    /// How often each piece of news is passed on by each node. Halved: with 5 % loss some do not hear it at once.
    /// Doubled: more packets after each change.
    pub transmissions: NonZero<u8>,
    /// How often a node that is alone, or came in less than `young` ago, announces itself. Halved: more packets at
    /// start. Doubled: joining takes longer where packets are lost.
    pub announce_every: Duration,
    /// How long a node counts as newly in.
    pub young: Duration,
    /// How often a node compares members with another one, for what gossip has lost. Halved: more packets. Doubled:
    /// what was lost is noticed later.
    pub compare_every: Duration,
    /// How often somebody tries to reach a node that failed, and a seed that is not there: this ends partitions.
    /// Halved: more packets to the dead. Doubled: partitions heal later.
    pub reach_every: Duration,
    /// How long the protocol refuses the number under which a node was buried.
    pub bury: Duration,
    /// How long a node that came back counts as recovering.
    pub recovering: Duration,
    /// How long nodes that failed or left are shown. Halved: people see them shorter. Doubled: longer lists.
    pub forget_after: Duration,
    /// When this process was not running for so long, timers start over: it, not the others, was away. Halved: a busy
    /// machine trusts itself less. Doubled: after a pause innocents may be accused.
    pub stall: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        let millis = Duration::from_millis;
        Self {
            probe_every: millis(200),
            probe_timeout: millis(80),
            indirect: NonZero::new(3).expect("not zero"),
            suspect_for: millis(1_000),
            confirm: millis(200),
            gossip_every: millis(100),
            transmissions: NonZero::new(10).expect("not zero"),
            announce_every: millis(200),
            young: Duration::from_secs(5),
            compare_every: millis(2_000),
            reach_every: millis(1_000),
            bury: Duration::from_secs(60),
            recovering: Duration::from_secs(10),
            forget_after: Duration::from_secs(3_600),
            stall: millis(300),
        }
    }
}

impl Policy {
    /// What foca is told. Its own announcements stay off: ours are repeated (see `brain`).
    pub(super) fn foca(&self, packet: usize) -> Config {
        let one = NonZero::new(1).expect("not zero");
        Config {
            probe_period: self.probe_every,
            probe_rtt: self.probe_timeout,
            num_indirect_probes: self.indirect,
            max_transmissions: self.transmissions,
            suspect_to_down_after: self.suspect_for,
            remove_down_after: Some(self.bury),
            max_packet_size: NonZero::new(packet).unwrap_or(one),
            notify_down_members: true,
            periodic_announce: None,
            periodic_announce_to_down_members: Some(PeriodicParams { frequency: self.reach_every, num_members: one }),
            periodic_gossip: Some(PeriodicParams { frequency: self.gossip_every, num_members: self.indirect }),
        }
    }
}
