//! One client that follows a job, as a task of its own: the job, the port and the client's token end it, whether the client reads or not.
//!
//! ```text
//! look at the job ── changed, or quiet for 15 looks ──▶ one event waits for the connection ── taken in time ──▶ look again
//!      │ the job, the token or the port has ended                   │ not taken: cut (the answer breaks off)
//!      ▼                                                            ▼
//!    over ◀─────────────────────────────────────────────────────────┘ also when the client goes
//! ```

use std::{
    pin::pin,
    sync::Arc,
    task::{Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures::stream;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use prometheus_client::metrics::counter::Counter;
use tokio::{
    sync::{
        broadcast::{Receiver, error::RecvError},
        mpsc::{self, error::SendTimeoutError},
    },
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    followers::FollowerPlace,
    job::{JobId, State, Status},
    queue::Queue,
    view,
};
use crate::{BoxError, access::LiveAccess, body::Body};

/// Time between two looks at a job, where no end is told.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Longest time that an event may wait for its client: one that reads nothing for so long has gone.
const READ_WITHIN: Duration = Duration::from_secs(60);

/// Follows a job for one client, up to its end.
pub(super) struct Follower {
    pub(super) queue: Arc<dyn Queue>,
    pub(super) id: JobId,
    pub(super) ended: Receiver<JobId>,
    pub(super) told: Option<(State, u32)>,
    pub(super) next: Option<Status>,
    /// Of the principal who follows, where one is known.
    pub(super) standing: Option<LiveAccess>,
    pub(super) _place: FollowerPlace,
}

/// The other end of a follower: what its client reads.
pub(super) struct Events {
    events: mpsc::Receiver<Bytes>,
    cut: CancellationToken,
}

/// The end of a follower towards its client.
pub(super) struct Reader {
    events: mpsc::Sender<Bytes>,
    cut: CancellationToken,
}

/// Both ends. One event waits, and no more.
pub(super) fn events() -> (Reader, Events) {
    let ((sender, receiver), cut) = (mpsc::channel(1), CancellationToken::new());
    (Reader { events: sender, cut: cut.clone() }, Events { events: receiver, cut })
}

impl Events {
    /// The body of the answer.
    pub(super) fn into_body(mut self) -> Body {
        let mut ended = false;
        let frames = stream::poll_fn(move |cx| {
            if ended {
                return Poll::Ready(None);
            }
            Poll::Ready(match ready!(self.events.poll_recv(cx)) {
                Some(event) => Some(Ok(Frame::data(event))),
                None => {
                    ended = true;
                    self.cut.is_cancelled().then(|| Err(BoxError::from("the events were not read in their time")))
                }
            })
        });
        StreamBody::new(frames).boxed_unsync()
    }
}

impl Follower {
    /// Tells the client until there is nothing more to tell, `stop`, or until the client has gone; `cut`: counts those who did not read.
    pub(super) async fn run(mut self, reader: Reader, stop: CancellationToken, cut: Counter) {
        let telling = async {
            while let Some(event) = self.event().await {
                match reader.events.send_timeout(event.into(), READ_WITHIN).await {
                    Ok(()) => {}
                    Err(SendTimeoutError::Closed(_)) => return,
                    Err(SendTimeoutError::Timeout(_)) => {
                        reader.cut.cancel();
                        cut.inc();
                        return;
                    }
                }
            }
        };
        tokio::select! {
            // Who comes last is told at least where the job stands.
            biased;
            () = telling => {}
            () = reader.events.closed() => {}
            () = stop.cancelled() => {}
        }
    }

    /// The next event, or a comment that keeps the connection when nothing has changed.
    async fn event(&mut self) -> Option<String> {
        if self.told.is_some_and(|(state, _)| state.is_end()) {
            return None;
        }
        let until = Instant::now() + 15 * POLL_INTERVAL;
        loop {
            // Clients connect again, and are refused.
            if self.standing.as_ref().is_some_and(|standing| !standing.holds()) {
                return None;
            }
            let status = match self.next.take() {
                Some(status) => status,
                None => {
                    next_look(&mut self.ended, &self.id, until).await;
                    match self.queue.status(&self.id).await {
                        Ok(Some(status)) => status,
                        // Clients connect again, and are told of the reason.
                        Ok(None) | Err(_) => return None,
                    }
                }
            };
            let now = (status.state, status.attempts);
            if self.told != Some(now) {
                self.told = Some(now);
                let name = if status.state.is_end() { "end" } else { "status" };
                return Some(format!("event: {name}\ndata: {}\n\n", view::status(&self.id, &status)));
            }
            if Instant::now() >= until {
                return Some(":\n\n".to_owned());
            }
        }
    }
}

/// Waits until a job may have changed.
pub(super) async fn next_look(ended: &mut Receiver<JobId>, id: &JobId, until: Instant) {
    let told = async {
        loop {
            match ended.recv().await {
                Ok(other) if other != *id => {}
                Ok(_) | Err(RecvError::Lagged(_)) => return,
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    };
    // A job that was not told of is looked at again.
    let _ = timeout_at(until.min(Instant::now() + POLL_INTERVAL), pin!(told)).await;
}

#[cfg(test)]
mod tests {
    use berth_wire::access::{Access, Grant, Role, Secret, Snapshot, TokenRecord};
    use http::{HeaderMap, HeaderValue, Request, header};
    use tokio::task::JoinSet;

    use super::*;
    use crate::jobs::{
        followers::{Followers, StreamOwner},
        job::{Priority, StoredRequest},
        memory::MemoryQueue,
        queue::{Bounds, LEASE, NewJob},
    };

    /// Somebody with a token, and the access that a change of tokens is told to.
    fn somebody() -> (Arc<Access>, LiveAccess) {
        let (access, secret) = (Arc::new(Access::required()), Secret::generate());
        let token = TokenRecord {
            id: secret.id().to_owned(),
            hash: secret.hash(),
            grant: Grant { role: Role::Caller, namespaces: Vec::new(), models: Vec::new() },
            description: String::new(),
            created_by: String::new(),
            created: 1,
            expires: None,
            limits: None,
        };
        access.learn(&Snapshot { revision: 1, tokens: vec![token] });
        let mut headers = HeaderMap::new();
        let value = format!("Bearer {}", secret.reveal());
        headers.insert(header::AUTHORIZATION, HeaderValue::from_str(&value).expect("ASCII"));
        let asker = access.asker(&headers, None).expect("it is known");
        (Arc::clone(&access), LiveAccess::new(access, asker))
    }

    /// A follower of a job that waits, as a task, and what its client reads.
    struct Following {
        tasks: JoinSet<()>,
        events: Events,
        queue: Arc<MemoryQueue>,
        id: JobId,
        stop: CancellationToken,
        cut: Counter,
    }

    async fn following(standing: Option<LiveAccess>) -> Following {
        let bounds = Bounds { most: 1, memory: 1 << 20, keep: LEASE, lease: LEASE };
        let (queue, id) = (Arc::new(MemoryQueue::new(bounds)), JobId::generate());
        let head = Request::post("/predict").body(()).expect("a request").into_parts().0;
        let request = StoredRequest::new(&head, Vec::new());
        let job = NewJob { id: id.clone(), priority: Priority::Normal, key: None, callback: None, request };
        queue.submit(job).await.expect("it answers");
        let owner = StreamOwner::Address([127, 0, 0, 1].into());
        let follower = Follower {
            ended: queue.ended(),
            next: queue.status(&id).await.expect("it answers"),
            queue: Arc::<MemoryQueue>::clone(&queue),
            id: id.clone(),
            told: None,
            standing,
            _place: Arc::new(Followers::default()).place(owner).expect("a place"),
        };
        let ((reader, events), stop, cut) = (super::events(), CancellationToken::new(), Counter::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(follower.run(reader, stop.clone(), cut.clone()));
        Following { tasks, events, queue, id, stop, cut }
    }

    impl Following {
        /// The time that the task takes to end by itself.
        async fn ends(&mut self) -> Duration {
            let began = Instant::now();
            self.tasks.join_next().await.expect("a task").expect("no panic");
            began.elapsed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_that_is_not_read_ends_with_its_token_its_port_and_its_time() {
        // One event waits, a comment after 15 s finds no room for 60 s.
        let mut unread = following(None).await;
        assert_eq!((unread.ends().await.as_secs(), unread.cut.get()), (75, 1));
        let read = unread.events.into_body().collect().await.expect_err("it was cut");
        assert!(read.to_string().contains("not read"), "{read}");

        let (access, standing) = somebody();
        let mut revoked = following(Some(standing)).await;
        tokio::task::yield_now().await;
        access.learn(&Snapshot { revision: 2, tokens: Vec::new() });
        assert!(revoked.ends().await < 2 * POLL_INTERVAL);

        let mut stopped = following(None).await;
        stopped.stop.cancel();
        assert_eq!(stopped.ends().await, Duration::ZERO);
        let text = stopped.events.into_body().collect().await.expect("it ends in order").to_bytes();
        assert!(text.starts_with(b"event: status\n"), "{text:?}");

        let mut left = following(None).await;
        drop(left.events);
        left.tasks.join_next().await.expect("a task").expect("no panic");
        assert_eq!((revoked.cut.get(), stopped.cut.get(), left.cut.get()), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_told_of_the_end() {
        let mut slow = following(None).await;
        let mut events = Vec::new();
        for _ in 0..5 {
            tokio::time::sleep(READ_WITHIN - POLL_INTERVAL).await;
            events.push(slow.events.events.recv().await.expect("it is not cut"));
        }
        slow.queue.cancel(&slow.id).await.expect("it answers");
        let rest = slow.events.into_body().collect().await.expect("to its end").to_bytes();
        assert!(String::from_utf8_lossy(&rest).contains("event: end\n"), "{rest:?}");
        slow.tasks.join_next().await.expect("a task").expect("no panic");
        assert_eq!(slow.cut.get(), 0);
    }
}
