//! Code: the exact commit, once for all.

use super::*;

fn model(prepared: &Prepared) -> String {
    fs_err::read_to_string(prepared.code.join("src/model.py")).expect("the code")
}

#[tokio::test]
async fn made_once_for_all_and_found_after_a_restart() {
    let world = World::new();
    let (preparer, card) = (world.preparer(), world.card(&["a==1.0.0"]));
    let (first, second) = tokio::join!(prepare(&preparer, &card), prepare(&preparer, &card));
    let (first, second) = (first.expect("prepared"), second.expect("prepared"));
    assert_eq!((&first.code, &first.python), (&second.code, &second.python), "shared");
    assert_eq!((model(&first).as_str(), first.notes.len()), ("first", 0));
    assert!(first.python.exists() && first.environment_size > ByteSize::ZERO);
    assert_eq!(world.calls(), ["venv", "install offline", "install", "freeze"]);
    fs_err::remove_dir_all(world.path("code")).expect("removed");
    let again = prepare(&world.preparer(), &card).await.expect("nobody need be asked");
    assert_eq!((again.code, again.environment), (first.code, first.environment));
    assert_eq!(world.calls().len(), 4);
}

#[tokio::test]
async fn the_commit_is_what_counts() {
    let world = World::new();
    let card = world.card(&[]);
    let other = world.commit("second", "v1.0.0");
    let prepared = prepare(&world.preparer(), &card).await.expect("the commit is still there");
    assert_eq!(model(&prepared), "first", "and not where the tag leads");
    assert!(prepared.notes[0].contains(&other[..8]), "{:?}", prepared.notes);

    let mut gone = PinnedCard::clone(&card);
    gone.code_commit = "0123456789".repeat(4);
    let fault = prepare(&world.preparer(), &Arc::new(gone)).await.expect_err("there is no such commit");
    assert_eq!(fault.category, FailureCategory::NotFound);
    assert!(fault.message.contains("v1.0.0") && fault.message.contains("0123456789"), "{fault}");
}

#[tokio::test]
async fn wrong_places_are_told_with_a_remedy() {
    let world = World::new();
    let preparer = world.preparer();
    let with = |change: &dyn Fn(&mut PinnedCard)| {
        let mut card = PinnedCard::clone(&world.card(&[]));
        change(&mut card);
        Arc::new(card)
    };
    let missing = format!("file://{}", world.path("missing").display());
    for (what, card, category, words) in [
        ("a path outside", with(&|card| card.card.code.path = "../..".into()), FailureCategory::Code, "leads out"),
        ("no such folder", with(&|card| card.card.code.path = "lib".into()), FailureCategory::Code, "no folder"),
        ("a branch as commit", with(&|card| card.code_commit = "main".into()), FailureCategory::Code, "no commit"),
        ("an option", with(&|card| card.card.code.repository = "-x".into()), FailureCategory::Code, "dash"),
        (
            "no repository",
            with(&|card| card.card.code.repository.clone_from(&missing)),
            FailureCategory::NotFound,
            "check the URL",
        ),
    ] {
        let fault = prepare(&preparer, &card).await.expect_err(what);
        assert_eq!(fault.category, category, "{what}: {fault}");
        assert!(fault.message.contains(words), "{what}: {fault}");
    }
    let settings = Settings { local_repositories: false, ..world.settings() };
    let fault = prepare(&world.preparer_with(settings), &world.card(&[])).await.expect_err("not from this machine");
    assert_eq!(fault.category, FailureCategory::Code, "{fault}");
}

#[tokio::test]
async fn a_host_that_is_away_is_heard_of_and_not_asked_while_it_is_barred() {
    let world = World::new();
    let preparer = world.preparer();
    let mut away = PinnedCard::clone(&world.card(&[]));
    // Nobody listens on port 1 of this machine.
    "http://127.0.0.1:1/m.git".clone_into(&mut away.card.code.repository);
    let away = Arc::new(away);
    let Outcome { result, outcomes } = preparer.prepare(&away, BlockedDependencies::default(), &|_| ()).await;
    assert!(matches!(result, Err(Miss::Failed(fault)) if fault.category == FailureCategory::Network));
    let outcomes: Vec<_> = outcomes.iter().map(|(host, answered)| (host.to_string(), *answered)).collect();
    assert_eq!(outcomes, [("the Git host http://127.0.0.1:1".to_owned(), false)]);
    let blocked = BlockedDependencies { git: Some(Time(7)), packages: None };
    let Outcome { result, outcomes } = preparer.prepare(&away, blocked, &|_| ()).await;
    assert!(matches!(result, Err(Miss::HeldOff { until: Time(7), .. })) && outcomes.is_empty());
    assert!(preparer.prepare(&world.card(&[]), blocked, &|_| ()).await.result.is_ok(), "this machine is nobody's host");
}
