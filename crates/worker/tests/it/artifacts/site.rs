//! A web server with one object, that behaves as well or badly as a test wants.

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, stream};
use http_body_util::{BodyExt, Empty, StreamBody, combinators::BoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Frame, Incoming},
    header,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, task::JoinSet};

/// The behaviour of the server.
#[derive(Debug, Clone)]
pub(super) struct Behaviour {
    /// Answers ranges.
    pub(super) ranges: bool,
    /// Gives the length of whole answers.
    pub(super) length: bool,
    /// Sends the object to its end, whatever range was asked for.
    pub(super) too_much: bool,
    pub(super) etag: Option<&'static str>,
    /// Requires exactly this query.
    pub(super) query: Option<&'static str>,
    /// Answers everything with this status.
    pub(super) status: Option<u16>,
    /// Breaks off once this byte of the object is to be sent.
    pub(super) break_at: Option<usize>,
    /// Pauses between pieces.
    pub(super) slow: bool,
    /// Hangs up at once.
    pub(super) down: bool,
}

impl Default for Behaviour {
    fn default() -> Self {
        let etag = Some("\"one\"");
        Self {
            ranges: true,
            length: true,
            too_much: false,
            etag,
            query: None,
            status: None,
            break_at: None,
            slow: false,
            down: false,
        }
    }
}

/// The server; it ends with the value.
pub(super) struct Site {
    pub(super) url: String,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

struct Shared {
    content: Mutex<Bytes>,
    behaviour: Mutex<Behaviour>,
    requests: Mutex<Vec<String>>,
    sent: AtomicU64,
}

type Body = BoxBody<Bytes, std::io::Error>;

impl Site {
    pub(super) async fn start(content: Vec<u8>, behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let shared = Arc::new(Shared {
            content: Mutex::new(content.into()),
            behaviour: Mutex::new(behaviour),
            requests: Mutex::default(),
            sent: AtomicU64::new(0),
        });
        let mut tasks = JoinSet::new();
        let serving = Arc::clone(&shared);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let shared = Arc::clone(&serving);
                connections.spawn(async move {
                    let answer = service_fn(|request| {
                        let shared = Arc::clone(&shared);
                        async move { Ok::<_, Infallible>(shared.answer(&request)) }
                    });
                    // A client that hangs up is part of some tests.
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), answer).await;
                });
            }
        });
        Self { url, shared, _tasks: tasks }
    }

    pub(super) fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.shared.behaviour.lock().expect("no panic"));
    }

    pub(super) fn replace(&self, content: Vec<u8>, etag: &'static str) {
        *self.shared.content.lock().expect("no panic") = content.into();
        self.behave(|behaviour| behaviour.etag = Some(etag));
    }

    pub(super) fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().expect("no panic").clone()
    }

    /// Bytes of the object that were sent.
    pub(super) fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn answer(self: &Arc<Self>, request: &Request<Incoming>) -> Response<Body> {
        let behaviour = self.behaviour.lock().expect("no panic").clone();
        let content = self.content.lock().expect("no panic").clone();
        let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).map(ToOwned::to_owned);
        let range = header(header::RANGE);
        self.requests.lock().expect("no panic").push(format!("{} {:?}", request.method(), range));
        let forced = behaviour.status.or(behaviour.down.then_some(503));
        let missing = request.uri().path() == "/none" || request.uri().query() != behaviour.query;
        let mut response = Response::builder();
        if let Some(etag) = behaviour.etag {
            response = response.header(header::ETAG, etag);
        }
        let empty = |response: hyper::http::response::Builder, status: u16| {
            let none = Empty::new().map_err(|never: Infallible| match never {}).boxed();
            response.status(status).header(header::CONTENT_LENGTH, 0).body(none).expect("a response")
        };
        if let Some(status) = forced {
            return empty(response, status);
        }
        if missing {
            return empty(response, 404);
        }
        if request.method() != Method::GET {
            return empty(response, 405);
        }
        if behaviour.etag.is_some() && header(header::IF_NONE_MATCH).as_deref() == behaviour.etag {
            return empty(response, 304);
        }
        if header(header::IF_MATCH).is_some_and(|wanted| Some(wanted.as_str()) != behaviour.etag) {
            return empty(response, 412);
        }
        let (start, end) = match range.filter(|_| behaviour.ranges) {
            Some(range) => {
                let (start, end) = range.strip_prefix("bytes=").and_then(|r| r.split_once('-')).expect("a range");
                let start: usize = start.parse().expect("a number");
                let end = end.parse::<usize>().expect("a number").min(content.len() - 1) + 1;
                response = response
                    .status(StatusCode::PARTIAL_CONTENT)
                    .header(header::CONTENT_RANGE, format!("bytes {start}-{}/{}", end - 1, content.len()));
                (start, end)
            }
            None => (0, content.len()),
        };
        let end = if behaviour.too_much { content.len() } else { end };
        if behaviour.length || start > 0 {
            response = response.header(header::CONTENT_LENGTH, end - start);
        }
        response.body(self.pieces(content.slice(start..end), start, &behaviour)).expect("a response")
    }

    fn pieces(self: &Arc<Self>, bytes: Bytes, start: usize, behaviour: &Behaviour) -> Body {
        const PIECE: usize = 64 << 10;
        let (shared, slow, break_at) = (Arc::clone(self), behaviour.slow, behaviour.break_at);
        let pieces = (0..bytes.len()).step_by(PIECE).map(move |at| {
            let piece = bytes.slice(at..(at + PIECE).min(bytes.len()));
            match break_at {
                Some(limit) if start + at + piece.len() > limit => Err(std::io::Error::other("scripted break")),
                _ => Ok(piece),
            }
        });
        let frames = stream::iter(pieces).then(move |piece| {
            let shared = Arc::clone(&shared);
            async move {
                if slow {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                let piece = piece?;
                shared.sent.fetch_add(piece.len() as u64, Ordering::SeqCst);
                Ok(Frame::data(piece))
            }
        });
        BodyExt::boxed(StreamBody::new(Box::pin(frames)))
    }
}
