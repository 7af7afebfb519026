//! The peers: one [`Peer`] per member other than this node, kept in step with membership.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use arc_swap::ArcSwap;
use berth_spec::{Epoch, Health, Member, Roles, WorkerId};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use crate::{
    members::{MemberTable, Members},
    peer::{Dialer, Peer},
    pki::{Identity, certifies},
};

/// Settings of the connections to peers.
#[derive(Debug, Clone)]
pub struct LinePolicy {
    /// Connections per peer beside one for each event loop ([`crate::EventLoops`]). Several spread the TLS work over
    /// cores and limit what a lost packet delays.
    pub lines: usize,
    /// Limit for a connection to be established and accepted. Allows for far and busy peers.
    pub dial: Duration,
    /// Interval between pings, which bounds how long a dead connection goes unnoticed.
    pub ping_every: Duration,
    /// Limit for the answer to a ping; longer than the stalls of a busy peer.
    pub ping_timeout: Duration,
    /// The pause after a first failed dial; it doubles with each, up to [`LinePolicy::pause_max`].
    pub pause: Duration,
    /// Longest pause between attempts to connect; bounds how long a returned peer waits for traffic.
    pub pause_max: Duration,
}

impl Default for LinePolicy {
    fn default() -> Self {
        Self {
            lines: 4,
            dial: Duration::from_secs(1),
            ping_every: Duration::from_secs(1),
            ping_timeout: Duration::from_secs(1),
            pause: Duration::from_millis(50),
            pause_max: Duration::from_secs(1),
        }
    }
}

/// Limits for fixed peers in tests. Long, because a machine that compiles beside the tests is slow; a closed port
/// refuses at once.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Lines to the other members. Clones share them; they end with the last clone.
#[derive(Clone)]
pub struct Peers(Arc<Inner>);

struct Inner {
    by_name: ArcSwap<BTreeMap<WorkerId, Arc<Peer>>>,
    dialer: Arc<Dialer>,
    members: Option<Members>,
    lead: Mutex<Option<LeaderRecord>>,
    _ends: DropGuard,
}

/// Leader as the store names it. The store knows better than the members which process of a name leads.
struct LeaderRecord {
    epoch: Epoch,
    name: WorkerId,
    at: SocketAddr,
    /// Lines to it, where the members have another address for its name.
    peer: Option<Arc<Peer>>,
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.by_name.load().keys()).finish()
    }
}

impl Peers {
    /// Follows `members` from now on. Must be called in a tokio runtime; the lines run there or where they are used.
    #[must_use]
    pub fn start(identity: Identity, members: Members, policy: LinePolicy) -> Self {
        let table = members.changed();
        let peers = Self::new(identity, Some(members), policy);
        let follower = follow(Arc::downgrade(&peers.0), table);
        peers.0.dialer.tasks.spawn(follower);
        peers
    }

    /// Fixed peers that never fail, for tests. Slow ones are not given up.
    #[must_use]
    pub fn fixed(identity: Identity, peers: impl IntoIterator<Item = (WorkerId, SocketAddr)>) -> Self {
        let mut table = MemberTable::default();
        for (name, address) in peers {
            let member = Member {
                name,
                incarnation: 1,
                gossip: address,
                peer: address,
                roles: Roles::ALL,
                labels: BTreeMap::new(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                protocol: crate::PROTOCOL,
            };
            table.set(Arc::new(member), Health::Alive);
        }
        let patient = LinePolicy { dial: TEST_TIMEOUT, ping_timeout: TEST_TIMEOUT, ..LinePolicy::default() };
        let fixed = Self::new(identity, None, patient);
        fixed.0.apply(&table);
        fixed
    }

    /// Certificate and keys of this node.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.0.dialer.identity
    }

    fn new(identity: Identity, members: Option<Members>, policy: LinePolicy) -> Self {
        let ends = CancellationToken::new();
        let dialer = Dialer { identity, policy, tasks: TaskTracker::new(), ends: ends.clone() };
        Self(Arc::new(Inner {
            by_name: ArcSwap::default(),
            dialer: Arc::new(dialer),
            members,
            lead: Mutex::default(),
            _ends: ends.drop_guard(),
        }))
    }

