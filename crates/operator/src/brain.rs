//! Decisions: from the world to the objects to apply, the status and the events. No I/O, no clock.
//!
//! A decision is empty when all is as it should be. Children are deleted by Kubernetes itself: each is owned. Only an autoscaler, a pool, a route and an
//! `AsyncAPI` that are no longer wanted are deleted while their owner stays: others would go on acting on them.

mod async_api;
mod clops;
mod model;
mod pool;
mod valid;

use kube::core::ObjectMeta;
use serde::Serialize;
use serde_json::Value;

pub use self::{
    async_api::async_api,
    clops::clops_deployment,
    model::{World, model_deployment},
};
pub(crate) use self::{clops::as_written, valid::check};
use crate::api::{
    Status,
    status::{Condition, Conditions, State, topic},
};

/// The things to do for one object, whose status has the form `S`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision<S = Status> {
    /// Objects to delete first, each exactly as it was seen.
    pub delete: Vec<Value>,
    /// Objects to apply, in this order.
    pub apply: Vec<Value>,
    /// The number of pods that the Deployment has and is to keep, where it is applied without one.
    pub kept_replicas: Option<i64>,
    /// The status, where it differs from what the object has.
    pub status: Option<S>,
    /// Events that people should hear of.
    pub events: Vec<Event>,
}

impl<S> Decision<S> {
    /// True if nothing is to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.delete.is_empty() && self.apply.is_empty() && self.status.is_none() && self.events.is_empty()
    }
}

impl<S: Serialize> Decision<S> {
    /// The same, with the status as it is written.
    pub(crate) fn written(self) -> Decision<Value> {
        let Self { delete, apply, kept_replicas, status, events } = self;
        let status = status.and_then(|status| serde_json::to_value(status).ok());
        Decision { delete, apply, kept_replicas, status, events }
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
pub enum ApplyError {
    /// An object of this name belongs to somebody else.
    NameTaken(String),
    /// The API server refuses what was rendered.
    Refused(String),
    /// The API server could not be reached, or failed; it is tried again.
    Unreachable(String),
}

impl ApplyError {
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
fn status_change<S: Conditions + PartialEq>(before: Option<&S>, after: S) -> (Option<S>, Vec<Event>) {
    if before == Some(&after) {
        return (None, Vec::new());
    }
    let ready = |status: &S| topic(status.conditions(), "Ready").cloned();
    let turned = |then: &Condition, now: &Condition| then.status != now.status || then.reason != now.reason;
    let changed = match (before.and_then(ready), ready(&after)) {
        (None, now) => now,
        (Some(then), Some(now)) if turned(&then, &now) => Some(now),
        _ => None,
    };
    let event = |condition: Condition| Event {
        warning: topic(after.conditions(), "Stalled").is_some_and(|stalled| stalled.status == "True"),
        reason: condition.reason,
        message: condition.message,
    };
    let events = changed.map(event).into_iter().collect();
    (Some(after), events)
}

/// The words of a `ModelDeployment` about its newest spec; `None` until it has any.
fn said(model: &Value) -> Option<State> {
    let status: Status = serde_json::from_value(model["status"].clone()).unwrap_or_default();
    let current = model["metadata"]["generation"].as_i64() == Some(status.observed_generation);
    let ready = status.condition("Ready").filter(|_| current)?;
    let stalled = status.condition("Stalled").is_some_and(|stalled| stalled.status == "True");
    Some(match (ready.status.as_str(), stalled) {
        ("True", _) => State::Ready(ready.message.clone()),
        (_, true) => State::Stalled("ModelStalled", ready.message.clone()),
        _ => State::Reconciling(ready.message.clone()),
    })
}

/// True if `live` has the controller that a rendered object has.
fn is_controlled_alike(live: &Value, wanted: &Value) -> bool {
    let controller = |one: &Value| {
        let mut owners = one["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        owners.find(|owner| owner["controller"] == Value::Bool(true)).map(|owner| owner["uid"].clone())
    };
    controller(live) == controller(wanted)
}

/// True if `live` is controlled by the object.
fn is_controlled(live: &Value, owner: &ObjectMeta) -> bool {
    let owners = live["metadata"]["ownerReferences"].as_array();
    let mut owners = owners.into_iter().flatten().filter(|one| one["controller"] == Value::Bool(true));
    owners.any(|one| one["uid"].as_str() == owner.uid.as_deref())
}
