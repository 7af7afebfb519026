//! Jobs over HTTP, on the port of the model itself.
//!
//! ```text
//! POST /predict, Prefer: respond-async ──▶ 202, Location: /jobs/ID
//! GET /jobs/ID            where it stands          GET /jobs/ID/result   the model server's answer, as it was
//! GET /jobs/ID/events     server-sent events       DELETE /jobs/ID       ends it
//! ```

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use berth_peer::port::Damped;
use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use serde_json::{Value, json};
use tokio::{
    sync::{
        Semaphore, SemaphorePermit,
        broadcast::{Receiver, error::RecvError},
    },
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    asked::{self, IDEMPOTENCY_KEY, PREFERENCE_APPLIED, Wishes},
    job::{Answer, JobId, State, Status, StoredRequest},
    metrics::JobMetrics,
    queue::{Bounds, Cancelled, NewJob, Queue, QueueError, Submitted},
    settings::JobSettings,
    view,
};
use crate::{
    BoxError,
    access::Sender,
    body::{Body, full},
};

/// Time between two looks at a job, where no end is told.
const LOOK: Duration = Duration::from_secs(1);

/// The least speed of a request's body: what has come of it holds memory of all jobs meanwhile.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// So many more bytes, or the end,
    bytes: usize,
    /// come within this time.
    within: Duration,
    /// Longest wait for the whole body.
    whole: Duration,
}

const PACE: Pace = Pace { bytes: 64 << 10, within: Duration::from_secs(10), whole: Duration::from_mins(5) };

/// The unit of memory for bodies that are being read.
const KIB: usize = 1 << 10;

/// The front of one port's queue.
pub(crate) struct JobApi {
    settings: JobSettings,
    queue: Arc<dyn Queue>,
    metrics: JobMetrics,
    /// KiB for bodies that are being read.
    room: Semaphore,
    /// The port ends: nobody is kept waiting.
    stop: CancellationToken,
    /// Questions that the queue did not answer. Clients ask as often as they like.
    unanswered: Damped,
}

/// A request that is answered here and not by the model server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    Submit,
    Status(JobId),
    Result(JobId),
    Events(JobId),
    Cancel(JobId),
    /// Below the prefix, and nothing that is there.
    Nothing,
}

impl JobApi {
    pub(crate) fn new(
        settings: JobSettings,
        queue: Arc<dyn Queue>,
        metrics: JobMetrics,
        stop: CancellationToken,
    ) -> Self {
        let room = usize::try_from(settings.bounds.memory.div_ceil(KIB as u64))
            .unwrap_or(usize::MAX)
            .min(Semaphore::MAX_PERMITS);
        Self { settings, queue, metrics, room: Semaphore::new(room), stop, unanswered: Damped::default() }
    }

    /// Tells what a request asks for; `None`: it is for the model server, now.
    pub(crate) fn asked<B>(&self, request: &Request<B>) -> Option<Asked> {
        let path = request.uri().path();
        if let Some(rest) = path.strip_prefix(&*self.settings.prefix)
            && (rest.is_empty() || rest.starts_with('/'))
        {
            let (id, what) = rest.trim_start_matches('/').split_once('/').unwrap_or((rest.trim_start_matches('/'), ""));
            return Some(match (JobId::parse(id), what, request.method()) {
                (Some(id), "", &Method::GET) => Asked::Status(id),
                (Some(id), "result", &Method::GET) => Asked::Result(id),
                (Some(id), "events", &Method::GET) => Asked::Events(id),
                (Some(id), "", &Method::DELETE) => Asked::Cancel(id),
                _ => Asked::Nothing,
            });
        }
        let queued = self.settings.paths.iter().any(|template| template.matches(path));
        (queued && (self.settings.always || asked::prefers_async(request.headers()))).then_some(Asked::Submit)
    }

    /// Answers such a request.
    pub(crate) async fn serve<B>(&self, asked: Asked, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let answered = match asked {
            Asked::Submit => self.submit(request).await,
            Asked::Status(id) => self.status(&id).await,
            Asked::Result(id) => self.result(&id, asked::wait(request.headers())).await,
            Asked::Events(id) => self.events(id).await,
            Asked::Cancel(id) => self.cancel(&id).await,
            Asked::Nothing => Ok(refusal(
                StatusCode::NOT_FOUND,
                &format!("there is nothing but GET and DELETE {}/ID", self.settings.prefix),
            )),
        };
        answered.unwrap_or_else(|error| {
            if let Some(times) = self.unanswered.tell(Instant::now()) {
                tracing::warn!(%error, times, "a question about jobs was not answered");
            }
            let mut response = refusal(StatusCode::SERVICE_UNAVAILABLE, &format!("{error}: try again later"));
            response.headers_mut().insert(header::RETRY_AFTER, 1.into());
            response
        })
    }

