//! The constants of planning. Each says what breaks when it is halved or doubled.

use std::{collections::BTreeMap, time::Duration};

use berth_spec::{ByteSize, deployment::Selector};

/// Settings of the planner; [`Policy::default`] is right unless a test wants otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// The claim of a model whose author says nothing, that was never measured and whose artifact was never seen.
    /// Halved: more loads are begun that then do not fit and evict others late. Doubled: small models are evicted for
    /// space that nobody uses until the first measure.
    pub default_claim: ByteSize,
    /// Memory of a loaded model per byte of artifact, in percent, used from when the size is known until it is measured.
    /// Halved: below the weights themselves, so that every claim is too small. Doubled: half of the memory idles while
    /// models load.
    pub memory_per_artifact_percent: u64,
    /// What even the smallest model takes beside that: the engine's session. Halved: small models are over-packed until
    /// they are measured. Doubled: as many fewer fit while nothing is known of them.
    pub memory_per_session: ByteSize,
    /// How long a lost worker's replicas are kept for its return while other replicas answer.
    /// Halved: a restart of a worker moves its models. Doubled: deployments run short of replicas for as long.
    pub lost_grace: Duration,
    /// How long a failed load keeps a revision off a worker. Halved: broken models are loaded in vain twice as often.
    /// Doubled: a repaired artifact at the same place is found twice as late.
    pub failure_memory: Duration,
    /// How long an on-demand replica stays at least once it is ready, before one of the same priority may take its room.
    /// Halved: with more models in use than fit, more of the time goes into loading. Doubled: those who wait for a turn
    /// wait up to that much longer.
    pub min_residence: Duration,
    /// How long requests for an on-demand deployment that fits nowhere are refused without trying again.
    /// Halved: under pressure each refused model is planned for twice as often. Doubled: clients see `no_capacity`
    /// up to that much longer than it is true.
    pub no_capacity_hold: Duration,
    /// How long a worker that the controller cannot reach, but the members can, is planned with. After that its replicas
    /// get successors elsewhere; it is routed to for as long as it answers. Halved: a controller that fails over slowly
    /// moves what answers well. Doubled: what is broken on such a worker stays broken for as long.
    pub detached_grace: Duration,
    /// How long a worker that has not reported to a new leader, but that the members see, is taken to hold what it should.
    /// Halved: a worker whose way to the leader is broken for half a minute is unrouted though it answers. Doubled: what it
    /// lost meanwhile is missed for as long, and each request tries it in vain first.
    pub assumed_for: Duration,
    /// When more than this share of the workers is lost within [`mass_loss_window`](Self::mass_loss_window), the fault
    /// is taken to be the network's. Halved: the loss of a zone holds everything up. Doubled: never; all workers but
    /// one would be made to carry what the others still hold.
    pub mass_loss_percent: u32,
    /// Losses within this time count together. Halved: a switch that fails port by port is seen as single losses.
    /// Doubled: a slow rolling restart without drains looks like a fault of the network.
    pub mass_loss_window: Duration,
    /// How long after a mass loss only what requests wait for is placed anew. Halved: a switch that restarts has half
    /// of the fleet loaded twice. Doubled: a power cut leaves the rest short for as long.
    pub mass_loss_hold: Duration,
    /// Replicas of lost workers that are placed anew at once, for each worker that is left. Halved: twice the waves
    /// until all is back. Doubled: twice the loads that were in vain when the lost workers return.
    pub wave: u32,
    /// The time from one wave to the next. Halved: the second wave finds the first one loading. Doubled: workers idle
    /// between the waves.
    pub wave_interval: Duration,
    /// How long a worker that was lost is recovering. Halved: one that comes and goes is filled each time. Doubled: a
    /// small fleet is short of room for as long.
    pub recovering: Duration,
    /// Loads that a recovering worker is given at once. Halved: it idles between two plans. Doubled: as many more are
    /// lost if it goes again.
    pub recovering_loads: u32,
    /// An on-demand deployment that was not used for this long gets no successor when its worker leaves or is lost.
    /// Halved: models of the last half hour are loaded by their next request. Doubled: a node's leaving takes longer for
    /// models that nobody may ask for.
    pub unused_after: Duration,
    /// How many copies.
    pub copies: Copies,
    /// Loading of what nobody asks for now into room that nobody uses; `None`: never.
    pub proactive: Option<Proactive>,
    /// What holds for all models of a type ([`Settings::model_type`](berth_spec::deployment::Settings::model_type), or
    /// the format), beside what each says itself: labels that their workers must have, or had better have.
    pub types: BTreeMap<String, Selector>,
    /// How long after the last worker of a newer version joined those of older versions count as being replaced: they
    /// get nothing new while others have room. Halved: a node that takes long to drain is filled again before its turn.
    /// Doubled: after an upgrade that was stopped half-way the old half idles for as long.
    pub replacing_window: Duration,
}

