//! The whole worker with model cards: what the runtime is given, and what stays of it.

use std::sync::Mutex;

use berth_worker::runtime::{LoadRequest, Loaded};

use super::*;
use crate::prepare::World;

/// A runtime for cards that keeps what it was asked for; the models are the scripted ones.
struct Cards {
    inner: Arc<FakeRuntime>,
    asked: Mutex<Vec<LoadRequest>>,
}

impl Runtime for Cards {
    fn formats(&self) -> &[ModelFormat] {
        &[ModelFormat::Python]
    }

    fn load(&self, request: &LoadRequest) -> Result<Loaded, LoadError> {
        self.asked.lock().expect("no panic").push(request.clone());
        self.inner.load(request)
    }
}

fn start(world: &World) -> (Bench, Arc<Cards>) {
    let inner = Arc::new(FakeRuntime::default());
    let cards = Arc::new(Cards { inner: Arc::clone(&inner), asked: Mutex::default() });
    let dir = tempfile::tempdir().expect("a folder");
    let bench = Bench::start_with(dir, inner, Arc::clone(&cards) as Arc<dyn Runtime>, world.settings());
    (bench, cards)
}

impl Bench {
    /// A replica of a card with these packages, whose artifact and configuration lie on this machine.
    fn carded(&self, world: &World, name: &str, hash: u32, dependencies: &[&str]) -> Placed {
        let mut placed = self.placed(name);
        let revision = Arc::make_mut(&mut placed.revision);
        revision.id = format!("{name}@{hash:012}").parse().expect("a revision");
        revision.format = ModelFormat::Python;
        let mut card = (*world.card(dependencies)).clone();
        let file = |ending: &str| {
            let path = self.dir.path().join(format!("{name}.{ending}"));
            fs_err::write(&path, ending).expect("written");
            url::Url::from_file_path(path).expect("a path").to_string()
        };
        revision.uri = file("joblib");
        card.card.artifacts.config_path = Some(file("json"));
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
    for (file, name, text) in [(&request.artifact, "iris.joblib", "joblib"), (&config, "iris.json", "json")] {
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
