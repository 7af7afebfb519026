//! Artifacts of functions between controllers: the leader gives those in use, the others copy them, so that whoever leads next builds
//! nothing.
//!
//! ```text
//! waiting ──10 s, or another leads──▶ asking for the listing ──▶ copying what is lacking ──▶ clean-up ──▶ waiting
//!    ▲                                   └── no answer ──┐            └── the leader is gone ──┐
//!    └────────────── a pause that grows ◀────────────────┴─────────────────────────────────────┘
//! ```
//! [`berth_functions::build::copies`] decides what is lacking.

use std::{io, sync::Arc, time::Duration};

use berth_control::{api::Relay, leadership::LeadershipView};
use berth_functions::{
    build::copies::{CopyItem, LISTING, Listing},
    source::Host,
};
use berth_peer::{BoxError, PeerBody, full, port::answer_whole};
use berth_spec::WorkerId;
use bytes::Bytes;
use futures::{FutureExt as _, TryStreamExt as _, future::BoxFuture};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::{
    fs::File,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    time::{sleep, timeout},
};
use tokio_util::io::ReaderStream;

/// Files that a leader gives at once: enough for a few controllers, each of which takes one after another.
const TRANSFERS: usize = 8;

/// Bytes that are read from a file at once.
const PIECE: usize = 64 << 10;

/// Interval at which the leader is asked. An artifact that it built since goes with it if it dies before.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// Longest pause after the leader did not answer, or an artifact was not right.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Failures in a row that are worth a line in the log: a leader that has just begun gives nothing yet.
const WORTH_TELLING: u32 = 3;

/// Limit for the head of an answer. The leader looks at its disk before.
const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// Limit for each piece of an answer: between nodes a longer silence is a broken connection.
const PIECE_WITHIN: Duration = Duration::from_secs(10);

/// Limit for a whole file: the largest one over a line of 20 Mbit/s.
const FILE_WITHIN: Duration = Duration::from_secs(600);

/// The largest listing, and the largest document: twenty thousand artifacts, or as many packages in one.
const LARGEST_TEXT: usize = 16 << 20;

/// Pieces that wait for the disk.
const QUEUE: usize = 8;

/// Gives artifacts to other controllers.
#[derive(Clone)]
pub(super) struct ArtifactPort {
    host: Arc<Host>,
    leadership: watch::Receiver<LeadershipView>,
    transfers: Arc<Semaphore>,
}

impl ArtifactPort {
    pub(super) fn new(host: Arc<Host>, leadership: watch::Receiver<LeadershipView>) -> Self {
        Self { host, leadership, transfers: Arc::new(Semaphore::new(TRANSFERS)) }
    }

    /// True of a path that [`ArtifactPort::answer`] answers.
    pub(super) fn is_for(path: &str) -> bool {
        path.strip_prefix(LISTING).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Answers another controller.
    pub(super) fn answer(&self, request: Request<Incoming>) -> BoxFuture<'static, Response<PeerBody>> {
        let port = self.clone();
        Box::pin(answer_whole(request, |request| {
            let path = request.uri().path().to_owned();
            async move { port.given(path).await }
        }))
    }

    async fn given(self, path: String) -> Response<PeerBody> {
        if self.leadership.borrow().leads().is_none() {
            return refused(StatusCode::SERVICE_UNAVAILABLE, "this node does not lead");
        }
        if path == LISTING {
            let listing = tokio::task::spawn_blocking(move || self.host.listing()).await;
            return match listing {
                Ok(Some(listing)) => listed(&listing),
                Ok(None) => refused(StatusCode::SERVICE_UNAVAILABLE, "this node has just begun to lead"),
                Err(_) => refused(StatusCode::INTERNAL_SERVER_ERROR, "the artifacts cannot be listed"),
            };
        }
        let Ok(turn) = Arc::clone(&self.transfers).try_acquire_owned() else {
            return refused(StatusCode::SERVICE_UNAVAILABLE, "others are copying: try again later");
        };
        let found = tokio::task::spawn_blocking(move || self.host.file_at(&path)).await;
        let Ok(Some(found)) = found else { return refused(StatusCode::NOT_FOUND, "it is not here") };
        match File::open(found).await {
            Ok(file) => streamed(file, turn),
            Err(_) => refused(StatusCode::NOT_FOUND, "it is not here any more"),
        }
    }
}