    async fn submit<B>(&self, request: Request<B>) -> Result<Response<Body>, QueueError>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let (mut head, body) = request.into_parts();
        let wishes = match Wishes::read(&head.headers, &self.settings.callbacks.allow) {
            Ok(wishes) => wishes,
            Err(reason) => return Ok(refusal(StatusCode::BAD_REQUEST, &reason)),
        };
        // It counts until it is in the queue, which counts it from there.
        let (body, _room) = match whole(body, self.settings.max_body, &self.room, PACE).await {
            Ok(read) => read,
            Err(Unread::NoRoom) => return Ok(busy("the bodies of other jobs take all memory (async.memory)")),
            Err(Unread::Refused(status, reason)) => return Ok(refusal(status, &reason)),
        };
        let id = JobId::generate();
        asked::settle(&mut head.headers, &id);
        let Wishes { priority, key, callback } = wishes;
        let sender = head.extensions.get::<Sender>();
        let key = key.map(|key| key_of(sender, key));
        let request = StoredRequest::new(&head, body);
        let submitted = self.queue.submit(NewJob { id: id.clone(), priority, key, callback, request }).await?;
        self.metrics.submitted(&submitted);
        Ok(match submitted {
            Submitted::New => self.accepted(&id, State::Queued),
            Submitted::Known(id) => {
                let state = self.queue.status(&id).await?.map_or(State::Queued, |status| status.state);
                self.accepted(&id, state)
            }
            Submitted::Conflict => {
                let reason =
                    format!("{IDEMPOTENCY_KEY} was used for another request: choose a new key for a new request");
                refusal(StatusCode::UNPROCESSABLE_ENTITY, &reason)
            }
            Submitted::Full => {
                let Bounds { most, memory, .. } = self.settings.bounds;
                let reason = format!(
                    "{most} jobs are waiting, which is the most (async.maxJobs), or they take {memory} bytes (async.memory)"
                );
                busy(&reason)
            }
        })
    }

    fn accepted(&self, id: &JobId, state: State) -> Response<Body> {
        let place = format!("{}/{id}", self.settings.prefix);
        let view = json!({
            "id": id.as_str(), "state": state, "status": place,
            "result": format!("{place}/result"), "events": format!("{place}/events"),
        });
        let mut response = answer(StatusCode::ACCEPTED, &view);
        let headers = response.headers_mut();
        headers.insert(PREFERENCE_APPLIED, HeaderValue::from_static("respond-async"));
        if let Ok(place) = HeaderValue::from_str(&place) {
            headers.insert(header::LOCATION, place);
        }
        response
    }

    async fn status(&self, id: &JobId) -> Result<Response<Body>, QueueError> {
        let status = self.queue.status(id).await?;
        Ok(status.map_or_else(|| self.unknown(id), |status| answer(StatusCode::OK, &view::status(id, &status))))
    }

    async fn result(&self, id: &JobId, wait: Option<Duration>) -> Result<Response<Body>, QueueError> {
        let until = Instant::now() + wait.unwrap_or_default();
        let mut ended = self.queue.ended();
        loop {
            let Some(status) = self.queue.status(id).await? else { return Ok(self.unknown(id)) };
            match status.state {
                State::Done => {
                    // It may have been forgotten in between.
                    return Ok(self.queue.answer(id).await?.map_or_else(|| self.unknown(id), as_it_was));
                }
                State::Dead => {
                    let mut view = view::status(id, &status);
                    if let Some(last) = self.queue.answer(id).await? {
                        view["result"] = view::answer(last);
                    }
                    return Ok(answer(StatusCode::BAD_GATEWAY, &view));
                }
                State::Cancelled => return Ok(answer(StatusCode::GONE, &view::status(id, &status))),
                State::Queued | State::Running if Instant::now() >= until || self.stop.is_cancelled() => {
                    let mut response = answer(StatusCode::ACCEPTED, &view::status(id, &status));
                    response.headers_mut().insert(header::RETRY_AFTER, 1.into());
                    return Ok(response);
                }
                State::Queued | State::Running => {
                    // Then it is told at once where the job stands.
                    self.stop.run_until_cancelled(next_look(&mut ended, id, until)).await;
                }
            }
        }
    }

    async fn cancel(&self, id: &JobId) -> Result<Response<Body>, QueueError> {
        Ok(match self.queue.cancel(id).await? {
            Cancelled::Unknown => self.unknown(id),
            Cancelled::Now => {
                self.metrics.cancelled();
                answer(StatusCode::OK, &json!({ "id": id.as_str(), "state": State::Cancelled }))
            }
            Cancelled::Ended(state) => {
                let reason = "the job has ended: there is nothing to cancel";
                answer(StatusCode::CONFLICT, &json!({ "error": reason, "id": id.as_str(), "state": state }))
            }
        })
    }

    async fn events(&self, id: JobId) -> Result<Response<Body>, QueueError> {
        let ended = self.queue.ended();
        let Some(status) = self.queue.status(&id).await? else { return Ok(self.unknown(&id)) };
        let follower = Follower {
            queue: Arc::clone(&self.queue),
            id,
            ended,
            told: None,
            next: Some(status),
            stop: self.stop.clone(),
        };
        let body = StreamBody::new(stream::unfold(follower, Follower::event));
        let mut response = Response::new(body.map_err(|never| match never {}).boxed_unsync());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }

    fn unknown(&self, id: &JobId) -> Response<Body> {
        let keep = self.settings.bounds.keep.as_secs();
        refusal(
            StatusCode::NOT_FOUND,
            &format!("there is no job {id}: jobs are kept for {keep} s after their end (async.keep)"),
        )
    }
}

