//! From one operator to the next: what changes by itself (nothing), and what somebody can ask for.

use std::collections::BTreeSet;

use berth_operator::{
    api::ModelDeployment,
    brain::{World, model_deployment},
    render::{Error, Record, Rules, SHIPPED},
    upgrade::{ADOPT, plan},
};
use serde_json::{Value, json};

use crate::fixtures::{full, least, model, shapes};

/// The rules of the operator before this one.
const FIRST: Rules = Rules::new(&[shipped]);

/// The rules of an operator after it: another grace period in each pod, another annotation of each Service.
const NEXT: Rules = Rules::new(&[shipped, changed]);

fn shipped(model: &ModelDeployment, record: &Record) -> Result<Vec<Value>, Error> {
    SHIPPED.render(model, record)
}

fn changed(model: &ModelDeployment, record: &Record) -> Result<Vec<Value>, Error> {
    let mut objects = SHIPPED.render(model, &Record { version: 1, ..record.clone() })?;
    objects[0]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(17);
    objects[0]["metadata"]["annotations"]["berth.dev/render"] = json!(serde_json::to_string(record).expect("JSON"));
    objects[1]["metadata"]["annotations"]["example.com/new"] = json!("yes");
    Ok(objects)
}

/// An operator with these rules comes, and works until it has nothing to do. Returns what it applied.
fn operate(model: &mut ModelDeployment, live: &mut Vec<Value>, rules: Rules, image: &str) -> Vec<Value> {
    let mut written = Vec::new();
    loop {
        let (held, installation): (Vec<&Value>, _) = (live.iter().collect(), image.into());
        let world = World {
            live: &held,
            rules,
            installation: &installation,
            absent: &[],
            forbidden: &[],
            trouble: None,
            now: "2026-01-01T00:00:00Z",
        };
        let decision = model_deployment(model, world);
        if decision.is_empty() {
            return written;
        }
        for applied in &decision.apply {
            live.retain(|object| object["kind"] != applied["kind"]);
            live.push(applied.clone());
        }
        if let Some(status) = decision.status {
            model.status = Some(status);
        }
        written.extend(decision.apply);
    }
}

fn template(live: &[Value]) -> String {
    live.iter()
        .find(|object| object["kind"] == "Deployment")
        .map(|one| one["spec"]["template"].to_string())
        .expect("one")
}

#[test]
fn a_next_operator_changes_no_byte_of_200_pod_templates_until_somebody_asks() {
    let mut shapes: Vec<_> = shapes().into_iter().map(|model| (model, Vec::new())).collect();
    let mut templates = BTreeSet::new();
    for (model, live) in &mut shapes {
        operate(model, live, FIRST, "berth:1");
        let before = (template(live), live.clone());
        assert_eq!(operate(model, live, NEXT, "berth:2").len(), 0);
        model.status = None;
        assert_eq!(operate(model, live, NEXT, "berth:2").len(), 0, "the status is lost");
        assert_eq!((template(live), live.clone()), before);
        templates.insert(before.0);
    }
    assert!(templates.len() > 150, "only {} shapes", templates.len());
    let planned = plan(shapes.iter().map(|(model, _)| model), NEXT, &"berth:2".into());
    assert_eq!((planned.changes.len(), planned.unchanged, planned.unknown.len()), (200, 0, 0));
    assert!(planned.changes.iter().all(|change| change.restarts_pods));
    for change in &planned.changes {
        let (model, live) =
            shapes.iter_mut().find(|(model, _)| model.metadata.name.as_ref() == Some(&change.name)).expect("it");
        ask(model, &change.to);
        assert_eq!(operate(model, live, NEXT, "berth:2").len(), 2);
        assert!(template(live).contains("\"terminationGracePeriodSeconds\":17"));
    }
    let after = plan(shapes.iter().map(|(model, _)| model), NEXT, &"berth:2".into());
    assert_eq!((after.changes.len(), after.unchanged), (0, 200));
}

