//! Looks at the fleet, writes back what it sees, and tells people of what is wrong and of its end.
//!
//! ```text
//! every few seconds: workers, deployments ──▶ Memory::observe ──▶ Observed ──▶ WriteBack ── take ──▶ Publisher (a thread)
//!                                                                   └── incidents: new, worse, over ──▶ Herald
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use berth_git::{GitError, Oid};
use berth_registry::{
    Desired, Settings,
    error_file::{Incident, IncidentKind, Subject, subject_of},
    settings::WriteBackMode,
    write_back::{Change, Found, Observed, WriteBack},
};
use berth_spec::{Epoch, Event, Time, event::Severity};
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    GitConfig, WriteBackTo,
    eyes::Eyes,
    herald::{Teller, Word},
    observe::{Memory, Sight},
    publish::{Publisher, Written},
    tell::{self, Refusal},
};
use crate::{
    Handle,
    handle::{Error, ListRequest, view::Known},
};

/// How often the fleet is looked at. Halved, it costs twice the questions; doubled, people hear of a failure that much later.
const LOOK: Duration = Duration::from_secs(2);

/// A look may take this part of the time: with 100,000 deployments it takes long, and is then taken less often.
const SHARE: u32 = 20;

/// How long one write may take.
const WRITE: Duration = Duration::from_secs(2 * 60);

/// What the source knows and the scribe writes along.
#[derive(Debug, Clone, Default)]
pub(super) struct InForce {
    pub(super) settings: Settings,
    pub(super) applied: Option<String>,
    pub(super) desired: Option<Arc<Desired>>,
    pub(super) refusal: Option<Refusal>,
    /// Counts what makes the branch worth reading again.
    pub(super) touched: u64,
}

/// Looks and writes.
pub(super) struct Scribe {
    pub(super) config: Arc<GitConfig>,
    pub(super) handle: Handle,
    pub(super) eyes: Arc<Eyes>,
    pub(super) teller: Teller,
    pub(super) epoch: Epoch,
    pub(super) in_force: watch::Receiver<InForce>,
}

/// What runs on a thread.
enum Done {
    Read(Result<(Found, Option<Oid>), GitError>),
    Wrote(Change, Result<Written, GitError>),
}

struct Desk {
    brain: WriteBack,
    memory: Memory,
    work: JoinSet<Done>,
    /// The tip that the brain knows.
    tip: Option<Oid>,
    /// Where it writes now.
    place: WriteBackTo,
    /// What people were told of.
    told: BTreeMap<Subject, Incident>,
    /// What the leader before has told of.
    known: BTreeSet<Subject>,
    /// Reading the branch has succeeded, failed, or is not to be.
    settled: bool,
    overtaken: bool,
    read_at: Time,
    touched: u64,
}

