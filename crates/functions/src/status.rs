//! The status of a function, as it stands in its object.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::Error as _};
use serde_json::Value;

/// The longest message in a status, in characters: some paragraphs; the log of a build has the rest.
const LONGEST_MESSAGE: usize = 2_000;

/// Deployed specs in a status: the one that serves, and some for a way back.
const MOST_REVISIONS: usize = 6;

/// Bytes of those specs: objects stay far below the limit of etcd.
const LARGEST_HISTORY: usize = 64 << 10;

/// Reason of `Ready` while a new leader starts the version that served under another one.
pub(crate) const TAKING_OVER: &str = "TakingOver";

/// Status of a function. Berth alone writes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// State in one word.
    pub phase: Phase,
    /// The same in a sentence.
    pub message: String,
    /// The last generation that was carried out, or that failed.
    pub observed_generation: i64,
    /// Digest of the desired state that `observed_generation` numbers.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub observed_digest: Arc<str>,
    /// Facts, each true or false.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The last build; `None` until the first one has its turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build: Option<BuildStatus>,
    /// The artifact that serves; `None` until a deployment has succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactStatus>,
    /// URL that answers a POST of JSON; `None` until a deployment has succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Specs that were deployed, the newest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Revision>,
}

/// State of a function in one word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Waits for its turn.
    #[default]
    Pending,
    /// Its code is fetched and built.
    Building,
    /// Its artifact is started and asked.
    Deploying,
    /// Answers.
    Succeeded,
    /// The newest generation could not be carried out. An earlier one may still answer.
    Failed,
    /// Being removed.
    Terminating,
}

impl Phase {
    /// All phases.
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Building, Self::Deploying, Self::Succeeded, Self::Failed, Self::Terminating];

    /// The phase as it stands in the object: `Pending`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Building => "Building",
            Self::Deploying => "Deploying",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Terminating => "Terminating",
        }
    }
}

/// A fact about a function. Its texts share one allocation: each function has four facts of five short texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "ConditionFields", into = "ConditionFields")]
pub struct Condition {
    /// Type, status, reason, message and time, one after another.
    texts: Box<str>,
    /// Ends of all but the last.
    ends: [u32; 4],
}

impl Condition {
    fn new([kind, status, reason, message, since]: [&str; 5]) -> Self {
        let mut end = 0;
        let ends = [kind, status, reason, message].map(|text| {
            end += text.len();
            u32::try_from(end).unwrap_or(u32::MAX)
        });
        Self { texts: [kind, status, reason, message, since].concat().into(), ends }
    }

    fn text(&self, at: usize) -> &str {
        let end = |at: usize| self.ends.get(at).map_or(self.texts.len(), |end| *end as usize);
        let start = at.checked_sub(1).map_or(0, end);
        self.texts.get(start..end(at)).unwrap_or_default()
    }

    /// Name of the fact: `SpecValid`, `Built`, `Deployed`, `Ready`.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.text(0)
    }

    /// `True`, `False` or `Unknown`.
    #[must_use]
    pub fn status(&self) -> &str {
        self.text(1)
    }

    /// One word that says why.
    #[must_use]
    pub fn reason(&self) -> &str {
        self.text(2)
    }

    /// The same in a sentence.
    #[must_use]
    pub fn message(&self) -> &str {
        self.text(3)
    }

    /// Time at which the status last changed, RFC 3339.
    #[must_use]
    pub fn since(&self) -> &str {
        self.text(4)
    }
}

/// A condition as JSON.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConditionFields {
    r#type: String,
    status: String,
    reason: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    message: String,
    last_transition_time: String,
}

impl From<ConditionFields> for Condition {
    fn from(fields: ConditionFields) -> Self {
        let ConditionFields { r#type, status, reason, message, last_transition_time } = fields;
        Self::new([&r#type, &status, &reason, &message, &last_transition_time])
    }
}

impl From<Condition> for ConditionFields {
    fn from(condition: Condition) -> Self {
        Self {
            r#type: condition.kind().to_owned(),
            status: condition.status().to_owned(),
            reason: condition.reason().to_owned(),
            message: condition.message().to_owned(),
            last_transition_time: condition.since().to_owned(),
        }
    }
}

/// The last build, also while it runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BuildStatus {
    /// Number of the turn that it belongs to, as text: `b12`.
    pub id: Box<str>,
    /// Time at which it began, RFC 3339.
    pub started: Box<str>,
    /// Seconds that it took, as text: `12.4s`.
    pub took: Box<str>,
    /// True if an earlier build of the same inputs was used.
    pub cached: bool,
    /// Last lines of its log.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub log_tail: Box<str>,
    /// Path of the whole log in the control API.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub log: Box<str>,
}

/// An artifact by its content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ArtifactStatus {
    /// `sha256:…` of the ZIP file.
    pub digest: String,
    /// Bytes of the ZIP file.
    pub size: u64,
}

/// A spec that was deployed: the way back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision {
    /// Number of the desired state that it was deployed for.
    pub generation: i64,
    /// Time at which it began to serve, RFC 3339.
    pub deployed: String,
    /// `sha256:…` of its artifact.
    pub artifact: String,
    /// The spec as it was deployed; `berth rollout undo` declares it again.
    pub spec: SpecText,
}

