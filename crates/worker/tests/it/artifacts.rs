//! Artifacts against real servers in this process: one suite for every kind of store, and what only web servers do.

mod s3;
mod site;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use berth_spec::{ByteSize, Digest, FailureCategory, Revision, deployment::ModelFormat, deployment::RuntimeOptions};
use berth_worker::{
    Fault,
    artifacts::{Artifact, Artifacts, Pin, Source},
    metrics::CacheMetrics,
};
use sha2::{Digest as _, Sha256};

use self::site::{Behaviour, Site};

/// Larger than three ranges, and not a multiple of anything.
const LARGE: usize = (26 << 20) + 12_345;

fn bytes(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..length.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(length).collect()
}

fn path_of(artifact: &Artifact) -> &Path {
    artifact.source.path().expect("on this machine")
}

fn digest(bytes: &[u8]) -> Digest {
    Digest(Sha256::digest(bytes).into())
}

fn revision(uri: &str, digest: Option<Digest>) -> Revision {
    Revision {
        id: "m@000000000001".parse().expect("a revision"),
        format: ModelFormat::ONNX,
        uri: uri.to_owned(),
        digest,
        version: "1".to_owned(),
        signature: None,
        runtime: RuntimeOptions::default(),
        memory: None,
        card: None,
    }
}

fn open(dir: &Path, bound: ByteSize, credentials: &[(&str, &str)]) -> Artifacts {
    let credentials: BTreeMap<_, _> = credentials.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Artifacts::open(dir.join("cache"), bound, credentials, CacheMetrics::default()).expect("a cache")
}

async fn fetch(artifacts: &Artifacts, uri: &str, digest: Option<Digest>) -> Result<(Artifact, Pin), Fault> {
    artifacts.fetch(&revision(uri, digest), Arc::new(|_, _| ())).await
}

/// Checks what holds for every store: the bytes, the digest, progress, typed failures that name the place, and that
/// what was fetched once is not fetched again.
async fn conforms(artifacts: &Artifacts, good: &str, missing: &str, content: &[u8]) {
    let right = digest(content);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ear = Arc::clone(&heard);
    let listener = Arc::new(move |done, total| ear.lock().expect("no panic").push((done, total)));
    let (artifact, _pin) = artifacts.fetch(&revision(good, None), listener).await.expect(good);
    assert_eq!((artifact.digest, artifact.size), (right, ByteSize(content.len() as u64)), "{good}");
    assert!(fs_err::read(path_of(&artifact)).expect("readable") == content, "{good}: the bytes are the same");
    for (done, total) in heard.lock().expect("no panic").iter() {
        assert!(total.is_none_or(|total| *done <= total), "{done} of {total:?}");
    }
    let again = fetch(artifacts, good, Some(right)).await.expect("with the right digest").0;
    assert_eq!(again, artifact, "from the same place");

    let failed = fetch(artifacts, missing, None).await.err().expect("nothing is there");
    assert_eq!(failed.category, FailureCategory::NotFound, "{failed}");
    assert!(failed.message.contains("spec.model.uri"), "says what to do: {failed}");
    let failed = fetch(artifacts, good, Some(Digest([7; 32]))).await.err().expect("another content");
    assert_eq!(failed.category, FailureCategory::Checksum, "{failed}");
    assert!(failed.message.contains(&right.to_string()), "says what it is: {failed}");
}

#[tokio::test]
async fn files_conform_and_are_used_in_place() {
    let dir = tempfile::tempdir().expect("a folder");
    let (content, path) = (bytes(100_000), dir.path().join("a model.onnx"));
    fs_err::write(&path, &content).expect("written");
    let artifacts = open(dir.path(), ByteSize::ZERO, &[]);
    let uri = url::Url::from_file_path(&path).expect("a path");
    let missing = url::Url::from_file_path(dir.path().join("none.onnx")).expect("a path");
    conforms(&artifacts, uri.as_str(), missing.as_str(), &content).await;
    assert_eq!(fetch(&artifacts, uri.as_str(), None).await.expect("there").0.source, Source::File(path.clone()));

    // Changed in place: the digest is of the new bytes.
    let changed = bytes(100_001);
    fs_err::write(&path, &changed).expect("written");
    assert_eq!(fetch(&artifacts, uri.as_str(), None).await.expect("there").0.digest, digest(&changed));
}

