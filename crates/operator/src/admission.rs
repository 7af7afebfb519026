//! Admission: an object is refused when somebody writes it, rather than told in its status later. No I/O.
//!
//! ```text
//! AdmissionReview ─▶ Request ── says it contradicts itself? ──▶ Denied
//!                       └── else: what does the API server say of its Deployment and Service? ──▶ Verdict
//! ```
//! What people wrote is never changed: there is no mutating webhook.

use serde_json::{Value, json};

use crate::{
    api::{
        CLOpsDeployment, ModelDeployment,
        async_api::{self, NOT_WRITTEN},
        model_deployment::{Autoscaling, Container, ExecutorPort},
    },
    brain, conversion, render,
};

/// Something that the API server asks about.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    uid: String,
    object: Value,
    old: Value,
}

/// A body that is no AdmissionReview.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// No JSON, or nested too deep.
    #[error("no JSON: {0}")]
    NoJson(#[from] serde_json::Error),
    /// More values than any object of a person has: each takes far more memory than its text does.
    #[error("the AdmissionReview has more than {MOST_VALUES} values")]
    TooMany,
    /// A field is missing.
    #[error("no AdmissionReview of admission.k8s.io/v1: it has no {0}")]
    Missing(&'static str),
}

/// Most values of a review: objects of etcd's full length have fewer, unless somebody makes them for it.
const MOST_VALUES: usize = 1 << 17;

/// True if a text of JSON has at most so many values, about: each follows a comma or a bracket that opens.
fn has_at_most(text: &[u8], most: usize) -> bool {
    let (mut values, mut in_text, mut is_escaped) = (0, false, false);
    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => in_text = !in_text,
            b',' | b'[' | b'{' if !in_text => values += 1,
            _ => {}
        }
    }
    values <= most
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing speaks against it.
    Allowed,
    /// Nothing speaks against it, but its writer may expect something else.
    Cautioned(Vec<String>),
    /// Something could not be checked.
    Warned(String),
    /// A reason why it cannot work.
    Denied(String),
}

impl Request {
    /// Reads an AdmissionReview.
    ///
    /// # Errors
    /// It is none.
    pub fn read(review: &[u8]) -> Result<Self, Malformed> {
        if !has_at_most(review, MOST_VALUES) {
            return Err(Malformed::TooMany);
        }
        let mut review: Value = serde_json::from_slice(review)?;
        let mut take = |field: &str| review.pointer_mut(field).map(Value::take).unwrap_or_default();
        let Value::String(uid) = take("/request/uid") else { return Err(Malformed::Missing("request.uid")) };
        let (object, old) = (take("/request/object"), take("/request/oldObject"));
        if !object.is_object() {
            return Err(Malformed::Missing("request.object"));
        }
        Ok(Self { uid, object, old })
    }

    /// True if the answer depends on what is in it. A spec that stays is not looked at, so that labels can be changed and
    /// objects deleted; of a derived object, the one that people write was looked at.
    #[must_use]
    pub fn needs_review(&self) -> bool {
        let metadata = &self.object["metadata"];
        let owners = metadata["ownerReferences"].as_array();
        let is_derived = owners.into_iter().flatten().any(|owner| owner["controller"] == true);
        // In the stored version: what an older one cannot say is no part of its spec.
        let stored = |object: &Value| conversion::to_stored(object.clone()).map(|object| object["spec"].clone());
        let stays = match self.is_async_api() {
            true => self.old["spec"] == self.object["spec"],
            false => stored(&self.old).is_ok_and(|old| stored(&self.object) == Ok(old)),
        };
        let stays = self.old.is_object() && stays;
        !(metadata["deletionTimestamp"].is_string() || is_derived || stays)
    }