/// A spec as JSON text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecText(pub Arc<str>);

impl Serialize for SpecText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<Value>(&self.0).map_err(S::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SpecText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(Value::deserialize(deserializer)?.to_string().into()))
    }
}

impl Status {
    /// Notes a version that was deployed, unless it is the one that was: the same spec with the same artifact. A generation that
    /// was built again takes its own place, and none of those before it.
    pub fn remember(&mut self, revision: Revision) {
        match self.history.first_mut() {
            Some(last) if (&last.spec, &last.artifact) == (&revision.spec, &revision.artifact) => return,
            Some(last) if (last.generation, &last.spec) == (revision.generation, &revision.spec) => *last = revision,
            _ => self.history.insert(0, revision),
        }
        self.history.truncate(MOST_REVISIONS);
        let bytes = |history: &[Revision]| history.iter().map(|one| one.spec.0.len()).sum::<usize>();
        while self.history.len() > 1 && bytes(&self.history) > LARGEST_HISTORY {
            self.history.pop();
        }
        self.history.shrink_to_fit();
    }

    /// Digests of the artifacts that the function needs: the one that serves, and the one that did last.
    pub fn artifacts(&self) -> impl Iterator<Item = &str> {
        let serves = self.artifact.iter().map(|artifact| &*artifact.digest);
        serves.chain(self.history.first().map(|last| &*last.artifact))
    }

    /// True while a new leader starts the version that served under another one.
    pub(crate) fn is_taken_over(&self) -> bool {
        self.conditions.iter().any(|fact| fact.kind() == "Ready" && fact.reason() == TAKING_OVER)
    }

    /// Sets a condition. Its time changes with its status only.
    pub fn set(&mut self, name: &str, holds: bool, reason: &str, message: &str, now: &str) {
        let status = if holds { "True" } else { "False" };
        let message = shortened(message);
        let same = self.conditions.iter_mut().find(|condition| condition.kind() == name);
        let Some(condition) = same else {
            self.conditions.push(Condition::new([name, status, reason, &message, now]));
            return;
        };
        let since = if condition.status() == status { condition.since() } else { now };
        *condition = Condition::new([name, status, reason, &message, since]);
    }

    /// Sets phase and message.
    pub fn say(&mut self, phase: Phase, message: &str) {
        (self.phase, self.message) = (phase, shortened(message));
    }
}

/// A message that fits into a status.
fn shortened(message: &str) -> String {
    match message.char_indices().nth(LONGEST_MESSAGE) {
        Some((end, _)) => format!("{} …", &message[..end]),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_keeps_its_texts_and_its_time() {
        let mut status = Status::default();
        status.set("Built", true, "Cached", "größer", "t1");
        status.set("Built", true, "Built", "", "t2");
        let text = r#"[{"type":"Built","status":"True","reason":"Built","lastTransitionTime":"t1"}]"#;
        assert_eq!(serde_json::to_string(&status.conditions).expect("JSON"), text);
        status.set("Built", false, "Größe", "zu groß", "t3");
        let fact = &status.conditions[0];
        let texts = (fact.kind(), fact.status(), fact.reason(), fact.message(), fact.since());
        assert_eq!(texts, ("Built", "False", "Größe", "zu groß", "t3"));
        let text = serde_json::to_string(&status).expect("JSON");
        assert_eq!(serde_json::from_str::<Status>(&text).expect("a status"), status);
    }

    #[test]
    fn a_generation_that_is_built_again_leaves_the_ways_back() {
        let version = |generation: i64, code: &str, artifact: &str| Revision {
            generation,
            deployed: format!("of {artifact}"),
            artifact: artifact.to_owned(),
            spec: SpecText(format!("{{\"sourceUri\":\"{code}\"}}").into()),
        };
        let told = |status: &Status| -> Vec<_> {
            status.history.iter().map(|past| (past.generation, past.artifact.clone())).collect()
        };
        let mut status = Status::default();
        status.remember(version(1, "a.zip", "a1"));
        status.remember(version(2, "b.zip", "b1"));
        // Leaders that have no artifact build it again, without a lock file from other packages each time.
        for artifact in 2..20 {
            status.remember(version(2, "b.zip", &format!("b{artifact}")));
        }
        assert_eq!(told(&status), [(2, "b19".to_owned()), (1, "a1".to_owned())]);
        assert_eq!(status.history[0].deployed, "of b19");
        status.remember(version(3, "b.zip", "b19"));
        assert_eq!(told(&status).len(), 2, "it is the version that serves");
        status.remember(version(3, "b.zip", "b20"));
        assert_eq!(told(&status), [(3, "b20".to_owned()), (2, "b19".to_owned()), (1, "a1".to_owned())]);
        for generation in 4..20 {
            status.remember(version(generation, "c.zip", &format!("c{generation}")));
        }
        assert_eq!(told(&status).len(), MOST_REVISIONS);
    }
}
