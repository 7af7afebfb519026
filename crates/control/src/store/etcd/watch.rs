//! A watch: one stream of etcd after another, each from where the last one had got to.
//!
//! ```text
//!            ┌── pause (50 ms → 2 s), next endpoint ◀──┐
//!            ▼                                         │ broken, cancelled, or silent for two intervals
//!   open: read the revision, watch from applied + 1 ──▶ told: events, or how far it has got (asked every 5 s)
//!            │                                         │
//!            └── refused, replaced ──▶ an error, the end ◀── compacted, out of order
//! ```
//! It is pulled: nothing is read from etcd while nobody polls, and HTTP/2 flow control makes etcd wait. A consumer that is
//! away for long finds what was sent meanwhile before anything is held against the stream.

use std::{collections::VecDeque, time::Duration};

use berth_wire::etcd::{
    RangeRequest, StatusRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
    maintenance_client::MaintenanceClient, watch_client::WatchClient, watch_request::RequestUnion,
};
use futures::{StreamExt, stream};
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::{
    EtcdStore,
    assembly::{WatchAssembly, WatchEnd},
    cluster::{Backoff, EtcdChannel},
    error::EtcdError,
    keys::{self, revision},
    read,
    version::Progress,
};
use crate::store::{Commit, Rev, StoreError, Watch};

/// Requests that wait to be sent on a stream: there is one at a time, and one for the start.
const REQUESTS: usize = 4;

/// The most bytes of one message. etcd cuts what is larger than a request may be (1.5 MiB and what goes around it), but
/// not one event in two.
const MESSAGE: usize = 32 << 20;

struct FollowedWatch {
    store: EtcdStore,
    prefix: String,
    assembly: WatchAssembly,
    stream: Option<Stream>,
    /// Told, and not yet taken.
    commits: VecDeque<Commit>,
    backoff: Backoff,
    /// Since when nothing but faults.
    failing: Option<Instant>,
    over: bool,
}

/// A stream that is open.
struct Stream {
    member: usize,
    answers: Streaming<WatchResponse>,
    requests: mpsc::Sender<WatchRequest>,
    progress: Progress,
    opened: Instant,
    /// Interval between progress requests.
    every: Duration,
    /// Time of the next progress request.
    ask_at: Instant,
    /// The first question since the last word.
    unanswered: Option<Instant>,
}

impl EtcdStore {
    pub(super) async fn follow(&self, prefix: &str, from: Rev) -> Result<Watch, StoreError> {
        let from = Rev(from.0.max(1));
        let mut following = FollowedWatch {
            store: self.clone(),
            prefix: prefix.to_owned(),
            assembly: WatchAssembly::new(self.keys.clone(), Rev(from.0 - 1)),
            stream: None,
            commits: VecDeque::new(),
            backoff: Backoff::default(),
            failing: None,
            over: false,
        };
        match self.read_past(prefix, from).await {
            Ok(_) | Err(EtcdError::Future) => {}
            Err(EtcdError::Compacted) => return Err(following.compacted(from).await),
            Err(fault) => return Err(self.error(fault)),
        }
        let commits = stream::unfold(following, |mut following| async move {
            let next = following.next().await?;
            Some((next, following))
        });
        Ok(commits.boxed())
    }
}

impl FollowedWatch {
    /// Determines the oldest available revision after a compaction.
    async fn compacted(&mut self, from: Rev) -> StoreError {
        match tokio::time::timeout(self.store.patience.whole, self.next()).await {
            Ok(Some(Err(error))) => error,
            _ => StoreError::Compacted { oldest: from.next() },
        }
    }

    async fn next(&mut self) -> Option<Result<Commit, StoreError>> {
        loop {
            if let Some(commit) = self.commits.pop_front() {
                return Some(Ok(commit));
            }
            if self.over {
                return None;
            }
            if let Err((member, fault)) = self.advance().await
                && let Err(error) = self.recover(member, fault).await
            {
                self.over = true;
                return Some(Err(error));
            }
        }
    }

    /// One step: opens a stream, or takes in what it says next. An error names the endpoint.
    async fn advance(&mut self) -> Result<(), (usize, EtcdError)> {
        let Some(stream) = &mut self.stream else {
            let member = self.store.cluster.pick();
            self.stream = Some(self.open(member).await.map_err(|fault| (member, fault))?);
            return Ok(());
        };
        let member = stream.member;
        let Some(answer) = stream.next(self.store.cluster.address(member)).await.map_err(|fault| (member, fault))?
        else {
            return Ok(());
        };
        let progress = stream.progress;
        let cluster = &self.store.cluster;
        if let Some(header) = &answer.header {
            cluster.same(header, member).map_err(|fault| (member, fault))?;
        }
        let created = answer.created && !answer.canceled;
        let commits = self.assembly.take(answer, progress).map_err(|halt| {
            let address = cluster.address(member);
            let fault = match halt {
                WatchEnd::Compacted { oldest } => EtcdError::Final(StoreError::Compacted { oldest }),
                WatchEnd::Cancelled(reason) => EtcdError::of_cancel(&reason, address),
                WatchEnd::Disorder(reason) => {
                    EtcdError::Final(StoreError::Replaced { endpoint: address.to_owned(), reason })
                }
            };
            (member, fault)
        })?;
        if let Some(last) = commits.last() {
            cluster.saw(last.rev);
        }
        self.commits.extend(commits);
        if !created {
            self.healthy();
        }
        Ok(())
    }

