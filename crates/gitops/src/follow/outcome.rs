//! Takes in the results of effects: logs, events, the checkpoint, what people see.

use std::{collections::BTreeSet, sync::Arc};

use berth_control::{
    handle::Error,
    source::{Counts, Reconciled, Refused, SourceBreaker},
};
use berth_git::{CommitInfo, Oid};
use berth_registry::{Settings, commit_status::Mark};
use berth_spec::{DeploymentName, Time, event::Severity};

use super::{
    Driver,
    brain::{Brain, Event},
    changes, not_applied,
    reader::{RestoredCommit, Validation},
    secret_cache::OpenedSecrets,
    verdict::{Candidate, FollowError, RefusedCommit, Verdict},
};
use crate::{
    notify::Command,
    refusal::{self, Refusal},
};

impl Driver {
    pub(crate) async fn polled(&self, result: &Result<Oid, FollowError>, brain: &Brain, now: Time) {
        match result {
            Ok(tip) => {
                self.context.update_status(|status| status.checked_at = Some(now));
                if brain.tip().is_some_and(|before| before != tip) || brain.tip().is_none() {
                    tracing::debug!(event = "registry_tip", commit_sha = %tip);
                }
            }
            Err(fault) => {
                tracing::warn!(
                    event = "registry_unreachable",
                    problem = fault.message,
                    failures = brain.failures() + 1
                );
                // Once for each outage.
                if brain.failures() == 0 {
                    self.context.warn("RegistryUnreachable", fault.message.clone()).await;
                }
            }
        }
    }

    pub(crate) async fn restored(
        &mut self,
        commit: &Oid,
        restored: Result<Box<(RestoredCommit, OpenedSecrets)>, FollowError>,
    ) -> Result<(), FollowError> {
        let restored = match restored {
            Ok(restored) => {
                let (restored, opened) = *restored;
                let given =
                    self.give(&opened).await.map_err(|error| FollowError { message: error.to_string(), passing: true });
                given.map(|()| restored)
            }
            Err(fault) => Err(fault),
        };
        match restored {
            Ok(restored) => {
                tracing::info!(event = "registry_restored", commit_sha = %commit, secrets = restored.secrets.len());
                self.settings(restored.settings);
                self.about(&restored.info, String::new());
                Ok(())
            }
            Err(fault) => {
                tracing::warn!(event = "registry_not_restored", problem = fault.message);
                self.context.warn("RegistryNotRestored", fault.message.clone()).await;
                Err(fault)
            }
        }
    }

    /// Makes the verdict of a validation, and tells what does not depend on what was before.
    pub(crate) async fn verdict(&mut self, commit: &Oid, validation: Validation, brain: &Brain, now: Time) -> Verdict {
        let Validation { failure, info, report, rewritten, foreign, settings, took } = validation;
        let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        if rewritten {
            let message = format!(
                "the history of {} was rewritten: {commit} does not follow from the commit before",
                self.config.place()
            );
            tracing::warn!(event = "registry_history_rewritten", commit_sha = %commit);
            self.context.warn("RegistryHistoryRewritten", message).await;
        }
        if !foreign.is_empty() {
            let message = format!("only controllers write these files, they are written again: {}", foreign.join(", "));
            self.context.warn("ActualStateTouched", message).await;
            self.in_force.send_modify(|in_force| in_force.touched += 1);
        }
        let (report, info) = match (failure, report, info) {
            (Some(fault), ..) => return self.failed(commit, fault, brain).await,
            (None, Some(report), Some(info)) => (report, info),
            (None, ..) => return Verdict::OwnOnly,
        };
        self.config.metrics.validated(report.is_accepted(), took);
        if report.is_accepted() {
            tracing::info!(event = "registry_validation_success", commit_sha = %commit, duration_ms = millis);
            for warning in report.warnings() {
                tracing::warn!(event = "registry_validation_warning", commit_sha = %commit, problem = %warning);
            }
            return match report.desired {
                Some(desired) => Verdict::Good(Box::new(Candidate { info, desired: Arc::new(desired) })),
                None => {
                    let message = "validation returned nothing to declare; retrying".to_owned();
                    Verdict::Failed(FollowError { message, passing: true })
                }
            };
        }
        let refusal = Refusal::new(&report, &info, now);
        let errors = refusal.problems.join("; ");
        tracing::error!(event = "registry_validation_failed", commit_sha = %commit, validation_errors = errors, duration_ms = millis, outcome = refusal.outcome_word());
        if report.outcome == berth_registry::Outcome::SchemaIncompatibility {
            tracing::error!(event = "schema_compatibility_violation", commit_sha = %commit, details = errors);
        }
        // Before the first good commit there are no others that say whom to tell.
        if let (None, Some(settings)) = (brain.applied(), settings) {
            self.notifier.send(Command::Settings(Box::new(settings)));
            self.in_force.send_modify(|in_force| in_force.addressed = true);
        }
        Verdict::Refused(Box::new(RefusedCommit { info, refusal, idle: report.idle }))
    }

