//! Timings of membership, all in one place.
//!
//! Other systems wait for heartbeats and speak of four states: *healthy* within 60 s of the last one, *suspect*
//! between 60 and 120 s, *failed* after 120 s, and *recovering* when a failed node returns. The states keep their
//! names here ([`crate::Tier`]); the times are those of a protocol that probes:
//!
//! | change | time (defaults, 5 to 50 nodes) |
//! |---|---|
//! | healthy → suspect | 0.2–0.4 s: one probe, direct and through others |
//! | suspect → failed | 1.2 s: `suspect_for` + `confirm` |
//! | recovering → healthy | 10 s |

use std::{num::NonZero, time::Duration};

use foca::{Config, PeriodicParams};

/// Timings that trade speed of detection against traffic and false alarms.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Interval between probes of this node. Must exceed twice the longest round trip; 0.2 s finds failures early at
    /// a few packets per second.
    pub probe_every: Duration,
    /// Time for a direct answer before other nodes are asked to probe. Must be shorter than `probe_every` to leave
    /// them time.
    pub probe_timeout: Duration,
    /// Nodes asked to probe indirectly, and receivers of each piece of gossip. Three tolerate lossy networks.
    pub indirect: NonZero<usize>,
    /// Time for a suspect to refute. Longer than the stalls of half a second that busy nodes have.
    pub suspect_for: Duration,
    /// Time during which each node tries to reach a node that others declared dead, before it agrees. Guards against
    /// stale news.
    pub confirm: Duration,
    /// Interval between gossip packets while there is news.
    pub gossip_every: Duration,
    /// Transmissions of each piece of news per node. Enough to reach everybody at once with 5 % packet loss.
    pub transmissions: NonZero<u8>,
    /// Interval between announcements of a node that is alone or younger than `young`.
    pub announce_every: Duration,
    /// Age up to which a node counts as new.
    pub young: Duration,
    /// Interval between full comparisons of members with another node, which repair what gossip lost.
    pub compare_every: Duration,
    /// Interval between attempts to reach failed nodes and missing seeds. Ends partitions.
    pub reach_every: Duration,
    /// Time during which the number of a dead node stays refused.
    pub bury: Duration,
    /// Time during which a returned node counts as recovering.
    pub recovering: Duration,
    /// Time during which failed and departed nodes stay listed.
    pub forget_after: Duration,
    /// Pause of this process after which its timers restart, because it, and not the others, was away.
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
    /// Configuration of foca. Its own announcements stay off, because `brain` repeats ours.
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
