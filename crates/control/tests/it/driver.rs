//! The control plane as a whole on a store in memory: writes, questions, watches.

use std::{sync::Arc, time::Duration};

use berth_control::{
    Config,
    events::EventFilter,
    handle::{
        ApplyMode, ApplyOutcome, ApplyRequest, DeleteRequest, Error, ListRequest, Ownership, PreviewRequest,
        WatchEvent, WatchRequest, WorkerState,
    },
    store::{
        Entry, Listing, Outcome, Page, Rev, Store, StoreError, Txn, Watch,
        layout::{deployment_key, worker_key},
        memory::MemoryStore,
        terms::terms_key,
    },
};
use berth_peer::Members;
use berth_plan::TypeRules;
use berth_spec::{
    Cordon, FromController, GatewayEvent, Generation, Member, Origin, Residency, Roles, Time, UnknownWorkers, WorkerId,
    WorkerTerms, deployment::Selector, status::Phase,
};
use futures::{FutureExt, StreamExt, future::BoxFuture};
use prometheus_client::registry::Registry;

use crate::fixture::{Running, apply, empty_inventory, inventory, manifest, name, ready, worker};

fn running() -> Running {
    Running::start(Arc::new(MemoryStore::default()))
}

const DELETE: DeleteRequest = DeleteRequest { origin: Origin::API, expect: None, ownership: Ownership::Respect };

#[tokio::test]
async fn a_declared_model_becomes_available_and_a_deleted_one_goes() {
    let mut running = running();
    running.obedient_worker(worker("w", 1)).await;
    let applied = running.handle.apply(apply("iris", "  replicas: 1\n")).await.expect("applied");
    assert_eq!((applied.outcome, applied.generation), (ApplyOutcome::Created, Generation(1)));
    let view = running.until(&name("iris"), Phase::Available).await;
    assert_eq!(view.rev, applied.rev);
    assert_eq!(view.manifest, manifest("iris", "  replicas: 1\n").raw, "as the user wrote it");
    let workers = running.handle.workers().await.expect("workers");
    assert_eq!((workers[0].state, workers[0].assigned, workers[0].ready), (WorkerState::Ready, 1, 1));
    assert_eq!(running.handle.replicas().await.expect("replicas").len(), 1);
    let filter = EventFilter { deployment: Some(name("iris")), ..EventFilter::default() };
    let events = running.handle.events(filter).await.expect("events").events;
    assert!(events.iter().any(|(_, event)| event.reason == "Loaded"), "{events:?}");

    let mut watch = running.handle.watch(WatchRequest::default()).await.expect("a watch");
    running.handle.delete(&name("iris"), DELETE).await.expect("deleted");
    while !matches!(watch.next().await.expect("open").expect("an event"), WatchEvent::Deleted { .. }) {}
    assert!(matches!(running.handle.get(&name("iris")).await, Err(Error::NotFound(_))));
    running.stop().await;
}

#[tokio::test]
async fn a_generation_counts_changes_of_the_spec_and_nothing_else() {
    let running = running();
    let first = running.handle.apply(apply("iris", "  priority: 10\n")).await.expect("applied");
    let again = running.handle.apply(apply("iris", "  priority: 10\n")).await.expect("applied");
    assert_eq!((again.outcome, again.rev), (ApplyOutcome::Unchanged, first.rev), "nothing was written");
    let mut labelled = apply("iris", "  priority: 10\n");
    labelled.manifest.raw["metadata"]["labels"] = serde_json::json!({"team": "a"});
    let labelled = running.handle.apply(labelled).await.expect("applied");
    assert_eq!((labelled.outcome, labelled.generation), (ApplyOutcome::Configured, Generation(1)));
    let dry = ApplyRequest { mode: ApplyMode::DryRun, ..apply("iris", "  priority: 20\n") };
    let dry = running.handle.apply(dry).await.expect("applied");
    assert_eq!((dry.outcome, dry.generation, dry.rev), (ApplyOutcome::Configured, Generation(2), labelled.rev));
    let changed = running.handle.apply(apply("iris", "  priority: 20\n")).await.expect("applied");
    assert_eq!(
        (changed.generation, changed.rev),
        (Generation(2), Rev(labelled.rev.0 + 1)),
        "the dry run wrote nothing"
    );
    running.stop().await;
}