    async fn failed(&self, commit: &Oid, fault: FollowError, brain: &Brain) -> Verdict {
        tracing::warn!(event = "registry_not_validated", commit_sha = %commit, problem = fault.message);
        if brain.failures() == 0 {
            let message = format!("{commit} could not be validated, it is tried again: {}", fault.message);
            self.context.warn("RegistryNotValidated", message).await;
        }
        Verdict::Failed(fault)
    }

    /// Tells people that a commit is refused.
    pub(crate) async fn tell_refusal(&self, commit: &Oid, brain: &Brain) {
        let Some(refusal) = brain.refusal() else { return };
        let message = format!("{} by {} is refused, {}", &commit.as_str()[..12], refusal.author, refusal.summary());
        self.context.warn("CommitRefused", message).await;
        self.notifier.send(Command::Mark { sha: commit.to_string(), mark: Mark::Failure, words: refusal.summary() });
    }

    /// Marks a commit that differs from the last one only in what controllers write.
    pub(crate) fn mark_own_only(&self, commit: &Oid, brain: &Brain) {
        let (mark, words) = match brain.refusal() {
            Some(refusal) => (Mark::Failure, refusal.summary()),
            None => (Mark::Success, "only what controllers write has changed".to_owned()),
        };
        self.notifier.send(Command::Mark { sha: commit.to_string(), mark, words });
    }

    pub(crate) async fn applied(
        &mut self,
        commit: &Oid,
        declared: Reconciled,
        brain: &Brain,
        now: Time,
    ) -> Result<(), Error> {
        let Some(Candidate { info, desired }) = brain.candidate().cloned() else { return Err(Error::Stopped) };
        let is_new = brain.applied() != Some(commit);
        let before = self.in_force.borrow().desired.clone();
        self.remember(commit, brain, now).await?;
        if let Some(stop) = brain.stop_beside(commit) {
            // It may have been found while this was being declared.
            self.context.disable(names(&stop.ids)).await?;
        }
        // First: it may say to whom this very commit is told.
        self.settings(desired.settings.clone());
        let changes = changes::changes(&desired, before.as_deref());
        let said = changes::said(&changes, &declared);
        let signer = refusal::signer(&desired);
        if is_new {
            // The audit: who changed what, and when it came into force.
            tracing::info!(
                event = "registry_commit_applied", commit_sha = %commit, author = refusal::author(&info),
                committer = format!("{} <{}>", info.committer.name, info.committer.email), signer, subject = info.subject,
                changes = changes.join("; "), changed = declared.changed.len(), deleted = declared.deleted.len()
            );
            let signed = if signer.is_empty() { signer.clone() } else { format!(", signed by {signer}") };
            let message = format!("{} by {}{signed}: {said}", info.oid.short(), refusal::author(&info));
            self.context.event(Severity::Normal, "CommitApplied", message, None, None).await;
        }
        if is_new || before.is_none() {
            // Whoever led before may have ended before the host took the mark: its own first one is said again.
            let words = if is_new { format!("in force: {said}") } else { "in force".to_owned() };
            self.notifier.send(Command::Mark { sha: commit.to_string(), mark: Mark::Success, words });
        }
        let conflicts: Vec<String> = declared.problems.into_iter().map(|problem| problem.message).collect();
        for conflict in &conflicts {
            tracing::warn!(event = "registry_conflict", commit_sha = %commit, problem = conflict);
        }
        if is_new && !conflicts.is_empty() {
            self.context.warn("RegistryConflict", conflicts.join("; ")).await;
        }
        self.about(&info, signer);
        let sha = commit.to_string();
        let disabled = desired.deployments.iter().filter(|deployment| deployment.manifest.wanted() == 0).count();
        let counts = Counts { deployments: desired.deployments.len(), disabled };
        self.context.update_status(|status| {
            (status.revision, status.counts, status.conflicts) = (Some(sha.clone()), counts, conflicts);
            if is_new || status.applied_at.is_none() {
                status.applied_at = Some(now);
            }
        });
        self.in_force.send_modify(|in_force| (in_force.applied, in_force.desired) = (Some(sha), Some(desired)));
        Ok(())
    }