impl Scribe {
    pub(super) async fn run(mut self, shutdown: CancellationToken) {
        let place = self.place();
        let interval = self.in_force.borrow().settings.write_back.interval();
        let mut desk = Desk {
            brain: WriteBack::new(interval),
            memory: Memory::default(),
            work: JoinSet::new(),
            tip: None,
            settled: place == WriteBackTo::Off,
            place,
            told: BTreeMap::new(),
            known: BTreeSet::new(),
            overtaken: false,
            read_at: Time::ZERO,
            touched: 0,
        };
        let mut pause = LOOK;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                Some(done) = desk.work.join_next() => {
                    if let Ok(done) = done {
                        self.done(&mut desk, done).await;
                    }
                    continue;
                }
                () = tokio::time::sleep(pause) => {}
            }
            let began = tokio::time::Instant::now();
            match self.look(&mut desk).await {
                Ok(()) => {}
                Err(Error::Stopped) => return,
                Err(error) => tracing::debug!(event = "fleet_not_seen", %error),
            }
            pause = LOOK.max(began.elapsed() * SHARE);
        }
    }

    /// Where it is to be written.
    fn place(&self) -> WriteBackTo {
        if let Some(place) = &self.config.write_back {
            return place.clone();
        }
        let settings = &self.in_force.borrow().settings.write_back;
        match settings.mode {
            WriteBackMode::Branch if settings.branch == self.config.branch => WriteBackTo::Followed,
            WriteBackMode::Branch => WriteBackTo::Branch(settings.branch.clone()),
            WriteBackMode::Commit => WriteBackTo::Followed,
            WriteBackMode::Off => WriteBackTo::Off,
        }
    }

    async fn look(&mut self, desk: &mut Desk) -> Result<(), Error> {
        // Before the first plan everything looks lost.
        if !self.handle.readiness().borrow().planned {
            return Ok(());
        }
        let in_force = self.in_force.borrow_and_update().clone();
        desk.brain.set_interval(in_force.settings.write_back.interval());
        self.turn(desk, &in_force);
        let (workers, deployments) = (self.handle.workers().await?, everything(&self.handle).await?);
        let secrets = self.handle.board.secrets();
        let sight = Sight {
            workers: &workers,
            deployments: &deployments,
            secrets: &secrets,
            refusal: in_force.refusal.as_ref(),
            applied: in_force.applied.as_deref(),
        };
        let now = self.handle.now();
        let observed = desk.memory.observe(&sight, now);
        if desk.settled {
            self.tell(desk, &observed, &in_force, now).await?;
        }
        if desk.place == WriteBackTo::Off || desk.overtaken {
            return Ok(());
        }
        desk.brain.observed(observed, now);
        if desk.work.is_empty() {
            self.write(desk, now);
        }
        Ok(())
    }

    /// Takes in that it is to be written elsewhere, or that somebody has touched what we wrote.
    fn turn(&self, desk: &mut Desk, in_force: &InForce) {
        let place = self.place();
        if place != desk.place {
            desk.brain.forget_branch();
            (desk.tip, desk.settled) = (None, place == WriteBackTo::Off);
            desk.place = place;
        }
        if in_force.touched != desk.touched {
            desk.touched = in_force.touched;
            desk.brain.forget_branch();
            desk.read_at = Time::ZERO;
        }
        let words = match &desk.place {
            WriteBackTo::Off => String::new(),
            place => place.to_string(),
        };
        self.handle.board.update(|view| view.write_back = words);
    }

    fn write(&self, desk: &mut Desk, now: Time) {
        if desk.brain.wants_branch() {
            if now >= desk.read_at {
                let (eyes, writing) = (Arc::clone(&self.eyes), self.writing(&desk.place));
                desk.work.spawn_blocking(move || {
                    let stop = eyes.stop(WRITE);
                    Done::Read(eyes.mirror(&stop).and_then(|mirror| writing(mirror).read(&stop)))
                });
            }
            return;
        }
        let Some(change) = desk.brain.take(now) else { return };
        let (eyes, writing, known) = (Arc::clone(&self.eyes), self.writing(&desk.place), desk.tip.clone());
        let seconds = i64::try_from(now.as_millis() / 1_000).unwrap_or(i64::MAX);
        desk.work.spawn_blocking(move || {
            let stop = eyes.stop(WRITE);
            let written =
                eyes.mirror(&stop).and_then(|mirror| writing(mirror).write(&change, known.as_ref(), seconds, &stop));
            Done::Wrote(change, written)
        });
    }

    fn writing(&self, place: &WriteBackTo) -> impl FnOnce(Arc<berth_git::Mirror>) -> Publisher + Send + 'static {
        let (config, epoch) = (Arc::clone(&self.config), self.epoch);
        let (branch, shared) = match place {
            WriteBackTo::Branch(branch) => (branch.clone(), false),
            WriteBackTo::Followed | WriteBackTo::Off => (config.branch.clone(), true),
        };
        move |mirror| Publisher {
            mirror,
            branch,
            shared,
            credentials: config.credentials_for(&config.remote),
            identity: config.identity.clone(),
            signing: config.signing.clone(),
            writer: config.cluster.clone(),
            epoch,
        }
    }

    async fn done(&self, desk: &mut Desk, done: Done) {
        let now = self.handle.now();
        match done {
            Done::Read(Ok((found, tip))) => {
                if !desk.settled {
                    desk.known = found.errors.iter().filter_map(|(_, text)| subject_of(text)).collect();
                }
                (desk.tip, desk.settled) = (tip, true);
                desk.brain.found(found, now);
            }
            Done::Read(Err(error)) => {
                // People are told all the same.
                desk.settled = true;
                desk.read_at = now + LOOK * 5;
                self.trouble("read", &error);
            }
            Done::Wrote(change, Ok(Written::Commit { tip, overwritten })) => {
                self.config.metrics.wrote("commit");
                tracing::info!(event = "actual_state_written", commit_sha = %tip, files = change.edits.len(), message = change.message);
                self.handle.board.update(|view| {
                    (view.written, view.write_problem) = (Some(tip.to_string()), None);
                });
                desk.tip = Some(tip);
                desk.brain.done(&change, now);
                if !overwritten.is_empty() {
                    // There may be more of it that this change did not touch.
                    desk.brain.forget_branch();
                    self.overwritten(&overwritten).await;
                }
            }
            Done::Wrote(change, Ok(Written::Unchanged)) => {
                self.config.metrics.wrote("unchanged");
                desk.brain.done(&change, now);
            }
            Done::Wrote(_, Ok(Written::Overtaken)) => {
                self.config.metrics.wrote("overtaken");
                desk.overtaken = true;
                tracing::warn!(event = "write_back_overtaken", epoch = %self.epoch, "a later leader has written: this one writes nothing more");
            }
            Done::Wrote(_, Err(error)) => {
                self.config.metrics.wrote("failed");
                desk.brain.failed(now);
                self.trouble("write", &error);
            }
        }
    }

    fn trouble(&self, doing: &'static str, error: &GitError) {
        tracing::warn!(event = "write_back_failed", doing, %error, "it is tried again");
        let message = error.to_string();
        self.handle.board.update(|view| view.write_problem = Some(message));
    }

    async fn overwritten(&self, paths: &[String]) {
        let message =
            format!("only controllers write these files, and somebody else had changed them: {}", paths.join(", "));
        tracing::warn!(event = "write_back_overwrote", message);
        let event = Event {
            at: self.handle.now(),
            severity: Severity::Warning,
            reason: "ActualStateOverwritten",
            message,
            deployment: None,
            worker: None,
        };
        if let Err(error) = self.handle.note(event).await {
            tracing::debug!(event = "event_not_kept", %error);
        }
    }

    /// Tells people of what is new, worse or over.
    async fn tell(&self, desk: &mut Desk, observed: &Observed, in_force: &InForce, now: Time) -> Result<(), Error> {
        let owners = |incident: &Incident| {
            let deployment = incident.subject.deployment.as_ref();
            let found = deployment.and_then(|id| in_force.desired.as_ref()?.deployment(id));
            found.map(|found| vec![found.card.metadata.owner.clone()]).unwrap_or_default()
        };
        let audience = in_force.refusal.as_ref().map(|refusal| refusal.audience.clone()).unwrap_or_default();
        let audience = |incident: &Incident| match incident.subject.kind {
            IncidentKind::ValidationError => audience.clone(),
            _ => BTreeSet::new(),
        };
        for incident in &observed.incidents {
            let before = desk.told.get(&incident.subject);
            let is_known = before.is_none() && desk.known.contains(&incident.subject);
            if !is_known && before.is_none_or(|before| before.severity < incident.severity) {
                let notice = tell::notice(incident, owners(incident), &audience(incident), false, now);
                self.teller.say(Word::Notice(Box::new(notice)));
            }
            desk.told.insert(incident.subject.clone(), incident.clone());
        }
        let still: BTreeSet<&Subject> = observed.incidents.iter().map(|incident| &incident.subject).collect();
        let over: Vec<Incident> =
            desk.told.values().filter(|incident| !still.contains(&incident.subject)).cloned().collect();
        for incident in over {
            desk.told.remove(&incident.subject);
            let notice = tell::notice(&incident, owners(&incident), &audience(&incident), true, now);
            self.teller.say(Word::Notice(Box::new(notice)));
        }
        Ok(())
    }
}

/// Every deployment with its status.
async fn everything(handle: &Handle) -> Result<Vec<Known>, Error> {
    let mut all = Vec::new();
    let mut request = ListRequest::default();
    loop {
        let page = handle.page(request).await?;
        all.extend(page.items);
        match page.next {
            Some(after) => request = ListRequest { after: Some(after), ..ListRequest::default() },
            None => return Ok(all),
        }
    }
}
