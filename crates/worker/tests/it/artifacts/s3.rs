//! S3, against a server in this process that checks signatures.

use berth_spec::{
    CredentialSet, Generation, Secret,
    credential::{Credential, FieldValue, Granted, Kind},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use s3s::{auth::SimpleAuth, service::S3ServiceBuilder};
use s3s_fs::FileSystem;
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

use super::*;

/// Serves the folders of `root` as buckets.
async fn serve(root: &Path) -> (String, JoinSet<()>) {
    let mut builder = S3ServiceBuilder::new(FileSystem::new(root).expect("a folder"));
    builder.set_auth(SimpleAuth::from_single("key", "secret"));
    let service = builder.build();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((socket, _)) = listener.accept().await {
            let service = service.clone();
            connections.spawn(async move {
                let server = auto::Builder::new(TokioExecutor::new());
                let _ = server.serve_connection(TokioIo::new(socket), service).await;
            });
        }
    });
    (url, tasks)
}

#[tokio::test]
async fn s3_conforms() {
    let dir = tempfile::tempdir().expect("a folder");
    let content = bytes(LARGE);
    let bucket = dir.path().join("s3/models/team");
    fs_err::create_dir_all(&bucket).expect("created");
    fs_err::write(bucket.join("m.onnx"), &content).expect("written");
    let (url, _server) = serve(&dir.path().join("s3")).await;
    let right = [
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_ENDPOINT_URL", url.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "us-east-1"),
    ];
    let artifacts = open(dir.path(), ByteSize::gib(1), &right);
    conforms(&artifacts, "s3://models/team/m.onnx", "s3://models/team/none.onnx", &content).await;

    let mut wrong = right;
    wrong[1].1 = "guess";
    let other = tempfile::tempdir().expect("a folder");
    let refused = fetch(&open(other.path(), ByteSize::gib(1), &wrong), "s3://models/team/m.onnx", None).await;
    let refused = refused.err().expect("a wrong secret");
    assert_eq!(refused.category, FailureCategory::Auth, "{refused}");
    assert!(refused.message.contains("AWS_SECRET_ACCESS_KEY"), "{refused}");
}

/// A set with one key for one bucket.
fn handed_out(generation: u64, secret: &str, endpoint: &str) -> Arc<CredentialSet> {
    let text = |value: &str| FieldValue::Text(Secret::new(value));
    let fields = [
        ("access_key_id", text("key")),
        ("secret_access_key", text(secret)),
        ("region", text("us-east-1")),
        ("endpoint", text(endpoint)),
        ("hosts", FieldValue::List(vec!["models".to_owned()])),
    ];
    let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let (credential, scope) = Credential::build(Kind::S3, fields).expect("a credential");
    let granted = Granted { credential, scope, expires: None };
    let secrets = BTreeMap::from([("store_access".to_owned(), granted)]);
    Arc::new(CredentialSet { generation: Generation(generation), secrets })
}

#[tokio::test]
async fn keys_that_are_handed_out_go_before_the_environment_and_are_changed_while_it_runs() {
    let dir = tempfile::tempdir().expect("a folder");
    for bucket in ["models", "others"] {
        fs_err::create_dir_all(dir.path().join("s3").join(bucket)).expect("created");
        fs_err::write(dir.path().join("s3").join(bucket).join("m.onnx"), bucket).expect("written");
    }
    let (url, _server) = serve(&dir.path().join("s3")).await;
    let keys = watch::Sender::new(handed_out(1, "guess", &url));
    let environment = [
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_ENDPOINT_URL", url.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "us-east-1"),
    ];
    let artifacts = open(dir.path(), ByteSize::gib(1), &environment).with_keys(keys.subscribe());
    let refused = fetch(&artifacts, "s3://models/m.onnx", None).await.err().expect("the key is wrong");
    assert_eq!(refused.category, FailureCategory::Auth, "{refused}");
    assert!(refused.message.contains("store_access (s3_credentials)"), "{refused}");
    assert!(!refused.message.contains("guess"), "{refused}");
    assert!(fetch(&artifacts, "s3://others/m.onnx", None).await.is_ok(), "the environment's is for what is left");
    keys.send_replace(handed_out(2, "secret", &url));
    assert!(fetch(&artifacts, "s3://models/m.onnx", None).await.is_ok(), "the next fetch uses the new one");
}
