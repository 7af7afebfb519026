//! Decisions as tables: the world, and what is done about it.

use berth_operator::{
    api::{ModelDeployment, Status},
    brain::{ApplyError, Decision, World, clops_deployment, model_deployment},
    render::{Installation, SHIPPED},
};
use serde_json::{Value, json};

use crate::fixtures::{clops, executor, full, least, model, scaled};

const NOW: &str = "2026-01-01T00:00:00Z";

fn world<'a>(live: &'a [&'a Value], installation: &'a Installation) -> World<'a> {
    World { live, rules: SHIPPED, installation, absent: &[], forbidden: &[], trouble: None, now: NOW }
}

/// The decision beside these objects.
fn decided(object: &ModelDeployment, live: &[Value], image: &str) -> Decision {
    let live: Vec<&Value> = live.iter().collect();
    model_deployment(object, world(&live, &image.into()))
}

fn of_kind<'a>(objects: &'a mut [Value], kind: &str) -> &'a mut Value {
    objects.iter_mut().find(|object| object["kind"] == kind).expect("one")
}

/// Decides, and lets the API server hold what was decided.
fn settle(object: &mut ModelDeployment, live: &mut Vec<Value>, image: &str) -> Decision {
    let decision = decided(object, live, image);
    for applied in &decision.apply {
        live.retain(|object| {
            (&object["kind"], &object["metadata"]["name"]) != (&applied["kind"], &applied["metadata"]["name"])
        });
        live.push(applied.clone());
    }
    if let Some(status) = &decision.status {
        object.status = Some(status.clone());
    }
    decision
}

fn pods_are_ready(live: &mut [Value], count: i64) {
    for deployment in live.iter_mut().filter(|object| object["kind"] == "Deployment") {
        deployment["status"] = json!({ "updatedReplicas": count, "readyReplicas": count, "availableReplicas": count });
    }
}

fn ready(status: Option<&Status>) -> (String, String, String) {
    let ready = status.and_then(|status| status.condition("Ready")).expect("it is told").clone();
    (ready.status, ready.reason, ready.message)
}

#[test]
fn what_is_as_it_should_be_is_left_alone() {
    for spec in [least(), full()] {
        let (mut object, mut live) = (model(spec), Vec::new());
        assert_eq!(settle(&mut object, &mut live, "berth:1").apply.len(), 3);
        settle(&mut object, &mut live, "berth:1");
        assert!(settle(&mut object, &mut live, "berth:1").is_empty());
        pods_are_ready(&mut live, 3);
        let told = settle(&mut object, &mut live, "berth:1");
        assert_eq!((told.apply.len(), told.events.len()), (0, 1));
        assert_eq!(ready(told.status.as_ref()).0, "True");
        assert!(settle(&mut object, &mut live, "berth:1").is_empty());
    }
}

#[test]
fn a_newer_operator_changes_nothing_until_the_spec_does() {
    let (mut object, mut live) = (model(full()), Vec::new());
    settle(&mut object, &mut live, "berth:1");
    settle(&mut object, &mut live, "berth:1");
    let before = live.clone();
    assert!(settle(&mut object, &mut live, "berth:2").is_empty());
    // Restored from a backup that has no status.
    object.status = None;
    let told = settle(&mut object, &mut live, "berth:2");
    assert_eq!((told.apply, live.clone()), (Vec::new(), before));
    let recorded = told.status.and_then(|status| status.render);
    assert_eq!(recorded, Some(SHIPPED.record(&"berth:1".into(), 1)));
    // Somebody changes it.
    object.metadata.generation = Some(2);
    object.spec.container.image = "another".to_owned();
    let mut applied = settle(&mut object, &mut live, "berth:2").apply;
    let pod = &of_kind(&mut applied, "Deployment")["spec"]["template"]["spec"];
    assert_eq!(pod["initContainers"][0]["image"], "berth:2");
    assert_eq!(pod["containers"][1]["image"], "berth:2", "the executor's");
}

