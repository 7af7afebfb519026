//! The driver against a server over HTTP.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri},
};
use berth_secrets::vault::{Call, Handle, Http, SecretId, Settings, Vault, VaultRequest, build};
use berth_spec::{Secret, WorkerId};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket},
    sync::oneshot,
    task::JoinSet,
    time::timeout,
};

use super::{
    brain::declared_at,
    fake::{FakeVault, Request},
};

/// Longer than anything here may take, also on a machine that compiles beside the tests.
const PATIENCE: Duration = Duration::from_secs(120);

type Shared = Arc<Mutex<FakeVault>>;

async fn handle(
    State(vault): State<Shared>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, String) {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(ToOwned::to_owned);
    let request = Request {
        method: method.to_string(),
        path: uri.path().trim_start_matches("/v1/").to_owned(),
        token: header("x-vault-token"),
        namespace: header("x-vault-namespace"),
        worker: header("x-berth-worker"),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    let (status, body) = vault.lock().expect("nobody panicked").answer(&request, 0);
    (StatusCode::from_u16(status).expect("a status"), body.to_string())
}

/// A server on a port of its own, which ends with the set.
async fn serve(vault: FakeVault, tasks: &mut JoinSet<()>) -> (Shared, String) {
    let vault = Arc::new(Mutex::new(vault));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = format!("http://{}", listener.local_addr().expect("its address"));
    let router = Router::new().fallback(handle).with_state(Arc::clone(&vault));
    tasks.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
    (vault, addr)
}

fn settings(addr: &str, secret_id: SecretId) -> Settings {
    let mut settings = Settings::new(addr, "role", secret_id).expect("settings");
    settings.namespace = Some("models".to_owned());
    settings
}

fn start(settings: Settings, tasks: &mut JoinSet<()>) -> (Handle, oneshot::Sender<()>, oneshot::Receiver<()>) {
    let brain = Vault::new(settings.addr.clone(), settings.namespace.clone(), 1);
    let (handle, task) = build(brain, Http::new(settings).expect("a client"));
    let (stop, stopped) = oneshot::channel::<()>();
    let (end, ended) = oneshot::channel();
    tasks.spawn(async move {
        task.run(async { drop(stopped.await) }).await;
        // The receiver may have gone.
        let _ = end.send(());
    });
    (handle, stop, ended)
}

#[tokio::test]
async fn credentials_come_over_http_and_are_revoked_at_the_end() {
    let mut tasks = JoinSet::new();
    let mut vault = FakeVault::new();
    vault.namespace = Some("models".to_owned());
    vault.kv.insert("workers/a/git".to_owned(), json!({"token": "t"}));
    let (vault, addr) = serve(vault, &mut tasks).await;
    let folder = tempfile::tempdir().expect("a folder");
    let secret_id = folder.path().join("secret-id");
    fs_err::write(&secret_id, "secret-id\n").expect("a file");
    let (handle, stop, ended) = start(settings(&addr, SecretId::File(secret_id)), &mut tasks);
    let mut found = handle.found();
    let paths = json!({"git_token": "secret/workers/a/git",
                       "s3": {"type": "s3_credentials", "path": "aws/creds/reader", "region": "x"}});
    let worker = WorkerId::new("a").expect("a name");
    handle.want(BTreeMap::from([(worker.clone(), declared_at(&addr, &paths))]));
    let both = found.wait_for(|found| found.secrets.get(&worker).is_some_and(|secrets| secrets.len() == 2));
    drop(timeout(PATIENCE, both).await.expect("in time").expect("both"));
    assert_eq!(vault.lock().expect("nobody panicked").leases.len(), 1);
    stop.send(()).expect("it runs");
    timeout(PATIENCE, ended).await.expect("in time").expect("it ends");
    let vault = vault.lock().expect("nobody panicked");
    assert_eq!((vault.leases.len(), vault.tokens()), (0, 0));
    assert!(vault.audit.iter().any(|line| line.path == "sys/leases/revoke" && line.worker.as_deref() == Some("a")));
}

#[tokio::test]
async fn who_does_not_answer_or_answers_wrongly_is_told() {
    let mut tasks: JoinSet<()> = JoinSet::new();
    let call = |path: &str| Call {
        id: 1,
        ask: VaultRequest::Read(path.to_owned()),
        token: None,
        namespace: None,
        worker: None,
    };
    let router = Router::new()
        .route("/v1/large", axum::routing::get(|| async { "x".repeat(2 << 20) }))
        .route("/v1/away", axum::routing::get(|| async { axum::response::Redirect::temporary("/v1/large") }));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = format!("http://{}", listener.local_addr().expect("its address"));
    tasks.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
    let http = |addr: &str| Http::new(settings(addr, SecretId::Given(Secret::new("x")))).expect("a client");
    let error = http(&addr).call(&call("large")).await.expect_err("too large");
    assert!(error.contains("larger than"), "{error}");
    let reply = http(&addr).call(&call("away")).await.expect("an answer");
    assert_eq!(reply.status, 307, "a token does not follow");
    // Bound, so that nobody else gets it, and not listened on.
    let silent = TcpSocket::new_v4().expect("a socket");
    silent.bind(([127, 0, 0, 1], 0).into()).expect("a port");
    let nobody = silent.local_addr().expect("its address");
    let error = http(&format!("http://{nobody}")).call(&call("x")).await.expect_err("nobody");
    assert!(error.contains("refused"), "{error}");
    let error =
        Http::new(Settings { ca: Some("/nowhere.pem".into()), ..settings(&addr, SecretId::Given(Secret::new("x"))) });
    assert!(error.is_err_and(|error| error.contains("/nowhere.pem")));
    let lost = Http::new(settings(&addr, SecretId::File("/nowhere".into()))).expect("a client");
    let login = Call { ask: VaultRequest::LogIn, ..call("") };
    let error = lost.call(&login).await.expect_err("no secret id");
    assert!(error.contains("/nowhere"), "{error}");
}

/// Over TLS with an authority of one's own: it is believed, and no other.
#[tokio::test]
async fn the_authority_that_is_named_is_believed_and_no_other() {
    let mut tasks: JoinSet<()> = JoinSet::new();
    let folder = tempfile::tempdir().expect("a folder");
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = rcgen::CertifiedIssuer::self_signed(params, key).expect("an authority");
    let server_key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
    let certificate = params.signed_by(&server_key, &authority).expect("a certificate");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            rustls::pki_types::PrivateKeyDer::Pkcs8(server_key.serialize_der().into()),
        )
        .expect("a certificate");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("its address").port();
    tasks.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            // Who does not believe us hangs up.
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut head = vec![0; 4096];
            let read = stream.read(&mut head).await.expect("a request");
            assert!(head[..read].starts_with(b"GET /v1/auth/token/lookup-self"));
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.expect("an answer");
            stream.shutdown().await.expect("an end");
        }
    });
    let file = |name: &str, pem: &str| {
        let path = folder.path().join(name);
        fs_err::write(&path, pem).expect("a file");
        Some(path)
    };
    let other = rcgen::generate_simple_self_signed(vec!["other".to_owned()]).expect("another authority").cert.pem();
    let call = Call { id: 1, ask: VaultRequest::LookUpToken, token: None, namespace: None, worker: None };
    let addr = format!("https://localhost:{port}");
    let ask = async |ca| {
        let settings = Settings { ca, ..settings(&addr, SecretId::Given(Secret::new("x"))) };
        Http::new(settings).expect("a client").call(&call).await
    };
    let reply = ask(file("ca.pem", &authority.pem())).await.expect("an answer");
    assert_eq!(reply.status, 200);
    let error = ask(file("other.pem", &other)).await.expect_err("another authority");
    assert!(error.contains("certificate"), "{error}");
    let error = ask(None).await.expect_err("no authority that the machine knows");
    assert!(error.contains("certificate"), "{error}");
}
