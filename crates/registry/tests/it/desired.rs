//! Desired state of a commit, its changes, and its conversion for the rest of Berth.

use std::time::Duration;

use berth_registry::{Change, Desired, to_hub};
use berth_spec::manifest::{ManifestDeployment, ParseContext};

use crate::fixture::{World, told};

fn desired(world: &World) -> Desired {
    let report = world.validate();
    report.desired.clone().unwrap_or_else(|| panic!("{}", told(&report)))
}

#[test]
fn every_field_arrives() {
    let world = World::new();
    world.write("models/staging/second.yaml", &world.manifest("second", "v1.2.3"));
    let desired = desired(&world);
    assert_eq!(desired.author, "Ada <ada@example.com>");
    let ids: Vec<&str> = desired.deployments.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(ids, ["iris-prod", "second"]);
    let one = desired.deployment("second").expect("it is there");
    assert_eq!((one.path.as_str(), one.environment.as_str()), ("models/staging/second.yaml", "staging"));
    assert_eq!(one.card.metadata.name, "iris");
    assert_eq!(desired.workers[0].terms().max_models, Some(5));
}

#[test]
fn the_hub_takes_what_was_accepted() {
    let world = World::new();
    let with_endpoint = world
        .manifest("iris-prod", "v1.2.3")
        .replace("priority: 80", "priority: 80\n  endpoint: https://api.example.com/v1/iris");
    world.write("models/production/iris-prod.yaml", &with_endpoint);
    let desired = desired(&world);
    let commit = desired.commit.as_ref().map(berth_git::Oid::as_str);
    let hub = to_hub(&desired.deployments[0], commit).expect("it carries over");
    let read = ManifestDeployment::of(hub.clone(), &ParseContext::default()).expect("a manifest of the hub");
    let hub = hub.written();
    assert_eq!(read.name.as_str(), "iris-prod");
    assert_eq!(read.labels["environment"], "production");
    assert_eq!(read.annotations["registry.berth.dev/commit"], commit.expect("a commit"));
    assert_eq!(hub["spec"]["selector"]["required"], serde_json::json!({"pool": "production", "region": "eu-west-1"}));
    let drain = read.spec.rollout.drain_timeout;
    assert_eq!(drain, Duration::from_secs(60), "what the registry's document says, not our own default");
    assert_eq!((read.spec.replicas.min, read.spec.priority), (1, 80));
    assert_eq!(hub["spec"]["resources"], serde_json::json!({"cpu": 0.5, "memory": "512MiB"}));

    let off = world.manifest("iris-prod", "v1.2.3").replace("enabled: true", "enabled: false");
    world.write("models/production/iris-prod.yaml", &off);
    let hub = to_hub(&self::desired(&world).deployments[0], None).expect("it carries over");
    assert_eq!(hub.written()["spec"]["replicas"], 0);
}

/// Changes a manifest; what is said to have changed.
type Case = (&'static str, &'static str, fn() -> Vec<Change>);

fn id() -> String {
    "iris-prod".to_owned()
}

const CASES: &[Case] = &[
    ("enabled: true", "enabled: true", Vec::new),
    ("replicas: 1", "replicas: 3", || vec![Change::Scale { id: id(), before: 1, after: 3 }]),
    ("enabled: true", "enabled: false", || vec![Change::Disabled { id: id() }]),
    ("priority: 80", "priority: 70", || vec![Change::Settings { id: id() }]),
    ("owner: ops@example.com", "owner: other@example.com", || vec![Change::Settings { id: id() }]),
];

#[test]
fn changes_have_names() {
    let world = World::new();
    world.write("workers/worker-b.yaml", &crate::fixture::WORKER.replace("worker-a", "worker-b"));
    let before = desired(&world);
    for (from, to, changes) in CASES {
        world.write("models/production/iris-prod.yaml", &world.manifest("iris-prod", "v1.2.3").replacen(from, to, 1));
        assert_eq!(desired(&world).changes_since(&before), changes(), "{to}");
    }
    world.release("v1.2.4", &world.card().replace("1.2.3", "1.2.4"));
    world.write("models/production/iris-prod.yaml", &world.manifest("iris-prod", "v1.2.4"));
    world.write("models/staging/new.yaml", &world.manifest("new", "v1.2.3"));
    let after = desired(&world);
    let changes = after.changes_since(&before);
    assert!(
        matches!(&changes[..], [Change::Version { before, after, .. }, Change::Added { id }]
        if before.0 == "1.2.3" && after.0 == "1.2.4" && id == "new"),
        "{changes:?}"
    );
    let back = before.changes_since(&after);
    assert!(matches!(&back[..], [Change::Version { .. }, Change::Removed { id }] if id == "new"), "{back:?}");
}

const ALIAS: &str = "apiVersion: berth.dev/v1\nkind: Alias\nmetadata: {name: iris}\nspec:\n  targets:\n    \
                     - {deployment: iris-prod, weight: 90}\n    - {deployment: second, weight: 10}\n";

#[test]
fn aliases_lead_to_deployments_of_the_commit() {
    let world = World::new();
    world.write("models/staging/second.yaml", &world.manifest("second", "v1.2.3"));
    world.write("aliases/iris.yaml", ALIAS);
    let desired = desired(&world);
    let targets: Vec<(&str, u32)> =
        desired.aliases[0].targets.iter().map(|(name, weight)| (name.as_str(), *weight)).collect();
    assert_eq!((desired.aliases[0].name.as_str(), targets), ("iris", vec![("iris-prod", 90), ("second", 10)]));
}

#[test]
fn a_wrong_alias_is_refused_at_its_place() {
    for (from, to, said) in [
        ("second", "secnod", "no deployment \"secnod\" (spec.targets[1].deployment)\n --> aliases/iris.yaml:7:20"),
        ("{name: iris}", "{name: third}", "third is declared in models/staging/third.yaml, too"),
        ("{name: iris}", "{name: iris, namespace: team}", "team/iris is not in the namespace of a registry"),
        ("kind: Alias", "kind: ModelDeployment", "aliases/iris.yaml"),
        ("weight: 90", "weight: -1", "-1 is too low"),
        (ALIAS, "", "the file declares nothing"),
        (ALIAS, "items:\n- kind: Alias\n", "the file holds a list (items)\n --> aliases/iris.yaml:1:1"),
        (ALIAS, "# Two\n- kind: Alias\n", "the file holds a list\n --> aliases/iris.yaml:2:1"),
    ] {
        let world = World::new();
        world.write("models/staging/second.yaml", &world.manifest("second", "v1.2.3"));
        world.write("models/staging/third.yaml", &world.manifest("third", "v1.2.3"));
        world.write("aliases/iris.yaml", &ALIAS.replace(from, to));
        let report = world.validate();
        assert_eq!(report.outcome, berth_registry::Outcome::InvalidDeploymentManifest, "{to}");
        assert!(told(&report).contains(said), "{to}: {}", told(&report));
    }
}

#[test]
fn a_worker_has_every_version_that_the_matrix_lets_it_read() {
    let world = World::new();
    let versions = |desired: &Desired| desired.workers[0].terms().schema_versions;
    let text = std::fs::read_to_string(world.registry().join("workers/worker-a.yaml")).expect("the worker");
    let line =
        text.lines().find(|line| line.starts_with("supported_schema_versions")).expect("its versions").to_owned();
    // The card is of 3.1.0: a worker with less would be refused.
    world.write("workers/worker-a.yaml", &text.replace(&line, "supported_schema_versions: ['3.1.0']"));
    assert_eq!(versions(&desired(&world)), ["3.1.0", "3.0.0"]);
}
