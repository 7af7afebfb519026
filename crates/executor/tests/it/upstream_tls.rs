//! TLS towards the model server.

use std::{path::Path, sync::Arc};

use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::{
    authority::Authority,
    fixture::{Body, Server, anywhere, config, executor, full, said, serve_connection},
};

/// A server that asks for certificates of the folder's CA.
pub(crate) async fn secure<F, R>(folder: &Path, answer: F) -> Server
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let chain = |name: &str| vec![CertificateDer::from_pem_file(folder.join(name)).expect("a certificate")];
    let mut roots = RootCertStore::empty();
    roots.add(chain("ca.pem").remove(0)).expect("a CA");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build();
    let key = PrivateKeyDer::from_pem_file(folder.join("server.key")).expect("a key");
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
    let config = config.with_client_cert_verifier(verifier.expect("a verifier"));
    let mut config = config.with_single_cert(chain("server.pem"), key).expect("a pair");
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(anywhere()).await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let task = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, answer) = (acceptor.clone(), answer.clone());
            connections.spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    serve_connection(stream, answer).await;
                }
            });
        }
    });
    Server { address, task }
}

/// Answers with scheme and version of requests.
async fn tells(request: Request<Incoming>) -> Response<Body> {
    let scheme = request.uri().scheme_str().unwrap_or("none").to_owned();
    Response::new(full(&format!("{:?} {scheme}", request.version())))
}

const GET: &str = "GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn a_server_that_speaks_tls_is_asked_over_it_and_shown_a_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let ca = Authority::new(folder.path());
    ca.files("model.internal", &folder.path().join("server"));
    ca.files("executor", &folder.path().join("own"));
    let server = secure(folder.path(), tells).await;
    let (authority, own) = (path("ca.pem"), (path("own.pem"), path("own.key")));
    let with = |more: &str| {
        let tls = format!("upstreamTls: {{serverName: model.internal, ca: '{authority}'{more}}}");
        executor(&config(server.address, &format!("connectTimeout: 1s, health: {{every: 1s}}, {tls}")))
    };
    let known = with(&format!(", certificate: '{}', key: '{}'", own.0, own.1));
    let answer = said(known.address, GET).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("HTTP/1.1 none"), "{answer}");
    known.tells("berth_executor_upstream_healthy{port=\"http\"} 1").await;

    // A call of gRPC goes on as HTTP/2.
    let stream = TcpStream::connect(known.address).await.expect("it listens");
    let (mut calls, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("it speaks HTTP/2");
    let connection = tokio::spawn(connection);
    let call = Request::post("http://x/a").header("content-type", "application/grpc").body(full("")).expect("a call");
    let answer = calls.send_request(call).await.expect("an answer").into_body().collect().await.expect("a body");
    assert_eq!(answer.to_bytes(), "HTTP/2.0 https");
    connection.abort();

    // The server lets nobody in without a certificate.
    let unknown = with("");
    assert!(said(unknown.address, GET).await.starts_with("HTTP/1.1 502 "));
}

#[tokio::test]
async fn a_server_with_another_name_or_ca_gets_no_request() {
    let (folder, other) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let ca = Authority::new(folder.path());
    Authority::new(other.path());
    ca.files("model.internal", &folder.path().join("server"));
    let server = secure(folder.path(), tells).await;
    let own = format!("certificate: '{0}/server.pem', key: '{0}/server.key'", folder.path().display());
    for (name, ca) in [("other.internal", folder.path()), ("model.internal", other.path())] {
        let tls = format!("upstreamTls: {{serverName: {name}, ca: '{}/ca.pem', {own}}}", ca.display());
        let executor = executor(&config(server.address, &format!("connectTimeout: 1s, {tls}")));
        assert!(said(executor.address, GET).await.starts_with("HTTP/1.1 502 "), "{name}");
    }
}

#[tokio::test]
async fn files_that_cannot_be_used_change_nothing() {
    let server = crate::fixture::server(anywhere(), crate::fixture::echo).await;
    let executor = executor(&config(server.address, ""));
    fs_err::write(&executor.file, config(server.address, "upstreamTls: {ca: /nowhere}")).expect("written");
    executor.tells("berth_executor_config_reloads_total{result=\"refused\"} 1").await;
    assert!(said(executor.address, GET).await.starts_with("HTTP/1.1 200 "));
}
