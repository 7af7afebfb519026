//! What becomes of what the driver carried out: told, remembered, shown.

use std::sync::Arc;

use berth_git::{CommitInfo, Oid};
use berth_registry::{Settings, commit_status::Mark, write_back};
use berth_spec::{Time, event::Severity};

use super::{
    super::{
        brain::{Brain, Fault, Verdict},
        declare::Declared,
        eyes::Checked,
        herald::Word,
        safekeeping::Kept,
        tell::{self, Refusal},
    },
    Driver,
};
use crate::{
    handle::Error,
    store::{Compare, Op, Outcome, Txn, layout, source::StoredSource},
};

impl Driver {
    pub(super) async fn looked(&self, result: &Result<Oid, Fault>, brain: &Brain, now: Time) -> Result<(), Error> {
        match result {
            Ok(tip) => {
                self.handle.board.update(|view| view.checked_at = Some(now));
                if brain.tip().is_some_and(|before| before != tip) || brain.tip().is_none() {
                    tracing::debug!(event = "registry_tip", commit_sha = %tip);
                }
                Ok(())
            }
            Err(fault) => {
                tracing::warn!(
                    event = "registry_unreachable",
                    problem = fault.message,
                    failures = brain.failures() + 1
                );
                // Once for each outage.
                if brain.fault().is_none() {
                    self.note("RegistryUnreachable", fault.message.clone()).await
                } else {
                    Ok(())
                }
            }
        }
    }

    pub(super) async fn checked(&mut self, commit: &Oid, checked: Checked, now: Time) -> Result<Verdict, Error> {
        let Checked { mut verdict, info, report, rewritten, foreign, took } = checked;
        let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        if let Some(info) = &info
            && verdict != Verdict::OwnOnly
        {
            let at = info.committer.time;
            tracing::info!(event = "registry_commit_detected", commit_sha = %commit, author = tell::author(info), timestamp = at);
        }
        if rewritten {
            let message = format!(
                "the history of {} was rewritten: {commit} does not follow from the commit before",
                self.config.place()
            );
            tracing::warn!(event = "registry_history_rewritten", commit_sha = %commit);
            self.note("RegistryHistoryRewritten", message).await?;
        }
        if !foreign.is_empty() {
            let message = format!("only controllers write these files, they are written again: {}", foreign.join(", "));
            self.note("ActualStateTouched", message).await?;
            self.in_force.send_modify(|in_force| in_force.touched += 1);
        }
        match (&verdict, report, info) {
            (Verdict::Good, Some(report), Some(info)) => {
                self.config.metrics.validated(true, took);
                tracing::info!(event = "registry_validation_success", commit_sha = %commit, duration_ms = millis);
                for warning in report.warnings() {
                    tracing::warn!(event = "registry_validation_warning", commit_sha = %commit, problem = %warning);
                }
                match report.desired {
                    Some(desired) => self.desired = Some((info, Arc::new(desired))),
                    None => {
                        verdict = Verdict::Failed(Fault {
                            message: "validation gave nothing to declare".to_owned(),
                            passing: true,
                        })
                    }
                }
                self.examined = Some(commit.clone());
                self.refused(None);
            }
            (Verdict::Refused { .. }, Some(report), Some(info)) => {
                self.config.metrics.validated(false, took);
                self.examined = Some(commit.clone());
                let refusal = self.blamed(Refusal::new(&report, &info, now), &info);
                let errors = refusal.problems.join("; ");
                tracing::error!(event = "registry_validation_failed", commit_sha = %commit, validation_errors = errors, duration_ms = millis, outcome = refusal.outcome_word());
                if report.outcome == berth_registry::Outcome::SchemaIncompatibility {
                    tracing::error!(event = "schema_compatibility_violation", commit_sha = %commit, details = errors);
                }
                self.note(
                    "CommitRefused",
                    format!("{} by {} is refused, {}", &commit.as_str()[..12], refusal.author, refusal.summary()),
                )
                .await?;
                self.teller.say(Word::Mark { sha: commit.to_string(), mark: Mark::Failure, words: refusal.summary() });
                self.refused(Some(refusal));
            }
            (Verdict::OwnOnly, ..) => {
                self.examined = Some(commit.clone());
                // What controllers wrote makes a bad commit no better.
                if let Some(refusal) = &self.refusal {
                    verdict = Verdict::Refused { passing: refusal.passing };
                }
            }
            (Verdict::Failed(fault), ..) => {
                tracing::warn!(event = "registry_not_validated", commit_sha = %commit, problem = fault.message);
            }
            _ => {}
        }
        Ok(verdict)
    }

