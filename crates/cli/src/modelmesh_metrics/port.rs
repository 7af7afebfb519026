//! The port for `GET /metrics`, on a thread of its own: translating the metrics of many models takes milliseconds.

use std::{
    convert::Infallible,
    net::{SocketAddr, TcpListener},
    path::Path,
    pin::pin,
    sync::Arc,
    thread,
    time::{Duration, SystemTime},
};

use berth_control::api::MetricsSource;
use berth_peer::port::{
    Activity, Bounds, ClientAuth, Counting, Inactivity, Paced, Patience, Port, PortTls, SelfMade, TlsSettings,
    TlsVersion, prepare,
};
use berth_spec::ClientCertificate;
use berth_wire::access::{Access, Action, Resource};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::task::JoinSet;

use super::{Info, table};
use crate::{
    failure::Failure,
    settings::{ServerSettings, tls::ClientTls},
};

/// Connections: scrapers are few.
const BOUNDS: Bounds = Bounds { connections: 64, per_address: 32 };

/// Tolerated silence of a connection.
const SILENT: Patience = Patience { first: Duration::from_secs(10), idle: Duration::from_secs(120) };

/// Longest time that an answer may stay unread: Prometheus reads at once.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Requests of a connection of HTTP/2 at once.
const STREAMS: u32 = 4;

/// Folder of the self-made certificate, below the data folder.
const MADE: &str = "metrics-tls";

/// Settings of the port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scrape {
    pub(crate) port: u16,
    /// TLS, with the certificate of the port for inference, or a self-made one.
    pub(crate) tls: bool,
    /// True if clients show the certificates that the port for inference asks for.
    pub(crate) asks_clients: bool,
    /// A sample with constant labels.
    pub(crate) info: Option<Info>,
}

/// The data that an answer needs.
struct Source {
    metrics: MetricsSource,
    access: Arc<Access>,
    info: Option<Info>,
}

/// Takes the port, at the address of the port for inference, and answers until the process ends.
///
/// # Errors
/// [`Failure`]: the port is taken, or its certificate cannot be used.
pub(super) fn serve(
    settings: &Scrape,
    server: &ServerSettings,
    metrics: MetricsSource,
    access: Arc<Access>,
) -> Result<(), Failure> {
    let tls = settings.tls.then(|| certificate(settings, server.tls.as_ref(), &server.data)).transpose()?;
    let address = SocketAddr::new(server.http.ip(), settings.port);
    let listener = TcpListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|error| {
            let remedy = "prometheus:port=PORT takes another port";
            Failure::Failed(format!("cannot serve metrics on {address}: {error}; {remedy}"))
        })?;
    let starts = |error| Failure::doing("cannot start the thread for metrics", error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(starts)?;
    let source = Arc::new(Source { metrics, access, info: settings.info.clone() });
    thread::Builder::new()
        .name("modelmesh-metrics".to_owned())
        .spawn(move || runtime.block_on(accept(listener, tls, source)))
        .map_err(starts)?;
    Ok(())
}

/// The certificate of the port for inference; else one that is made, which nobody can check.
fn certificate(settings: &Scrape, tls: Option<&ClientTls>, data: &Path) -> Result<PortTls, Failure> {
    let Some(tls) = tls else {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let unusable = |error| Failure::doing("cannot make a certificate for the port of metrics", error);
        let made = SelfMade::in_folder(&data.join(MADE), &names).map_err(unusable)?;
        let (certificate, key) = (made.certificate, made.key);
        let made = TlsSettings { certificate, key, clients: ClientAuth::Off, oldest: TlsVersion::V1_2 };
        return PortTls::load(made).map_err(unusable);
    };
    let tls = if settings.asks_clients { tls.clone() } else { tls.without_clients() };
    Ok(tls.load(data)?.port)
}

async fn accept(listener: TcpListener, tls: Option<PortTls>, source: Arc<Source>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(event = "metrics_port_lost", %error, "metrics under ModelMesh's names are not served");
            return;
        }
    };
    let mut tasks = JoinSet::new();
    if let Some(tls) = tls.clone() {
        tasks.spawn(async move { tls.follow().await });
    }
    let port = Port::new("modelmesh metrics", listener, BOUNDS).with_tls(tls);
    let greeter = port.greeter();
    loop {
        let (stream, _, place) = port.accept().await;
        prepare(&stream, UNREAD_TIMEOUT);
        while tasks.try_join_next().is_some() {}
        let (greeter, source) = (greeter.clone(), Arc::clone(&source));
        tasks.spawn(async move {
            let _place = place;
            let Some(greeted) = greeter.greet(stream, SILENT).await else { return };
            let activity = Activity::default();
            let counted = activity.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                counted.request();
                let version = request.version();
                let answer = source.answer(&request, greeted.certificate.as_deref());
                async move { Ok::<_, Infallible>(answer.map(|body| Paced::new(body, version))) }
            });
            // Over TLS Prometheus and Java's client choose HTTP/2.
            let mut builder = auto::Builder::new(Counting(activity.clone()));
            builder.http1().timer(TokioTimer::new()).header_read_timeout(SILENT.idle);
            builder.http2().timer(TokioTimer::new()).max_concurrent_streams(STREAMS).keep_alive_interval(SILENT.idle);
            let mut connection = pin!(builder.serve_connection(TokioIo::new(greeted.stream), service));
            tokio::select! {
                // One that breaks off ends its connection and nothing else.
                _ = connection.as_mut() => {}
                silence = activity.clone().silence(greeted.patience) => {
                    if silence != Inactivity::NoRequest {
                        connection.as_mut().graceful_shutdown();
                        tokio::select! {
                            _ = connection => {}
                            () = activity.unread_still() => {}
                        }
                    }
                }
            }
        });
    }
}

impl Source {
    fn answer(&self, request: &Request<Incoming>, client: Option<&ClientCertificate>) -> Response<Full<Bytes>> {
        let (status, body) = match (request.method(), request.uri().path()) {
            (&Method::GET | &Method::HEAD, "/metrics") => match self.admitted(request, client) {
                Ok(()) => (StatusCode::OK, self.text()),
                Err(refused) => refused,
            },
            _ => (StatusCode::NOT_FOUND, "use GET /metrics\n".to_owned()),
        };
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = status;
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }

    fn admitted(
        &self,
        request: &Request<Incoming>,
        client: Option<&ClientCertificate>,
    ) -> Result<(), (StatusCode, String)> {
        let asker = self
            .access
            .asker(request.headers(), client)
            .map_err(|why| (StatusCode::UNAUTHORIZED, format!("{why}\n")))?;
        let denied = |denied| (StatusCode::FORBIDDEN, format!("{denied}\n"));
        asker.may(Action::ReadMetrics, Resource::Server).map_err(denied)
    }

    fn text(&self) -> String {
        let mut text = table::translated(&(self.metrics)(), SystemTime::now());
        if let Some(info) = &self.info {
            info.write(&mut text);
        }
        text
    }
}
