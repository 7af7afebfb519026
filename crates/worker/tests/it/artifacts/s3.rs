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

#[tokio::test]
async fn a_folder_is_fetched_file_by_file_checked_and_put_together() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = dir.path().join("s3/models/team/net");
    fs_err::create_dir_all(model.join("weights")).expect("created");
    let files =
        [("config.json", b"{}".to_vec()), ("weights/a b.bin", bytes(LARGE)), ("weights/50%.bin", bytes(70_000))];
    for (path, content) in &files {
        fs_err::write(model.join(path), content).expect("written");
    }
    let mut lines: Vec<String> = files.iter().map(|(path, content)| format!("{}  {path}\n", digest(content))).collect();
    lines.sort_by_key(|line| line.split_once("  ").map(|(_, path)| path.to_owned()));
    let whole = digest(lines.concat().as_bytes());
    let (url, _server) = serve(&dir.path().join("s3")).await;
    let environment = [
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_ENDPOINT_URL", url.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "us-east-1"),
    ];
    let artifacts = open(dir.path(), ByteSize::gib(1), &environment);
    let (artifact, pin) = fetch(&artifacts, "s3://models/team/net/", Some(whole)).await.expect("a folder");
    let size = files.iter().map(|(_, content)| content.len() as u64).sum();
    assert_eq!((artifact.digest, artifact.size), (whole, ByteSize(size)));
    let root = path_of(&artifact).to_owned();
    assert!(matches!(artifact.source, Source::Folder(_)));
    for (path, content) in &files {
        assert!(fs_err::read(root.join(path)).expect(path) == *content, "{path}");
    }
    drop(pin);
    assert!(!root.exists(), "it goes with its last pin; its files stay in the cache");

    let wrong = fetch(&artifacts, "s3://models/team/net/", Some(Digest([7; 32]))).await.err().expect("another content");
    assert_eq!(wrong.category, FailureCategory::Checksum, "{wrong}");
    let none = fetch(&artifacts, "s3://models/team/nothing/", None).await.err().expect("nothing is there");
    assert_eq!(none.category, FailureCategory::NotFound, "{none}");
    let small = tempfile::tempdir().expect("a folder");
    let full = open(small.path(), ByteSize::mib(1), &environment);
    let refused = fetch(&full, "s3://models/team/net/", None).await.err().expect("there is no room");
    assert_eq!(refused.category, FailureCategory::Disk, "{refused}");
    let local = url::Url::from_directory_path(&model).expect("a path");
    let other = Revision { format: "sklearn".parse().expect("a format"), ..revision(local.as_str(), Some(whole)) };
    let (here, _) = artifacts.fetch(&other, Arc::new(|_, _| ())).await.expect("a folder of this machine");
    assert_eq!((here.source, here.digest), (Source::Folder(model), whole), "the same content, used in place");
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