    /// Opens a stream on one endpoint. The read before it shows that the endpoint is part of the majority, and that the
    /// store still knows what has been told.
    async fn open(&mut self, member: usize) -> Result<Stream, EtcdError> {
        let (from, told) = (self.assembly.resume_at(), self.assembly.applied());
        let store = &self.store;
        let (requests, outgoing) = mpsc::channel(REQUESTS);
        let create = WatchCreateRequest {
            key: store.keys.full(&self.prefix),
            range_end: store.keys.end(&self.prefix),
            start_revision: revision(from),
            progress_notify: true,
            fragment: true,
        };
        let look = RangeRequest { key: create.key.clone(), count_only: true, ..RangeRequest::default() };
        // There is room: the channel is new.
        let _sent = requests.try_send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) });
        let ask = |line: EtcdChannel| async move {
            let found = read::client(line.clone()).range(look).await?.into_inner();
            let progress = match MaintenanceClient::new(line.clone()).status(StatusRequest {}).await {
                Ok(status) => Progress::of(&status.into_inner().version),
                // Only versions that are later than all the flaws ask for rights here.
                Err(status) if status.code() == Code::PermissionDenied => Progress::Ordered,
                Err(status) => return Err(status),
            };
            let mut watch = WatchClient::new(line).max_decoding_message_size(MESSAGE);
            let answers = watch.watch(ReceiverStream::new(outgoing)).await?.into_inner();
            Ok::<_, Status>((found, progress, answers))
        };
        let (found, progress, answers) = store.cluster.attempt(member, store.patience.answer, ask).await?;
        let header = found.header.unwrap_or_default();
        store.cluster.same(&header, member)?;
        // A watch may begin in the future, so the store need not know what was never told. What was, it has to know.
        let now = keys::rev(header.revision);
        if told > now && store.cluster.seen() > now {
            return Err(EtcdError::Behind(format!(
                "it is at revision {now} after {} had been seen",
                store.cluster.seen()
            )));
        }
        let (every, opened) = (store.patience.progress, Instant::now());
        Ok(Stream { member, answers, requests, progress, opened, every, ask_at: opened + every, unanswered: None })
    }

    /// A word came: what was before is forgiven.
    fn healthy(&mut self) {
        self.backoff.reset();
        if let Some(since) = self.failing.take() {
            tracing::info!(event = "store_watch_resumed", prefix = self.prefix, after_ms = since.elapsed().as_millis());
        }
    }

    /// Gets ready for another stream; an error where that would not help.
    async fn recover(&mut self, member: usize, fault: EtcdError) -> Result<(), StoreError> {
        // One that was open for long was good, also where nothing happened on it.
        if self.stream.take().is_some_and(|stream| stream.opened.elapsed() > stream.every * 2) {
            self.healthy();
        }
        let cluster = &self.store.cluster;
        let since = *self.failing.get_or_insert_with(Instant::now);
        let lasting = since.elapsed() > self.store.patience.whole;
        match &fault {
            EtcdError::NotSent(_) | EtcdError::Lost(_) => cluster.leave(member),
            EtcdError::Behind(_) if !lasting => cluster.leave(member),
            EtcdError::Token(_) if cluster.has_login() && !lasting => cluster.forget_token(),
            _ => return Err(fault.into_error(cluster.address(member))),
        }
        let pause = self.backoff.failed(cluster.members());
        if self.backoff.is_first() {
            let (endpoint, applied) = (cluster.address(member), self.assembly.applied().0);
            tracing::warn!(event = "store_watch_broken", prefix = self.prefix, endpoint, applied, reason = ?fault);
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

impl Stream {
    /// Reads the next response; `None` after a progress request was sent.
    async fn next(&mut self, address: &str) -> Result<Option<WatchResponse>, EtcdError> {
        tokio::select! {
            // What has come is taken before the time is looked at.
            biased;
            answer = self.answers.message() => {
                self.unanswered = None;
                match answer {
                    Ok(Some(answer)) => Ok(Some(answer)),
                    Ok(None) => Err(EtcdError::Lost(format!("{address} ended the watch"))),
                    Err(status) => Err(EtcdError::of(&status, address)),
                }
            }
            () = tokio::time::sleep_until(self.ask_at) => self.ask(address).map(|()| None),
        }
    }

    /// Requests the progress of the watch, to tell a quiet stream from a dead one.
    fn ask(&mut self, address: &str) -> Result<(), EtcdError> {
        let now = Instant::now();
        if self.unanswered.is_some() && self.progress != Progress::Unanswered {
            let silence = self.every.as_millis() * 2;
            return Err(EtcdError::Lost(format!("{address} says nothing on a watch for {silence} ms")));
        }
        self.unanswered = Some(now);
        self.ask_at = now + self.every;
        let ask = WatchRequest { request_union: Some(RequestUnion::ProgressRequest(WatchProgressRequest {})) };
        self.requests.try_send(ask).map_err(|_| EtcdError::Lost(format!("{address} takes no questions on a watch")))
    }
}
