//! One request, from its head to the end of its answer.
//!
//! ```text
//! head ──▶ room? ──▶ breaker closed? ──▶ send (again, where that is safe) ──▶ head of the answer ──▶ its body, as it comes
//!            │ no: 503    │ no: 503          │ 400, 408, 413, 502, 503, 504
//! ```
//! Bodies pass in both directions at once and are not stored, except small ones of requests that may be sent again. Until the server has
//! taken them, those of requests count against one sum.

mod exchange;
mod head;
mod job;

use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use berth_peer::port::discard;
use berth_spec::{ClientCertificate, Time, circuit::CircuitBreaker};
use berth_wire::{byte_budget::ByteBudget, request_id::RequestId};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header, request};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use self::exchange::Exchange;
use self::head::Origin;
use crate::{
    BoxError,
    access::{Guard, Sender},
    body::{Body, Bounded, CountedBody, Idle, Repeatable, Sent, WatchedBody, full},
    config::{PortConfig, Protocol},
    jobs::Jobs,
    log::Logger,
    metrics::Metrics,
    refusal::Refusal,
    template::PathTemplate,
    upgrade,
    upstream::{Lease, Upstream, UpstreamError},
};

/// Largest body that is kept, so that it can be sent again.
const REPLAYED: u64 = 64 << 10;

/// Label of paths that no template stands for.
const OTHER: &str = "other";

/// A port's requests. Outlives changes of the configuration.
pub(crate) struct Proxy {
    name: Arc<str>,
    settings: ArcSwap<Settings>,
    in_flight: AtomicUsize,
    breaker: Mutex<Option<CircuitBreaker>>,
    pub(crate) is_healthy: AtomicBool,
    /// Above zero, the port or the server is about to end: clients of HTTP/1.1 are told to leave their connections, before one is
    /// closed under a request.
    pub(crate) leaving: AtomicUsize,
    metrics: Arc<Metrics>,
    started: Instant,
    /// Connections that have become something else, such as WebSocket.
    pub(crate) upgraded: TaskTracker,
    pub(crate) cut: CancellationToken,
    /// Access rules; `None`: everybody may ask.
    guard: Option<Arc<Guard>>,
    /// Memory for the bodies of requests at all ports.
    memory: Arc<ByteBudget>,
    /// Asynchronous serving, set once when the port begins.
    pub(crate) jobs: OnceLock<Arc<Jobs>>,
}

/// The other end of a client's connection.
pub(crate) struct Client {
    pub(crate) from: IpAddr,
    pub(crate) certificate: Option<Arc<ClientCertificate>>,
    /// True over TLS.
    pub(crate) secure: bool,
}

/// Settings of a port, with what follows from them.
pub(crate) struct Settings {
    pub(crate) config: PortConfig,
    pub(crate) upstream: Arc<Upstream>,
    labels: Vec<Arc<str>>,
    other: Arc<str>,
    logger: Option<Arc<Logger>>,
}

impl Settings {
    fn new(config: PortConfig, upstream: Arc<Upstream>, logger: Option<Arc<Logger>>) -> Self {
        let labels = config.paths.iter().map(|path| path.as_str().into()).collect();
        Self { config, upstream, labels, other: OTHER.into(), logger }
    }

    fn label(&self, path: &str) -> Arc<str> {
        let found = self.config.paths.iter().position(|template| template.matches(path));
        Arc::clone(found.and_then(|index| self.labels.get(index)).unwrap_or(&self.other))
    }

    /// True if a request may be run twice.
    fn may_repeat(&self, head: &request::Parts) -> bool {
        self.config.retry.attempts > 1
            && (head.method.is_idempotent() || any(&self.config.retry.paths, head.uri.path()))
    }
}

fn any(templates: &[PathTemplate], path: &str) -> bool {
    templates.iter().any(|template| template.matches(path))
}

impl Proxy {
    pub(crate) fn new(
        config: PortConfig,
        upstream: Arc<Upstream>,
        metrics: Arc<Metrics>,
        logger: Option<Arc<Logger>>,
        guard: Option<Arc<Guard>>,
        memory: Arc<ByteBudget>,
    ) -> Arc<Self> {
        let name: Arc<str> = config.name.as_str().into();
        metrics.in_flight(&name, 0);
        metrics.healthy(&name, false);
        Arc::new(Self {
            name,
            breaker: Mutex::new(config.breaker.map(CircuitBreaker::new)),
            settings: ArcSwap::from_pointee(Settings::new(config.clone(), upstream, logger)),
            in_flight: AtomicUsize::new(0),
            is_healthy: AtomicBool::new(false),
            leaving: AtomicUsize::new(0),
            metrics,
            started: Instant::now(),
            upgraded: TaskTracker::new(),
            cut: CancellationToken::new(),
            guard,
            memory,
            jobs: OnceLock::new(),
        })
    }

