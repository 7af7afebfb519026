//! A folder of manifests.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use berth_control::{
    events::EventFilter,
    handle::{Error, WatchEvent, WatchRequest, WatchStream},
    source::{self, Setup, Source, SourceName, SourceState, directory::Directory},
    store::memory::MemoryStore,
};
use berth_spec::{DeploymentName, Digest, Epoch, Event};
use futures::StreamExt;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::fixture::{Running, name};

fn write(folder: &Path, file: &str, deployment: &str, priority: u8) {
    let text = format!(
        "apiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata: {{name: {deployment}}}\nspec:\n  model: {{format: onnx, uri: \"file:model.onnx\"}}\n  priority: {priority}\n"
    );
    fs_err::write(folder.join(file), text).expect("written");
}

/// Longer than anything here may take, also on a machine that compiles beside the tests.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits for word of a deployment: whether it is there, its priority, its artifact's digest.
async fn next(watch: &mut WatchStream, wanted: &DeploymentName) -> Option<(u8, Option<Digest>)> {
    loop {
        let event = tokio::time::timeout(PATIENCE, watch.next()).await.expect("a word");
        match event.expect("open").expect("an event") {
            WatchEvent::Added(view) | WatchEvent::Modified(view) if view.deployment.name == *wanted => {
                return Some((view.deployment.spec.priority, view.deployment.digest));
            }
            WatchEvent::Deleted { name, .. } if name == *wanted => return None,
            _ => {}
        }
    }
}

/// Waits until something is told that names `what`.
async fn told(running: &Running, what: &str) -> Event {
    let end = Instant::now() + PATIENCE;
    loop {
        let events = running.handle.events(EventFilter::default()).await.expect("events").events;
        if let Some((_, event)) = events.into_iter().find(|(_, event)| event.message.contains(what)) {
            return event;
        }
        assert!(Instant::now() < end, "never told: {what}");
        tokio::task::yield_now().await;
    }
}

fn setup(name: &str, directory: Directory) -> Setup {
    let source: Arc<dyn Source> = Arc::new(directory);
    Setup::new(vec![(SourceName::new(name).expect("a name"), source)]).expect("one source")
}

#[tokio::test]
async fn the_folder_is_what_is_declared() {
    let folder = tempfile::tempdir().expect("a folder");
    fs_err::write(folder.path().join("model.onnx"), b"one").expect("written");
    fs_err::write(folder.path().join("tokenizer.json"), b"{\"not\": \"ours\"}").expect("written");
    write(folder.path(), "a.yaml", "a", 1);
    fs_err::create_dir(folder.path().join("sub")).expect("made");
    fs_err::write(folder.path().join("broken.yaml"), b"apiVersion: [").expect("written");

    let running = Running::start(Arc::new(MemoryStore::default()));
    let mut watch = running.handle.watch(WatchRequest::default()).await.expect("a watch");
    let (mut tasks, shutdown) = (JoinSet::new(), CancellationToken::new());
    let directory = Directory::open(folder.path()).expect("a folder");
    tasks.spawn(source::run(setup("models", directory), running.handle.clone(), Epoch(0), shutdown.clone()));

    let (_, first) = next(&mut watch, &name("a")).await.expect("declared");
    assert!(first.is_some(), "a local artifact is hashed");
    assert_eq!(told(&running, "broken.yaml:1:").await.reason, "ManifestInvalid");

    write(folder.path(), "a.yaml", "a", 2);
    while next(&mut watch, &name("a")).await.expect("still there").0 != 2 {}
    fs_err::write(folder.path().join("model.onnx"), b"two").expect("written");
    while next(&mut watch, &name("a")).await.expect("still there").1 == first {}
    // It does not even look like a manifest any more; beside it is what never did.
    fs_err::write(folder.path().join("a.yaml"), b"spec: [").expect("written");
    fs_err::write(folder.path().join("labels.yaml"), b"- setosa").expect("written");
    write(folder.path(), "b.yaml", "b", 1);
    next(&mut watch, &name("b")).await.expect("declared");
    assert!(running.handle.get(&name("a")).await.is_ok(), "the last good one stays");
    let trouble = told(&running, "a.yaml:1:").await;
    assert!(trouble.reason == "ManifestInvalid" && trouble.message.contains("stays"), "{trouble:?}");

    let shown = running.handle.sources().list();
    assert_eq!((shown.len(), shown[0].kind, shown[0].state), (1, "directory", SourceState::Synced), "{shown:?}");
    assert!(shown[0].problem.as_deref().is_some_and(|problem| problem.contains("a.yaml:1:")), "{shown:?}");

    fs_err::remove_file(folder.path().join("a.yaml")).expect("removed");
    while next(&mut watch, &name("a")).await.is_some() {}
    assert!(matches!(running.handle.get(&name("a")).await, Err(Error::NotFound(_))));
    shutdown.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic").expect("no error");
    }
    running.stop().await;
}
