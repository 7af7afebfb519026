//! Hard constraints, room aside: why a worker cannot take a replica whatever leaves it.

use berth_spec::{Cordon, Deployment, Revision, Spec, WorkerState, deployment::Selector};

use super::{PlacementRequest, Rejection, homes};
use crate::{
    Policy, World,
    draft::{Draft, Work, WorkerDraft},
    world::{Liveness, TrackedWorker},
};

/// The type of a deployment's model.
fn type_of(spec: &Spec) -> &str {
    spec.model_type.as_deref().unwrap_or(spec.model.format.as_str())
}

/// Selector of the policy for all models of a deployment's type.
pub(super) fn by_type<'p>(policy: &'p Policy, spec: &Spec) -> Option<&'p Selector> {
    let named = if policy.types.is_empty() { None } else { policy.types.get(type_of(spec)) };
    named.or(policy.other_types.as_ref())
}

/// The reason why a worker may never hold a revision of a deployment, whatever the time and the load. Labels are the deployment's;
/// format, isolation and card are the revision's own: an older one serves until its successor is ready, which may ask for others.
pub(crate) fn forbidden(
    world: &World,
    tracked: &TrackedWorker,
    deployment: &Deployment,
    revision: &Revision,
) -> Option<Rejection> {
    let info = tracked.info.as_ref()?;
    let (spec, format) = (&deployment.spec, &revision.format);
    let Some(runtime) = info.runtime_for(format) else {
        return Some(Rejection::NoRuntime { format: format.clone(), offers: info.formats() });
    };
    let lacking = |selector: &Selector, of_type: Option<&str>| {
        let (key, value) = selector.required.iter().find(|(key, value)| info.label(runtime, key) != Some(value))?;
        Some(Rejection::Label { key: key.clone(), value: value.clone(), of_type: of_type.map(str::to_owned) })
    };
    let version = revision.card.as_ref().map(|pinned| &pinned.card.schema_version);
    let unread = || {
        let version = version.filter(|version| !info.schema_versions.contains(version))?;
        Some(Rejection::Schema { version: version.clone(), reads: info.schema_versions.clone() })
    };
    let weaker = || {
        let offer = runtime.less_than(revision.runtime.isolation)?;
        let asked = revision.runtime.isolation?;
        Some(Rejection::Isolation { asked, runtime: runtime.name.clone(), offer: offer.clone() })
    };
    // Last, so that it means that the worker would do otherwise.
    lacking(&spec.selector, None)
        .or_else(|| by_type(&world.policy, spec).and_then(|selector| lacking(selector, Some(type_of(spec)))))
        .or_else(weaker)
        .or_else(unread)
}

/// The reason why nothing new is put on a worker.
fn closed(draft: &Draft<'_>, candidate: &WorkerDraft<'_>) -> Option<Rejection> {
    let tracked = candidate.tracked;
    match tracked.liveness {
        Liveness::Alive => {}
        Liveness::Unseen => return Some(Rejection::Unseen),
        Liveness::Detached { .. } => return Some(Rejection::Detached),
        Liveness::Lost { .. } => return Some(Rejection::Lost),
    }
    if tracked.unlisted {
        return Some(Rejection::Unlisted);
    }
    match (tracked.cordon, tracked.state) {
        (Cordon::Open, WorkerState::Serving) => {}
        (_, WorkerState::Leaving) => return Some(Rejection::Leaving),
        (Cordon::Draining, _) => return Some(Rejection::Draining),
        (Cordon::Cordoned, _) => return Some(Rejection::Cordoned),
    }
    let policy = &draft.world.policy;
    let loads = tracked.recovering(policy, draft.now).map(|_| candidate.usage.coming)?;
    (loads >= policy.recovering_loads).then_some(Rejection::Recovering { loads })
}

/// The reason why a worker cannot take a replica of a revision now, room aside.
pub(super) fn reject(
    draft: &Draft<'_>,
    work: &Work<'_>,
    request: &PlacementRequest<'_>,
    candidate: &WorkerDraft<'_>,
) -> Option<Rejection> {
    let (worker, tracked) = (candidate.id, candidate.tracked);
    let revision = &request.revision.id;
    if !tracked.alive() {
        return closed(draft, candidate);
    }
    if work.replicas.iter().any(|replica| replica.worker == *worker && replica.revision == *revision) {
        return Some(Rejection::Holds);
    }
    if let Some(rejection) = closed(draft, candidate) {
        return Some(rejection);
    }
    if let Some(rejection) = forbidden(draft.world, tracked, &work.entry.deployment, request.revision) {
        return Some(rejection);
    }
    if let Some(rejection) = homes::elsewhere(draft, work, revision, request.home, tracked) {
        return Some(rejection);
    }
    let failure = work.entry.failure(revision, worker, draft.now)?;
    let message = format!("{}: {}", failure.category.as_str(), failure.message);
    Some(Rejection::FailedHere { until: failure.until, message })
}
