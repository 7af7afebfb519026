//! Cards in their repositories: pins, moves, absence.

use berth_registry::Outcome;

use crate::fixture::{World, git, told};

#[test]
fn a_tag_that_moves_is_refused() {
    let world = World::new();
    assert!(world.validate().is_accepted());
    world.release("v1.2.3", &world.card().replace("0.5", "0.6"));
    for _ in 0..2 {
        let report = world.validate();
        assert_eq!(report.outcome, Outcome::UnpinnedRef, "{}", told(&report));
        assert!(told(&report).contains("the tag v1.2.3 was moved"), "{}", told(&report));
        world.restart();
    }
}

#[test]
fn a_tag_that_was_moved_on_purpose_can_be_forgotten() {
    let world = World::new();
    let before = world.validate().desired.expect("accepted").deployments[0].card_commit.clone();
    world.release("v1.2.3", &world.card().replace("0.5", "0.6"));
    let report = world.validate();
    let [problem] = report.problems.as_slice() else { panic!("{}", told(&report)) };
    assert!(problem.message.contains(before.as_str()), "{}", problem.message);
    // What the remedy names is what has to go.
    let named = problem.remedy.split_whitespace().find(|word| word.ends_with("ledger.json")).expect("a file");
    let text = fs_err::read_to_string(named).expect("it is there");
    let mut memory: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let repositories = memory["repositories"].as_object_mut().expect("by repository");
    repositories.values_mut().for_each(|of| drop(of["tags"].as_object_mut().expect("tags").remove("v1.2.3")));
    fs_err::write(named, memory.to_string()).expect("written");
    world.restart();
    let report = world.validate();
    assert!(report.is_accepted(), "{}", told(&report));
}

#[test]
fn what_git_advises_is_advice_and_no_part_of_the_message() {
    let world = World::new();
    world.write("models/production/iris-prod.yaml", &world.manifest("iris-prod", "v9.9.9"));
    let report = world.validate();
    let [problem] = report.problems.as_slice() else { panic!("{}", told(&report)) };
    assert!(problem.message.ends_with("there is no tag v9.9.9"), "{}", problem.message);
    assert_eq!(problem.remedy, "push the tag or commit, or name one that is there");
}

#[test]
fn a_tag_that_was_never_accepted_may_be_mended() {
    let world = World::new();
    world.release("v1.2.3", &world.card().replace("sklearn", "skelarn"));
    assert_eq!(world.validate().outcome, Outcome::InvalidModelCard);
    world.release("v1.2.3", &world.card());
    let report = world.validate();
    assert!(report.is_accepted(), "{}", told(&report));
}

#[test]
fn commits_pin_whole_and_abbreviated() {
    let world = World::new();
    let commit = world.release("v1.2.4", &world.card().replace("1.2.3", "1.2.4"));
    for digits in [commit.as_str(), commit.short(), &commit.as_str()[..7]] {
        // Quoted: some names of commits look like numbers.
        world.write("models/production/iris-prod.yaml", &world.manifest("iris-prod", &format!("\"{digits}\"")));
        let report = world.validate();
        let desired = report.desired.clone().unwrap_or_else(|| panic!("{}", told(&report)));
        assert_eq!(desired.deployments[0].card_commit, commit);
        assert_eq!(desired.deployments[0].code_commit, commit);
    }
}

#[test]
fn what_is_known_outlives_its_repository() {
    let world = World::new();
    assert!(world.validate().is_accepted());
    fs_err::rename(world.model(), world.root.path().join("elsewhere")).expect("moved");
    world.restart();
    let report = world.validate();
    assert!(report.is_accepted(), "{}", told(&report));
    assert!(told(&report).contains("known from before"), "{}", told(&report));
    world.write("models/production/new.yaml", &world.manifest("new", "v1.2.4"));
    assert_eq!(world.validate().outcome, Outcome::ModelCardNotFound);
}

#[test]
fn the_code_must_be_there_too() {
    let world = World::new();
    world.release(
        "v1.2.4",
        &world.card().replace("1.2.3", "1.2.4").replace("ref: v1.2.4", &format!("ref: {}", "a".repeat(40))),
    );
    world.write("models/production/iris-prod.yaml", &world.manifest("iris-prod", "v1.2.4"));
    let report = world.validate();
    assert_eq!(report.outcome, Outcome::InvalidModelCard, "{}", told(&report));
    assert!(told(&report).contains("the code cannot be found"), "{}", told(&report));
}

#[test]
fn one_bad_card_is_told_of_once() {
    let world = World::new();
    world.release("v1.2.4", &world.card().replace("sklearn", "skelarn").replace("1.2.3", "1.2.4"));
    for id in ["one", "two", "three"] {
        world.write(&format!("models/staging/{id}.yaml"), &world.manifest(id, "v1.2.4"));
    }
    let report = world.validate();
    let errors: Vec<_> = report.errors().collect();
    assert_eq!(errors.len(), 1, "{}", told(&report));
    assert_eq!(errors[0].manifest, "models/staging/one.yaml");
}

#[test]
fn a_repository_that_is_not_reached_may_be_later() {
    let world = World::new();
    let text = world.manifest("iris-prod", "v1.2.3").replace(&world.url(), "https://127.0.0.1:1/x");
    world.write("models/production/iris-prod.yaml", &text);
    let report = world.validate();
    assert_eq!(report.outcome, Outcome::ModelCardNotFound);
    assert!(report.is_transient(), "{}", told(&report));
}

#[test]
fn a_version_that_differs_from_its_tag_is_said() {
    let world = World::new();
    git(&world.model(), &["tag", "v1.3.0"]);
    world.write("models/production/iris-prod.yaml", &world.manifest("iris-prod", "v1.3.0"));
    let report = world.validate();
    assert!(report.is_accepted() && told(&report).contains("says that it is version 1.2.3"), "{}", told(&report));
}

#[test]
fn a_file_that_is_no_card_is_not_called_missing() {
    let world = World::new();
    let path = world.model().join("model-card.yaml");
    let latin = [world.card().as_bytes(), b"# K\xf6ln\n"].concat();
    let large = [world.card().into_bytes(), vec![b'#'; 1 << 20]].concat();
    for (tag, content, part) in [("v1.2.4", latin, "is not UTF-8"), ("v1.2.5", large, "1048576 are allowed")] {
        fs_err::write(&path, content).expect("written");
        git(&world.model(), &["commit", "-q", "-a", "-m", tag]);
        git(&world.model(), &["tag", tag]);
        world.write("models/production/iris-prod.yaml", &world.manifest("iris-prod", tag));
        let report = world.validate();
        assert_eq!(report.outcome, Outcome::InvalidModelCard, "{}", told(&report));
        assert!(told(&report).contains(part) && !report.is_transient(), "{}", told(&report));
    }
}
