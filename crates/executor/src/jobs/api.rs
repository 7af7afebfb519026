//! Jobs over HTTP, on the port of the model itself.
//!
//! ```text
//! POST /predict, Prefer: respond-async ──▶ 202, Location: /jobs/ID
//! GET /jobs/ID            where it stands          GET /jobs/ID/result   the model server's answer, as it was
//! GET /jobs/ID/events     server-sent events       DELETE /jobs/ID       ends it
//! ```

use std::{
    collections::VecDeque,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_peer::port::Damped;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use prometheus_client::metrics::counter::Counter;
use serde_json::{Value, json};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    asked::{self, IDEMPOTENCY_KEY, PREFERENCE_APPLIED, Wishes},
    follower::{self, Follower, next_look},
    followers::{self, Followers, LimitReached, StreamOwner},
    incoming::{BodyError, KIB, PACE, whole},
    job::{Answer, JobId, State, StoredRequest},
    metrics::JobMetrics,
    queue::{Bounds, Cancelled, NewJob, Queue, QueueError, Submitted},
    settings::JobSettings,
    view,
};
use crate::{
    BoxError,
    access::{LiveAccess, Sender},
    body::{Body, LetGo, PiecewiseBody, full},
};

/// Longest time for reading an answer: the largest over a slow line, and a client that reads nothing is cut off.
const READ_WITHIN: Duration = Duration::from_mins(5);

/// Answers that are fetched from the queue at once, before their sizes are known and counted.
const FETCHES: usize = 4;

/// The front of one port's queue.
pub(crate) struct JobApi {
    settings: JobSettings,
    queue: Arc<dyn Queue>,
    metrics: JobMetrics,
    /// KiB for bodies of requests that are being read, and of answers that clients have not read yet.
    room: Arc<Semaphore>,
    /// All of it.
    whole_room: usize,
    fetches: Semaphore,
    /// Answers that clients read, from the oldest.
    unread: Mutex<VecDeque<(Instant, LetGo<OwnedSemaphorePermit>)>>,
    followers: Arc<Followers>,
    /// Event streams that were cut, since their clients did not read them.
    cut: Counter,
    /// The port ends: nobody is kept waiting.
    stop: CancellationToken,
    /// Questions that the queue did not answer. Clients ask as often as they like.
    unanswered: Damped,
}

/// A request that is answered here and not by the model server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JobRequest {
    Submit,
    Status(JobId),
    Result(JobId),
    Events(JobId),
    Cancel(JobId),
    /// Below the prefix, and nothing that is there.
    Nothing,
}

impl JobRequest {
    /// True if the answer goes on for as long as the job does.
    pub(crate) const fn follows(&self) -> bool {
        matches!(self, Self::Events(_))
    }
}

impl JobApi {
    pub(crate) fn new(
        settings: JobSettings,
        queue: Arc<dyn Queue>,
        metrics: JobMetrics,
        cut: Counter,
        stop: CancellationToken,
    ) -> Self {
        let room = usize::try_from(settings.bounds.memory.div_ceil(KIB as u64))
            .unwrap_or(usize::MAX)
            .min(Semaphore::MAX_PERMITS);
        Self {
            settings,
            queue,
            metrics,
            room: Arc::new(Semaphore::new(room)),
            whole_room: room,
            fetches: Semaphore::new(FETCHES),
            unread: Mutex::default(),
            followers: Arc::default(),
            cut,
            stop,
            unanswered: Damped::default(),
        }
    }

    /// Tells what a request asks for; `None`: it is for the model server, now.
    pub(crate) fn asked<B>(&self, request: &Request<B>) -> Option<JobRequest> {
        let path = request.uri().path();
        if let Some(rest) = path.strip_prefix(&*self.settings.prefix)
            && (rest.is_empty() || rest.starts_with('/'))
        {
            let (id, what) = rest.trim_start_matches('/').split_once('/').unwrap_or((rest.trim_start_matches('/'), ""));
            return Some(match (JobId::parse(id), what, request.method()) {
                (Some(id), "", &Method::GET) => JobRequest::Status(id),
                (Some(id), "result", &Method::GET) => JobRequest::Result(id),
                (Some(id), "events", &Method::GET) => JobRequest::Events(id),
                (Some(id), "", &Method::DELETE) => JobRequest::Cancel(id),
                _ => JobRequest::Nothing,
            });
        }
        let queued = self.settings.paths.iter().any(|template| template.matches(path));
        (queued && (self.settings.always || asked::prefers_async(request.headers()))).then_some(JobRequest::Submit)
    }

    /// Resolves when nobody follows a job any more, once the port ends.
    pub(crate) async fn unfollowed(&self) {
        self.followers.tasks.close();
        self.followers.tasks.wait().await;
    }

