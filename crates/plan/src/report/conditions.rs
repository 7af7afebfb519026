//! The three conditions `Available`, `Progressing`, `Scheduled`, and those that are there only where something is wrong. The cause of a trouble, with what to do about it, is said
//! once: in `Available`, or in `Progressing` where the model answers all the same.

use berth_spec::{
    DeploymentName,
    status::{Condition, Truth},
};

use super::status::StatusFacts;
use crate::{
    Rollout,
    retry::Retrying,
    rollout,
    world::{Prospect, Verdict},
};

/// `Available`, `Progressing`, `Scheduled`; `Endpoint` where another deployment declared the same path before; `Validated`
/// where a generated request was refused.
pub(super) fn conditions(seen: &StatusFacts<'_>, taken_by: Option<&DeploymentName>) -> Vec<Condition> {
    let mut conditions = vec![available(seen), progressing(seen), scheduled(seen)];
    conditions.extend(taken_by.map(|other| {
        let path = seen.entry.deployment.spec.endpoint.as_deref().unwrap_or_default();
        let message = format!(
            "{other} declared {path} before, for the same region: gateways choose one of them; give this one another \
             endpoint, or a region of its own"
        );
        condition("Endpoint", Truth::False, "EndpointTaken", message)
    }));
    conditions.extend(seen.unproven.map(|why| condition("Validated", Truth::False, "Inconclusive", why)));
    conditions
}

fn condition(kind: &'static str, status: Truth, reason: &str, message: impl Into<String>) -> Condition {
    Condition { kind, status, reason: reason.to_owned(), message: message.into() }
}

fn available(seen: &StatusFacts<'_>) -> Condition {
    let is = |status, reason: &str, message: String| condition("Available", status, reason, message);
    let (ready, desired) = (seen.ready, seen.desired);
    if seen.entry.deployment.deleting {
        return is(Truth::False, "Deleting", "it is being deleted".to_owned());
    }
    if seen.entry.deployment.spec.replicas.max == 0 {
        let how = "replicas is 0, or a registry says enabled: false: change it to serve the model";
        return is(Truth::False, "ScaledDown", how.to_owned());
    }
    if ready > 0 && ready >= desired {
        return is(Truth::True, "Ready", format!("{ready} of {desired} replicas answer"));
    }
    if ready > 0 {
        let why = match (seen.verdict, &seen.held) {
            (Some(verdict), _) => verdict.message(),
            (None, Some(held)) => held.message(),
            (None, None) => match &seen.down {
                Some(down) => down.message.clone(),
                None if seen.lost > 0 => {
                    "a worker cannot be reached: its replica counts as lost unless it is back soon".to_owned()
                }
                None => "the others are on their way".to_owned(),
            },
        };
        return is(Truth::True, "Degraded", format!("{ready} of {desired} replicas answer; {why}"));
    }
    if let Some(held) = &seen.held {
        return is(Truth::False, "MassLoss", held.message());
    }
    match (seen.verdict, &seen.retrying) {
        (Some(Verdict::NoCapacity { text, .. }), _) if seen.placed == 0 => is(Truth::False, "NoCapacity", text.clone()),
        (Some(failed @ Verdict::Failed { .. }), _) if seen.placed == 0 => {
            is(Truth::False, "LoadFailed", failed.message())
        }
        (Some(Verdict::WaitsForRoom { text, .. }), _) if seen.placed == 0 => {
            is(Truth::False, "WaitsForRoom", text.clone())
        }
        (_, Some(retrying)) if seen.down.is_none() => is(Truth::False, "LoadFailed", retrying.message.clone()),
        (None, _) if seen.lost > 0 && seen.placed == 0 => is(
            Truth::False,
            "WorkerLost",
            "its worker cannot be reached: it is about to be placed elsewhere".to_owned(),
        ),
        _ if let Some(down) = &seen.down => is(Truth::False, "ProcessDied", down.message.clone()),
        _ if desired == 0 => is(Truth::Unknown, "OnDemand", "not loaded: the first request loads it".to_owned()),
        (Some(verdict), _) if seen.placed > 0 => {
            let (placed, why) = (seen.placed, verdict.message());
            is(Truth::False, "Loading", format!("0 of {desired} replicas answer, {placed} on their way; {why}"))
        }
        _ => is(Truth::False, "Loading", format!("0 of {desired} replicas answer; they are on their way")),
    }
}

