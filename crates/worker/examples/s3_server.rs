//! An object store for tests that speaks S3 and verifies signatures: folders of ROOT are buckets.
//!
//! ```text
//! s3_server ADDRESS ROOT KEYS
//! ```
//! KEYS is a file of lines `ACCESS_KEY_ID SECRET`, read for every request, so that a test can add and revoke keys.

use std::{env, path::PathBuf};

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use s3s::{
    S3Result,
    auth::{S3Auth, SecretKey},
    s3_error,
    service::S3ServiceBuilder,
};
use s3s_fs::FileSystem;
use tokio::{net::TcpListener, task::JoinSet};

/// The keys that may read, as the file lists them now.
struct Keys(PathBuf);

#[async_trait::async_trait]
impl S3Auth for Keys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let keys = fs_err::read_to_string(&self.0).map_err(|_| s3_error!(InternalError, "the file of keys is gone"))?;
        let mut lines = keys.lines().filter_map(|line| line.split_once(' '));
        let secret = lines.find(|(id, _)| *id == access_key).map(|(_, secret)| SecretKey::from(secret.trim()));
        secret.ok_or_else(|| s3_error!(InvalidAccessKeyId, "no such key"))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut arguments = env::args().skip(1);
    let mut next = |what: &str| arguments.next().unwrap_or_else(|| panic!("{what} is missing"));
    let (address, root, keys) = (next("ADDRESS"), next("ROOT"), next("KEYS"));
    let mut builder = S3ServiceBuilder::new(FileSystem::new(root).expect("ROOT is a folder"));
    builder.set_auth(Keys(keys.into()));
    let service = builder.build();
    let listener = TcpListener::bind(address).await.expect("the address is free");
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let service = service.clone();
        connections.spawn(async move {
            // A client that hangs up in the middle is no fault of ours.
            let _ended = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), service).await;
        });
        while connections.try_join_next().is_some() {}
    }
}
