//! Requests that are answered before they were read whole. Over HTTP/2 some clients (curl 7.88) take the end of a stream
//! to which they still write for an error and drop the answer; over HTTP/1 the close of a port with unread bytes resets
//! the connection. So what little is left of such a request is read first.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

/// Bytes that are read. A client that sends more is cut off.
const BYTES: usize = 256 << 10;

/// Longest time for them: a client on a slow line gets the answer, and a slow one keeps no connection.
const TIME: Duration = Duration::from_millis(500);

/// Takes what little is left of a body that nobody wants, so that the client, which may still be sending, reads the
/// answer rather than a reset. A client that sends much or slowly is cut off. One that waits for `100 Continue` sends nothing
/// unless it is asked to, and reading asks it.
pub async fn discard(headers: &HeaderMap, body: Incoming) {
    if !headers.contains_key(header::EXPECT) {
        read_off(body).await;
    }
}

/// Answers a request with the rest of its body read first, wherever `answer` left it. gRPC calls are left alone: their
/// clients expect early answers, and a stream may have no end.
pub async fn answer_whole<B, F>(
    request: Request<Incoming>,
    answer: impl FnOnce(Request<RequestBody>) -> F,
) -> Response<B>
where
    F: Future<Output = Response<B>>,
{
    let grpc = request
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    let unasked = grpc || request.headers().contains_key(header::EXPECT) || request.body().is_end_stream();
    let left = (!unasked).then(Arc::<Left>::default);
    let response = answer(request.map(|body| RequestBody { body: Some(body), left: left.clone() })).await;
    if let Some(body) = left.and_then(|left| left.take()) {
        read_off(body).await;
    }
    response
}

async fn read_off(mut body: Incoming) {
    let mut room = BYTES;
    let whole = async {
        while let Some(Ok(frame)) = body.frame().await {
            match room.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                Some(rest) => room = rest,
                None => return,
            }
        }
    };
    // Either way the answer goes out.
    let _ = tokio::time::timeout(TIME, whole).await;
}

/// The body that a reader dropped before its end.
#[derive(Default)]
struct Left(Mutex<Option<Incoming>>);

impl Left {
    fn put(&self, body: Incoming) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
    }

    fn take(&self) -> Option<Incoming> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The body of a request under [`answer_whole`].
pub struct RequestBody {
    /// `None` once it is left or at its end.
    body: Option<Incoming>,
    left: Option<Arc<Left>>,
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let (Some(left), Some(body)) = (&self.left, self.body.take().filter(|body| !body.is_end_stream())) {
            left.put(body);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, SinkExt, channel::mpsc};
    use http::StatusCode;
    use http_body_util::{Empty, StreamBody};
    use hyper::{client, server, service::service_fn};
    use hyper_util::rt::{TokioExecutor, TokioIo};

    use super::*;

    type Chunk = Result<Frame<Bytes>, std::convert::Infallible>;

    /// A server that refuses each request unread, and a client's request to it whose body comes piece by piece.
    async fn refused(kind: &'static str) -> (mpsc::Sender<Chunk>, impl Future<Output = StatusCode>) {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let refuse = service_fn(async |request: Request<Incoming>| {
            let mut response = Response::new(Empty::<Bytes>::new());
            *response.status_mut() = StatusCode::FORBIDDEN;
            Ok::<_, std::convert::Infallible>(answer_whole(request, |_| std::future::ready(response)).await)
        });
        let served =
            server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(theirs), refuse);
        let (mut sender, line) =
            client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(ours)).await.expect("a line");
        let (pieces, body) = mpsc::channel::<Chunk>(1);
        let request = Request::post("http://a/")
            .header(header::CONTENT_TYPE, kind)
            .body(StreamBody::new(body))
            .expect("a request");
        let asked = sender.send_request(request);
        let status = async move {
            let beside = futures::future::join(served, line).map(|_| ()).fuse();
            tokio::select! {
                answer = asked => answer.expect("an answer").status(),
                () = beside => unreachable!("the client holds the line"),
            }
        };
        (pieces, status)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_waits_for_the_end_of_the_request() {
        let (mut pieces, status) = refused("application/json").await;
        let sent = async {
            tokio::time::sleep(TIME / 2).await;
            pieces.send(Ok(Frame::data(Bytes::from_static(b"{}")))).await.expect("still read");
            let sent = tokio::time::Instant::now();
            drop(pieces);
            sent
        };
        let answered = async { (status.await, tokio::time::Instant::now()) };
        let (sent, (status, answered)) = tokio::join!(sent, answered);
        assert_eq!(status, StatusCode::FORBIDDEN);
        assert!(sent <= answered, "the answer came before the request was read");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_end_is_answered_all_the_same() {
        let began = tokio::time::Instant::now();
        let (_pieces, status) = refused("application/json").await;
        assert_eq!((status.await, began.elapsed() >= TIME), (StatusCode::FORBIDDEN, true));
    }

    #[tokio::test(start_paused = true)]
    async fn grpc_calls_are_refused_at_once() {
        let began = tokio::time::Instant::now();
        let (_pieces, status) = refused("application/grpc+proto").await;
        assert_eq!((status.await, began.elapsed() < TIME), (StatusCode::FORBIDDEN, true));
    }
}
