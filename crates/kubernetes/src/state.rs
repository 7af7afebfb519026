//! The state of a model in the words of KServe, from what the fleet knows of its deployment. No I/O, no clock.

use berth_spec::{
    Residency, RevisionId,
    status::{Phase, Status, Truth},
};

use crate::plan::{Declared, Reason};

/// State of a deployment, as the fleet observes it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Observed {
    /// A digest of the stored spec.
    pub(crate) spec: u64,
    /// The status speaks of that spec.
    pub(crate) current: bool,
    pub(crate) status: Option<Status>,
}

/// The state of a model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DeploymentState {
    /// Clients get answers, from the first request on.
    pub(crate) ready: bool,
    /// The status below is that of the object's newest spec.
    pub(crate) current: bool,
    /// A canary: the revision that serves and the wanted one share requests as the spec says.
    pub(crate) shared: bool,
    pub(crate) phase: Option<Phase>,
    pub(crate) reason: String,
    pub(crate) message: String,
    /// The state of what serves.
    pub(crate) active: ModelState,
    /// The state of what is wanted.
    pub(crate) target: ModelState,
    pub(crate) transition: Transition,
    pub(crate) failure: Option<FailureInfo>,
    /// Replicas that are wanted, that answer, and that failed.
    pub(crate) copies: CopyCounts,
    pub(crate) wanted: Option<String>,
    pub(crate) serving: Option<String>,
}

/// Numbers of replicas; `total` are those that a worker has, in whatever state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CopyCounts {
    pub(crate) desired: u32,
    pub(crate) ready: u32,
    pub(crate) total: u32,
    pub(crate) failed: u32,
}

/// `ModelState` of KServe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModelState {
    Unknown,
    Pending,
    Standby,
    Loading,
    Loaded,
    FailedToLoad,
}

impl ModelState {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "",
            Self::Pending => "Pending",
            Self::Standby => "Standby",
            Self::Loading => "Loading",
            Self::Loaded => "Loaded",
            Self::FailedToLoad => "FailedToLoad",
        }
    }
}

/// `TransitionStatus` of KServe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transition {
    UpToDate,
    InProgress,
    BlockedByFailedLoad,
    InvalidSpec,
}

impl Transition {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::UpToDate => "UpToDate",
            Self::InProgress => "InProgress",
            Self::BlockedByFailedLoad => "BlockedByFailedLoad",
            Self::InvalidSpec => "InvalidSpec",
        }
    }
}

/// `FailureInfo` of KServe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailureInfo {
    /// A word of KServe's list; empty where none of them is true.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// The worker that could not load it; empty where no worker was found.
    pub(crate) location: String,
    pub(crate) revision: String,
    /// The time of the failure; `None`: not known.
    pub(crate) time: Option<String>,
}

/// The state of the model that an object declares.
pub(crate) fn state(declared: &Declared, observed: Option<&Observed>) -> DeploymentState {
    let status = observed.and_then(|observed| observed.status.as_ref());
    let current = declared.refused.is_none()
        && observed.is_some_and(|observed| observed.current && observed.spec == declared.spec);
    let available = status.and_then(|status| status.conditions.iter().find(|one| one.kind == "Available"));
    let on_demand = available.is_some_and(|one| one.status == Truth::Unknown && one.reason == "OnDemand");
    let shared = current && status.is_some_and(is_shared);
    let active = status.map_or(ModelState::Unknown, |status| active(status, on_demand));
    let target = match (&declared.refused, status) {
        (Some(_), _) => ModelState::FailedToLoad,
        // Both are there, and wait for their author alone.
        (None, Some(_)) if shared => active,
        (None, Some(status)) if current => target(status, active),
        _ => ModelState::Pending,
    };
    let (reason, message) = match (&declared.refused, available) {
        (Some(refusal), _) => (word(refusal.reason).to_owned(), refusal.message.clone()),
        (None, Some(available)) if current => (available.reason.clone(), available.message.clone()),
        _ => ("Declared".to_owned(), "the fleet was told of it".to_owned()),
    };
    let failure = match &declared.refused {
        Some(refusal) => Some(FailureInfo {
            reason: match refusal.reason {
                Reason::Invalid | Reason::NameTaken | Reason::NotDeclared => "InvalidPredictorSpec",
                of_runtime => word(of_runtime),
            },
            message: refusal.message.clone(),
            location: String::new(),
            revision: String::new(),
            time: None,
        }),
        None => status.filter(|_| current).and_then(|status| failure(status, target)),
    };
    DeploymentState {
        ready: matches!(active, ModelState::Loaded | ModelState::Standby),
        current,
        shared,
        phase: status.map(|status| status.phase),
        reason,
        message,
        active,
        target,
        transition: match (&declared.refused, target) {
            (Some(_), _) => Transition::InvalidSpec,
            (None, ModelState::FailedToLoad) => Transition::BlockedByFailedLoad,
            _ if current && active == target && matches!(active, ModelState::Loaded | ModelState::Standby) => {
                Transition::UpToDate
            }
            _ => Transition::InProgress,
        },
        failure,
        copies: status.map(copies).unwrap_or_default(),
        wanted: status.map(|status| status.wanted.to_string()),
        serving: status.and_then(|status| status.serving.as_ref()).map(ToString::to_string),
    }
}

