//! Tables of what objects declare and what their statuses say.

use berth_control::source::Prune;
use berth_operator::fleet::join_errors;
use berth_spec::{
    DeploymentName, Generation, Namespace, RevisionId,
    manifest::{ParseContext, from_value},
    status::{Condition, Phase, Status, Truth},
};
use kube::{core::DynamicObject, runtime::watcher::Event};
use serde_json::{Value, json};

use crate::{
    kind::Kind,
    objects::{Content, Effect, Key, KindState, Objects, WatchUpdate},
    plan::{Declared, Plan, Reason, Refusal, convert, plan},
    routes::{Gateway, Ingress, ingress, missing, route},
    state::{DeploymentState, ModelState, Observed, Transition, state},
    status::{Facts, patch},
};

fn object(kind: Kind, name: &str, spec: &Value, status: &Value) -> DynamicObject {
    let namespace = (kind != Kind::ClusterServingRuntime).then_some("team");
    let written = json!({
        "apiVersion": kind.api_version(), "kind": kind.name(),
        "metadata": { "name": name, "namespace": namespace, "generation": 1 },
        "spec": spec, "status": status,
    });
    serde_json::from_value(written).expect("an object")
}

fn service(runtime: Option<&str>) -> Value {
    let model = json!({ "modelFormat": { "name": "onnx" }, "storageUri": "s3://b/m.onnx", "runtime": runtime });
    json!({ "predictor": { "model": model } })
}

/// All kinds listed, with these objects.
fn listed(given: &[(Kind, &str, Value)]) -> Objects {
    let mut objects = Objects::of(Kind::followed(false));
    for kind in Kind::followed(false) {
        objects.on(kind, WatchUpdate::Event(Event::Init));
        for (_, name, spec) in given.iter().filter(|(of, ..)| *of == kind) {
            objects.on(kind, WatchUpdate::Event(Event::InitApply(object(kind, name, spec, &Value::Null))));
        }
        objects.on(kind, WatchUpdate::Event(Event::InitDone));
    }
    objects
}

fn key(kind: Kind, name: &str) -> Key {
    Key { kind, namespace: "team".to_owned(), name: name.to_owned() }
}

fn reason(plan: &Plan, kind: Kind, name: &str) -> Option<Reason> {
    plan.objects[&key(kind, name)].refused.as_ref().map(|refusal| refusal.reason)
}

#[test]
fn the_first_object_of_a_name_is_declared_and_what_is_refused_stays_as_it_was() {
    let predictor = json!({ "modelType": { "name": "onnx" }, "storageUri": "s3://b/p.onnx" });
    let planned = plan(&listed(&[
        (Kind::InferenceService, "a", service(None)),
        (Kind::Predictor, "a", predictor.clone()),
        (Kind::Predictor, "p", predictor),
        (Kind::InferenceService, "bad", json!({ "predictor": { "containers": [] } })),
        (Kind::Model, "pods", json!({ "container": { "image": "x", "ports": [] } })),
    ]));
    let names: Vec<&str> = planned.snapshot.deployments.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["team/a", "team/p"]);
    assert_eq!(reason(&planned, Kind::Predictor, "a"), Some(Reason::NameTaken));
    assert_eq!(reason(&planned, Kind::InferenceService, "bad"), Some(Reason::Invalid));
    assert!(!planned.objects.contains_key(&key(Kind::Model, "pods")), "it has pods of its own");
    let kept = [DeploymentName::new("team/bad").expect("a name")].into();
    assert_eq!(planned.snapshot.prune, Prune::Except(kept));
}

