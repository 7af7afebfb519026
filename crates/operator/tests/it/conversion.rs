//! Laws of conversion: nothing is lost on any way between the versions, and no version gets a field that it has not.

use std::collections::BTreeSet;

use berth_operator::{
    api::spokes::versions,
    conversion::{REMAINDER, Review, convert},
    install::custom_resources,
};
use serde_json::{Map, Value, json};

/// Objects of each kind and version that the laws are held against. `BERTH_CONVERSION_CASES` names another number, 17,000 for 102,000 in all:
/// `BERTH_CONVERSION_CASES=17000 cargo test --release -p berth-operator nothing_is_lost`.
const CASES: u64 = 300;

/// Words that come up often, so that names clash.
const WORDS: [&str; 10] = ["", "a", "http", "weights", "[]", "a.b", "pod", "name", "größe", "berth.dev/newer-fields"];

/// Objects of a schema, more than it allows: no pattern is looked at.
struct Maker(u64);

impl Maker {
    fn number(&mut self, below: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % below
    }

    fn word(&mut self) -> String {
        let at = usize::try_from(self.number(10)).expect("small");
        WORDS[at].to_owned()
    }

    fn any(&mut self, depth: u64) -> Value {
        match self.number(if depth == 0 { 5 } else { 7 }) {
            0 => Value::Null,
            1 => json!(self.number(2) == 0),
            2 => json!(self.number(1 << 20)),
            3 => json!(-1.5),
            4 => json!(self.word()),
            5 => (0..self.number(3)).map(|_| self.any(depth - 1)).collect(),
            _ => Value::Object((0..self.number(3)).map(|_| (self.word(), self.any(depth - 1))).collect()),
        }
    }

    fn of(&mut self, schema: &Value) -> Value {
        if schema["nullable"] == true && self.number(8) == 0 {
            return Value::Null;
        }
        match schema["type"].as_str() {
            Some("object") => self.object(schema),
            Some("array") => (0..self.number(4)).map(|_| self.of(&schema["items"])).collect(),
            Some("integer") => json!(self.number(1 << 16)),
            Some("boolean") => json!(self.number(2) == 0),
            _ => json!(self.word()),
        }
    }

    fn object(&mut self, schema: &Value) -> Value {
        if schema["x-kubernetes-preserve-unknown-fields"] == true {
            return Value::Object((0..self.number(3)).map(|_| (self.word(), self.any(2))).collect());
        }
        if schema["additionalProperties"].is_object() {
            return Value::Object((0..self.number(3)).map(|_| (self.word(), json!(self.word()))).collect());
        }
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut fields = Map::new();
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            if required.contains(&name.as_str()) || self.number(2) == 0 {
                fields.insert(name.clone(), self.of(field));
            }
        }
        Value::Object(fields)
    }

    /// An object of a version, as an API server holds it.
    fn resource(&mut self, kind: &str, version: &str, schema: &Value) -> Value {
        let mut object = json!({
            "apiVersion": format!("berth.dev/{version}"),
            "kind": kind,
            "metadata": { "name": "iris", "namespace": "shop", "uid": "u", "generation": self.number(9) },
            "spec": self.of(&schema["properties"]["spec"]),
        });
        if self.number(2) == 0 {
            object["status"] = self.of(&schema["properties"]["status"]);
        }
        if self.number(3) == 0 {
            object["metadata"]["annotations"] = json!({ "note": self.word() });
        }
        object
    }
}

/// Kinds with their versions' schemas.
fn kinds() -> Vec<(String, Vec<(String, Value)>)> {
    let kinds = custom_resources("berth").into_iter().map(|definition| {
        let versions = definition["spec"]["versions"].as_array().expect("versions").iter().map(|version| {
            let name = version["name"].as_str().expect("a name").to_owned();
            (name, version["schema"]["openAPIV3Schema"].clone())
        });
        (definition["spec"]["names"]["kind"].as_str().expect("a kind").to_owned(), versions.collect())
    });
    kinds.filter(|(_, versions): &(String, Vec<_>)| versions.len() > 1).collect()
}

/// Fields that a schema has not: an API server would drop them.
fn foreign(value: &Value, schema: &Value, path: &str, found: &mut Vec<String>) {
    if schema["x-kubernetes-preserve-unknown-fields"] == true || schema["additionalProperties"].is_object() {
        return;
    }
    for (name, value) in value.as_object().into_iter().flatten() {
        match schema["properties"].get(name) {
            Some(schema) => foreign(value, schema, &format!("{path}.{name}"), found),
            None => found.push(format!("{path}.{name}")),
        }
    }
    for item in value.as_array().into_iter().flatten() {
        foreign(item, &schema["items"], &format!("{path}[]"), found);
    }
}

fn to(object: &Value, version: &str) -> Value {
    convert(object.clone(), &format!("berth.dev/{version}")).unwrap_or_else(|error| panic!("{error}: {object:#}"))
}

