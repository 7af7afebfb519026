//! Takes in the results of reading and writing the branch.

use std::time::Duration;

use berth_git::{Category, GitError};
use berth_registry::error_file::read_summary;

use super::{Done, ReporterState, StatusReporter, publish::Written};

/// The pause before the branch is read again, though nothing has to be written: somebody may have removed it.
const REREAD_INTERVAL: Duration = Duration::from_secs(10 * 60);

/// First pause after the branch could not be read; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// Longest pause: after an outage of hours, people find the actual state up to date within minutes.
const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);

/// The pause before a host that lets nobody rewrite the branch is asked for it again: a person has to change its settings first.
const UNSQUASHED: Duration = Duration::from_secs(6 * 60 * 60);

impl StatusReporter {
    pub(crate) async fn done(&self, state: &mut ReporterState, turn: u64, done: Done) {
        let now = self.context.now();
        if turn != state.turns {
            // Of another branch, or of this one as it was before somebody touched it: it is read again.
            return state.brain.untaken();
        }
        match done {
            Done::Read(Ok((found, tip))) => {
                if std::mem::take(&mut state.inherits) {
                    let told = found.errors.iter().filter_map(|(_, text)| read_summary(text));
                    for (subject, severity, message) in told {
                        state.alerts.know(&subject, severity, &message);
                        state.incidents.inherit([subject]);
                    }
                }
                (state.tip, state.settled, state.failures, state.read_at) = (tip, true, 0, now + REREAD_INTERVAL);
                self.context.update_status(|status| status.set_detail("writeProblem", ""));
                state.brain.found(found, now);
            }
            Done::Read(Err(error)) => {
                // People are told all the same.
                state.settled = true;
                state.read_at = now + FIRST_PAUSE.saturating_mul(1 << state.failures.min(10)).min(LONGEST_PAUSE);
                self.trouble(state, "read", &error).await;
            }
            Done::Wrote(change, Ok(Written::Commit { tip, unsquashed })) => {
                self.config.metrics.wrote("commit");
                tracing::info!(event = "actual_state_written", commit_sha = %tip, files = change.edits.len(), message = change.message);
                self.context.update_status(|status| {
                    status.set_detail("written", tip.to_string());
                    status.set_detail("writeProblem", "");
                });
                (state.tip, state.failures, state.read_at) = (Some(tip), 0, now + REREAD_INTERVAL);
                state.brain.done(&change, now);
                if let Some(error) = unsquashed {
                    state.squash_at = now + UNSQUASHED;
                    tracing::info!(event = "write_back_not_squashed", %error, place = %state.place);
                }
            }
            Done::Wrote(change, Ok(Written::Unchanged)) => {
                self.config.metrics.wrote("unchanged");
                (state.failures, state.read_at) = (0, now + REREAD_INTERVAL);
                state.brain.done(&change, now);
            }
            Done::Wrote(_, Ok(Written::Touched { by, paths })) => {
                self.config.metrics.wrote("touched");
                state.brain.untaken();
                state.brain.forget_branch();
                (state.failures, state.read_at) = (0, now);
                if let Some(by) = by {
                    self.touched(&by, &paths).await;
                }
            }
            Done::Wrote(_, Ok(Written::Overtaken(term))) => {
                self.config.metrics.wrote("overtaken");
                state.brain.untaken();
                state.overtaken = Some((term, now));
                tracing::warn!(event = "write_back_overtaken", epoch = %self.context.epoch(), term, "a leader of a later term has written");
            }
            Done::Wrote(_, Err(error)) => {
                self.config.metrics.wrote("failed");
                state.brain.failed(now);
                self.trouble(state, "write", &error).await;
            }
        }
    }

    async fn trouble(&self, state: &mut ReporterState, doing: &'static str, error: &GitError) {
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
        if state.failures == 0 {
            self.context
                .warn("WriteBackFailed", format!("the actual state is not written to {}: {message}", state.place))
                .await;
        }
        state.failures = state.failures.saturating_add(1);
        self.context.update_status(|status| status.set_detail("writeProblem", message));
    }

    async fn touched(&self, by: &str, paths: &[String]) {
        /// Paths that an event names.
        const MOST: usize = 10;
        let named = paths.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
        let message = match paths.len() {
            0 => "the branch of the actual state was removed or its history rewritten: it is written again".to_owned(),
            n if n <= MOST => format!("only controllers write these files, and {by} has changed them: {named}"),
            n => format!("only controllers write these files, and {by} has changed {n} of them: {named}, …"),
        };
        tracing::warn!(event = "write_back_touched", message);
        self.context.warn("ActualStateOverwritten", message).await;
    }
}