#[test]
fn an_object_of_kserve_says_the_same_as_in_a_file() {
    let predictor = json!({
        "modelType": { "name": "onnx" },
        "path": "p.onnx",
        "storage": { "s3": { "bucket": "b" } },
    });
    let trained = json!({
        "inferenceService": "s",
        "model": { "framework": "sklearn", "storageUri": "s3://b/m", "memory": "1Gi" },
    });
    let refused = json!({ "predictor": { "containers": [] }, "transformer": {} });
    for (kind, spec) in [
        (Kind::InferenceService, service(Some("r"))),
        (Kind::Predictor, predictor),
        (Kind::TrainedModel, trained),
        (Kind::InferenceService, refused),
        (Kind::InferenceService, json!({ "predictor": { "model": { "modelFormat": {} } } })),
        (Kind::Predictor, Value::Null),
        (Kind::TrainedModel, json!({ "inferenceService": 1 })),
    ] {
        let mut given = object(kind, "a", &spec, &Value::Null);
        given.metadata.labels = Some([("tier".to_owned(), "gold".to_owned())].into());
        let notes = ["note", "kubectl.kubernetes.io/last-applied-configuration"];
        given.metadata.annotations = Some(notes.map(|name| (name.to_owned(), "x".to_owned())).into());
        let file = json!({
            "apiVersion": kind.api_version(), "kind": kind.name(), "spec": spec,
            "metadata":
                { "name": "a", "namespace": "team", "labels": { "tier": "gold" }, "annotations": { "note": "x" } },
        });
        let context = ParseContext { namespace: Namespace::new("team").expect("a name"), ..ParseContext::default() };
        let of_file = from_value(&file, &context).map(Box::new).map_err(join_errors);
        assert_eq!(convert(kind, &given), Content::Model(of_file), "{kind:?}");
    }
}

#[test]
fn a_runtime_that_an_object_names_must_be_able_to() {
    let runtime =
        |disabled: bool, format: &str| json!({ "disabled": disabled, "supportedModelFormats": [{ "name": format }] });
    let given = vec![
        (Kind::ClusterServingRuntime, "global", runtime(false, "onnx")),
        (Kind::ServingRuntime, "own", runtime(false, "onnx")),
        (Kind::ServingRuntime, "off", runtime(true, "onnx")),
        (Kind::ServingRuntime, "other", runtime(false, "sklearn")),
    ];
    for (named, wanted) in [
        ("global", None),
        ("own", None),
        ("off", Some(Reason::RuntimeDisabled)),
        ("other", Some(Reason::NoSupportingRuntime)),
        ("none", Some(Reason::RuntimeNotRecognized)),
    ] {
        let mut given = given.clone();
        given.push((Kind::InferenceService, "a", service(Some(named))));
        assert_eq!(reason(&plan(&listed(&given)), Kind::InferenceService, "a"), wanted, "{named}");
    }
    let alone = listed(&[(Kind::InferenceService, "a", service(Some("none")))]);
    assert_eq!(reason(&plan(&alone), Kind::InferenceService, "a"), None, "nobody uses runtimes here");
    let mut blind = listed(&[
        (Kind::InferenceService, "a", service(Some("none"))),
        (Kind::ServingRuntime, "own", runtime(false, "onnx")),
    ]);
    blind.on(Kind::ClusterServingRuntime, WatchUpdate::Failing("forbidden".to_owned()));
    assert_eq!(reason(&plan(&blind), Kind::InferenceService, "a"), None, "it may be among those that cannot be read");
}

#[test]
fn what_cannot_be_seen_is_not_deleted() {
    let mut objects = listed(&[(Kind::InferenceService, "a", service(None))]);
    objects.on(Kind::InferenceService, WatchUpdate::Failing("away".to_owned()));
    let planned = plan(&objects);
    assert_eq!((planned.snapshot.prune, planned.snapshot.deployments.len()), (Prune::None, 1));
    // A list that is cut off names only some.
    objects.on(Kind::InferenceService, WatchUpdate::Event(Event::Init));
    assert_eq!(plan(&objects).snapshot.deployments.len(), 1);
    objects.on(Kind::InferenceService, WatchUpdate::Event(Event::InitDone));
    let planned = plan(&objects);
    assert_eq!((planned.snapshot.prune, planned.snapshot.deployments.len()), (Prune::Except([].into()), 0));
    assert_eq!(objects.known(Kind::InferenceService), &KindState::Listed);
}

#[test]
fn a_written_status_declares_nothing() {
    let mut objects = listed(&[(Kind::InferenceService, "a", service(None))]);
    let mut change = |spec: &Value, status: &Value| {
        objects.on(
            Kind::InferenceService,
            WatchUpdate::Event(Event::Apply(object(Kind::InferenceService, "a", spec, status))),
        )
    };
    let of = key(Kind::InferenceService, "a");
    assert_eq!(change(&service(None), &json!({ "url": "x" })), [(of.clone(), Effect::Shows)]);
    assert_eq!(change(&service(None), &json!({ "url": "x" })), []);
    assert_eq!(change(&service(Some("r")), &json!({ "url": "x" })), [(of, Effect::Declares)]);
}

