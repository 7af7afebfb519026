//! Decisions about pools: what is applied when, what is deleted, and what is told of the way to it.

use berth_operator::{
    api::{ModelDeployment, Status},
    brain::{Decision, World, clops_deployment, model_deployment},
    render::{Installation, SHIPPED},
};
use serde_json::{Value, json};

use crate::fixtures::{clops, least, model, pooled};

const NOW: &str = "2026-01-01T00:00:00Z";

/// Decides, and lets the API server hold what was decided.
fn settle(object: &mut ModelDeployment, live: &mut Vec<Value>, absent: &[&'static str]) -> Decision {
    settle_without(object, live, absent, &[])
}

/// The same, with kinds that the operator has no right to see.
fn settle_without(
    object: &mut ModelDeployment,
    live: &mut Vec<Value>,
    absent: &[&'static str],
    forbidden: &[&'static str],
) -> Decision {
    let installation = Installation::from("berth:1");
    let held: Vec<&Value> = live.iter().collect();
    let world =
        World { live: &held, rules: SHIPPED, installation: &installation, absent, forbidden, trouble: None, now: NOW };
    let decision = model_deployment(object, world);
    for applied in &decision.apply {
        let place = live.iter().position(|one| identity(one) == identity(applied));
        let mut applied = applied.clone();
        match place {
            Some(place) => {
                applied["metadata"]["uid"] = live[place]["metadata"]["uid"].clone();
                live[place] = applied;
            }
            None => {
                applied["metadata"]["uid"] = json!(format!("uid-of-{}-{}", identity(&applied), live.len()));
                live.push(applied);
            }
        }
    }
    live.retain(|one| !decision.delete.iter().any(|deleted| identity(deleted) == identity(one)));
    if let Some(status) = &decision.status {
        object.status = Some(status.clone());
    }
    decision
}

/// Kind and name.
fn identity(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]))
}

fn applied(decision: &Decision) -> Vec<String> {
    decision.apply.iter().map(identity).collect()
}

fn find<'a>(live: &'a mut [Value], wanted: &str) -> &'a mut Value {
    live.iter_mut().find(|one| identity(one) == wanted).expect("it is there")
}

/// Status, reason and message of the condition about the way to the pool.
fn routed(status: Option<&Status>) -> Option<(String, String, String)> {
    let routed = status?.condition("Routed")?.clone();
    Some((routed.status, routed.reason, routed.message))
}

fn reason(object: &ModelDeployment) -> String {
    routed(object.status.as_ref()).expect("it is told").1
}

