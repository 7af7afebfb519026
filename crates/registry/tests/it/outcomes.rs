//! One registry for each of the eight outcomes, and who is told.

use berth_registry::{Audience, Outcome};

use crate::fixture::{WORKER, World, told};

/// Change of a valid registry, with the expected outcome, and the file, path and a part of the text of the problem.
type Case = (&'static str, fn(&World), Outcome, &'static str, &'static str, &'static str);

const CASES: &[Case] = &[
    (
        "structure violation",
        |world| world.remove("errors"),
        Outcome::StructureViolation,
        "errors",
        "",
        "the folder is missing",
    ),
    (
        "invalid deployment manifest",
        |world| {
            let text = world.manifest("iris-prod", "v1.2.3").replace("priority: 80", "priority: 800");
            world.write("models/production/iris-prod.yaml", &text);
        },
        Outcome::InvalidDeploymentManifest,
        "models/production/iris-prod.yaml",
        "deployment_config.priority",
        "800 is too large",
    ),
    (
        "unpinned ref",
        |world| world.write("models/production/iris-prod.yaml", &world.manifest("iris-prod", "main")),
        Outcome::UnpinnedRef,
        "models/production/iris-prod.yaml",
        "model_card_ref.ref",
        "a branch moves",
    ),
    (
        "model card not found",
        |world| world.write("models/production/iris-prod.yaml", &world.manifest("iris-prod", "v9.9.9")),
        Outcome::ModelCardNotFound,
        "models/production/iris-prod.yaml",
        "model_card_ref.ref",
        "there is no tag v9.9.9",
    ),
    (
        "invalid model card",
        |world| {
            world.release(
                "v1.2.4",
                &world.card().replace("framework: sklearn", "framework: skelarn").replace("1.2.3", "1.2.4"),
            );
            world.write("models/production/iris-prod.yaml", &world.manifest("iris-prod", "v1.2.4"));
        },
        Outcome::InvalidModelCard,
        "@v1.2.4:model-card.yaml",
        "runtime.framework",
        "did you mean sklearn?",
    ),
    (
        "schema incompatibility",
        |world| world.write("workers/worker-a.yaml", &WORKER.replace("[\"3.0.0\", \"3.1.0\"]", "[\"3.0.0\"]")),
        Outcome::SchemaIncompatibility,
        "models/production/iris-prod.yaml",
        "model_card_ref.ref",
        "3.1.0 reads 3.0.0, 3.1.0",
    ),
    (
        "invalid worker config",
        |world| world.write("workers/worker-a.yaml", &WORKER.replace("max_memory: 16Gi", "max_memory: 16GB")),
        Outcome::InvalidWorkerConfig,
        "workers/worker-a.yaml",
        "capacity.max_memory",
        "for example 4Gi",
    ),
];

#[test]
fn every_outcome_has_its_commit() {
    for (name, change, outcome, file, path, part) in CASES {
        let world = World::new();
        let report = world.validate();
        assert!(report.is_accepted(), "{}", told(&report));
        assert_eq!(report.problems, [], "{}", told(&report));
        assert!(report.desired.is_some());
        change(&world);
        let report = world.validate();
        assert_eq!(report.outcome, *outcome, "{name}: {}", told(&report));
        assert!(report.desired.is_none(), "{name}");
        let problem = report.errors().next().expect("an error");
        assert!(problem.file.ends_with(file), "{name}: {problem:?}");
        assert_eq!(problem.path, *path, "{name}: {problem:?}");
        assert!(problem.to_string().contains(part), "{name}: {problem}");
        if !path.is_empty() {
            assert!(problem.line > 0 && !problem.source_line.is_empty(), "{name}: {problem:?}");
        }
        let tell: Vec<Audience> = report.audience().into_iter().collect();
        let expected: &[Audience] =
            if *outcome == Outcome::InvalidModelCard { &[Audience::Ops, Audience::Ml] } else { &[Audience::Ops] };
        assert_eq!(tell, expected, "{name}");
        let by = problem.commit.as_ref();
        assert!(by.is_none_or(|by| by.author.email == "ada@example.com"), "{name}: {problem:?}");
    }
}

#[test]
fn all_that_is_wrong_is_said_at_once() {
    let world = World::new();
    let wrong = world.manifest("iris-prod", "main").replace("enabled: true", "enabled: maybe");
    world.write("models/production/iris-prod.yaml", &wrong);
    world.write("models/staging/other.yaml", &world.manifest("other", "develop"));
    world.write("workers/worker-a.yaml", &WORKER.replace("pool: production", "pool: prod"));
    let report = world.validate();
    let rules: Vec<&str> = report.errors().map(|problem| problem.rule).collect();
    assert_eq!(rules, ["schema", "unpinned", "unpinned", "schema"], "{}", told(&report));
    assert_eq!(report.outcome, Outcome::InvalidDeploymentManifest);
}

#[test]
fn a_problem_names_who_wrote_it() {
    let world = World::new();
    world.validate();
    world.write("models/production/iris-prod.yaml", &world.manifest("iris-prod", "main"));
    let bad = world.commit("use main\n\nIt is simpler.");
    world.commit("something else");
    let report = world.validate();
    let by = report.errors().next().and_then(|problem| problem.commit.clone()).expect("a commit");
    assert_eq!((by.oid, by.subject.as_str()), (bad, "use main"));
}
