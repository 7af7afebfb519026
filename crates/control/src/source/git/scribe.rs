//! Looks at the fleet, writes back what it sees, and tells people of what is wrong and of its end.
//!
//! ```text
//! every few seconds: workers, deployments ──▶ Memory::observe ──▶ Observed ──▶ WriteBack ── take ──▶ Publisher (a thread)
//!                                                                   └── incidents ──▶ Told ── new, worse, over ──▶ Herald
//! ```
//! What people were told of is in the store, and what is written is on the branch: the next leader goes on from there.

mod outcome;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use berth_git::{GitError, Oid};
use berth_registry::{
    Audience, Desired, Settings,
    error_file::{Incident, IncidentKind},
    settings::WriteBackMode,
    write_back::{BranchContents, Change, Observed, WriteBack},
};
use berth_spec::{Epoch, Time};
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    GitConfig, WriteBackTo,
    eyes::Eyes,
    herald::{Teller, Word},
    observe::{Memory, Sight},
    publish::{MOST_COMMITS, Publisher, Written},
    tell::{self, Refusal},
    told::{News, Told},
};
use crate::{
    Handle,
    controller::Absent,
    handle::{Error, ListRequest, view::Known},
    store::{Op, Txn, layout},
};

/// How often the fleet is looked at. Halved, it costs twice the questions; doubled, people hear of a failure that much later.
const LOOK: Duration = Duration::from_secs(2);

/// A look may take this part of the time: with 100,000 deployments it takes long, and is then taken less often.
const SHARE: u32 = 20;

/// How long one write may take.
const WRITE: Duration = Duration::from_secs(2 * 60);

/// How long after a later term was found on the branch the store is asked who leads. Whoever does so by its word knows that
/// the later term is of a store that is no more. Halved, a deposed leader asks in vain more often; doubled, nothing is
/// written for that much longer.
const SURELY: Duration = Duration::from_secs(60);

/// What the source knows and the scribe writes along.
#[derive(Debug, Clone, Default)]
pub(super) struct InForce {
    pub(super) settings: Settings,
    pub(super) applied: Option<String>,
    pub(super) desired: Option<Arc<Desired>>,
    pub(super) refusal: Option<Refusal>,
    /// The settings say whom to tell. Before that what is said is heard by nobody.
    pub(super) addressed: bool,
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
    Read(Result<(BranchContents, Option<Oid>), GitError>),
    Wrote(Change, Result<Written, GitError>),
}

