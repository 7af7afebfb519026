//! The body of a request, as often as it is needed: streamed to an endpoint, read for the own replica, sent again elsewhere.
//!
//! ```text
//!  Untouched ──bytes()──▶ Whole ◀── short, or complete at the first look
//!      │ again()
//!      ▼
//!  Streaming: what passes is kept, until it is more than may be kept ──▶ let go: cannot be sent again
//! ```
//!
//! Pieces are kept as they came, but for small ones, which are copied together.

mod streaming;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_peer::PeerBody;
use berth_spec::InferError;
use bytes::{Bytes, BytesMut};
use futures::FutureExt as _;
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use crate::{
    body::{
        broken::broken,
        memory::RequestMemory,
        read::{self, Pace},
        upload::streaming::{Streaming, StreamingReader, lock},
    },
    config::Limits,
    oip::grpc::frame::FRAME_PREFIX,
    payload::RequestTap,
    watch::Length,
};

/// The longest pause where there is no bound on it: as long as the longest call.
const MAX_PAUSE: Duration = Duration::from_secs(3_600);

/// Bytes of a body that is read before it is sent on. A body that is sent while it comes takes two steps to its
/// endpoint, which at one request a time costs a third of the hop; a longer one would begin too late.
const MAX_BUFFERED_BYTES: u64 = 64 << 10;

/// The bytes that all uploads together keep, to be able to send them again.
#[derive(Debug)]
pub(crate) struct ReplayBudget {
    used: AtomicUsize,
    most: usize,
}

impl ReplayBudget {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), most })
    }

    /// Bytes that are kept now.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        if self.used.fetch_add(bytes, Relaxed) + bytes <= self.most {
            return true;
        }
        self.used.fetch_sub(bytes, Relaxed);
        false
    }
}

/// The body of a request, read once or sent on while it comes. Kept for a second attempt as far as there is room.
pub(crate) struct Upload {
    state: State,
    bounds: Bounds,
    /// Payload processors that have not seen it.
    tap: Option<RequestTap>,
    /// Bytes of it, once it was read whole.
    length: usize,
}

/// The bounds of one upload: its length, its pauses, and the memory that it takes.
#[derive(Clone)]
pub(crate) struct Bounds {
    /// Bytes in all.
    body: usize,
    /// The longest pause; `None`: it may rest.
    pause: Option<Duration>,
    /// Bytes that are kept.
    replay: usize,
    /// `None`: nothing is sent anywhere, and nothing is kept.
    room: Option<Arc<ReplayBudget>>,
    /// Budget that it counts against.
    memory: Arc<RequestMemory>,
}

impl Bounds {
    /// For a stream, which may rest and has no length: flow control bounds it.
    pub(crate) fn of_stream(self) -> Self {
        Self { body: usize::MAX, pause: None, ..self }
    }

    /// The most bytes that the body may have in all.
    pub(crate) fn longest(&self) -> usize {
        self.body
    }

    /// The longest pause between two pieces.
    pub(crate) fn pause(&self) -> Duration {
        self.pause.unwrap_or(MAX_PAUSE)
    }

    /// The budget that its bytes count against.
    pub(crate) fn memory(&self) -> &Arc<RequestMemory> {
        &self.memory
    }

    /// The same for a message with its gRPC frame of [`FRAME_PREFIX`] bytes.
    pub(crate) fn framed(self) -> Self {
        Self { body: self.body.saturating_add(FRAME_PREFIX), ..self }
    }

    pub(crate) fn new(limits: &Limits, room: Option<&Arc<ReplayBudget>>, memory: &Arc<RequestMemory>) -> Self {
        Self {
            body: limits.body,
            pause: Some(limits.body_idle),
            replay: limits.replay,
            room: room.cloned(),
            memory: Arc::clone(memory),
        }
    }
}

enum State {
    Untouched(Incoming),
    Whole(Bytes),
    Streaming(Arc<Mutex<Streaming>>),
    /// Taken, and not given back.
    Spent,
}

