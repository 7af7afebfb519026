//! What becomes of what the driver carried out: told, remembered, shown.

use std::{collections::BTreeSet, sync::Arc};

use berth_git::{CommitInfo, Oid};
use berth_registry::{Settings, commit_status::Mark, write_back};
use berth_spec::{Time, WorkerId, event::Severity};

use super::{
    super::{
        brain::{Brain, Fault, Verdict},
        declare::{self, Declared},
        eyes::{Checked, Restored},
        halt::Halt,
        herald::Word,
        safekeeping::Kept,
        tell::{self, Refusal},
    },
    Driver, changes, not_applied,
};
use crate::{handle::Error, source::SourceBreaker};

impl Driver {
    pub(super) async fn looked(&self, result: &Result<Oid, Fault>, brain: &Brain, now: Time) {
        match result {
            Ok(tip) => {
                self.handle.board.update(|view| view.checked_at = Some(now));
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
                    self.note("RegistryUnreachable", fault.message.clone()).await;
                }
            }
        }
    }

    pub(super) async fn restored(
        &mut self,
        commit: &Oid,
        restored: Result<Box<(Restored, Kept)>, Fault>,
    ) -> Result<(), Fault> {
        let restored = match restored {
            Ok(restored) => {
                let (restored, kept) = *restored;
                let kept = self.keep(&kept).await.map_err(|error| Fault { message: error.to_string(), passing: true });
                kept.map(|()| restored)
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
                self.note("RegistryNotRestored", fault.message.clone()).await;
                Err(fault)
            }
        }
    }

    pub(super) async fn checked(&mut self, commit: &Oid, checked: Checked, brain: &Brain, now: Time) -> Verdict {
        let Checked { mut verdict, info, report, rewritten, foreign, settings, took } = checked;
        let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        if rewritten {
            let message = format!(
                "the history of {} was rewritten: {commit} does not follow from the commit before",
                self.config.place()
            );
            tracing::warn!(event = "registry_history_rewritten", commit_sha = %commit);
            self.note("RegistryHistoryRewritten", message).await;
        }
        if !foreign.is_empty() {
            let message = format!("only controllers write these files, they are written again: {}", foreign.join(", "));
            self.note("ActualStateTouched", message).await;
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
                // It has its own say, but for what a newer one disables.
                self.halt = self.halt.take().filter(|halt| halt.outlives(commit));
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
                .await;
                // Before the first good commit there are no others that say whom to tell.
                if let (None, Some(settings)) = (brain.applied(), settings) {
                    self.teller.say(Word::Settings(Box::new(settings)));
                    self.in_force.send_modify(|in_force| in_force.addressed = true);
                }
                self.teller.say(Word::Mark { sha: commit.to_string(), mark: Mark::Failure, words: refusal.summary() });
                self.refused(Some(refusal));
                if let Some(idle) = report.idle
                    && !self.halt.as_ref().is_some_and(|halt| halt.outlives(commit))
                    && let Err(error) = self.halt(&info, idle, None, brain).await
                {
                    tracing::warn!(event = "registry_not_applied", %error, "it is tried again");
                }
            }
            (Verdict::OwnOnly, ..) => {
                self.examined = Some(commit.clone());
                verdict = self.own_only(commit);
            }
            (Verdict::Failed(fault), ..) => {
                tracing::warn!(event = "registry_not_validated", commit_sha = %commit, problem = fault.message);
                if brain.failures() == 0 {
                    let message = format!("{commit} could not be validated, it is tried again: {}", fault.message);
                    self.note("RegistryNotValidated", message).await;
                }
            }
            _ => {}
        }
        verdict
    }

    /// What controllers wrote makes a bad commit no better.
    fn own_only(&self, commit: &Oid) -> Verdict {
        let (verdict, mark, words) = match &self.refusal {
            Some(refusal) => (Verdict::Refused { passing: refusal.passing }, Mark::Failure, refusal.summary()),
            None => (Verdict::OwnOnly, Mark::Success, "only what controllers write has changed".to_owned()),
        };
        self.teller.say(Word::Mark { sha: commit.to_string(), mark, words });
        verdict
    }

    pub(super) async fn applied(
        &mut self,
        commit: &Oid,
        declared: Declared,
        brain: &Brain,
        now: Time,
    ) -> Result<(), Error> {
        let Some((info, desired)) = self.desired.clone() else { return Err(Error::Stopped) };
        let is_new = brain.applied() != Some(commit);
        let before = self.in_force.borrow().desired.clone();
        self.remember(commit, now).await?;
        if let Some(halt) = self.halt.as_ref().filter(|halt| halt.commit != *commit) {
            // It may have been found while this was being declared.
            declare::halt(&self.handle, &self.config.origin(), &halt.ids).await?;
        }
        self.formerly = None;
        // First: it may say to whom this very commit is told.
        self.settings(desired.settings.clone());
        let changes = changes::changes(&desired, before.as_deref());
        let said = changes::said(&changes, &declared);
        let signer = tell::signer(&desired);
        let Declared { changed, deleted, conflicts } = declared;
        if is_new {
            // The audit: who changed what, and when it came into force.
            tracing::info!(
                event = "registry_commit_applied", commit_sha = %commit, author = tell::author(&info),
                committer = format!("{} <{}>", info.committer.name, info.committer.email), signer, subject = info.subject,
                changes = changes.join("; "), changed = changed.len(), deleted = deleted.len()
            );
            let signed = if signer.is_empty() { signer.clone() } else { format!(", signed by {signer}") };
            let message = format!("{} by {}{signed}: {said}", info.oid.short(), tell::author(&info));
            self.event(Severity::Normal, "CommitApplied", message, None).await;
        }
        if is_new || before.is_none() {
            // Whoever led before may have ended before the host took the mark: its own first one is said again.
            let words = if is_new { format!("in force: {said}") } else { "in force".to_owned() };
            self.teller.say(Word::Mark { sha: commit.to_string(), mark: Mark::Success, words });
        }
        for conflict in &conflicts {
            tracing::warn!(event = "registry_conflict", commit_sha = %commit, problem = conflict);
        }
        if is_new && !conflicts.is_empty() {
            self.note("RegistryConflict", conflicts.join("; ")).await;
        }
        self.about(&info, signer);
        let sha = commit.to_string();
        self.handle.board.update(|view| {
            (view.applied, view.deployments, view.conflicts) =
                (Some(sha.clone()), desired.deployments.len(), conflicts);
            if is_new || view.applied_at.is_none() {
                view.applied_at = Some(now);
            }
        });
        self.in_force.send_modify(|in_force| (in_force.applied, in_force.desired) = (Some(sha), Some(desired)));
        Ok(())
    }

    /// Disables at once what the commit `info`, which is not in force, wants no replica of. `behind`: what was being validated
    /// when it was found.
    pub(super) async fn halt(
        &mut self,
        info: &CommitInfo,
        idle: Vec<String>,
        behind: Option<Oid>,
        brain: &Brain,
    ) -> Result<(), Error> {
        let before = self.halt.take().map(|halt| halt.ids).unwrap_or_default();
        let ids: BTreeSet<String> = idle.into_iter().collect();
        // What this one does not disable any more is as the last good commit says.
        self.stale |= !before.is_subset(&ids);
        self.halt = (!ids.is_empty()).then(|| Halt { commit: info.oid.clone(), behind, ids: ids.clone() });
        let done = match declare::halt(&self.handle, &self.config.origin(), &ids).await {
            Ok(done) => done,
            Err(error) => {
                not_applied(error)?;
                self.stale = true;
                Declared::default()
            }
        };
        if !done.changed.is_empty() {
            let (names, author) = (done.changed.join(", "), tell::author(info));
            tracing::warn!(event = "registry_disabled_at_once", commit_sha = %info.oid, author, deployments = names);
            let message =
                format!("{names}: disabled at once, as {} by {author} says, which is not in force", info.oid.short());
            self.note("DisabledAtOnce", message).await;
        }
        match brain.applied() {
            // Also where it was found before: the store may not have taken it then.
            Some(applied) => self.remember(applied, self.handle.now()).await,
            None => Ok(()),
        }
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
        // Whoever disabled something has taken that back.
        self.stale |= self.halt.take().is_some();
    }

    fn refused(&mut self, refusal: Option<Refusal>) {
        self.refusal.clone_from(&refusal);
        self.in_force.send_modify(|in_force| in_force.refusal = refusal);
    }

    pub(super) fn settings(&self, settings: Settings) {
        self.teller.say(Word::Settings(Box::new(settings.clone())));
        self.in_force.send_modify(|in_force| (in_force.settings, in_force.addressed) = (settings, true));
    }

    pub(super) fn about(&self, info: &CommitInfo, signer: String) {
        let (author, subject) = (tell::author(info), info.subject.clone());
        self.handle.board.update(|view| (view.author, view.signer, view.subject) = (author, signer, subject));
    }

    pub(super) async fn note(&self, reason: &'static str, message: String) {
        self.event(Severity::Warning, reason, message, None).await;
    }

    pub(super) async fn event(
        &self,
        severity: Severity,
        reason: &'static str,
        message: String,
        worker: Option<WorkerId>,
    ) {
        let event = berth_spec::Event { at: self.handle.now(), severity, reason, message, deployment: None, worker };
        if let Err(error) = self.handle.note(event).await {
            // It is in the log as well: no reason to stop.
            tracing::debug!(event = "event_not_kept", %error, reason);
        }
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
            let (state, failures) = (brain.breaker(), brain.failures());
            let retry_at = (failures > 0).then(|| brain.next());
            view.breakers.insert(place, SourceBreaker { state, failures, retry_at });
        });
    }
}
