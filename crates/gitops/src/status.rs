//! Observes the fleet, writes the actual state back, and tells people of incidents and of their end.
//!
//! ```text
//! every few seconds: workers, deployments ──▶ IncidentTracker::observe ──▶ Observed ──▶ WriteBack ── take ──▶ Publisher (a thread)
//!                                                                   └── incidents ──▶ AlertLog ── new, worse, over ──▶ Notifier
//! ```
//! The alerts are in the checkpoint, and the actual state is on the branch: the next leader goes on from there.

pub(crate) mod alert_log;
pub(crate) mod incident;
mod notice;
mod observe;
mod outcome;
mod publish;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use berth_control::{
    controller::AbsentWorker,
    handle::{Error, KnownDeployment, ListRequest},
    source::{Context, SourceState},
};
use berth_git::{GitError, Oid};
use berth_registry::{
    Audience, Desired, Settings,
    error_file::{Incident, IncidentKind},
    settings::WriteBackMode,
    write_back::{BranchContents, Change, Observed, WriteBack},
};
use berth_spec::Time;
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

use self::{
    alert_log::{AlertLog, Transition},
    notice::notice,
    observe::{FleetSnapshot, IncidentTracker},
    publish::{MOST_COMMITS, Publisher, Written},
};
use crate::{
    GitConfig, WriteBackTo,
    follow::RegistryReader,
    notify::{Command, NotifierHandle},
    refusal::Refusal,
};

/// The interval of looks at the fleet: people hear of a failure within it.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// A look may take this part of the time: with 100,000 deployments it takes long, and is then taken less often.
const SHARE: u32 = 20;

/// Longest interval of looks. A look that waited for a busy controller took no processor, and people still want to hear.
const RAREST_LOOK: Duration = Duration::from_secs(30);

/// The slot of the checkpoint with the alerts.
const NOTIFIED: &str = "notified";

/// The time limit of one write: a push to a slow host takes seconds, and a host that hangs is given up before people
/// wonder.
const WRITE: Duration = Duration::from_secs(2 * 60);

/// The pause before the store is asked who leads, after a later term was found on the branch. The leader then knows that the
/// later term is of a store that is no more.
const LEADER_CHECK_DELAY: Duration = Duration::from_secs(60);

/// The commit in force, for the reporter.
#[derive(Debug, Clone, Default)]
pub(crate) struct Applied {
    pub(crate) settings: Settings,
    pub(crate) applied: Option<String>,
    pub(crate) desired: Option<Arc<Desired>>,
    pub(crate) refusal: Option<Refusal>,
    /// The settings say whom to tell. Before that nobody would hear a message.
    pub(crate) addressed: bool,
    /// Counts reasons to read the branch again.
    pub(crate) touched: u64,
}

/// Reports the status of the fleet.
pub(crate) struct StatusReporter {
    pub(crate) config: Arc<GitConfig>,
    pub(crate) context: Context,
    pub(crate) reader: Arc<RegistryReader>,
    pub(crate) notifier: NotifierHandle,
    pub(crate) applied: watch::Receiver<Applied>,
}

/// The result of a call on a thread.
pub(crate) enum Done {
    Read(Result<(BranchContents, Option<Oid>), GitError>),
    Wrote(Change, Result<Written, GitError>),
}

pub(crate) struct ReporterState {
    brain: WriteBack,
    incidents: IncidentTracker,
    /// Calls on threads, each with the number of the turn that it began in.
    work: JoinSet<(u64, Done)>,
    /// Counts how often the branch was given up: what is under way from before is of no use.
    turns: u64,
    /// The tip that the brain knows.
    tip: Option<Oid>,
    /// The destination of the actual state.
    place: WriteBackTo,
    alerts: AlertLog,
    /// The stored alerts were read.
    recalled: bool,
    /// Reading the branch has succeeded, failed, or is not to be.
    settled: bool,
    /// True while the files that controllers before have written are not known yet.
    inherits: bool,
    /// The later term that has written, and since when that is known.
    overtaken: Option<(u64, Time)>,
    /// Terms up to this one are of another store.
    passed: u64,
    /// When the branch may be squashed again.
    squash_at: Time,
    /// When the branch is read next, though nothing asks for it.
    read_at: Time,
    /// Failures to read it or to write to it, in a row.
    failures: u32,
    touched: u64,
}

impl ReporterState {
    /// Forgets the branch: it is not as it is known any more.
    fn give_up_branch(&mut self) {
        self.brain.forget_branch();
        (self.turns, self.read_at) = (self.turns + 1, Time::ZERO);
    }
}