    pub(super) async fn applied(
        &mut self,
        commit: &Oid,
        declared: Declared,
        brain: &Brain,
        now: Time,
    ) -> Result<Result<(), Fault>, Error> {
        let Some((info, desired)) = self.desired.clone() else { return Ok(Ok(())) };
        let is_new = brain.applied() != Some(commit);
        let before = self.in_force.borrow().desired.clone();
        if !self.remember(commit, now).await? {
            return Err(Error::Stopped);
        }
        self.formerly = None;
        // First: it may say to whom this very commit is told.
        self.settings(desired.settings.clone());
        let changes = tell::changes(&desired, before.as_deref());
        let Declared { changed, deleted, conflicts } = declared;
        if is_new {
            // The audit: who changed what, and when it came into force.
            tracing::info!(
                event = "registry_commit_applied", commit_sha = %commit, author = tell::author(&info),
                committer = info.committer.email, signed = desired.settings.signatures.required, subject = info.subject,
                changes = changes.join("; "), changed = changed.len(), deleted = deleted.len()
            );
            let said = if changes.is_empty() {
                format!("{} declared, {} deleted", changed.len(), deleted.len())
            } else {
                changes.join(", ")
            };
            let message = format!("{} by {}: {said}", info.oid.short(), tell::author(&info));
            self.event(Severity::Normal, "CommitApplied", message).await?;
            self.teller.say(Word::Mark {
                sha: commit.to_string(),
                mark: Mark::Success,
                words: format!("in force: {said}"),
            });
        }
        for conflict in &conflicts {
            tracing::warn!(event = "registry_conflict", commit_sha = %commit, problem = conflict);
        }
        if is_new && !conflicts.is_empty() {
            self.note("RegistryConflict", conflicts.join("; ")).await?;
        }
        self.about(&info);
        let sha = commit.to_string();
        self.handle.board.update(|view| {
            (view.applied, view.deployments, view.conflicts) =
                (Some(sha.clone()), desired.deployments.len(), conflicts);
            if is_new || view.applied_at.is_none() {
                view.applied_at = Some(now);
            }
        });
        self.in_force.send_modify(|in_force| (in_force.applied, in_force.desired) = (Some(sha), Some(desired)));
        Ok(Ok(()))
    }

    /// Remembers the last good commit; `false`: this term is over.
    async fn remember(&self, commit: &Oid, now: Time) -> Result<bool, Error> {
        let before = self.handle.store.get(layout::GIT_SOURCE).await?;
        let place = self.config.place();
        let known = before.as_ref().map(StoredSource::read).transpose()?;
        if known.is_some_and(|known| known.applied == commit.as_str() && known.origin == place) {
            return Ok(true);
        }
        let stored = StoredSource::new(place, commit.to_string(), now);
        let key = layout::GIT_SOURCE.to_owned();
        let compare =
            vec![Compare::Modified { key: key.clone(), rev: before.map(|entry| entry.modified).unwrap_or_default() }];
        let txn = Txn { compare, ops: vec![Op::Put { key, value: stored.bytes() }] };
        Ok(matches!(self.handle.store.commit(txn).await?, Outcome::Committed(_)))
    }

    /// The refusal, of the commit of a person: a controller's own commit on top of it is not to blame.
    fn blamed(&self, refusal: Refusal, info: &CommitInfo) -> Refusal {
        match &self.refusal {
            Some(before) if info.trailer(write_back::WRITER).is_some() => {
                Refusal { commit: before.commit.clone(), author: before.author.clone(), at: before.at, ..refusal }
            }
            _ => refusal,
        }
    }

    /// The branch is where the last good commit is, or only controllers wrote since.
    pub(super) fn settled(&mut self) {
        if self.refusal.is_some() {
            self.refused(None);
        }
    }

    fn refused(&mut self, refusal: Option<Refusal>) {
        self.refusal.clone_from(&refusal);
        self.in_force.send_modify(|in_force| in_force.refusal = refusal);
    }

    pub(super) fn settings(&self, settings: Settings) {
        self.teller.say(Word::Settings(Box::new(settings.clone())));
        self.in_force.send_modify(|in_force| in_force.settings = settings);
    }

    pub(super) fn about(&self, info: &CommitInfo) {
        let (author, subject) = (tell::author(info), info.subject.clone());
        self.handle.board.update(|view| (view.author, view.subject) = (author, subject));
    }

    pub(super) async fn keep(&self, kept: Kept) -> Result<(), Error> {
        self.handle.board.set_secrets(kept.status);
        self.handle.set_credentials(kept.sets).await
    }

    pub(super) async fn note(&self, reason: &'static str, message: String) -> Result<(), Error> {
        self.event(Severity::Warning, reason, message).await
    }

    async fn event(&self, severity: Severity, reason: &'static str, message: String) -> Result<(), Error> {
        let at = self.handle.now();
        self.handle.note(berth_spec::Event { at, severity, reason, message, deployment: None, worker: None }).await
    }

    pub(super) fn show(&mut self, brain: &Brain) {
        let again = brain.validated_again();
        if let Some(refusal) = &mut self.refusal
            && refusal.again != again
        {
            refusal.again = again;
            let refusal = Some(refusal.clone());
            self.in_force.send_modify(|in_force| in_force.refusal = refusal);
        }
        let place = self.config.remote.origin();
        self.config.metrics.breaker(&place, brain.breaker());
        self.handle.board.update(|view| {
            view.state = brain.standing().as_str();
            view.seen = brain.tip().map(ToString::to_string).or_else(|| view.seen.take());
            view.next_check = Some(brain.next());
            view.validated_again = again;
            view.refused = self.refusal.as_ref().map(|refusal| (refusal.commit.clone(), refusal.outcome_word()));
            view.problem = match (brain.fault(), &self.refusal) {
                (Some(fault), _) => Some(fault.message.clone()),
                (None, Some(refusal)) => {
                    Some(format!("{} is refused: {}", refusal.commit, refusal.problems.join("\n")))
                }
                (None, None) if !view.conflicts.is_empty() => Some(view.conflicts.join("\n")),
                (None, None) => None,
            };
            view.breakers.insert(place, brain.breaker());
        });
    }
}
