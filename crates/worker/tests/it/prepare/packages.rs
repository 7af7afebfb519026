//! Environments: what uv is asked for, what its failures mean, and that it sees no secrets.

use std::collections::BTreeMap;

use berth_spec::{
    Generation, Secret,
    card::estimator::Packages,
    credential::{Credential, FieldValue, Granted, Kind},
    residency::Preparing,
};
use berth_worker::artifacts::Source;

use super::*;

#[tokio::test]
async fn what_the_installer_says_decides_what_happens_next() {
    let world = World::new();
    let preparer = world.preparer();
    for (package, category, words, outcomes) in [
        ("conflict==1.0.0", FailureCategory::Dependencies, "Because a==1 depends on b>=2", Some(true)),
        ("away==1.0.0", FailureCategory::Network, "reaches the package index", Some(false)),
        ("closed==1.0.0", FailureCategory::Auth, "no registry_credentials", Some(true)),
        ("full==1.0.0", FailureCategory::Disk, "free some space", None),
        ("odd==1.0.0", FailureCategory::Dependencies, "something that nobody knows", Some(true)),
    ] {
        let outcome = preparer.prepare(&world.card(&[package]), BlockedDependencies::default(), &|_| ()).await;
        let Err(Miss::Failed(fault)) = outcome.result else { panic!("{package} cannot be had") };
        assert_eq!(fault.category, category, "{package}: {fault}");
        assert!(fault.message.contains(words), "{package}: {fault}");
        assert!(fault.trace.is_some(), "{package}: all that it said");
        assert_eq!(outcome.outcomes.first().map(|(_, answered)| *answered), outcomes, "{package}");
    }
    let left = fs_err::read_dir(world.path("prepared/environments")).expect("a folder").count();
    assert_eq!(left, 0, "nothing stays of what failed");
}

#[tokio::test]
async fn an_index_that_is_barred_is_not_asked() {
    let world = World::new();
    let preparer = world.preparer();
    let blocked = BlockedDependencies { git: None, packages: Some(Time(7)) };
    let outcome = preparer.prepare(&world.card(&["a==1.0.0"]), blocked, &|_| ()).await;
    assert!(matches!(outcome.result, Err(Miss::HeldOff { until: Time(7), .. })), "{:?}", outcome.result);
    assert_eq!(world.calls(), ["venv", "install offline"]);
    assert!(prepare(&preparer, &world.card(&["a==1.0.0"])).await.is_ok());
    let outcome = preparer.prepare(&world.card(&["b==1.0.0"]), blocked, &|_| ()).await;
    assert!(outcome.result.is_ok(), "what was fetched before is enough");
}

#[tokio::test]
async fn the_artifact_of_a_model_without_a_card_may_list_the_packages() {
    let world = World::new();
    let preparer = world.preparer();
    let folder = world.path("model");
    fs_err::create_dir_all(&folder).expect("a folder");
    let source = Source::Folder(folder.clone());
    let card = PinnedCard::of_estimator("sklearn", "9.1", Packages::InFile("requirements.txt".to_owned()));
    let environment = async |text: &str| {
        fs_err::write(folder.join("requirements.txt"), text).expect("written");
        let outcome = preparer.prepare_for(&card, Some(&source), BlockedDependencies::default(), &|_| ()).await;
        match outcome.result {
            Ok(prepared) => Ok(prepared.with(None, Vec::new()).environment),
            Err(Miss::Failed(fault)) => Err(fault.message),
            Err(held_off) => panic!("nobody is blocked: {held_off:?}"),
        }
    };
    let first = environment("a==1.0.0\n").await.expect("an environment");
    assert_eq!(environment("# as trained\na==1.0.0\n").await.expect("an environment"), first);
    assert_ne!(environment("b==1.0.0\n").await.expect("an environment"), first, "it is named by its packages");
    let refused = environment("b==1.0.0\n--index-url https://h\n").await.expect_err("an option");
    assert!(refused.contains("requirements.txt line 2") && refused.contains("--package-index"), "{refused}");
    let fault = prepare(&preparer, &card).await.expect_err("it is not here");
    assert!(fault.message.contains("needs an artifact"), "{fault}");
}

