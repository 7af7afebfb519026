//! What a source shows to people, and how they reach it. One per term: each leader tells of its own source.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use berth_secrets::SecretStatus;
use berth_spec::{Secret, Time, WorkerId, worker::BreakerState};
use tokio::sync::mpsc;

use super::git::SourceMetrics;

/// How a source is, for people.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SourceView {
    /// `git`.
    pub kind: &'static str,
    /// Where it is, without credentials.
    pub url: String,
    /// Which branch.
    pub branch: String,
    /// `Synced`, `Progressing`, `Refused`, `Retrying`, `Stalled`, `Starting`.
    pub state: &'static str,
    /// The commit that the branch was last seen at.
    pub seen: Option<String>,
    /// The commit that is in force.
    pub applied: Option<String>,
    /// When it came into force.
    pub applied_at: Option<Time>,
    /// Who wrote it.
    pub author: String,
    /// Who signed it, and by which key; empty where the registry asks for no signatures.
    pub signer: String,
    /// The first line of its message.
    pub subject: String,
    /// When the branch was last asked for, with success.
    pub checked_at: Option<Time>,
    /// When it is asked for next.
    pub next_check: Option<Time>,
    /// Deployments that it wants.
    pub deployments: usize,
    /// What is wrong, for people; several lines.
    pub problem: Option<String>,
    /// The commit that is refused, and what validation makes of it.
    pub refused: Option<(String, String)>,
    /// When that is validated again; `None`: when something changes.
    pub validated_again: Option<Time>,
    /// Deployments that belong to somebody else, and other things that did not go through.
    pub conflicts: Vec<String>,
    /// Where the actual state is written; empty: nowhere.
    pub write_back: String,
    /// The last commit that was written.
    pub written: Option<String>,
    /// Why the last one could not be written.
    pub write_problem: Option<String>,
    /// Breakers of what it depends on, by name.
    pub breakers: BTreeMap<String, SourceBreaker>,
}

/// A circuit breaker of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceBreaker {
    /// How it stands.
    pub state: BreakerState,
    /// Failures in a row.
    pub failures: u32,
    /// When it is tried again; `None`: when there is something to try.
    pub retry_at: Option<Time>,
}

impl Default for SourceBreaker {
    fn default() -> Self {
        BreakerState::Closed.into()
    }
}

impl From<BreakerState> for SourceBreaker {
    fn from(state: BreakerState) -> Self {
        Self { state, failures: 0, retry_at: None }
    }
}

/// What is asked of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// A person asks.
    Sync,
    /// A webhook came.
    Webhook,
}

/// How webhooks are taken.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hook {
    /// What they have to prove that they know; `None`: nothing.
    pub(crate) secret: Option<Arc<Secret>>,
    pub(crate) metrics: Option<SourceMetrics>,
}

impl Hook {
    /// Counts one.
    pub(crate) fn count(&self, result: &'static str) {
        if let Some(metrics) = &self.metrics {
            metrics.webhook(result);
        }
    }
}

/// Shows what a source tells, and passes on what is asked of it. Cheap to clone; clones are one.
#[derive(Debug, Clone, Default)]
pub struct Board(Arc<Mutex<Shown>>);

#[derive(Debug, Default)]
struct Shown {
    source: Option<SourceView>,
    secrets: Secrets,
    door: Option<(Door, Hook)>,
}

/// What is asked goes through: each kind by itself, so that a storm of webhooks does not hide that a person asks.
#[derive(Debug)]
struct Door {
    sync: mpsc::Sender<()>,
    webhook: mpsc::Sender<()>,
}

/// What is asked of a source comes out here. That the same was asked more than once meanwhile says nothing more.
#[derive(Debug)]
pub(crate) struct Triggers {
    sync: mpsc::Receiver<()>,
    webhook: mpsc::Receiver<()>,
}