#[test]
fn drift_is_corrected_and_a_removed_field_is_taken_back() {
    let (mut object, mut live) = (model(full()), Vec::new());
    settle(&mut object, &mut live, "berth:1");
    settle(&mut object, &mut live, "berth:1");
    of_kind(&mut live, "Deployment")["spec"]["template"]["spec"]["containers"][0]["image"] = json!("another");
    assert_eq!(settle(&mut object, &mut live, "berth:1").apply.len(), 1);
    settle(&mut object, &mut live, "berth:1");
    object.spec.pod.node_selector.clear();
    object.metadata.generation = Some(2);
    let applied = settle(&mut object, &mut live, "berth:1").apply;
    assert_eq!(applied.len(), 1, "the digest tells what comparing cannot: {applied:?}");
}

#[test]
fn a_model_of_a_fleet_is_left_to_it() {
    let spec = json!({ "fleet": { "model": { "format": "onnx", "uri": "s3://b/m.onnx" } } });
    let object = model(spec.clone());
    assert!(decided(&object, &[], "berth:1").is_empty(), "its fleet tells its status");
    assert_eq!(serde_json::to_value(&object.spec).expect("JSON"), spec, "handed on as it was written");
}

#[test]
fn objects_of_others_and_broken_specs_stall() {
    let foreign = json!({ "kind": "Service", "metadata": { "name": "iris", "ownerReferences": [] } });
    let decision = decided(&model(least()), &[foreign], "berth:1");
    assert_eq!((decision.apply.len(), ready(decision.status.as_ref()).1.as_str()), (0, "NameTaken"));
    let cases = [
        ("/container/ports/1", json!({ "name": "http", "port": 9 }), "spec.container.ports[].name: http comes twice"),
        (
            "/container/ports/1",
            json!({ "name": "other", "port": 8080 }),
            "spec.container.ports[].port: 8080 comes twice",
        ),
        ("/parameters/1/name", json!("weights"), "spec.parameters[].name: weights comes twice"),
        ("/parameters/1/mountPath", json!("/models"), "spec.parameters[].mountPath: /models comes twice"),
    ];
    for (place, value, expected) in cases {
        let mut spec = full();
        *spec.pointer_mut(place).expect("the place") = value;
        let decision = decided(&model(spec), &[], "berth:1");
        let (status, reason, message) = ready(decision.status.as_ref());
        assert_eq!((status.as_str(), reason.as_str(), message.as_str()), ("False", "Invalid", expected));
        assert!(decision.apply.is_empty() && decision.events[0].warning);
    }
    let mut long = model(least());
    long.metadata.name = Some("1.iris".to_owned());
    let decision = decided(&long, &[], "berth:1");
    assert!(ready(decision.status.as_ref()).2.starts_with("metadata.name: 1.iris"));
}

