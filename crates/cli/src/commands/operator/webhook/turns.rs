//! Questions of API servers, some of them long: a list of objects to convert takes some three times its length of memory, an object to review
//! more. So few long ones are here at once.
//!
//! ```text
//! head arrives ──the question has ended──▶ answered at once
//!        │ there is more
//!        ▼
//! waits for a turn ──▶ the rest arrives ──▶ answered, then the turn is free
//!                            │ slow, and others wait
//!                            └──▶ refused, the turn is free
//! ```
//! A slow sender takes little time from others: a question waits for a turn only once its head is here, and with a turn it keeps the pace while
//! others wait, or gives the turn up within a second. Turns go in the order of asking, so many slow senders still delay a question, and one that
//! has no turn in time is refused.

use std::{
    fmt::Display,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt as _;
use hyper::body::Body;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout, timeout_at},
};

/// Long questions of a kind that are here at once; others wait.
const TURNS: usize = 2;

/// Sizes and times of one kind of questions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    longest: usize,
    /// Length of a head. Shorter questions take no turn: as many as there are connections may be here at once.
    head: usize,
    /// Time until a question has its turn,
    turn_within: Duration,
    /// and until all of it is here. An API server gives up some time later, the answer included.
    here_within: Duration,
}

/// Lists to convert: API servers ask for a whole page at once, and give up after 30 s.
pub(super) const LISTS: Kind = Kind {
    longest: 32 << 20,
    head: 1 << 20,
    turn_within: Duration::from_secs(20),
    here_within: Duration::from_secs(25),
};

/// Objects to review, before and after a change, each as long as etcd takes it. The webhook's configuration lets API servers give up after 10 s.
pub(super) const REVIEWS: Kind =
    Kind { longest: 4 << 20, head: 64 << 10, turn_within: Duration::from_secs(8), here_within: Duration::from_secs(9) };

/// The pace of a long question while others wait: so many bytes in each step. A network within a cluster carries some twenty times as many.
const STEP: usize = 4 << 20;
const STEP_TIME: Duration = Duration::from_secs(1);

/// Reason why a question is not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("a question has at most {0} bytes: ask about fewer objects, or smaller ones")]
    TooLong(usize),
    #[error("the question broke off: {0}")]
    BrokenOff(String),
    #[error("the question did not arrive in time")]
    Late,
    #[error("other questions are being answered: try again")]
    Busy,
    #[error("others wait, and this question arrives too slowly: try again")]
    Slow,
}