#[test]
fn the_picker_comes_with_the_pool_and_the_pods_wait_for_neither() {
    let (mut object, mut live) = (model(pooled()), Vec::new());
    let first = applied(&settle(&mut object, &mut live, &[]));
    let config = first[0].clone();
    assert_eq!(first, [config.as_str(), "Deployment iris", "Service iris", "InferencePool iris", "HTTPRoute iris"]);
    assert_eq!(reason(&object), "Progressing");
    let pods = json!({ "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1 });
    find(&mut live, "Deployment iris")["status"] = pods;
    let second = settle(&mut object, &mut live, &[]);
    let picker =
        ["ServiceAccount iris-picker", "RoleBinding iris-picker", "Deployment iris-picker", "Service iris-picker"];
    assert_eq!(applied(&second), picker);
    let ready = object.status.as_ref().and_then(|status| status.condition("Ready")).expect("it is told");
    assert_eq!((ready.status.as_str(), reason(&object).as_str()), ("True", "PickerNotReady"));
    assert_eq!(object.status.as_ref().map(|status| (status.replicas, status.ready_replicas)), Some((1, 1)));
    assert!(settle(&mut object, &mut live, &[]).is_empty());

    let pool = find(&mut live, "InferencePool iris").clone();
    let selected = &pool["spec"]["selector"]["matchLabels"];
    let template = find(&mut live, "Deployment iris")["spec"]["template"].clone();
    assert_eq!(template["metadata"]["labels"]["berth.dev/model"], selected["berth.dev/model"]);
    assert_eq!(pool["spec"]["targetPorts"], json!([{ "number": 29001 }]), "the executor's");
    let reference = &pool["spec"]["endpointPickerRef"];
    let service = find(&mut live, "Service iris-picker").clone();
    assert_eq!(
        (&reference["name"], &reference["port"]["number"]),
        (&json!("iris-picker"), &service["spec"]["ports"][0]["port"])
    );
    let deployment = find(&mut live, "Deployment iris-picker").clone();
    let (owner, labels) =
        (&deployment["metadata"]["ownerReferences"][0], &deployment["spec"]["template"]["metadata"]["labels"]);
    assert_eq!((&owner["kind"], &owner["uid"]), (&json!("InferencePool"), &pool["metadata"]["uid"]));
    assert!(labels["berth.dev/model"].is_null(), "the pool and the Service of the model select no picker: {labels}");
    let route = find(&mut live, "HTTPRoute iris").clone();
    assert_eq!(route["spec"]["rules"][0]["backendRefs"][0]["name"], pool["metadata"]["name"]);

    // The way is told, from obstacle to obstacle.
    let said = |kind: &str, status: &str| json!({ "parents": [{ "conditions": [{ "type": kind, "status": status, "message": "no" }] }] });
    find(&mut live, "Deployment iris-picker")["status"] = json!({ "readyReplicas": 1 });
    let mut told = Vec::new();
    for (place, status) in [
        ("InferencePool iris", json!({})),
        ("InferencePool iris", said("Accepted", "Unknown")),
        ("InferencePool iris", said("Accepted", "True")),
        ("HTTPRoute iris", said("ResolvedRefs", "False")),
        ("HTTPRoute iris", said("Accepted", "True")),
    ] {
        find(&mut live, place)["status"] = status;
        assert!(settle(&mut object, &mut live, &[]).apply.is_empty());
        told.push(reason(&object));
    }
    // Of two objects, the pool is looked at first; then the route that nobody has accepted.
    assert_eq!(told, ["NotAccepted", "NotAccepted", "NotAccepted", "Refused", "Accepted"]);
    assert!(settle(&mut object, &mut live, &[]).is_empty());
}

#[test]
fn a_cluster_without_the_custom_resources_has_the_model_and_says_what_is_missing() {
    let (mut object, mut live) = (model(pooled()), Vec::new());
    let told = settle(&mut object, &mut live, &["HTTPRoute", "InferencePool"]);
    let (mut plain, mut alone) = (model(least()), Vec::new());
    settle(&mut plain, &mut alone, &[]);
    assert_eq!(
        told.apply.iter().map(|one| &one["spec"]).collect::<Vec<_>>(),
        alone.iter().map(|one| &one["spec"]).collect::<Vec<_>>()
    );
    let (status, reason, message) = routed(object.status.as_ref()).expect("it is told");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "NotInstalled"));
    assert_eq!(
        message,
        "the cluster has no custom resource InferencePool: install the Gateway API Inference Extension"
    );
    assert_eq!(routed(plain.status.as_ref()), None);
    // Without routes there is a pool, for routes of other kinds.
    settle(&mut object, &mut live, &["HTTPRoute"]);
    settle(&mut object, &mut live, &["HTTPRoute"]);
    assert!(live.iter().any(|one| identity(one) == "Deployment iris-picker"));
    assert!(routed(object.status.as_ref()).expect("it is told").2.ends_with("HTTPRoute: install the Gateway API"));
    // Installed, it is used.
    assert_eq!(applied(&settle(&mut object, &mut live, &[])), ["HTTPRoute iris"]);
    // A kind that cannot be seen for a while is not deleted.
    assert!(settle(&mut object, &mut live, &["InferencePool"]).delete.is_empty());
}

/// An upgrade without the rights that came with pools.
#[test]
fn an_operator_without_a_right_serves_the_model_and_says_which() {
    for kind in ["InferencePool", "HTTPRoute", "ServiceAccount", "RoleBinding"] {
        let (mut object, mut live) = (model(pooled()), Vec::new());
        let first = settle_without(&mut object, &mut live, &[], &[kind]);
        let made = applied(&first);
        assert!(made.contains(&"Service iris".to_owned()), "{made:?}");
        // A pool needs no route, but a picker.
        assert_eq!(made.contains(&"InferencePool iris".to_owned()), kind == "HTTPRoute", "{made:?}");
        let (status, why, message) = routed(object.status.as_ref()).expect("it is told");
        assert_eq!((status.as_str(), why.as_str()), ("False", "Forbidden"));
        assert!(message.contains(kind) && message.contains("berth operator manifests"), "{message}");
        // What was there before the right was taken stays as it is.
        settle(&mut object, &mut live, &[]);
        settle(&mut object, &mut live, &[]);
        let before = live.clone();
        let after = settle_without(&mut object, &mut live, &[], &[kind]);
        assert!(after.apply.is_empty() && after.delete.is_empty() && live == before);
        // With the right, all is as if it had never been missing.
        settle(&mut object, &mut live, &[]);
        assert_eq!(reason(&object), "PickerNotReady");
    }
}

