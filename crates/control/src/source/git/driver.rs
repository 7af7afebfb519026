//! Runs the brain for a term: carries out what it wants on threads that may block, shows what it knows, remembers the last
//! good commit.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use berth_git::{CommitInfo, Oid};
use berth_registry::{Desired, Settings, commit_status::Mark};
use berth_secrets::vault;
use berth_spec::{Class, Epoch, Origin, Time, UnknownWorkers, event::Severity};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::{
    GitConfig,
    brain::{Brain, Effect, Event, Fault, Standing, Verdict},
    declare::{self, Declared},
    eyes::{Checked, Eyes, Restored},
    herald::{Herald, Teller, Word},
    safekeeping::{Kept, Safekeeping},
    scribe::{InForce, Scribe},
    tell::{self, Refusal},
};
use crate::{
    Handle,
    handle::Error,
    source::{Hook, SourceView, Trigger},
    store::{Compare, Op, Outcome, Txn, layout, source::StoredSource},
};

/// Runs the source for a term.
pub(super) async fn run(
    config: Arc<GitConfig>,
    handle: Handle,
    epoch: Epoch,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let over = Arc::new(AtomicBool::new(false));
    let ended = CancellationToken::new();
    let mut parts = JoinSet::new();
    let eyes = Arc::new(Eyes::new(Arc::clone(&config), Arc::clone(&over)));
    let (teller, words) = Teller::new();
    match Herald::new(Arc::clone(&config), handle.board.clone(), Arc::clone(&handle.clock)) {
        Ok(herald) => drop(parts.spawn(herald.run(words, ended.clone()))),
        Err(problem) => tracing::error!(event = "notifications_off", problem),
    }
    let vault = vault(&config, epoch, &ended, &mut parts);
    let (in_force, watching) = watch::channel(InForce::default());
    let scribe = Scribe {
        config: Arc::clone(&config),
        handle: handle.clone(),
        eyes: Arc::clone(&eyes),
        teller: teller.clone(),
        epoch,
        in_force: watching,
    };
    parts.spawn(scribe.run(ended.clone()));
    let safe = Safekeeping::new(Arc::clone(&config.keyring), vault.clone());
    let driver = Driver {
        config,
        handle,
        eyes,
        teller,
        safe,
        in_force,
        desired: None,
        formerly: None,
        understood: None,
        refusal: None,
    };
    let result = driver.run(vault, &shutdown).await;
    // Threads that wait for git end as soon as it has ended.
    over.store(true, Ordering::Relaxed);
    ended.cancel();
    while parts.join_next().await.is_some() {}
    match result {
        Err(Error::Stopped) if shutdown.is_cancelled() => Ok(()),
        other => other,
    }
}

/// Takes back what a source that is not configured any more said of workers. What it declared stays.
///
/// # Errors
/// As of the store; say it again.
pub async fn forget(handle: &Handle) -> Result<(), Error> {
    if handle.store.get(layout::GIT_SOURCE).await?.is_none() {
        return Ok(());
    }
    handle.set_worker_terms(BTreeMap::new(), UnknownWorkers::Allow).await?;
    let ops = vec![Op::Delete { key: layout::GIT_SOURCE.to_owned() }];
    handle.store.commit(Txn { compare: Vec::new(), ops }).await?;
    tracing::info!(event = "source_forgotten", "there is no registry any more: workers are as they say of themselves");
    Ok(())
}

fn vault(
    config: &GitConfig,
    epoch: Epoch,
    ended: &CancellationToken,
    parts: &mut JoinSet<()>,
) -> Option<vault::Handle> {
    let settings = config.vault.clone()?;
    let (addr, namespace) = (settings.addr.clone(), settings.namespace.clone());
    let http = match vault::Http::new(settings) {
        Ok(http) => http,
        Err(problem) => {
            tracing::error!(event = "vault_off", problem);
            return None;
        }
    };
    let (handle, task) = vault::build(vault::Vault::new(addr, namespace, epoch.0 ^ rand::random::<u64>()), http);
    parts.spawn(task.run(ended.clone().cancelled_owned()));
    Some(handle)
}

struct Driver {
    config: Arc<GitConfig>,
    handle: Handle,
    eyes: Arc<Eyes>,
    teller: Teller,
    safe: Safekeeping,
    in_force: watch::Sender<InForce>,
    /// What the last validated commit wants: to be declared, or declared.
    desired: Option<(CommitInfo, Arc<Desired>)>,
    /// The origin of the registry that was followed before this one.
    formerly: Option<Origin>,
    /// The last commit whose files are understood: good, or different only in what controllers write.
    understood: Option<Oid>,
    refusal: Option<Refusal>,
}

/// What came of an effect.
enum Done {
    Restored(Oid, Result<(Restored, Kept), Fault>),
    Looked(Result<Oid, Fault>),
    Checked(Oid, Box<Checked>),
    Applied(Oid, Result<(Declared, Kept), Error>),
    Vault(Kept),
}