fn progressing(seen: &StatusFacts<'_>) -> Condition {
    let is = |status, reason: &str, message: &str| condition("Progressing", status, reason, message);
    match seen.rollout {
        Some(stuck @ Rollout::Stuck { failed, serving, reason, .. }) => {
            let what = rollout::remedy(stuck, &seen.entry.deployment);
            let message = format!("{failed} was given up, {serving} goes on serving: {reason}; {what} to try again");
            return is(Truth::False, "RolloutStuck", &message);
        }
        Some(Rollout::Canary { from, to, .. }) if is_shared(seen) => {
            let name = &seen.entry.deployment.name;
            let message = match seen.canary {
                Some(percent) => format!(
                    "{to} gets {percent} % of requests, {from} the others; `berth rollout promote {name}` gives it all; to \
                     take it back declare the old model again, or `berth rollout undo {name} --to-generation N` \
                     (`berth rollout history {name}`)"
                ),
                None => format!("not loaded; once they are, {from} and {to} share requests"),
            };
            return is(Truth::False, "Canary", &message);
        }
        Some(Rollout::Surging { from, to, since, .. } | Rollout::Canary { from, to, since }) => {
            return match seen.verdict {
                Some(Verdict::SurgeWaits { text, prospect }) => {
                    let message = format!("{to} waits for room beside {from}, which serves: {text}");
                    match prospect {
                        Prospect::Soon => is(Truth::True, "SurgeWaits", &message),
                        Prospect::Blocked => is(Truth::False, "SurgeWaits", &message),
                        Prospect::Overdue => is(
                            Truth::False,
                            "RolloutOverdue",
                            &format!("since {since}, longer than rollout.deadline, {message}"),
                        ),
                    }
                }
                // Where less answers than should, that is said there.
                Some(failed @ Verdict::Failed { .. }) if seen.ready >= seen.desired => {
                    let why = failed.message();
                    is(
                        Truth::True,
                        "RollingOut",
                        &format!("{to} is loaded beside {from}, which serves until then; {why}"),
                    )
                }
                _ => is(Truth::True, "RollingOut", &format!("{to} is loaded beside {from}, which serves until then")),
            };
        }
        Some(Rollout::Recreating { from, to, .. }) => {
            return is(Truth::True, "Recreating", &format!("{to} is loaded in place of {from}: requests wait for it"));
        }
        _ => {}
    }
    if seen.down.is_some() && seen.ready < seen.desired {
        return is(Truth::True, "Restarting", "a process that died is started again by its worker, ever less often");
    }
    if let (Some(Retrying { at, .. }), false) = (&seen.retrying, seen.ready >= seen.desired) {
        let when = at.map_or_else(|| "soon, elsewhere if it can be".to_owned(), |at| format!("at {at}"));
        return is(Truth::True, "Retrying", &format!("loading is tried again {when}"));
    }
    match seen.verdict {
        Some(Verdict::NoCapacity { .. }) => is(Truth::False, "NoCapacity", "nothing moves until a worker can take it"),
        Some(Verdict::Failed { until, change, .. }) => {
            is(Truth::False, "LoadFailed", &format!("given up until {change} changes, or until {until}"))
        }
        Some(Verdict::WaitsForRoom { .. }) => is(Truth::True, "WaitsForRoom", "it is placed as soon as there is room"),
        Some(Verdict::LeaveWaits { text }) => {
            is(Truth::False, "LeaveWaits", &format!("it should leave its worker, and stays there for now: {text}"))
        }
        _ if seen.entry.deployment.deleting && seen.placed > 0 => {
            is(Truth::True, "Draining", "its replicas finish their requests and leave")
        }
        _ if seen.ready < seen.desired => is(Truth::True, "Loading", "replicas are on their way"),
        _ => is(Truth::False, "Settled", "there is nothing to do"),
    }
}

/// Returns true for a canary that does as declared: both revisions get requests, or nothing is loaded as nothing is wanted.
fn is_shared(seen: &StatusFacts<'_>) -> bool {
    let is_declared = seen.entry.deployment.spec.rollout.canary.is_some();
    let is_short = matches!(seen.verdict, Some(Verdict::SurgeWaits { .. }));
    is_declared && (seen.desired == 0 || (seen.canary.is_some() && !is_short))
}

fn scheduled(seen: &StatusFacts<'_>) -> Condition {
    let is = |status, reason: &str, message: &str| condition("Scheduled", status, reason, message);
    match seen.verdict {
        Some(Verdict::NoCapacity { .. }) => is(Truth::False, "NoCapacity", "no worker can take it"),
        Some(Verdict::WaitsForRoom { .. }) => is(Truth::False, "WaitsForRoom", "no worker has room for it yet"),
        Some(Verdict::Failed { .. }) if seen.placed == 0 => {
            is(Truth::Unknown, "Withheld", "it is placed again when loading it is tried again")
        }
        _ if seen.desired == 0 => is(Truth::Unknown, "NotWanted", "no replica is wanted now"),
        Some(Verdict::SurgeWaits { .. }) | None if seen.placed == 0 => {
            is(Truth::Unknown, "Planning", "it has not been planned for yet")
        }
        _ => {
            let workers: Vec<String> =
                seen.record.iter().flat_map(|r| &r.replicas).map(|replica| replica.worker.to_string()).collect();
            is(Truth::True, "Placed", &format!("on {}", workers.join(", ")))
        }
    }
}
