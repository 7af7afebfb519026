//! What becomes of reading and writing the branch: remembered, told, tried again.

use std::time::Duration;

use berth_git::{Category, GitError};
use berth_registry::error_file::told_in;
use berth_spec::{Event, event::Severity};

use super::{super::publish::Written, Desk, Done, Scribe};

/// How long after it was read or written the branch is read again, though nothing has to be written: somebody may have
/// removed it. Halved, twice the fetches; doubled, it is missing for that much longer.
const AGAIN: Duration = Duration::from_secs(10 * 60);

/// First pause after the branch could not be read; it doubles up to [`LONGEST_PAUSE`]. Halved, a host that is away is asked
/// more often; doubled, the first retry comes later.
const PAUSE: Duration = Duration::from_secs(5);

/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);

/// How long a host that lets nobody rewrite the branch is not asked for it again.
const UNSQUASHED: Duration = Duration::from_secs(6 * 60 * 60);

impl Scribe {
    pub(super) async fn done(&self, desk: &mut Desk, (turn, done): (u64, Done)) {
        let now = self.handle.now();
        if turn != desk.turns {
            // Of another branch, or of this one as it was before somebody touched it: it is read again.
            return desk.brain.untaken();
        }
        match done {
            Done::Read(Ok((found, tip))) => {
                if std::mem::take(&mut desk.inherits) {
                    let told = found.errors.iter().filter_map(|(_, text)| told_in(text));
                    for (subject, severity, message) in told {
                        desk.told.know(&subject, severity, &message);
                        desk.memory.inherit([subject]);
                    }
                }
                (desk.tip, desk.settled, desk.failures, desk.read_at) = (tip, true, 0, now + AGAIN);
                self.handle.board.update(|view| view.write_problem = None);
                desk.brain.found(found, now);
            }
            Done::Read(Err(error)) => {
                // People are told all the same.
                desk.settled = true;
                desk.read_at = now + PAUSE.saturating_mul(1 << desk.failures.min(10)).min(LONGEST_PAUSE);
                self.trouble(desk, "read", &error).await;
            }
            Done::Wrote(change, Ok(Written::Commit { tip, unsquashed })) => {
                self.config.metrics.wrote("commit");
                tracing::info!(event = "actual_state_written", commit_sha = %tip, files = change.edits.len(), message = change.message);
                self.handle.board.update(|view| {
                    (view.written, view.write_problem) = (Some(tip.to_string()), None);
                });
                (desk.tip, desk.failures, desk.read_at) = (Some(tip), 0, now + AGAIN);
                desk.brain.done(&change, now);
                if let Some(error) = unsquashed {
                    desk.squash_at = now + UNSQUASHED;
                    tracing::info!(event = "write_back_not_squashed", %error, place = %desk.place);
                }
            }
            Done::Wrote(change, Ok(Written::Unchanged)) => {
                self.config.metrics.wrote("unchanged");
                (desk.failures, desk.read_at) = (0, now + AGAIN);
                desk.brain.done(&change, now);
            }
            Done::Wrote(_, Ok(Written::Touched { by, paths })) => {
                self.config.metrics.wrote("touched");
                desk.brain.untaken();
                desk.brain.forget_branch();
                (desk.failures, desk.read_at) = (0, now);
                if let Some(by) = by {
                    self.touched(&by, &paths).await;
                }
            }
            Done::Wrote(_, Ok(Written::Overtaken(term))) => {
                self.config.metrics.wrote("overtaken");
                desk.brain.untaken();
                desk.overtaken = Some((term, now));
                tracing::warn!(event = "write_back_overtaken", epoch = %self.epoch, term, "a leader of a later term has written");
            }
            Done::Wrote(_, Err(error)) => {
                self.config.metrics.wrote("failed");
                desk.brain.failed(now);
                self.trouble(desk, "write", &error).await;
            }
        }
    }

    async fn trouble(&self, desk: &mut Desk, doing: &'static str, error: &GitError) {
        tracing::warn!(event = "write_back_failed", doing, %error, "it is tried again");
        let remedy = match error.category {
            Category::Refused | Category::Auth => {
                ": give the controller's credentials the right to write there, or set writeBack in registry.yaml"
            }
            Category::Moved => ": is another cluster set to write to the same branch?",
            _ => "",
        };
        let message = format!("{error}{remedy}");
        // Once for each outage.
        if desk.failures == 0 {
            self.note("WriteBackFailed", format!("the actual state is not written to {}: {message}", desk.place)).await;
        }
        desk.failures = desk.failures.saturating_add(1);
        self.handle.board.update(|view| view.write_problem = Some(message));
    }

    async fn touched(&self, by: &str, paths: &[String]) {
        /// Paths that are named. Halved, a person has to look for the rest; doubled, an event is a list.
        const MOST: usize = 10;
        let named = paths.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
        let message = match paths.len() {
            0 => "the branch of the actual state was removed or its history rewritten: it is written again".to_owned(),
            n if n <= MOST => format!("only controllers write these files, and {by} has changed them: {named}"),
            n => format!("only controllers write these files, and {by} has changed {n} of them: {named}, …"),
        };
        tracing::warn!(event = "write_back_touched", message);
        self.note("ActualStateOverwritten", message).await;
    }

    async fn note(&self, reason: &'static str, message: String) {
        let (at, severity) = (self.handle.now(), Severity::Warning);
        let event = Event { at, severity, reason, message, deployment: None, worker: None };
        if let Err(error) = self.handle.note(event).await {
            tracing::debug!(event = "event_not_kept", %error);
        }
    }
}