#[tokio::test]
async fn who_does_not_own_it_or_has_not_read_it_is_refused() {
    let running = running();
    let folder = Origin::directory("/models");
    let mine = ApplyRequest { origin: folder.clone(), ..apply("iris", "") };
    let applied = running.handle.apply(mine).await.expect("applied");
    let other = running.handle.apply(apply("iris", "  priority: 2\n")).await.expect_err("it is the folder's");
    assert!(matches!(&other, Error::Owned { owner, .. } if *owner == folder), "{other}");
    let same = running.handle.apply(apply("iris", "")).await.expect("what is there is nobody's change");
    assert_eq!((same.outcome, same.rev), (ApplyOutcome::Unchanged, applied.rev));
    assert!(matches!(running.handle.delete(&name("iris"), DELETE).await, Err(Error::Owned { .. })));
    let stale = ApplyRequest { origin: folder, expect: Some(Rev(99)), ..apply("iris", "  priority: 2\n") };
    let stale = running.handle.apply(stale).await.expect_err("it was read at another rev");
    assert!(matches!(stale, Error::Stale { found, .. } if found == applied.rev), "{stale}");
    let new = ApplyRequest { expect: Some(Rev::NONE), ..apply("rose", "") };
    assert!(running.handle.apply(new).await.is_ok(), "none was expected, none was there");
    let asked = ApplyRequest { mode: ApplyMode::DryRun, ownership: Ownership::Warn, ..apply("iris", "") };
    let asked = running.handle.apply(asked).await.expect("asking is free");
    assert!(asked.outcome == ApplyOutcome::Unchanged && asked.warnings[0].contains("folder"), "{asked:?}");
    let taken = ApplyRequest { ownership: Ownership::TakeOver, ..apply("iris", "") };
    assert_eq!(running.handle.apply(taken).await.expect("taken over").outcome, ApplyOutcome::Configured);
    running.stop().await;
}

#[tokio::test]
async fn many_are_applied_in_few_commits_and_listed_in_pages() {
    let running = running();
    let mut requests: Vec<_> =
        (0..250).map(|i| apply(&format!("m-{i:03}"), "  replicas: {min: 0, max: 1}\n")).collect();
    requests.push(ApplyRequest { expect: Some(Rev(7)), ..apply("m-999", "") });
    let results = running.handle.apply_all(requests).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 250);
    assert!(matches!(results[250], Err(Error::Stale { .. })), "one fails alone");
    assert_eq!(results[249].as_ref().map(|applied| applied.rev).ok(), Some(Rev(3)), "three transactions");

    let (mut names, mut list) = (Vec::new(), ListRequest { limit: 100, ..ListRequest::default() });
    loop {
        let page = running.handle.list(list.clone()).await.expect("a page");
        names.extend(page.items.iter().map(|view| view.deployment.name.to_string()));
        match page.next {
            Some(after) => list.after = Some(after),
            None => break,
        }
    }
    assert_eq!(names, (0..250).map(|i| format!("m-{i:03}")).collect::<Vec<_>>());
    running.stop().await;
}

#[tokio::test]
async fn a_watch_goes_on_where_another_stopped() {
    let running = running();
    running.handle.apply(apply("a", "")).await.expect("applied");
    let b = running.handle.apply(apply("b", "")).await.expect("applied");
    let a = running.handle.apply(apply("a", "  priority: 3\n")).await.expect("applied");
    running.handle.apply(apply("c", "")).await.expect("applied");
    let request = WatchRequest { from: Some(b.rev), ..WatchRequest::default() };
    let mut watch = running.handle.watch(request).await.expect("a watch");
    let mut told = Vec::new();
    loop {
        match watch.next().await.expect("open").expect("an event") {
            WatchEvent::Added(view) => told.push(('+', view.deployment.name.to_string())),
            WatchEvent::Modified(view) => told.push(('~', view.deployment.name.to_string())),
            WatchEvent::Deleted { name, .. } => told.push(('-', name.to_string())),
            WatchEvent::Bookmark(rev) => {
                assert!(rev > a.rev);
                break;
            }
        }
    }
    assert_eq!(told, [('~', "a".to_owned()), ('+', "c".to_owned())]);
    running.stop().await;
}