#[tokio::test]
async fn a_folder_is_its_graph_with_external_data_beside_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let uri = url::Url::from_directory_path(dir.path()).expect("a path");
    let artifacts = open(dir.path(), ByteSize::ZERO, &[]);
    let none = fetch(&artifacts, uri.as_str(), None).await.err().expect("no graph");
    assert_eq!(none.category, FailureCategory::InvalidModel, "{none}");
    fs_err::write(dir.path().join("net.onnx"), b"graph").expect("written");
    fs_err::write(dir.path().join("net.onnx.data"), b"weights").expect("written");
    let found = fetch(&artifacts, uri.as_str(), None).await.expect("the only one").0;
    assert_eq!((found.source, found.digest), (Source::File(dir.path().join("net.onnx")), digest(b"graph")));
}

#[tokio::test]
async fn devices_and_pipes_are_not_read() {
    let dir = tempfile::tempdir().expect("a folder");
    let pipe = dir.path().join("pipe.onnx");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
    let artifacts = open(dir.path(), ByteSize::ZERO, &[]);
    for path in [Path::new("/dev/null"), Path::new("/dev/zero"), &pipe] {
        let uri = url::Url::from_file_path(path).expect("a path");
        let refused = fetch(&artifacts, uri.as_str(), None).await.err().expect("not a file");
        assert_eq!(refused.category, FailureCategory::InvalidModel, "{refused}");
        assert!(refused.message.contains("spec.model.uri"), "{refused}");
    }
}

#[tokio::test]
async fn web_servers_of_all_kinds_conform() {
    let cases = [
        ("ranges", Behaviour::default(), LARGE),
        ("small", Behaviour::default(), 10),
        ("exactly two ranges", Behaviour::default(), 16 << 20),
        ("no ranges", Behaviour { ranges: false, ..Behaviour::default() }, LARGE),
        ("no ranges, no length", Behaviour { ranges: false, length: false, ..Behaviour::default() }, 3 << 20),
        ("no etag", Behaviour { etag: None, ..Behaviour::default() }, LARGE),
        ("wants its query", Behaviour { query: Some("sig=a%2Fb"), ..Behaviour::default() }, 1_000),
    ];
    for (what, behaviour, length) in cases {
        println!("{what}");
        let dir = tempfile::tempdir().expect("a folder");
        let content = bytes(length);
        let query = behaviour.query.map(|query| format!("?{query}")).unwrap_or_default();
        let site = Site::start(content.clone(), behaviour).await;
        let artifacts = open(dir.path(), ByteSize::gib(1), &[]);
        conforms(&artifacts, &format!("{}/m%20odd//x.onnx{query}", site.url), &format!("{}/none", site.url), &content)
            .await;
    }
}

#[tokio::test]
async fn after_a_restart_nothing_is_fetched_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let content = bytes(LARGE);
    let site = Site::start(content.clone(), Behaviour::default()).await;
    let uri = format!("{}/m.onnx", site.url);
    fetch(&open(dir.path(), ByteSize::gib(1), &[]), &uri, None).await.expect("fetched");
    assert_eq!(site.sent(), content.len() as u64, "each byte once");

    let restarted = open(dir.path(), ByteSize::gib(1), &[]);
    fetch(&restarted, &uri, Some(digest(&content))).await.expect("by digest");
    assert_eq!(site.requests().len(), 4, "by digest, the server is not even asked");
    fetch(&restarted, &uri, None).await.expect("by etag");
    assert_eq!(site.sent(), content.len() as u64, "by etag, it says 304");

    site.behave(|behaviour| behaviour.down = true);
    fetch(&restarted, &uri, None).await.expect("known bytes while the store is away");

    let changed = bytes(1_000);
    site.replace(changed.clone(), "\"two\"");
    site.behave(|behaviour| behaviour.down = false);
    assert_eq!(fetch(&restarted, &uri, None).await.expect("new").0.digest, digest(&changed), "a new etag");
}

