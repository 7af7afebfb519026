//! S3, against a server in this process that checks signatures.

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use s3s::{auth::SimpleAuth, service::S3ServiceBuilder};
use s3s_fs::FileSystem;
use tokio::{net::TcpListener, task::JoinSet};

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