#[tokio::test]
async fn a_preview_says_and_does_not() {
    let mut running = running();
    running.obedient_worker(worker("w", 1)).await;
    let requests = vec![PreviewRequest::Apply(Box::new(apply("iris", "  replicas: 1\n")))];
    let preview = running.handle.preview(requests).await.expect("a preview");
    assert_eq!(preview.steps.len(), 1, "{preview:?}");
    assert!(matches!(running.handle.get(&name("iris")).await, Err(Error::NotFound(_))));
    running.stop().await;
}

#[tokio::test]
async fn a_cordoned_worker_gets_nothing_new() {
    let mut running = running();
    let info = worker("w", 1);
    running.obedient_worker(info.clone()).await;
    running.handle.cordon(&info.id, Cordon::Cordoned).await.expect("cordoned");
    running.handle.apply(apply("iris", "  replicas: 1\n")).await.expect("applied");
    running.until(&name("iris"), Phase::ScheduleFailed).await;
    assert!(running.handle.workers().await.expect("workers")[0].cordon == Cordon::Cordoned);
    running.handle.cordon(&info.id, Cordon::Open).await.expect("open");
    running.until(&name("iris"), Phase::Available).await;
    running.stop().await;
}

/// A gateway that missed something is told everything, and then goes on from there.
#[tokio::test(start_paused = true)]
async fn a_gateway_that_asks_is_sent_the_whole() {
    let running = running();
    let (events, mut routes) =
        running.handle.attach_gateway(WorkerId::new("g").expect("a name"), None).await.expect("it attaches");
    let first = routes.recv().await.expect("the whole");
    assert_eq!((first.seq, first.base), (1, None));
    let began = tokio::time::Instant::now();
    running.handle.apply(apply("iris", "")).await.expect("applied");
    assert!(began.elapsed() > Duration::from_secs(1), "it confirms nothing, and is waited for");
    let began = tokio::time::Instant::now();
    running.handle.apply(apply("rose", "")).await.expect("applied");
    assert!(began.elapsed() < Duration::from_secs(1), "and not by each write");
    let mut last = first.seq;
    while let Ok(change) = routes.try_recv() {
        assert_eq!(change.base, Some(last), "each builds on the one before");
        last = change.seq;
    }
    events.send(GatewayEvent::Resync).await.expect("it listens");
    let whole = loop {
        let change = routes.recv().await.expect("routes");
        if change.base.is_none() {
            break change;
        }
    };
    assert!(whole.set.iter().any(|route| route.deployment == name("iris")));
    running.stop().await;
}

/// An acknowledged write is visible to the next request: the call waits until the gateway routes by it.
#[tokio::test(start_paused = true)]
async fn a_write_returns_when_requests_are_routed_by_it() {
    writes_wait(true).await;
}

/// After a change of leaders each gateway is one that has just come.
#[tokio::test(start_paused = true)]
async fn a_write_waits_for_a_gateway_that_has_just_come() {
    writes_wait(false).await;
}

/// Declares and deletes a deployment beside a gateway, which has put its first routes in force or has not.
async fn writes_wait(confirmed: bool) {
    let running = running();
    let (events, mut routes) =
        running.handle.attach_gateway(WorkerId::new("g").expect("a name"), None).await.expect("it attaches");
    let whole = routes.recv().await.expect("the whole");
    if confirmed {
        events.send(GatewayEvent::Applied(whole.seq)).await.expect("it listens");
    }
    let began = tokio::time::Instant::now();
    for declared in [true, false] {
        let mut writing = Box::pin(async {
            if declared {
                running.handle.apply(apply("iris", "")).await.expect("applied");
            } else {
                running.handle.delete(&name("iris"), DELETE).await.expect("deleted");
            }
        });
        let seq = loop {
            let change = tokio::select! {
                change = routes.recv() => change.expect("routes"),
                () = &mut writing => panic!("it returned before the route was told"),
            };
            let told = if declared {
                change.set.iter().any(|r| r.deployment == name("iris"))
            } else {
                !change.unset.is_empty()
            };
            if told {
                break change.seq;
            }
        };
        assert!(futures::poll!(&mut writing).is_pending(), "the route is told, and not in force");
        events.send(GatewayEvent::Applied(seq)).await.expect("it listens");
        writing.await;
    }
    assert!(began.elapsed() < Duration::from_secs(1), "it did not give up waiting");
    running.stop().await;
}

