//! Error files, such as `errors/2025-10-28T10-40-00-load-failure.yaml`: one for each incident while it lasts.
//!
//! An [`Incident`] is the controller's knowledge; its [`Subject`] identifies the file, also for the next controller,
//! because the file holds all of it.

mod advice;
mod form;

use berth_spec::{Time, residency::FailureCategory};
use serde::{Deserialize, Serialize};

pub(crate) use self::form::ErrorFile;
use crate::actual::{file_stamp, stamp};

/// Folder of the error files.
pub const ERRORS: &str = "errors/";

/// Kind of incident: the `error_type` of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum IncidentKind {
    /// A model could not be loaded.
    #[serde(rename = "model_load_failure")]
    LoadFailure,
    /// The process of a model that is loaded dies again and again.
    #[serde(rename = "model_runtime_failure")]
    RuntimeFailure,
    /// A commit was rejected.
    #[serde(rename = "registry_validation_failure")]
    ValidationError,
    /// A worker cannot be reached any more.
    #[serde(rename = "worker_failure")]
    WorkerFailure,
    /// There is no room for a model.
    #[serde(rename = "insufficient_capacity")]
    Capacity,
    /// A secret cannot be used.
    #[serde(rename = "secret_failure")]
    Secret,
}

impl IncidentKind {
    /// The word in names of files: `load-failure`.
    #[must_use]
    pub const fn file_word(self) -> &'static str {
        match self {
            Self::LoadFailure => "load-failure",
            Self::RuntimeFailure => "runtime-failure",
            Self::ValidationError => "validation-error",
            Self::WorkerFailure => "worker-failure",
            Self::Capacity => "capacity",
            Self::Secret => "secret",
        }
    }

    /// Description for people.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::LoadFailure => "model load failure",
            Self::RuntimeFailure => "model runtime failure",
            Self::ValidationError => "rejected commit",
            Self::WorkerFailure => "worker failure",
            Self::Capacity => "insufficient capacity",
            Self::Secret => "secret failure",
        }
    }
}

/// Severity of an incident, which decides who is notified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IncidentSeverity {
    /// Deserves attention; retries are running.
    Medium,
    /// Needs a person: there are no further retries.
    High,
    /// No replica serves the model.
    Critical,
}

/// Subject of an incident. Two incidents with one subject are the same incident.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject {
    /// Kind of incident, part of the file's name.
    pub kind: IncidentKind,
    /// Id of the deployment; `None`: the incident is not about one.
    pub deployment: Option<String>,
    /// Name of the worker; `None`: the incident is not about one.
    pub worker: Option<String>,
    /// Hex digits of the registry's commit; `None`: the incident is not about one.
    pub commit: Option<String>,
}

/// Incident that needs attention.
#[derive(Debug, Clone, PartialEq)]
pub struct Incident {
    /// Subject, by which the incident is found again.
    pub subject: Subject,
    /// Severity, by how much it needs a person.
    pub severity: IncidentSeverity,
    /// Time at which it began; the file's name has it.
    pub at: Time,
    /// The card of the deployment: repository and ref.
    pub card: Option<(String, String)>,
    /// Health of the worker, in the word of the actual state.
    pub worker_status: Option<String>,
    /// Author of the refused commit, as `Name <address>`.
    pub author: Option<String>,
    /// The kind of failure, in one word; for a load the worker's, for a commit the outcome of validation.
    pub category: String,
    /// Summary in one line.
    pub message: String,
    /// More of it, in lines.
    pub details: String,
    /// Output of the model's own code.
    pub trace: Option<String>,
    /// Attempts so far; 0 where nothing is attempted.
    pub attempts: u32,
    /// Time of the next automatic attempt.
    pub next_retry: Option<Time>,
    /// Other actions already taken.
    pub actions: Vec<String>,
}

/// Beginnings of lines about retries. Such lines change with every attempt, so they do not count as news.
const LATER: [&str; 3] = [NEXT, LEFT_ALONE, RETRY_AT];
const NEXT: &str = "The next attempt is at";
const LEFT_ALONE: &str = "It is left alone";
const RETRY_AT: &str = "It is looked at again at";

impl Incident {
    /// The category as a load's; `None`: it is not about a load.
    #[must_use]
    pub fn load_category(&self) -> Option<FailureCategory> {
        FailureCategory::of_word(&self.category)
    }

    /// Actions already taken, in lines: `actions`, retries, and the time of the next one.
    #[must_use]
    pub fn actions_taken(&self) -> Vec<String> {
        let mut done = self.actions.clone();
        match self.attempts {
            0 | 1 => {}
            2 => done.push("Retried the load once".to_owned()),
            n => done.push(format!("Retried the load {} times", n - 1)),
        }
        match (self.subject.kind, self.next_retry) {
            (IncidentKind::LoadFailure, Some(at)) => done.push(format!("{NEXT} {}", stamp(at))),
            (IncidentKind::LoadFailure, None) => {
                done.push(format!("{LEFT_ALONE} until something changes, or for 10 minutes"))
            }
            (_, Some(at)) => done.push(format!("{RETRY_AT} {}", stamp(at))),
            (_, None) => {}
        }
        done
    }

