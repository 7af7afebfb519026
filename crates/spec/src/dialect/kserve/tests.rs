use proptest::{prelude::*, sample::select};
use serde_json::{Value, json};

use super::{Metadata, Object, convert};
use crate::{
    DeploymentName,
    deployment::Percent,
    manifest::{ManifestDeployment, ParseContext, from_value, parse, raw::RawDeployment},
};

fn read(yaml: &str) -> Result<ManifestDeployment, Vec<String>> {
    let context = ParseContext { file: "a.yaml".to_owned(), ..ParseContext::default() };
    let mut found =
        parse(yaml, &context).map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    assert_eq!(found.len(), 1);
    Ok(found.remove(0))
}

fn service(predictor: &str, mode: &str) -> String {
    format!(
        "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata:\n  name: iris\n  namespace: team\n  \
         annotations: {{serving.kserve.io/deploymentMode: {mode}, kubectl.kubernetes.io/last-applied-configuration: x}}\n\
         spec:\n  predictor: {predictor}\n"
    )
}

#[test]
fn an_inference_service_becomes_a_deployment() {
    let predictor = "{minReplicas: 1, maxReplicas: 3, scaleMetric: rps, scaleTarget: 2, containerConcurrency: 4, timeout: 9, \
                     serviceAccountName: sa, batcher: {maxBatchSize: 8, maxLatency: 5}, nodeSelector: {disk: ssd}, \
                     model: {modelFormat: {name: sklearn, version: '1'}, storageUri: 'gs://b/iris', protocolVersion: v2, \
                     resources: {requests: {cpu: 100m, memory: 1Gi}, limits: {memory: 2Gi, nvidia.com/gpu: 1}}}}";
    let read = read(&service(predictor, "Serverless")).expect("right");
    assert_eq!(read.name.as_str(), "team/iris");
    let annotation = |name: &str| read.annotations.get(name).map(String::as_str);
    assert_eq!(annotation("kserve.berth.dev/kind"), Some("InferenceService"));
    assert_eq!(
        annotation("kserve.berth.dev/ignored"),
        Some("spec.predictor.serviceAccountName, spec.predictor.model.protocolVersion")
    );
    assert_eq!(annotation("kubectl.kubernetes.io/last-applied-configuration"), None);
    let expected = json!({
        "model": {"format": {"name": "sklearn", "version": "1"}, "uri": "gs://b/iris/", "environment": {"python": "3.11", "packages": []}},
        "replicas": {"min": 1, "max": 3},
        "resources": {"memory": "2GiB", "cpu": 0.1, "gpu": {"count": 1}},
        "selector": {"required": {"disk": "ssd"}},
        "scaling": {"targetRate": 120},
        "timeout": "9s",
        "concurrency": {"max": 4},
        "batching": {"maxRows": 8, "maxDelay": "5ms"},
    });
    // Written as people would: numbers may have another form.
    let same =
        |left: &Value, right: &Value| left.as_f64().is_some() && left.as_f64() == right.as_f64() || left == right;
    let spec = &read.raw["spec"];
    for (field, value) in expected.as_object().expect("an object") {
        match value.as_object() {
            Some(parts) => parts.iter().for_each(|(part, value)| {
                assert!(same(&spec[field][part], value), "{field}.{part}: {}", spec[field][part]);
            }),
            None => assert!(same(&spec[field], value), "{field}: {}", spec[field]),
        }
    }
}

#[test]
fn a_share_of_the_traffic_is_a_canary() {
    let model = "model: {modelFormat: {name: onnx}, storageUri: 's3://b/m.onnx'}";
    for (percent, share) in [("0", Some(0)), ("10", Some(10)), ("100", None), ("null", None)] {
        let read = read(&service(&format!("{{canaryTrafficPercent: {percent}, {model}}}"), "Serverless"));
        let read = read.expect(percent);
        assert_eq!(read.spec.rollout.canary.map(Percent::get), share, "{percent}");
        assert!(!read.annotations.contains_key("kserve.berth.dev/ignored"), "{percent}");
    }
}

