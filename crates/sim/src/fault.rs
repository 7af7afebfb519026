//! Faults: each kind by name, and which of them are going on.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use berth_spec::{Time, WorkerId};

use crate::{node::Disk, rng::Rng};

/// The factor by which a slow node is slower.
const SLOWDOWN: u32 = 50;

/// The time after its end for which a fault still counts: streams and membership have to recover from it.
const AFTERMATH: Duration = Duration::from_secs(10);

/// Names a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultId(pub u64);

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $word:literal),* $(,)?) => {
        /// A kind of fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind { $($(#[$doc])* $kind),* }

        impl Kind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// Its name.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$kind => $word),* }
            }
        }
    };
}

kinds! {
    /// A worker's process dies; its machine says so. It returns.
    WorkerCrash = "worker crash",
    /// A worker's machine loses power: nobody is told. It returns.
    PowerLoss = "power loss",
    /// A worker's process is stopped and goes on later without knowing.
    WorkerPause = "worker pause",
    /// Most of the workers lose power at once, and return.
    MassLoss = "mass loss",
    /// All nodes of a region lose power, and return.
    RegionLoss = "region loss",
    /// The leader's process dies, and returns.
    LeaderCrash = "leader crash",
    /// The leader's process is stopped, wakes when another one leads, and does not know it.
    LeaderPause = "leader pause",
    /// One leader after another dies.
    LeaderChurn = "leader churn",
    /// A gateway's process dies, and returns.
    GatewayCrash = "gateway crash",
    /// The leader and some workers do not hear each other.
    LeaderFromWorkers = "partition leader | workers",
    /// Some gateways and some workers do not hear each other.
    GatewaysFromWorkers = "partition gateways | workers",
    /// The store and the leader do not hear each other.
    StoreFromLeader = "partition store | leader",
    /// The nodes fall into two halves that do not hear each other; the store is in one of them.
    Halves = "partition into halves",
    /// Some nodes are not heard by some others, which they hear.
    OneWay = "one-way partition",
    /// A worker takes fifty times as long for everything.
    SlowNode = "slow node",
    /// A worker's disk is full.
    FullDisk = "full disk",
    /// A node starts again with a clock that is up to an hour off.
    ClockJump = "clock jump",
    /// A member of the store is gone: it takes longer.
    StoreMemberLoss = "store member loss",
    /// The store takes no writes.
    QuorumLoss = "store quorum loss",
    /// The store refuses some commits.
    LostCommits = "refused commits",
    /// Some artifacts cannot be loaded.
    CorruptArtifacts = "corrupt artifacts",
    /// Messages are late, and streams break.
    RoughNetwork = "rough network",
    /// A node is suspected that is well.
    FalseSuspicion = "false suspicion",
    /// Nodes are stopped and started again, one after the other.
    RollingRestart = "rolling restart",
}

/// The end of a fault.
#[derive(Debug, Clone)]
pub(crate) enum Undo {
    /// Nothing has to be done, or it ends by itself.
    Nothing,
    /// These start again.
    Start(BTreeSet<WorkerId>),
    /// This cut heals.
    Heal(String),
    /// This one is well again.
    HealMachine(WorkerId),
    /// The store is well again.
    Store,
    /// These artifacts can be loaded again.
    Repair(BTreeSet<String>),
    /// The network is calm again.
    Calm,
    /// The next ones are restarted.
    Roll(Vec<WorkerId>),
    /// The next leader dies, so many times.
    Churn(u32),
}

/// The faults that are going on.
#[derive(Debug, Default)]
pub struct Faults {
    pub(crate) active: BTreeMap<FaultId, (Kind, Undo)>,
    /// Commits are refused once in so many (0: never).
    pub refuse_one_in: u64,
    /// Nodes without power: nothing says that they are gone.
    pub(crate) powered_off: BTreeSet<WorkerId>,
    slow: BTreeSet<WorkerId>,
    full: BTreeSet<WorkerId>,
    ended: BTreeMap<FaultId, Time>,
    last: u64,
}

impl Faults {
    pub(crate) fn add(&mut self, kind: Kind, undo: Undo) -> FaultId {
        self.last += 1;
        let id = FaultId(self.last);
        self.active.insert(id, (kind, undo));
        id
    }

    pub(crate) fn remove(&mut self, id: FaultId, now: Time) -> Option<(Kind, Undo)> {
        let fault = self.active.remove(&id)?;
        self.ended.insert(id, now);
        Some(fault)
    }

    /// The number of faults that are going on, or were a moment ago.
    pub(crate) fn troubles(&mut self, now: Time) -> usize {
        self.ended.retain(|_, at| *at + AFTERMATH > now);
        self.active.len() + self.ended.len()
    }

    /// Names of what is going on.
    pub fn going_on(&self) -> impl Iterator<Item = &'static str> {
        self.active.values().map(|(kind, _)| kind.as_str())
    }

    pub(crate) fn refuses(&self, rng: &mut Rng) -> bool {
        self.refuse_one_in > 0 && rng.once_in(self.refuse_one_in)
    }

    /// True if a node has no power.
    pub(crate) fn is_powered_off(&self, node: &WorkerId) -> bool {
        self.powered_off.contains(node)
    }

    pub(crate) fn slow_down(&mut self, node: &WorkerId) {
        self.slow.insert(node.clone());
    }

    pub(crate) fn fill_disk(&mut self, node: &WorkerId) {
        self.full.insert(node.clone());
    }

    pub(crate) fn heal_machine(&mut self, node: &WorkerId) {
        self.slow.remove(node);
        self.full.remove(node);
    }

    /// A machine's slowdown and disk.
    pub(crate) fn of_machine(&self, node: &WorkerId) -> (u32, Disk) {
        let slowdown = if self.slow.contains(node) { SLOWDOWN } else { 1 };
        (slowdown, if self.full.contains(node) { Disk::Full } else { Disk::Roomy })
    }
}