    /// Actions that a person can take.
    #[must_use]
    pub fn recommended_actions(&self) -> Vec<String> {
        advice::recommended(self)
    }

    /// Path for a new incident: `errors/TIME-KIND.yaml`.
    #[must_use]
    pub fn file_name(&self) -> String {
        format!("{ERRORS}{}-{}.yaml", file_stamp(self.at), self.subject.kind.file_word())
    }

    /// Encodes the error file as YAML.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        ErrorFile::of(self).to_yaml()
    }
}

/// Reads subject, severity and summary of an error file; `None` if no controller wrote it.
#[must_use]
pub fn read_summary(text: &str) -> Option<(Subject, IncidentSeverity, String)> {
    let file = ErrorFile::read(text)?;
    Some((file.subject(), file.severity(), file.message().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incident(kind: IncidentKind, category: &str) -> Incident {
        Incident {
            subject: Subject {
                kind,
                deployment: Some("fraud-prod-euwest".to_owned()),
                worker: Some("worker-eu-west-1a".to_owned()),
                commit: None,
            },
            severity: IncidentSeverity::High,
            at: Time(1_761_648_000_000_000_000),
            card: Some(("https://example.com/fraud.git".to_owned(), "v2.0.1".to_owned())),
            worker_status: Some("degraded".to_owned()),
            author: None,
            category: category.to_owned(),
            message: "Out of memory during model loading".to_owned(),
            details: "Failed to allocate 6Gi for model weights.\nWorker capacity: 16Gi total".to_owned(),
            trace: Some("Traceback (most recent call last):\n  File \"x.py\"\nMemoryError: 6.00 GiB".to_owned()),
            attempts: 3,
            next_retry: None,
            actions: vec!["Marked worker as degraded".to_owned()],
        }
    }

    #[test]
    fn the_file_is_the_one_of_the_specification() {
        let incident = incident(IncidentKind::LoadFailure, "memory");
        assert_eq!(incident.file_name(), "errors/2025-10-28T10-40-00-load-failure.yaml");
        let text = incident.to_yaml();
        let read: serde_json::Value = serde_saphyr::from_str(&text).expect("YAML");
        assert_eq!(read["error_type"], "model_load_failure");
        assert_eq!(read["severity"], "high");
        assert_eq!(read["deployment"]["model_card_ref"]["ref"], "v2.0.1");
        assert_eq!(read["worker"]["status"], "degraded");
        assert_eq!(read["error"]["stack_trace"], incident.trace.clone().expect("a trace"));
        assert_eq!(read["error"]["details"], incident.details);
        assert!(
            read["actions_taken"]
                .as_array()
                .is_some_and(|done| done.iter().any(|word| word == "Retried the load 2 times"))
        );
        let told = read_summary(&text).map(|(subject, ..)| subject);
        assert_eq!(told, Some(incident.subject));
    }

    #[test]
    fn what_moves_with_every_attempt_means_nothing() {
        let before = Incident { next_retry: Some(Time(1)), ..incident(IncidentKind::LoadFailure, "network") };
        let file = ErrorFile::read(&before.to_yaml()).expect("a file");
        let later = Incident {
            next_retry: None,
            at: Time(1_761_648_900_000_000_000),
            details: "another line of an attempt".to_owned(),
            worker_status: Some("healthy".to_owned()),
            ..before.clone()
        };
        assert!(file.means(&before) && file.means(&later));
        assert!(!file.means(&Incident { attempts: 4, ..before.clone() }), "one more attempt is news");
        assert!(!file.means(&Incident { message: "another".to_owned(), ..before.clone() }));
        let commit = Incident { details: "one".to_owned(), ..incident(IncidentKind::ValidationError, "unpinned-ref") };
        let file = ErrorFile::read(&commit.to_yaml()).expect("a file");
        assert!(!file.means(&Incident { details: "two".to_owned(), ..commit }), "other problems are news");
    }

    #[test]
    fn everything_comes_with_something_to_do() {
        for category in FailureCategory::ALL {
            let incident = incident(IncidentKind::LoadFailure, category.as_str());
            assert_eq!(incident.load_category(), Some(category));
            assert!(!incident.recommended_actions().is_empty(), "{category:?}");
        }
        for kind in
            [IncidentKind::ValidationError, IncidentKind::WorkerFailure, IncidentKind::Capacity, IncidentKind::Secret]
        {
            assert!(!incident(kind, "unpinned-ref").recommended_actions().is_empty(), "{kind:?}");
        }
    }
}