#[tokio::test]
async fn a_watch_tells_every_page_of_what_is_there_then_the_bookmark() {
    let running = running();
    let names: Vec<String> = (0..1_050).map(|number| format!("m-{number:04}")).collect();
    let applied = running.handle.apply_all(names.iter().map(|name| apply(name, "")).collect()).await;
    assert!(applied.iter().all(Result::is_ok));
    let mut watch = running.handle.watch(WatchRequest::default()).await.expect("a watch");
    let mut added = Vec::new();
    loop {
        match watch.next().await.expect("open").expect("an event") {
            WatchEvent::Added(view) => added.push(view.deployment.name.to_string()),
            WatchEvent::Bookmark(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(added, names);
    running.stop().await;
}

#[tokio::test]
async fn of_two_processes_with_one_name_the_earlier_is_refused_while_the_later_lives() {
    let running = running();
    let (_reports, mut first) = running.handle.attach_worker(worker("w", 1)).await.expect("it attaches");
    let later = running.handle.attach_worker(worker("w", 2)).await.expect("started anew");
    while first.recv().await.is_some() {}
    let refused = running.handle.attach_worker(worker("w", 1)).await.expect_err("there is a later one");
    assert!(matches!(refused, Error::NameTaken(_)) && refused.to_string().contains("--name"), "{refused}");
    assert!(!later.0.is_closed(), "and goes on");
    running.handle.attach_worker(worker("w", 2)).await.expect("its own next connection");
    drop(later);
    let gone = running.handle.attach_worker(worker("w", 1)).await;
    gone.expect("that one was dropped: a clock may have been set back");
    running.stop().await;
}

/// A late message of an earlier connection is not mistaken for one of the present connection.
#[tokio::test]
async fn a_word_of_an_earlier_connection_is_not_taken_for_the_latest() {
    let running = running();
    running.handle.apply(apply("iris", "  replicas: 1\n")).await.expect("applied");
    let info = worker("w", 1);
    let (late, _orders) = running.handle.attach_worker(info.clone()).await.expect("it attaches");
    late.send(empty_inventory(&info)).await.expect("heard");
    let (reports, mut orders) = running.handle.attach_worker(info.clone()).await.expect("it attaches again");
    reports.send(empty_inventory(&info)).await.expect("heard");
    let revision = loop {
        match orders.recv().await.expect("an order") {
            FromController::Assigned(change) if !change.set.is_empty() => break change.set[0].revision.id.clone(),
            _ => {}
        }
    };
    // It was ready once, says the old connection; it loads now, says the new one.
    let says = |residency| inventory(&info, false, vec![(revision.clone(), Some(residency))]);
    reports.send(says(Residency::Loading)).await.expect("heard");
    late.send(says(ready(Time(1)))).await.expect("the channel lives");
    // Both have been read when there is all the room again.
    for channel in [&reports, &late] {
        let _all = channel.reserve_many(channel.max_capacity()).await.expect("the channel lives");
    }
    let held = running.handle.replicas().await.expect("it runs")[0].residency.clone();
    assert_eq!(held, Some(Residency::Loading));
    running.stop().await;
}

/// A store whose watch never tells of these keys.
struct Forgetful {
    store: MemoryStore,
    keys: Vec<String>,
}

impl Store for Forgetful {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        self.store.get(key)
    }

    fn list<'a>(&'a self, prefix: &'a str, page: Page) -> BoxFuture<'a, Result<Listing, StoreError>> {
        self.store.list(prefix, page)
    }

    fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        self.store.commit(txn)
    }

    fn watch<'a>(&'a self, prefix: &'a str, from: Rev) -> BoxFuture<'a, Result<Watch, StoreError>> {
        async move {
            let (told, keys) = (self.store.watch(prefix, from).await?, self.keys.clone());
            let told = told.map(move |commit| {
                commit.map(|mut commit| {
                    commit.changes.retain(|change| !keys.iter().any(|key| key == change.key()));
                    commit
                })
            });
            Ok(told.boxed())
        }
        .boxed()
    }

    fn rev(&self) -> BoxFuture<'_, Result<Rev, StoreError>> {
        self.store.rev()
    }

    fn compact(&self, before: Rev) -> BoxFuture<'_, Result<(), StoreError>> {
        self.store.compact(before)
    }
}

