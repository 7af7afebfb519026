//! `registry.yaml`: how a registry is kept. Read and typed here, used elsewhere.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    document::Document,
    problem::{Problem, Step},
    schema::{self, SchemaKind},
};

/// Path of the settings, from the registry's root. Optional: a registry without it has the defaults.
pub const SETTINGS_FILE: &str = "registry.yaml";

/// Settings of a registry, with the defaults of a file that is not there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Settings {
    /// Treatment of workers without a file.
    pub unknown_workers: UnknownWorkers,
    /// Scope of the check that every deployment has a worker.
    pub workers: DeclaredWorkers,
    /// Permits a commit that removes the last deployment.
    pub allow_empty: bool,
    /// Signatures that commits must have, and the keys that count.
    pub signatures: Signatures,
    /// Branch and mode of write-back.
    pub write_back: WriteBack,
    /// Places that notices are sent to.
    pub notifications: Vec<Notification>,
    /// Target of commit statuses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit_status: Option<CommitStatus>,
}

/// Treatment of workers without a file in `workers/`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownWorkers {
    /// May hold models.
    #[default]
    Allow,
    /// Get no models.
    Ignore,
    /// Cannot join.
    Refuse,
}

impl UnknownWorkers {
    /// The same rule in the planner's terms.
    #[must_use]
    pub fn rule(self) -> berth_spec::UnknownWorkers {
        match self {
            Self::Allow => berth_spec::UnknownWorkers::Allow,
            Self::Ignore => berth_spec::UnknownWorkers::Ignore,
            Self::Refuse => berth_spec::UnknownWorkers::Refuse,
        }
    }
}

/// Completeness of `workers/`, where validation looks for a worker of each deployment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeclaredWorkers {
    /// Each deployment matches a file.
    #[default]
    Declared,
    /// Workers without a file come later.
    Elastic,
}

/// Signature requirements for commits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Signatures {
    /// Requires every commit to be signed by a trusted key.
    pub required: bool,
    /// A file of the registry: `allowed_signers`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_signers: Option<String>,
    /// A folder of the registry with armoured GPG keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpg_keys: Option<String>,
}

/// Write-back of the actual state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WriteBack {
    /// Branch that the state is written to, if any.
    pub mode: WriteBackMode,
    /// Branch for [`WriteBackMode::Branch`]. Default: `berth/actual-state`.
    pub branch: String,
    /// The shortest time between two commits, as `30s`.
    pub interval: String,
}

impl Default for WriteBack {
    fn default() -> Self {
        Self { mode: WriteBackMode::Branch, branch: "berth/actual-state".to_owned(), interval: "30s".to_owned() }
    }
}

impl WriteBack {
    /// [`WriteBack::interval`]; half a minute if it cannot be read, which the schema keeps from being.
    #[must_use]
    pub fn interval(&self) -> Duration {
        berth_spec::manifest::parse_duration(&self.interval).unwrap_or(Duration::from_secs(30))
    }
}

/// Place of the written-back state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WriteBackMode {
    /// To a branch that nothing else is on.
    #[default]
    Branch,
    /// As commits on the registry's branch.
    Commit,
    /// Nowhere: the state stays in Berth.
    Off,
}

/// Place that notices are sent to, and which ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Notification {
    /// Channel, written `type`.
    #[serde(rename = "type")]
    pub kind: NotificationKind,
    /// Webhook address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The secret of the controller that holds the URL or the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<String>,
    /// Receivers of the email.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<String>,
    /// Audience whose notices are sent here. Default: operations.
    #[serde(default)]
    pub audience: NotificationAudience,
    /// Least severity that is sent.
    #[serde(default)]
    pub min_severity: NotificationSeverity,
}

/// Channel of a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NotificationKind {
    /// Webhook that receives JSON by POST.
    Webhook,
    /// Slack incoming webhook.
    Slack,
    /// Email over SMTP, to the server in `url`.
    Email,
}

