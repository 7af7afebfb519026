//! Runs the brain for a term: carries out what it wants on threads that may block, shows what it knows, remembers the last
//! good commit. What breaks in the midst of a term begins again from what the store remembers.

mod changes;
mod credentials;
mod outcome;
mod remembered;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use berth_git::{CommitInfo, Oid};
use berth_registry::{Desired, commit_status::Mark};
use berth_secrets::vault;
use berth_spec::{Class, Epoch, Origin, Time, WorkerId};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use self::credentials::{Awaiting, vault};
pub use self::remembered::forget;
use super::{
    GitConfig,
    brain::{Brain, Effect, Event, Fault, Standing},
    declare::{self, Declared},
    eyes::{Checked, Eyes, Restored},
    halt::{Attention, Glance, Halt, Lookout},
    herald::{Herald, Teller, Word},
    safekeeping::{Kept, Safekeeping},
    scribe::{InForce, Scribe},
    tell::Refusal,
};
use crate::{
    Handle,
    handle::Error,
    source::{Hook, SourceView, Trigger, Triggers},
    store::{StoreError, source::StoredSource},
};

/// How long after the source broke it begins again, and after credentials could not be handed over they are once more.
/// Halved, a store that is away is asked twice as often; doubled, nothing is followed for that much longer.
const BEGIN_AGAIN: Duration = Duration::from_secs(5);

/// Runs the source for a term.
pub(super) async fn run(
    config: Arc<GitConfig>,
    handle: Handle,
    epoch: Epoch,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    loop {
        let error = match follow(Arc::clone(&config), handle.clone(), epoch, &shutdown).await {
            Ok(()) => return Ok(()),
            Err(_) if shutdown.is_cancelled() => return Ok(()),
            Err(error) => error,
        };
        if handle.is_stopped() || matches!(error, Error::Store(StoreError::Deposed)) {
            return Err(error);
        }
        tracing::error!(event = "source_broke", %error, "the registry is not followed: it begins again");
        let waited = shutdown.run_until_cancelled(tokio::time::sleep(BEGIN_AGAIN)).await;
        if waited.is_none() {
            return Ok(());
        }
    }
}

/// Follows it until the end, or until something breaks that the loop itself cannot make good.
async fn follow(
    config: Arc<GitConfig>,
    handle: Handle,
    epoch: Epoch,
    shutdown: &CancellationToken,
) -> Result<(), Error> {
    let over = Arc::new(AtomicBool::new(false));
    let ended = CancellationToken::new();
    let mut parts = JoinSet::new();
    let eyes = Arc::new(Eyes::new(Arc::clone(&config), Arc::clone(&over)));
    let (teller, ear) = Teller::new(config.metrics.clone());
    match Herald::new(Arc::clone(&config), handle.clone()) {
        Ok(herald) => drop(parts.spawn(herald.run(ear, ended.clone()))),
        Err(problem) => tracing::error!(event = "notifications_off", problem),
    }
    let mut vaults = JoinSet::new();
    let vault = vault(&config, epoch, &ended, &mut vaults);
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
    let (attention, watched) = watch::channel(Attention::default());
    let (found, glances) = mpsc::channel(1);
    parts.spawn(Lookout { eyes: Arc::clone(&eyes), interval: config.interval, attention: watched, found }.run());
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
        handed: 0,
        unopened: BTreeSet::new(),
        awaiting: Awaiting::default(),
        halt: None,
        stale: false,
        attention,
    };
    let result = driver.run(vault, glances, shutdown).await;
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
    /// The number of the credentials that were handed over last.
    handed: u64,
    /// What could not be opened, as people were told.
    unopened: BTreeSet<(WorkerId, String)>,
    awaiting: Awaiting,
    /// What is disabled by a commit that is not in force.
    halt: Option<Halt>,
    /// What is declared is not what is in force any more.
    stale: bool,
    attention: watch::Sender<Attention>,
}

