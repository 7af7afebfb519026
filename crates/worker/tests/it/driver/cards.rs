//! The whole worker with model cards: what the runtime is given, and what stays of it.

use std::sync::Mutex;

use berth_spec::RuntimeInfo;
use berth_worker::{
    config::IsolationSettings,
    runtime::{LoadRequest, Loaded, metrics::Families, python::PythonRuntime},
};

use super::*;
use crate::prepare::{World, real};

const CONFIGURATION: &str = r#"{"factor": 4}"#;

/// A runtime for cards that keeps what it was asked for; the models are the scripted ones.
pub(super) struct Cards {
    inner: Arc<FakeRuntime>,
    asked: Mutex<Vec<LoadRequest>>,
}

impl Runtime for Cards {
    fn info(&self) -> RuntimeInfo {
        RuntimeInfo::unlimited("python", &[ModelFormat::PYTHON])
    }

    fn load(&self, request: &LoadRequest) -> Result<Loaded, LoadError> {
        self.asked.lock().expect("no panic").push(request.clone());
        self.inner.load(request)
    }
}

fn start(world: &World) -> (Bench, Arc<Cards>) {
    start_on(tempfile::tempdir().expect("a folder"), world, None)
}

/// With the library of a driver of GPUs.
pub(super) fn start_on(dir: tempfile::TempDir, world: &World, nvml: Option<std::path::PathBuf>) -> (Bench, Arc<Cards>) {
    let inner = Arc::new(FakeRuntime::default());
    let cards = Arc::new(Cards { inner: Arc::clone(&inner), asked: Mutex::default() });
    let mut config = Bench::config(&dir, world.settings());
    config.nvml_library = nvml;
    let bench = Bench::start_of(dir, inner, Arc::clone(&cards) as Arc<dyn Runtime>, config);
    (bench, cards)
}

impl Cards {
    /// The devices that a model was loaded with last.
    pub(super) fn devices(&self, id: &RevisionId) -> Vec<String> {
        let asked = self.asked.lock().expect("no panic");
        let last = asked.iter().rfind(|request| request.revision.id == *id).expect("it was loaded");
        last.devices.iter().map(ToString::to_string).collect()
    }
}

impl Bench {
    /// A replica of a card with these packages, whose artifact and configuration lie on this machine.
    pub(super) fn carded(&self, world: &World, name: &str, hash: u32, dependencies: &[&str]) -> Placed {
        let mut placed = self.placed(name);
        let revision = Arc::make_mut(&mut placed.revision);
        revision.id = format!("{name}@{hash:012}").parse().expect("a revision");
        revision.format = ModelFormat::PYTHON;
        let mut card = (*world.card(dependencies)).clone();
        let file = |ending: &str, text: &str| {
            let path = self.dir.path().join(format!("{name}.{ending}"));
            fs_err::write(&path, text).expect("written");
            url::Url::from_file_path(path).expect("a path").to_string()
        };
        revision.uri = file("joblib", "weights");
        card.card.artifacts.config_path = Some(file("json", CONFIGURATION));
        revision.card = Some(Arc::new(card));
        placed
    }

    fn loaded_files(&self) -> usize {
        fs_err::read_dir(self.dir.path().join("prepared/loaded")).expect("a folder").count()
    }
}

#[tokio::test]
async fn a_card_gets_its_code_environment_and_files_under_their_names() {
    let world = World::new();
    let (mut bench, cards) = start(&world);
    let placed = bench.carded(&world, "iris", 1, &["a==1.0.0"]);
    let id = placed.revision.id.clone();
    bench.assign(vec![placed]).await;
    bench.until(&id, |r| r.is_some_and(Residency::is_ready)).await;
    let request = cards.asked.lock().expect("no panic").pop().expect("one load");
    let prepared = request.prepared.clone().expect("a card is prepared");
    assert_eq!(fs_err::read_to_string(prepared.code.join("src/model.py")).expect("the code"), "first");
    assert!(prepared.python.exists());
    let config = prepared.config.clone().expect("it has one");
    let artifact = request.artifact.path().expect("on this machine").to_owned();
    for (file, name, text) in [(&artifact, "iris.joblib", "weights"), (&config, "iris.json", CONFIGURATION)] {
        assert_eq!(file.file_name().and_then(|name| name.to_str()), Some(name));
        assert_eq!(fs_err::read_to_string(file).expect("readable"), text);
    }
    assert_eq!(bench.loaded_files(), 1);
    bench.assign(Vec::new()).await;
    bench.until(&id, |r| r.is_none()).await;
    drop((prepared, request));
    assert_eq!(bench.loaded_files(), 0, "what was the model's own goes with it");
    let left = |shelf: &str| fs_err::read_dir(bench.dir.path().join("prepared").join(shelf)).expect("a folder").count();
    assert_eq!((left("checkouts"), left("environments")), (1, 1), "what others may want stays");
    let metrics = bench.metrics();
    assert!(metrics.contains("berth_environments 1") && metrics.contains("worker_heartbeat_sent_total"), "{metrics}");
}