impl Refusal {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::TooLong(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BrokenOff(_) => StatusCode::BAD_REQUEST,
            Self::Late => StatusCode::REQUEST_TIMEOUT,
            Self::Busy | Self::Slow => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// A question that has arrived. A long one has a turn until it is dropped.
#[derive(Debug)]
pub(super) struct Question {
    bytes: Vec<u8>,
    turn: Option<OwnedSemaphorePermit>,
}

impl Question {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn is_long(&self) -> bool {
        self.turn.is_some()
    }

    /// The turn of a question that was read.
    pub(super) fn into_turn(self) -> Option<OwnedSemaphorePermit> {
        self.turn
    }
}

/// Turns of long questions.
#[derive(Clone)]
pub(super) struct Turns {
    kind: Kind,
    free: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
}

impl Turns {
    pub(super) fn of(kind: Kind) -> Self {
        Self { kind, free: Arc::new(Semaphore::new(TURNS)), waiting: Arc::default() }
    }

    /// Reads a question, and waits for its turn where it is long.
    ///
    /// # Errors
    /// [`Refusal`].
    pub(super) async fn read<B>(&self, body: B) -> Result<Question, Refusal>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Display,
    {
        let Kind { longest, head, turn_within, here_within } = self.kind;
        let mut reading = Reading { body, longest, bytes: Vec::new() };
        if reading.announced() > longest as u64 {
            return Err(Refusal::TooLong(longest));
        }
        let asked = Instant::now();
        if timeout_at(asked + turn_within, reading.reach(head)).await.map_err(|_| Refusal::Late)?? {
            return Ok(Question { bytes: reading.bytes, turn: None });
        }
        let turn = self.turn(asked + turn_within).await?;
        // At most the longest: it grows once.
        reading.bytes.reserve(usize::try_from(reading.announced()).unwrap_or_default());
        timeout_at(asked + here_within, self.rest(&mut reading)).await.map_err(|_| Refusal::Late)??;
        Ok(Question { bytes: reading.bytes, turn: Some(turn) })
    }

    async fn turn(&self, until: Instant) -> Result<OwnedSemaphorePermit, Refusal> {
        let _waiting = WaitingGuard::begin(&self.waiting);
        match timeout_at(until, Arc::clone(&self.free).acquire_owned()).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(Refusal::Busy),
        }
    }

    /// Reads to the end. A slow question goes on while nobody waits: some API servers reach the cluster through a tunnel.
    async fn rest<B>(&self, reading: &mut Reading<B>) -> Result<(), Refusal>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Display,
    {
        loop {
            let length = reading.bytes.len() + STEP;
            match timeout(STEP_TIME, reading.reach(length)).await {
                Ok(ended) => {
                    if ended? {
                        return Ok(());
                    }
                }
                Err(_) if self.waiting.load(Relaxed) > 0 => return Err(Refusal::Slow),
                Err(_) => {}
            }
        }
    }
}

/// A question that waits for a turn. Counts until it is dropped.
struct WaitingGuard(Arc<AtomicUsize>);

impl WaitingGuard {
    fn begin(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for WaitingGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// A body, as far as it has arrived.
struct Reading<B> {
    body: B,
    longest: usize,
    bytes: Vec<u8>,
}

impl<B> Reading<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    /// The length that is announced and has not arrived; 0 where none is announced.
    fn announced(&self) -> u64 {
        self.body.size_hint().lower()
    }

    /// Reads until so many bytes are here, or the end. True at the end. If it is dropped before, nothing of the body is lost.
    async fn reach(&mut self, length: usize) -> Result<bool, Refusal> {
        while self.bytes.len() < length {
            let Some(frame) = self.body.frame().await else { return Ok(true) };
            let frame = frame.map_err(|error| Refusal::BrokenOff(error.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            if self.bytes.len() + data.len() > self.longest {
                return Err(Refusal::TooLong(self.longest));
            }
            self.bytes.extend_from_slice(&data);
        }
        Ok(self.body.is_end_stream())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{Stream, StreamExt as _, stream};
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;
    use tokio::time::sleep;

    use super::*;

    type FrameResult = Result<Frame<Bytes>, Infallible>;

    /// The pieces of a list of so many MiB.
    fn mebibytes(count: usize) -> impl Stream<Item = FrameResult> + Unpin {
        stream::iter(0..count).map(|_| Ok(Frame::data(Bytes::from(vec![b' '; 1 << 20]))))
    }

    /// A list whose sender falls silent after so many MiB.
    fn silent(count: usize) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
        StreamBody::new(mebibytes(count).chain(stream::pending()))
    }

    #[tokio::test(start_paused = true)]
    async fn silent_senders_give_their_turns_up_soon() {
        for sent in [0, 1, 2, 9] {
            let turns = Turns::of(LISTS);
            let begun = Instant::now();
            let read = async {
                let read = turns.read(StreamBody::new(mebibytes(20))).await;
                (read.map(|list| list.bytes().len()), begun.elapsed())
            };
            let (one, two, (read, after)) = tokio::join!(turns.read(silent(sent)), turns.read(silent(sent)), read);
            assert_eq!(read, Ok(20 << 20), "after {sent} MiB");
            assert!(after <= 4 * STEP_TIME, "after {sent} MiB: {after:?}");
            for refusal in [one, two].map(|list| list.map(drop).expect_err("it never ends")) {
                assert!([Refusal::Late, Refusal::Slow].contains(&refusal), "after {sent} MiB: {refusal}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_list_is_read_while_nobody_waits() {
        let slow = mebibytes(6).then(|piece| async move {
            sleep(2 * STEP_TIME).await;
            piece
        });
        let read = Turns::of(LISTS).read(StreamBody::new(Box::pin(slow))).await.expect("whole");
        assert_eq!(read.bytes().len(), 6 << 20);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_is_slow_in_every_step_is_refused_before_its_api_server_gives_up() {
        let turns = Turns::of(LISTS);
        let long = || turns.read(StreamBody::new(mebibytes(2)));
        let held = (long().await.expect("a turn"), long().await.expect("a turn"));
        let late = mebibytes(1).then(|piece| async move {
            sleep(Duration::from_secs(18)).await;
            piece
        });
        let asked = Instant::now();
        let read = turns.read(StreamBody::new(Box::pin(late.chain(stream::pending()))));
        let freed = async move {
            sleep(Duration::from_secs(19)).await;
            drop(held);
        };
        let (read, ()) = tokio::join!(read, freed);
        assert_eq!(read.map(drop), Err(Refusal::Late));
        assert!(asked.elapsed() < Duration::from_secs(30));
    }

    #[tokio::test(start_paused = true)]
    async fn short_lists_take_no_turn() {
        let turns = Turns::of(LISTS);
        let long = || turns.read(StreamBody::new(mebibytes(2)));
        let (_one, _two) = (long().await.expect("a turn"), long().await.expect("a turn"));
        assert_eq!(long().await.map(drop), Err(Refusal::Busy));
        for length in [0, 10, LISTS.head] {
            let read = turns.read(Full::from(vec![b' '; length])).await.expect("short");
            assert_eq!(read.bytes().len(), length);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn few_long_reviews_are_here_at_once_and_short_ones_beside_them() {
        let turns = Turns::of(REVIEWS);
        let long = |count: usize| turns.read(StreamBody::new(mebibytes(count)));
        let (_one, two) = (long(3).await.expect("a turn"), long(1).await.expect("a turn"));
        assert!(two.is_long());
        assert_eq!(long(1).await.map(drop), Err(Refusal::Busy));
        assert!(!turns.read(Full::from(vec![b' '; REVIEWS.head])).await.expect("short").is_long());
        let late = turns.read(StreamBody::new(stream::pending::<FrameResult>())).await;
        assert_eq!(late.map(drop), Err(Refusal::Late));
        // The turn of one that was read is held until the answer is there.
        let turn = two.into_turn();
        assert_eq!(long(1).await.map(drop), Err(Refusal::Busy));
        drop(turn);
        assert!(long(1).await.is_ok());
        assert_eq!(long(5).await.map(drop), Err(Refusal::TooLong(REVIEWS.longest)));
    }

    #[tokio::test]
    async fn a_list_has_a_greatest_length_announced_or_not() {
        let turns = Turns::of(LISTS);
        let announced = turns.read(Full::from(vec![b' '; LISTS.longest + 1])).await;
        assert_eq!(announced.map(drop), Err(Refusal::TooLong(LISTS.longest)));
        let sent = turns.read(StreamBody::new(mebibytes(33))).await;
        assert_eq!(sent.map(drop), Err(Refusal::TooLong(LISTS.longest)));
        let longest = turns.read(StreamBody::new(mebibytes(32))).await.expect("the longest");
        assert_eq!(longest.bytes().len(), LISTS.longest);
    }
}