/// The word for a refusal.
pub(crate) const fn word(reason: Reason) -> &'static str {
    match reason {
        Reason::Invalid => "InvalidSpec",
        Reason::NameTaken => "NameTaken",
        Reason::RuntimeNotRecognized => "RuntimeNotRecognized",
        Reason::RuntimeDisabled => "RuntimeDisabled",
        Reason::NoSupportingRuntime => "NoSupportingRuntime",
        Reason::NotDeclared => "NotDeclared",
    }
}

/// True for a canary that does as its spec says.
fn is_shared(status: &Status) -> bool {
    status.conditions.iter().any(|one| one.kind == "Progressing" && one.reason == "Canary")
}

/// The state of what serves, or of the first revision on its way.
fn active(status: &Status, on_demand: bool) -> ModelState {
    if status.ready > 0 {
        return ModelState::Loaded;
    }
    match status.phase {
        Phase::ScaledDown if on_demand => ModelState::Standby,
        Phase::Failed => ModelState::FailedToLoad,
        _ => coming(status, &status.wanted),
    }
}

/// The state of the wanted revision.
fn target(status: &Status, active: ModelState) -> ModelState {
    match &status.serving {
        Some(serving) if *serving != status.wanted => coming(status, &status.wanted),
        _ => active,
    }
}

/// The state of a revision that does not serve.
fn coming(status: &Status, revision: &RevisionId) -> ModelState {
    let mut replicas = status.replicas.iter().filter(|replica| replica.revision == *revision);
    let loads = |residency: &Residency| !matches!(residency, Residency::Queued | Residency::Failed(_));
    if replicas.any(|replica| replica.residency.as_ref().is_some_and(loads)) {
        ModelState::Loading
    } else if status.failures.iter().any(|failed| failed.revision == *revision) {
        ModelState::FailedToLoad
    } else {
        ModelState::Pending
    }
}

/// The last failure of the wanted revision, while it keeps the model from being as it should be.
fn failure(status: &Status, target: ModelState) -> Option<FailureInfo> {
    if matches!(target, ModelState::Loaded | ModelState::Standby) {
        return None;
    }
    let remembered = status.failures.iter().map(|failed| (&failed.revision, &failed.worker, &failed.failure));
    let held = status.replicas.iter().filter_map(|replica| match &replica.residency {
        Some(Residency::Failed(failure)) => Some((&replica.revision, &replica.worker, failure)),
        _ => None,
    });
    let of_wanted = remembered.chain(held).filter(|(revision, ..)| **revision == status.wanted);
    match of_wanted.max_by_key(|(_, _, failure)| failure.at) {
        Some((revision, worker, failure)) => Some(FailureInfo {
            reason: "ModelLoadFailed",
            message: failure.message.clone(),
            location: worker.to_string(),
            revision: revision.to_string(),
            time: Some(failure.at.to_string()),
        }),
        None if status.phase == Phase::ScheduleFailed => {
            let available = status.conditions.iter().find(|one| one.kind == "Available")?;
            Some(FailureInfo {
                reason: "",
                message: available.message.clone(),
                location: String::new(),
                revision: status.wanted.to_string(),
                time: None,
            })
        }
        None => None,
    }
}

fn copies(status: &Status) -> CopyCounts {
    let failed = |residency: &Residency| matches!(residency, Residency::Failed(_));
    let holding = status.replicas.iter().filter(|replica| replica.residency.as_ref().is_some_and(failed)).count();
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    CopyCounts {
        desired: status.desired,
        ready: status.ready,
        total: count(status.replicas.len()),
        failed: count(holding.max(status.failures.len())),
    }
}
