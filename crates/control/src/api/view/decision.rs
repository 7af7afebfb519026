//! Shapes of decisions, previews and explanations.

use berth_plan::{
    Evicted, Rejection, Score,
    preview::{Action, Preview, Step},
    report::{self, Explanation},
};
use berth_spec::{Event, event::Severity, manifest::FieldChange, status::Status};
use berth_wire::api::{
    self, ApplyResult, EventView, EvictionView, ExplainView, Metadata, Outcome, PlanStep, PlanView, SeverityView,
    StepKind, Timestamp, Unplaced, Victim, WorkerMemoryChange, WorkerVerdict, WorkerVerdictKind,
};

use super::{deployment, fleet, head};
use crate::handle;

/// Result of applying a document of a kind.
pub(crate) fn applied(kind: &str, applied: handle::Applied) -> ApplyResult {
    ApplyResult {
        kind: kind.to_owned(),
        name: applied.name.to_string(),
        outcome: match applied.outcome {
            handle::ApplyOutcome::Created => Outcome::Created,
            handle::ApplyOutcome::Configured => Outcome::Configured,
            handle::ApplyOutcome::Unchanged => Outcome::Unchanged,
        },
        generation: applied.generation.0,
        resource_version: applied.rev.to_string(),
        warnings: applied.warnings,
        changes: applied.changes.into_iter().map(change).collect(),
    }
}

fn change(change: FieldChange) -> api::FieldChange {
    api::FieldChange { path: change.path, from: change.from, to: change.to }
}

/// Result of a deletion; `generation` is that of what is deleted.
pub(crate) fn deleted(kind: &str, name: &str, generation: u64, resource_version: String) -> ApplyResult {
    let (kind, name) = (kind.to_owned(), name.to_owned());
    let (warnings, changes) = (Vec::new(), Vec::new());
    ApplyResult { kind, name, outcome: Outcome::Deleted, generation, resource_version, warnings, changes }
}

/// An event and its number.
pub(crate) fn event(number: u64, event: &Event) -> EventView {
    let (api_version, kind) = head::<EventView>();
    EventView {
        api_version,
        kind,
        metadata: Metadata::named(number.to_string()),
        at: Timestamp(event.at),
        severity: match event.severity {
            Severity::Normal => SeverityView::Normal,
            Severity::Warning => SeverityView::Warning,
        },
        reason: event.reason.to_owned(),
        message: event.message.clone(),
        deployment: event.deployment.as_ref().map(ToString::to_string),
        worker: event.worker.as_ref().map(ToString::to_string),
        function: event.function.clone(),
    }
}

/// Explanation of a deployment's placement.
pub(crate) fn explanation(explanation: &Explanation, status: Option<&Status>) -> ExplainView {
    let (api_version, kind) = head::<ExplainView>();
    ExplainView {
        api_version,
        kind,
        metadata: Metadata::named(explanation.deployment.to_string()),
        phase: deployment::phase(status).to_owned(),
        summary: explanation.summary.clone(),
        revision: explanation.revision.to_string(),
        desired: explanation.desired,
        need: explanation.need.0,
        need_from: explanation.basis.as_str().to_owned(),
        workers: verdicts(&explanation.workers),
        evictions: explanation.evictions.iter().map(eviction).collect(),
        conditions: status.iter().flat_map(|status| &status.conditions).map(deployment::condition).collect(),
    }
}

fn eviction(evicted: &Evicted) -> EvictionView {
    EvictionView {
        at: Timestamp(evicted.at),
        revision: evicted.revision.to_string(),
        worker: evicted.worker.to_string(),
        room_for: evicted.whom.as_ref().map(ToString::to_string),
    }
}