struct Desk {
    brain: WriteBack,
    memory: Memory,
    /// With the number of the turn that it was begun in.
    work: JoinSet<(u64, Done)>,
    /// How often the branch was given up for another one, or as it was: what is under way from before is of no use.
    turns: u64,
    /// The tip that the brain knows.
    tip: Option<Oid>,
    /// Where it writes now.
    place: WriteBackTo,
    told: Told,
    /// What the store has of `told` was read.
    recalled: bool,
    /// Reading the branch has succeeded, failed, or is not to be.
    settled: bool,
    /// What controllers before have written there is not known yet.
    inherits: bool,
    /// A later term has written, and since when that is known.
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

impl Desk {
    /// The branch is not what is known of it any more.
    fn give_up_branch(&mut self) {
        self.brain.forget_branch();
        (self.turns, self.read_at) = (self.turns + 1, Time::ZERO);
    }
}

impl Scribe {
    pub(super) async fn run(mut self, shutdown: CancellationToken) {
        let place = self.place();
        let interval = self.in_force.borrow().settings.write_back.interval();
        let mut desk = Desk {
            brain: WriteBack::new(interval),
            memory: Memory::default(),
            work: JoinSet::new(),
            turns: 0,
            tip: None,
            settled: place == WriteBackTo::Off,
            inherits: true,
            place,
            told: Told::default(),
            recalled: false,
            overtaken: None,
            passed: 0,
            squash_at: Time::ZERO,
            read_at: Time::ZERO,
            failures: 0,
            touched: 0,
        };
        let mut pause = LOOK;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return self.part(desk).await,
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

    /// The term is over: what has arrived in its last moment need not be told again.
    async fn part(mut self, mut desk: Desk) {
        /// Halved, the next leader may repeat a message; doubled, it waits that long for a store that is away.
        const LAST_WRITE: Duration = Duration::from_secs(1);
        self.teller.ended().await;
        if !desk.recalled {
            return;
        }
        desk.told.arrived(&self.teller.progress());
        let kept = tokio::time::timeout(LAST_WRITE, self.keep(&mut desk)).await;
        if !matches!(kept, Ok(Ok(()))) {
            tracing::debug!(event = "told_not_kept", "the next leader may repeat what was told last");
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
        if !desk.recalled {
            self.recall(desk).await?;
        }
        let in_force = self.in_force.borrow_and_update().clone();
        desk.brain.set_interval(in_force.settings.write_back.interval());
        self.turn(desk, &in_force);
        // Whoever comes in between is heard, and not absent.
        let absent = self.handle.absent().await?;
        let (workers, deployments) = (self.handle.workers().await?, everything(&self.handle).await?);
        let is_heard = |absent: &Absent| workers.iter().any(|worker| worker.info.id == absent.id);
        let absent: Vec<Absent> = absent.into_iter().filter(|absent| !is_heard(absent)).collect();
        let secrets = self.handle.board.secrets();
        let named = in_force.desired.as_ref().map(|desired| &desired.workers);
        let named = named.map(|workers| workers.iter().map(|worker| worker.worker_id.clone()).collect());
        let sight = Sight {
            workers: &workers,
            absent: &absent,
            deployments: &deployments,
            secrets: &secrets,
            refusal: in_force.refusal.as_ref(),
            applied: in_force.applied.as_deref(),
            synced: self.handle.board.source().is_some_and(|view| view.state == "Synced"),
            named: named.as_ref(),
        };
        let now = self.handle.now();
        let observed = desk.memory.observe(&sight, now);
        if desk.settled && in_force.addressed {
            self.tell(desk, &observed, &in_force, now).await?;
        }
        if desk.place == WriteBackTo::Off || !self.may_write(desk, now).await? {
            return Ok(());
        }
        desk.brain.observed(observed, now);
        if desk.work.is_empty() {
            self.write(desk, now);
        }
        Ok(())
    }

    /// Takes in what earlier leaders have told people of.
    async fn recall(&self, desk: &mut Desk) -> Result<(), Error> {
        if let Some(entry) = self.handle.store.get(layout::GIT_TOLD).await? {
            desk.told = Told::read(&entry.value);
        }
        desk.recalled = true;
        let now = self.handle.now();
        let known = |(incident, surely): (Incident, bool)| {
            let workers = incident.subject.worker.iter().cloned().collect();
            let news = News { number: 0, incident, workers, over: false };
            let everybody = BTreeSet::from([Audience::Ops, Audience::Ml]);
            let at = if surely { now } else { Time::ZERO };
            (tell::notice(&news, Vec::new(), &everybody, now), at)
        };
        self.teller.say(Word::Known(desk.told.all().map(known).collect()));
        desk.memory.inherit(desk.told.open().cloned());
        Ok(())
    }

    /// Takes in that it is to be written elsewhere, or that somebody has touched what we wrote.
    fn turn(&self, desk: &mut Desk, in_force: &InForce) {
        let place = self.place();
        if place != desk.place {
            desk.give_up_branch();
            (desk.tip, desk.settled, desk.inherits) = (None, place == WriteBackTo::Off, true);
            desk.failures = 0;
            desk.place = place;
        }
        if in_force.touched != desk.touched {
            desk.touched = in_force.touched;
            desk.give_up_branch();
        }
        let words = match &desk.place {
            WriteBackTo::Off => String::new(),
            place => place.to_string(),
        };
        self.handle.board.update(|view| view.write_back = words);
    }

    fn write(&self, desk: &mut Desk, now: Time) {
        if desk.failures == 0 && now >= desk.read_at {
            desk.brain.forget_branch();
        }
        if desk.brain.wants_branch() {
            if now >= desk.read_at {
                let (eyes, writing, turn) = (Arc::clone(&self.eyes), self.writing(desk, now), desk.turns);
                desk.work.spawn_blocking(move || {
                    let stop = eyes.stop(WRITE);
                    (turn, Done::Read(eyes.mirror(&stop).and_then(|mirror| writing(mirror).read(&stop))))
                });
            }
            return;
        }
        let Some(change) = desk.brain.take(now) else { return };
        let (eyes, writing, known) = (Arc::clone(&self.eyes), self.writing(desk, now), desk.tip.clone());
        let turn = desk.turns;
        let seconds = i64::try_from(now.as_millis() / 1_000).unwrap_or(i64::MAX);
        desk.work.spawn_blocking(move || {
            let stop = eyes.stop(WRITE);
            let written =
                eyes.mirror(&stop).and_then(|mirror| writing(mirror).write(&change, known.as_ref(), seconds, &stop));
            (turn, Done::Wrote(change, written))
        });
    }

    fn writing(&self, desk: &Desk, now: Time) -> impl FnOnce(Arc<berth_git::Mirror>) -> Publisher + Send + 'static {
        let (config, epoch) = (Arc::clone(&self.config), self.epoch);
        let (passed, most_commits) = (desk.passed, (now >= desk.squash_at).then_some(MOST_COMMITS));
        let (branch, shared) = match &desk.place {
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

    /// Not while a later leader may have the word.
    async fn may_write(&self, desk: &mut Desk, now: Time) -> Result<bool, Error> {
        let Some((term, since)) = desk.overtaken else { return Ok(true) };
        if now.since(since) < SURELY {
            return Ok(false);
        }
        let leader = self.handle.store.get(layout::LEADER).await?;
        if leader.is_none_or(|leader| leader.created.0 != self.epoch.0) {
            desk.overtaken = Some((term, now));
            return Ok(false);
        }
        tracing::warn!(event = "write_back_resumed", term, "that term is of a store that is no more");
        (desk.overtaken, desk.passed) = (None, term);
        Ok(true)
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
        desk.told.arrived(&self.teller.progress());
        for news in desk.told.look(&observed.incidents, &observed.open, self.teller.room(), now) {
            let notice = tell::notice(&news, owners(&news.incident), &audience(&news.incident), now);
            self.teller.say(Word::Notice(news.number, Box::new(notice)));
        }
        self.keep(desk).await
    }

    /// Puts what people were told of into the store.
    async fn keep(&self, desk: &mut Desk) -> Result<(), Error> {
        if let Some(value) = desk.told.unkept() {
            let ops = vec![Op::Put { key: layout::GIT_TOLD.to_owned(), value }];
            self.handle.store.commit(Txn { compare: Vec::new(), ops }).await?;
            desk.told.kept();
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
