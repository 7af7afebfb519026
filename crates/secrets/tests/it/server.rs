//! The driver against a server over HTTP.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri},
};
use berth_secrets::vault::{Ask, Call, Handle, Http, SecretId, Settings, Vault, build};
use berth_spec::{Secret, WorkerId};
use serde_json::json;
use tokio::{net::TcpListener, sync::oneshot, task::JoinSet};

use super::{
    brain::declared_at,
    fake::{FakeVault, Request},
};

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
    found.wait_for(|found| found.secrets.get(&worker).is_some_and(|secrets| secrets.len() == 2)).await.expect("both");
    assert_eq!(vault.lock().expect("nobody panicked").leases.len(), 1);
    stop.send(()).expect("it runs");
    ended.await.expect("it ends");
    let vault = vault.lock().expect("nobody panicked");
    assert_eq!((vault.leases.len(), vault.tokens()), (0, 0));
    assert!(vault.audit.iter().any(|line| line.path == "sys/leases/revoke" && line.worker.as_deref() == Some("a")));
}

#[tokio::test]
async fn who_does_not_answer_or_answers_wrongly_is_told() {
    let mut tasks: JoinSet<()> = JoinSet::new();
    let call = |path: &str| Call { id: 1, ask: Ask::Read(path.to_owned()), token: None, namespace: None, worker: None };
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
    let nobody = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("its address");
    let error = http(&format!("http://{nobody}")).call(&call("x")).await.expect_err("nobody");
    assert!(error.contains("refused"), "{error}");
    let error =
        Http::new(Settings { ca: Some("/nowhere.pem".into()), ..settings(&addr, SecretId::Given(Secret::new("x"))) });
    assert!(error.is_err_and(|error| error.contains("/nowhere.pem")));
    let lost = Http::new(settings(&addr, SecretId::File("/nowhere".into()))).expect("a client");
    let login = Call { ask: Ask::LogIn, ..call("") };
    let error = lost.call(&login).await.expect_err("no secret id");
    assert!(error.contains("/nowhere"), "{error}");
}
