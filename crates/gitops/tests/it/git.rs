//! The Git source, with real repositories and the real controller. The clock is the test's: intervals cost nothing.

mod flaky;
mod forge;
mod told;
mod written;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use berth_control::{
    events::EventFilter,
    handle::{ApplyRequest, Error, ListRequest},
    source::{self, Setup, SourceState},
    store::memory::MemoryStore,
};
use berth_gitops::{GitConfig, WriteBackTo};
use berth_secrets::{Keyring, keys};
use berth_spec::{Origin, Time, WorkerId, WorkerInfo, status::Phase};

use crate::fixture::{Running, apply, manifest, name};
use forge::{Followed, Forge, git, python_worker};

const OWN: &str = "berth/actual-state";

fn own() -> WriteBackTo {
    WriteBackTo::Branch(OWN.to_owned())
}

/// The labels that the forge's deployments select.
fn pool() -> BTreeMap<String, String> {
    BTreeMap::from(
        [("pool", "production"), ("region", "eu-west-1")].map(|(key, value)| (key.to_owned(), value.to_owned())),
    )
}

async fn names(running: &Running) -> Vec<String> {
    let page = running.handle.list(ListRequest::default()).await.expect("a list");
    page.items.iter().filter(|view| !view.deployment.deleting).map(|view| view.deployment.name.to_string()).collect()
}

async fn told(running: &Running, reason: &str) -> Vec<String> {
    let page = running.handle.events(EventFilter::default()).await.expect("events");
    page.events.into_iter().filter(|(_, event)| event.reason == reason).map(|(_, event)| event.message).collect()
}

/// Waits until `holds`, on the test's clock.
async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    panic!("never came: {what}");
}