impl Upload {
    pub(crate) fn new(body: Incoming, bounds: Bounds) -> Self {
        Self { state: State::Untouched(body), bounds, tap: None, length: 0 }
    }

    /// One whose first bytes have been read.
    pub(crate) fn begun(first: Bytes, body: Incoming, bounds: Bounds) -> Self {
        let mut streaming = Streaming::new(body, bounds.clone());
        streaming.begin_with(first);
        Self { state: State::Streaming(Arc::new(Mutex::new(streaming))), bounds, tap: None, length: 0 }
    }

    /// An upload whose bytes are here already.
    pub(crate) fn whole(body: Bytes, bounds: Bounds) -> Self {
        Self { state: State::Whole(body), bounds, tap: None, length: 0 }
    }

    /// Another body with the same bounds, without a copy for processors.
    pub(crate) fn instead(&self, body: Bytes) -> Self {
        Self::whole(body, self.bounds.clone())
    }

    /// Has payload processors see it.
    pub(crate) fn tap(&mut self, mut tap: RequestTap) {
        match &self.state {
            State::Untouched(_) => self.tap = Some(tap),
            State::Whole(bytes) => whole(&mut tap, bytes),
            State::Streaming(shared) => lock(shared).tap(tap),
            State::Spent => {}
        }
    }

    /// All of it, for the own replica.
    pub(crate) async fn bytes(&mut self, deadline: Instant) -> Result<Bytes, InferError> {
        let bytes = match std::mem::replace(&mut self.state, State::Spent) {
            State::Whole(bytes) => bytes,
            State::Untouched(mut incoming) => {
                let pace = Pace { pause: self.bounds.pause(), deadline };
                let read = read::read(&mut incoming, self.bounds.body, pace, &self.bounds.memory).await;
                // What is left of it may have to be discarded.
                match read {
                    Ok(bytes) => {
                        if let Some(mut tap) = self.tap.take() {
                            whole(&mut tap, &bytes);
                        }
                        bytes
                    }
                    Err(error) => {
                        self.state = State::Untouched(incoming);
                        return Err(error);
                    }
                }
            }
            State::Streaming(shared) => {
                let reader = StreamingReader::new(&shared).ok_or_else(unrepeatable)?;
                let read = timeout_at(deadline, collect(reader, &self.bounds.memory)).await;
                let fault = lock(&shared).fault.clone();
                match read {
                    Ok(Ok(whole)) => whole,
                    Ok(Err(error)) => return Err(fault.unwrap_or(error)),
                    Err(_) => return Err(too_late()),
                }
            }
            State::Spent => return Err(unrepeatable()),
        };
        self.length = bytes.len();
        if self.bounds.room.is_some() {
            self.state = State::Whole(bytes.clone());
        }
        Ok(bytes)
    }

    /// Reads a short body before it is sent: head and body then arrive together, the endpoint waits for nobody's client, and
    /// a slow client is not counted as in flight.
    pub(crate) async fn gather(&mut self, deadline: Instant) -> Result<(), InferError> {
        if let State::Untouched(incoming) = &self.state
            && incoming.size_hint().exact().is_some_and(|length| length <= MAX_BUFFERED_BYTES)
        {
            self.bytes(deadline).await?;
        }
        Ok(())
    }

    /// A body to send. `None`: it was sent before, and not all of it was kept.
    pub(crate) fn again(&mut self) -> Option<PeerBody> {
        if let State::Untouched(_) = &self.state
            && let State::Untouched(incoming) = std::mem::replace(&mut self.state, State::Spent)
        {
            self.state = self.begin(incoming);
            match (&self.state, self.tap.take()) {
                (State::Whole(bytes), Some(mut tap)) => whole(&mut tap, bytes),
                (State::Streaming(shared), Some(tap)) => lock(shared).tap(tap),
                _ => {}
            }
        }
        match &self.state {
            State::Whole(bytes) => Some(berth_peer::full(bytes.clone())),
            State::Streaming(shared) => StreamingReader::new(shared).map(|reader| reader.boxed_unsync()),
            State::Untouched(_) | State::Spent => None,
        }
    }

