//! Carries a decision out: applies objects, writes the status, tells events.

use kube::{
    Client, Error, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions},
    core::Status as Refusal,
    runtime::events::{Event as Message, EventType, Recorder},
};
use serde_json::{Value, json};

use super::{
    ATTEMPT,
    kind::{Key, Kind},
};
use crate::{
    FIELD_MANAGER,
    brain::{ApplyError, Decision, Event},
};

/// Owner of the number of pods, from the moment when the operator gives it up to that when an autoscaler changes it.
const REPLICAS_MANAGER: &str = "berth-operator-replicas";

/// The outcome of applying an object.
#[derive(PartialEq, Eq)]
enum Applied {
    Done,
    /// Its namespace is being deleted or gone, so that nothing can be made in it.
    NamespaceEnds,
}

/// One attempt to bring an object to its desired state.
pub(super) struct Attempt {
    pub(super) key: Key,
    /// The object that the decision is about.
    pub(super) object: std::sync::Arc<Value>,
    pub(super) decision: Decision<Value>,
    /// Children that were not seen before: they may be there, of somebody else.
    pub(super) unseen: Vec<Key>,
}

impl Attempt {
    /// Carries it out, within [`ATTEMPT`]: an object whose attempt never ended would never be looked at again.
    pub(super) async fn run(self, client: &Client, recorder: &Recorder) -> Result<(), ApplyError> {
        let silent = || ApplyError::Unreachable(format!("{}: the API server did not answer within a minute", self.key));
        let carried_out = tokio::time::timeout(ATTEMPT, self.carry_out(client, recorder)).await;
        carried_out.unwrap_or_else(|_| Err(silent()))
    }

    async fn carry_out(&self, client: &Client, recorder: &Recorder) -> Result<(), ApplyError> {
        for superfluous in &self.decision.delete {
            self.delete(client, superfluous).await?;
        }
        for wanted in &self.decision.apply {
            if self.apply(client, wanted).await? == Applied::NamespaceEnds {
                // The object itself goes next.
                return Ok(());
            }
        }
        if let Some(status) = &self.decision.status {
            let api = self.key.kind.api(client, Some(&self.key.namespace));
            let patch = json!({ "status": status });
            match api.patch_status(&self.key.name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(_) => tracing::debug!(event = "status_written", object = %self.key),
                // It was deleted meanwhile.
                Err(Error::Api(refusal)) if refusal.code == 404 => return Ok(()),
                Err(error) => return Err(trouble(format!("the status of {} cannot be written", self.key), &error)),
            }
        }
        for event in &self.decision.events {
            self.tell(recorder, event).await;
        }
        Ok(())
    }

    async fn delete(&self, client: &Client, seen: &Value) -> Result<(), ApplyError> {
        let Some(kind) = Kind::of(seen) else { return Ok(()) };
        let key = Key::of(kind, seen);
        // Only the one that was looked at.
        let uid = seen["metadata"]["uid"].as_str().map(str::to_owned);
        let preconditions = Some(Preconditions { uid, resource_version: None });
        let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
        match kind.api(client, Some(&key.namespace)).delete(&key.name, &parameters).await {
            Ok(_) => {
                tracing::info!(event = "deleted", object = %key, owner = %self.key);
                Ok(())
            }
            Err(Error::Api(refusal)) if matches!(refusal.code, 404 | 409) => Ok(()),
            Err(error) => Err(trouble(format!("{key} cannot be deleted"), &error)),
        }
    }

