//! Access: tokens, certificates, limits, and TLS on the port itself.

use berth_wire::access::{Grant, Role, Secret, TokenRecord};
use tempfile::TempDir;

use crate::{
    authority::Authority,
    fixture::{anywhere, config, echo, executor, said, server},
};

/// A token for the models of a pattern, among the records of a file.
fn token(folder: &TempDir, role: Role, pattern: &str) -> Secret {
    let (secret, file) = (Secret::generate(), folder.path().join("tokens.json"));
    let mut records: Vec<TokenRecord> = match fs_err::read_to_string(&file) {
        Ok(text) => serde_json::from_str(&text).expect("records"),
        Err(_) => Vec::new(),
    };
    records.push(TokenRecord {
        id: secret.id().to_owned(),
        hash: secret.hash(),
        grant: Grant { role, namespaces: Vec::new(), models: vec![pattern.to_owned()] },
        description: String::new(),
        created_by: String::new(),
        created: 1,
        expires: None,
        limits: None,
    });
    fs_err::write(file, serde_json::to_string(&records).expect("JSON")).expect("written");
    secret
}

fn get(path: &str, secret: Option<&Secret>) -> String {
    let token = secret.map(|secret| format!("authorization: Bearer {}\r\n", secret.reveal())).unwrap_or_default();
    format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{token}\r\n")
}

#[tokio::test]
async fn a_token_lets_its_holder_in_and_no_further() {
    let folder = tempfile::tempdir().expect("a folder");
    let (caller, other) = (token(&folder, Role::Caller, "iris"), token(&folder, Role::Caller, "rose"));
    let viewer = token(&folder, Role::Viewer, "iris");
    let tells = |request: http::Request<hyper::body::Incoming>| async move {
        let seen = request.headers().contains_key("authorization");
        http::Response::new(crate::fixture::full(if seen { "sees it" } else { "sees none" }))
    };
    let server = server(anywhere(), tells).await;
    let tokens = folder.path().join("tokens.json");
    let open = "open: [/health, '/static/{rest...}']";
    let access =
        format!("access: {{tokens: '{}', model: iris, {open}, limits: {{bytesPerSecond: 1B}}}}\n", tokens.display());
    let executor = executor(&(config(server.address, "") + &access));
    for (path, secret, expected) in [
        ("/a", None, "HTTP/1.1 401 "),
        ("/a", Some(&Secret::generate()), "HTTP/1.1 401 "),
        ("/a", Some(&other), "HTTP/1.1 403 "),
        ("/a", Some(&viewer), "HTTP/1.1 403 "),
        ("/health", None, "HTTP/1.1 200 "),
        ("/static/a", None, "HTTP/1.1 200 "),
        ("/static/../a", None, "HTTP/1.1 400 "),
        ("/static/%2E%2e/a", Some(&caller), "HTTP/1.1 400 "),
        ("/health", Some(&caller), "HTTP/1.1 200 "),
        ("/a", Some(&caller), "HTTP/1.1 200 "),
    ] {
        let answer = said(executor.address, &get(path, secret)).await;
        assert!(answer.starts_with(expected), "{path}: {answer}");
        assert!(!answer.ends_with("sees it"), "{answer}");
        assert_eq!(answer.contains("www-authenticate: Bearer"), expected.contains("401"), "{answer}");
    }
    // More bytes than a quarter of an hour allows.
    let post = get("/a", Some(&caller)).replace("GET", "POST").replace("\r\n\r\n", "\r\ncontent-length: 1000\r\n\r\n");
    let post = post + &"x".repeat(1_000);
    assert!(said(executor.address, &post).await.starts_with("HTTP/1.1 200 "));
    let limited = said(executor.address, &post).await;
    assert!(limited.starts_with("HTTP/1.1 429 ") && limited.contains("retry-after: "), "{limited}");
    executor.tells("berth_executor_refused_total{port=\"http\",reason=\"bytes_limit\"} 1").await;
    executor.tells("berth_executor_refused_total{port=\"http\",reason=\"denied\"} 2").await;
    assert_eq!(executor.ends().await, 0);
}

#[tokio::test]
async fn files_that_cannot_be_used_are_told_at_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("executor.yaml");
    for access in ["{tokens: /nowhere, model: iris}", "{file: /nowhere, model: iris}"] {
        let text = format!(
            "ports: [{{name: a, listen: '127.0.0.1:0', upstream: 1}}]\nadmin: {{listen: '127.0.0.1:0'}}\naccess: {access}"
        );
        fs_err::write(&file, text).expect("written");
        let error = berth_executor::Executor::start(&file).err().expect("no such file").to_string();
        assert!(error.contains("/nowhere"), "{error}");
    }
}

#[tokio::test]
async fn a_certificate_lets_its_holder_in_over_tls() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let ca = Authority::new(folder.path());
    ca.files("localhost", &path("server"));
    fs_err::write(path("access.yaml"), "certificates:\n  - {dns: 'billing.*', role: caller, models: [iris]}\n")
        .expect("written");
    let server = server(anywhere(), |request: http::Request<hyper::body::Incoming>| async move {
        let proto = request.headers()["x-forwarded-proto"].to_str().expect("ASCII").to_owned();
        http::Response::new(crate::fixture::full(&proto))
    })
    .await;
    let tls = format!(
        "tls: {{certificate: '{}', key: '{}', clientCa: '{}'}}",
        path("server.pem").display(),
        path("server.key").display(),
        path("ca.pem").display()
    );
    let access = format!("access: {{file: '{}', model: iris}}\n", path("access.yaml").display());
    let executor = executor(&(config(server.address, &tls) + &access));
    let url = format!("https://localhost:{}/a", executor.address.port());
    let asks = async |name: Option<&str>| {
        let root = reqwest::Certificate::from_pem(ca.pem().as_bytes()).expect("a certificate");
        let mut client = reqwest::Client::builder().tls_certs_only([root]).no_proxy();
        if let Some(name) = name {
            let (certificate, key) = ca.issue(name);
            client =
                client.identity(reqwest::Identity::from_pem((certificate + &key).as_bytes()).expect("an identity"));
        }
        let answer = client.build().expect("a client").get(&url).send().await.expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("a body"))
    };
    assert_eq!(asks(Some("billing.example")).await, (200, "https".to_owned()));
    assert_eq!(asks(Some("other.example")).await.0, 401);
    assert_eq!(asks(None).await.0, 401);
    let plain = said(executor.address, &get("/a", None)).await;
    assert!(plain.starts_with("HTTP/1.1 400 ") && plain.contains("https://"), "{plain}");
}

#[tokio::test]
async fn what_changes_with_a_restart_is_refused_meanwhile() {
    let server = server(anywhere(), echo).await;
    let executor = executor(&config(server.address, ""));
    let text = config(server.address, "") + "access: {tokens: /t, model: iris}\n";
    fs_err::write(&executor.file, text).expect("written");
    executor.tells("berth_executor_config_reloads_total{result=\"refused\"} 1").await;
    assert!(said(executor.address, &get("/a", None)).await.starts_with("HTTP/1.1 200 "));
}
