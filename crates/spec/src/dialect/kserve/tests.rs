use serde_json::{Value, json};

use crate::{
    DeploymentName,
    manifest::{ManifestDeployment, ParseContext, parse},
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
        (
            format!("{{canaryTrafficPercent: 10, {model}}}"),
            "spec.predictor.canaryTrafficPercent",
            "an Alias with weights",
        ),
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
    assert!(errors[0].contains("docs/runtimes.md"), "{errors:#?}");
}
