//! Follows the branch for a term: carries out the effects of the brain on threads that may block, shows its state, keeps the
//! checkpoint.

mod brain;
mod changes;
mod credentials;
mod outcome;
mod progress;
mod reader;
mod secret_cache;
mod snapshot;
mod verdict;
mod watcher;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use berth_control::{
    handle::Error,
    source::{Context, Problem, Reconciled, Request, Requests},
    store::StoreError,
};
use berth_git::{CommitInfo, Oid};
use berth_registry::{Desired, commit_status::Mark};
use berth_secrets::vault;
use berth_spec::{Class, Epoch, Time, WorkerId};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use self::{
    brain::{Brain, Effect, Event},
    credentials::{Awaiting, vault},
    progress::Progress,
    reader::{RestoredCommit, Validation},
    secret_cache::{OpenedSecrets, SecretCache},
    verdict::{Candidate, FollowError, Verdict},
    watcher::{HeadReport, Validating, Watcher},
};
use crate::{
    GitConfig,
    notify::{Command, Notifier, NotifierHandle},
    status::{Applied, StatusReporter},
    webhook::WebhookCheck,
};

pub(crate) use self::reader::RegistryReader;

/// The pause before credentials are handed over once more, after the control plane did not take them.
const HAND_OVER_AGAIN: Duration = Duration::from_secs(5);

/// Follows the branch until the end of the term, or until something breaks that the loop itself cannot make good.
pub(crate) async fn run(config: Arc<GitConfig>, context: Context, requests: Requests) -> Result<(), Error> {
    let over = Arc::new(AtomicBool::new(false));
    let (ended, epoch) = (CancellationToken::new(), context.epoch());
    let mut parts = JoinSet::new();
    let reader = Arc::new(RegistryReader::new(Arc::clone(&config), Arc::clone(&over)));
    let (notifier, receiver) = NotifierHandle::new(config.metrics.clone());
    match Notifier::new(Arc::clone(&config), context.clone()) {
        Ok(notifier) => drop(parts.spawn(notifier.run(receiver, ended.clone()))),
        Err(problem) => tracing::error!(event = "notifications_off", problem),
    }
    let mut vaults = JoinSet::new();
    let vault = vault(&config, epoch, &ended, &mut vaults);
    let (in_force, applied) = watch::channel(Applied::default());
    let reporter = StatusReporter {
        config: Arc::clone(&config),
        context: context.clone(),
        reader: Arc::clone(&reader),
        notifier: notifier.clone(),
        applied,
    };
    parts.spawn(reporter.run(ended.clone()));
    let (validating, watched) = watch::channel(Validating::default());
    let (found, heads) = mpsc::channel(1);
    parts.spawn(Watcher { reader: Arc::clone(&reader), interval: config.interval, validating: watched, found }.run());
    let secrets = SecretCache::new(Arc::clone(&config.keyring), vault.clone());
    let driver = Driver {
        config,
        context,
        reader,
        notifier,
        secrets,
        in_force,
        stored: None,
        handed: 0,
        unopened: BTreeSet::new(),
        awaiting: Awaiting::default(),
        validating,
    };
    // A part that ends before its term takes the others with it: the source begins again from the checkpoint.
    let result = tokio::select! {
        result = driver.run(vault, heads, requests) => result,
        Some(part) = parts.join_next() => {
            if let Err(error) = part {
                tracing::error!(event = "source_part_broke", %error, "a part of the Git source broke, please report it");
            }
            Err(Error::Stopped)
        }
    };
    // Threads that wait for git end as soon as it has ended.
    over.store(true, Ordering::Relaxed);
    ended.cancel();
    // Whoever leads next reads leases of its own: workers go on with these until then, so they are not revoked.
    if epoch == Epoch(0) {
        while vaults.join_next().await.is_some() {}
    }
    while parts.join_next().await.is_some() {}
    result
}

