//! The other nodes, as the gateway sends to them: who is behind a name now, how near it is, and how it does.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwapOption;
use berth_peer::{Members, Peer, Peers};
use berth_spec::{Health, WorkerId};

use crate::endpoint::{
    outlier::{Outlier, OutlierState},
    tick::{Clock, Tick},
};

/// The time for which a node is left alone that said that it stops: most are gone by then.
const STOPPING_TIME: Duration = Duration::from_secs(2);

/// The cluster that a gateway is part of.
#[derive(Debug, Clone)]
pub struct Fleet {
    /// Lines to the other nodes.
    pub peers: Peers,
    /// Membership and hints; `None` where the peers are fixed.
    pub members: Option<Members>,
    /// The gateway's own region: endpoints in it are preferred.
    pub region: Option<String>,
}

impl Fleet {
    /// The fleet that membership tells of, reached by `peers`; `region` is the gateway's own.
    #[must_use]
    pub fn new(peers: Peers, members: Members, region: Option<String>) -> Self {
        Self { peers, members: Some(members), region }
    }
}

/// Every node that a route has named, once: routes share them.
pub(crate) struct Remotes {
    fleet: Fleet,
    clock: Clock,
    /// Touched when routes change; requests have the `Arc`s.
    by_name: Mutex<BTreeMap<WorkerId, Arc<Remote>>>,
}

impl Remotes {
    pub(crate) fn new(fleet: Fleet, clock: Clock) -> Self {
        Self { fleet, clock, by_name: Mutex::default() }
    }

    /// The node of this name, whether it is known to membership or not yet.
    pub(crate) fn get(&self, name: &WorkerId) -> Arc<Remote> {
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        let remote = by_name.entry(name.clone()).or_insert_with(|| {
            let (peers, home) = (self.fleet.peers.clone(), self.fleet.region.clone());
            Arc::new(Remote {
                name: name.clone(),
                peers,
                home,
                clock: self.clock,
                known: ArcSwapOption::empty(),
                outlier: Outlier::default(),
            })
        });
        Arc::clone(remote)
    }

    /// Forgets the nodes that no route names any more.
    pub(crate) fn prune(&self) {
        let mut by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        by_name.retain(|_, remote| Arc::strong_count(remote) > 1);
    }

    /// Calls `each` for every node.
    pub(crate) fn each(&self, mut each: impl FnMut(&Remote)) {
        let by_name = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        by_name.values().for_each(|remote| each(remote));
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }
}

/// Another node by its name, over all its starts.
pub(crate) struct Remote {
    pub(crate) name: WorkerId,
    peers: Peers,
    /// The gateway's own region.
    home: Option<String>,
    pub(crate) clock: Clock,
    /// The node behind the name at the last look.
    known: ArcSwapOption<NodeInstance>,
    /// Told by lines that break and connections that cannot be made.
    pub(crate) outlier: Outlier,
}

/// One start of a node: its connections and region. A later start is another instance.
pub(crate) struct NodeInstance {
    pub(crate) peer: Arc<Peer>,
    pub(crate) region: Option<String>,
    /// In the gateway's region, or there are no regions.
    pub(crate) near: bool,
}

impl Remote {
    /// The node behind the name, if it is there. A node that was started anew is another peer, and its past is
    /// forgotten.
    pub(crate) fn known(&self) -> Option<Arc<NodeInstance>> {
        if let Some(known) = &*self.known.load()
            && known.peer.health().is_there()
        {
            return Some(Arc::clone(known));
        }
        let peer = self.peers.get(&self.name).filter(|peer| peer.health().is_there())?;
        let region = peer.member().region().map(str::to_owned);
        let near = self.home.is_none() || region.is_none() || region == self.home;
        let known = Arc::new(NodeInstance { peer, region, near });
        self.known.store(Some(Arc::clone(&known)));
        self.outlier.good();
        Some(known)
    }

    /// Notes that the node said that it stops.
    pub(crate) fn stops(&self, now: Tick) {
        self.outlier.rest(now, STOPPING_TIME);
    }

    /// True if requests avoid it now.
    pub(crate) fn is_ejected(&self) -> bool {
        self.outlier.standing(self.clock.now()) != OutlierState::In
    }
}

impl NodeInstance {
    /// Worth sending to as far as membership and its lines tell.
    pub(crate) fn is_well(&self) -> bool {
        self.peer.health() == Health::Alive && !self.peer.failing()
    }
}