fn listed(listing: &Listing) -> Response<PeerBody> {
    let text = serde_json::to_vec(listing).unwrap_or_default();
    let mut response = Response::new(full(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A file, read as it is taken. Its turn ends with it.
fn streamed(file: File, turn: OwnedSemaphorePermit) -> Response<PeerBody> {
    let pieces = ReaderStream::with_capacity(file, PIECE).map_err(BoxError::from).map_ok(move |piece| {
        let _turn = &turn;
        Frame::data(piece)
    });
    Response::new(StreamBody::new(pieces).boxed_unsync())
}

fn refused(status: StatusCode, why: &str) -> Response<PeerBody> {
    let mut response = Response::new(full(why.to_owned()));
    *response.status_mut() = status;
    response
}

/// Reason why something was not copied.
#[derive(Debug, thiserror::Error)]
enum CopyError {
    /// The leader gives nothing at the moment.
    #[error("the leader {0}")]
    Leader(String),
    /// This part of it, or the disk of this node.
    #[error("{0}")]
    Part(String),
}

/// Copies artifacts from the leader while another node leads.
pub(super) struct ArtifactCopies {
    pub(super) host: Arc<Host>,
    pub(super) leadership: watch::Receiver<LeadershipView>,
    pub(super) relay: Relay,
}

impl ArtifactCopies {
    /// Copies for as long as it is polled.
    pub(super) async fn run(mut self) {
        let mut failures = 0;
        loop {
            let done = match self.leader() {
                Some(leader) => self.follow(&leader).await,
                None => Ok(()),
            };
            match done {
                Ok(()) => failures = 0,
                Err(error) => {
                    failures += 1;
                    if failures == WORTH_TELLING {
                        tracing::warn!(event = "function_artifacts_not_copied", %error, "if this node led now, it would build functions again; retrying");
                    } else {
                        tracing::debug!(event = "function_artifacts_not_copied", %error);
                    }
                }
            }
            tokio::select! {
                () = sleep(pause(failures)) => {}
                changed = self.leadership.changed() => match changed {
                    Ok(()) => failures = 0,
                    // The process ends.
                    Err(_) => std::future::pending().await,
                },
            }
        }
    }

    /// The leader, unless this node leads.
    fn leader(&mut self) -> Option<WorkerId> {
        let view = self.leadership.borrow_and_update().clone();
        match view.leads() {
            Some(_) => None,
            None => self.relay.leader(&view).map(|(leader, _)| leader),
        }
    }

    /// One round, which ends as soon as this node leads: what is in use it decides itself then.
    async fn follow(&self, leader: &WorkerId) -> Result<(), CopyError> {
        let mut views = self.leadership.clone();
        tokio::select! {
            done = self.round(leader) => done,
            () = until_leading(&mut views) => Ok(()),
        }
    }

    async fn round(&self, leader: &WorkerId) -> Result<(), CopyError> {
        let body = match self.ask(leader, LISTING).await {
            Ok(body) => body,
            // It runs no functions, or is of a version that gives none.
            Err(CopyError::Part(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let text = timeout(FILE_WITHIN, whole(body)).await.map_err(|_| late())??;
        let listing: Listing = serde_json::from_slice(&text)
            .map_err(|error| CopyError::Leader(format!("sent a listing that cannot be read: {error}")))?;
        let host = Arc::clone(&self.host);
        let copies = blocking(move || host.copies(&listing)).await?;
        let mut wrong = Ok(());
        for part in copies.parts {
            let path = part.path();
            let done = timeout(FILE_WITHIN, self.copy(leader, part)).await.unwrap_or_else(|_| Err(late()));
            self.host.count_copy(done.is_ok());
            match done {
                Ok(()) => tracing::debug!(event = "function_artifact_copied", path, %leader),
                Err(error @ CopyError::Leader(_)) => return Err(error),
                Err(CopyError::Part(why)) => wrong = Err(CopyError::Part(format!("{path}: {why}"))),
            }
        }
        let host = Arc::clone(&self.host);
        blocking(move || host.artifacts().sweep(&copies.used)).await?;
        wrong
    }

    async fn copy(&self, leader: &WorkerId, part: CopyItem) -> Result<(), CopyError> {
        let body = self.ask(leader, &part.path()).await?;
        let host = Arc::clone(&self.host);
        let artifact = match part {
            CopyItem::Zip(artifact) => artifact,
            CopyItem::Document(digest, document) => {
                let text = whole(body).await?;
                return blocking(move || host.artifacts().keep_document(&digest, document, &text)).await;
            }
        };
        let (send, mut pieces) = mpsc::channel::<Bytes>(QUEUE);
        let written = blocking(move || {
            let mut arrival = host.artifacts().arrival(&artifact)?;
            while let Some(piece) = pieces.blocking_recv() {
                arrival.write(&piece)?;
            }
            arrival.finish()
        });
        let (read, written) = tokio::join!(pass_on(body, send), written);
        read?;
        written
    }

    async fn ask(&self, leader: &WorkerId, path: &str) -> Result<PeerBody, CopyError> {
        let request = Request::get(path).body(full(Vec::new()));
        let request = request.map_err(|error| CopyError::Part(error.to_string()))?;
        let answer = self.relay.ask(leader, request, HEAD_WITHIN).await;
        let answer = answer.map_err(|error| CopyError::Leader(format!("{leader} {error}")))?;
        match answer.status() {
            StatusCode::OK => Ok(answer.into_body()),
            StatusCode::NOT_FOUND => Err(CopyError::Part(format!("the leader {leader} does not have it"))),
            status => Err(CopyError::Leader(format!("{leader} answers with {status}"))),
        }
    }
}

/// Sends the pieces of an answer to who writes them. Where nobody takes them any more, the writer says why.
async fn pass_on(mut body: PeerBody, to: mpsc::Sender<Bytes>) -> Result<(), CopyError> {
    loop {
        let frame = timeout(PIECE_WITHIN, body.frame()).await.map_err(|_| late())?;
        let Some(frame) = frame else { return Ok(()) };
        let frame = frame.map_err(|error| CopyError::Leader(format!("broke off: {error}")))?;
        if let Ok(piece) = frame.into_data()
            && to.send(piece).await.is_err()
        {
            return Ok(());
        }
    }
}

async fn whole(body: PeerBody) -> Result<Bytes, CopyError> {
    // Behind a pointer: the compiler cannot tell of the bare future, inside of others, that it is `Send`.
    let read = Limited::new(body, LARGEST_TEXT).collect().boxed().await;
    read.map(|read| read.to_bytes()).map_err(|error| CopyError::Leader(format!("broke off: {error}")))
}

fn late() -> CopyError {
    CopyError::Leader("is too slow".to_owned())
}

/// Does what blocks on a thread for that.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, CopyError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| CopyError::Part(error.to_string())),
        Err(error) => Err(CopyError::Part(format!("a copy broke, please report it: {error}"))),
    }
}

async fn until_leading(views: &mut watch::Receiver<LeadershipView>) {
    // Nobody tells any more: the end.
    let _gone = views.wait_for(|view| view.leads().is_some()).await.is_err();
}

/// Pause before the leader is asked again.
fn pause(failures: u32) -> Duration {
    POLL_INTERVAL.saturating_mul(1 << failures.min(5)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    #[test]
    fn paths_of_functions_are_none_of_artifacts() {
        for (path, is) in [
            ("/functions-artifacts", true),
            ("/functions-artifacts/sha256:1", true),
            ("/functions-artifacts/sha256:1/lock", true),
            ("/functions-artifacts-of-mine", false),
            ("/functions/artifacts", false),
            ("/functions", false),
        ] {
            assert_eq!(ArtifactPort::is_for(path), is, "{path}");
        }
    }

    #[test]
    fn pauses_grow_with_failures() {
        let seconds: Vec<u64> = [0, 1, 2, 5, 90].map(|failures| pause(failures).as_secs()).to_vec();
        assert_eq!(seconds, [10, 20, 40, 300, 300]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_stops_is_given_up() {
        let piece = |text: &'static str| Ok::<_, BoxError>(Frame::data(Bytes::from_static(text.as_bytes())));
        let silent = StreamBody::new(futures::StreamExt::chain(stream::iter([piece("one")]), stream::pending()));
        let (send, mut pieces) = mpsc::channel(QUEUE);
        let error = pass_on(silent.boxed_unsync(), send).await.expect_err("it stops");
        assert_eq!(error.to_string(), "the leader is too slow");
        assert_eq!((pieces.recv().await, pieces.recv().await), (Some(Bytes::from_static(b"one")), None));
        let whole = StreamBody::new(stream::iter([piece("one"), piece("two")]));
        let (send, mut pieces) = mpsc::channel(QUEUE);
        pass_on(whole.boxed_unsync(), send).await.expect("all of it");
        let mut taken = Vec::new();
        while let Some(piece) = pieces.recv().await {
            taken.extend_from_slice(&piece);
        }
        assert_eq!(taken, b"onetwo");
    }
}
