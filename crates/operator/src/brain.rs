//! Decisions: from the world to the objects to apply, the status and the events. No I/O, no clock.
//!
//! A decision is empty when all is as it should be. Children are deleted by Kubernetes itself: each is owned. Only an autoscaler that
//! is no longer wanted is deleted while its owner stays: it would go on changing the number of pods.

mod clops;
mod model;
mod valid;

use kube::core::ObjectMeta;
use serde_json::Value;

pub(crate) use self::valid::check;
pub use self::{
    clops::clops_deployment,
    model::{World, model_deployment},
};
use crate::api::{
    Status,
    status::{Condition, State},
};

/// The things to do for one object.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    /// Objects to delete first, each exactly as it was seen.
    pub delete: Vec<Value>,
    /// Objects to apply, in this order.
    pub apply: Vec<Value>,
    /// The number of pods that the Deployment has and is to keep, where it is applied without one.
    pub kept_replicas: Option<i64>,
    /// The status, where it differs from what the object has.
    pub status: Option<Status>,
    /// Events that people should hear of.
    pub events: Vec<Event>,
}

impl Decision {
    /// True if nothing is to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.delete.is_empty() && self.apply.is_empty() && self.status.is_none() && self.events.is_empty()
    }
}

/// An event of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// True for what a person should look at.
    pub warning: bool,
    /// The event in one word.
    pub reason: String,
    /// The event in a sentence.
    pub message: String,
}

/// Outcome of the last attempt to apply an object's children, where it failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// An object of this name belongs to somebody else.
    NameTaken(String),
    /// The API server refuses what was rendered.
    Refused(String),
    /// The API server could not be reached, or failed; it is tried again.
    Unreachable(String),
}

impl Trouble {
    /// `what` is in the way.
    pub(crate) fn taken(what: &impl std::fmt::Display) -> Self {
        Self::NameTaken(format!("there is a {what} of somebody else: delete it, or take another name"))
    }

    fn state(&self) -> State {
        match self {
            Self::NameTaken(message) => State::Stalled("NameTaken", message.clone()),
            Self::Refused(message) => State::Stalled("Refused", message.clone()),
            Self::Unreachable(message) => State::Reconciling(message.clone()),
        }
    }
}

/// The status to write and the events to tell, if `after` differs from `before`.
fn told(before: Option<&Status>, after: Status) -> (Option<Status>, Vec<Event>) {
    if before == Some(&after) {
        return (None, Vec::new());
    }
    let ready = |status: &Status| status.condition("Ready").cloned();
    let turned = |then: &Condition, now: &Condition| then.status != now.status || then.reason != now.reason;
    let changed = match (before.and_then(ready), ready(&after)) {
        (None, now) => now,
        (Some(then), Some(now)) if turned(&then, &now) => Some(now),
        _ => None,
    };
    let event = |condition: Condition| Event {
        warning: after.condition("Stalled").is_some_and(|stalled| stalled.status == "True"),
        reason: condition.reason,
        message: condition.message,
    };
    let events = changed.map(event).into_iter().collect();
    (Some(after), events)
}

/// True if `live` is controlled by the object.
fn is_controlled(live: &Value, owner: &ObjectMeta) -> bool {
    let owners = live["metadata"]["ownerReferences"].as_array();
    let mut owners = owners.into_iter().flatten().filter(|one| one["controller"] == Value::Bool(true));
    owners.any(|one| one["uid"].as_str() == owner.uid.as_deref())
}