impl StatusReporter {
    /// Runs until `shutdown`, or until the control plane has stopped.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let place = self.place();
        let interval = self.applied.borrow().settings.write_back.interval();
        let mut state = ReporterState {
            brain: WriteBack::new(interval),
            incidents: IncidentTracker::default(),
            work: JoinSet::new(),
            turns: 0,
            tip: None,
            settled: place == WriteBackTo::Off,
            inherits: true,
            place,
            alerts: AlertLog::default(),
            recalled: false,
            overtaken: None,
            passed: 0,
            squash_at: Time::ZERO,
            read_at: Time::ZERO,
            failures: 0,
            touched: 0,
        };
        let mut pause = POLL_INTERVAL;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return self.finish(state).await,
                Some(done) = state.work.join_next() => {
                    match done {
                        Ok((turn, done)) => self.done(&mut state, turn, done).await,
                        Err(error) => {
                            tracing::error!(event = "source_part_broke", %error, "writing the actual state broke, please report it");
                            state.brain.failed(self.context.now());
                        }
                    }
                    continue;
                }
                () = tokio::time::sleep(pause) => {}
            }
            let began = tokio::time::Instant::now();
            pause = match self.look(&mut state).await {
                Ok(()) => (began.elapsed() * SHARE).clamp(POLL_INTERVAL, RAREST_LOOK),
                Err(Error::Stopped) => return,
                Err(error) => {
                    tracing::debug!(event = "fleet_not_seen", %error);
                    POLL_INTERVAL
                }
            };
        }
    }

    /// The term is over: what has arrived in its last moment need not be told again.
    async fn finish(mut self, mut state: ReporterState) {
        /// The time by which an unreachable store may delay the next leader: a store that is there takes milliseconds.
        const LAST_WRITE: Duration = Duration::from_secs(1);
        self.notifier.ended().await;
        if !state.recalled {
            return;
        }
        state.alerts.arrived(&self.notifier.progress());
        let kept = tokio::time::timeout(LAST_WRITE, self.keep(&mut state)).await;
        if !matches!(kept, Ok(Ok(()))) {
            tracing::debug!(event = "told_not_kept", "the next leader may repeat what was told last");
        }
    }

    /// The destination of the actual state, by configuration or settings.
    fn place(&self) -> WriteBackTo {
        if let Some(place) = &self.config.write_back {
            return place.clone();
        }
        let settings = &self.applied.borrow().settings.write_back;
        match settings.mode {
            WriteBackMode::Branch if settings.branch == self.config.branch => WriteBackTo::Followed,
            WriteBackMode::Branch => WriteBackTo::Branch(settings.branch.clone()),
            WriteBackMode::Commit => WriteBackTo::Followed,
            WriteBackMode::Off => WriteBackTo::Off,
        }
    }

    async fn look(&mut self, state: &mut ReporterState) -> Result<(), Error> {
        // Before the first plan everything looks lost.
        if !self.context.handle().readiness().borrow().planned {
            return Ok(());
        }
        if !state.recalled {
            self.recall(state).await?;
        }
        let in_force = self.applied.borrow_and_update().clone();
        state.brain.set_interval(in_force.settings.write_back.interval());
        self.turn(state, &in_force);
        // Whoever comes in between is heard, and not absent.
        let absent = self.context.handle().absent().await?;
        let (workers, deployments) = (self.context.handle().workers().await?, everything(&self.context).await?);
        let is_heard = |absent: &AbsentWorker| workers.iter().any(|worker| worker.info.id == absent.id);
        let absent: Vec<AbsentWorker> = absent.into_iter().filter(|absent| !is_heard(absent)).collect();
        let secrets = self.context.handle().sources().secrets();
        let named = in_force.desired.as_ref().map(|desired| &desired.workers);
        let named = named.map(|workers| workers.iter().map(|worker| worker.worker_id.clone()).collect());
        let fleet = FleetSnapshot {
            workers: &workers,
            absent: &absent,
            deployments: &deployments,
            secrets: &secrets,
            refusal: in_force.refusal.as_ref(),
            applied: in_force.applied.as_deref(),
            synced: self.context.status().is_some_and(|status| status.state == SourceState::Synced),
            named: named.as_ref(),
        };
        let now = self.context.now();
        let observed = state.incidents.observe(&fleet, now);
        if state.settled && in_force.addressed {
            self.tell(state, &observed, &in_force, now).await?;
        }
        if state.place == WriteBackTo::Off || !self.may_write(state, now).await? {
            return Ok(());
        }
        state.brain.observed(observed, now);
        if state.work.is_empty() {
            self.write(state, now);
        }
        Ok(())
    }

    /// Reads the alerts of earlier leaders.
    async fn recall(&self, state: &mut ReporterState) -> Result<(), Error> {
        if let Some(value) = self.context.load(NOTIFIED).await? {
            state.alerts = AlertLog::read(&value);
        }
        state.recalled = true;
        let now = self.context.now();
        let known = |(incident, surely): (Incident, bool)| {
            let workers = incident.subject.worker.iter().cloned().collect();
            let transition = Transition { number: 0, incident, workers, over: false };
            let everybody = BTreeSet::from([Audience::Ops, Audience::Ml]);
            let at = if surely { now } else { Time::ZERO };
            (notice(&transition, Vec::new(), &everybody, now), at)
        };
        self.notifier.send(Command::Known(state.alerts.all().map(known).collect()));
        state.incidents.inherit(state.alerts.open().cloned());
        Ok(())
    }

    /// Takes in another destination, or that somebody has touched what we wrote.
    fn turn(&self, state: &mut ReporterState, in_force: &Applied) {
        let place = self.place();
        if place != state.place {
            state.give_up_branch();
            (state.tip, state.settled, state.inherits) = (None, place == WriteBackTo::Off, true);
            state.failures = 0;
            state.place = place;
        }
        if in_force.touched != state.touched {
            state.touched = in_force.touched;
            state.give_up_branch();
        }
        let words = match &state.place {
            WriteBackTo::Off => String::new(),
            place => place.to_string(),
        };
        self.context.update_status(|status| status.set_detail("writtenTo", words));
    }

    fn write(&self, state: &mut ReporterState, now: Time) {
        if state.failures == 0 && now >= state.read_at {
            state.brain.forget_branch();
        }
        if state.brain.wants_branch() {
            if now >= state.read_at {
                let (reader, writing, turn) = (Arc::clone(&self.reader), self.writing(state, now), state.turns);
                state.work.spawn_blocking(move || {
                    let stop = reader.stop(WRITE);
                    (turn, Done::Read(reader.mirror(&stop).and_then(|mirror| writing(mirror).read(&stop))))
                });
            }
            return;
        }
        let Some(change) = state.brain.take(now) else { return };
        let (reader, writing, known) = (Arc::clone(&self.reader), self.writing(state, now), state.tip.clone());
        let turn = state.turns;
        let seconds = i64::try_from(now.as_millis() / 1_000).unwrap_or(i64::MAX);
        state.work.spawn_blocking(move || {
            let stop = reader.stop(WRITE);
            let written =
                reader.mirror(&stop).and_then(|mirror| writing(mirror).write(&change, known.as_ref(), seconds, &stop));
            (turn, Done::Wrote(change, written))
        });
    }

    fn writing(
        &self,
        state: &ReporterState,
        now: Time,
    ) -> impl FnOnce(Arc<berth_git::Mirror>) -> Publisher + Send + 'static {
        let (config, epoch) = (Arc::clone(&self.config), self.context.epoch());
        let (passed, most_commits) = (state.passed, (now >= state.squash_at).then_some(MOST_COMMITS));
        let (branch, shared) = match &state.place {
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
            passed,
            most_commits,
        }
    }

    /// False while a later leader may be writing.
    async fn may_write(&self, state: &mut ReporterState, now: Time) -> Result<bool, Error> {
        let Some((term, since)) = state.overtaken else { return Ok(true) };
        if now.since(since) < LEADER_CHECK_DELAY {
            return Ok(false);
        }
        if !self.context.handle().leads(self.context.epoch()).await? {
            state.overtaken = Some((term, now));
            return Ok(false);
        }
        tracing::warn!(event = "write_back_resumed", term, "that term is of a store that is no more");
        (state.overtaken, state.passed) = (None, term);
        Ok(true)
    }

    /// Tells people of incidents that are new, worse or over.
    async fn tell(
        &self,
        state: &mut ReporterState,
        observed: &Observed,
        in_force: &Applied,
        now: Time,
    ) -> Result<(), Error> {
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
        state.alerts.arrived(&self.notifier.progress());
        for transition in state.alerts.look(&observed.incidents, &observed.open, self.notifier.room(), now) {
            let notice = notice(&transition, owners(&transition.incident), &audience(&transition.incident), now);
            self.notifier.send(Command::Notice(transition.number, Box::new(notice)));
        }
        self.keep(state).await
    }

    /// Stores the alerts.
    async fn keep(&self, state: &mut ReporterState) -> Result<(), Error> {
        if let Some(value) = state.alerts.unkept() {
            self.context.save(NOTIFIED, value).await?;
            state.alerts.kept();
        }
        Ok(())
    }
}

/// Every deployment with its status, from the control plane.
async fn everything(context: &Context) -> Result<Vec<KnownDeployment>, Error> {
    let mut all = Vec::new();
    let mut request = ListRequest::default();
    loop {
        let page = context.handle().page(request).await?;
        all.extend(page.items);
        match page.next {
            Some(after) => request = ListRequest { after: Some(after), ..ListRequest::default() },
            None => return Ok(all),
        }
    }
}