    /// Answers such a request, from this address.
    pub(crate) async fn serve<B>(&self, asked: JobRequest, request: Request<B>, from: IpAddr) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let answered = match asked {
            JobRequest::Submit => self.submit(request).await,
            JobRequest::Status(id) => self.status(&id).await,
            JobRequest::Result(id) => self.result(&id, asked::wait(request.headers())).await,
            JobRequest::Events(id) => {
                let extensions = request.extensions();
                let sender = extensions.get::<Sender>().map(|Sender(name)| Arc::clone(name));
                let standing = extensions.get::<LiveAccess>().cloned();
                self.events(id, StreamOwner::of(sender, from), standing).await
            }
            JobRequest::Cancel(id) => self.cancel(&id).await,
            JobRequest::Nothing => Ok(refusal(
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
        self.let_go();
        let (body, _room) = match whole(body, self.settings.max_body, &self.room, PACE).await {
            Ok(read) => read,
            Err(BodyError::NoRoom) => return Ok(no_room()),
            Err(BodyError::Refused(status, reason)) => return Ok(refusal(status, &reason)),
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
                    let _fetch = self.fetches.acquire().await;
                    // It may have been forgotten in between.
                    return Ok(self
                        .queue
                        .answer(id)
                        .await?
                        .map_or_else(|| self.unknown(id), |one| self.as_it_was(one)));
                }
                State::Dead => {
                    let mut view = view::status(id, &status);
                    let _fetch = self.fetches.acquire().await;
                    if let Some(last) = self.queue.answer(id).await? {
                        view["result"] = view::answer(&last);
                    }
                    let body = self.counted(view.to_string().into());
                    return Ok(body.map_or_else(no_room, |body| json(StatusCode::BAD_GATEWAY, body)));
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

    /// The answer of the model server.
    fn as_it_was(&self, answer: Answer) -> Response<Body> {
        let (status, headers) = (answer.status(), answer.headers());
        let Some(body) = self.counted(answer.body) else { return no_room() };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }

    /// A body that holds room until the client has read it; `None`: there is none. One that is larger than all of it, from an executor with
    /// more memory, takes all.
    fn counted(&self, bytes: Bytes) -> Option<Body> {
        self.let_go();
        let needed = bytes.len().div_ceil(KIB).min(self.whole_room);
        let held: OwnedSemaphorePermit =
            Arc::clone(&self.room).try_acquire_many_owned(u32::try_from(needed).unwrap_or(u32::MAX)).ok()?;
        let pieces = PiecewiseBody::new(bytes, held);
        let mut unread = self.unread();
        if unread.len() == unread.capacity() {
            unread.retain(|(_, answer)| !answer.is_over());
        }
        unread.push_back((Instant::now(), pieces.let_go()));
        Some(pieces.boxed_unsync())
    }

    /// Lets go of answers that nobody has read in their time: they keep others from their room.
    fn let_go(&self) {
        let mut unread = self.unread();
        while unread.front().is_some_and(|(since, answer)| answer.is_over() || since.elapsed() >= READ_WITHIN) {
            if let Some((_, answer)) = unread.pop_front() {
                answer.now();
            }
        }
    }

    fn unread(&self) -> MutexGuard<'_, VecDeque<(Instant, LetGo<OwnedSemaphorePermit>)>> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
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

    async fn events(
        &self,
        id: JobId,
        owner: StreamOwner,
        standing: Option<LiveAccess>,
    ) -> Result<Response<Body>, QueueError> {
        let place = match self.followers.place(owner) {
            Ok(place) => place,
            Err(limit) => return Ok(too_many_streams(&limit)),
        };
        let ended = self.queue.ended();
        let Some(status) = self.queue.status(&id).await? else { return Ok(self.unknown(&id)) };
        let queue = Arc::clone(&self.queue);
        let follower = Follower { queue, id, ended, told: None, next: Some(status), standing, _place: place };
        let (reader, events) = follower::events();
        self.followers.tasks.spawn(follower.run(reader, self.stop.clone(), self.cut.clone()));
        let mut response = Response::new(events.into_body());
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

fn answer(status: StatusCode, view: &Value) -> Response<Body> {
    json(status, full(view.to_string()))
}

fn json(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
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

fn no_room() -> Response<Body> {
    busy("the bodies of other jobs take all memory (async.memory)")
}

/// The answer to one follower too many.
fn too_many_streams(limit: &LimitReached) -> Response<Body> {
    let reason = match limit {
        LimitReached::Port => {
            return busy(&format!("{} event streams are open, which is the most", followers::MAX_STREAMS));
        }
        LimitReached::Owner(owner @ StreamOwner::Principal(_)) => {
            format!("you have {} event streams open, which is the most: try again later", owner.most())
        }
        LimitReached::Owner(owner @ StreamOwner::Address(_)) => format!(
            "{} event streams of your address are open, which is the most: try again later, or ask with a token",
            owner.most()
        ),
    };
    let mut response = refusal(StatusCode::TOO_MANY_REQUESTS, &reason);
    response.headers_mut().insert(header::RETRY_AFTER, 5.into());
    response
}

fn refusal(status: StatusCode, reason: &str) -> Response<Body> {
    answer(status, &json!({ "error": reason }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_whose_name_begins_like_another_has_other_keys() {
        let key = |sender: &str, key: &str| key_of(Some(&Sender(sender.into())), key.to_owned());
        assert_ne!(key("oidc:Ada", "Lovelace 1"), key("oidc:Ada Lovelace", "1"));
        assert_eq!(key("oidc:Ada Lovelace", "1"), key("oidc:Ada Lovelace", "1"));
        assert_eq!(key("oidc:Ada", "1"), "oidc:Ada 1", "as in the queues of before");
        assert_eq!(key_of(None, "1".to_owned()), "1");
    }
}
