//! The status of a source, for people: one type for every kind.

use std::collections::BTreeMap;

use berth_spec::{Generation, Origin, Time, WorkerId, worker::BreakerState};

use super::SourceName;

/// The status of a source in this term, as `berth get sources` shows it. The source writes it.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceStatus {
    /// Name of the source, unique among those of the process.
    pub name: SourceName,
    /// Its kind: `directory`, `git`.
    pub kind: &'static str,
    /// Its place, without credentials: a URL, a path.
    pub location: String,
    /// Owner of what it declares, once it has begun.
    pub origin: Option<Origin>,
    /// The summary of the fields below.
    pub state: SourceState,
    /// A person has paused it: what it declared stays, and nothing new is taken.
    pub paused: bool,
    /// The revision in force: a commit, or a hash of a folder's content; `None` until the first one is.
    pub revision: Option<String>,
    /// When that came into force.
    pub applied_at: Option<Time>,
    /// The newest revision that was seen.
    pub seen: Option<String>,
    /// When the source was last read, with success.
    pub checked_at: Option<Time>,
    /// When it is read next if nothing tells of a change before; `None` while it is paused or does not run.
    pub next_check: Option<Time>,
    /// Everything that is wrong, for people; several lines.
    pub problem: Option<String>,
    /// The newest revision, where it is refused.
    pub refused: Option<Refused>,
    /// Deployments that belong to another owner, and other changes that were not made.
    pub conflicts: Vec<String>,
    /// Deployments in the snapshot that was applied last.
    pub counts: Counts,
    /// Circuit breakers of what it depends on, by name.
    pub breakers: BTreeMap<String, SourceBreaker>,
    /// Facts of its kind, by name: `branch`, `author`.
    pub details: BTreeMap<&'static str, String>,
}

impl SourceStatus {
    /// The status of a source that has not begun.
    #[must_use]
    pub fn new(name: SourceName, kind: &'static str, location: String) -> Self {
        Self {
            name,
            kind,
            location,
            origin: None,
            state: SourceState::Starting,
            paused: false,
            revision: None,
            applied_at: None,
            seen: None,
            checked_at: None,
            next_check: None,
            problem: None,
            refused: None,
            conflicts: Vec::new(),
            counts: Counts::default(),
            breakers: BTreeMap::new(),
            details: BTreeMap::new(),
        }
    }

    /// A fact of its kind; empty where there is none.
    #[must_use]
    pub fn detail(&self, name: &str) -> &str {
        self.details.get(name).map(String::as_str).unwrap_or_default()
    }

    /// Sets a fact of its kind; an empty one is taken away.
    pub fn set_detail(&mut self, name: &'static str, value: impl Into<String>) {
        let value = value.into();
        if value.is_empty() {
            self.details.remove(name);
        } else {
            self.details.insert(name, value);
        }
    }
}

/// The summary of a source's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceState {
    /// Nothing is known yet.
    Starting,
    /// The newest revision is in force.
    Synced,
    /// A newer revision is on its way.
    Progressing,
    /// The newest revision is refused; the last good one is in force.
    Refused,
    /// Something failed and is tried again.
    Retrying,
    /// Nothing changes until a person acts.
    Stalled,
    /// Paused by a person, until one resumes it.
    Paused,
}

impl SourceState {
    /// The word for it in the API and on the console.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "Starting",
            Self::Synced => "Synced",
            Self::Progressing => "Progressing",
            Self::Refused => "Refused",
            Self::Retrying => "Retrying",
            Self::Stalled => "Stalled",
            Self::Paused => "Paused",
        }
    }
}

/// The refusal of a revision, which stays until a newer one passes or it is validated again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The refused revision, in the words of the source: a commit.
    pub revision: String,
    /// The verdict in one word: `unpinned-ref`.
    pub outcome: String,
    /// When it is validated again; `None`: when something changes.
    pub validated_again: Option<Time>,
}

/// Counts of a source's last snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Deployments that it wants, the disabled ones included.
    pub deployments: usize,
    /// Deployments that it wants without a replica.
    pub disabled: usize,
}

/// The circuit breaker of one thing that a source depends on, such as a Git host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceBreaker {
    /// Closed: it is asked; open: it is left alone; half-open: one attempt is under way.
    pub state: BreakerState,
    /// Failures since the last success.
    pub failures: u32,
    /// When it is tried again; `None`: when there is something to try.
    pub retry_at: Option<Time>,
}

impl Default for SourceBreaker {
    fn default() -> Self {
        Self { state: BreakerState::Closed, failures: 0, retry_at: None }
    }
}

/// A secret that a source gives to a worker, without its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSecret {
    /// Name of the worker that may read it.
    pub worker: WorkerId,
    /// Name by which manifests refer to the secret.
    pub name: String,
    /// Its type; empty where not even that could be read.
    pub kind: String,
    /// The backend that holds it: `file`, `vault`.
    pub backend: String,
    /// The ids of the keys that a file is wrapped for, or the lease of a vault.
    pub held_by: String,
    /// The number of the credential set that it is in; 0 if it is in none.
    pub generation: Generation,
    /// When it was last decrypted, read or renewed.
    pub renewed: Option<Time>,
    /// When it ends by itself.
    pub expires: Option<Time>,
    /// The problem with it, and what is being done about it.
    pub problem: Option<String>,
}