/// Verdict for each worker, with the rank of those that have room.
fn verdicts(workers: &[report::WorkerView]) -> Vec<WorkerVerdict> {
    let fits = |seen: &report::WorkerView| match &seen.verdict {
        report::WorkerVerdict::Fits { score, .. } => Some(score.clone()),
        _ => None,
    };
    let mut scores: Vec<Score> = workers.iter().filter_map(fits).collect();
    scores.sort();
    let shown = workers.iter().map(|seen| {
        let mut view = verdict(seen);
        let Some(score) = fits(seen) else { return view };
        let rank = scores.partition_point(|other| *other < score);
        view.rank = u32::try_from(rank + 1).ok();
        match (rank, scores.first(), scores.get(1)) {
            (0, _, Some(second)) => {
                view.message.push_str(&format!("; best: better than {}, {}", second.worker, score.beats(second)));
            }
            (0, ..) => {}
            (_, Some(best), _) => {
                view.message.push_str(&format!("; {} is better: {}", best.worker, best.beats(&score)));
            }
            (_, None, _) => {}
        }
        view
    });
    shown.collect()
}

fn verdict(seen: &report::WorkerView) -> WorkerVerdict {
    let free = seen.memory - seen.used - seen.overhead;
    let mut view = WorkerVerdict {
        worker: seen.worker.to_string(),
        verdict: WorkerVerdictKind::Rejected,
        message: String::new(),
        rank: None,
        memory: fleet::memory(seen.memory, seen.used, seen.overhead),
        state: None,
        rejection: None,
        would_evict: Vec::new(),
    };
    match &seen.verdict {
        report::WorkerVerdict::Holds { revision, claim, residency } => {
            let state = residency.clone().unwrap_or_else(|| "Assigned".to_owned());
            view.verdict = WorkerVerdictKind::Holds;
            let lost = if state == "Unknown" { ", its worker cannot be reached" } else { "" };
            view.message = format!("holds {revision} with {claim}: {state}{lost}");
            view.state = Some(state);
        }
        report::WorkerVerdict::Fits { evicts, .. } => {
            view.verdict = WorkerVerdictKind::Fits;
            view.would_evict = evicts.iter().map(|revision| Victim { revision: revision.to_string() }).collect();
            view.message = match evicts.as_slice() {
                [] => format!("could hold it: {free} free of {}", seen.memory),
                victims => {
                    let victims: Vec<String> = victims.iter().map(ToString::to_string).collect();
                    format!("could hold it after evicting {}: {free} free of {}", victims.join(", "), seen.memory)
                }
            };
        }
        report::WorkerVerdict::Rejected(why) => {
            view.message = why.to_string();
            view.rejection = Some(rejection(why));
        }
    }
    view
}

fn rejection(rejection: &Rejection) -> api::Rejection {
    let reason = rejection.reason().to_owned();
    let mut view = api::Rejection { reason, ..api::Rejection::default() };
    if let Rejection::Memory { need, free, evictable, .. } = rejection {
        (view.need, view.free, view.evictable) = (Some(need.0), Some(free.0), Some(evictable.0));
    }
    view
}

/// Preview of changes, with the result for each document.
pub(crate) fn plan(preview: &Preview, documents: Vec<ApplyResult>) -> PlanView {
    let (api_version, kind) = head::<PlanView>();
    let change = |change: &berth_plan::preview::MemoryChange| WorkerMemoryChange {
        worker: change.worker.to_string(),
        total: change.total.0,
        before: change.before.0,
        peak: change.peak.0,
        after: change.after.0,
    };
    let unplaced = preview.unplaced.iter();
    PlanView {
        api_version,
        kind,
        documents,
        steps: preview.steps.iter().map(step).collect(),
        memory: preview.memory.iter().map(change).collect(),
        unplaced: unplaced.map(|(name, why)| Unplaced { deployment: name.to_string(), message: why.clone() }).collect(),
    }
}

fn step(step: &Step) -> PlanStep {
    let (action, from) = match &step.action {
        Action::Load => (StepKind::Load, None),
        Action::Reload { from } => (StepKind::Reload, Some(from.to_string())),
        Action::Unload => (StepKind::Unload, None),
        Action::Evict => (StepKind::Evict, None),
    };
    PlanStep {
        action,
        deployment: step.revision.deployment().to_string(),
        revision: step.revision.to_string(),
        worker: step.worker.to_string(),
        memory: step.memory.0,
        memory_from: step.basis.map(|basis| basis.as_str().to_owned()),
        from,
    }
}
