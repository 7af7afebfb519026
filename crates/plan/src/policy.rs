//! Constants of planning. Each says in a sentence why it has its value.

use std::{collections::BTreeMap, time::Duration};

use berth_spec::{ByteSize, deployment::Selector};

/// Settings of the planner; [`Policy::default`] is right unless a test wants otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Claim of a model without a declared, measured or predicted size: about the median of small models.
    pub default_claim: ByteSize,
    /// Memory of a loaded model per byte of artifact, in percent, from when the size is known until it is measured.
    /// Engines add buffers of about a third to the weights.
    pub memory_per_artifact_percent: u64,
    /// Memory beside that of even the smallest model: the engine's session.
    pub memory_per_session: ByteSize,
    /// Time that a lost worker's replicas are kept for its return while other replicas answer: a restart takes less.
    pub lost_grace: Duration,
    /// Time that a failed load keeps a revision off a worker. Repaired artifacts are found within it without a change
    /// of the spec.
    pub failure_memory: Duration,
    /// Shortest stay of a ready on-demand replica before one of the same priority may take its room. Where more
    /// models are in use than fit, each load serves at least this long.
    pub min_residence: Duration,
    /// The same as a share of the time that its load took, in percent: what was slow to load serves for longer. More would keep
    /// models that nobody asks for any more from those that requests wait for.
    pub residence_per_load_percent: u32,
    /// The longest such stay: below the deadlines of those who wait behind a slow load.
    pub max_residence: Duration,
    /// Time that requests for an on-demand deployment that fits nowhere are refused without another plan. Clients see
    /// `no_capacity` at most this much longer than it is true.
    pub no_capacity_hold: Duration,
    /// Time that a worker is planned with though the controller cannot reach it, while the members can: longer than a
    /// slow fail-over. After that its replicas get successors elsewhere. Gateways route to it for as long as it
    /// answers.
    pub detached_grace: Duration,
    /// Time that a worker is assumed to hold its assignment though it has not reported to a new leader, while the
    /// members see it.
    pub assumed_for: Duration,
    /// Share of the workers in percent: losing more of them within [`mass_loss_window`](Self::mass_loss_window) is
    /// taken for a fault of the network. The loss of one of two zones stays below it.
    pub mass_loss_percent: u32,
    /// Losses within this time count together: a switch fails port by port.
    pub mass_loss_window: Duration,
    /// Time after a mass loss in which only models that requests wait for are placed anew: a switch restarts within
    /// it.
    pub mass_loss_hold: Duration,
    /// Replicas of lost workers that are placed anew at once, for each worker that is left: about what it loads in
    /// one interval.
    pub wave: u32,
    /// Time from one wave to the next: the loads of a wave are mostly done by then.
    pub wave_interval: Duration,
    /// Time for which a returned worker counts as recovering: workers that come and go do so within it.
    pub recovering: Duration,
    /// Loads that a recovering worker is given at once: enough to keep it busy between two plans.
    pub recovering_loads: u32,
    /// Time without a use or a load after which an on-demand deployment gets no successor when its worker leaves or is lost:
    /// its next request loads it.
    pub unused_after: Duration,
    /// Thresholds for more copies than the least.
    pub copies: Copies,
    /// Loading of what nobody asks for now into room that nobody uses; `None`: never.
    pub proactive: Option<Proactive>,
    /// Selectors for all models of a type ([`Settings::model_type`](berth_spec::deployment::Settings::model_type), or
    /// the format), beside the deployment's own: labels that their workers must have, or had better have.
    pub types: BTreeMap<String, Selector>,
    /// The same for all models whose type is not among [`types`](Self::types).
    pub other_types: Option<Selector>,
    /// Time after the last worker of a newer version joined in which those of older versions count as being replaced:
    /// they get nothing new while others have room. Longer than the drain of a node in a rolling upgrade.
    pub replacing_window: Duration,
}

/// Selectors by type of model, where they change while the controller runs: [`Policy::types`] and [`Policy::other_types`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TypeRules {
    /// Selectors by model type.
    pub types: BTreeMap<String, Selector>,
    /// Of all other types.
    pub others: Option<Selector>,
}

/// When there are more copies than the least. Thresholds are ModelMesh's where it has them.
#[derive(Debug, Clone, PartialEq)]
pub struct Copies {
    /// Requests per minute that one copy should have at most: a model of 15 ms per request is half busy then.
    pub target_rate: f32,
    /// Requests in flight that one copy should have at most, averaged over some seconds. An engine runs a few at
    /// once, so most of 32 wait for others: ten times the latency of a quiet copy.
    pub target_concurrency: f32,
    /// Use at least this long ago makes present use regular: longer than one session of somebody who tries a model.
    pub regular_after: Duration,
    /// Use longer ago than this does not count: at most an hour.
    pub regular_within: Duration,
    /// Free share of all memory, in percent, above which second copies are made: the next misses need the rest.
    pub reserve_percent: u64,
    /// Idle time of the next victim above which second copies are made with less free memory than that: used this
    /// morning counts as in use.
    pub reserve_age: Duration,
    /// Time that load must have been below the capacity of one copy less before one leaves: loads that come every
    /// five minutes keep their copy.
    pub settle: Duration,
    /// Share of the age at which models are evicted after which an idle second copy leaves, in percent, at least
    /// `settle` and at most ten hours.
    pub age_percent: u32,
    /// Time until the next attempt after there was no room for a copy.
    pub retry: Duration,
}

/// Loading into free room.
#[derive(Debug, Clone, PartialEq)]
pub struct Proactive {
    /// Share of all memory that stays free, in percent: for the next misses.
    pub reserve_percent: u64,
    /// Deployments loaded at once: requests that miss wait behind them.
    pub at_once: u32,
    /// Interval of these loads.
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
            residence_per_load_percent: 25,
            max_residence: Duration::from_secs(15),
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
            other_types: None,
            replacing_window: Duration::from_secs(20 * 60),
        }
    }
}

impl Policy {
    /// The policy with these selectors in place of those that it had.
    #[must_use]
    pub fn with_types(self, TypeRules { types, others }: TypeRules) -> Self {
        Self { types, other_types: others, ..self }
    }

    /// The memory that a model of an artifact of this size is predicted to take.
    pub(crate) fn memory_of(&self, artifact: ByteSize) -> ByteSize {
        ByteSize(artifact.0.saturating_mul(self.memory_per_artifact_percent) / 100) + self.memory_per_session
    }
}