    /// Disables at once what a commit, which is not in force, wants without a replica.
    pub(crate) async fn disable(
        &mut self,
        info: &CommitInfo,
        ids: &BTreeSet<String>,
        brain: &Brain,
    ) -> Result<Option<Event>, Error> {
        let (done, event) = match self.context.disable(names(ids)).await {
            Ok(done) => (done, None),
            Err(error) => {
                not_applied(error)?;
                (Reconciled::default(), Some(Event::NotDisabled))
            }
        };
        if !done.changed.is_empty() {
            let (names, author) = (changes::names(&done.changed).join(", "), refusal::author(info));
            tracing::warn!(event = "registry_disabled_at_once", commit_sha = %info.oid, author, deployments = names);
            let message =
                format!("{names}: disabled at once, as {} by {author} says, which is not in force", info.oid.short());
            self.context.warn("DisabledAtOnce", message).await;
        }
        if let Some(applied) = brain.applied() {
            // Also where it was found before: the store may not have taken it then.
            self.remember(applied, brain, self.context.now()).await?;
        }
        Ok(event)
    }

    pub(crate) fn settings(&self, settings: Settings) {
        self.notifier.send(Command::Settings(Box::new(settings.clone())));
        self.in_force.send_modify(|in_force| (in_force.settings, in_force.addressed) = (settings, true));
    }

    pub(crate) fn about(&self, info: &CommitInfo, signer: String) {
        let (author, subject) = (refusal::author(info), info.subject.clone());
        self.context.update_status(|status| {
            status.set_detail("author", author);
            status.set_detail("signedBy", signer);
            status.set_detail("subject", subject);
        });
    }

    pub(crate) fn show(&self, brain: &Brain) {
        let refusal = brain.refusal();
        self.in_force.send_if_modified(|in_force| {
            let changed = in_force.refusal.as_ref() != refusal;
            if changed {
                in_force.refusal = refusal.cloned();
            }
            changed
        });
        let host = self.config.remote.origin();
        self.config.metrics.breaker(&host, brain.breaker());
        let refused = refusal.map(|refusal| Refused {
            revision: refusal.commit.clone(),
            outcome: refusal.outcome_word(),
            validated_again: refusal.again,
        });
        self.context.update_status(|status| {
            status.state = brain.state();
            status.seen = brain.tip().map(ToString::to_string).or_else(|| status.seen.take());
            status.next_check = Some(brain.next());
            status.refused = refused;
            status.problem = match (brain.fault(), refusal) {
                (Some(fault), _) => Some(fault.message.clone()),
                (None, Some(refusal)) => {
                    Some(format!("{} is refused: {}", refusal.commit, refusal.problems.join("\n")))
                }
                (None, None) if !status.conflicts.is_empty() => Some(status.conflicts.join("\n")),
                (None, None) => None,
            };
            let (state, failures) = (brain.breaker(), brain.failures());
            let retry_at = (failures > 0).then(|| brain.next());
            status.breakers.insert(host, SourceBreaker { state, failures, retry_at });
        });
    }
}

/// The ids of deployments as names; what is not one was never declared.
fn names(ids: &BTreeSet<String>) -> Vec<DeploymentName> {
    ids.iter().filter_map(|id| DeploymentName::new(id).ok()).collect()
}
