//! Webhooks: of one source by its name, and of all registries without one.

use std::sync::Arc;

use axum::http::HeaderMap;
use berth_control::{
    handle::Error,
    source::{self, Context, Requests, Setup, Source, SourceName, Webhook},
};
use berth_spec::{Epoch, Origin};
use futures::{FutureExt, future::BoxFuture};
use tokio::{sync::mpsc, time::timeout};

use super::world::{PATIENCE, World, answer};

/// A source that tells the test of each request.
struct RecordingSource {
    kind: &'static str,
    id: &'static str,
    told: mpsc::Sender<String>,
}

/// The check of webhooks: a header has to be there.
struct Proof;

impl Webhook for Proof {
    fn verify(&self, headers: &HeaderMap, _: &[u8]) -> Result<(), String> {
        if headers.contains_key("x-proof") { Ok(()) } else { Err("there is no proof".to_owned()) }
    }
}

impl Source for RecordingSource {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn origin(&self) -> Origin {
        Origin::new(self.kind, self.id)
    }

    fn run(self: Arc<Self>, context: Context, mut requests: Requests) -> BoxFuture<'static, Result<(), Error>> {
        async move {
            context.set_webhook(Arc::new(Proof));
            let mut word = "runs".to_owned();
            loop {
                let _ = self.told.send(format!("{} {word}", self.id)).await;
                tokio::select! {
                    () = context.shutdown().cancelled() => return Ok(()),
                    request = requests.next() => word = format!("{request:?}"),
                }
            }
        }
        .boxed()
    }
}

/// The next `count` words of sources, sorted.
async fn words(told: &mut mpsc::Receiver<String>, count: usize) -> Vec<String> {
    let mut words = Vec::new();
    while words.len() < count {
        words.push(timeout(PATIENCE, told.recv()).await.expect("it comes").expect("sources run"));
    }
    words.sort();
    words
}

#[tokio::test]
async fn a_webhook_without_a_name_reaches_every_registry_and_no_folder() {
    let mut world = World::start().await;
    let error = world.post("/v1/webhook", "").await.refused(404, "NotFound");
    assert!(error.to_string().contains("follows no Git registry"), "{error}");

    let (sender, mut told) = mpsc::channel(8);
    let sources = [("git", "a"), ("git", "webhook"), ("directory", "c")].map(|(kind, id)| {
        let source: Arc<dyn Source> = Arc::new(RecordingSource { kind, id, told: sender.clone() });
        (SourceName::new(id).expect("a name"), source)
    });
    let setup = Setup::new(sources.into()).expect("they go together");
    let running = source::run(setup, world.handle.clone(), Epoch(0), world.shutdown.clone());
    world.tasks.spawn(async move { running.await.expect("no error") });
    assert_eq!(words(&mut told, 3).await, ["a runs", "c runs", "webhook runs"]);

    let error = world.post("/v1/webhook", "").await.refused(403, "Forbidden");
    assert!(error.to_string().contains("there is no proof"), "{error}");
    let taken = answer(world.request("POST", "/v1/webhook").header("x-proof", "1")).await;
    assert_eq!((taken.status, taken.text.as_str()), (202, ""), "it tells no names");
    assert_eq!(words(&mut told, 2).await, ["a Webhook", "webhook Webhook"]);

    let taken = answer(world.request("POST", "/v1/sources/c/webhook").header("x-proof", "1")).await;
    assert_eq!(taken.status, 202);
    assert_eq!(words(&mut told, 1).await, ["c Webhook"], "the folder was not asked before");
    // No name of a source is in the way of the route.
    world.get("/v1/sources/webhook").await.ok(200);
}