/// Follows a job for one client, up to its end.
struct Follower {
    queue: Arc<dyn Queue>,
    id: JobId,
    ended: Receiver<JobId>,
    told: Option<(State, u32)>,
    next: Option<Status>,
    stop: CancellationToken,
}

impl Follower {
    /// The next event, or a comment that keeps the connection when nothing has changed.
    async fn event(mut self) -> Option<(Result<Frame<Bytes>, Infallible>, Self)> {
        if self.told.is_some_and(|(state, _)| state.is_end()) {
            return None;
        }
        let until = Instant::now() + 15 * LOOK;
        let text = loop {
            let status = match self.next.take() {
                Some(status) => status,
                None => {
                    self.stop.run_until_cancelled(next_look(&mut self.ended, &self.id, until)).await?;
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
                break format!("event: {name}\ndata: {}\n\n", view::status(&self.id, &status));
            }
            if Instant::now() >= until {
                break ":\n\n".to_owned();
            }
        };
        Some((Ok(Frame::data(text.into())), self))
    }
}

/// An idempotency key as the queue knows it: the keys of one sender are nobody else's. Queues outlive executors, so this form stays.
///
/// A key may have blanks and no line breaks: up to the first blank is a name without blanks, up to the first line break one with some.
fn key_of(sender: Option<&Sender>, key: String) -> String {
    match sender {
        Some(Sender(sender)) if sender.contains(' ') => format!("{sender}\n{key}"),
        Some(Sender(sender)) => format!("{sender} {key}"),
        None => key,
    }
}

/// Reason why a body was not read.
#[derive(Debug, PartialEq, Eq)]
enum Unread {
    NoRoom,
    Refused(StatusCode, String),
}

/// A whole body, and the room that it holds: taken as data comes, so that who announces much and sends nothing takes none from others.
async fn whole<B>(
    body: B,
    most: usize,
    room: &Semaphore,
    pace: Pace,
) -> Result<(Vec<u8>, Option<SemaphorePermit<'_>>), Unread>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
{
    let refused = |status, reason: String| Err(Unread::Refused(status, reason));
    let mut body = pin!(body);
    let (mut read, mut held, mut permit) = (Vec::new(), 0, None::<SemaphorePermit<'_>>);
    let now = Instant::now();
    let (end, mut due, mut wanted) = (now + pace.whole, now + pace.within, pace.bytes);
    loop {
        let frame = match timeout_at(due.min(end), body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(None) => return Ok((read, permit)),
            // The client has gone.
            Ok(Some(Err(_))) => return refused(StatusCode::BAD_REQUEST, "the body broke off".to_owned()),
            Err(_) if end <= due => {
                let seconds = pace.whole.as_secs();
                let reason = format!("the body did not arrive within {seconds} s: send it again");
                return refused(StatusCode::REQUEST_TIMEOUT, reason);
            }
            Err(_) => {
                let (bytes, seconds) = (pace.bytes, pace.within.as_secs());
                let reason = format!("less than {bytes} bytes of the body arrived within {seconds} s: send it again");
                return refused(StatusCode::REQUEST_TIMEOUT, reason);
            }
        };
        // Nobody reads trailers.
        let Ok(data) = frame.into_data() else { continue };
        let length = read.len() + data.len();
        if length > most {
            let reason = format!("the body has more than {most} bytes, which is the most for a job (async.maxBody)");
            return refused(StatusCode::PAYLOAD_TOO_LARGE, reason);
        }
        let needed = length.div_ceil(KIB);
        if needed > held {
            let more = u32::try_from(needed - held).unwrap_or(u32::MAX);
            let more = room.try_acquire_many(more).map_err(|_| Unread::NoRoom)?;
            match &mut permit {
                Some(permit) => permit.merge(more),
                None => permit = Some(more),
            }
            held = needed;
        }
        read.extend_from_slice(&data);
        if length >= wanted {
            (wanted, due) = (length + pace.bytes, Instant::now() + pace.within);
        }
    }
}

/// Waits until a job may have changed.
async fn next_look(ended: &mut Receiver<JobId>, id: &JobId, until: Instant) {
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
    let _ = timeout_at(until.min(Instant::now() + LOOK), pin!(told)).await;
}

/// The answer of the model server.
fn as_it_was(answer: Answer) -> Response<Body> {
    let (status, headers) = (answer.status(), answer.headers());
    let mut response = Response::new(full(answer.body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

fn answer(status: StatusCode, view: &Value) -> Response<Body> {
    let mut response = Response::new(full(view.to_string()));
    *response.status_mut() = status;
    let headers: &mut HeaderMap = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn busy(reason: &str) -> Response<Body> {
    let mut response = refusal(StatusCode::SERVICE_UNAVAILABLE, &format!("{reason}: try again later"));
    response.headers_mut().insert(header::RETRY_AFTER, 5.into());
    response
}

fn refusal(status: StatusCode, reason: &str) -> Response<Body> {
    answer(status, &json!({ "error": reason }))
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, StreamExt as _};

    use super::*;

    type Part = Result<Frame<Bytes>, Infallible>;

    fn part(length: usize) -> Part {
        Ok(Frame::data(vec![b'x'; length].into()))
    }

    fn status<T>(read: Result<T, Unread>) -> Option<StatusCode> {
        match read {
            Err(Unread::Refused(status, _)) => Some(status),
            _ => None,
        }
    }

    #[test]
    fn a_sender_whose_name_begins_like_another_has_other_keys() {
        let key = |sender: &str, key: &str| key_of(Some(&Sender(sender.into())), key.to_owned());
        assert_ne!(key("oidc:Ada", "Lovelace 1"), key("oidc:Ada Lovelace", "1"));
        assert_eq!(key("oidc:Ada Lovelace", "1"), key("oidc:Ada Lovelace", "1"));
        assert_eq!(key("oidc:Ada", "1"), "oidc:Ada 1", "as in the queues of before");
        assert_eq!(key_of(None, "1".to_owned()), "1");
    }

    #[tokio::test]
    async fn a_body_that_never_comes_is_not_waited_for_without_an_end() {
        let (soon, room) = (Duration::from_millis(20), Semaphore::new(4));
        for pace in [Pace { within: soon, ..PACE }, Pace { whole: soon, ..PACE }] {
            let silent = StreamBody::new(stream::pending::<Part>());
            assert_eq!(status(whole(silent, 10, &room, pace).await), Some(StatusCode::REQUEST_TIMEOUT), "{pace:?}");
        }
        let long = whole(full("more than ten bytes"), 10, &room, PACE).await;
        assert_eq!(status(long), Some(StatusCode::PAYLOAD_TOO_LARGE));
        let (read, permit) = whole(full("ten bytes"), 10, &room, PACE).await.expect("whole");
        assert_eq!((read.as_slice(), room.available_permits()), (&b"ten bytes"[..], 3));
        drop(permit);
        assert_eq!(room.available_permits(), 4);
    }

    #[tokio::test]
    async fn a_body_that_drips_is_refused_and_one_that_comes_is_read() {
        let pace = Pace { bytes: 1_000, within: Duration::from_millis(100), ..PACE };
        let drips = |length: usize, parts: usize| {
            let parts = stream::iter(0..parts).then(move |_| async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                part(length)
            });
            StreamBody::new(parts)
        };
        let room = Semaphore::new(1 << 10);
        let read = whole(drips(1, usize::MAX), 1 << 20, &room, pace).await;
        assert_eq!(status(read), Some(StatusCode::REQUEST_TIMEOUT));
        assert_eq!(room.available_permits(), 1 << 10);
        // It takes longer than the time for a part of it.
        let (read, _) = whole(drips(1_000, 40), 1 << 20, &room, pace).await.expect("whole");
        assert_eq!(read.len(), 40_000);
    }

    #[tokio::test]
    async fn room_is_taken_by_what_came_and_not_by_what_was_announced() {
        let room = Semaphore::new(4);
        let stalled = |length: usize| StreamBody::new(stream::iter([part(length)]).chain(stream::pending()));
        // Up to four KiB each, and so far one.
        let mut reading: Vec<_> = (0..3).map(|_| Box::pin(whole(stalled(1_000), 4 * KIB, &room, PACE))).collect();
        for one in &mut reading {
            assert!(one.as_mut().now_or_never().is_none());
        }
        assert_eq!(room.available_permits(), 1);
        let too_much = whole(stalled(2 * KIB), 4 * KIB, &room, PACE).await;
        assert!(matches!(too_much, Err(Unread::NoRoom)));
        drop(reading);
        assert_eq!(room.available_permits(), 4);
    }
}
