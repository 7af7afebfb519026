//! A folder of manifests.

use std::{path::Path, sync::Arc};

use berth_control::{
    events::EventFilter,
    handle::{Error, WatchEvent, WatchRequest, WatchStream},
    source::directory::Directory,
    store::memory::MemoryStore,
};
use berth_spec::{DeploymentName, Digest};
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

/// Waits for word of a deployment: whether it is there, its priority, its artifact's digest.
async fn next(watch: &mut WatchStream, wanted: &DeploymentName) -> Option<(u8, Option<Digest>)> {
    loop {
        match watch.next().await.expect("open").expect("an event") {
            WatchEvent::Added(view) | WatchEvent::Modified(view) if view.deployment.name == *wanted => {
                return Some((view.deployment.spec.priority, view.deployment.digest));
            }
            WatchEvent::Deleted { name, .. } if name == *wanted => return None,
            _ => {}
        }
    }
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
    tasks.spawn(directory.run(running.handle.clone(), shutdown.clone()));

    let (_, first) = next(&mut watch, &name("a")).await.expect("declared");
    assert!(first.is_some(), "a local artifact is hashed");
    while running.handle.events(EventFilter::default()).await.expect("events").events.is_empty() {
        tokio::task::yield_now().await;
    }
    let events = running.handle.events(EventFilter::default()).await.expect("events").events;
    assert!(events.iter().any(|(_, event)| event.reason == "ManifestInvalid" && event.message.contains("broken.yaml")));

    write(folder.path(), "a.yaml", "a", 2);
    while next(&mut watch, &name("a")).await.expect("still there").0 != 2 {}
    fs_err::write(folder.path().join("model.onnx"), b"two").expect("written");
    while next(&mut watch, &name("a")).await.expect("still there").1 == first {}
    fs_err::write(folder.path().join("a.yaml"), b"apiVersion: [").expect("written");
    write(folder.path(), "b.yaml", "b", 1);
    next(&mut watch, &name("b")).await.expect("declared");
    assert!(running.handle.get(&name("a")).await.is_ok(), "the last good one stays");

    fs_err::remove_file(folder.path().join("a.yaml")).expect("removed");
    while next(&mut watch, &name("a")).await.is_some() {}
    assert!(matches!(running.handle.get(&name("a")).await, Err(Error::NotFound(_))));
    shutdown.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic").expect("no error");
    }
    running.stop().await;
}
