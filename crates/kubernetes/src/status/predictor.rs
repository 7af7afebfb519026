//! Status of a `Predictor`: modelmesh-serving 0.12 `apis/serving/v1alpha1/predictor_types.go`.

use serde_json::{Value, json};

use super::Facts;
use crate::state::ModelState;

pub(super) fn status(facts: &Facts<'_>) -> Value {
    let state = facts.state;
    // Here the target is named only while it is another one.
    let target = if state.target == state.active { ModelState::Unknown } else { state.target };
    let mut failure = facts.failure(&facts.object.status["lastFailureInfo"], "modelId");
    // ModelMesh has no word for it.
    if failure["reason"] == "RuntimeDisabled" {
        failure["reason"] = "NoSupportingRuntime".into();
    }
    json!({
        "available": state.ready,
        "transitionStatus": state.transition.as_str(),
        "activeModelState": state.active.as_str(),
        "targetModelState": target.as_str(),
        "failedCopies": state.copies.failed,
        "totalCopies": state.copies.total,
        "httpEndpoint": facts.base().unwrap_or_default(),
        "grpcEndpoint": facts.grpc().unwrap_or_default(),
        "lastFailureInfo": failure,
    })
}