impl Driver {
    async fn run(mut self, vault: Option<vault::Handle>, shutdown: &CancellationToken) -> Result<(), Error> {
        let stored = self.remembered().await?;
        let applied = stored.as_ref().and_then(|stored| Oid::parse(&stored.applied));
        let mut triggers = self.open(stored.as_ref());
        let (mut brain, effects) = Brain::new(self.config.interval, applied, rand::random(), self.handle.now());
        let mut work = JoinSet::new();
        self.carry_out(effects, &brain, &mut work).await?;
        let mut found = vault.map(|vault| vault.found());
        loop {
            let now = self.handle.now();
            self.show(&brain);
            let due = brain.wake_at().map(|at| tokio::time::sleep(at.since(now)));
            let event = tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                Some(done) = work.join_next() => match done {
                    Ok(done) => self.done(done, &brain).await?,
                    Err(error) => {
                        tracing::error!(event = "source_broke", %error, "a part of the Git source broke, please report it");
                        return Err(Error::Stopped);
                    }
                },
                Some(trigger) = triggers.recv() => Some(match trigger {
                    Trigger::Sync => Event::Asked,
                    Trigger::Webhook => Event::Nudged,
                }),
                () = changed(&mut found) => {
                    let (safe, now) = (self.safe.clone(), self.handle.now());
                    let found = found.as_mut().map(|found| Arc::clone(&found.borrow_and_update()));
                    if let Some(found) = found {
                        work.spawn_blocking(move || Done::Vault(safe.found(&found, now)));
                    }
                    None
                }
                () = optional(due) => Some(Event::Tick),
            };
            if let Some(event) = event {
                let effects = brain.on(event, self.handle.now());
                self.carry_out(effects, &brain, &mut work).await?;
            }
        }
    }

    /// What the store remembers; of another registry only whose deployments to take over.
    async fn remembered(&mut self) -> Result<Option<StoredSource>, Error> {
        let Some(entry) = self.handle.store.get(layout::GIT_SOURCE).await? else { return Ok(None) };
        let stored = StoredSource::read(&entry)?;
        if stored.origin == self.config.place() {
            return Ok(Some(stored));
        }
        self.formerly = Some(Origin::Git(stored.origin));
        Ok(None)
    }

    fn open(&self, stored: Option<&StoredSource>) -> mpsc::Receiver<Trigger> {
        let view = SourceView {
            kind: "git",
            url: self.config.remote.shown(),
            branch: self.config.branch.clone(),
            state: Standing::Starting.as_str(),
            applied: stored.map(|stored| stored.applied.clone()),
            applied_at: stored.map(|stored| Time(stored.at)),
            ..SourceView::default()
        };
        self.in_force.send_modify(|in_force| in_force.applied.clone_from(&view.applied));
        self.handle
            .board
            .open(view, Hook { secret: self.config.webhook_secret.clone(), metrics: Some(self.config.metrics.clone()) })
    }

    async fn carry_out(&mut self, effects: Vec<Effect>, brain: &Brain, work: &mut JoinSet<Done>) -> Result<(), Error> {
        for effect in effects {
            let (eyes, safe, now) = (Arc::clone(&self.eyes), self.safe.clone(), self.handle.now());
            match effect {
                Effect::Look => drop(work.spawn_blocking(move || Done::Looked(eyes.look()))),
                Effect::Restore(commit) => drop(work.spawn_blocking(move || {
                    let restored = eyes.restore(&commit);
                    let restored = restored.map(|restored| {
                        let kept = safe.files(&restored.secrets, now);
                        (restored, kept)
                    });
                    Done::Restored(commit, restored)
                })),
                Effect::Check(commit) => {
                    self.detected(&commit);
                    let (base, applied) = (self.understood.clone(), brain.applied().cloned());
                    work.spawn_blocking(move || {
                        let checked = eyes.check(&commit, base.as_ref(), applied.as_ref());
                        Done::Checked(commit, Box::new(checked))
                    });
                }
                Effect::Apply(commit) => self.apply(commit, work),
                Effect::Settled => self.settled(),
            }
        }
        Ok(())
    }

    fn detected(&self, commit: &Oid) {
        tracing::info!(event = "registry_validation_started", commit_sha = %commit);
        let words = "validating".to_owned();
        self.teller.say(Word::Mark { sha: commit.to_string(), mark: Mark::Pending, words });
    }

    fn apply(&self, commit: Oid, work: &mut JoinSet<Done>) {
        // The brain wants nothing declared that was not validated in this term.
        let Some((_, desired)) = self.desired.clone() else { return };
        let (handle, safe, now) = (self.handle.clone(), self.safe.clone(), self.handle.now());
        let (origin, formerly) = (self.config.origin(), self.formerly.clone());
        work.spawn(async move {
            let files: Vec<(String, String)> =
                desired.secret_files.iter().map(|file| (file.path.clone(), file.text.to_string())).collect();
            let kept = tokio::task::spawn_blocking(move || safe.files(&files, now)).await;
            let Ok(kept) = kept else { return Done::Applied(commit, Err(Error::Stopped)) };
            // Before anything is loaded with them.
            let given = handle.set_credentials(kept.sets.clone()).await;
            let declared = match given {
                Ok(()) => declare::declare(&handle, &desired, &origin, formerly.as_ref()).await,
                Err(error) => Err(error),
            };
            Done::Applied(commit, declared.map(|declared| (declared, kept)))
        });
    }

    async fn done(&mut self, done: Done, brain: &Brain) -> Result<Option<Event>, Error> {
        let now = self.handle.now();
        Ok(Some(match done {
            Done::Vault(kept) => {
                self.keep(kept).await?;
                return Ok(None);
            }
            Done::Looked(result) => {
                self.config.metrics.polled(if result.is_ok() { "ok" } else { "failed" });
                self.looked(&result, brain, now).await?;
                Event::Looked(result)
            }
            Done::Restored(commit, Ok((restored, kept))) => {
                tracing::info!(event = "registry_restored", commit_sha = %commit, secrets = restored.secrets.len());
                self.keep(kept).await?;
                self.settings(restored.settings);
                self.about(&restored.info);
                self.understood = None;
                Event::Restored(Ok(()))
            }
            Done::Restored(_, Err(fault)) => {
                tracing::warn!(event = "registry_not_restored", problem = fault.message);
                self.note("RegistryNotRestored", fault.message.clone()).await?;
                Event::Restored(Err(fault))
            }
            Done::Checked(commit, checked) => Event::Checked(self.checked(&commit, *checked, now).await?),
            Done::Applied(commit, Ok((declared, kept))) => {
                self.keep(kept).await?;
                Event::Applied(self.applied(&commit, declared, brain, now).await?)
            }
            Done::Applied(_, Err(Error::Stopped)) => return Err(Error::Stopped),
            Done::Applied(_, Err(error)) => {
                tracing::warn!(event = "registry_not_applied", %error, "it is tried again");
                let passing = matches!(
                    error.class(),
                    Class::Waiting { .. } | Class::Internal | Class::TimedOut | Class::Conflict
                );
                Event::Applied(Err(Fault { message: error.to_string(), passing }))
            }
        }))
    }

    async fn looked(&self, result: &Result<Oid, Fault>, brain: &Brain, now: Time) -> Result<(), Error> {
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

    async fn checked(&mut self, commit: &Oid, checked: Checked, now: Time) -> Result<Verdict, Error> {
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
                self.understood = Some(commit.clone());
                self.refused(None);
            }
            (Verdict::Refused { .. }, Some(report), Some(info)) => {
                self.config.metrics.validated(false, took);
                let refusal = Refusal::new(&report, &info, now);
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
            (Verdict::OwnOnly, ..) => self.understood = Some(commit.clone()),
            (Verdict::Failed(fault), ..) => {
                tracing::warn!(event = "registry_not_validated", commit_sha = %commit, problem = fault.message);
            }
            _ => {}
        }
        Ok(verdict)
    }

    async fn applied(
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
        self.settings(desired.settings.clone());
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

    /// The branch is where the last good commit is, or only controllers wrote since.
    fn settled(&mut self) {
        if self.refusal.is_some() {
            self.refused(None);
        }
    }

    fn refused(&mut self, refusal: Option<Refusal>) {
        self.refusal.clone_from(&refusal);
        self.in_force.send_modify(|in_force| in_force.refusal = refusal);
    }

    fn settings(&self, settings: Settings) {
        self.teller.say(Word::Settings(Box::new(settings.clone())));
        self.in_force.send_modify(|in_force| in_force.settings = settings);
    }

    fn about(&self, info: &CommitInfo) {
        let (author, subject) = (tell::author(info), info.subject.clone());
        self.handle.board.update(|view| (view.author, view.subject) = (author, subject));
    }

    async fn keep(&self, kept: Kept) -> Result<(), Error> {
        self.handle.board.set_secrets(kept.status);
        self.handle.set_credentials(kept.sets).await
    }

    async fn note(&self, reason: &'static str, message: String) -> Result<(), Error> {
        self.event(Severity::Warning, reason, message).await
    }

    async fn event(&self, severity: Severity, reason: &'static str, message: String) -> Result<(), Error> {
        let at = self.handle.now();
        self.handle.note(berth_spec::Event { at, severity, reason, message, deployment: None, worker: None }).await
    }

    fn show(&mut self, brain: &Brain) {
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

/// The future, or for ever.
async fn optional<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Vault has something else to say.
async fn changed(found: &mut Option<watch::Receiver<Arc<vault::Found>>>) {
    match found {
        Some(receiver) => {
            if receiver.changed().await.is_err() {
                *found = None;
            }
        }
        None => std::future::pending().await,
    }
}