fn revision(letter: &str) -> RevisionId {
    format!("team/a@{}", letter.repeat(12)).parse().expect("a revision")
}

fn status(phase: Phase, ready: u32, available: Truth, reason: &str, serving: Option<&str>) -> Status {
    let condition =
        Condition { kind: "Available", status: available, reason: reason.to_owned(), message: "so it is".to_owned() };
    Status {
        phase,
        observed_generation: Generation(1),
        conditions: vec![condition],
        desired: 1,
        ready,
        wanted: revision("a"),
        serving: serving.map(revision),
        replicas: Vec::new(),
        failures: Vec::new(),
        last_used: None,
    }
}

fn declared(refused: Option<Reason>) -> Declared {
    Declared {
        name: DeploymentName::new("team/a").ok(),
        generation: 3,
        spec: 7,
        runtime: None,
        refused: refused.map(|reason| Refusal { reason, message: "no".to_owned() }),
    }
}

fn seen(status: Status) -> Observed {
    Observed { spec: 7, current: true, status: Some(status) }
}

#[test]
fn states_have_the_words_of_kserve() {
    let word = |state: &DeploymentState| (state.ready, state.active, state.target, state.transition);
    let ready = status(Phase::Available, 1, Truth::True, "Ready", Some("a"));
    for (declared, observed, wanted) in [
        (declared(None), None, (false, ModelState::Unknown, ModelState::Pending, Transition::InProgress)),
        (
            declared(None),
            Some(seen(ready.clone())),
            (true, ModelState::Loaded, ModelState::Loaded, Transition::UpToDate),
        ),
        (
            declared(None),
            Some(Observed { spec: 6, ..seen(ready.clone()) }),
            (true, ModelState::Loaded, ModelState::Pending, Transition::InProgress),
        ),
        (
            declared(None),
            Some(seen(status(Phase::Degraded, 1, Truth::True, "Ready", Some("b")))),
            (true, ModelState::Loaded, ModelState::Pending, Transition::InProgress),
        ),
        (
            declared(None),
            Some(seen(status(Phase::ScaledDown, 0, Truth::Unknown, "OnDemand", None))),
            (true, ModelState::Standby, ModelState::Standby, Transition::UpToDate),
        ),
        (
            declared(None),
            Some(seen(status(Phase::Failed, 0, Truth::False, "LoadFailed", None))),
            (false, ModelState::FailedToLoad, ModelState::FailedToLoad, Transition::BlockedByFailedLoad),
        ),
        (
            declared(None),
            Some(seen(status(Phase::ScheduleFailed, 0, Truth::False, "NoCapacity", None))),
            (false, ModelState::Pending, ModelState::Pending, Transition::InProgress),
        ),
        (
            declared(Some(Reason::Invalid)),
            Some(seen(ready)),
            (true, ModelState::Loaded, ModelState::FailedToLoad, Transition::InvalidSpec),
        ),
    ] {
        assert_eq!(word(&state(&declared, observed.as_ref())), wanted, "{declared:?} {observed:?}");
    }
}