impl Triggers {
    /// The next one; for ever, if nobody can ask any more.
    pub(crate) async fn next(&mut self) -> Trigger {
        tokio::select! {
            biased;
            Some(()) = self.sync.recv() => Trigger::Sync,
            Some(()) = self.webhook.recv() => Trigger::Webhook,
            else => std::future::pending().await,
        }
    }
}

/// What people may see of the secrets of workers.
pub type Secrets = Vec<SecretStatus>;

impl Board {
    /// A source begins to tell: what it is asked comes out of the receiver.
    pub(crate) fn open(&self, view: SourceView, hook: Hook) -> Triggers {
        let ((syncs, sync), (webhooks, webhook)) = (mpsc::channel(1), mpsc::channel(1));
        let mut shown = self.shown();
        (shown.source, shown.door) = (Some(view), Some((Door { sync: syncs, webhook: webhooks }, hook)));
        Triggers { sync, webhook }
    }

    /// Changes what is shown.
    pub(crate) fn update(&self, change: impl FnOnce(&mut SourceView)) {
        if let Some(view) = &mut self.shown().source {
            change(view);
        }
    }

    pub(crate) fn set_secrets(&self, secrets: Secrets) {
        self.shown().secrets = secrets;
    }

    /// The source, if there is one. What is wrong with secrets is wrong with the source that gives them.
    #[must_use]
    pub fn source(&self) -> Option<SourceView> {
        let shown = self.shown();
        let mut view = shown.source.clone()?;
        let problems: Vec<String> = view.problem.take().into_iter().chain(unusable(&shown.secrets)).collect();
        view.problem = (!problems.is_empty()).then(|| problems.join("\n"));
        Some(view)
    }

    /// The secrets of workers.
    #[must_use]
    pub fn secrets(&self) -> Secrets {
        self.shown().secrets.clone()
    }

    /// What webhooks have to prove; `None`: there is no source.
    pub(crate) fn hook(&self) -> Option<Hook> {
        self.shown().door.as_ref().map(|(_, hook)| hook.clone())
    }

    /// Has the source look now, and validate again what was refused; `false`: there is none.
    #[must_use]
    pub fn sync(&self) -> bool {
        self.ask(Trigger::Sync)
    }

    /// Asks the source; `false`: there is none.
    pub(crate) fn ask(&self, trigger: Trigger) -> bool {
        let shown = self.shown();
        let Some((door, _)) = &shown.door else { return false };
        let door = match trigger {
            Trigger::Sync => &door.sync,
            Trigger::Webhook => &door.webhook,
        };
        // A full channel holds the same question already.
        !matches!(door.try_send(()), Err(mpsc::error::TrySendError::Closed(())))
    }

    fn shown(&self) -> std::sync::MutexGuard<'_, Shown> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Secrets that cannot be used, in a line for each worker and cause: those of one file fail together as a rule.
fn unusable(secrets: &[SecretStatus]) -> impl Iterator<Item = String> {
    let mut names: BTreeMap<(&WorkerId, &str), Vec<&str>> = BTreeMap::new();
    for secret in secrets {
        if let Some(problem) = &secret.problem {
            names.entry((&secret.worker, problem)).or_default().push(&secret.name);
        }
    }
    let line = |((worker, problem), names): ((&WorkerId, &str), Vec<&str>)| {
        format!("secrets of {worker} cannot be used ({}): {problem}", names.join(", "))
    };
    names.into_iter().map(line)
}

impl crate::Handle {
    /// What the source of this term shows.
    #[must_use]
    pub const fn board(&self) -> &Board {
        &self.board
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_person_is_heard_in_a_storm_of_webhooks() {
        let board = Board::default();
        assert!(!board.sync(), "there is no source");
        let mut triggers = board.open(SourceView::default(), Hook::default());
        for _ in 0..100 {
            assert!(board.ask(Trigger::Webhook));
        }
        assert!(board.sync());
        assert_eq!((triggers.next().await, triggers.next().await), (Trigger::Sync, Trigger::Webhook), "each once");
        drop(triggers);
        assert!(!board.sync(), "it has ended");
    }
}