#[tokio::test]
async fn a_new_version_that_cannot_be_made_leaves_the_old_one_serving() {
    let world = World::new();
    let (mut bench, _cards) = start(&world);
    let (old, new) = (bench.carded(&world, "iris", 1, &[]), bench.carded(&world, "iris", 2, &["conflict==1.0.0"]));
    let (old_id, new_id) = (old.revision.id.clone(), new.revision.id.clone());
    bench.assign(vec![old.clone()]).await;
    bench.until(&old_id, |r| r.is_some_and(Residency::is_ready)).await;
    bench.assign(vec![old, new]).await;
    let failed = bench.until(&new_id, |r| matches!(r, Some(Residency::Failed(_)))).await;
    let Some(Residency::Failed(failure)) = failed else { panic!("it should have failed") };
    assert_eq!((failure.category, failure.retry_at), (FailureCategory::Dependencies, None));
    assert!(failure.trace.as_ref().is_some_and(|trace| trace.contains("No solution found")), "{failure:?}");
    let lease = bench.local.get(&old_id).and_then(|replica| replica.acquire());
    assert!(lease.is_some() && bench.local.get(&new_id).is_none());
}

/// From the commit to the answer, with the real uv, git and Python. No package is needed, and so no index.
#[tokio::test(flavor = "multi_thread")]
async fn a_real_card_from_its_commit_to_an_answer() {
    let Some(uv) = real::uv() else { return };
    let mut world = World::new();
    for (file, text) in [
        ("pre", "def f(request, config):\n    return request['x']\n"),
        ("post", "def f(output, config):\n    return {'y': output}\n"),
    ] {
        fs_err::write(world.path(&format!("code/src/{file}.py")), text).expect("written");
    }
    let model = "def load(path, config):\n    assert path.endswith('iris.joblib')\n    \
                 return lambda x: config['factor'] * x\n";
    world.commit = world.commit(model, "v1.0.0");
    let environment = std::env::vars_os().collect();
    let settings = prepare::Settings { uv: Some(uv), environment, ..world.settings() };
    let dir = tempfile::tempdir().expect("a folder");
    let families = Families::register(&mut Registry::default());
    let python = Arc::new(PythonRuntime::open(dir.path(), &IsolationSettings::default(), families).expect("opened"));
    let mut bench = Bench::start_with(dir, Arc::default(), python, settings);
    let mut placed = bench.carded(&world, "iris", 1, &[]);
    let revision = Arc::make_mut(&mut placed.revision);
    let card = Arc::make_mut(revision.card.as_mut().expect("a card"));
    card.card.runtime.python_version = real::version();
    card.card.code.entrypoint = Some("src.model".to_owned());
    let number = |name: &str| serde_json::json!({"type": "object", "required": [name], "properties": {name: {"type": "number"}}});
    (card.card.interface.input_schema, card.card.interface.output_schema) = (number("x"), number("y"));
    let id = revision.id.clone();
    Arc::make_mut(&mut placed.serving).warmup = Warmup::Generated;
    bench.assign(vec![placed]).await;
    let settled = |r: Option<&Residency>| matches!(r, Some(Residency::Ready(_) | Residency::Failed(_)));
    let residency = bench.until(&id, settled).await;
    assert!(matches!(residency, Some(Residency::Ready(_))), "{residency:?}");
    let lease = bench.local.get(&id).and_then(|replica| replica.acquire()).expect("it answers");
    let deadline = std::time::Instant::now() + Duration::from_secs(120);
    let answer = lease.model().call(bytes::Bytes::from_static(b"{\"x\": 2.5}"), deadline).await.expect("an answer");
    let answer: serde_json::Value = serde_json::from_slice(&answer).expect("JSON");
    assert_eq!(answer, serde_json::json!({"y": 10.0}), "by the factor of the configuration");
    drop(lease);
    bench.shutdown.cancel();
    assert_eq!(bench.worker.await.expect("no panic"), Stopped { drained: 1, cut: 0, left: 0 });
}