#[test]
fn what_is_kept_is_read_again() {
    for text in [
        service("{sklearn: {storageUri: 's3://b/model.joblib'}}", "RawDeployment"),
        service("{model: {modelFormat: {name: onnx}, storageUri: 'file:///m.onnx'}}", "ModelMesh"),
    ] {
        let first = read(&text).expect("right");
        let again = crate::manifest::from_value(&first.raw, &ParseContext::default()).expect("the hub reads it");
        assert_eq!((again.spec, again.annotations), (first.spec, first.annotations));
    }
}

#[test]
fn objects_of_modelmesh_are_loaded_by_their_first_request() {
    let head = "apiVersion: serving.kserve.io/v1alpha1\nmetadata: {name: m}\n";
    let predictor = "kind: Predictor\nspec: {modelType: {name: onnx}, path: mnist/m.onnx, runtime: {name: triton-2.x}, \
                     storage: {s3: {secretKey: k, bucket: models}}}\n";
    let trained = "kind: TrainedModel\nspec: {inferenceService: s, model: {framework: onnx, storageUri: 's3://models/m', memory: 1Gi}}\n";
    let claim = "kind: Predictor\nspec: {modelType: {name: onnx}, path: a/m, storage: {persistentVolumeClaim: {claimName: models}}}\n";
    let mesh = service(
        "{model: {modelFormat: {name: onnx}, storage: {path: a/m.onnx, parameters: {bucket: b}}}}",
        "ModelMesh",
    );
    for (text, uri, range) in [
        (format!("{head}{predictor}"), "storage://k/mnist/m.onnx?bucket=models", true),
        (format!("{head}{trained}"), "s3://models/m/", false),
        (mesh, "s3://b/a/m.onnx", true),
        (format!("{head}{claim}"), "pvc://models/a/m", true),
    ] {
        let read = read(&text).expect("right");
        assert_eq!(&*read.spec.model.uri, uri);
        assert_eq!(read.spec.replicas.min == 0, range, "{text}");
    }
    let read = read(&format!("{head}{predictor}")).expect("right");
    assert_eq!(read.annotations["kserve.berth.dev/runtime"], "triton-2.x");
    assert_eq!(read.name, DeploymentName::new("m").expect("a name"));
}

#[test]
fn a_storage_of_a_secret_is_named_and_looked_up_by_the_worker() {
    for (storage, uri) in [
        ("{key: localMinIO, path: sklearn/svm}", "storage://localMinIO/sklearn/svm/"),
        (
            "{key: k, path: a/m.json, parameters: {type: azure, container: c}}",
            "storage://k/a/m.json?bucket=c&type=azure",
        ),
        ("{key: k, path: 'a/what?'}", "storage://k/a/what%3F/"),
        ("{path: a/m, parameters: {type: http}}", "storage://default/a/m/?type=http"),
        ("{path: a/m, parameters: {bucket: b}}", "s3://b/a/m/"),
        ("{path: a/m, parameters: {type: gcs, bucket: b}}", "gs://b/a/m/"),
        ("{path: a/m, parameters: {type: pvc, name: claim}}", "pvc://claim/a/m"),
    ] {
        let read =
            read(&service(&format!("{{model: {{modelFormat: {{name: onnx}}, storage: {storage}}}}}"), "ModelMesh"));
        assert_eq!(&*read.expect(storage).spec.model.uri, uri);
    }
    let elsewhere =
        "{model: {modelFormat: {name: onnx}, storage: {key: k, path: m, parameters: {endpoint_url: 'http://x'}}}}";
    let read = read(&service(elsewhere, "ModelMesh")).expect("right");
    let ignored = read.annotations.get("kserve.berth.dev/ignored").map(String::as_str);
    assert_eq!(ignored, Some("spec.predictor.model.storage.parameters.endpoint_url"));
}