fn ask(model: &mut ModelDeployment, record: &Record) {
    let text = serde_json::to_string(record).expect("JSON");
    model.metadata.annotations.get_or_insert_default().insert(ADOPT.to_owned(), text);
}

#[test]
fn the_plan_names_each_field() {
    let (mut object, mut live) = (model(full()), Vec::new());
    operate(&mut object, &mut live, FIRST, "berth:1");
    let planned = serde_json::to_value(plan([&object], NEXT, &"berth:2".into())).expect("JSON");
    let place = |name: &str| format!("spec.template.spec.initContainers[fetch-{name}].image");
    let image = |name| json!({ "path": place(name), "before": "berth:1", "after": "berth:2" });
    let grace = json!({ "path": "spec.template.spec.terminationGracePeriodSeconds", "before": 60, "after": 17 });
    let note = json!({ "path": "metadata.annotations[example.com/new]", "after": "yes" });
    let expected = json!([
        { "kind": "Deployment", "name": "iris", "fields": [image("weights"), image("vocabulary"), grace] },
        { "kind": "Service", "name": "iris", "fields": [note] },
    ]);
    assert_eq!(planned["changes"][0]["objects"], expected);
    assert_eq!(planned["changes"][0]["from"], json!({ "version": 1, "image": "berth:1", "generation": 1 }));
}

#[test]
fn an_image_that_is_in_no_pod_restarts_none() {
    let (mut object, mut live) = (model(least()), Vec::new());
    operate(&mut object, &mut live, FIRST, "berth:1");
    let planned = plan([&object], FIRST, &"berth:2".into());
    assert!(!planned.changes[0].restarts_pods && planned.changes[0].objects.is_empty());
    assert_eq!(plan([&object], FIRST, &"berth:1".into()).unchanged, 1);
}

#[test]
fn a_request_for_another_spec_or_of_unknown_rules_is_none() {
    let cases = [
        Record { version: 1, ..SHIPPED.record(&"berth:2".into(), 7) },
        Record { version: 3, ..SHIPPED.record(&"berth:2".into(), 1) },
        Record { version: 0, ..SHIPPED.record(&"berth:2".into(), 1) },
    ];
    for asked in cases {
        let (mut object, mut live) = (model(full()), Vec::new());
        operate(&mut object, &mut live, FIRST, "berth:1");
        ask(&mut object, &asked);
        assert_eq!(operate(&mut object, &mut live, NEXT, "berth:2").len(), 0, "{asked:?}");
    }
}

#[test]
fn what_cannot_be_compared_is_named() {
    let unseen = model(least());
    let (mut newer, mut live) = (model(least()), Vec::new());
    operate(&mut newer, &mut live, NEXT, "berth:1");
    let planned = plan([&unseen, &newer], FIRST, &"berth:2".into());
    let reasons: Vec<&str> = planned.unknown.iter().map(|one| one.reason.as_str()).collect();
    assert!(
        reasons[0].starts_with("no operator has rendered its spec") && reasons[1].contains("start the newer operator"),
        "{reasons:?}"
    );
}

#[test]
fn models_of_the_first_rules_get_an_executor_when_somebody_asks() {
    for mut object in shapes() {
        let mut live = Vec::new();
        operate(&mut object, &mut live, FIRST, "berth:1");
        let before = live.clone();
        assert_eq!((operate(&mut object, &mut live, SHIPPED, "berth:2").len(), &live), (0, &before));
        let planned = plan([&object], SHIPPED, &"berth:2".into());
        let change = &planned.changes[0];
        assert!(change.restarts_pods && change.objects.iter().all(|one| one.kind != "Service"), "{change:?}");
        ask(&mut object, &change.to);
        let written = operate(&mut object, &mut live, SHIPPED, "berth:2");
        let kinds: Vec<&str> = written.iter().filter_map(|one| one["kind"].as_str()).collect();
        assert_eq!(kinds, ["ConfigMap", "Deployment"], "the Service stays: it leads to old pods and new ones");
    }
}