#[tokio::test(start_paused = true)]
async fn a_commit_is_followed_and_a_bad_one_changes_nothing() {
    let forge = Forge::new();
    forge.deploy("doubler", "v1.0.0", "");
    let good = forge.push("Deploy doubler");
    let mut running = Running::start(Arc::new(MemoryStore::default()));
    running.obedient_worker(python_worker("worker-a")).await;
    let followed = Followed::start(forge.config("disk", WriteBackTo::Off), &running.handle, 0);
    let view = followed.until_applied(&good).await;
    assert_eq!(
        (view.state, view.counts.deployments, view.detail("author")),
        (SourceState::Synced, 1, "Ops <ops@example.com>")
    );
    let deployed = running.until(&name("doubler"), Phase::Available).await;
    assert_eq!(deployed.deployment.origin, Origin::git(&format!("{}#main", forge.url("registry"))));
    let said = &deployed.manifest["metadata"]["annotations"];
    assert_eq!(
        (&said["registry.berth.dev/commit"], &said["registry.berth.dev/path"]),
        (&good.clone().into(), &"models/production/doubler.yaml".into())
    );

    for (outcome, spoil) in [
        ("structure-violation", Box::new(|forge: &Forge| forge.remove("errors/.gitkeep")) as Box<dyn Fn(&Forge)>),
        ("unpinned-ref", Box::new(|forge: &Forge| forge.deploy("bad", "main", ""))),
        ("model-card-not-found", Box::new(|forge: &Forge| forge.deploy("bad", "v9.9.9", ""))),
        ("invalid-worker-config", Box::new(|forge: &Forge| forge.write("workers/b.yaml", "worker_id: b\n"))),
        ("structure-violation", Box::new(|forge: &Forge| forge.remove("models/production/doubler.yaml"))),
    ] {
        spoil(&forge);
        let bad = forge.push("Something is wrong");
        let view =
            followed.until(outcome, |view| view.refused.as_ref().is_some_and(|refused| refused.revision == bad)).await;
        let verdict = view.refused.as_ref().map(|refused| (refused.revision.as_str(), refused.outcome.as_str()));
        assert_eq!(verdict, Some((bad.as_str(), outcome)), "{view:?}");
        assert_eq!((view.revision.as_deref(), view.state), (Some(good.as_str()), SourceState::Refused));
        assert_eq!(names(&running).await, ["doubler"], "the last good commit stays");
        forge.reset(&good);
        followed.until("it is settled", |view| view.refused.is_none() && view.state == SourceState::Synced).await;
    }
    assert!(!told(&running, "RegistryHistoryRewritten").await.is_empty());
    assert_eq!(told(&running, "CommitRefused").await.len(), 5, "each once");
    followed.stop().await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn files_that_change_and_go_are_deployments_that_change_and_go() {
    let forge = Forge::new();
    forge.deploy("one", "v1.0.0", "");
    forge.deploy("two", "v1.0.0", "");
    forge.deploy("taken", "v1.0.0", "");
    let running = Running::start(Arc::new(MemoryStore::default()));
    running.handle.apply(apply("taken", "")).await.expect("somebody else's");
    let first = forge.push("Three");
    let followed = Followed::start(forge.config("disk", WriteBackTo::Off), &running.handle, 0);
    let view = followed.until("applied", |view| view.revision.as_deref() == Some(&first)).await;
    assert!(view.conflicts.iter().any(|conflict| conflict.contains("taken")), "{view:?}");
    let before = running.handle.get(&name("two")).await.expect("there").rev;

    forge.release("1.1.0");
    forge.deploy("one", "v1.1.0", "");
    forge.remove("models/production/taken.yaml");
    let second = forge.push("A version");
    followed.until_applied(&second).await;
    let one = running.handle.get(&name("one")).await.expect("there");
    assert_eq!(one.deployment.labels["version"], "1.1.0");
    assert_eq!(
        running.handle.get(&name("two")).await.expect("there").rev,
        before,
        "what did not change is not written"
    );
    assert_eq!(names(&running).await, ["one", "taken", "two"], "what belongs to somebody else is left alone");

    forge.deploy("one", "v1.1.0", "disabled");
    forge.remove("models/production/two.yaml");
    let third = forge.push("Disable one, remove two");
    followed.until_applied(&third).await;
    assert_eq!(names(&running).await, ["one", "taken"]);
    let one = running.handle.get(&name("one")).await.expect("there");
    assert_eq!(one.manifest["spec"]["replicas"], 0);
    assert!(
        told(&running, "CommitApplied")
            .await
            .last()
            .is_some_and(|said| said.contains("one disabled") && said.contains("two removed"))
    );
    // Somebody takes away what the registry declares: it comes back by itself.
    let request = berth_control::handle::DeleteRequest {
        origin: Origin::API,
        expect: None,
        ownership: berth_control::handle::Ownership::TakeOver,
    };
    running.handle.delete(&name("one"), request).await.expect("deleted");
    assert!(followed.sync());
    let mut back = false;
    for _ in 0..1_000 {
        back = names(&running).await.contains(&"one".to_owned());
        if back {
            break;
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    assert!(back, "one comes back");
    followed.stop().await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_next_leader_goes_on_from_the_last_good_commit_on_a_fresh_disk() {
    let forge = Forge::new();
    forge.deploy("doubler", "v1.0.0", "");
    let good = forge.push("Deploy doubler");
    let store = Arc::new(MemoryStore::default());
    let running = Running::start(store.clone());
    let followed = Followed::start(forge.config("disk-1", own()), &running.handle, 1);
    followed.until_applied(&good).await;
    followed.until("written", |view| !view.detail("written").is_empty()).await;
    // The leader ends while a bad commit is the newest one.
    forge.deploy("bad", "main", "");
    let bad = forge.push("A branch");
    followed.until("refused", |view| view.refused.is_some()).await;
    followed.stop().await;
    running.stop().await;

    let running = Running::start(store.clone());
    let followed = Followed::start(forge.config("disk-2", own()), &running.handle, 2);
    let view = followed.until("refused again", |view| view.refused.is_some()).await;
    assert_eq!((view.revision.as_deref(), view.seen.as_deref()), (Some(good.as_str()), Some(bad.as_str())));
    assert_eq!(names(&running).await, ["doubler"]);
    let later = forge.push("Still bad");
    followed.until("it looks on", |view| view.seen.as_deref() == Some(&later)).await;
    until("the second leader writes", || forge.ask(&["log", "-1", "--format=%B", OWN]).contains("Berth-Term: 2")).await;
    // The first one comes back as if it had only slept: what it writes late is not taken.
    let late = Followed::start(forge.config("disk-1", own()), &running.handle, 1);
    let tip = forge.ask(&["rev-parse", OWN]);
    tokio::time::sleep(Duration::from_secs(300)).await;
    let since = forge.ask(&["log", "--format=%B", &format!("{tip}..{OWN}")]);
    assert!(!since.contains("Berth-Term: 1"), "{since}");
    late.stop().await;
    followed.stop().await;
    // Without a registry workers are as they say of themselves.
    let over = tokio_util::sync::CancellationToken::new();
    source::run(Setup::default(), running.handle.clone(), berth_spec::Epoch(2), over).await.expect("forgotten");
    assert_eq!(names(&running).await, ["doubler"], "what was declared stays");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_actual_state_is_written_once_for_each_thing_that_happens() {
    let forge = Forge::new();
    forge.deploy("doubler", "v1.0.0", "");
    let good = forge.push("Deploy doubler");
    let mut running = Running::start(Arc::new(MemoryStore::default()));
    running.obedient_worker(python_worker("worker-a")).await;
    let followed = Followed::start(forge.config("disk", own()), &running.handle, 0);
    followed.until_applied(&good).await;
    let state = || forge.ask(&["show", &format!("{OWN}:transactions/actual-state.yaml")]);
    followed.until("written", |view| !view.detail("written").is_empty()).await;
    until("it is ready", || state().contains("status: ready")).await;
    let text = state();
    for line in [
        "worker_id: worker-a",
        "status: healthy",
        "deployment_id: doubler",
        "model_version: \"1.0.0\"",
        "loaded_models: 1",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let message = forge.ask(&["log", "-1", "--format=%B", OWN]);
    assert!(
        message.contains(&format!("Berth-Desired-Commit: {good}")) && message.contains("Berth-Writer: test"),
        "{message}"
    );
    let count = forge.ask(&["rev-list", "--count", OWN]);
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert_eq!(forge.ask(&["rev-list", "--count", OWN]), count, "an hour in which nothing happened");
    assert_eq!(forge.ask(&["rev-parse", "main"]), good, "nobody wrote to the branch of people");

    forge.deploy("bad", "main", "");
    let bad = forge.push("A branch");
    let errors = || forge.ask(&["ls-tree", "-r", "--name-only", OWN, "errors/"]);
    until("an error file", || errors().contains("validation-error.yaml")).await;
    let text = forge.ask(&["show", &format!("{OWN}:{}", errors())]);
    for part in
        ["registry_validation_failure", "unpinned-ref", &bad, "recommended_actions", "models/production/bad.yaml"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    forge.remove("models/production/bad.yaml");
    forge.push("Mended");
    until("the error is over", || errors().is_empty()).await;
    followed.stop().await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_died_with_the_leader_is_written_though_the_next_one_has_never_heard_it() {
    let forge = Forge::new();
    forge.deploy("doubler", "v1.0.0", "");
    let good = forge.push("Deploy doubler");
    let store = Arc::new(MemoryStore::default());
    let mut running = Running::start(store.clone());
    running.obedient_worker(python_worker("worker-a")).await;
    let followed = Followed::start(forge.config("disk-1", own()), &running.handle, 1);
    followed.until_applied(&good).await;
    running.until(&name("doubler"), Phase::Available).await;
    followed.stop().await;
    running.stop().await;

    let mut running = Running::start(store);
    running.obedient_worker(WorkerInfo { labels: pool(), ..python_worker("worker-b") }).await;
    // Its model is elsewhere before anybody looks.
    running.until(&name("doubler"), Phase::Available).await;
    let followed = Followed::start(forge.config("disk-2", own()), &running.handle, 2);
    let shown = |of: &str| forge.ask(&["show", &format!("{OWN}:{of}")]);
    let errors = || forge.ask(&["ls-tree", "-r", "--name-only", OWN, "errors/"]);
    let is_there = || forge.ask(&["branch", "--list", OWN]).contains(OWN);
    until("an error file", || is_there() && errors().contains("worker-failure.yaml")).await;
    let text = shown(&errors());
    for part in ["worker-a is gone", "It held 1 deployments: doubler", "1 of 1 deployments have all their replicas"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    until("its entry", || shown("transactions/actual-state.yaml").contains("worker_id: worker-a")).await;
    running.obedient_worker(python_worker("worker-a")).await;
    until("it is back", || errors().is_empty()).await;
    followed.stop().await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn on_the_branch_of_people_own_commits_are_no_news_and_theirs_are_kept() {
    let forge = Forge::new();
    forge.deploy("doubler", "v1.0.0", "");
    let good = forge.push("Deploy doubler");
    let mut running = Running::start(Arc::new(MemoryStore::default()));
    running.obedient_worker(python_worker("worker-a")).await;
    let followed = Followed::start(forge.config("disk", WriteBackTo::Followed), &running.handle, 0);
    followed.until_applied(&good).await;
    let main = |path: &str| forge.ask(&["show", &format!("main:{path}")]);
    until("it is ready", || {
        forge.ask(&["ls-tree", "-r", "--name-only", "main"]).contains("actual-state")
            && main("transactions/actual-state.yaml").contains("status: ready")
    })
    .await;
    let view = followed
        .until("seen", |view| view.seen.as_deref() == Some(view.detail("written")) && view.state == SourceState::Synced)
        .await;
    assert_eq!(view.revision.as_deref(), Some(good.as_str()), "nothing was declared anew");
    assert_eq!(told(&running, "CommitApplied").await.len(), 1);
    assert!(told(&running, "RegistryHistoryRewritten").await.is_empty());

    // A person edits what is not theirs, and something that is.
    git(&forge.path("registry"), &["pull", "-q", "--rebase", "origin", "main"]);
    forge.write("transactions/actual-state.yaml", "workers: []\n");
    forge.deploy("other", "v1.0.0", "");
    let touched = forge.push("By hand");
    followed.until_applied(&touched).await;
    until("it is written again", || main("transactions/actual-state.yaml").contains("deployment_id: other")).await;
    assert!(main("models/production/other.yaml").contains("id: other"), "theirs is kept");
    assert!(!told(&running, "ActualStateTouched").await.is_empty());
    followed.stop().await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn credentials_go_to_their_worker_and_nowhere_else() {
    const CANARY: &str = "canary-4711-do-not-print";
    let forge = Forge::new();
    let (private, public) = (forge.path("key"), forge.path("key.pub"));
    let public = keys::generate(&private, &public).expect("a pair of keys");
    let secret_for = |public: &_, value: &str| {
        let plain =
            format!("s3:\n  type: s3_credentials\n  access_key_id: AK\n  secret_access_key: {value}\n  region: eu\n");
        let plain = berth_secrets::plain_of(&plain, "plain").expect("secrets");
        let worker = WorkerId::new("worker-a").expect("a name");
        berth_secrets::encrypt(&worker, &plain, std::slice::from_ref(public), None, Time(1))
            .expect("encrypted")
            .to_yaml()
    };
    let secret = |value: &str| secret_for(&public, value);
    forge.deploy("doubler", "v1.0.0", "");
    forge.write("workers/secrets/worker-a-secrets.yaml", &secret(CANARY));
    let good = forge.push("With a key");
    let running = Running::start(Arc::new(MemoryStore::default()));
    let info = python_worker("worker-a");
    let (reports, mut words) = running.handle.attach_worker(info.clone()).await.expect("attached");
    reports.send(crate::fixture::empty_inventory(&info)).await.expect("reported");
    let mut config = forge.config("disk", own());
    let key = keys::open(&format!("file:{}", private.display()), &keys::KeyEnvironment::default()).expect("a key");
    config.keyring = Arc::new(Keyring::new(vec![key]));
    let followed = Followed::start(config, &running.handle, 0);
    followed.until_applied(&good).await;
    let mut next = async |than: u64| loop {
        if let berth_spec::FromController::Credentials(set) = words.recv().await.expect("open")
            && set.generation.0 > than
        {
            return set;
        }
    };
    let set = next(0).await;
    assert_eq!(set.secrets.keys().collect::<Vec<_>>(), ["s3"]);
    let status = running.handle.sources().secrets();
    assert!(status.len() == 1 && status[0].generation == set.generation && status[0].problem.is_none(), "{status:?}");

    forge.write("workers/secrets/worker-a-secrets.yaml", &secret("another"));
    let rotated = forge.push("Another key");
    let before = running.handle.get(&name("doubler")).await.expect("there").rev;
    followed.until_applied(&rotated).await;
    let newer = next(set.generation.0).await;
    assert!(newer.generation > set.generation);
    assert_eq!(running.handle.get(&name("doubler")).await.expect("there").rev, before, "nothing is loaded anew for it");
    assert_eq!(followed.view().problem, None);
    // One that this controller has no key for: the worker keeps what it has, and people see it where they look.
    let stranger = keys::generate(&forge.path("other"), &forge.path("other.pub")).expect("a pair of keys");
    forge.write("workers/secrets/worker-a-secrets.yaml", &secret_for(&stranger, "third"));
    forge.push("For somebody else");
    let view = followed.until("told", |view| view.problem.is_some()).await;
    let problem = view.problem.unwrap_or_default();
    assert!(
        problem.starts_with("secrets of worker-a cannot be used (s3): ") && !problem.contains("third"),
        "{problem}"
    );
    forge.write("workers/secrets/worker-a-secrets.yaml", &secret("another"));
    forge.push("For us again");
    followed.until("mended", |view| view.problem.is_none()).await;
    followed.until("written", |view| !view.detail("written").is_empty()).await;
    let everything = forge.ask(&["log", "-p", "--all"]);
    assert!(!everything.contains(CANARY) && !format!("{:?}", running.handle.sources()).contains(CANARY));
    followed.stop().await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_is_away_is_told_and_waited_for() {
    let forge = Forge::new();
    forge.deploy("doubler", "v1.0.0", "");
    let good = forge.push("Deploy doubler");
    let away = forge.path("away");
    let bare = forge.path("registry.git");
    fs_err::rename(&bare, &away).expect("moved");
    let running = Running::start(Arc::new(MemoryStore::default()));
    let followed = Followed::start(forge.config("disk", WriteBackTo::Off), &running.handle, 0);
    let view = followed.until("told", |view| view.problem.is_some()).await;
    assert_eq!((view.state, view.revision), (SourceState::Stalled, None));
    fs_err::rename(&away, &bare).expect("back");
    followed.until_applied(&good).await;
    assert_eq!(told(&running, "RegistryUnreachable").await.len(), 1, "once");
    followed.stop().await;
    assert!(matches!(
        running.handle.apply(ApplyRequest::new(manifest("doubler", ""), Origin::API)).await,
        Err(Error::Owned { .. })
    ));
    running.stop().await;
}

async fn replicas(running: &Running, of: &str) -> serde_json::Value {
    running.handle.get(&name(of)).await.expect("there").deployment.spec.replicas.max.into()
}

#[tokio::test(start_paused = true)]
async fn what_a_refused_commit_disables_stops_and_nothing_else_of_it_counts() {
    let forge = Forge::new();
    for id in ["bug", "fine"] {
        forge.deploy(id, "v1.0.0", "");
    }
    let good = forge.push("Two");
    let store = Arc::new(MemoryStore::default());
    let running = Running::start(store.clone());
    let followed = Followed::start(forge.config("disk", WriteBackTo::Off), &running.handle, 1);
    followed.until_applied(&good).await;

    // A model card that is not there, and an emergency in the same commit.
    forge.deploy("bug", "v1.0.0", "disabled");
    forge.deploy("fine", "v9.9.9", "");
    let bad = forge.push("Stop bug");
    let refused = |bad: String| {
        move |view: &berth_control::source::SourceStatus| {
            view.refused.as_ref().is_some_and(|refused| refused.revision == bad)
        }
    };
    followed.until("refused", refused(bad)).await;
    let mut stopped = false;
    for _ in 0..100 {
        stopped = replicas(&running, "bug").await == 0;
        if stopped {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(stopped && replicas(&running, "fine").await == 1);
    assert_eq!(told(&running, "DisabledAtOnce").await.len(), 1);
    // What is in force is compared every ten minutes, and declared again by the next leader.
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert_eq!(replicas(&running, "bug").await, 0);
    followed.stop().await;
    let followed = Followed::start(forge.config("another-disk", WriteBackTo::Off), &running.handle, 2);
    followed.until("declared", |view| view.counts.deployments == 2 && view.state == SourceState::Refused).await;
    assert_eq!(replicas(&running, "bug").await, 0);
    // What is wrong with the registry's own files changes nothing, neither way.
    forge.deploy("bug", "v1.0.0", "");
    forge.deploy("fine", "main", "disabled");
    let worse = forge.push("A branch");
    followed.until("refused", refused(worse)).await;
    tokio::time::sleep(Duration::from_secs(900)).await;
    assert_eq!((replicas(&running, "bug").await, replicas(&running, "fine").await), (0.into(), 1.into()));
    // Back to the commit in force: as it says.
    forge.reset(&good);
    followed.until("settled", |view| view.refused.is_none() && view.state == SourceState::Synced).await;
    let mut back = false;
    for _ in 0..100 {
        back = replicas(&running, "bug").await == 1;
        if back {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(back, "it is enabled again");
    assert_eq!(told(&running, "DisabledAtOnce").await.len(), 1, "told once");
    followed.stop().await;
    running.stop().await;
}

/// On the machine's clock: what hangs is a program, and the test's clock stands still while one runs.
#[tokio::test]
async fn an_emergency_does_not_wait_for_a_host_that_hangs() {
    let forge = Forge::new();
    forge.deploy("bug", "v1.0.0", "");
    let good = forge.push("One");
    let running = Running::start(Arc::new(MemoryStore::default()));
    let config = GitConfig { interval: Duration::from_millis(200), ..forge.config("disk", WriteBackTo::Off) };
    let followed = Followed::start(config, &running.handle, 0);
    followed.until_applied(&good).await;
    // It takes connections, and never says anything.
    let host = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/model.git", host.local_addr().expect("an address"));
    forge.deploy("slow", "v1.0.0", "");
    let manifest = fs_err::read_to_string(forge.path("registry/models/production/slow.yaml")).expect("written");
    forge.write("models/production/slow.yaml", &manifest.replace(&forge.url("model"), &url));
    let slow = forge.push("A model on a host that hangs");
    followed
        .until("validated", |view| view.state == SourceState::Progressing && view.seen.as_deref() == Some(&slow))
        .await;
    forge.deploy("bug", "v1.0.0", "disabled");
    forge.push("EMERGENCY: stop bug");
    let mut stopped = false;
    // Nothing else would stop it: what the host is asked for never comes.
    for _ in 0..1_200 {
        stopped = replicas(&running, "bug").await == 0;
        if stopped {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let view = followed.view();
    assert!(stopped, "{view:?}");
    assert_eq!(
        (view.state, view.revision.as_deref(), view.seen.as_deref()),
        (SourceState::Progressing, Some(good.as_str()), Some(slow.as_str()))
    );
    followed.stop().await;
    running.stop().await;
    drop(host);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_in_the_midst_of_it_ends_nothing() {
    let forge = Forge::new();
    forge.deploy("doubler", "v1.0.0", "");
    let good = forge.push("Deploy doubler");
    // Once each: when it begins, when a commit is remembered.
    let store = Arc::new(flaky::Flaky::new(&[1, 3]));
    let running = Running::start(store.clone());
    let followed = Followed::start(forge.config("disk", WriteBackTo::Off), &running.handle, 7);
    let view = followed.until_applied(&good).await;
    assert_eq!(
        (view.state, view.breakers.values().map(|breaker| breaker.failures).max()),
        (SourceState::Synced, Some(0))
    );
    assert_eq!(store.failed(), 2, "it was asked as often as this test takes it to be");
    assert_eq!(told(&running, "CommitApplied").await.len(), 1);
    followed.stop().await;
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn under_a_bad_commit_the_next_leader_makes_whole_what_is_in_force() {
    let forge = Forge::new();
    forge.deploy("one", "v1.0.0", "");
    forge.deploy("two", "v1.0.0", "");
    let good = forge.push("Two");
    let store = Arc::new(MemoryStore::default());
    let running = Running::start(store.clone());
    let followed = Followed::start(forge.config("disk", WriteBackTo::Off), &running.handle, 1);
    followed.until_applied(&good).await;
    followed.stop().await;
    // As if the leader had ended in the midst of declaring something else, which is gone from the branch by now.
    let request = berth_control::handle::DeleteRequest {
        origin: Origin::API,
        expect: None,
        ownership: berth_control::handle::Ownership::TakeOver,
    };
    running.handle.delete(&name("two"), request).await.expect("deleted");
    running.stop().await;
    forge.deploy("bad", "main", "");
    let bad = forge.push("A branch");

    let running = Running::start(store);
    let followed = Followed::start(forge.config("another-disk", WriteBackTo::Off), &running.handle, 2);
    let refused = |view: &berth_control::source::SourceStatus| {
        view.refused.as_ref().is_some_and(|refused| refused.revision == bad)
    };
    followed.until("refused", refused).await;
    let view = followed.until("declared", |view| view.counts.deployments == 2).await;
    assert_eq!((view.revision.as_deref(), view.state), (Some(good.as_str()), SourceState::Refused));
    assert_eq!(names(&running).await, ["one", "two"]);
    assert!(told(&running, "CommitApplied").await.is_empty(), "it was in force before");
    followed.stop().await;
    running.stop().await;
}
