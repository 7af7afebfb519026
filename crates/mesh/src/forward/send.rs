//! One request to one endpoint: sent once, until it is answered or it is clear that it will not be.

use std::{
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use berth_peer::PeerBody;
use berth_spec::InferError;
use http::Request;
use tokio::time::{Instant, timeout_at};

use crate::{
    endpoint::{Endpoint, InFlight, fleet::NodeInstance},
    forward::buffered::BufferedResponse,
    not_run::NotRun,
};

/// A request that was given less time than this tells nothing about its endpoint when the time is over, unless that
/// was far more than the model takes: impatient clients must not eject busy endpoints.
const MIN_SAMPLE_TIME: Duration = Duration::from_secs(1);

/// The reason why there is no answer.
pub(crate) enum SendError {
    /// The endpoint says that it ran nothing.
    NotRun(NotRun),
    /// Certainly nothing arrived.
    NotSent,
    /// The request may have arrived, and the answer will not come.
    Broken,
    /// The endpoint seems to hang, and the request has left it to go elsewhere.
    Slow,
    /// The deadline has passed.
    Late,
    /// The client's body failed on its way.
    Client(InferError),
}

/// The bounds of waiting for an answer.
pub(crate) struct Wait<L> {
    pub(crate) deadline: Instant,
    /// When the endpoint has had its share of the time.
    pub(crate) patience: Option<Instant>,
    /// Asked then, once: whether the request leaves it.
    pub(crate) leaves: L,
}

impl Wait<fn() -> bool> {
    /// A wait to the deadline: no other endpoint is tried before.
    pub(crate) fn until(deadline: Instant) -> Self {
        Self { deadline, patience: None, leaves: || false }
    }
}

/// The reason why nothing is waited for any more.
enum TimeoutKind {
    Patience,
    Deadline,
}

impl<L: FnOnce() -> bool> Wait<L> {
    async fn on<T>(self, mut answered: Pin<&mut impl Future<Output = T>>) -> Result<T, TimeoutKind> {
        if let Some(patience) = self.patience {
            if let Ok(answered) = timeout_at(patience, answered.as_mut()).await {
                return Ok(answered);
            }
            if (self.leaves)() {
                return Err(TimeoutKind::Patience);
            }
        }
        timeout_at(self.deadline, answered).await.map_err(|_| TimeoutKind::Deadline)
    }
}

/// Sends it, and tells the endpoint's records how that went. With the answer comes what is under way until its last byte.
pub(crate) async fn send(
    endpoint: &Arc<Endpoint>,
    known: &NodeInstance,
    request: Request<PeerBody>,
    wait: Wait<impl FnOnce() -> bool>,
    fault: impl Fn() -> Option<InferError>,
) -> Result<(BufferedResponse, InFlight), SendError> {
    let (clock, remote) = (endpoint.remote.clock, &endpoint.remote);
    // What is under way when membership gives a node up ends with its lines.
    if !known.peer.health().is_there() {
        return Err(SendError::NotSent);
    }
    let impatient = wait.patience.is_some();
    let in_flight_guard = InFlight::to(endpoint);
    let started = Instant::now();
    let answered = pin!(async {
        match known.peer.send(request).await {
            Ok(response) => BufferedResponse::of(response).await.map_err(|error| {
                tracing::debug!(peer = %remote.name, %error, "an answer was cut off");
                SendError::Broken
            }),
            Err(error) => {
                tracing::debug!(peer = %remote.name, %error, "a request was not answered");
                Err(if error.is_not_sent() { SendError::NotSent } else { SendError::Broken })
            }
        }
    });
    let answered = wait.on(answered).await;
    // The client's own fault says nothing about the endpoint.
    if !matches!(answered, Ok(Ok(_)))
        && let Some(fault) = fault()
    {
        return Err(SendError::Client(fault));
    }
    let now = clock.now();
    match answered {
        Ok(Ok(held)) => {
            remote.outlier.good();
            match held.not_run() {
                Some(why) => {
                    match why {
                        NotRun::Draining | NotRun::Absent => endpoint.lacks(now),
                        NotRun::Stopping => remote.stops(now),
                        NotRun::Full => {}
                    }
                    Err(SendError::NotRun(why))
                }
                None => {
                    endpoint.late.good();
                    if held.is_good() {
                        endpoint.score.record(started.elapsed(), now);
                    }
                    Ok((held, in_flight_guard))
                }
            }
        }
        Ok(Err(broken)) => {
            if remote.outlier.bad(now) {
                tracing::warn!(peer = %remote.name, "a node does not answer requests; it gets none for a while");
            }
            Err(broken)
        }
        Err(over) => {
            let tells = impatient || started.elapsed() >= MIN_SAMPLE_TIME;
            if tells && endpoint.late.bad(now) {
                tracing::warn!(peer = %remote.name, "a model does not answer in time there; it gets fewer requests");
            }
            Err(match over {
                TimeoutKind::Patience => SendError::Slow,
                TimeoutKind::Deadline => SendError::Late,
            })
        }
    }
}
