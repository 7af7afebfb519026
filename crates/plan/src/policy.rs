//! The constants of planning. Each says what breaks when it is halved or doubled.

use std::time::Duration;

use berth_spec::ByteSize;

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
        }
    }
}

impl Policy {
    /// The memory that a model of an artifact of this size is predicted to take.
    pub(crate) fn memory_of(&self, artifact: ByteSize) -> ByteSize {
        ByteSize(artifact.0.saturating_mul(self.memory_per_artifact_percent) / 100) + self.memory_per_session
    }
}