#[tokio::test]
async fn a_break_is_resumed_even_after_a_restart() {
    let dir = tempfile::tempdir().expect("a folder");
    let content = bytes(LARGE);
    let site = Site::start(content.clone(), Behaviour { break_at: Some(20 << 20), ..Behaviour::default() }).await;
    let uri = format!("{}/m.onnx", site.url);
    let broken = fetch(&open(dir.path(), ByteSize::gib(1), &[]), &uri, None).await.err().expect("it breaks");
    assert!(broken.category.transient(), "{broken}");
    assert!(!broken.message.contains("127.0.0.1:1/"), "{broken}");
    let before = site.sent();
    site.behave(|behaviour| behaviour.break_at = None);
    let (artifact, _) = fetch(&open(dir.path(), ByteSize::gib(1), &[]), &uri, None).await.expect("resumed");
    assert_eq!(artifact.digest, digest(&content));
    let after = site.sent() - before;
    assert_eq!(after, LARGE as u64 - (16 << 20), "only the two ranges that broke were fetched again");
}

#[tokio::test]
async fn a_break_is_started_over_when_the_object_has_changed_meanwhile() {
    let dir = tempfile::tempdir().expect("a folder");
    let site = Site::start(bytes(LARGE), Behaviour { break_at: Some(20 << 20), ..Behaviour::default() }).await;
    let uri = format!("{}/m.onnx", site.url);
    let artifacts = open(dir.path(), ByteSize::gib(1), &[]);
    fetch(&artifacts, &uri, None).await.err().expect("it breaks");
    let other: Vec<u8> = bytes(LARGE).into_iter().map(|byte| byte ^ 0xff).collect();
    site.replace(other.clone(), "\"two\"");
    site.behave(|behaviour| behaviour.break_at = None);
    assert_eq!(fetch(&artifacts, &uri, None).await.expect("started over").0.digest, digest(&other));
}

#[tokio::test]
async fn wrong_bytes_are_thrown_away() {
    let dir = tempfile::tempdir().expect("a folder");
    let content = bytes(5_000);
    let site = Site::start(content.clone(), Behaviour::default()).await;
    let uri = format!("{}/m.onnx", site.url);
    let artifacts = open(dir.path(), ByteSize::gib(1), &[]);
    let wrong = fetch(&artifacts, &uri, Some(Digest([1; 32]))).await.err().expect("another digest");
    assert_eq!(wrong.category, FailureCategory::Checksum);
    let left: Vec<_> = fs_err::read_dir(dir.path().join("cache/partial")).expect("there").collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(fetch(&artifacts, &uri, Some(digest(&content))).await.expect("the right one").0.size, ByteSize(5_000));
}

/// Names of what is inside tell an author nothing.
fn says_no_internals(fault: &Fault) {
    for internal in ["retries", "retry_timeout", "Error performing", "/artifact", "os error", "Generic"] {
        assert!(!fault.message.contains(internal), "{fault}");
    }
}

