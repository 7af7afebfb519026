//! Runs the brain for a term: carries out what it wants on threads that may block, shows what it knows, remembers the last
//! good commit.

mod outcome;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use berth_git::{CommitInfo, Oid};
use berth_registry::{Desired, commit_status::Mark};
use berth_secrets::vault;
use berth_spec::{Class, Epoch, Origin, Time, UnknownWorkers};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::{
    GitConfig,
    brain::{Brain, Effect, Event, Fault, Standing},
    declare::{self, Declared},
    eyes::{Checked, Eyes, Restored},
    herald::{Herald, Teller, Word},
    safekeeping::{Kept, Safekeeping},
    scribe::{InForce, Scribe},
    tell::Refusal,
};
use crate::{
    Handle,
    handle::Error,
    source::{Hook, SourceView, Trigger},
    store::{Op, Txn, layout, source::StoredSource},
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
    let (teller, words) = Teller::new(config.metrics.clone());
    match Herald::new(Arc::clone(&config), handle.clone()) {
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
        examined: None,
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
    /// The last commit that was validated, or differs from it only in what controllers write.
    examined: Option<Oid>,
    refusal: Option<Refusal>,
}

/// What came of an effect.
enum Done {
    Restored(Oid, Result<Box<(Restored, Kept)>, Fault>),
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
                        Box::new((restored, kept))
                    });
                    Done::Restored(commit, restored)
                })),
                Effect::Check(commit) => {
                    self.detected(&commit);
                    let (base, applied) = (self.examined.clone(), brain.applied().cloned());
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
            Done::Restored(commit, Ok(restored)) => {
                let (restored, kept) = *restored;
                tracing::info!(event = "registry_restored", commit_sha = %commit, secrets = restored.secrets.len());
                self.keep(kept).await?;
                self.settings(restored.settings);
                self.about(&restored.info);
                self.examined = None;
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
