//! The status of objects: what is written over what is there, as a merge patch of `status`. No I/O, no clock.
//!
//! One file per kind. Fields that these know of and that are not true any more are set to null; what others wrote stays.

mod inference_service;
mod model_deployment;
mod predictor;
mod trained_model;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::{
    kind::Kind,
    objects::{Key, Object},
    plan::Declared,
    routes::{Ingress, address},
    state::{DeploymentState, FailureInfo},
};

/// Characters of a model's name that stay as they are in a URL.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Everything that a status is made of.
pub(crate) struct Facts<'a> {
    pub(crate) key: &'a Key,
    pub(crate) object: &'a Object,
    pub(crate) declared: &'a Declared,
    pub(crate) state: &'a DeploymentState,
    /// The address of the models, without a slash at its end.
    pub(crate) url: Option<&'a str>,
    pub(crate) ingress: &'a Ingress,
    /// The time, RFC 3339.
    pub(crate) now: &'a str,
}

/// Reason and message of a condition that does not hold.
#[derive(Clone, Copy, Default)]
struct Complaint<'a> {
    reason: &'a str,
    message: &'a str,
}

impl Facts<'_> {
    /// The address to which clients add `/v2/models/NAME/infer`.
    fn base(&self) -> Option<String> {
        self.url.map(|url| address(url, self.key))
    }

    /// The address of gRPC: there, metadata name the namespace.
    fn grpc(&self) -> Option<String> {
        self.url.map(|url| if url.contains("{name}") { address(url, self.key) } else { url.to_owned() })
    }

    /// The address of the model.
    fn model_url(&self) -> Option<String> {
        let name = utf8_percent_encode(&self.key.name, SEGMENT);
        Some(format!("{}/v2/models/{name}", self.base()?))
    }

    /// A condition of Knative's form. One whose status stays keeps its time.
    fn condition(&self, kind: &str, is: bool, complaint: Complaint<'_>) -> Value {
        let status = if is { "True" } else { "False" };
        let mut before = self.object.status["conditions"].as_array().into_iter().flatten();
        let before = before.find(|one| one["type"] == kind && one["status"] == status);
        let since = before.and_then(|one| one["lastTransitionTime"].as_str()).unwrap_or(self.now);
        let mut condition = json!({ "type": kind, "status": status, "lastTransitionTime": since });
        // Clients of Knative's conditions take a reason for a complaint.
        if !is {
            condition["reason"] = complaint.reason.into();
            condition["message"] = complaint.message.into();
        }
        condition
    }

    /// `lastFailureInfo`. A failure without a time of its own keeps that of when it was told first.
    fn failure(&self, before: &Value, revision: &str) -> Value {
        let Some(FailureInfo { reason, message, location, revision: of, time }) = &self.state.failure else {
            return Value::Null;
        };
        let text = |text: &str| if text.is_empty() { Value::Null } else { text.into() };
        let told = before["time"].as_str().filter(|_| before["message"] == message.as_str());
        json!({
            "reason": text(reason),
            "message": message,
            "location": text(location),
            revision: text(of),
            "time": time.as_deref().or(told).unwrap_or(self.now),
        })
    }
}

/// The patch that makes the status true; `None`: it is.
pub(crate) fn patch(facts: &Facts<'_>) -> Option<Value> {
    let patch = match facts.key.kind {
        Kind::Model => model_deployment::status(facts),
        Kind::InferenceService => inference_service::status(facts),
        Kind::Predictor => predictor::status(facts),
        Kind::TrainedModel => trained_model::status(facts),
        Kind::ServingRuntime | Kind::ClusterServingRuntime | Kind::Route => return None,
    };
    changes(&facts.object.status, &patch).then_some(patch)
}

/// True if a merge patch would change something.
fn changes(present: &Value, patch: &Value) -> bool {
    match (present, patch) {
        (Value::Object(present), Value::Object(patch)) => {
            patch.iter().any(|(name, patch)| changes(present.get(name).unwrap_or(&Value::Null), patch))
        }
        // A patch of nulls alone leaves nothing behind.
        (Value::Null, Value::Object(patch)) => patch.values().any(|patch| changes(&Value::Null, patch)),
        (present, patch) => present != patch,
    }
}