#[test]
fn what_cannot_be_carried_over_is_told_at_its_place() {
    let model = "model: {modelFormat: {name: onnx}, storageUri: 's3://b/m.onnx'}";
    for (predictor, path, says) in [
        (format!("{{canaryTrafficPercent: 101, {model}}}"), "spec.predictor.canaryTrafficPercent", "give 0 to 100"),
        (format!("{{canary: [], {model}}}"), "spec.predictor.canary", "an Alias with their shares"),
        ("{containers: [{image: x}]}".to_owned(), "spec.predictor.containers", "models, not images"),
        ("{}".to_owned(), "spec.predictor", "write model.modelFormat.name"),
        (format!("{{{model}, onnx: {{}}}}"), "spec.predictor.onnx", "two models"),
        (
            "{model: {modelFormat: {name: onnx}, storage: {path: m, parameters: {type: nfs}}}}".to_owned(),
            "storage.parameters.type",
            "s3, gcs, azure, http and pvc",
        ),
        ("{model: {modelFormat: {name: onnx}}}".to_owned(), "storageUri", "no location"),
        ("{model: {modelFormat: {name: Up}, storageUri: 'hf://a/b'}}".to_owned(), "modelFormat", ""),
        (format!("{{minReplicas: 5000, {model}}}"), "spec.predictor.minReplicas", "too high"),
        ("{model: {modelFormat: {}}}".to_owned(), "spec", "missing field `name`"),
    ] {
        let errors = read(&service(&predictor, "Serverless")).expect_err(&predictor);
        assert!(errors.iter().any(|error| error.contains(path) && error.contains(says)), "{predictor}: {errors:#?}");
        assert!(errors.iter().all(|error| error.contains("a.yaml:")), "{errors:#?}");
    }
    let other = "apiVersion: serving.kserve.io/v1alpha1\nkind: ServingRuntime\nmetadata: {name: a}\nspec: {}\n";
    let errors = read(other).expect_err("no model");
    assert!(errors[0].contains("berth up --runtime a.yaml"), "{errors:#?}");
}

/// As KServe has them from 0.20 on.
#[test]
fn canaries_in_a_list_are_refused_with_what_to_write_instead() {
    let model = "model: {modelFormat: {name: onnx}, storageUri: 's3://b/m.onnx'}";
    let canary = |percent: &str| format!("{{predictor: {{name: v2, {model}}}, trafficPercent: {percent}}}");
    let aliased = "declare an object for each predictor, and an Alias with their shares as weights";
    for (canaries, remedy) in [
        (format!("[{}]", canary("10")), "into spec.predictor, add canaryTrafficPercent: 10 there, and remove canary"),
        (format!("[{}]", canary("0")), "add canaryTrafficPercent: 0 there"),
        (format!("[{}, {}]", canary("10"), canary("0")), aliased),
        (format!("[{}]", canary("101")), aliased),
        ("[{}]".to_owned(), aliased),
        ("5".to_owned(), aliased),
    ] {
        let text = service(&format!("{{{model}}}"), "Standard") + &format!("  canary: {canaries}\n");
        let errors = read(&text).expect_err(&canaries);
        let [error] = errors.as_slice() else { panic!("{canaries}: {errors:#?}") };
        assert!(error.starts_with("a.yaml:") && error.contains("spec.canary: a deployment has one model"), "{error}");
        assert!(error.contains(remedy) && error.ends_with("(docs/from-kserve.md#canaries)"), "{error}");
    }
    for none in ["[]", "null"] {
        let text = service(&format!("{{{model}}}"), "Standard") + &format!("  canary: {none}\n");
        assert!(!read(&text).expect(none).annotations.contains_key("kserve.berth.dev/ignored"), "{none}");
    }
}

#[test]
fn a_framework_as_a_key_says_the_format() {
    for model in ["storageUri: 's3://b/m.json'", "modelFormat: {name: onnx}, storageUri: 's3://b/m.json'"] {
        let read = read(&service(&format!("{{xgboost: {{{model}, protocolVersion: v2}}}}"), "Serverless"));
        let read = read.expect(model);
        assert_eq!(read.raw["spec"]["model"]["format"], "xgboost", "{model}");
        let ignored = read.annotations.get("kserve.berth.dev/ignored").map(String::as_str);
        assert_eq!(ignored, Some("spec.predictor.xgboost.protocolVersion"), "{model}");
    }
    for (model, says) in [("5", "it must be an object"), ("{storageUri: 5}", "invalid type: integer `5`")] {
        let errors = read(&service(&format!("{{xgboost: {model}}}"), "Serverless")).expect_err(model);
        assert!(errors[0].contains("spec.predictor.xgboost: ") && errors[0].contains(says), "{errors:#?}");
    }
}