    /// The model that the object is, or holds.
    ///
    /// # Errors
    /// The object contradicts itself: the field and the remedy.
    pub fn model(&self) -> Result<ModelDeployment, String> {
        if self.is_async_api() {
            return Err(NOT_WRITTEN.to_owned());
        }
        let read = |error: serde_json::Error| error.to_string();
        let object = conversion::to_stored(self.object.clone()).map_err(|error| error.to_string())?;
        let place = if self.is_written_by_people() { "/spec/model/fleet" } else { "/spec/fleet" };
        let of_fleet = |object: &Value| object.pointer(place).is_some_and(Value::is_object);
        let old = self.old.is_object().then(|| conversion::to_stored(self.old.clone()).ok()).flatten();
        if old.is_some_and(|old| of_fleet(&old) != of_fleet(&object)) {
            let field = place.trim_start_matches('/').replace('/', ".");
            return Err(format!(
                "{field}: a model cannot change between pods and a fleet: delete it, and write it anew"
            ));
        }
        if !self.is_written_by_people() {
            let model: ModelDeployment = serde_json::from_value(object).map_err(read)?;
            return brain::check(&model).map(|()| model);
        }
        let top: CLOpsDeployment = serde_json::from_value(object).map_err(read)?;
        let mut model = ModelDeployment::new("", top.spec.model);
        model.metadata = top.metadata;
        brain::check(&model).map_err(brain::as_written).map(|()| model)
    }

    /// Things that the writer of a model may expect otherwise: API servers tell them, and kubectl shows them.
    #[must_use]
    pub fn cautions(&self, model: &ModelDeployment) -> Vec<String> {
        let place = if self.is_written_by_people() { "spec.model" } else { "spec" };
        let spec = &model.spec;
        let mut cautions = Vec::new();
        if spec.autoscaling.is_some() || spec.replicas.is_some_and(|replicas| replicas > 1) {
            let executor = spec.executor.iter().filter(|executor| executor.enabled != Some(false));
            let ports = executor.flat_map(|executor| &executor.ports).filter(|port| keeps_jobs_in_memory(port));
            cautions.extend(ports.map(|port| {
                format!(
                    "{place}.executor.ports[{}].settings.async: without a queue each pod knows its own jobs alone, and \
                     others answer 404: name a queue of Redis or NATS",
                    port.name
                )
            }));
        }
        let probes = probes_without_port(&spec.container);
        cautions.extend(probes.into_iter().map(|message| format!("{place}.container.{message}")));
        cautions.extend(render::files_of_image(model).into_iter().map(|file| {
            format!(
                "{place}.executor: {file} is in no Secret, so the executor's image must have it: list a Secret in secrets, \
                 and name its file, /var/run/secrets/berth/SECRET/KEY"
            )
        }));
        let by_cpu = |scaled: &Autoscaling| scaled.cpu_utilization.is_some() || scaled.metrics.is_empty();
        let resources = spec.container.resources.as_ref();
        let has_cpu = |all: &Value| ["requests", "limits"].iter().any(|part| !all[*part]["cpu"].is_null());
        if spec.autoscaling.as_ref().is_some_and(by_cpu) && !resources.is_some_and(has_cpu) {
            cautions.push(format!(
                "{place}.container.resources: without a request for cpu an autoscaler cannot measure its use"
            ));
        }
        cautions
    }

    /// True for a `CLOpsDeployment`.
    #[must_use]
    pub fn is_written_by_people(&self) -> bool {
        self.object["kind"] == "CLOpsDeployment"
    }

    /// True for an `AsyncAPI`, which has one version.
    fn is_async_api(&self) -> bool {
        self.object["kind"] == async_api::KIND
    }

    /// The AdmissionReview that answers.
    #[must_use]
    pub fn answer(&self, verdict: &Verdict) -> Value {
        let mut response = json!({ "uid": self.uid, "allowed": !matches!(verdict, Verdict::Denied(_)) });
        match verdict {
            Verdict::Allowed => {}
            Verdict::Cautioned(messages) => response["warnings"] = json!(messages),
            Verdict::Warned(message) => response["warnings"] = json!([message]),
            Verdict::Denied(message) => {
                response["status"] = json!({ "code": 422, "reason": "Invalid", "message": message });
            }
        }
        json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response })
    }
}

