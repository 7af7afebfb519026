//! Decisions about asynchronous APIs: what is derived from a model, and what each tells.

use berth_operator::{
    api::{AsyncAPI, ModelDeployment, Status, status::State},
    brain::{ApplyError, Decision, World, async_api, clops_deployment, model_deployment},
    conversion::convert,
    install::custom_resources,
    render::{Installation, Record, SHIPPED},
};
use serde_json::{Value, json};

use crate::fixtures::{clops, executor, full, model};

const NOW: &str = "2026-01-01T00:00:00Z";

/// Kind and name.
fn identity(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]))
}

fn identities(objects: &[Value]) -> Vec<String> {
    objects.iter().map(identity).collect()
}

/// Decides, and lets the API server hold what was decided.
fn settle(object: &mut ModelDeployment, live: &mut Vec<Value>) -> Decision {
    let installation = Installation::from("berth:1");
    let held: Vec<&Value> = live.iter().collect();
    let world = World {
        live: &held,
        rules: SHIPPED,
        installation: &installation,
        absent: &[],
        forbidden: &[],
        trouble: None,
        now: NOW,
    };
    let decision = model_deployment(object, world);
    let changed: Vec<String> = decision.delete.iter().chain(&decision.apply).map(identity).collect();
    live.retain(|one| !changed.contains(&identity(one)));
    live.extend(decision.apply.iter().cloned());
    if let Some(status) = &decision.status {
        object.status = Some(status.clone());
    }
    decision
}

fn find<'a>(live: &'a mut [Value], wanted: &str) -> &'a mut Value {
    live.iter_mut().find(|one| identity(one) == wanted).expect("it is there")
}

fn counts(object: &ModelDeployment) -> (i64, i64) {
    object.status.as_ref().map_or((0, 0), |status| (status.async_apis, status.ready_async_apis))
}

fn ready(object: &ModelDeployment) -> String {
    let ready = object.status.as_ref().and_then(|status| status.condition("Ready"));
    ready.map(|ready| ready.status.clone()).unwrap_or_default()
}