#[tokio::test]
async fn labels_that_types_ask_for_are_followed() {
    let selector = Selector { required: [("gpu".to_owned(), "true".to_owned())].into(), ..Selector::default() };
    let asks = TypeRules { others: Some(selector), ..TypeRules::default() };
    let (rules, watched) = tokio::sync::watch::channel(asks);
    let config = Config { type_rules: Some(watched), ..Config::default() };
    let mut running = Running::start_with(config, Arc::new(MemoryStore::default()), &mut Registry::default());
    running.obedient_worker(worker("w", 1)).await;
    running.handle.apply(apply("iris", "  replicas: 1\n")).await.expect("applied");
    running.until(&name("iris"), Phase::ScheduleFailed).await;
    rules.send_replace(TypeRules::default());
    running.until(&name("iris"), Phase::Available).await;
    running.stop().await;
}

fn among_others() -> Config {
    let at = |port| format!("10.0.0.1:{port}").parse().expect("an address");
    let me = Member {
        name: WorkerId::new("me").expect("a name"),
        incarnation: 1,
        gossip: at(7946),
        peer: at(7947),
        roles: Roles { controller: true, worker: false, gateway: false },
        labels: std::collections::BTreeMap::new(),
        version: "test".to_owned(),
        protocol: (1, 1),
    };
    Config { members: Some(Members::by_hand(me).0), ..Config::default() }
}

#[tokio::test(start_paused = true)]
async fn what_the_store_never_told_is_found_and_counted() {
    let w = WorkerId::new("w").expect("a name");
    let unknown = berth_control::store::layout::UNKNOWN_WORKERS.to_owned();
    let keys = vec![deployment_key(&name("new")), worker_key(&w), terms_key(&w), unknown];
    let store = Arc::new(Forgetful { store: MemoryStore::default(), keys });
    let mut registry = Registry::default();
    let mut running = Running::start_with(among_others(), store, &mut registry);
    let count = || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("it is text");
        let line = text.lines().find(|line| line.starts_with("berth_store_changes_never_told_total "));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).expect("it is there")
    };
    running.obedient_worker(worker("w", 1)).await;
    running.handle.apply(apply("old", "")).await.expect("applied");
    for i in 0..7 {
        running.handle.apply(apply("old", &format!("  priority: {}\n", 10 + i))).await.expect("applied");
        tokio::time::sleep(Duration::from_secs(300)).await;
    }
    assert_eq!(count(), 0, "what was told is as it is");
    running.handle.apply(apply("new", "")).await.expect("stored");
    running.handle.cordon(&w, Cordon::Cordoned).await.expect("stored");
    let terms = WorkerTerms {
        labels: std::collections::BTreeMap::new(),
        memory: None,
        cpus: None,
        max_models: Some(3),
        max_gpus: None,
        schema_versions: Vec::new(),
        eviction: berth_spec::worker::Eviction::default(),
    };
    settings(&running, [(w, terms)].into(), UnknownWorkers::Ignore).await;
    assert!(matches!(running.handle.explain(&name("new")).await, Err(Error::NotFound(_))), "nobody was told");
    tokio::time::sleep(Duration::from_secs(601)).await;
    running.handle.explain(&name("new")).await.expect("read again");
    let worker = running.handle.workers().await.expect("workers").remove(0);
    assert_eq!((worker.cordon, worker.info.max_models), (Cordon::Cordoned, Some(3)));
    tokio::time::sleep(Duration::from_secs(1_800)).await;
    assert_eq!(count(), 4, "once each");
    running.stop().await;
}

/// Stores the settings of workers as the source `git` gives them.
async fn settings(
    running: &Running,
    terms: std::collections::BTreeMap<WorkerId, WorkerTerms>,
    unknown: UnknownWorkers,
) {
    let source = berth_control::source::SourceName::new("git").expect("a name");
    let settings = berth_control::source::WorkerSettings { terms, unknown };
    let problems = running.handle.set_worker_settings(&source, &settings).await.expect("stored");
    assert_eq!(problems, []);
}