/// Probes that name a port which the container does not have. API servers take them, and no kubelet can ask there.
fn probes_without_port(container: &Container) -> Vec<String> {
    let names: Vec<&str> = container.ports.iter().map(|port| port.name.as_str()).collect();
    let probes = [
        ("readinessProbe", &container.readiness_probe),
        ("livenessProbe", &container.liveness_probe),
        ("startupProbe", &container.startup_probe),
    ];
    let mut without = Vec::new();
    for (field, probe) in probes {
        for handler in ["httpGet", "tcpSocket"] {
            let port = probe.as_ref().and_then(|probe| probe[handler]["port"].as_str());
            if let Some(port) = port.filter(|port| !names.contains(port)) {
                let names = names.join(", ");
                without.push(format!(
                    "{field}.{handler}.port: the container has no port {port}, but {names}: the probe cannot succeed"
                ));
            }
        }
    }
    without
}

/// True for jobs that go with the pod that took them.
fn keeps_jobs_in_memory(port: &ExecutorPort) -> bool {
    let jobs = port.settings.as_ref().map(|settings| &settings["async"]).filter(|jobs| jobs.is_object());
    port.direct != Some(true) && jobs.is_some_and(|jobs| jobs["queue"].is_null())
}

/// The certificates that a webhook trusts, with `mine` among them; `None` if they need no change. Operators each have their
/// own; those that ended long ago are dropped.
#[must_use]
pub fn bundle(present: &str, mine: &str) -> Option<String> {
    const END: &str = "-----END CERTIFICATE-----";
    /// More than operators run at once. One that is dropped although it runs adds itself again.
    const MOST: usize = 16;

    let mine = mine.trim();
    let mut all: Vec<&str> = present.split_inclusive(END).map(str::trim).filter(|one| one.ends_with(END)).collect();
    if all.contains(&mine) {
        return None;
    }
    all.push(mine);
    let from = all.len().saturating_sub(MOST);
    Some(all[from..].iter().map(|one| format!("{one}\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(kind: &str, spec: Value) -> Value {
        let metadata = json!({ "name": "iris", "namespace": "shop", "uid": "u" });
        let object = json!({ "apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec });
        json!({ "request": { "uid": "r", "operation": "CREATE", "object": object } })
    }

    fn read(review: &Value) -> Result<Request, Malformed> {
        Request::read(review.to_string().as_bytes())
    }

    fn container(ports: Value) -> Value {
        json!({ "container": { "image": "i", "ports": ports } })
    }

    #[test]
    fn contradictions_name_the_field_as_people_wrote_it() {
        let twice = container(json!([{ "name": "a", "port": 1 }, { "name": "a", "port": 2 }]));
        let cases = [
            (review("ModelDeployment", twice.clone()), "spec.container.ports[].name: a comes twice"),
            (review("CLOpsDeployment", json!({ "model": twice })), "spec.model.container.ports[].name: a comes twice"),
        ];
        let fleet = json!({ "model": { "format": "onnx", "uri": "s3://b/m.onnx" }, "replicas": 1 });
        let mut turned = review("CLOpsDeployment", json!({ "model": { "fleet": fleet } }));
        turned["request"]["oldObject"] =
            review("CLOpsDeployment", json!({ "model": container(json!([])) }))["request"]["object"].clone();
        let mut both = container(json!([{ "name": "a", "port": 1 }]));
        both["fleet"] = fleet.clone();
        let cases = cases.into_iter().chain([
            (review("CLOpsDeployment", json!({ "model": { "fleet": { "replicas": 1 } } })), "spec.model.fleet.model"),
            (review("ModelDeployment", both), "spec.fleet: a model of a fleet has no pods of its own"),
            (review("ModelDeployment", json!({})), "spec.container: it is missing"),
            (turned, "spec.model.fleet: a model cannot change between pods and a fleet"),
        ]);
        for (review, expected) in cases {
            let request = read(&review).expect("a request");
            assert!(request.needs_review());
            let said = request.model().expect_err("a contradiction");
            assert!(said.starts_with(expected), "{said}");
        }
        let fine = review("CLOpsDeployment", json!({ "model": container(json!([{ "name": "a", "port": 1 }])) }));
        let model = read(&fine).expect("a request").model().expect("fine");
        assert_eq!((model.metadata.name.as_deref(), model.metadata.uid.as_deref()), (Some("iris"), Some("u")));
    }

    #[test]
    fn what_may_be_expected_otherwise_is_told_to_its_writer() {
        let of = |more: Value| {
            let mut model = container(json!([{ "name": "http", "port": 1 }]));
            more.as_object().expect("fields").iter().for_each(|(name, value)| model[name] = value.clone());
            let request = read(&review("CLOpsDeployment", json!({ "model": model }))).expect("a request");
            let model = request.model().expect("fine");
            let told = request.cautions(&model);
            let answer = request.answer(&Verdict::Cautioned(told.clone()));
            assert_eq!(answer["response"], json!({ "uid": "r", "allowed": true, "warnings": told }));
            told
        };
        let jobs = |queue: Value| {
            let settings = json!({ "async": { "paths": ["/a"], "queue": queue } });
            json!([{ "name": "http", "settings": settings }])
        };
        let redis = json!({ "redis": "redis://redis:6379", "key": "iris" });
        for fine in [
            json!({ "replicas": 1, "executor": { "ports": jobs(Value::Null) } }),
            json!({ "executor": { "ports": jobs(Value::Null) } }),
            json!({ "replicas": 2, "executor": { "ports": jobs(redis) } }),
            json!({ "replicas": 2, "executor": { "enabled": false, "ports": jobs(Value::Null) } }),
            json!({ "autoscaling": { "maxReplicas": 3, "metrics": [{ "type": "Pods" }] } }),
            json!({ "executor": {
                "secrets": ["keys"],
                "access": { "tokens": "/var/run/secrets/berth/keys/tokens.json" },
                "ports": [{ "name": "http", "settings": { "log": { "to": { "file": "/dev/stdout" } } } }],
            } }),
        ] {
            assert_eq!(of(fine.clone()), Vec::<String>::new(), "{fine}");
        }
        let told = of(json!({ "autoscaling": { "maxReplicas": 3 }, "executor": { "ports": jobs(Value::Null) } }));
        assert!(told[0].starts_with("spec.model.executor.ports[http].settings.async: without a queue"), "{told:?}");
        assert!(told[1].starts_with("spec.model.container.resources: without a request for cpu"), "{told:?}");
        assert_eq!(told.len(), 2);
        let told = of(json!({ "executor": { "access": { "tokens": "/etc/tokens.json" } } }));
        assert!(told[0].starts_with("spec.model.executor: /etc/tokens.json is in no Secret"), "{told:?}");
        assert_eq!(told.len(), 1);
        let mut probed = container(json!([{ "name": "http", "port": 1 }]))["container"].clone();
        probed["readinessProbe"] = json!({ "httpGet": { "port": "http" } });
        probed["livenessProbe"] = json!({ "tcpSocket": { "port": "htpp" } });
        let told = of(json!({ "container": probed }));
        let expected = "spec.model.container.livenessProbe.tcpSocket.port: the container has no port htpp, but http";
        assert!(told.len() == 1 && told[0].starts_with(expected), "{told:?}");
    }

    #[test]
    fn what_does_not_change_the_spec_is_let_through() {
        let mut same = review("ModelDeployment", container(json!([])));
        same["request"]["oldObject"] = same["request"]["object"].clone();
        let mut going = review("ModelDeployment", container(json!([])));
        going["request"]["object"]["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let mut derived = review("ModelDeployment", container(json!([])));
        derived["request"]["object"]["metadata"]["ownerReferences"] = json!([{ "controller": true }]);
        for review in [same, going, derived] {
            assert!(!read(&review).expect("a request").needs_review());
        }
    }

    #[test]
    fn an_async_api_is_not_written_by_people() {
        let mut written = review("AsyncAPI", json!({ "model": "iris", "port": "http" }));
        let request = read(&written).expect("a request");
        assert!(request.needs_review());
        assert_eq!(request.model().map(drop), Err(NOT_WRITTEN.to_owned()));
        // One that was written while no operator could be asked can be labelled and deleted.
        written["request"]["oldObject"] = written["request"]["object"].clone();
        assert!(!read(&written).expect("a request").needs_review());
        written["request"]["object"]["spec"]["port"] = json!("grpc");
        assert!(read(&written).expect("a request").needs_review());
        written["request"]["object"]["metadata"]["ownerReferences"] = json!([{ "controller": true }]);
        assert!(!read(&written).expect("a request").needs_review(), "the operator writes it");
    }

    #[test]
    fn answers_have_the_form_that_the_api_server_reads() {
        let request = read(&review("ModelDeployment", json!({}))).expect("a request");
        let denied = request.answer(&Verdict::Denied("no".to_owned()));
        assert_eq!(denied["response"]["status"], json!({ "code": 422, "reason": "Invalid", "message": "no" }));
        assert_eq!((&denied["response"]["uid"], &denied["response"]["allowed"]), (&json!("r"), &json!(false)));
        let warned = request.answer(&Verdict::Warned("late".to_owned()));
        assert_eq!(warned["response"], json!({ "uid": "r", "allowed": true, "warnings": ["late"] }));
        for wrong in [json!(null), json!({ "request": { "uid": "r" } }), json!({ "request": { "object": {} } })] {
            assert!(read(&wrong).is_err());
        }
    }

    #[test]
    fn what_takes_far_more_memory_than_its_text_is_refused() {
        let of = |spec: &str| format!(r#"{{"request":{{"uid":"r","object":{{"spec":{spec}}}}}}}"#);
        let many = |value: &str, count: usize| of(&format!("[{}]", vec![value; count].join(",")));
        // Text that looks like values is none.
        let text = format!("\"{}\\\"{}\"", "[{,".repeat(MOST_VALUES), ",".repeat(MOST_VALUES));
        for fine in [of(&text), many("1", MOST_VALUES / 2), many("[]", MOST_VALUES / 4)] {
            assert!(Request::read(fine.as_bytes()).is_ok());
        }
        for wrong in [many("1", MOST_VALUES + 1), many("{}", MOST_VALUES), many("[[]]", MOST_VALUES / 2)] {
            assert!(matches!(Request::read(wrong.as_bytes()), Err(Malformed::TooMany)));
        }
        let deep = of(&("[".repeat(1_000) + &"]".repeat(1_000)));
        assert!(matches!(Request::read(deep.as_bytes()), Err(Malformed::NoJson(_))));
    }

    #[test]
    fn a_bundle_has_each_certificate_once_and_not_for_ever() {
        let one = |number: usize| format!("-----BEGIN CERTIFICATE-----\n{number}\n-----END CERTIFICATE-----\n");
        let first = bundle("", &one(0)).expect("a change");
        assert_eq!(first, one(0));
        assert_eq!(bundle(&first, &one(0)), None);
        assert_eq!(bundle(&first, &one(1)), Some(one(0) + &one(1)));
        let many = (0..40).fold(String::new(), |all, number| bundle(&all, &one(number)).expect("a change"));
        assert_eq!(many, (24..40).map(one).collect::<String>());
    }
}