#[test]
fn a_pool_that_is_not_wanted_goes_and_the_pods_stay() {
    let (mut object, mut live) = (model(pooled()), Vec::new());
    settle(&mut object, &mut live, &[]);
    settle(&mut object, &mut live, &[]);
    let template = find(&mut live, "Deployment iris")["spec"]["template"].clone();
    let mut foreign = json!({ "kind": "HTTPRoute", "metadata": { "name": "other", "ownerReferences": [] } });
    foreign["spec"] = json!({});
    live.push(foreign);
    object.spec.inference_pool = None;
    object.metadata.generation = Some(2);
    let decision = settle(&mut object, &mut live, &[]);
    assert_eq!(decision.delete.iter().map(identity).collect::<Vec<_>>(), ["InferencePool iris", "HTTPRoute iris"]);
    assert_eq!(applied(&decision), ["Deployment iris"], "the record among its annotations is that of the newest spec");
    assert_eq!(find(&mut live, "Deployment iris")["spec"]["template"], template);
    assert_eq!(routed(object.status.as_ref()), None);
    // What is left of the picker goes with its pool, by Kubernetes itself.
    let rest = settle(&mut object, &mut live, &[]);
    assert!(rest.apply.is_empty() && rest.delete.is_empty());

    // A pool that is made anew waits for that.
    object.spec.inference_pool = model(pooled()).spec.inference_pool;
    object.metadata.generation = Some(3);
    settle(&mut object, &mut live, &[]);
    assert!(settle(&mut object, &mut live, &[]).apply.is_empty());
    live.retain(|one| !identity(one).ends_with("iris-picker"));
    assert_eq!(settle(&mut object, &mut live, &[]).apply.len(), 4);
}

#[test]
fn pools_of_others_are_left_alone() {
    let foreign = json!({ "kind": "InferencePool", "metadata": { "name": "iris", "uid": "u", "ownerReferences": [] } });
    let (mut object, mut live) = (model(pooled()), vec![foreign]);
    assert!(settle(&mut object, &mut live, &[]).apply.is_empty());
    let ready = object.status.as_ref().and_then(|status| status.condition("Ready")).expect("it is told");
    assert_eq!(ready.reason, "NameTaken");
}

#[test]
fn pods_are_asked_where_the_executor_is_or_where_they_listen_themselves() {
    for (executor, port) in [
        (json!(null), 29001),
        (json!({ "enabled": false }), 8080),
        (json!({ "ports": [{ "name": "http", "direct": true }] }), 8080),
    ] {
        let mut spec = pooled();
        spec["executor"] = executor;
        let (mut object, mut live) = (model(spec), Vec::new());
        settle(&mut object, &mut live, &[]);
        assert_eq!(find(&mut live, "InferencePool iris")["spec"]["targetPorts"][0]["number"], port);
    }
}

#[test]
fn contradictions_in_a_pool_are_told() {
    let cases = [
        ("/port", json!(null), "spec.inferencePool.port: name the port of the container"),
        ("/port", json!("grpc"), "spec.inferencePool.port: the container has no port grpc, but http"),
        ("/gateway", json!(null), "spec.inferencePool.hostnames: they are those of a route"),
    ];
    for (place, value, expected) in cases {
        let mut spec = pooled();
        *spec["inferencePool"].pointer_mut(place).expect("the place") = value;
        let mut object = model(spec);
        assert!(settle(&mut object, &mut Vec::new(), &[]).apply.is_empty());
        let ready = object.status.as_ref().and_then(|status| status.condition("Ready")).expect("it is told");
        assert!(ready.reason == "Invalid" && ready.message.starts_with(expected), "{}", ready.message);
    }
    let mut long = model(pooled());
    long.metadata.name = Some("a".repeat(57));
    settle(&mut long, &mut Vec::new(), &[]);
    let ready = long.status.as_ref().and_then(|status| status.condition("Ready")).expect("it is told");
    assert!(ready.message.ends_with("use at most 56 characters"), "{}", ready.message);
    // Where it is taken out of an applied object, an old API server leaves an empty one behind.
    let mut spec = least();
    spec["inferencePool"] = json!({});
    assert_eq!(model(spec).spec.inference_pool, None);
}

#[test]
fn the_top_tells_of_the_way() {
    let mut top = clops(pooled());
    let mut child = clops_deployment(&top, None, None, NOW).apply[0].clone();
    let (mut object, mut live) = (model(pooled()), Vec::new());
    settle(&mut object, &mut live, &["InferencePool"]);
    child["metadata"]["generation"] = json!(1);
    child["status"] = serde_json::to_value(&object.status).expect("JSON");
    top.status = clops_deployment(&top, Some(&child), None, NOW).status;
    assert_eq!(routed(top.status.as_ref()), routed(object.status.as_ref()));
    assert!(clops_deployment(&top, Some(&child), None, NOW).is_empty());
}
