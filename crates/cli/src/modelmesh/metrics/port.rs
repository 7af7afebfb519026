//! The port for `GET /metrics`, on a thread of its own.

use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, TcpListener},
    path::Path,
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, SystemTime},
};

use berth_control::api::MetricsSource;
use berth_peer::port::{Bounds, ClientAuth, Patience, Port, PortTls, SelfMade, TlsSettings, TlsVersion};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::task::JoinSet;

use super::{Settings, table};
use crate::modelmesh::tls::Tls;

/// Connections: those who scrape are few.
const BOUNDS: Bounds = Bounds { connections: 64, per_address: 32 };

/// Limits of silence on a connection.
const SILENT: Patience = Patience { first: Duration::from_secs(10), idle: Duration::from_secs(120) };

/// Folder of the certificate that is made where none is given.
const MADE: &str = "metrics-tls";

/// Set once the instance has metrics.
pub(in crate::modelmesh) type Source = Arc<OnceLock<MetricsSource>>;

/// Takes the port and answers until the process ends. `tls` is that of the port for clients, `folder` the instance's.
pub(in crate::modelmesh) fn start(
    settings: Settings,
    tls: Option<&Tls>,
    folder: &Path,
    source: Source,
) -> io::Result<()> {
    let certificate = settings.tls.then(|| certificate(tls, folder)).transpose()?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, settings.port))
        .map_err(|error| io::Error::new(error.kind(), format!("port {}: {error}", settings.port)))?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new()
        .name("modelmesh-metrics".to_owned())
        .spawn(move || runtime.block_on(accept(listener, certificate, source)))?;
    Ok(())
}

/// The certificate of the port for clients, without asking for theirs; else one that is made, which nobody can check.
fn certificate(tls: Option<&Tls>, folder: &Path) -> io::Result<PortTls> {
    let (certificate, key) = match tls {
        Some(tls) => (tls.certificate.clone(), tls.key.clone()),
        None => {
            let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
            let made = SelfMade::in_folder(&folder.join(MADE), &names).map_err(io::Error::other)?;
            (made.certificate, made.key)
        }
    };
    let settings = TlsSettings { certificate, key, clients: ClientAuth::Off, oldest: TlsVersion::V1_2 };
    PortTls::load(settings).map_err(io::Error::other)
}

async fn accept(listener: TcpListener, tls: Option<PortTls>, source: Source) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(event = "metrics_port_lost", %error, "metrics under ModelMesh's names are not served");
            return;
        }
    };
    let mut connections = JoinSet::new();
    if let Some(tls) = tls.clone() {
        connections.spawn(async move { tls.follow().await });
    }
    let port = Port::new("modelmesh metrics", listener, BOUNDS).with_tls(tls);
    let greeter = port.greeter();
    loop {
        let (stream, _, place) = port.accept().await;
        while connections.try_join_next().is_some() {}
        let (greeter, source) = (greeter.clone(), Arc::clone(&source));
        connections.spawn(async move {
            let _place = place;
            let Some(greeted) = greeter.greet(stream, SILENT).await else { return };
            let service = service_fn(move |request| {
                let answer = answer(&request, &source);
                async move { Ok::<_, Infallible>(answer) }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(SILENT.idle);
            let _ = builder.serve_connection(TokioIo::new(greeted.stream), service).await;
        });
    }
}

fn answer(request: &Request<Incoming>, source: &Source) -> Response<Full<Bytes>> {
    let (status, body) = match (request.method(), request.uri().path(), source.get()) {
        (&Method::GET | &Method::HEAD, "/metrics", Some(metrics)) => {
            (StatusCode::OK, table::told(&metrics(), SystemTime::now()))
        }
        (_, "/metrics", None) => (StatusCode::SERVICE_UNAVAILABLE, "the instance has not started yet\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, "use GET /metrics\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