/// Audience of a target: those who run the fleet, those who own models, or both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NotificationAudience {
    /// Notices for operations.
    #[default]
    Ops,
    /// Messages for the owners of models.
    Ml,
    /// Notices for either.
    All,
}

/// Least severity of notices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NotificationSeverity {
    /// Information and everything worse.
    Info,
    /// Warnings and worse.
    #[default]
    Warning,
    /// Errors and outages.
    Error,
    /// Outages only.
    Critical,
}

/// Target of commit statuses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommitStatus {
    /// API of the Git host.
    pub provider: StatusProvider,
    /// Its address, where it is not the provider's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<String>,
    /// Repository as `owner/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// The secret of the controller that holds the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<String>,
    /// The name of the check.
    #[serde(default = "default_context")]
    pub context: String,
}

/// API that receives commit statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StatusProvider {
    /// GitHub, also Enterprise.
    Github,
    /// GitLab, also self-managed.
    Gitlab,
    /// Bitbucket Cloud or Server.
    Bitbucket,
    /// Gitea and Forgejo API.
    Gitea,
}

fn default_context() -> String {
    "berth/registry".to_owned()
}

impl Settings {
    /// Reads the file.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn read(text: &str) -> Result<Self, Vec<Problem>> {
        let step = Step::Structure;
        let document = match Document::read(text, SETTINGS_FILE, step) {
            Ok(Some(document)) => document,
            Ok(None) => return Ok(Self::default()),
            Err(problem) => return Err(vec![*problem]),
        };
        let findings = schema::check(SchemaKind::Settings, schema::NEWEST, &document, step, SETTINGS_FILE, text);
        let mut problems: Vec<Problem> = findings.into_iter().flatten().map(|finding| finding.problem).collect();
        if problems.is_empty() {
            match serde_json::from_value::<Self>(document.json.clone()) {
                Ok(settings) => {
                    problems.extend(settings.contradictions(&document, text));
                    if problems.is_empty() {
                        return Ok(settings);
                    }
                }
                Err(error) => problems.push(Problem::new(step, "schema", SETTINGS_FILE, error.to_string())),
            }
        }
        Err(problems)
    }

    /// Checks rules that the schema cannot express.
    fn contradictions(&self, document: &Document, text: &str) -> Vec<Problem> {
        let problem = |pointer: &str, message: String, remedy: &str| {
            let (place, path) = document.place(pointer);
            Problem::new(Step::Structure, "settings", SETTINGS_FILE, message).at(place, &path, text).remedy(remedy)
        };
        let mut found = Vec::new();
        if self.workers == DeclaredWorkers::Elastic && self.unknown_workers != UnknownWorkers::Allow {
            let message = "workers: elastic expects workers without a file, but unknownWorkers gives them no models";
            found.push(problem("/workers", message.to_owned(), "remove one of the two"));
        }
        let Signatures { required, allowed_signers, gpg_keys } = &self.signatures;
        if *required && allowed_signers.is_none() && gpg_keys.is_none() {
            let message = "signatures are required, but no keys are named".to_owned();
            found.push(problem("/signatures/required", message, "add allowedSigners or gpgKeys"));
        }
        for (n, notification) in self.notifications.iter().enumerate() {
            let at = format!("/notifications/{n}");
            if notification.url.is_none() && notification.secret_ref.is_none() {
                found.push(problem(&at, "it is not said where to send it".to_owned(), "add url or secretRef"));
            }
            if notification.kind == NotificationKind::Email && notification.to.is_empty() {
                found.push(problem(&at, "the email has no receivers".to_owned(), "add to: [name@example.com]"));
            }
        }
        if self.write_back.mode == WriteBackMode::Branch
            && !berth_git::Rev::Branch(self.write_back.branch.clone()).is_safe()
        {
            let message = format!("{:?} is no name of a branch", self.write_back.branch);
            found.push(problem("/writeBack/branch", message, "write for example berth/actual-state"));
        }
        found
    }
}