    /// The model server of a changed configuration: the one of before, if it is reached in the same way.
    ///
    /// # Errors
    /// A file of TLS that cannot be used.
    pub(crate) fn upstream(&self, config: &PortConfig) -> Result<Arc<Upstream>, String> {
        let before = self.settings.load();
        let same = before.config.upstream == config.upstream && before.config.upstream_tls == config.upstream_tls;
        if same {
            Ok(Arc::clone(&before.upstream))
        } else {
            Upstream::open(&config.upstream, config.upstream_tls.as_ref())
        }
    }

    /// Follows a change of the configuration. Requests in flight go on as they began.
    pub(crate) fn change(&self, config: PortConfig, upstream: Arc<Upstream>, logger: Option<Arc<Logger>>) {
        let before = self.settings.load();
        if before.config.breaker != config.breaker || !Arc::ptr_eq(&before.upstream, &upstream) {
            *self.breaker.lock().unwrap_or_else(PoisonError::into_inner) = config.breaker.map(CircuitBreaker::new);
        }
        self.settings.store(Arc::new(Settings::new(config, upstream, logger)));
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// The log of its requests.
    pub(crate) fn logger(&self) -> Option<Arc<Logger>> {
        self.settings.load().logger.clone()
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Requests in flight, upgraded connections among them.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    /// Answers one request.
    pub(crate) async fn serve(self: Arc<Self>, mut request: Request<Incoming>, client: &Client) -> Response<Body> {
        let id = RequestId::settle(request.headers_mut());
        let settings = self.settings.load_full();
        let (is_grpc, version) = (head::is_grpc(request.headers()), request.version());
        let mut exchange = Exchange::begin(Arc::clone(&self), settings.label(request.uri().path()), request.method());
        let path = request.uri().path();
        exchange.record(settings.logger.as_ref(), request.method(), path, request.headers());
        if let Err(refusal) = self.let_in(&mut request, client, &mut exchange) {
            if !is_grpc {
                discard(&request.headers().clone(), request.into_body()).await;
            }
            let mut response = self.refuse(&refusal, is_grpc, &mut exchange);
            id.mark(response.headers_mut());
            return response;
        }
        // A call of gRPC has no form for an answer that comes later.
        let jobs = self.jobs.get().filter(|_| !is_grpc).and_then(|jobs| Some((jobs, jobs.asked(&request)?)));
        let forwarded = match (self.admit(&settings, &request), jobs) {
            (Ok(()), Some((jobs, asked))) => {
                let follows = asked.follows();
                let (head, inner) = jobs.serve(asked, request, client.from).await.into_parts();
                exchange.answered(head.status, &head.headers);
                if follows {
                    exchange.stand_aside();
                }
                let body = WatchedBody { inner, watcher: exchange, idle: Idle::new(None) };
                let mut response = Response::from_parts(head, body.boxed_unsync());
                id.mark(response.headers_mut());
                return response;
            }
            (Ok(()), None) => self.forward(&settings, request, client, &mut exchange).await,
            (Err(refusal), _) => Err(refusal),
        };
        let mut response = match forwarded {
            Ok((response, lease)) => {
                let idle = idle(&settings.config, response.headers());
                self.pass_on(response, lease, exchange, idle)
            }
            Err(refusal) => self.refuse(&refusal, is_grpc, &mut exchange),
        };
        id.mark(response.headers_mut());
        let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if self.leaving.load(Relaxed) > 0 && version == Version::HTTP_11 && !upgraded {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// Asks the guard, if there is one.
    fn let_in(&self, request: &mut Request<Incoming>, client: &Client, exchange: &mut Exchange) -> Result<(), Refusal> {
        let Some(guard) = &self.guard else { return Ok(()) };
        let (path, bytes) = (request.uri().path().to_owned(), request.body().size_hint().lower());
        let admitted = guard.admit(&path, request.headers_mut(), client.certificate.as_deref(), bytes)?;
        if let Some(admitted) = admitted {
            request.extensions_mut().insert(Sender(Arc::clone(&admitted.principal)));
            if self.jobs.get().is_some() {
                request.extensions_mut().insert(admitted.standing.clone());
            }
            exchange.asked_by(admitted);
        }
        Ok(())
    }

    /// The answer of the executor itself.
    fn refuse(&self, refusal: &Refusal, is_grpc: bool, exchange: &mut Exchange) -> Response<Body> {
        self.metrics.refused(&self.name, refusal.reason());
        let response = refusal.response(is_grpc);
        exchange.answered(response.status(), response.headers());
        if let Some(status) = response.headers().get("grpc-status") {
            exchange.grpc(status);
        }
        response
    }

    /// The answer with its body on the way, which may be silent for so long.
    fn pass_on(
        &self,
        mut response: Response<Incoming>,
        lease: Option<Lease>,
        mut exchange: Exchange,
        idle: Option<Duration>,
    ) -> Response<Body> {
        exchange.answered(response.status(), response.headers());
        if let Some(status) = response.headers().get("grpc-status") {
            exchange.grpc(status);
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let server = hyper::upgrade::on(&mut response);
            if let Some(client) = exchange.upgrade.take() {
                self.upgraded.spawn(upgrade::join(client, server, exchange, self.cut.clone()));
            }
            let (head, _) = response.into_parts();
            return Response::from_parts(head, full(""));
        }
        head::strip(response.headers_mut());
        exchange.lease = lease;
        let (mut head, inner) = response.into_parts();
        // The version is that of the client's connection.
        head.version = Version::default();
        head.extensions.clear();
        if inner.is_end_stream() {
            crate::body::Watcher::end(&mut exchange);
        }
        let body = WatchedBody { inner, watcher: exchange, idle: Idle::new(idle) };
        Response::from_parts(head, body.boxed_unsync())
    }

    fn admit(&self, settings: &Settings, request: &Request<Incoming>) -> Result<(), Refusal> {
        let most = settings.config.max_in_flight;
        if request.method() == Method::CONNECT {
            return Err(Refusal::Tunnel);
        }
        // Each server would choose another one.
        if request.headers().get_all(header::HOST).iter().nth(1).is_some() {
            return Err(Refusal::Hosts);
        }
        // The request counts already.
        if self.in_flight() > most {
            return Err(Refusal::Busy { most });
        }
        let most = settings.config.max_body;
        if request.body().size_hint().lower() > most {
            return Err(Refusal::TooLarge { most });
        }
        Ok(())
    }

    async fn forward(
        &self,
        settings: &Settings,
        mut request: Request<Incoming>,
        client: &Client,
        exchange: &mut Exchange,
    ) -> Result<(Response<Incoming>, Option<Lease>), Refusal> {
        let upgrades = head::upgrade(&request);
        if upgrades.is_some() {
            exchange.upgrade = Some(hyper::upgrade::on(&mut request));
        }
        let (mut head, body) = request.into_parts();
        let version = version(settings, &head);
        let (from, secure) = (Some(client.from), client.secure);
        let (authority, scheme) = (settings.upstream.address(), settings.upstream.scheme());
        head::rewrite(&mut head, &Origin { from, authority, scheme, upgrades, version, secure });
        let sent = Arc::clone(&exchange.sent);
        let most = settings.config.max_body;
        let known = body.size_hint().upper();
        let may_repeat = settings.may_repeat(&head) && known.is_some_and(|length| length <= REPLAYED);
        let counted = match may_repeat {
            true => CountedBody::Whole(self.memory.charge()),
            false => CountedBody::InPieces(Arc::clone(&self.memory)),
        };
        let bounded = Bounded { inner: body, most, sent: Arc::clone(&sent), counted };
        if !may_repeat {
            return self.attempt(settings, Request::from_parts(head, bounded.boxed_unsync()), &sent).await;
        }
        self.repeat(settings, &head, &Repeatable::new(bounded), &sent).await
    }

    /// Sends a small request, and again where the server breaks off before it answers, or says that it did not look at it.
    async fn repeat<B>(
        &self,
        settings: &Settings,
        head: &request::Parts,
        body: &Repeatable<B>,
        sent: &Sent,
    ) -> Result<(Response<Incoming>, Option<Lease>), Refusal>
    where
        B: http_body::Body<Data = Bytes, Error = BoxError> + Send + Unpin + 'static,
    {
        let request = || Request::from_parts(head.clone(), body.attempt().boxed_unsync());
        for _ in 1..settings.config.retry.attempts {
            match self.attempt(settings, request(), sent).await {
                Err(Refusal::Broken | Refusal::NotTaken) => self.metrics.retried(&self.name),
                outcome => return outcome,
            }
        }
        self.attempt(settings, request(), sent).await
    }

    async fn attempt(
        &self,
        settings: &Settings,
        request: Request<Body>,
        sent: &Sent,
    ) -> Result<(Response<Incoming>, Option<Lease>), Refusal> {
        let probe = self.ask_breaker()?;
        let PortConfig { timeout: limit, connect_timeout, max_body, .. } = settings.config;
        let answered = timeout(limit, settings.upstream.send(request, connect_timeout)).await;
        let refusal = match answered {
            Ok(Ok(answer)) => {
                probe.ended(true);
                return Ok(answer);
            }
            Ok(Err(UpstreamError::Broken(_) | UpstreamError::Refused(_))) if sent.is_too_large() => {
                return Err(Refusal::TooLarge { most: max_body });
            }
            Ok(Err(UpstreamError::Broken(_) | UpstreamError::Refused(_))) if sent.had_no_memory() => {
                return Err(Refusal::NoMemory);
            }
            // The client's doing tells nothing of the server.
            Ok(Err(UpstreamError::Broken(_) | UpstreamError::Refused(_))) if sent.broke_off() => {
                return Err(Refusal::BadBody);
            }
            Ok(Err(UpstreamError::Broken(error))) => {
                tracing::debug!(port = &*self.name, error = &error as &dyn std::error::Error, "the server broke off");
                Refusal::Broken
            }
            Ok(Err(UpstreamError::Refused(error))) => {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(port = &*self.name, error, "the server did not look at the request");
                Refusal::NotTaken
            }
            Ok(Err(UpstreamError::Unreachable(error))) => {
                tracing::debug!(port = &*self.name, %error, "the server cannot be reached");
                Refusal::Unreachable
            }
            // So is this, unless the server is who takes nothing.
            Err(_) if sent.is_awaited() => return Err(Refusal::Slow { seconds: limit.as_secs() }),
            Err(_) => Refusal::Late { seconds: limit.as_secs() },
        };
        probe.ended(false);
        Err(refusal)
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn ask_breaker(&self) -> Result<BreakerPermit<'_>, Refusal> {
        let now = self.now();
        let mut breaker = self.breaker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(breaker) = breaker.as_mut() {
            breaker.admit(now).map_err(|until| {
                let left = Duration::from_nanos(until.0.saturating_sub(now.0));
                Refusal::Open { seconds: left.as_secs() + 1 }
            })?;
        }
        Ok(BreakerPermit { proxy: self, told: false })
    }
}

/// Longest silence within an answer. Streams of events and calls of gRPC may have nothing to say for as long as they like.
fn idle(config: &PortConfig, headers: &HeaderMap) -> Option<Duration> {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let streams = head::is_grpc(headers) || kind.starts_with(b"text/event-stream");
    config.idle_timeout.filter(|_| !streams)
}

/// The version of HTTP towards the server.
fn version(settings: &Settings, head: &request::Parts) -> Version {
    match settings.config.protocol {
        Protocol::Http1 => Version::HTTP_11,
        Protocol::Http2 => Version::HTTP_2,
        Protocol::Auto if head::is_grpc(&head.headers) => Version::HTTP_2,
        Protocol::Auto => Version::HTTP_11,
    }
}

/// An attempt that the breaker has let through. Dropped without a word, it was none.
struct BreakerPermit<'a> {
    proxy: &'a Proxy,
    told: bool,
}

impl BreakerPermit<'_> {
    fn ended(mut self, well: bool) {
        self.told = true;
        let now = self.proxy.now();
        let mut breaker = self.proxy.breaker.lock().unwrap_or_else(PoisonError::into_inner);
        match breaker.as_mut() {
            Some(breaker) if !well => breaker.failed(now),
            // A success forgets what failed before.
            Some(breaker) if breaker.failures() > 0 => {
                if let Some(limits) = self.proxy.settings.load().config.breaker {
                    *breaker = CircuitBreaker::new(limits);
                }
            }
            _ => {}
        }
    }
}

impl Drop for BreakerPermit<'_> {
    fn drop(&mut self) {
        if !self.told
            && let Some(breaker) = self.proxy.breaker.lock().unwrap_or_else(PoisonError::into_inner).as_mut()
        {
            breaker.unused(self.proxy.now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn streams_may_be_silent() {
        let limit = Some(Duration::from_secs(30));
        for (setting, kind, expected) in [
            (", idleTimeout: 30s", "application/json", limit),
            (", idleTimeout: 30s", "", limit),
            (", idleTimeout: 30s", "text/event-stream; charset=utf-8", None),
            (", idleTimeout: 30s", "application/grpc+proto", None),
            ("", "application/json", None),
        ] {
            let text = format!("ports: [{{name: a, listen: 8081, upstream: 8080{setting}}}]");
            let config = Config::parse(std::path::Path::new("executor.yaml"), &text).expect("it is right");
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))]);
            assert_eq!(idle(&config.ports[0], &headers), expected, "{setting} {kind}");
        }
    }
}