    /// Most bodies are complete when their request is looked at: then there is nothing to stream.
    fn begin(&self, mut incoming: Incoming) -> State {
        if incoming.is_end_stream() {
            return State::Whole(Bytes::new());
        }
        let first = match incoming.frame().now_or_never() {
            None => None,
            Some(None) => return State::Whole(Bytes::new()),
            Some(Some(Ok(frame))) => frame.into_data().ok(),
            Some(Some(Err(error))) => {
                let mut streaming = Streaming::new(incoming, self.bounds.clone());
                streaming.fault = Some(broken(&error));
                return State::Streaming(Arc::new(Mutex::new(streaming)));
            }
        };
        match first {
            Some(first) if incoming.is_end_stream() && first.len() <= self.bounds.body => State::Whole(first),
            first => {
                let mut streaming = Streaming::new(incoming, self.bounds.clone());
                if let Some(first) = first {
                    streaming.begin_with(first);
                }
                State::Streaming(Arc::new(Mutex::new(streaming)))
            }
        }
    }

    /// True if it could be sent once more.
    pub(crate) fn is_repeatable(&self) -> bool {
        match &self.state {
            State::Untouched(_) | State::Whole(_) => true,
            State::Streaming(shared) => lock(shared).is_repeatable(),
            State::Spent => false,
        }
    }

    /// The fault of the client while its body was sent on.
    pub(crate) fn fault(&self) -> Option<InferError> {
        match &self.state {
            State::Streaming(shared) => lock(shared).fault.clone(),
            _ => None,
        }
    }

    /// The budget that its bytes count against.
    pub(crate) fn memory(&self) -> &Arc<RequestMemory> {
        &self.bounds.memory
    }

    /// The most bytes that it may have.
    pub(crate) fn limit(&self) -> usize {
        self.bounds.body
    }

    /// Bytes that came so far.
    pub(crate) fn received(&self) -> usize {
        self.length().now()
    }

    /// Its length, which may grow on.
    pub(crate) fn length(&self) -> Length {
        match &self.state {
            State::Whole(bytes) => Length::Known(bytes.len()),
            State::Streaming(shared) => Length::Growing(Arc::clone(&lock(shared).total)),
            State::Untouched(_) | State::Spent => Length::Known(self.length),
        }
    }

    /// The body, if nobody has touched it: to be discarded before the answer.
    pub(crate) fn untouched(self) -> Option<Incoming> {
        match self.state {
            State::Untouched(incoming) => Some(incoming),
            _ => None,
        }
    }
}

/// Has payload processors see a body that is here.
fn whole(tap: &mut RequestTap, bytes: &Bytes) {
    tap.piece(bytes);
    tap.end();
}

/// All that is left of a body, in one piece.
async fn collect(mut reader: StreamingReader, memory: &Arc<RequestMemory>) -> Result<Bytes, InferError> {
    let (mut charge, mut whole) = (memory.charge(), BytesMut::new());
    while let Some(frame) = reader.frame().await {
        // The fault is kept with the body.
        let Ok(piece) = frame.map_err(|_| InferError::Cancelled)?.into_data() else { continue };
        charge.grow_to(whole.capacity().max(whole.len() + piece.len()))?;
        whole.extend_from_slice(&piece);
    }
    Ok(charge.hold(whole.freeze()))
}

/// The error of a body that is gone: nothing of it was run.
pub(crate) fn unrepeatable() -> InferError {
    let message =
        "the endpoint that was to answer went away after more of the body had passed than is kept; send it again";
    InferError::shed(berth_spec::inference::Shed::Unavailable, message, Duration::from_secs(1))
}

fn too_late() -> InferError {
    InferError::TimedOut("the request's body was not complete before its deadline".to_owned())
}