#[test]
fn a_canary_is_as_declared_and_tells_its_shares() {
    let of = key(Kind::InferenceService, "a");
    let mut spec = service(None);
    spec["predictor"]["canaryTrafficPercent"] = json!(10);
    let mut objects = Objects::of(Kind::followed(false));
    objects.on(of.kind, WatchUpdate::Event(Event::Apply(object(of.kind, "a", &spec, &Value::Null))));
    let shares = json!([
        { "revisionName": revision("a").to_string(), "latestRevision": true, "percent": 10 },
        { "revisionName": revision("b").to_string(), "latestRevision": false, "percent": 90, "tag": "prev" },
    ]);
    for (reason, target, transition, traffic, latest) in [
        ("SurgeWaits", ModelState::Pending, "InProgress", Value::Null, "b"),
        ("Canary", ModelState::Loaded, "UpToDate", shares, "a"),
    ] {
        let mut both = status(Phase::Available, 2, Truth::True, "Ready", Some("b"));
        let (kind, message) = ("Progressing", "so it is".to_owned());
        both.conditions.push(Condition { kind, status: Truth::False, reason: reason.to_owned(), message });
        let (declared, observed) = (declared(None), seen(both));
        let state = state(&declared, Some(&observed));
        assert_eq!((state.ready, state.target), (true, target), "{reason}");
        let facts = Facts {
            key: &of,
            object: objects.get(&of).expect("it is there"),
            declared: &declared,
            state: &state,
            url: None,
            ingress: &Ingress::Ready,
            now: "2026-01-01T00:00:00Z",
        };
        let told = patch(&facts).expect("nothing was told before");
        assert_eq!(told["modelStatus"]["transitionStatus"], transition, "{reason}");
        let predictor = &told["components"]["predictor"];
        let (ready, rolled_out) = (&predictor["latestReadyRevision"], &predictor["latestRolledoutRevision"]);
        assert_eq!((&predictor["traffic"], ready), (&traffic, &json!(revision(latest).to_string())), "{reason}");
        assert_eq!(rolled_out, &json!(revision("b").to_string()), "{reason}");
    }
}

/// The status of an object after the patch of it, as an API server merges it.
fn merged(present: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *present = patch.clone();
        return;
    };
    if !present.is_object() {
        *present = json!({});
    }
    for (name, value) in fields {
        match value {
            Value::Null => drop(present.as_object_mut().expect("an object").remove(name)),
            value => merged(&mut present[name.as_str()], value),
        }
    }
}

#[test]
fn a_status_is_written_once_and_cleans_up_what_was_true() {
    let of_kserve = json!({ "components": { "predictor": { "traffic": [{ "percent": 100 }] } }, "conditions": [{ "type": "Ready", "status": "False" }] });
    let predictor = json!({ "modelType": { "name": "onnx" }, "storageUri": "s3://b/p.onnx" });
    let trained = json!({ "inferenceService": "s", "model": { "framework": "onnx", "storageUri": "s3://b/m.onnx" } });
    for (kind, spec) in [
        (Kind::InferenceService, service(None)),
        (Kind::Predictor, predictor),
        (Kind::TrainedModel, trained),
        (Kind::Model, json!({ "fleet": { "model": { "format": "onnx", "uri": "s3://b/m.onnx" } } })),
    ] {
        let mut present = of_kserve.clone();
        let write = |declared: Declared, now: &str, present: &mut Value| {
            let mut objects = Objects::of(Kind::followed(false));
            objects.on(kind, WatchUpdate::Event(Event::Apply(object(kind, "a", &spec, present))));
            let ready = seen(status(Phase::Available, 1, Truth::True, "Ready", Some("a")));
            let (state, key) = (state(&declared, Some(&ready)), key(kind, "a"));
            let object = objects.get(&key).expect("it is there");
            let facts = Facts {
                key: &key,
                object,
                declared: &declared,
                state: &state,
                url: Some("http://h"),
                ingress: &Ingress::Ready,
                now,
            };
            let patch = patch(&facts);
            patch.inspect(|patch| merged(present, patch)).is_some()
        };
        assert!(write(declared(Some(Reason::Invalid)), "2026-01-01T00:00:00Z", &mut present), "{kind:?}");
        assert!(!write(declared(Some(Reason::Invalid)), "2026-01-02T00:00:00Z", &mut present), "{kind:?}: {present}");
        // A TrainedModel has no field for a refusal while the model before it serves.
        let told = kind != Kind::TrainedModel;
        assert_eq!(write(declared(None), "2026-01-03T00:00:00Z", &mut present), told, "{kind:?}");
        assert!(!write(declared(None), "2026-01-04T00:00:00Z", &mut present), "{kind:?}: {present}");
        let text = present.to_string();
        assert!(!text.contains("lastFailureInfo") && !text.contains("\"no\""), "{kind:?}: {text}");
        if kind == Kind::InferenceService {
            assert!(!text.contains("traffic"), "{text}");
            assert_eq!(present["conditions"][2]["lastTransitionTime"], "2026-01-01T00:00:00Z", "{text}");
            assert_eq!(present["url"], "http://h/namespaces/team");
        }
    }
}