struct Driver {
    config: Arc<GitConfig>,
    context: Context,
    reader: Arc<RegistryReader>,
    notifier: NotifierHandle,
    secrets: SecretCache,
    in_force: watch::Sender<Applied>,
    /// The checkpoint as it was read or written last.
    stored: Option<Progress>,
    /// The number of the credentials that were handed over last.
    handed: u64,
    /// The problems of secrets that people were told.
    unopened: BTreeSet<(WorkerId, String)>,
    awaiting: Awaiting,
    validating: watch::Sender<Validating>,
}

/// The result of an effect, or of a part of one.
enum Completion {
    Restored(Oid, Result<Box<(RestoredCommit, OpenedSecrets)>, FollowError>),
    Polled(Result<Oid, FollowError>),
    Validated(Oid, Box<Validation>),
    Revalidated(Result<Box<(CommitInfo, Desired)>, FollowError>),
    /// The secrets of a commit that is to be declared.
    Opened(Oid, OpenedSecrets),
    Applied(Oid, Result<Reconciled, Error>),
    /// The secrets of the last good commit with what Vault gave since.
    Vault(OpenedSecrets),
    /// The same files, with keys that were asked again.
    Keys(OpenedSecrets),
    /// Credentials that could not be handed over.
    Unhanded(OpenedSecrets),
}

