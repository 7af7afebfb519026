//! Sources beside each other: who owns what, pauses, and what earlier versions stored.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use berth_control::{
    handle::{Error, ListRequest},
    source::{
        self, Context, Request, Requests, Setup, SetupError, Snapshot, Source, SourceName, SourceState, SourceStatus,
        WorkerSettings, directory::Directory,
    },
    store::{Op, Store, Txn, layout, memory::MemoryStore},
};
use berth_spec::{Epoch, Origin, UnknownWorkers, WorkerId, WorkerTerms};
use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::fixture::{Running, apply, manifest, name};

/// Sources that run.
struct Followed {
    tasks: JoinSet<Result<(), Error>>,
    stop: CancellationToken,
}

impl Followed {
    fn start(running: &Running, sources: Vec<(&str, Arc<dyn Source>)>) -> Self {
        let named = sources.into_iter().map(|(name, source)| (called(name), source)).collect();
        let setup = Setup::new(named).expect("they go together");
        let (mut tasks, stop) = (JoinSet::new(), CancellationToken::new());
        tasks.spawn(source::run(setup, running.handle.clone(), Epoch(0), stop.clone()));
        Self { tasks, stop }
    }

    async fn stop(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("no panic").expect("no error");
        }
    }
}

fn called(name: &str) -> SourceName {
    SourceName::new(name).expect("a name")
}

/// Waits until a source says so.
async fn until(running: &Running, of: &str, says: impl Fn(&SourceStatus) -> bool) -> SourceStatus {
    for _ in 0..10_000 {
        if let Some(status) = running.handle.sources().get(&called(of))
            && says(&status)
        {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never came: {:?}", running.handle.sources());
}

fn sync(running: &Running, name: &str) {
    assert!(running.handle.sources().request(&called(name), Request::Sync), "{name} runs");
}

async fn owners(running: &Running) -> BTreeMap<String, String> {
    let page = running.handle.list(ListRequest::default()).await.expect("a list");
    let there = page.items.iter().filter(|view| !view.deployment.deleting);
    there.map(|view| (view.deployment.name.to_string(), view.deployment.origin.kind().to_owned())).collect()
}

fn folder(names: &[&str]) -> (TempDir, Arc<dyn Source>) {
    let folder = tempfile::tempdir().expect("a folder");
    names.iter().for_each(|name| write(folder.path(), name, 1));
    let source = Directory::open(folder.path()).expect("a folder");
    (folder, Arc::new(source))
}

fn write(folder: &Path, name: &str, priority: u8) {
    let text = format!(
        "apiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata: {{name: {name}}}\nspec:\n  model: {{format: onnx, uri: \"s3://m/{name}.onnx\"}}\n  priority: {priority}\n"
    );
    fs_err::write(folder.join(format!("{name}.yaml")), text).expect("written");
}

/// A source of another kind: what the test says.
struct Fake {
    id: &'static str,
    snapshot: Snapshot,
}

impl Source for Fake {
    fn kind(&self) -> &'static str {
        "git"
    }

    fn origin(&self) -> Origin {
        Origin::git(self.id)
    }

    fn run(self: Arc<Self>, context: Context, mut requests: Requests) -> BoxFuture<'static, Result<(), Error>> {
        async move {
            let saved = context.load("checkpoint").await?;
            let read = saved.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            context.save("checkpoint", Bytes::from_static(b"of its own")).await?;
            let done = context.apply(&self.snapshot).await?;
            let problems: Vec<String> = done.problems.into_iter().map(|problem| problem.message).collect();
            context.update_status(|status| {
                (status.state, status.conflicts) = (SourceState::Synced, problems);
                status.set_detail("read", read.unwrap_or_default());
            });
            loop {
                tokio::select! {
                    () = context.shutdown().cancelled() => return Ok(()),
                    request = requests.next() => context.update_status(|status| {
                        status.set_detail("asked", format!("{request:?}"));
                    }),
                }
            }
        }
        .boxed()
    }
}

fn terms() -> WorkerTerms {
    WorkerTerms {
        labels: BTreeMap::new(),
        memory: None,
        cpus: None,
        max_models: Some(3),
        max_gpus: None,
        schema_versions: Vec::new(),
        eviction: berth_spec::worker::Eviction::default(),
    }
}

fn fake(id: &'static str, names: &[&str], workers: Option<(&str, UnknownWorkers)>) -> Arc<dyn Source> {
    let workers = workers.map(|(worker, unknown)| WorkerSettings {
        terms: [(WorkerId::new(worker).expect("a name"), terms())].into(),
        unknown,
    });
    let deployments = names.iter().map(|name| manifest(name, "")).collect();
    Arc::new(Fake { id, snapshot: Snapshot { revision: id.to_owned(), deployments, workers, ..Snapshot::default() } })
}