#[test]
fn a_status_that_somebody_wrote_meanwhile_is_not_taken_for_ours() {
    let (kind, of) = (Kind::InferenceService, key(Kind::InferenceService, "a"));
    let (first, ours, theirs) = (json!({ "n": 1 }), json!({ "n": 2 }), json!({ "n": 3 }));
    for (told, expected) in [(&first, &ours), (&ours, &ours), (&theirs, &theirs)] {
        let mut objects = Objects::of(Kind::followed(false));
        objects.on(kind, WatchUpdate::Event(Event::Apply(object(kind, "a", &service(None), &first))));
        // While ours is on its way, the watch tells.
        objects.on(kind, WatchUpdate::Event(Event::Apply(object(kind, "a", &service(None), told))));
        objects.wrote(&of, &first, ours.clone());
        assert_eq!(&objects.get(&of).expect("there").status, expected, "{told}");
    }
}

#[test]
fn a_route_names_the_namespace_and_is_ready_once_a_gateway_takes_it() {
    let gateway = Gateway {
        gateway: ("infra".to_owned(), "public".to_owned()),
        service: ("berth".to_owned(), "fleet".to_owned(), 8080),
        pool: None,
    };
    let of = key(Kind::InferenceService, "a");
    let mut objects = Objects::of(Kind::followed(true));
    objects.on(of.kind, WatchUpdate::Event(Event::Apply(object(of.kind, "a", &service(None), &Value::Null))));
    let wanted = route(&gateway, "https://{name}-{namespace}.example.com:8443", &of, objects.get(&of).expect("there"));
    let wanted = wanted.expect("a route");
    assert_eq!(wanted["spec"]["hostnames"], json!(["a-team.example.com"]));
    assert_eq!(wanted["spec"]["rules"][0]["filters"][0]["requestHeaderModifier"]["set"][0]["value"], "team");
    assert!(missing(&objects, &of, &wanted));
    let backend = |route: &Value| route["spec"]["rules"][0]["backendRefs"][0].clone();
    assert_eq!(backend(&wanted), json!({ "namespace": "berth", "name": "fleet", "port": 8080 }));
    let pooled = Gateway { pool: Some(("berth".to_owned(), "pool".to_owned())), ..gateway.clone() };
    let to_pool = route(&pooled, "https://{name}.example.com", &of, objects.get(&of).expect("there")).expect("a route");
    let place = json!({ "group": "inference.networking.k8s.io", "kind": "InferencePool", "namespace": "berth", "name": "pool" });
    assert_eq!(backend(&to_pool), place);
    for (news, reason, message) in [
        (WatchUpdate::Absent, "NotInstalled", "install the Gateway API"),
        (WatchUpdate::Failing("no right to HTTPRoutes".to_owned()), "RouteUnreadable", "no right to HTTPRoutes"),
        (WatchUpdate::Event(Event::InitDone), "RouteMissing", "not there yet"),
    ] {
        objects.on(Kind::Route, news);
        let Ingress::Waiting(word, sentence) = ingress(&objects, &of) else { panic!("there is no route") };
        assert!(word == reason && sentence.contains(message), "{word}: {sentence}");
    }
    for (conditions, state) in [
        (json!([]), Some("RoutePending")),
        (json!([{ "type": "Accepted", "status": "True" }]), None),
        (
            json!([{ "type": "Accepted", "status": "True" }, { "type": "ResolvedRefs", "status": "False", "message": "no grant" }]),
            Some("RouteRefused"),
        ),
    ] {
        let mut live = wanted.clone();
        live["status"] = json!({ "parents": [{ "conditions": conditions }] });
        let live: DynamicObject = serde_json::from_value(live).expect("an object");
        objects.on(Kind::Route, WatchUpdate::Event(Event::Apply(live)));
        assert!(!missing(&objects, &of, &wanted));
        let found = match ingress(&objects, &of) {
            Ingress::Ready => None,
            Ingress::Waiting(reason, _) => Some(reason),
        };
        assert_eq!(found, state);
    }
}
