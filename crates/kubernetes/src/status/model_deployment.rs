//! Status of a `ModelDeployment` of a fleet: what the operator writes for one with pods, with replicas in the place of pods.

use berth_operator::api::status::{State, Status};
use berth_spec::status::Phase;
use serde_json::{Value, json};

use super::Facts;
use crate::state::{ModelState, word};

pub(super) fn status(facts: &Facts<'_>) -> Value {
    let before: Status = serde_json::from_value(facts.object.status.clone()).unwrap_or_default();
    let copies = facts.state.copies;
    let after = Status {
        replicas: copies.desired.into(),
        ready_replicas: copies.ready.into(),
        address: facts.model_url(),
        ..before
    };
    let after = after.with(&state(facts), facts.declared.generation, facts.now);
    let mut patch = json!(after);
    if after.address.is_none() {
        patch["address"] = Value::Null;
    }
    patch
}

fn state(facts: &Facts<'_>) -> State {
    let model = facts.state;
    let message = model.message.clone();
    if let Some(refusal) = &facts.declared.refused {
        return State::Stalled(word(refusal.reason), message);
    }
    match model.phase.filter(|_| model.current) {
        Some(Phase::Available | Phase::ScaledDown) => State::Ready(message),
        Some(Phase::Failed) => State::Stalled("LoadFailed", message),
        Some(Phase::ScheduleFailed) => State::Stalled("ScheduleFailed", message),
        Some(Phase::Degraded) if model.target == ModelState::FailedToLoad => {
            let why = model.failure.as_ref().map_or(message, |failure| failure.message.clone());
            State::Stalled("RolloutStuck", why)
        }
        _ => State::Reconciling(message),
    }
}
