//! Runs a [`Candidate`]: watches the leader's key, asks etcd for what the brain wants, and says who sits where.
//!
//! Each request has a deadline well below the lease's, so that one that hangs does not cost the term; the watch is asked
//! as often as the lease is kept, and a look every third of the lease backs it up.

use std::{future, time::Duration};

use berth_spec::{Epoch, Time};
use futures::{
    FutureExt, Stream, StreamExt,
    future::BoxFuture,
    stream::{self, FuturesUnordered},
};
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    Candidate, CandidateInfo, CandidateRole, Effect, Event, Fence, LeaderRecord, Leadership, Policy, RenewalResult,
    fence::now,
};
use crate::api::differing;
use crate::store::{
    Change, Commit, Page, Rev, Store, StoreError, Watch,
    etcd::{Claim, EtcdStore, LeaseId, Timeouts},
    layout::LEADER,
};

/// Limit for resigning: a few round trips. Without an answer, the lease expires by itself.
const RESIGNING: Duration = Duration::from_secs(3);

/// A candidacy that runs. Dropped, it ends like a crash: the key stays until its lease is over.
pub struct Election {
    tasks: JoinSet<()>,
    found: watch::Receiver<Option<LeaderRecord>>,
    resign: CancellationToken,
}

impl Election {
    /// Stands for election until [`Election::resign`]. Leadership changes as terms begin and end; when it is
    /// [`Leadership::Following`], whatever was done as the leader has to stop, and cannot write any more.
    #[must_use]
    pub fn start(store: &EtcdStore, me: CandidateInfo, policy: Policy) -> (watch::Receiver<Leadership>, Self) {
        let (leadership, leadership_rx) = watch::channel(Leadership::Following { leader: None });
        let (finds, found) = watch::channel(None);
        let resign = CancellationToken::new();
        let patience = Timeouts {
            connect: policy.ttl / 4,
            answer: policy.ttl / 4,
            whole: policy.ttl / 3,
            progress: policy.ttl / 3,
        };
        let run = Run {
            candidate: Candidate::new(me.name.clone(), policy, rand::random()),
            store: store.with_patience(patience),
            me,
            policy,
            leadership,
            finds,
            fence: None,
            differs: None,
            pending: FuturesUnordered::new(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(run.until(resign.clone()));
        (leadership_rx, Self { tasks, found, resign })
    }

    /// Owner of the key as last read. Updated before the node's own role.
    #[must_use]
    pub fn found(&self) -> watch::Receiver<Option<LeaderRecord>> {
        self.found.clone()
    }

    /// Hands over: gives the key back, so that another can lead at once, and stands no more. Returns when that is done,
    /// or when etcd has not answered for too long.
    pub async fn resign(mut self) {
        self.resign.cancel();
        if tokio::time::timeout(RESIGNING, self.tasks.join_next()).await.is_err() {
            tracing::warn!(event = "leader_not_released", "etcd does not answer: the term ends by itself");
        }
    }
}

struct Run {
    candidate: Candidate,
    store: EtcdStore,
    me: CandidateInfo,
    policy: Policy,
    leadership: watch::Sender<Leadership>,
    finds: watch::Sender<Option<LeaderRecord>>,
    /// Of the term that we lead.
    fence: Option<Fence>,
    /// Term of the leader whose different settings were reported.
    differs: Option<Epoch>,
    /// Requests to etcd in flight. A failed read is ignored.
    pending: FuturesUnordered<BoxFuture<'static, Option<Event>>>,
}

impl Drop for Run {
    /// Also runs when the task is aborted: the term is no longer renewed.
    fn drop(&mut self) {
        self.end_term();
    }
}

impl Run {
    async fn until(mut self, resign: CancellationToken) {
        let mut changes = std::pin::pin!(changes(self.store.clone(), self.policy.retry));
        let mut resigned = false;
        self.feed(Event::Tick);
        while !self.candidate.is_over() {
            let wake = self.candidate.wake_at().map(|at| tokio::time::sleep(at.since(now())));
            let event = tokio::select! {
                () = resign.cancelled(), if !resigned => {
                    resigned = true;
                    Event::Resign
                }
                Some(event) = self.pending.next() => event.unwrap_or(Event::Tick),
                Some(event) = changes.next() => event,
                () = async { match wake { Some(wake) => wake.await, None => future::pending().await } } => Event::Tick,
            };
            self.feed(event);
        }
        // What was asked for in vain is given back, too.
        while let Some(event) = self.pending.next().await {
            self.feed(event.unwrap_or(Event::Tick));
        }
    }

    fn feed(&mut self, event: Event) {
        if let Event::Seen { leader: Some(leader), .. } = &event {
            self.compare(leader);
            self.finds.send_replace(Some(leader.clone()));
        }
        for effect in self.candidate.on(event, now()) {
            match effect {
                Effect::Stand(standing) => self.stand(standing),
                Effect::Extend(until) => {
                    if let Some(fence) = &self.fence {
                        fence.extend(until);
                    }
                }
                other => self.ask(other),
            }
        }
    }

    /// Reports once per term that the leader's settings differ from this node's.
    fn compare(&mut self, leader: &LeaderRecord) {
        if leader.name == self.me.name || self.differs == Some(leader.epoch) {
            return;
        }
        if let Some(why) = differing(Some(&self.me.rules), leader.rules.as_deref()) {
            self.differs = Some(leader.epoch);
            tracing::warn!(event = "leader_differs", leader = %leader.name, epoch = leader.epoch.0, why);
        }
    }

    fn stand(&mut self, standing: CandidateRole) {
        match standing {
            CandidateRole::Leading { epoch, until } => {
                tracing::info!(event = "leader_elected", name = %self.me.name, epoch = epoch.0);
                let fence = Fence::new(epoch, until);
                self.fence = Some(fence.clone());
                self.leadership.send_replace(Leadership::Leading { epoch, fence });
            }
            CandidateRole::Following(leader) => {
                self.end_term();
                if let Some((name, epoch)) = &leader {
                    tracing::info!(event = "leader_followed", leader = %name, epoch = epoch.0);
                }
                self.leadership.send_replace(Leadership::Following { leader });
            }
        }
    }

    fn end_term(&mut self) {
        if let Some(fence) = self.fence.take() {
            fence.end();
            tracing::info!(event = "leader_stepped_down", name = %self.me.name, epoch = fence.epoch().0);
        }
    }

    /// Asks etcd, and turns what comes back into an event.
    fn ask(&mut self, effect: Effect) {
        let (store, me, sent) = (self.store.clone(), self.me.clone(), now());
        let event = match effect {
            Effect::Look => async move { noted(look(&store).await).map(|(event, _)| event) }.boxed(),
            Effect::Grant => grant(store, self.policy.ttl, sent).boxed(),
            Effect::Claim(lease) => claim(store, me, lease).boxed(),
            Effect::Keep(lease) => async move {
                let kept = noted(store.keep_alive(lease).await);
                let ttl = kept.map(Option::unwrap_or_default);
                Some(Event::RenewalResult(RenewalResult { lease, sent, ttl }))
            }
            .boxed(),
            Effect::Release(lease) => async move {
                noted(store.revoke(lease).await);
                Some(Event::Released { lease })
            }
            .boxed(),
            Effect::Stand(_) | Effect::Extend(_) => return,
        };
        self.pending.push(event);
    }
}

async fn grant(store: EtcdStore, ttl: Duration, sent: Time) -> Option<Event> {
    Some(match noted(store.grant(ttl).await) {
        Some(lease) => Event::Granted { sent, lease },
        None => Event::NotGranted,
    })
}

async fn claim(store: EtcdStore, me: CandidateInfo, lease: LeaseId) -> Option<Event> {
    Some(match noted(store.claim(LEADER, LeaderRecord::bytes(&me, lease), lease).await) {
        Some(Claim::Won(rev)) => Event::Won { lease, epoch: Epoch(rev.0) },
        // Another's, or our own from an attempt whose answer was lost: the key says which.
        Some(Claim::Taken(_)) | None => Event::NotWon { lease },
    })
}

/// Reads the leader and the revision.
async fn look(store: &EtcdStore) -> Result<(Event, Rev), StoreError> {
    let listing = store.list(LEADER, Page { limit: 1, ..Page::default() }).await?;
    let entry = listing.entries.iter().find(|entry| entry.key == LEADER);
    let leader = entry.map(LeaderRecord::read).transpose()?;
    Ok((Event::Seen { at: listing.at, leader }, listing.at))
}

/// Change of the leader's key in a commit.
fn seen(commit: &Commit) -> Option<Result<Event, StoreError>> {
    let change = commit.changes.iter().rfind(|change| change.key() == LEADER)?;
    let leader = match change {
        Change::Put(entry) => LeaderRecord::read(entry).map(Some),
        Change::Deleted { .. } => Ok(None),
    };
    Some(leader.map(|leader| Event::Seen { at: commit.rev, leader }))
}

/// Every change of the leader's key, from what it is now on; begun again after a failure.
fn changes(store: EtcdStore, retry: Duration) -> impl Stream<Item = Event> {
    stream::unfold((store, None::<Watch>), move |(store, watch)| async move {
        let mut watch = watch;
        loop {
            let failed = match &mut watch {
                Some(commits) => match commits.next().await {
                    Some(Ok(commit)) => match seen(&commit) {
                        Some(Ok(event)) => return Some((event, (store, watch))),
                        Some(Err(error)) => error,
                        None => continue,
                    },
                    Some(Err(error)) => error,
                    None => StoreError::Closed,
                },
                None => match open(&store).await {
                    Ok((event, opened)) => return Some((event, (store, Some(opened)))),
                    Err(error) => error,
                },
            };
            tracing::debug!(event = "leader_watch_failed", error = %failed);
            watch = None;
            tokio::time::sleep(retry).await;
        }
    })
}

async fn open(store: &EtcdStore) -> Result<(Event, Watch), StoreError> {
    let (event, at) = look(store).await?;
    Ok((event, store.watch(LEADER, at.next()).await?))
}

/// Returns the answer, or logs the error: the brain retries.
fn noted<T>(answer: Result<T, StoreError>) -> Option<T> {
    answer.inspect_err(|error| tracing::debug!(event = "leader_request_failed", %error)).ok()
}