impl Driver {
    async fn run(
        mut self,
        vault: Option<vault::Handle>,
        mut heads: mpsc::Receiver<HeadReport>,
        mut requests: Requests,
    ) -> Result<(), Error> {
        let shutdown = self.context.shutdown().clone();
        self.stored = self.remembered().await?;
        let stop = self.stored.as_ref().and_then(Progress::stop);
        let applied = self.stored.as_ref().and_then(|stored| Oid::parse(&stored.applied));
        self.open();
        let (seed, now) = (rand::random(), self.context.now());
        let (mut brain, effects) = Brain::new(self.config.interval, applied, stop, requests.is_paused(), seed, now);
        let mut work = JoinSet::new();
        for event in self.carry_out(effects, &brain, &mut work).await? {
            self.step(event, &mut brain, &mut work).await?;
        }
        let mut found = vault.map(|vault| vault.found());
        // One at a time: what Vault said later must not be taken in before what it said earlier.
        let mut finding = false;
        loop {
            let now = self.context.now();
            self.show(&brain);
            self.watch(&brain, false);
            let due = brain.wake_at().map(|at| tokio::time::sleep(at.since(now)));
            let event = tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                Some(done) = work.join_next() => match done {
                    Ok(done) => {
                        finding &= !matches!(done, Completion::Vault(_));
                        self.done(done, &mut brain, &mut work).await?;
                        None
                    }
                    Err(error) => {
                        tracing::error!(event = "source_part_broke", %error, "a part of the Git source broke, please report it");
                        return Err(Error::Stopped);
                    }
                },
                request = requests.next() => {
                    self.watch(&brain, true);
                    Some(match request {
                        Request::Sync => Event::Sync,
                        Request::Webhook => Event::Webhook,
                        Request::Pause => Event::Pause,
                        Request::Resume => Event::Resume,
                    })
                }
                Some(head) = heads.recv() => Some(Event::HeadRead(head)),
                () = changed(&mut found), if !finding => {
                    let (secrets, now) = (self.secrets.clone(), self.context.now());
                    let found = found.as_mut().map(|found| Arc::clone(&found.borrow_and_update()));
                    if let Some(found) = found {
                        finding = true;
                        self.show_vault(&found);
                        work.spawn_blocking(move || Completion::Vault(secrets.found(&found, now)));
                    }
                    None
                }
                () = optional(due) => Some(Event::Tick),
            };
            if let Some(event) = event {
                self.step(event, &mut brain, &mut work).await?;
            }
        }
    }

    /// Hands an event to the brain, and carries out the effects.
    async fn step(&mut self, event: Event, brain: &mut Brain, work: &mut JoinSet<Completion>) -> Result<(), Error> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let effects = brain.on(event, self.context.now());
            events.extend(self.carry_out(effects, brain, work).await?);
        }
        Ok(())
    }

    /// Tells the watcher which commit is being validated, and of a webhook or a person's request.
    fn watch(&self, brain: &Brain, heard: bool) {
        self.validating.send_if_modified(|validating| {
            let before = validating.clone();
            (validating.checking, validating.applied) = (brain.checking().cloned(), brain.applied().cloned());
            validating.heard += u64::from(heard);
            *validating != before
        });
    }

    /// Shows the checkpoint, and begins to check webhooks.
    fn open(&self) {
        let (secret, metrics) = (self.config.webhook_secret.clone(), self.config.metrics.clone());
        self.context.set_webhook(Arc::new(WebhookCheck { secret, metrics }));
        let stored = self.stored.as_ref();
        self.context.update_status(|status| {
            status.location = self.config.remote.shown();
            status.set_detail("branch", self.config.branch.clone());
            if let Some(stored) = stored {
                (status.revision, status.applied_at) = (Some(stored.applied.clone()), Some(Time(stored.at)));
            }
        });
        let applied = stored.map(|stored| stored.applied.clone());
        self.in_force.send_modify(|in_force| in_force.applied = applied);
    }

    /// Carries out effects; gives the events that follow at once.
    async fn carry_out(
        &mut self,
        effects: Vec<Effect>,
        brain: &Brain,
        work: &mut JoinSet<Completion>,
    ) -> Result<Vec<Event>, Error> {
        let mut events = Vec::new();
        for effect in effects {
            let (reader, secrets, now) = (Arc::clone(&self.reader), self.secrets.clone(), self.context.now());
            match effect {
                Effect::PollTip => drop(work.spawn_blocking(move || Completion::Polled(reader.poll_tip()))),
                Effect::Restore(commit) => drop(work.spawn_blocking(move || {
                    let restored = reader.restore(&commit);
                    let restored = restored.map(|restored| {
                        let opened = secrets.files(restored.secrets.clone(), now);
                        Box::new((restored, opened))
                    });
                    Completion::Restored(commit, restored)
                })),
                Effect::Revalidate(commit) => {
                    drop(work.spawn_blocking(move || Completion::Revalidated(reader.revalidate(&commit).map(Box::new))))
                }
                Effect::Validate(commit) => {
                    self.detected(&commit, brain);
                    let (base, applied) = (brain.examined().cloned(), brain.applied().cloned());
                    work.spawn_blocking(move || {
                        let validation = reader.validate_commit(&commit, base.as_ref(), applied.as_ref());
                        Completion::Validated(commit, Box::new(validation))
                    });
                }
                Effect::Apply(commit) => {
                    let files = brain.candidate().map(|candidate| files(&candidate.desired)).unwrap_or_default();
                    work.spawn_blocking(move || Completion::Opened(commit, secrets.files(files, now)));
                }
                Effect::Disable(info, ids) => events.extend(self.disable(&info, &ids, brain).await?),
                Effect::Settled => tracing::debug!(event = "registry_settled"),
            }
        }
        Ok(events)
    }

    fn detected(&self, commit: &Oid, brain: &Brain) {
        // What is in force has its mark: nothing would take this one away.
        if brain.applied() != Some(commit) {
            self.notifier.send(Command::Mark {
                sha: commit.to_string(),
                mark: Mark::Pending,
                words: "validating".to_owned(),
            });
        }
    }

    fn declare(&self, commit: Oid, brain: &Brain, work: &mut JoinSet<Completion>) {
        let (context, candidate) = (self.context.clone(), brain.candidate().cloned());
        let stopped = brain.stop_beside(&commit).map(|stop| stop.ids.clone()).unwrap_or_default();
        work.spawn(async move {
            let declared = match candidate.filter(|candidate| candidate.info.oid == commit) {
                Some(Candidate { desired, .. }) => {
                    let (snapshot, problems) = snapshot::snapshot(&desired, &stopped);
                    let done = context.apply(&snapshot).await;
                    done.map(|mut done| {
                        let unreadable = |message| Problem { deployment: None, reason: "NotApplied", message };
                        done.problems.extend(problems.into_iter().map(unreadable));
                        done
                    })
                }
                // The brain wants nothing declared that was not validated in this term: begin again from the checkpoint.
                None => Err(Error::Stopped),
            };
            Completion::Applied(commit, declared)
        });
    }

    /// Takes in the result of an effect.
    async fn done(&mut self, done: Completion, brain: &mut Brain, work: &mut JoinSet<Completion>) -> Result<(), Error> {
        let now = self.context.now();
        let event = match done {
            Completion::Vault(opened) | Completion::Unhanded(opened) => {
                self.hand_over(opened, work).await;
                return Ok(());
            }
            Completion::Keys(opened) => {
                self.awaiting.asking = false;
                self.hand_over(opened, work).await;
                return Ok(());
            }
            Completion::Polled(result) => {
                self.config.metrics.polled(if result.is_ok() { "ok" } else { "failed" });
                self.polled(&result, brain, now).await;
                Event::Polled(result)
            }
            Completion::Restored(commit, restored) => {
                let restored = self.restored(&commit, restored).await;
                self.ask_keys_again(work);
                Event::Restored(restored)
            }
            Completion::Revalidated(Ok(revalidated)) => {
                let (info, desired) = *revalidated;
                tracing::info!(event = "registry_renewed", commit_sha = %info.oid);
                Event::Revalidated(Ok(Box::new(Candidate { info, desired: Arc::new(desired) })))
            }
            Completion::Revalidated(Err(fault)) => {
                tracing::warn!(event = "registry_not_renewed", problem = fault.message);
                Event::Revalidated(Err(fault))
            }
            Completion::Validated(commit, validation) => {
                let verdict = self.verdict(&commit, *validation, brain, now).await;
                let (refused, own_only) = (matches!(verdict, Verdict::Refused(_)), verdict == Verdict::OwnOnly);
                let effects = brain.on(Event::Validated(verdict), now);
                if refused {
                    self.tell_refusal(&commit, brain).await;
                }
                if own_only {
                    self.mark_own_only(&commit, brain);
                }
                for event in self.carry_out(effects, brain, work).await? {
                    self.step(event, brain, work).await?;
                }
                return Ok(());
            }
            // Before anything is loaded with them.
            Completion::Opened(commit, opened) => match self.give(&opened).await {
                Ok(()) => {
                    self.ask_keys_again(work);
                    self.declare(commit, brain, work);
                    return Ok(());
                }
                Err(error) => Event::Applied(Err(not_applied(error)?)),
            },
            Completion::Applied(commit, Ok(declared)) => match self.applied(&commit, declared, brain, now).await {
                Ok(()) => Event::Applied(Ok(())),
                Err(error) => Event::Applied(Err(not_applied(error)?)),
            },
            Completion::Applied(_, Err(error)) => Event::Applied(Err(not_applied(error)?)),
        };
        self.step(event, brain, work).await
    }
}

/// The secret files of a commit: path and text.
fn files(desired: &Desired) -> Vec<(String, String)> {
    desired.secret_files.iter().map(|file| (file.path.clone(), file.text.to_string())).collect()
}

/// The reason to try again later; an error, where that would be of no use in this term.
fn not_applied(error: Error) -> Result<FollowError, Error> {
    if matches!(error, Error::Stopped | Error::Store(StoreError::Deposed)) {
        return Err(error);
    }
    tracing::warn!(event = "registry_not_applied", %error, "it is tried again");
    let passing = matches!(error.class(), Class::Waiting { .. } | Class::Internal | Class::TimedOut | Class::Conflict);
    Ok(FollowError { message: error.to_string(), passing })
}

/// Awaits the future, or for ever where there is none: for a branch of `select!`.
async fn optional<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Vault has something else to say.
async fn changed(found: &mut Option<watch::Receiver<Arc<vault::VaultSecrets>>>) {
    match found {
        Some(receiver) => {
            if receiver.changed().await.is_err() {
                *found = None;
            }
        }
        None => std::future::pending().await,
    }
}