/// Waits until nothing is left to do: a paused clock goes on only then.
async fn idle() {
    tokio::time::sleep(Duration::from_secs(60)).await;
}

#[tokio::test(start_paused = true)]
async fn two_folders_and_a_registry_stand_beside_the_api_and_the_second_owner_is_told() {
    let running = Running::start(Arc::new(MemoryStore::default()));
    running.handle.apply(apply("by-hand", "")).await.expect("applied");
    let ((one, first), (two, second)) = (folder(&["a", "shared"]), folder(&["b"]));
    let sources = vec![("one", first), ("two", second), ("registry", fake("r", &["c"], None))];
    let followed = Followed::start(&running, sources);
    for name in ["one", "two", "registry"] {
        until(&running, name, |status| status.state == SourceState::Synced).await;
    }
    let expected = [("a", "directory"), ("b", "directory"), ("by-hand", "api"), ("c", "git"), ("shared", "directory")];
    let expected: BTreeMap<String, String> = expected.map(|(name, kind)| (name.to_owned(), kind.to_owned())).into();
    assert_eq!(owners(&running).await, expected);

    // The second folder declares what is the first one's and what is the API's.
    write(two.path(), "shared", 9);
    write(two.path(), "by-hand", 9);
    sync(&running, "two");
    let status = until(&running, "two", |status| status.conflicts.len() == 2).await;
    let problem = status.problem.unwrap_or_default();
    assert!(problem.contains("belongs to the API") && problem.contains(&one.path().display().to_string()), "{problem}");
    let (before, rev) = (owners(&running).await, running.handle.get(&name("shared")).await.expect("there").rev);
    for _ in 0..3 {
        sync(&running, "one");
        sync(&running, "two");
        idle().await;
    }
    assert_eq!((owners(&running).await, running.handle.get(&name("shared")).await.expect("there").rev), (before, rev));
    // Its owner gives it up: the other one gets it.
    fs_err::remove_file(one.path().join("shared.yaml")).expect("removed");
    sync(&running, "one");
    for _ in 0..1_000 {
        sync(&running, "two");
        if running.handle.get(&name("shared")).await.is_ok_and(|view| view.deployment.spec.priority == 9) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(running.handle.get(&name("shared")).await.expect("there").deployment.spec.priority, 9);
    followed.stop().await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_across_restarts_until_somebody_resumes() {
    let store = Arc::new(MemoryStore::default());
    let (folder, source) = folder(&["a"]);
    let running = Running::start(Arc::clone(&store) as Arc<dyn Store>);
    let followed = Followed::start(&running, vec![("models", Arc::clone(&source))]);
    until(&running, "models", |status| status.state == SourceState::Synced).await;
    assert!(running.handle.pause_source(&called("models"), true).await.expect("stored"));
    assert!(!running.handle.pause_source(&called("other"), true).await.expect("there is none"));
    write(folder.path(), "b", 1);
    sync(&running, "models");
    idle().await;
    assert_eq!(owners(&running).await.len(), 1, "what is declared stays, and nothing new is taken");
    followed.stop().await;
    running.stop().await;

    let running = Running::start(Arc::clone(&store) as Arc<dyn Store>);
    let followed = Followed::start(&running, vec![("models", source)]);
    let status = until(&running, "models", |status| status.paused).await;
    assert_eq!(status.state, SourceState::Paused);
    idle().await;
    assert_eq!(owners(&running).await.len(), 1);
    running.handle.pause_source(&called("models"), false).await.expect("stored");
    until(&running, "models", |status| status.state == SourceState::Synced).await;
    for _ in 0..500 {
        if owners(&running).await.len() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(owners(&running).await.len(), 2);
    followed.stop().await;
    running.stop().await;
}

#[tokio::test]
async fn each_source_has_its_checkpoint_and_its_workers_and_one_that_is_gone_leaves_none() {
    let store = Arc::new(MemoryStore::default());
    let running = Running::start(Arc::clone(&store) as Arc<dyn Store>);
    let first = || fake("first", &["a"], Some(("w1", UnknownWorkers::Allow)));
    let second = || fake("second", &["b"], Some(("w1", UnknownWorkers::Refuse)));
    let followed = Followed::start(&running, vec![("one", first())]);
    until(&running, "one", |status| status.state == SourceState::Synced).await;
    followed.stop().await;
    let followed = Followed::start(&running, vec![("one", first()), ("two", second())]);
    let two = until(&running, "two", |status| !status.conflicts.is_empty()).await;
    assert!(two.conflicts[0].contains("worker w1 gets its settings from the source one"), "{two:?}");
    until(&running, "one", |status| status.detail("read") == "of its own").await;
    assert_eq!(two.detail("read"), "");
    let unknown = store.get(layout::UNKNOWN_WORKERS).await.expect("read").expect("there");
    let unknown = berth_control::store::terms::read_unknown(&unknown).expect("it reads");
    assert_eq!(unknown, UnknownWorkers::Refuse, "the strictest counts");
    followed.stop().await;

    let followed = Followed::start(&running, vec![("two", second())]);
    let two = until(&running, "two", |status| status.detail("read") == "of its own").await;
    assert_eq!(two.conflicts.len(), 0, "the worker is free");
    assert_eq!(owners(&running).await.len(), 2, "what the other one declared stays");
    assert_eq!(store.get("/sources/one/checkpoint").await.expect("read"), None);
    followed.stop().await;
    running.stop().await;
}

/// Values as version 0.1.0 wrote them.
const OLD: [(&str, &str); 7] = [
    (
        "/deployments/from-folder",
        r#"{"v":1,"manifest":{"apiVersion":"berth.dev/v1","kind":"ModelDeployment","metadata":{"name":"from-folder"},"spec":{"model":{"format":"onnx","uri":"s3://m/a.onnx"}}},"generation":3,"directory":"/srv/models","created":5}"#,
    ),
    (
        "/deployments/from-git",
        r#"{"v":1,"manifest":{"apiVersion":"berth.dev/v1","kind":"ModelDeployment","metadata":{"name":"from-git"},"spec":{"model":{"format":"onnx","uri":"s3://m/b.onnx"}}},"generation":1,"git":"https://h/r.git#main","created":6}"#,
    ),
    (
        "/deployments/from-api",
        r#"{"v":1,"manifest":{"apiVersion":"berth.dev/v1","kind":"ModelDeployment","metadata":{"name":"from-api"},"spec":{"model":{"format":"onnx","uri":"s3://m/c.onnx"}}},"generation":1,"created":7}"#,
    ),
    ("/sources/git", r#"{"v":1,"origin":"https://h/r.git#main","applied":"aaaa","at":7}"#),
    ("/sources/git-told", r#"{"v":1,"matters":[]}"#),
    ("/terms/w1", r#"{"v":1,"maxModels":3,"schemaVersions":[],"eviction":{"strategy":"lru","automatic":true}}"#),
    ("/meta/terms", r#"{"v":1,"unknown":"ignore"}"#),
];

#[tokio::test]
async fn what_an_earlier_version_stored_of_its_only_source_goes_to_its_heir() {
    let store = Arc::new(MemoryStore::default());
    for (key, value) in OLD {
        let ops = vec![Op::Put { key: key.to_owned(), value: Bytes::from_static(value.as_bytes()) }];
        store.commit(Txn { compare: Vec::new(), ops }).await.expect("stored");
    }
    let running = Running::start(Arc::clone(&store) as Arc<dyn Store>);
    for (deployment, origin) in [
        ("from-folder", Origin::directory("/srv/models")),
        ("from-git", Origin::git("https://h/r.git#main")),
        ("from-api", Origin::API),
    ] {
        assert_eq!(running.handle.get(&name(deployment)).await.expect("it reads").deployment.origin, origin);
    }
    // It has another name now, and another registry beside it.
    let heir = fake("https://h/r.git#main", &["from-git"], Some(("w1", UnknownWorkers::Ignore)));
    let sources = vec![("other", fake("x", &[], Some(("w1", UnknownWorkers::Allow)))), ("team-a", heir)];
    let followed = Followed::start(&running, sources);
    let other = until(&running, "other", |status| !status.conflicts.is_empty()).await;
    assert!(other.conflicts[0].contains("from the source team-a") && other.detail("read").is_empty(), "{other:?}");
    let heir = until(&running, "team-a", |status| status.state == SourceState::Synced).await;
    assert_eq!(heir.detail("read"), OLD[3].1);
    let told = store.get("/sources/team-a/notified").await.expect("read").expect("moved");
    assert_eq!(told.value, OLD[4].1.as_bytes());
    for old in ["/sources/git", "/sources/git-told"] {
        assert_eq!(store.get(old).await.expect("read"), None, "{old}");
    }
    followed.stop().await;
    running.stop().await;
}

#[test]
fn names_and_places_are_unique() {
    let setup = |sources: Vec<(&str, Arc<dyn Source>)>| {
        Setup::new(sources.into_iter().map(|(name, source)| (called(name), source)).collect()).err()
    };
    assert_eq!(setup(vec![("a", fake("x", &[], None)), ("b", fake("y", &[], None))]), None);
    assert!(matches!(setup(vec![("a", fake("x", &[], None)), ("a", fake("y", &[], None))]), Some(SetupError::Name(_))));
    let same = setup(vec![("a", fake("x", &[], None)), ("b", fake("x", &[], None))]);
    assert_eq!(
        same.expect("refused").to_string(),
        "the sources a and b follow the same place, git:x: remove one of them"
    );
}