    /// The peer with this name, while membership knows it. `None` for this node itself.
    #[must_use]
    pub fn get(&self, name: &WorkerId) -> Option<Arc<Peer>> {
        self.0.by_name.load().get(name).cloned()
    }

    /// Records the leader's name and address for this term, as the store or a node reports them.
    pub fn led_by(&self, name: &WorkerId, epoch: Epoch, at: SocketAddr) {
        if self.0.is_me(name) {
            return;
        }
        let mut lead = self.0.lead();
        match &mut *lead {
            Some(known) if known.epoch > epoch => {}
            Some(known) if known.name == *name && known.at == at => known.epoch = epoch,
            _ => {
                if let Some(peer) = lead.take().and_then(|before| before.peer) {
                    peer.forget();
                }
                *lead = Some(LeaderRecord { epoch, name: name.clone(), at, peer: None });
            }
        }
    }

    /// A leader of this term is followed: an address that was said of a later one counts no more, and may be replaced.
    pub fn term_met(&self, epoch: Epoch) {
        let mut lead = self.0.lead();
        if let Some(said) = lead.take_if(|said| said.epoch > epoch)
            && let Some(peer) = said.peer
        {
            peer.forget();
        }
    }

    /// The peer with this name, for what only the one who decides can answer: where [`Peers::led_by`] gave another address
    /// than the members have, at that one. Two processes with one name are one member, and the members have the later one's
    /// address.
    #[must_use]
    pub fn leader_peer(&self, name: &WorkerId) -> Option<Arc<Peer>> {
        let peer = self.get(name)?;
        let member = peer.member();
        let mut lead = self.0.lead();
        let Some(led) = lead.as_mut().filter(|lead| lead.name == *name && lead.at != member.peer) else {
            return Some(peer);
        };
        // It is not there any more: it may have been started anew elsewhere. Whoever still says so is believed again.
        if led.peer.as_ref().is_some_and(|peer| peer.failing()) {
            *lead = None;
            return Some(peer);
        }
        let there = led.peer.get_or_insert_with(|| {
            let (at, members) = (led.at, member.peer);
            tracing::warn!(event = "leader_elsewhere", leader = %name, %at, %members, "membership has another process under the leader's name");
            let member = Member { peer: at, ..(*member).clone() };
            Arc::new(Peer::new(Arc::new(member), Health::Alive, Arc::clone(&self.0.dialer), None))
        });
        Some(Arc::clone(there))
    }

    /// All peers, by name, without this node.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Peer>> {
        self.0.by_name.load().values().cloned().collect()
    }
}

impl Inner {
    fn lead(&self) -> MutexGuard<'_, Option<LeaderRecord>> {
        self.lead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_me(&self, name: &WorkerId) -> bool {
        match &self.members {
            Some(members) => members.me() == name,
            None => certifies(self.dialer.identity.name(), name),
        }
    }

    /// Updates the peers from the table. A restarted node is a new peer: requests that wait for the old process must
    /// not wait for the new one.
    fn apply(&self, table: &MemberTable) {
        let before = self.by_name.load();
        let mut after = BTreeMap::new();
        for (name, (member, health)) in table.iter().filter(|(name, _)| !self.is_me(name)) {
            let peer = match before.get(name).filter(|peer| peer.is_same_start(member)) {
                Some(peer) => {
                    peer.update(member, *health);
                    Arc::clone(peer)
                }
                None => {
                    Arc::new(Peer::new(Arc::clone(member), *health, Arc::clone(&self.dialer), self.members.clone()))
                }
            };
            after.insert(name.clone(), peer);
        }
        for (name, peer) in before.iter() {
            if !after.get(name).is_some_and(|now| Arc::ptr_eq(now, peer)) {
                peer.forget();
            }
        }
        self.by_name.store(Arc::new(after));
    }
}

async fn follow(peers: Weak<Inner>, mut table: tokio::sync::watch::Receiver<Arc<MemberTable>>) {
    table.mark_changed();
    loop {
        let Some(ends) = peers.upgrade().map(|peers| peers.dialer.ends.clone()) else { return };
        match ends.run_until_cancelled(table.changed()).await {
            Some(Ok(())) => {}
            Some(Err(_)) | None => return,
        }
        let Some(peers) = peers.upgrade() else { return };
        let now = Arc::clone(&table.borrow_and_update());
        peers.apply(&now);
    }
}
