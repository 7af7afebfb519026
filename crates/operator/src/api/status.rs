//! The status of an object: conditions, and what its users' tools read.
//!
//! `Ready`, `Reconciling` and `Stalled` mean what kstatus says, so that `kubectl wait`, Flux and Argo CD understand them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::render::Record;

/// The observed state of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// The generation of the spec that this speaks of.
    pub observed_generation: i64,
    /// The state, one entry a topic.
    pub conditions: Vec<Condition>,
    /// The pods that answer.
    pub ready_replicas: i64,
    /// The pods that are wanted.
    pub replicas: i64,
    /// The address inside the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The executor before the container: `NativeSidecar`, `Container` or `Off`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// The ports that take asynchronous requests, each by an `AsyncAPI`.
    pub async_apis: i64,
    /// Those of them that are ready.
    pub ready_async_apis: i64,
    /// By which rules the objects were rendered. They stay until the spec changes or somebody adopts newer ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub render: Option<Record>,
}

/// One topic of a status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The topic.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// The state in one word, for programs.
    pub reason: String,
    /// The state in a sentence, for people.
    pub message: String,
    /// When `status` changed last.
    pub last_transition_time: String,
    /// The generation of the spec that this speaks of.
    pub observed_generation: i64,
}

/// The state of an object, from which its conditions follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// As it should be.
    Ready(String),
    /// On its way.
    Reconciling(String),
    /// In need of a person: a reason for programs, and a sentence.
    Stalled(&'static str, String),
}

/// A status that tells conditions.
pub(crate) trait Conditions {
    /// The state, one entry a topic.
    fn conditions(&self) -> &[Condition];
}

impl Conditions for Status {
    fn conditions(&self) -> &[Condition] {
        &self.conditions
    }
}

/// The condition of a topic.
pub(crate) fn topic<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.kind == kind)
}

/// The conditions of `state`. A condition whose status stays keeps its time.
pub(crate) fn conditions(before: &[Condition], state: &State, generation: i64, now: &str) -> Vec<Condition> {
    let (ready, reason, message) = match state {
        State::Ready(message) => ("True", "Available", message),
        State::Reconciling(message) => ("False", "Progressing", message),
        State::Stalled(reason, message) => ("False", *reason, message),
    };
    let truth = |is| if is { "True" } else { "False" };
    let reconciling = truth(matches!(state, State::Reconciling(_)));
    let stalled = truth(matches!(state, State::Stalled(..)));
    let condition = |kind: &str, status: &str| Condition {
        kind: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.clone(),
        last_transition_time: topic(before, kind)
            .filter(|before| before.status == status)
            .map_or_else(|| now.to_owned(), |before| before.last_transition_time.clone()),
        observed_generation: generation,
    };
    vec![condition("Ready", ready), condition("Reconciling", reconciling), condition("Stalled", stalled)]
}

impl Status {
    /// The same with the conditions of `state`. A condition whose status stays keeps its time.
    #[must_use]
    pub fn with(self, state: &State, generation: i64, now: &str) -> Self {
        let conditions = conditions(&self.conditions, state, generation, now);
        Self { observed_generation: generation, conditions, ..self }
    }

    /// The condition of a topic.
    #[must_use]
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        topic(&self.conditions, kind)
    }
}