#[test]
fn nothing_is_lost_between_versions() {
    let asked = std::env::var_os("BERTH_CONVERSION_CASES");
    let cases = asked.map_or(CASES, |text| text.to_str().and_then(|text| text.parse().ok()).expect("a number"));
    let kinds = kinds();
    assert_eq!(kinds.len(), 2);
    for case in 0..cases {
        let mut maker = Maker(case.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for (kind, versions) in &kinds {
            for (from, schema) in versions {
                let mut object = maker.resource(kind, from, schema);
                match maker.number(8) {
                    // Something of that name that nobody here wrote.
                    0 => object["metadata"]["annotations"] = json!({ REMAINDER: maker.word() }),
                    // A copy of an older version's.
                    1 if from == "v1" => {
                        let older = to(&maker.resource(kind, from, schema), "v1alpha1");
                        if let Some(text) = older["metadata"]["annotations"].get(REMAINDER) {
                            object["metadata"]["annotations"] = json!({ REMAINDER: text });
                        }
                    }
                    _ => {}
                }
                for (version, schema) in versions {
                    let converted = to(&object, version);
                    assert_eq!(to(&converted, from), object, "case {case}, by way of {version}: {converted:#}");
                    let mut found = Vec::new();
                    foreign(&converted["spec"], &schema["properties"]["spec"], "spec", &mut found);
                    assert!(found.is_empty(), "case {case}: {version} has no {found:?}");
                    assert_eq!(converted["status"], object["status"]);
                    for (other, _) in versions {
                        assert_eq!(to(&to(&converted, other), from), object, "case {case}, by {version} and {other}");
                    }
                }
            }
        }
    }
}

#[test]
fn older_versions_take_no_new_fields() {
    fn paths(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            paths(field, &path, found);
            paths(&field["items"], &format!("{path}[]"), found);
            found.insert(path);
        }
    }
    for (kind, versions) in kinds().into_iter().filter(|(kind, _)| kind == "ModelDeployment") {
        for (version, schema) in versions.iter().filter(|(version, _)| version != "v1") {
            let mut found = BTreeSet::new();
            paths(&schema["properties"]["spec"], "", &mut found);
            let path = format!("{}/tests/golden/fields-{version}.txt", env!("CARGO_MANIFEST_DIR"));
            let expected: BTreeSet<String> =
                std::fs::read_to_string(path).expect("the list").lines().map(str::to_owned).collect();
            let (new, gone) = (found.difference(&expected), expected.difference(&found));
            let (new, gone): (Vec<_>, Vec<_>) = (new.collect(), gone.collect());
            assert!(new.is_empty(), "{kind} of {version} was shipped without {new:?}: Spoke::absent names them");
            assert!(gone.is_empty(), "{kind} of {version} was shipped with {gone:?}");
        }
    }
}

/// A model of the stored version whose pods have settings.
fn stored() -> Value {
    json!({
        "apiVersion": "berth.dev/v1", "kind": "ModelDeployment", "metadata": { "name": "iris", "namespace": "shop" },
        "spec": {
            "container": { "image": "i", "ports": [{ "name": "http", "port": 80 }] },
            "pod": { "labels": { "team": "flowers" }, "imagePullSecrets": [{ "name": "pull" }], "annotations": {} },
        },
    })
}

#[test]
fn settings_of_pods_were_flat() {
    let older = to(&stored(), "v1alpha1");
    let expected = json!({
        "container": { "image": "i", "ports": [{ "name": "http", "port": 80 }] },
        "podLabels": { "team": "flowers" }, "podAnnotations": {}, "imagePullSecrets": ["pull"],
    });
    assert_eq!((&older["spec"], &older["metadata"]["annotations"]), (&expected, &Value::Null));
    assert_eq!(to(&stored(), "v1beta1")["spec"]["pod"]["imagePullSecrets"], json!(["pull"]));
}

#[test]
fn a_version_that_is_not_served_is_refused_with_those_that_are() {
    let cases = [
        ("berth.dev/v1", "ModelDeployment", "berth.dev/v2"),
        ("berth.dev/v2", "ModelDeployment", "berth.dev/v1"),
        ("berth.dev/v1", "Deployment", "berth.dev/v1alpha1"),
        ("other.dev/v1", "ModelDeployment", "berth.dev/v1"),
    ];
    for (version, kind, wanted) in cases {
        let error = convert(json!({ "apiVersion": version, "kind": kind }), wanted).expect_err("refused").to_string();
        assert!(error.ends_with(&versions().join(", ")), "{error}");
    }
    let mut both = to(&stored(), "v1alpha1");
    both["spec"]["pod"] = json!({ "labels": {} });
    let error = convert(both, "berth.dev/v1").expect_err("refused").to_string();
    assert!(error.starts_with("spec.pod.labels: "), "{error}");
}

#[test]
fn a_review_is_answered_in_its_order() {
    let second = {
        let mut second = stored();
        second["metadata"]["name"] = json!("rose");
        second
    };
    let review = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "request": { "uid": "r", "desiredAPIVersion": "berth.dev/v1beta1", "objects": [stored(), second] },
    });
    let asked = |review: &Value| {
        let text = review.to_string();
        let (answer, count) = Review::read(text.as_bytes()).expect("a review").answer().expect("an answer");
        (serde_json::from_str::<Value>(&answer).expect("JSON"), count)
    };
    let (answer, count) = asked(&review);
    assert_eq!((&answer["response"]["result"]["status"], count), (&json!("Success"), Some(2)));
    assert_eq!((&answer["response"]["uid"], &answer["apiVersion"]), (&json!("r"), &json!("apiextensions.k8s.io/v1")));
    assert_eq!(answer["response"]["convertedObjects"], json!([to(&stored(), "v1beta1"), to(&second, "v1beta1")]));

    let mut wrong = review;
    wrong["request"]["objects"][1]["kind"] = json!("Pod");
    let (answer, count) = asked(&wrong);
    assert_eq!((&answer["response"]["result"]["status"], count), (&json!("Failure"), None));
    let message = answer["response"]["result"]["message"].as_str().expect("a message");
    assert!(message.starts_with("shop/rose: there is no Pod of berth.dev/v1"), "{message}");
    for text in ["", "{}", "[]", r#"{"apiVersion":"v1","request":{"uid":"r"}}"#] {
        assert!(Review::read(text.as_bytes()).is_err());
    }
}