#[test]
fn an_object_of_a_cluster_that_cannot_be_read_says_the_field() {
    let metadata =
        Metadata { name: "a".to_owned(), namespace: None, labels: Default::default(), annotations: Default::default() };
    for (kind, spec, says) in [
        ("InferenceService", json!({}), "spec: missing field `predictor`; docs/dialects.md lists the fields"),
        ("Predictor", Value::Null, "spec: invalid type: null, expected struct PredictorSpec; docs/dialects.md"),
        ("TrainedModel", json!({"inferenceService": 1}), "spec: invalid type: integer `1`, expected a string; docs/"),
        (
            "ServingRuntime",
            json!({}),
            "kind: \"ServingRuntime\" is not a kind of KServe that Berth reads; it reads Inf",
        ),
    ] {
        let error = Object::read(kind, metadata.clone(), &spec).expect_err(kind).to_string();
        assert!(error.starts_with(says), "{error}");
    }
}

/// Fields of several objects in one.
fn joined<const N: usize>(parts: [Value; N]) -> Value {
    Value::Object(parts.into_iter().filter_map(|part| part.as_object().cloned()).flatten().collect())
}

prop_compose! {
    fn inference_service()(
        name in "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?",
        namespace in proptest::option::of(select(vec!["default", "team"])),
        labels in proptest::collection::btree_map("[a-z]{1,8}", "[a-zA-Z0-9 ._-]{0,12}", 0..3),
        (note, mode) in ("[ -~]{0,20}", select(vec!["ModelMesh", "Serverless"])),
        format in select(vec![
            json!({"name": "onnx"}),
            json!({"name": "sklearn", "version": "1"}),
            json!({"name": "pytorch"}),
        ]),
        place in select(vec![
            json!({"storageUri": "s3://b/m"}),
            json!({"storageUri": "pvc://claim/m", "runtime": "triton"}),
            json!({"storage": {"key": "k", "path": "a/m.json", "parameters": {"bucket": "b", "more": "x"}}}),
        ]),
        resources in select(vec![
            json!({}),
            json!({"resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "2Gi", "nvidia.com/gpu": 1}}}),
            json!({"resources": {"requests": {"cpu": 2, "memory": "512Mi"}}}),
        ]),
        scaling in select(vec![
            json!({}),
            json!({"minReplicas": 0}),
            json!({"minReplicas": 2}),
            json!({"minReplicas": 1, "maxReplicas": 3, "scaleMetric": "rps", "scaleTarget": 2}),
            json!({"maxReplicas": 4, "scaleTarget": 0.5}),
        ]),
        more in select(vec![
            json!({}),
            json!({"timeout": 9, "containerConcurrency": 4}),
            json!({"batcher": {"maxBatchSize": 8, "maxLatency": 5}, "nodeSelector": {"disk": "ssd"}}),
            json!({"serviceAccountName": "sa", "tolerations": [{"key": "a"}]}),
        ]),
    ) -> (Metadata, Value) {
        let annotations = [("note", note.as_str()), ("serving.kserve.io/deploymentMode", mode)];
        let annotations = annotations.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
        let model = joined([place, resources, json!({"modelFormat": format})]);
        let spec = json!({"predictor": joined([scaling, more, json!({"model": model})])});
        (Metadata { name, namespace: namespace.map(str::to_owned), labels, annotations }, spec)
    }
}

proptest! {
    #[test]
    fn the_hub_reads_what_an_inference_service_becomes((metadata, spec) in inference_service()) {
        let context = ParseContext::default();
        let object = Object::read("InferenceService", metadata.clone(), &spec).expect("right");
        let hub = convert(&object).expect("it carries over");
        prop_assert_eq!(RawDeployment::read(&hub.written()), Ok(hub.clone()));
        let typed = ManifestDeployment::of(hub.clone(), &context).expect("the hub takes it");
        prop_assert_eq!(from_value(&hub.written(), &context), Ok(typed.clone()));
        prop_assert_eq!(ManifestDeployment::of_kserve(&object, &context), Ok(typed.clone()));
        let Metadata { name, namespace, labels, annotations } = metadata;
        let file = json!({
            "apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "spec": spec,
            "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations},
        });
        prop_assert_eq!(from_value(&file, &context), Ok(typed), "a file says the same as an object of a cluster");
    }
}
