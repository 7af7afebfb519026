//! Status of an `InferenceService`: KServe 0.15 `pkg/apis/serving/v1beta1/inference_service_status.go`.

use serde_json::{Value, json};

use super::{Complaint, Facts};
use crate::{kind::Kind, objects::Content, routes::Ingress};

/// All requests, in percent.
const WHOLE: u32 = 100;

pub(super) fn status(facts: &Facts<'_>) -> Value {
    let state = facts.state;
    let complaint = Complaint { reason: &state.reason, message: &state.message };
    let (reached, way) = match facts.ingress {
        Ingress::Ready => (true, Complaint::default()),
        Ingress::Waiting(reason, message) => (false, Complaint { reason, message }),
    };
    let first = if state.ready { way } else { complaint };
    let base = facts.base();
    let named = |kind: Kind| facts.declared.runtime.as_ref().filter(|(of, _)| *of == kind).map(|(_, name)| name);
    json!({
        "observedGeneration": facts.declared.generation,
        "conditions": [
            facts.condition("PredictorReady", state.ready, complaint),
            facts.condition("IngressReady", reached, way),
            facts.condition("Ready", state.ready && reached, first),
        ],
        "url": base,
        "address": base.as_ref().map(|url| json!({ "url": url })),
        "components": { "predictor": {
            "url": base,
            "restUrl": base,
            "grpcUrl": facts.grpc(),
            "latestCreatedRevision": state.wanted,
            "latestReadyRevision": if state.shared { &state.wanted } else { &state.serving },
            "latestRolledoutRevision": state.serving,
            "traffic": traffic(facts),
            // KServe may have written it once.
            "previousRolledoutRevision": Value::Null,
        } },
        "modelStatus": {
            "transitionStatus": state.transition.as_str(),
            "states": { "activeModelState": state.active.as_str(), "targetModelState": state.target.as_str() },
            "copies": { "failedCopies": state.copies.failed, "totalCopies": state.copies.total },
            "lastFailureInfo": facts.failure(&facts.object.status["modelStatus"]["lastFailureInfo"], "modelRevisionName"),
        },
        "servingRuntimeName": named(Kind::ServingRuntime),
        "clusterServingRuntimeName": named(Kind::ClusterServingRuntime),
    })
}

/// The shares of a canary, as Knative's Routes have them; KServe's SDK reads `latestRevision` of each. Without a canary there are none, and
/// what KServe wrote of its own goes.
fn traffic(facts: &Facts<'_>) -> Value {
    let Content::Model(Ok(manifest)) = &facts.object.content else { return Value::Null };
    let state = facts.state;
    match (&state.wanted, &state.serving, manifest.spec.rollout.canary) {
        (Some(wanted), Some(serving), Some(percent)) if state.shared => json!([
            { "revisionName": wanted, "latestRevision": true, "percent": percent.get() },
            { "revisionName": serving, "latestRevision": false, "percent": WHOLE - percent.get(), "tag": "prev" },
        ]),
        _ => Value::Null,
    }
}