    /// Shares the number of pods with another owner of fields where the operator has said it until now. Else it would go with its last owner,
    /// and an API server would set it to 1. It is given up to whoever changes the number next.
    async fn keep_replicas(&self, client: &Client, deployment: &Key, count: i64) -> Result<(), ApplyError> {
        let wanted = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": { "name": deployment.name, "namespace": deployment.namespace },
            "spec": { "replicas": count },
        });
        let api = deployment.kind.api(client, Some(&deployment.namespace));
        let live = api.get_opt(&deployment.name).await;
        let live = live.map_err(|error| trouble(format!("{deployment} cannot be read"), &error))?;
        if !live.is_some_and(|live| says_replicas(&live)) {
            return Ok(());
        }
        match api.patch(&deployment.name, &PatchParams::apply(REPLICAS_MANAGER), &Patch::Apply(wanted)).await {
            // Somebody has changed it at this moment, and owns it.
            Ok(_) => Ok(()),
            Err(Error::Api(refusal)) if refusal.code == 409 => Ok(()),
            Err(error) => Err(trouble(format!("the number of pods of {deployment} cannot be kept"), &error)),
        }
    }

    async fn apply(&self, client: &Client, wanted: &Value) -> Result<Applied, ApplyError> {
        let Some(kind) = Kind::of(wanted) else { return Ok(Applied::Done) };
        let key = Key::of(kind, wanted);
        let api = kind.api(client, Some(&key.namespace));
        if self.unseen.contains(&key) {
            let found = api.get_opt(&key.name).await;
            let found = found.map_err(|error| trouble(format!("{key} cannot be read"), &error))?;
            if found.is_some_and(|found| !is_controlled_by(&found, controller(wanted))) {
                return Err(ApplyError::taken(&key));
            }
        }
        if let (true, Some(count)) = (key == self.key.sibling(Kind::Deployment), self.decision.kept_replicas) {
            self.keep_replicas(client, &key, count).await?;
        }
        // Fields that others have changed are set back: this object is the operator's.
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        match api.patch(&key.name, &parameters, &Patch::Apply(wanted)).await {
            Ok(_) => {
                tracing::info!(event = "applied", object = %key, owner = %self.key);
                Ok(Applied::Done)
            }
            // Its custom resource goes at this moment, which the watch tells next.
            Err(Error::Api(refusal)) if kind.is_optional() && refusal.code == 404 && !namespace_ends(&refusal) => {
                Ok(Applied::Done)
            }
            Err(Error::Api(refusal)) if namespace_ends(&refusal) => Ok(Applied::NamespaceEnds),
            Err(error) => Err(trouble(format!("{key} cannot be applied"), &error)),
        }
    }

    async fn tell(&self, recorder: &Recorder, event: &Event) {
        let message = Message {
            type_: if event.warning { EventType::Warning } else { EventType::Normal },
            reason: event.reason.clone(),
            note: Some(event.message.chars().take(1000).collect()),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        let metadata = &self.object["metadata"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let about = k8s_openapi::api::core::v1::ObjectReference {
            api_version: text(&self.object["apiVersion"]),
            kind: Some(self.key.kind.name().to_owned()),
            name: Some(self.key.name.clone()),
            namespace: Some(self.key.namespace.clone()),
            uid: text(&metadata["uid"]),
            resource_version: text(&metadata["resourceVersion"]),
            ..Default::default()
        };
        // Events are for people; the status says the same.
        if let Err(error) = recorder.publish(&message, &about).await {
            tracing::warn!(event = "event_not_told", object = %self.key, %error);
        }
    }
}

/// True if the operator owns the number of pods of a Deployment.
fn says_replicas(deployment: &DynamicObject) -> bool {
    let mut owners = deployment.metadata.managed_fields.iter().flatten();
    owners.any(|owner| {
        let fields = owner.fields_v1.as_ref().map(|fields| &fields.0["f:spec"]["f:replicas"]);
        owner.manager.as_deref() == Some(FIELD_MANAGER) && fields.is_some_and(|field| !field.is_null())
    })
}

/// The uid of the object that controls a rendered one.
fn controller(wanted: &Value) -> Option<&str> {
    let mut owners = wanted["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.find(|owner| owner["controller"] == true)?["uid"].as_str()
}

/// True if the controller of `found` has this uid.
pub(super) fn is_controlled_by(found: &DynamicObject, uid: Option<&str>) -> bool {
    found.owner_references().iter().any(|owner| owner.controller == Some(true) && Some(owner.uid.as_str()) == uid)
}

/// The trouble behind an error: refusals stay until somebody changes something, all else may pass.
pub(super) fn trouble(doing: String, error: &Error) -> ApplyError {
    match error {
        Error::Api(refusal) if is_final(refusal) => ApplyError::Refused(format!("{doing}: {}", refusal.message)),
        Error::Api(refusal) => ApplyError::Unreachable(format!("{doing}: {}", refusal.message)),
        other => ApplyError::Unreachable(format!("{doing}: {other}")),
    }
}

fn namespace_ends(refusal: &Refusal) -> bool {
    let Some(details) = &refusal.details else { return false };
    let gone = refusal.code == 404 && details.kind == "namespaces";
    gone || details.causes.iter().any(|cause| cause.reason == "NamespaceTerminating")
}

/// The beginnings of what an API server answers, with 500, to a field of a wrong type: a number as the value of a variable, a word as a
/// quantity.
const MISTYPED: [&str; 2] = ["failed to create typed patch object", "failed to convert new object"];

fn is_final(refusal: &Refusal) -> bool {
    let is_refused = (400..500).contains(&refusal.code) && !matches!(refusal.code, 401 | 404 | 409 | 429);
    is_refused || (refusal.code == 500 && MISTYPED.iter().any(|begin| refusal.message.starts_with(begin)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_another_type_is_refused_and_a_server_in_trouble_is_asked_again() {
        let said = [
            (422, "Deployment.apps \"iris\" is invalid", true),
            (403, "exceeded quota", true),
            (500, "failed to create typed patch object: .spec.replicas: expected numeric, got \"a\"", true),
            (500, "failed to convert new object to proper version: quantities must match the regular expression", true),
            (500, "etcdserver: request timed out", false),
            (409, "the object has been modified", false),
            (429, "too many requests", false),
        ];
        for (code, message, stays) in said {
            let error = Error::Api(Refusal::failure(message, "").with_code(code).boxed());
            let is_refused = matches!(trouble("it".to_owned(), &error), ApplyError::Refused(_));
            assert_eq!(is_refused, stays, "{code} {message}");
        }
    }
}