fn pods_are_ready(live: &mut [Value]) {
    let pods = json!({ "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1 });
    find(live, "Deployment iris")["status"] = pods;
}

/// A model with two asynchronous ports, and one that is not HTTP.
fn several() -> Value {
    let jobs = |queue: Value| json!({ "async": { "paths": ["/a"], "queue": queue } });
    let nats = json!({ "nats": "nats://nats:4222", "key": "iris" });
    json!({
        "container": { "image": "registry.example/iris:1", "ports": [
            { "name": "http", "port": 8080, "servicePort": 80 }, { "name": "more", "port": 8081 }, { "name": "raw", "port": 8082 },
        ] },
        "replicas": 1,
        "executor": { "ports": [
            { "name": "http", "settings": jobs(Value::Null) },
            { "name": "more", "settings": jobs(nats) },
            { "name": "raw", "direct": true, "settings": jobs(Value::Null) },
        ] },
    })
}

#[test]
fn each_asynchronous_port_has_one_that_the_pods_do_not_see() {
    let (mut object, mut live) = (model(executor()), Vec::new());
    let made = settle(&mut object, &mut live);
    let derived = made.apply.last().expect("one");
    assert_eq!(identity(derived), "AsyncAPI iris.http");
    let spec = json!({
        "model": "iris", "port": "http", "servicePort": 8080, "paths": ["/v2/models/{model}/infer"], "always": false,
        "prefix": "/jobs", "queue": { "kind": "Redis", "key": "iris" }, "callbacks": [],
    });
    assert_eq!(derived["spec"], spec);
    let owner = &derived["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("ModelDeployment"), &json!("uid-of-iris")));
    assert_eq!(counts(&object), (1, 0));
    settle(&mut object, &mut live);
    assert!(settle(&mut object, &mut live).is_empty());

    // Rendered objects are those of before.
    let record = object.status.as_ref().and_then(|status| status.render.clone()).expect("a record");
    let rendered = SHIPPED.render(&object, &record).expect("known");
    assert_eq!(identities(&rendered), identities(&made.apply[..made.apply.len() - 1]));

    let (mut without, mut live) = (model(full()), Vec::new());
    assert!(identities(&settle(&mut without, &mut live).apply).iter().all(|one| !one.starts_with("AsyncAPI")));
    assert_eq!(counts(&without), (0, 0));
}

#[test]
fn what_is_said_of_a_port_is_what_its_executor_does() {
    let mut spec = several();
    let section = &mut spec["executor"]["ports"][0]["settings"]["async"];
    section["prefix"] = json!("/later");
    section["always"] = json!(true);
    section["callbacks"] = json!({ "allow": ["https://hooks.example/"], "secretFile": null });
    let (mut object, mut live) = (model(spec), Vec::new());
    settle(&mut object, &mut live);
    let http = &find(&mut live, "AsyncAPI iris.http")["spec"];
    assert_eq!((&http["servicePort"], &http["queue"]), (&json!(80), &json!({ "kind": "Memory" })));
    assert_eq!((&http["prefix"], &http["always"]), (&json!("/later"), &json!(true)));
    assert_eq!(http["callbacks"], json!(["https://hooks.example/"]));
    let more = &find(&mut live, "AsyncAPI iris.more")["spec"];
    assert_eq!((&more["servicePort"], &more["queue"]), (&json!(8081), &json!({ "kind": "NATS", "key": "iris" })));
    assert_eq!(counts(&object), (2, 0), "requests of the direct port pass no executor");
}

#[test]
fn an_operator_that_comes_to_a_model_adds_them_and_nothing_else_changes() {
    let (mut object, mut live) = (model(executor()), Vec::new());
    settle(&mut object, &mut live);
    pods_are_ready(&mut live);
    settle(&mut object, &mut live);
    live.retain(|one| one["kind"] != "AsyncAPI");
    let before = object.status.take().expect("told");
    object.status = Some(Status { async_apis: 0, ready_async_apis: 0, ..before });
    let added = settle(&mut object, &mut live);
    assert_eq!(identities(&added.apply), ["AsyncAPI iris.http"]);
    assert_eq!((ready(&object).as_str(), added.events.len(), counts(&object)), ("True", 0, (1, 0)));

    // Models that the rules before executors render have none.
    let record = Record { version: 1, ..SHIPPED.record(&"berth:1".into(), 1) };
    let (mut old, mut live) = (model(executor()), Vec::new());
    old.status = Some(Status { render: Some(record), ..Status::default() });
    assert_eq!(identities(&settle(&mut old, &mut live).apply), ["Deployment iris", "Service iris"]);
}

#[test]
fn they_go_with_their_section_and_drift_is_put_right() {
    let (mut object, mut live) = (model(several()), Vec::new());
    settle(&mut object, &mut live);
    pods_are_ready(&mut live);
    settle(&mut object, &mut live);
    for (field, value) in [("paths", json!(["/other"])), ("callbacks", json!(["https://x/"])), ("always", json!(true))]
    {
        find(&mut live, "AsyncAPI iris.http")["spec"][field] = value;
        assert_eq!(identities(&settle(&mut object, &mut live).apply), ["AsyncAPI iris.http"], "{field}");
    }

    let mut spec = several();
    spec["executor"]["ports"][1]["settings"]["async"] = Value::Null;
    object.spec = model(spec).spec;
    object.metadata.generation = Some(2);
    assert_eq!(identities(&settle(&mut object, &mut live).delete), ["AsyncAPI iris.more"]);
    assert_eq!(counts(&object), (1, 0));
    let mut spec = several();
    spec["executor"]["enabled"] = json!(false);
    object.spec = model(spec).spec;
    object.metadata.generation = Some(3);
    assert_eq!(identities(&settle(&mut object, &mut live).delete), ["AsyncAPI iris.http"]);
    assert_eq!(counts(&object), (0, 0));
    settle(&mut object, &mut live);
    assert!(settle(&mut object, &mut live).is_empty());
}

#[test]
fn one_of_somebody_else_is_left_alone_and_holds_up_no_model() {
    let foreign = json!({ "kind": "AsyncAPI", "metadata": { "name": "iris.http", "ownerReferences": [] }, "spec": {} });
    let (mut object, mut live) = (model(executor()), vec![foreign.clone()]);
    let made = settle(&mut object, &mut live);
    assert_eq!(identities(&made.apply).len(), 3, "{:?}", identities(&made.apply));
    pods_are_ready(&mut live);
    settle(&mut object, &mut live);
    assert_eq!((ready(&object).as_str(), counts(&object)), ("True", (1, 0)));
    assert!(live.contains(&foreign));
}

#[test]
fn those_that_are_ready_are_counted_up_to_the_top() {
    let (mut object, mut live) = (model(several()), Vec::new());
    settle(&mut object, &mut live);
    for (name, observed) in [("iris.http", 1), ("iris.more", 0)] {
        let api = find(&mut live, &format!("AsyncAPI {name}"));
        api["metadata"]["generation"] = json!(1);
        let said = Status::default().with(&State::Ready("all".to_owned()), observed, NOW);
        api["status"] = json!({ "observedGeneration": observed, "conditions": said.conditions });
    }
    settle(&mut object, &mut live);
    assert_eq!(counts(&object), (2, 1), "one speaks of an older spec");

    let mut top = clops(several());
    let mut child = clops_deployment(&top, None, None, NOW).apply[0].clone();
    child["metadata"]["generation"] = json!(1);
    child["status"] = serde_json::to_value(&object.status).expect("JSON");
    top.status = clops_deployment(&top, Some(&child), None, NOW).status;
    assert_eq!(top.status.map(|status| (status.async_apis, status.ready_async_apis)), Some((2, 1)));
}

/// An object that a model controls, with this queue.
fn api(queue: Value) -> AsyncAPI {
    let owner = json!({ "apiVersion": "berth.dev/v1", "kind": "ModelDeployment", "name": "iris", "uid": "uid-of-iris", "controller": true });
    let metadata =
        json!({ "name": "iris.http", "namespace": "shop", "uid": "u", "generation": 1, "ownerReferences": [owner] });
    let spec = json!({
        "model": "iris", "port": "http", "servicePort": 80, "paths": ["/a"], "always": false, "prefix": "/jobs",
        "queue": queue, "callbacks": [],
    });
    serde_json::from_value(
        json!({ "apiVersion": "berth.dev/v1", "kind": "AsyncAPI", "metadata": metadata, "spec": spec }),
    )
    .expect("an AsyncAPI")
}

/// A model that says this of its pods.
fn saying(state: &State, pods: i64) -> Value {
    let status = Status { replicas: pods, ..Status::default() }.with(state, 1, NOW);
    json!({ "metadata": { "uid": "uid-of-iris", "generation": 1 }, "spec": {}, "status": status })
}

/// Status, reason and message of what it tells; nothing if it has nothing to tell.
fn told(object: &AsyncAPI, model: Option<&Value>, trouble: Option<&ApplyError>) -> Option<(String, String, String)> {
    let decision = async_api(object, model, trouble, NOW);
    assert!(decision.apply.is_empty() && decision.delete.is_empty(), "it renders nothing");
    let conditions = decision.status?.conditions;
    let ready = conditions.into_iter().find(|one| one.kind == "Ready")?;
    Some((ready.status, ready.reason, ready.message))
}

#[test]
fn it_follows_its_model_and_its_queue() {
    let (memory, redis) = (json!({ "kind": "Memory" }), json!({ "kind": "Redis", "key": "iris" }));
    let ready = State::Ready("3 of 3 pods are ready".to_owned());
    let waits = State::Reconciling("0 of 3 pods are ready".to_owned());
    let stalled = State::Stalled("PodsFailed", "too slow".to_owned());
    let cases = [
        (&redis, saying(&ready, 3), "True Available 3 of 3 pods are ready"),
        (&redis, saying(&waits, 3), "False Progressing 0 of 3 pods are ready"),
        (&redis, saying(&stalled, 3), "False ModelStalled too slow"),
        (&memory, saying(&ready, 1), "True Available 3 of 3 pods are ready"),
        (&memory, saying(&ready, 3), "False QueueNotShared the queue is in memory: each of 3 pods"),
        (&memory, saying(&waits, 3), "False QueueNotShared the queue is in memory: each of 3 pods"),
        (&memory, saying(&stalled, 3), "False ModelStalled too slow"),
    ];
    for (queue, model, expected) in cases {
        let (status, reason, message) = told(&api(queue.clone()), Some(&model), None).expect("it is told");
        let said = format!("{status} {reason} {message}");
        assert!(said.starts_with(expected), "{said}");
    }
    let mut scaled = saying(&ready, 1);
    scaled["spec"]["autoscaling"] = json!({ "maxReplicas": 4 });
    let (_, reason, message) = told(&api(memory), Some(&scaled), None).expect("it is told");
    assert!(reason == "QueueNotShared" && message.contains("each of 4 pods"), "{message}");
}

#[test]
fn what_is_told_is_told_once() {
    let (mut object, model) = (api(json!({ "kind": "Memory" })), saying(&State::Ready("all".to_owned()), 1));
    let first = async_api(&object, Some(&model), None, NOW);
    assert_eq!((first.events.len(), first.events[0].warning), (1, false));
    let status = first.status.expect("it is told");
    assert_eq!((status.address.as_deref(), status.observed_generation), (Some("iris.shop.svc:80/jobs"), 1));
    object.status = Some(status);
    assert!(async_api(&object, Some(&model), None, "2026-02-02T00:00:00Z").is_empty());

    let more = saying(&State::Ready("all".to_owned()), 2);
    let turned = async_api(&object, Some(&more), None, "2026-02-02T00:00:00Z");
    assert!(turned.events[0].warning && turned.events[0].reason == "QueueNotShared", "{:?}", turned.events);

    // The model has not looked at its newest spec, or is gone and takes it along.
    let mut newer = model.clone();
    newer["metadata"]["generation"] = json!(2);
    let mut another = model.clone();
    another["metadata"]["uid"] = json!("another");
    for quiet in [Some(&newer), Some(&another), None] {
        assert_eq!(told(&object, quiet, None), None);
    }
    let refused = ApplyError::Refused("no".to_owned());
    assert_eq!(told(&object, Some(&model), Some(&refused)).map(|(_, reason, _)| reason).as_deref(), Some("Refused"));
}

#[test]
fn one_that_was_written_says_so() {
    let model = saying(&State::Ready("all".to_owned()), 1);
    let (mut alone, mut renamed) = (api(json!({ "kind": "Memory" })), api(json!({ "kind": "Memory" })));
    alone.metadata.owner_references = None;
    renamed.metadata.name = Some("mine".to_owned());
    for mut object in [alone, renamed] {
        let decision = async_api(&object, Some(&model), None, NOW);
        assert!(decision.events[0].warning);
        let status = decision.status.expect("it is told");
        let (ready, address) = (&status.conditions[0], status.address.clone());
        assert_eq!((ready.status.as_str(), ready.reason.as_str(), address), ("False", "NotDerived", None));
        assert!(ready.message.contains("spec.model.executor.ports[].settings"), "{}", ready.message);
        object.status = Some(status);
        assert!(async_api(&object, None, None, NOW).is_empty());
    }
}

#[test]
fn older_versions_take_no_new_kinds() {
    let definitions = custom_resources("berth");
    let is_it = |one: &&Value| one["spec"]["names"]["kind"] == "AsyncAPI";
    let definition = definitions.iter().find(is_it).expect("a definition");
    let versions: Vec<&str> = definition["spec"]["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|one| one["name"].as_str())
        .collect();
    assert_eq!((versions, &definition["spec"]["conversion"]), (vec!["v1"], &Value::Null));
    let object = serde_json::to_value(api(json!({ "kind": "Memory" }))).expect("JSON");
    assert!(convert(object, "berth.dev/v1beta1").is_err());
}