/// What came of an effect, or of a part of one.
enum Done {
    Restored(Oid, Result<Box<(Restored, Kept)>, Fault>),
    Looked(Result<Oid, Fault>),
    Checked(Oid, Box<Checked>),
    Renewed(Result<Box<(CommitInfo, Desired)>, Fault>),
    /// The secrets of a commit that is to be declared.
    Opened(Oid, Kept),
    Applied(Oid, Result<Declared, Error>),
    /// What Vault gave.
    Vault(Kept),
    /// The same files, with keys that were asked again.
    Keys(Kept),
    /// What could not be handed over.
    Unhanded(Kept),
}

impl Driver {
    async fn run(
        mut self,
        vault: Option<vault::Handle>,
        mut glances: mpsc::Receiver<Glance>,
        shutdown: &CancellationToken,
    ) -> Result<(), Error> {
        let stored = self.remembered().await?;
        let applied = stored.as_ref().and_then(|stored| Oid::parse(&stored.applied));
        let mut triggers = self.open(stored.as_ref());
        let (mut brain, effects) = Brain::new(self.config.interval, applied, rand::random(), self.handle.now());
        let mut work = JoinSet::new();
        self.carry_out(effects, &brain, &mut work).await?;
        let mut found = vault.map(|vault| vault.found());
        // One at a time: what Vault said later must not be taken in before what it said earlier.
        let mut finding = false;
        loop {
            let now = self.handle.now();
            self.show(&brain);
            self.attend(&brain, false);
            let due = brain.wake_at().map(|at| tokio::time::sleep(at.since(now)));
            let event = tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                Some(done) = work.join_next() => match done {
                    Ok(done) => {
                        finding &= !matches!(done, Done::Vault(_));
                        self.done(done, &brain, &mut work).await?
                    }
                    Err(error) => {
                        tracing::error!(event = "source_part_broke", %error, "a part of the Git source broke, please report it");
                        return Err(Error::Stopped);
                    }
                },
                trigger = triggers.next() => {
                    self.attend(&brain, true);
                    Some(match trigger {
                        Trigger::Sync => Event::Asked,
                        Trigger::Webhook => Event::Nudged,
                    })
                }
                Some(Glance { info, behind, idle }) = glances.recv() => {
                    // Else it comes late: what is newest is asked for anyway.
                    if brain.checking() == Some(&behind) {
                        self.halt(&info, idle, Some(behind), &brain).await?;
                    }
                    None
                }
                () = changed(&mut found), if !finding => {
                    let (safe, now) = (self.safe.clone(), self.handle.now());
                    let found = found.as_mut().map(|found| Arc::clone(&found.borrow_and_update()));
                    if let Some(found) = found {
                        finding = true;
                        self.show_vault(&found);
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
            if std::mem::take(&mut self.stale) {
                let effects = brain.on(Event::Stale, self.handle.now());
                self.carry_out(effects, &brain, &mut work).await?;
            }
        }
    }

    /// Says what is being validated, and whether there was word of something new.
    fn attend(&self, brain: &Brain, heard: bool) {
        self.attention.send_if_modified(|attention| {
            let before = attention.clone();
            (attention.checking, attention.applied) = (brain.checking().cloned(), brain.applied().cloned());
            attention.heard += u64::from(heard);
            *attention != before
        });
    }

    fn open(&self, stored: Option<&StoredSource>) -> Triggers {
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
                        let kept = safe.files(restored.secrets.clone(), now);
                        Box::new((restored, kept))
                    });
                    Done::Restored(commit, restored)
                })),
                Effect::Renew(commit) => {
                    drop(work.spawn_blocking(move || Done::Renewed(eyes.renew(&commit).map(Box::new))))
                }
                Effect::Check(commit) => {
                    self.detected(&commit, brain);
                    let (base, applied) = (self.examined.clone(), brain.applied().cloned());
                    work.spawn_blocking(move || {
                        let checked = eyes.check(&commit, base.as_ref(), applied.as_ref());
                        Done::Checked(commit, Box::new(checked))
                    });
                }
                Effect::Apply(commit) => {
                    let files = self.desired.as_ref().map(|(_, desired)| files(desired)).unwrap_or_default();
                    work.spawn_blocking(move || Done::Opened(commit, safe.files(files, now)));
                }
                Effect::Settled => self.settled(),
            }
        }
        Ok(())
    }

    fn detected(&self, commit: &Oid, brain: &Brain) {
        // What is in force has its mark: nothing would take this one away.
        if brain.applied() != Some(commit) {
            self.teller.say(Word::Mark {
                sha: commit.to_string(),
                mark: Mark::Pending,
                words: "validating".to_owned(),
            });
        }
    }

    fn declare(&self, commit: Oid, work: &mut JoinSet<Done>) {
        let (handle, desired) = (self.handle.clone(), self.desired.clone());
        let (origin, formerly) = (self.config.origin(), self.formerly.clone());
        let halted = self.halt.as_ref().filter(|halt| halt.commit != commit);
        let halted = halted.map(|halt| halt.ids.clone()).unwrap_or_default();
        work.spawn(async move {
            let declared = match desired.filter(|(info, _)| info.oid == commit) {
                Some((_, desired)) => declare::declare(&handle, &desired, &origin, formerly.as_ref(), &halted).await,
                // The brain wants nothing declared that was not validated in this term: begin again from what is stored.
                None => Err(Error::Stopped),
            };
            Done::Applied(commit, declared)
        });
    }

    async fn done(&mut self, done: Done, brain: &Brain, work: &mut JoinSet<Done>) -> Result<Option<Event>, Error> {
        let now = self.handle.now();
        Ok(Some(match done {
            Done::Vault(kept) | Done::Unhanded(kept) => {
                self.hand_over(kept, work).await;
                return Ok(None);
            }
            Done::Keys(kept) => {
                self.awaiting.asking = false;
                self.hand_over(kept, work).await;
                return Ok(None);
            }
            Done::Looked(result) => {
                self.config.metrics.polled(if result.is_ok() { "ok" } else { "failed" });
                self.looked(&result, brain, now).await;
                Event::Looked(result)
            }
            Done::Restored(commit, restored) => {
                let restored = self.restored(&commit, restored).await;
                self.ask_keys_again(work);
                Event::Restored(restored)
            }
            Done::Renewed(Ok(renewed)) => {
                let (info, desired) = *renewed;
                tracing::info!(event = "registry_renewed", commit_sha = %info.oid);
                self.desired = Some((info, Arc::new(desired)));
                Event::Renewed(Ok(()))
            }
            Done::Renewed(Err(fault)) => {
                tracing::warn!(event = "registry_not_renewed", problem = fault.message);
                Event::Renewed(Err(fault))
            }
            Done::Checked(commit, checked) => Event::Checked(self.checked(&commit, *checked, brain, now).await),
            // Before anything is loaded with them.
            Done::Opened(commit, kept) => match self.keep(&kept).await {
                Ok(()) => {
                    self.ask_keys_again(work);
                    self.declare(commit, work);
                    return Ok(None);
                }
                Err(error) => Event::Applied(Err(not_applied(error)?)),
            },
            Done::Applied(commit, Ok(declared)) => match self.applied(&commit, declared, brain, now).await {
                Ok(()) => Event::Applied(Ok(())),
                Err(error) => Event::Applied(Err(not_applied(error)?)),
            },
            Done::Applied(_, Err(error)) => Event::Applied(Err(not_applied(error)?)),
        }))
    }
}

/// The secret files of a commit: path and text.
fn files(desired: &Desired) -> Vec<(String, String)> {
    desired.secret_files.iter().map(|file| (file.path.clone(), file.text.to_string())).collect()
}

/// What is tried again later; an error, where that would be of no use in this term.
fn not_applied(error: Error) -> Result<Fault, Error> {
    if matches!(error, Error::Stopped | Error::Store(StoreError::Deposed)) {
        return Err(error);
    }
    tracing::warn!(event = "registry_not_applied", %error, "it is tried again");
    let passing = matches!(error.class(), Class::Waiting { .. } | Class::Internal | Class::TimedOut | Class::Conflict);
    Ok(Fault { message: error.to_string(), passing })
}

/// The future, or for ever.
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
