//! Problems of a commit: position, description, remedy and audience.

use std::fmt;

use berth_git::CommitInfo;
use berth_spec::manifest::{ManifestError, SourceLine, node::Position};
use serde::Serialize;

/// The six steps of validation, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Folders exist, the registry's own settings are valid, and the commit is signed if required.
    Structure,
    /// Every manifest follows its schema.
    Manifests,
    /// Every reference is pinned, and pins what it always has.
    References,
    /// Every model card can be read and follows its schema.
    Cards,
    /// Some worker of every deployment can load its card.
    Compatibility,
    /// Every worker configuration follows its schema, and no secret is in the clear.
    Workers,
}

impl Step {
    /// Number of the step, 1 to 6.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8 + 1
    }

    /// Outcome of the commit if this step finds an error.
    #[must_use]
    pub const fn outcome(self) -> Outcome {
        match self {
            Self::Structure => Outcome::StructureViolation,
            Self::Manifests => Outcome::InvalidDeploymentManifest,
            Self::References => Outcome::UnpinnedRef,
            Self::Cards => Outcome::InvalidModelCard,
            Self::Compatibility => Outcome::SchemaIncompatibility,
            Self::Workers => Outcome::InvalidWorkerConfig,
        }
    }
}

/// Result of validation. Anything but the first rejects the commit as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// All checks passed.
    Accepted,
    /// A folder is missing or is something else.
    StructureViolation,
    /// A manifest does not follow its schema.
    InvalidDeploymentManifest,
    /// A reference is a branch, or a tag that was moved.
    UnpinnedRef,
    /// A model card cannot be read.
    ModelCardNotFound,
    /// A model card does not follow its schema.
    InvalidModelCard,
    /// No worker of a deployment can load its card.
    SchemaIncompatibility,
    /// A worker configuration does not follow its schema.
    InvalidWorkerConfig,
}

impl Outcome {
    /// The word in logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::StructureViolation => "structure_violation",
            Self::InvalidDeploymentManifest => "invalid_deployment_manifest",
            Self::UnpinnedRef => "unpinned_ref",
            Self::ModelCardNotFound => "model_card_not_found",
            Self::InvalidModelCard => "invalid_model_card",
            Self::SchemaIncompatibility => "schema_incompatibility",
            Self::InvalidWorkerConfig => "invalid_worker_config",
        }
    }

    /// Description for people.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::StructureViolation => "structure violation",
            Self::InvalidDeploymentManifest => "invalid deployment manifest",
            Self::UnpinnedRef => "unpinned ref",
            Self::ModelCardNotFound => "model card not found",
            Self::InvalidModelCard => "invalid model card",
            Self::SchemaIncompatibility => "schema incompatibility",
            Self::InvalidWorkerConfig => "invalid worker config",
        }
    }

    /// Audiences that are told of a commit with this outcome.
    #[must_use]
    pub const fn audience(self) -> &'static [Audience] {
        match self {
            Self::Accepted => &[],
            Self::InvalidModelCard => &[Audience::Ops, Audience::Ml],
            _ => &[Audience::Ops],
        }
    }
}

/// Audience that can mend a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Audience {
    /// Operations, who own the registry.
    Ops,
    /// The owners of the model.
    Ml,
}

/// Severity of a problem: it rejects the commit, or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Rejects the commit.
    Error,
    /// Deserves attention, but does not reject the commit.
    Warning,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// The step that found it, which decides the outcome.
    pub step: Step,
    /// Outcome of the commit if this is an error.
    pub outcome: Outcome,
    /// The rule, in one word with dashes; stable, for filters.
    pub rule: &'static str,
    /// Severity: an error unless [`warning`](Self::warning) says otherwise.
    pub severity: Severity,
    /// The file, from the registry's root; for a model card `URL@REF:PATH`.
    pub file: String,
    /// From 1; 0: the file as a whole.
    pub line: u32,
    /// In characters, from 1; 0: the file as a whole.
    pub column: u32,
    /// The field, `deployment_config.region`; empty for the file as a whole.
    pub path: String,
    /// Description of the problem.
    pub message: String,
    /// Remedy; empty if the message suffices.
    pub remedy: String,
    /// True if the same commit may pass later without anybody acting, for example after a repository was unreachable.
    pub transient: bool,
    /// The manifest that named the card that this is about; empty for other problems.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub manifest: String,
    /// The last commit that touched the file (of a card: its manifest), where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<CommitInfo>,
    /// The line of text that it is in, for [`render`](Self::render).
    #[serde(skip)]
    pub source_line: String,
}

impl Problem {
    /// An error of a file as a whole.
    #[must_use]
    pub fn new(step: Step, rule: &'static str, file: &str, message: impl Into<String>) -> Self {
        Self {
            step,
            outcome: step.outcome(),
            rule,
            severity: Severity::Error,
            file: file.to_owned(),
            line: 0,
            column: 0,
            path: String::new(),
            message: message.into(),
            remedy: String::new(),
            transient: false,
            manifest: String::new(),
            commit: None,
            source_line: String::new(),
        }
    }

    /// Sets line, column, field and source line from a place in `text`.
    #[must_use]
    pub fn at(mut self, place: Position, path: &str, text: &str) -> Self {
        (self.line, self.column) = (place.line, place.column);
        path.clone_into(&mut self.path);
        // YAML breaks lines at a lone carriage return, too.
        let mut lines = text.split('\n').flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split('\r'));
        let line = (place.line as usize).checked_sub(1).and_then(|n| lines.nth(n));
        line.unwrap_or_default().clone_into(&mut self.source_line);
        self
    }

    /// Sets the remedy.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// Makes it a warning: it does not reject the commit.
    #[must_use]
    pub fn warning(mut self) -> Self {
        self.severity = Severity::Warning;
        self
    }

    pub(crate) fn outcome(mut self, outcome: Outcome) -> Self {
        self.outcome = outcome;
        self
    }

    pub(crate) fn transient(mut self, transient: bool) -> Self {
        self.transient = transient;
        self
    }

    /// True if the problem rejects the commit.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// Audiences that can mend it.
    #[must_use]
    pub const fn audience(&self) -> &'static [Audience] {
        self.outcome.audience()
    }

    /// For terminals: the problem, its line with a caret, and the remedy.
    #[must_use]
    pub fn render(&self) -> String {
        let shown = ManifestError {
            file: self.file.clone(),
            line: self.line,
            column: self.column,
            path: self.path.clone(),
            message: self.message.clone(),
            remedy: self.remedy.clone(),
            source_line: SourceLine::around(&self.source_line, self.column),
        };
        let text = shown.render();
        match self.severity {
            Severity::Error => text,
            Severity::Warning => text.replacen("error:", "warning:", 1),
        }
    }
}

impl fmt::Display for Problem {
    /// In one line: `models/production/iris.yaml:7:12: deployment_config.region: message; remedy`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", self.path)?;
        }
        write!(f, ": {}", self.message)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "; {}", self.remedy) }
    }
}