#[tokio::test]
async fn steps_are_told_in_order() {
    let world = World::new();
    let steps = std::sync::Mutex::new(Vec::new());
    let mut card = PinnedCard::clone(&world.card(&[]));
    card.card.runtime.system_packages = vec!["berth-has-no-such-package".to_owned()];
    let tell = |step: Preparing| steps.lock().expect("alone").push(step);
    let outcome = world.preparer().prepare(&Arc::new(card), BlockedDependencies::default(), &tell).await;
    let told = steps.lock().expect("alone").clone();
    assert_eq!(told[..2], [Preparing::Code, Preparing::SystemPackages]);
    match outcome.result {
        Err(Miss::Failed(fault)) => {
            assert_eq!(fault.category, FailureCategory::Dependencies, "{fault}");
            assert!(fault.message.contains("install berth-has-no-such-package"), "{fault}");
        }
        // A system without a package manager cannot say.
        other => assert!(other.is_ok_and(|prepared| !prepared.with(None, Vec::new()).notes.is_empty())),
    }
}

#[tokio::test]
async fn an_unknown_python_is_told_with_a_remedy() {
    let world = World::new();
    let mut card = PinnedCard::clone(&world.card(&[]));
    "9.7".clone_into(&mut card.card.runtime.python_version);
    let fault = prepare(&world.preparer(), &Arc::new(card)).await.expect_err("nobody has it");
    assert_eq!(fault.category, FailureCategory::Dependencies);
    assert!(fault.message.contains("no Python 9.7: install it"), "{fault}");
    let settings = Settings { uv: Some(world.path("nowhere")), ..world.settings() };
    let fault = prepare(&world.preparer_with(settings), &world.card(&[])).await.expect_err("there is no uv");
    assert_eq!(fault.category, FailureCategory::Runtime);
    assert!(fault.message.contains("--uv"), "{fault}");
}

#[tokio::test]
async fn the_installer_sees_its_own_credentials_and_no_others() {
    let world = World::new();
    let text = |value: &str| FieldValue::Text(Secret::new(value));
    let fields = [("username", "me"), ("password", "pw"), ("registry_url", "https://mirror.example.org")];
    let fields: BTreeMap<_, _> = fields.into_iter().map(|(name, value)| (name.to_owned(), text(value))).collect();
    let (credential, scope) = Credential::build(Kind::Registry, fields).expect("a credential");
    let granted = Granted { credential, scope, expires: None };
    let secrets = BTreeMap::from([("mirror".to_owned(), granted)]);
    world.keys.send_replace(Arc::new(CredentialSet { generation: Generation(1), secrets }));
    let index = "https://mirror.example.org/simple".to_owned();
    let preparer = world.preparer_with(Settings { package_index: Some(index), ..world.settings() });
    let fault = prepare(&preparer, &world.card(&["closed==1.0.0"])).await.expect_err("refused all the same");
    assert!(fault.message.contains("the secret mirror"), "{fault}");
    let seen = fs_err::read_to_string(world.path("prepared/uv/environment")).expect("written");
    let value = |name: &str| seen.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    assert_eq!(value("UV_DEFAULT_INDEX"), Some("berth=https://mirror.example.org/simple"));
    assert_eq!((value("UV_INDEX_BERTH_USERNAME"), value("UV_INDEX_BERTH_PASSWORD")), (Some("me"), Some("pw")));
    assert!(!seen.contains("hush") && !seen.contains("AWS_"), "{seen}");
    assert!(!fault.message.contains("pw") && !fault.trace.is_some_and(|trace| trace.contains("pw")));
}

#[tokio::test]
async fn a_cancelled_installation_ends_with_all_that_it_started() {
    let world = World::new();
    let (preparer, card) = (world.preparer(), world.card(&["slow==1.0.0"]));
    let alive = world.path("prepared/uv/alive");
    run(Command::new("mkfifo").arg(&alive));
    // Opens when the installer runs, and ends when the last of its processes has gone.
    let opened = tokio::task::spawn_blocking(move || fs_err::File::open(alive).expect("the installer runs"));
    let mut pipe = tokio::select! {
        pipe = opened => pipe.expect("opened"),
        outcome = prepare(&preparer, &card) => panic!("it does not end by itself: {outcome:?}"),
    };
    let ended = tokio::task::spawn_blocking(move || std::io::copy(&mut pipe, &mut std::io::sink()));
    ended.await.expect("joined").expect("read to the end");
}