/// When there are more copies than the least. Thresholds are ModelMesh's where it has them.
#[derive(Debug, Clone, PartialEq)]
pub struct Copies {
    /// Requests per minute that one copy should have at most. Halved: twice the memory for models in heavy use.
    /// Doubled: a model that takes 15 ms is at its limit before it gets help.
    pub target_rate: f32,
    /// Requests in flight that one copy should have at most, averaged over some seconds. An engine runs a few at once,
    /// so most of 32 wait for others: ten times the latency of a quiet copy. Halved: one client with 16 connections
    /// is a reason for a second copy. Doubled: twice the wait before there is help.
    pub target_concurrency: f32,
    /// Use at least this long ago makes present use regular. Halved: one session of somebody trying a model loads it
    /// twice. Doubled: what is used each quarter of an hour never has a second copy.
    pub regular_after: Duration,
    /// Use longer ago than this does not count. At most an hour. Halved: what is used each half hour has one copy.
    pub regular_within: Duration,
    /// A second copy is made while this much of all memory is free, in percent. Halved: second copies fill the memory
    /// that the next miss needs. Doubled: half-full fleets have single copies.
    pub reserve_percent: u64,
    /// With less than that, only if what would leave first was not used for this long. Halved: copies push out what was
    /// used this morning. Doubled: a full fleet that nobody uses keeps single copies.
    pub reserve_age: Duration,
    /// How long load must have been below what one copy less could carry before one leaves. Halved: a load that comes
    /// every five minutes loads each time. Doubled: memory is held for twice as long.
    pub settle: Duration,
    /// A second copy leaves after this share of the age at which models are evicted, in percent, at least `settle` and
    /// at most ten hours. Halved or doubled: so do second copies' lives.
    pub age_percent: u32,
    /// When to try again after there was no room for a copy. Halved: a full fleet looks for room twice as often.
    /// Doubled: load waits as much longer for a copy that room has been made for.
    pub retry: Duration,
}

/// Loading into free room.
#[derive(Debug, Clone, PartialEq)]
pub struct Proactive {
    /// What stays free of all memory, in percent. Halved: the next miss more often evicts. Doubled: memory idles.
    pub reserve_percent: u64,
    /// Deployments at once. Halved: a restarted fleet is warm half as soon. Doubled: a request that misses waits behind
    /// twice as many loads that nobody needs.
    pub at_once: u32,
    /// How often. Halved or doubled: so is the pace.
    pub every: Duration,
}

impl Default for Copies {
    fn default() -> Self {
        Self {
            target_rate: 2_000.0,
            target_concurrency: 32.0,
            regular_after: Duration::from_secs(7 * 60),
            regular_within: Duration::from_secs(40 * 60),
            reserve_percent: 10,
            reserve_age: Duration::from_secs(6 * 3600),
            settle: Duration::from_secs(300),
            age_percent: 10,
            retry: Duration::from_secs(10),
        }
    }
}

impl Default for Proactive {
    fn default() -> Self {
        // An eighth, as ModelMesh has it.
        Self { reserve_percent: 12, at_once: 8, every: Duration::from_secs(10) }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            default_claim: ByteSize::mib(64),
            memory_per_artifact_percent: 130,
            memory_per_session: ByteSize::mib(1),
            lost_grace: Duration::from_secs(10),
            failure_memory: Duration::from_secs(600),
            min_residence: Duration::from_millis(100),
            no_capacity_hold: Duration::from_secs(2),
            detached_grace: Duration::from_secs(30),
            assumed_for: Duration::from_secs(30),
            mass_loss_percent: 50,
            mass_loss_window: Duration::from_secs(60),
            mass_loss_hold: Duration::from_secs(30),
            wave: 64,
            wave_interval: Duration::from_secs(5),
            recovering: Duration::from_secs(60),
            recovering_loads: 8,
            unused_after: Duration::from_secs(3600),
            copies: Copies::default(),
            proactive: Some(Proactive::default()),
            types: BTreeMap::new(),
            replacing_window: Duration::from_secs(20 * 60),
        }
    }
}

impl Policy {
    /// The memory that a model of an artifact of this size is predicted to take.
    pub(crate) fn memory_of(&self, artifact: ByteSize) -> ByteSize {
        ByteSize(artifact.0.saturating_mul(self.memory_per_artifact_percent) / 100) + self.memory_per_session
    }
}
