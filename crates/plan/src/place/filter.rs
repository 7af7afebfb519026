//! Hard constraints: why a worker cannot take a replica.

use std::fmt;

use berth_spec::{ByteSize, Deployment, RevisionId, Time, WorkerId};

use crate::{
    draft::{Draft, Work},
    world::Seats,
};

/// Why a worker cannot take a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejection {
    /// It has no runtime for the format.
    NoRuntime {
        /// The format.
        format: &'static str,
    },
    /// It lacks a label that the selector requires.
    Label {
        /// The label's key.
        key: String,
        /// The value it must have.
        value: String,
    },
    /// There is too little memory, even after evicting what may be evicted.
    Memory {
        /// What one replica takes.
        need: ByteSize,
        /// What nobody claims.
        free: ByteSize,
        /// What may be evicted for it.
        evictable: ByteSize,
        /// What may be evicted for it later, once the requests that wait for it have been let in.
        busy: ByteSize,
        /// When the first of that may leave, as far as that is a matter of time.
        again: Time,
        /// All that models may take there.
        total: ByteSize,
    },
    /// It cannot be reached.
    Lost,
    /// Nothing new is put there.
    Cordoned,
    /// It holds another replica of the same revision.
    Holds,
    /// Loading failed there, or failed elsewhere for a reason that is the same everywhere.
    FailedHere {
        /// When it may be tried again.
        until: Time,
        /// What went wrong.
        message: String,
    },
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRuntime { format: format @ "onnx" } => write!(
                f,
                "has no runtime for {format}: get ONNX Runtime (`pip download --no-deps onnxruntime` has it) and start \
                 the worker with --onnxruntime PATH, where PATH is its libonnxruntime.so"
            ),
            Self::NoRuntime { format } => write!(f, "has no runtime for {format}"),
            Self::Label { key, value } => write!(f, "lacks the label {key}={value}"),
            Self::Memory { need, free, evictable, busy: ByteSize::ZERO, total, .. } => {
                write!(f, "needs {need}, has {free} free and {evictable} that may be evicted, of {total}")
            }
            Self::Memory { need, free, evictable, busy, total, .. } => {
                write!(
                    f,
                    "needs {need}, has {free} free and {evictable} that may be evicted ({busy} more soon), of {total}"
                )
            }
            Self::Lost => f.write_str("cannot be reached"),
            Self::Cordoned => f.write_str("is cordoned"),
            Self::Holds => f.write_str("holds a replica already"),
            Self::FailedHere { until, message } => write!(f, "failed to load it: {message}; tried again after {until}"),
        }
    }
}

/// Why a worker may never hold a deployment, whatever the time and the load.
pub(crate) fn forbidden(seats: &Seats, deployment: &Deployment) -> Option<Rejection> {
    let info = seats.info.as_ref()?;
    let format = deployment.spec.model.format;
    if !info.formats.contains(&format) {
        return Some(Rejection::NoRuntime { format: format.as_str() });
    }
    let lacking = deployment.spec.selector.required.iter().find(|(key, value)| info.labels.get(*key) != Some(value));
    lacking.map(|(key, value)| Rejection::Label { key: key.clone(), value: value.clone() })
}

/// Why a worker cannot take a replica of a revision now, memory aside.
pub(super) fn reject(
    draft: &Draft<'_>,
    work: &Work<'_>,
    revision: &RevisionId,
    worker: &WorkerId,
) -> Option<Rejection> {
    let Some(seats) = draft.world.workers.get(worker).filter(|seats| seats.alive()) else {
        return Some(Rejection::Lost);
    };
    if work.replicas.iter().any(|replica| replica.worker == *worker && replica.revision == *revision) {
        return Some(Rejection::Holds);
    }
    if !seats.cordon.is_open() {
        return Some(Rejection::Cordoned);
    }
    if let Some(rejection) = forbidden(seats, &work.entry.deployment) {
        return Some(rejection);
    }
    let failure = work.entry.failure(revision, worker, draft.now)?;
    let message = format!("{} ({})", failure.message.trim_end_matches('.'), failure.category.as_str());
    Some(Rejection::FailedHere { until: failure.until, message })
}
