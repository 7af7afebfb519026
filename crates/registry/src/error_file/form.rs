//! The form of an error file, and what of it means something.

use serde::{Deserialize, Serialize};

use super::{Incident, IncidentKind, IncidentSeverity, LATER, Subject};
use crate::actual::stamp;

/// Fields of an error file, in the order in which people read them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ErrorFile {
    timestamp: String,
    error_type: IncidentKind,
    severity: IncidentSeverity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    commit: Option<CommitPart>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    deployment: Option<DeploymentPart>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worker: Option<WorkerPart>,
    error: ErrorPart,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    actions_taken: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    recommended_actions: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct CommitPart {
    sha: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    author: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct DeploymentPart {
    id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model_card_ref: Option<CardPart>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct CardPart {
    repository: String,
    #[serde(rename = "ref")]
    reference: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct WorkerPart {
    id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct ErrorPart {
    message: String,
    /// The registry's document leaves it out.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    category: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attempts: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next_retry: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    details: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stack_trace: Option<String>,
}

impl ErrorFile {
    /// Reads a file of the branch; `None` for what no controller has written.
    pub(crate) fn read(text: &str) -> Option<Self> {
        serde_saphyr::from_str(text).ok()
    }

    pub(crate) fn to_yaml(&self) -> String {
        serde_saphyr::to_string(self).expect("texts and numbers can be written")
    }

    /// Subject of the file, by which it is matched with incidents.
    pub(crate) fn subject(&self) -> Subject {
        Subject {
            kind: self.error_type,
            deployment: self.deployment.as_ref().map(|part| part.id.clone()),
            worker: self.worker.as_ref().map(|part| part.id.clone()),
            commit: self.commit.as_ref().map(|part| part.sha.clone()),
        }
    }

    pub(super) fn severity(&self) -> IncidentSeverity {
        self.severity
    }

    pub(super) fn message(&self) -> &str {
        &self.error.message
    }

    /// True if both name one version of the model, as far as they name any.
    pub(crate) fn is_of_same_version(&self, incident: &Incident) -> bool {
        let card = self.deployment.as_ref().and_then(|part| part.model_card_ref.as_ref());
        let held = card.map(|card| (card.repository.as_str(), card.reference.as_str()));
        let now = incident.card.as_ref().map(|(repository, reference)| (repository.as_str(), reference.as_str()));
        held.is_none() || now.is_none() || held == now
    }

    /// The same file with the time at which an earlier one began.
    pub(crate) fn since(self, before: &Self) -> Self {
        Self { timestamp: before.timestamp.clone(), ..self }
    }

    /// True if the file says the same as the incident in all that a person would act on.
    pub(crate) fn means(&self, incident: &Incident) -> bool {
        self.meaning() == Self::of(incident).meaning()
    }

    /// Without what changes from attempt to attempt and from look to look: that is written along, and never the reason.
    pub(crate) fn meaning(&self) -> Self {
        let mut file = self.clone();
        file.timestamp = String::new();
        file.actions_taken.retain(|line| !LATER.iter().any(|word| line.starts_with(word)));
        if let Some(worker) = &mut file.worker {
            worker.status = None;
        }
        (file.error.next_retry, file.error.stack_trace) = (None, None);
        // The others tell numbers that move: times of attempts, memory that is free just now.
        if !matches!(file.error_type, IncidentKind::ValidationError | IncidentKind::Secret) {
            file.error.details = None;
        }
        file
    }

    pub(crate) fn of(incident: &Incident) -> Self {
        let Subject { kind, deployment, worker, commit } = &incident.subject;
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let card = incident.card.as_ref();
        Self {
            timestamp: stamp(incident.at),
            error_type: *kind,
            severity: incident.severity,
            commit: commit.as_ref().map(|sha| CommitPart { sha: sha.clone(), author: incident.author.clone() }),
            deployment: deployment.as_ref().map(|id| DeploymentPart {
                id: id.clone(),
                model_card_ref: card.map(|(repository, reference)| CardPart {
                    repository: repository.clone(),
                    reference: reference.clone(),
                }),
            }),
            worker: worker.as_ref().map(|id| WorkerPart { id: id.clone(), status: incident.worker_status.clone() }),
            error: ErrorPart {
                message: incident.message.clone(),
                category: incident.category.clone(),
                attempts: Some(incident.attempts).filter(|attempts| *attempts > 0),
                next_retry: incident.next_retry.map(stamp),
                details: some(&incident.details),
                stack_trace: incident.trace.as_deref().and_then(some),
            },
            actions_taken: incident.actions_taken(),
            recommended_actions: incident.recommended_actions(),
        }
    }
}