#[tokio::test]
async fn failures_are_typed_and_show_no_secrets() {
    let dir = tempfile::tempdir().expect("a folder");
    let artifacts = open(dir.path(), ByteSize::mib(1), &[]);
    let cases = [
        (401, FailureCategory::Auth),
        (403, FailureCategory::Auth),
        (404, FailureCategory::NotFound),
        (410, FailureCategory::Network),
        (500, FailureCategory::Network),
    ];
    for (status, category) in cases {
        let site = Site::start(bytes(10), Behaviour { status: Some(status), ..Behaviour::default() }).await;
        let uri = format!("{}/m.onnx?X-Signature=s3cr3t", site.url);
        let fault = fetch(&artifacts, &uri, None).await.err().expect("refused");
        assert_eq!(fault.category, category, "{status}: {fault}");
        assert!(fault.message.contains("/m.onnx") && !fault.message.contains("s3cr3t"), "{fault}");
        says_no_internals(&fault);
        assert!(status == 404 || fault.message.contains(&status.to_string()), "the server's word: {fault}");
    }
    let nobody = fetch(&artifacts, "http://127.0.0.1:1/m.onnx", None).await.err().expect("nobody listens");
    assert_eq!(nobody.category, FailureCategory::Network, "{nobody}");
    says_no_internals(&nobody);
    assert!(nobody.message.contains("http://127.0.0.1:1/m.onnx (Connection refused)"), "{nobody}");
    let file = fetch(&artifacts, "file:///nonexistent/m.onnx", None).await.err().expect("no such file");
    assert!(file.message.starts_with("there is no file /nonexistent/m.onnx: check"), "{file}");
    let site = Site::start(bytes(2 << 20), Behaviour::default()).await;
    let full = fetch(&artifacts, &format!("{}/m.onnx", site.url), None).await.err().expect("the cache is smaller");
    assert_eq!(full.category, FailureCategory::Disk, "{full}");
    assert!(full.message.contains("--cache"), "{full}");
    let folder = fetch(&artifacts, &format!("{}/m/", site.url), None).await.err().expect("a folder");
    assert_eq!(folder.category, FailureCategory::InvalidModel, "{folder}");
}

/// The bytes below a folder.
fn bytes_below(dir: &Path) -> u64 {
    let entries = fs_err::read_dir(dir).expect("a folder").map(|entry| entry.expect("readable"));
    let size = |entry: fs_err::DirEntry| match entry.metadata().expect("there") {
        folder if folder.is_dir() => bytes_below(&entry.path()),
        file => file.len(),
    };
    entries.map(size).sum()
}

#[tokio::test]
async fn a_server_cannot_send_more_than_fits() {
    let cases = [
        ("no length", Behaviour { ranges: false, length: false, ..Behaviour::default() }, FailureCategory::Disk),
        ("more than the range", Behaviour { too_much: true, ..Behaviour::default() }, FailureCategory::Network),
    ];
    for (what, behaviour, category) in cases {
        let dir = tempfile::tempdir().expect("a folder");
        let bound = if category == FailureCategory::Disk { ByteSize::mib(4) } else { ByteSize::gib(1) };
        let site = Site::start(bytes(LARGE), behaviour).await;
        let artifacts = open(dir.path(), bound, &[]);
        let fault = fetch(&artifacts, &format!("{}/m.onnx", site.url), None).await.err().expect(what);
        assert_eq!(fault.category, category, "{what}: {fault}");
        if category == FailureCategory::Disk {
            // How much the server got rid of until then is the sockets' affair; what is on disk is ours.
            assert_eq!(bytes_below(&dir.path().join("cache")), 0, "{what}: nothing is left");
        }
    }
}

#[tokio::test]
async fn a_cancelled_fetch_leaves_the_next_one_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    let content = bytes(LARGE);
    let site = Site::start(content.clone(), Behaviour { slow: true, ..Behaviour::default() }).await;
    let artifacts = open(dir.path(), ByteSize::gib(1), &[]);
    let uri = format!("{}/m.onnx", site.url);
    let cut = tokio::time::timeout(Duration::from_millis(200), fetch(&artifacts, &uri, None)).await;
    assert!(cut.is_err(), "it was still going on");
    site.behave(|behaviour| behaviour.slow = false);
    assert_eq!(fetch(&artifacts, &uri, None).await.expect("fetched").0.digest, digest(&content));
}
