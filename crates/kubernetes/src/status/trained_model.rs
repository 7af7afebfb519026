//! Status of a `TrainedModel`: KServe 0.15 `pkg/apis/serving/v1alpha1/trained_model_types.go`.

use serde_json::{Value, json};

use super::{Complaint, Facts};

pub(super) fn status(facts: &Facts<'_>) -> Value {
    let state = facts.state;
    let complaint = Complaint { reason: &state.reason, message: &state.message };
    let url = facts.model_url().map(|url| format!("{url}/infer"));
    json!({
        "observedGeneration": facts.declared.generation,
        "conditions": [facts.condition("Ready", state.ready, complaint)],
        "url": url,
        "address": url.as_ref().map(|url| json!({ "url": url })),
    })
}