#[test]
fn progress_of_the_deployment_is_told() {
    let failed = json!({ "type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "too slow" });
    let cases = [
        (json!({}), "Progressing", "0 of 3 pods are of the newest spec"),
        (json!({ "updatedReplicas": 3, "readyReplicas": 1 }), "Progressing", "1 of 3 pods are ready"),
        (
            json!({ "updatedReplicas": 3, "readyReplicas": 3, "availableReplicas": 3 }),
            "Available",
            "3 of 3 pods are ready",
        ),
        (
            json!({ "conditions": [failed] }),
            "PodsFailed",
            "0 of 3 pods are ready: too slow (kubectl describe pods shows why)",
        ),
    ];
    let (mut object, mut live) = (model(full()), Vec::new());
    settle(&mut object, &mut live, "berth:1");
    for (status, reason, message) in cases {
        of_kind(&mut live, "Deployment")["status"] = status;
        settle(&mut object, &mut live, "berth:1");
        let (_, told, said) = ready(object.status.as_ref());
        assert_eq!((told.as_str(), said.as_str()), (reason, message));
    }
}

#[test]
fn the_status_after_an_attempt_says_what_is_so_then() {
    let (mut object, mut live) = (model(full()), Vec::new());
    let made = settle(&mut object, &mut live, "berth:1");
    assert_eq!(ready(made.status.as_ref()).2, "the Deployment was created or changed");
    assert_eq!(made.status.map(|status| (status.replicas, status.ready_replicas)), Some((3, 0)));
    // Its controller has not looked at it.
    of_kind(&mut live, "Deployment")["metadata"]["generation"] = json!(1);
    assert!(settle(&mut object, &mut live, "berth:1").is_empty(), "no second write");
    // What was refused is not there.
    let (refused, image) = (ApplyError::Refused("no".to_owned()), "berth:1".into());
    let told = World { trouble: Some(&refused), ..world(&[], &image) };
    let status = model_deployment(&model(full()), told).status.expect("it is told");
    assert_eq!((status.replicas, ready(Some(&status)).1.as_str()), (0, "Refused"));
}

#[test]
fn the_top_tells_what_its_model_says() {
    let mut top = clops(full());
    let created = clops_deployment(&top, None, None, NOW);
    let mut child = created.apply[0].clone();
    assert_eq!(child["spec"], full(), "the spec is passed on as written");
    top.status = created.status;
    child["metadata"]["generation"] = json!(1);
    let mut said = Status { replicas: 3, ready_replicas: 3, ..Status::default() };
    said = said.with(&berth_operator::api::status::State::Ready("3 of 3 pods are ready".to_owned()), 1, NOW);
    child["status"] = serde_json::to_value(&said).expect("JSON");
    let told = clops_deployment(&top, Some(&child), None, NOW);
    assert_eq!((told.apply.len(), told.events.len()), (0, 1));
    assert_eq!(ready(told.status.as_ref()).2, "3 of 3 pods are ready");
    top.status = told.status;
    assert!(clops_deployment(&top, Some(&child), None, NOW).is_empty());
    child["metadata"]["generation"] = json!(2);
    let waits = clops_deployment(&top, Some(&child), None, NOW);
    assert_eq!(ready(waits.status.as_ref()).0, "False", "the status speaks of an older spec");
}

#[test]
fn the_top_waits_for_a_fleet_and_names_fields_as_people_wrote_them() {
    let top = clops(json!({ "fleet": { "model": { "format": "onnx", "uri": "s3://b/m.onnx" } } }));
    let mut child = clops_deployment(&top, None, None, NOW).apply[0].clone();
    child["metadata"]["generation"] = json!(1);
    let told = clops_deployment(&top, Some(&child), None, NOW);
    let said = ready(told.status.as_ref()).2;
    assert!(said.starts_with("no fleet has told its state yet"), "{said}");
    let refused = berth_operator::api::status::State::Stalled("Invalid", "spec.fleet.replicas: no".to_owned());
    child["status"] = serde_json::to_value(Status::default().with(&refused, 1, NOW)).expect("JSON");
    let told = clops_deployment(&top, Some(&child), None, NOW);
    assert_eq!(ready(told.status.as_ref()).2, "spec.model.fleet.replicas: no");
}

#[test]
fn trouble_is_told_and_nothing_is_given_up() {
    let image = "berth:1".into();
    let refused = ApplyError::Refused("Deployment shop/iris cannot be applied: no".to_owned());
    let told = World { trouble: Some(&refused), ..world(&[], &image) };
    let decision = model_deployment(&model(least()), told);
    assert_eq!((decision.apply.len(), ready(decision.status.as_ref()).1.as_str()), (3, "Refused"));
    let away = ApplyError::Unreachable("connection refused".to_owned());
    let told = World { trouble: Some(&away), ..world(&[], &image) };
    assert_eq!(ready(model_deployment(&model(least()), told).status.as_ref()).1, "Progressing");
}

#[test]
fn what_the_pods_do_not_see_restarts_none_whatever_operator_came() {
    let (mut object, mut live) = (model(executor()), Vec::new());
    settle(&mut object, &mut live, "berth:1");
    settle(&mut object, &mut live, "berth:1");
    let template = of_kind(&mut live, "Deployment")["spec"]["template"].clone();
    let with = |field: &str, value: Value| {
        let mut executor = object.spec.executor.clone();
        let settings = executor.as_mut().and_then(|one| one.ports[1].settings.as_mut()).expect("settings");
        settings[field] = value;
        executor
    };
    let (limit, jobs) = (with("maxInFlight", json!(9)), with("async", json!({ "paths": ["/a"] })));

    // The running executor reads its ConfigMap again.
    object.spec.executor = limit;
    object.metadata.generation = Some(2);
    let mut applied = settle(&mut object, &mut live, "berth:2").apply;
    let text = of_kind(&mut applied, "ConfigMap")["data"]["executor.yaml"].as_str().expect("text").to_owned();
    assert!(text.contains("\"maxInFlight\": 9"), "{text}");
    assert_eq!(of_kind(&mut live, "Deployment")["spec"]["template"], template);
    object.spec.replicas = Some(5);
    object.metadata.generation = Some(3);
    settle(&mut object, &mut live, "berth:2");
    assert_eq!(of_kind(&mut live, "Deployment")["spec"]["replicas"], 5);
    assert_eq!(of_kind(&mut live, "Deployment")["spec"]["template"], template);
    settle(&mut object, &mut live, "berth:2");
    assert!(settle(&mut object, &mut live, "berth:2").is_empty());

    // It does not take these without a restart: new pods have a ConfigMap of their own, and old ones keep theirs.
    object.spec.executor = jobs;
    object.metadata.generation = Some(4);
    settle(&mut object, &mut live, "berth:2");
    assert_ne!(of_kind(&mut live, "Deployment")["spec"]["template"], template);
    assert_eq!(live.iter().filter(|one| one["kind"] == "ConfigMap").count(), 2);
}

#[test]
fn the_executor_can_be_left_out_and_is_told() {
    let mut spec = full();
    let (mut object, mut live) = (model(spec.clone()), Vec::new());
    settle(&mut object, &mut live, "berth:1");
    assert_eq!(object.status.as_ref().and_then(|status| status.executor.as_deref()), Some("Container"));
    spec["executor"] = json!({ "enabled": false });
    let (mut object, mut live) = (model(spec), Vec::new());
    assert_eq!(settle(&mut object, &mut live, "berth:1").apply.len(), 2);
    assert_eq!(object.status.as_ref().and_then(|status| status.executor.as_deref()), Some("Off"));
    let pod = of_kind(&mut live, "Deployment")["spec"]["template"]["spec"].to_string();
    assert!(!pod.contains("executor") && !pod.contains("preStop"), "{pod}");
}

#[test]
fn who_may_ask_is_rendered_with_the_name_of_the_model() {
    let mut spec = full();
    let access = json!({ "tokens": "/var/run/secrets/berth/tokens/tokens.json", "file": null });
    spec["executor"] = json!({ "secrets": ["tokens"], "access": access });
    let (mut object, mut live) = (model(spec), Vec::new());
    settle(&mut object, &mut live, "berth:1");
    let config = of_kind(&mut live, "ConfigMap")["data"]["executor.yaml"].as_str().expect("a text").to_owned();
    let config: Value = serde_json::from_str(&config).expect("JSON");
    let name = format!("{}/{}", object.metadata.namespace.expect("one"), object.metadata.name.expect("one"));
    assert_eq!(config["access"]["model"], json!(name));
    assert!(config["access"].get("file").is_none(), "{config}");
}

#[test]
fn a_wrong_setting_of_the_executor_is_told() {
    let cases = [
        (
            "/executor/ports/1/settings/timeout",
            json!("soon"),
            "spec.executor.ports[http].settings: \"soon\" is not a duration: write for example 500ms",
        ),
        (
            "/executor/ports/1/settings/async",
            json!({ "paths": [] }),
            "spec.executor.ports[http].settings: async.paths is empty",
        ),
        ("/executor/ports/1/settings", json!({ "listen": 1 }), "spec.executor.ports[http].settings.listen: it follows"),
        ("/executor/ports/0/name", json!("grpc"), "spec.executor.ports[grpc]: the container has no port of this name"),
        (
            "/executor",
            json!({ "access": { "tokens": "/t", "limits": { "rate": 0 } } }),
            "spec.executor.access.limits.rate: a rate of 0",
        ),
        ("/executor", json!({ "adminPort": 8080 }), "spec.executor.adminPort: 8080 is the container's port http"),
        // Files that its container does not have.
        (
            "/executor/secrets",
            json!(["another"]),
            "spec.executor.secrets: /var/run/secrets/berth/queue is named, and queue is not among them",
        ),
        (
            "/executor/ports/1/settings",
            json!({ "log": { "to": { "file": "/var/log/requests.jsonl" } } }),
            "spec.executor.ports[http].settings.log.to.file: the container has no folder to write to",
        ),
    ];
    for (place, value, expected) in cases {
        let mut spec = executor();
        *spec.pointer_mut(place).expect("the place") = value;
        let (_, reason, message) = ready(decided(&model(spec), &[], "berth:1").status.as_ref());
        assert!(reason == "Invalid" && message.starts_with(expected), "{message}");
    }
}

#[test]
fn the_number_of_pods_goes_from_hand_to_hand() {
    let (mut object, mut live) = (model(least()), Vec::new());
    object.spec.replicas = Some(4);
    settle(&mut object, &mut live, "berth:1");
    pods_are_ready(&mut live, 4);

    // To the autoscaler: as many as there are stay.
    object.spec.replicas = None;
    object.spec.autoscaling = model(scaled()).spec.autoscaling;
    object.metadata.generation = Some(2);
    let given = settle(&mut object, &mut live, "berth:1");
    assert_eq!((given.kept_replicas, given.delete.len()), (Some(4), 0));
    assert_eq!(of_kind(&mut live, "HorizontalPodAutoscaler")["apiVersion"], "autoscaling/v2beta2", "an old cluster");
    of_kind(&mut live, "Deployment")["spec"]["replicas"] = json!(7);
    settle(&mut object, &mut live, "berth:1");
    let settled = settle(&mut object, &mut live, "berth:1");
    assert!(settled.apply.is_empty() && settled.kept_replicas.is_none(), "nobody fights: {settled:?}");

    // And back: the autoscaler goes, one of somebody else stays.
    object.spec.replicas = Some(3);
    object.spec.autoscaling = None;
    object.metadata.generation = Some(3);
    let taken = settle(&mut object, &mut live, "berth:1");
    assert_eq!((taken.delete[0]["kind"].as_str(), taken.kept_replicas), (Some("HorizontalPodAutoscaler"), None));
    assert_eq!(of_kind(&mut live, "Deployment")["spec"]["replicas"], 3);
    of_kind(&mut live, "HorizontalPodAutoscaler")["metadata"]["ownerReferences"] = json!([]);
    assert!(settle(&mut object, &mut live, "berth:1").delete.is_empty());
}

#[test]
fn an_empty_autoscaler_is_none() {
    let mut spec = least();
    for empty in [json!({}), json!({ "behavior": null, "metrics": null }), Value::Null] {
        spec["autoscaling"] = empty;
        assert_eq!(model(spec.clone()).spec, model(least()).spec);
    }
}

#[test]
fn a_number_and_an_autoscaler_exclude_each_other() {
    let cases = [
        ("/replicas", json!(3), "spec.replicas: spec.autoscaling sets the number of pods; leave one of them out"),
        ("/autoscaling/maxReplicas", Value::Null, "spec.autoscaling.maxReplicas: say the greatest number of pods"),
        ("/autoscaling/maxReplicas", json!(1), "spec.autoscaling.minReplicas: 2 is more than maxReplicas, 1"),
    ];
    for (place, value, expected) in cases {
        let mut spec = scaled();
        spec["replicas"] = Value::Null;
        *spec.pointer_mut(place).expect("the place") = value;
        assert_eq!(ready(decided(&model(spec), &[], "berth:1").status.as_ref()).2, expected);
    }
}
