//! Inputs of a replica's state machine, and the actions of its transitions.

use berth_spec::{ByteSize, FailureCategory, Time, residency::Preparing};

use super::{Facts, Fault};
use crate::{
    artifacts::Artifact,
    breaker::Dependency,
    prepare::{BlockedDependencies, Miss},
    runtime::{Health, Validation},
};

/// Facts of a model after its validation inference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Validated {
    /// Its memory, where that is measured: the first run allocates.
    pub memory: Option<ByteSize>,
    /// The outcome of the inference.
    pub outcome: Validation,
}

/// An input of the state machine. One that means nothing in the current state changes nothing.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// Its turn to be prepared; with these left alone.
    Prepare(BlockedDependencies),
    /// The preparation has come to this part of the code or environment.
    Preparing(Preparing),
    /// Its code and environment are here.
    Prepared,
    /// Its turn to be fetched.
    Fetch,
    /// The fetch got further.
    Progress {
        /// Bytes that are here.
        done: ByteSize,
        /// Bytes in all, once known.
        total: Option<ByteSize>,
    },
    /// The artifact is here.
    Fetched(Artifact),
    /// Its turn to be loaded.
    Load,
    /// There is no memory for it.
    Refuse(Fault),
    /// The runtime has loaded it.
    Loaded(Facts),
    /// The validation inference keeps it from nothing.
    Validated(Validated),
    /// The health of its model.
    Health(Health),
    /// The runtime has lost its model, for this reason.
    Lost(Fault),
    /// The operation under way has failed.
    Fail(Fault),
    /// A host that it needs is left alone until then: not an attempt.
    HoldOff(Fault, Time),
    /// No longer assigned.
    Retire,
    /// Requests in flight while it drains.
    Draining(u32),
    /// The last request is done, or the time for it is up.
    Drained,
    /// The memory is free.
    Unloaded,
    /// The delay after a failure is over.
    Retry,
}

impl Input {
    /// The failure of a replica that needs a dependency which is left alone until then.
    #[must_use]
    pub fn hold_off(dependency: &Dependency, until: Time) -> Self {
        let message =
            format!("{dependency} failed again and again and is left alone until {until}; then it is tried once");
        Self::HoldOff(Fault::new(FailureCategory::Network, message), until)
    }
}

impl From<Miss> for Input {
    fn from(miss: Miss) -> Self {
        match miss {
            Miss::Failed(fault) => Self::Fail(fault),
            Miss::HeldOff { dependency, until } => Self::hold_off(&dependency, until),
        }
    }
}

/// An action that a transition asks of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Make its code and environment, with these left alone.
    Prepare(BlockedDependencies),
    /// Fetch the artifact.
    Fetch,
    /// Stop preparing or fetching, let go of the artifact: it is gone.
    Forget,
    /// Load, or share the model of another replica.
    Load,
    /// End the load, where that can be done; it is still to be answered.
    GiveUp,
    /// Run the validation inference.
    Validate,
    /// Make it callable.
    Announce,
    /// Take no new request, wait for the last.
    Drain,
    /// Free the memory.
    Unload,
}
