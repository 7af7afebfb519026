//! Terms of the registry for workers, kept in the store, and their credentials, kept nowhere.

use std::{collections::BTreeMap, sync::Arc};

use berth_control::{
    events::EventFilter,
    handle::Error,
    store::{Page, Store, layout, memory::MemoryStore},
};
use berth_spec::{
    CredentialSet, FromController, Generation, InventoryChange, UnknownWorkers, WorkerId, WorkerTerms,
    credential::{Credential, FieldValue, Fields, Granted, Kind, Secret},
    status::Phase,
    worker::Eviction,
};

use crate::fixture::{Running, apply, empty_inventory, inventory, name, worker};

fn id(name: &str) -> WorkerId {
    WorkerId::new(name).expect("a name")
}

fn terms(max_models: Option<u32>) -> WorkerTerms {
    WorkerTerms {
        labels: [("pool".to_owned(), "production".to_owned())].into(),
        memory: None,
        cpus: None,
        max_models,
        max_gpus: None,
        schema_versions: vec!["3.0.0".to_owned()],
        eviction: Eviction::default(),
    }
}

#[tokio::test]
async fn terms_are_obeyed_restored_and_removed() {
    let store = Arc::new(MemoryStore::default());
    let mut running = Running::start(Arc::clone(&store) as Arc<dyn Store>);
    running.obedient_worker(worker("a", 1)).await;
    let said = [(id("a"), terms(Some(0))), (id("later"), terms(None))].into();
    settings(&running, said, UnknownWorkers::Refuse).await;
    running.handle.apply(apply("iris", "  replicas: 1\n")).await.expect("applied");
    running.until(&name("iris"), Phase::ScheduleFailed).await;
    let view = running.handle.workers().await.expect("workers").remove(0);
    assert_eq!((view.info.max_models, view.info.labels["pool"].as_str()), (Some(0), "production"));
    let refused = running.handle.attach_worker(worker("stranger", 1)).await.expect_err("it is not named");
    assert!(matches!(&refused, Error::Unlisted(who) if *who == id("stranger")), "{refused}");
    let events = running.handle.events(EventFilter::default()).await.expect("events").events;
    assert!(
        events.iter().any(|(_, event)| event.message.ends_with("at most 0 models; model cards 3.0.0")),
        "{events:?}"
    );
    running.stop().await;

    // Another leader reads the same.
    let mut running = Running::start(Arc::clone(&store) as Arc<dyn Store>);
    running.obedient_worker(worker("a", 2)).await;
    assert!(matches!(running.handle.attach_worker(worker("stranger", 1)).await, Err(Error::Unlisted(_))));
    running.until(&name("iris"), Phase::ScheduleFailed).await;

    let rev = store.rev().await.expect("a rev");
    let said: BTreeMap<_, _> = [(id("a"), terms(Some(0))), (id("later"), terms(None))].into();
    settings(&running, said, UnknownWorkers::Refuse).await;
    assert_eq!(store.rev().await.expect("a rev"), rev, "what is as it was is not written");
    settings(&running, BTreeMap::new(), UnknownWorkers::Allow).await;
    running.until(&name("iris"), Phase::Available).await;
    assert!(store.list(layout::TERMS, Page::default()).await.expect("listed").entries.is_empty());
    running.handle.attach_worker(worker("stranger", 1)).await.expect("without a registry anybody may come");
    running.stop().await;
}

fn set(generation: u64, token: &str) -> Arc<CredentialSet> {
    let fields: Fields = [("token".to_owned(), FieldValue::Text(Secret::new(token.to_owned())))].into();
    let (credential, scope) = Credential::build(Kind::Git, fields).expect("a token");
    let granted = Granted { credential, scope, expires: None };
    Arc::new(CredentialSet { generation: Generation(generation), secrets: [("code".to_owned(), granted)].into() })
}

#[tokio::test]
async fn credentials_go_to_their_worker_again_when_it_attaches_and_are_stored_nowhere() {
    let store = Arc::new(MemoryStore::default());
    let running = Running::start(Arc::clone(&store) as Arc<dyn Store>);
    let (info, first) = (worker("a", 1), set(1, "hunter2"));
    let give = |sets: BTreeMap<WorkerId, Arc<CredentialSet>>| running.handle.set_credentials(sets);
    give([(id("a"), Arc::clone(&first)), (id("b"), set(7, "other"))].into()).await.expect("given");
    let (reports, mut orders) = running.handle.attach_worker(info.clone()).await.expect("attached");
    assert_eq!(orders.recv().await, Some(FromController::Attached));
    assert_eq!(
        orders.recv().await,
        Some(FromController::Credentials(Arc::clone(&first))),
        "its own, and before all else"
    );
    reports.send(empty_inventory(&info)).await.expect("heard");
    assert!(matches!(orders.recv().await, Some(FromController::Assigned(_))));

    give([(id("a"), Arc::clone(&first))].into()).await.expect("given");
    let second = set(2, "hunter3");
    give([(id("a"), Arc::clone(&second))].into()).await.expect("given");
    assert_eq!(orders.recv().await, Some(FromController::Credentials(second)), "the same is not sent again");
    give(BTreeMap::new()).await.expect("taken away");
    let Some(FromController::Credentials(none)) = orders.recv().await else { panic!("it is told") };
    assert!(none.secrets.is_empty() && none.generation > Generation(2));

    let report = InventoryChange { credentials: Generation(2), ..inventory(&info, false, Vec::new()) };
    reports.send(report).await.expect("heard");
    let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while running.handle.workers().await.expect("workers")[0].credentials != Generation(2) {
        assert!(std::time::Instant::now() < end, "what it says is not heard");
        tokio::task::yield_now().await;
    }
    let everything = store.list("/", Page::default()).await.expect("listed");
    assert!(everything.entries.iter().all(|entry| !entry.value.windows(6).any(|bytes| bytes == b"hunter")));
    running.stop().await;
}

/// Stores the settings of workers as the source `git` gives them.
async fn settings(running: &Running, terms: BTreeMap<WorkerId, berth_spec::WorkerTerms>, unknown: UnknownWorkers) {
    let source = berth_control::source::SourceName::new("git").expect("a name");
    let settings = berth_control::source::WorkerSettings { terms, unknown };
    let problems = running.handle.set_worker_settings(&source, &settings).await.expect("stored");
    assert_eq!(problems, []);
}
