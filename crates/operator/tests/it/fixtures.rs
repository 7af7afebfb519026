//! Objects as an API server holds them.

use berth_operator::api::{CLOpsDeployment, ModelDeployment};
use serde_json::{Value, json};

/// A `ModelDeployment` with this spec.
pub(crate) fn model(spec: Value) -> ModelDeployment {
    let metadata = json!({ "name": "iris", "namespace": "shop", "uid": "uid-of-iris", "generation": 1 });
    serde_json::from_value(
        json!({ "apiVersion": "berth.dev/v1", "kind": "ModelDeployment", "metadata": metadata, "spec": spec }),
    )
    .expect("a ModelDeployment")
}

/// A `CLOpsDeployment` whose model has this spec.
pub(crate) fn clops(spec: Value) -> CLOpsDeployment {
    let metadata = json!({ "name": "iris", "namespace": "shop", "uid": "uid-of-top", "generation": 1 });
    serde_json::from_value(json!({ "apiVersion": "berth.dev/v1", "kind": "CLOpsDeployment", "metadata": metadata, "spec": { "model": spec } }))
        .expect("a CLOpsDeployment")
}

/// The least that a model has.
pub(crate) fn least() -> Value {
    json!({ "container": { "image": "registry.example/iris:1", "ports": [{ "name": "http", "port": 8080 }] } })
}

/// A model that says everything.
pub(crate) fn full() -> Value {
    json!({
        "container": {
            "image": "registry.example/iris:1",
            "imagePullPolicy": "IfNotPresent",
            "command": ["python"],
            "args": ["-m", "serve"],
            "env": [{ "name": "THREADS", "value": "2" }],
            "envFrom": [{ "configMapRef": { "name": "settings" } }],
            "ports": [{ "name": "http", "port": 8080, "servicePort": 80 }, { "name": "grpc", "port": 8081 }],
            "resources": { "requests": { "cpu": "500m", "memory": "1Gi" }, "limits": { "memory": "2Gi" } },
            "readinessProbe": { "httpGet": { "path": "/ready", "port": "http" } },
            "livenessProbe": { "httpGet": { "path": "/live", "port": "http" } },
            "startupProbe": { "httpGet": { "path": "/live", "port": "http" }, "failureThreshold": 60 },
            "securityContext": { "runAsNonRoot": true },
        },
        "parameters": [
            { "name": "weights", "uri": "s3://models/iris/1/", "mountPath": "/models", "credentialsSecret": "store",
              "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" },
            { "name": "vocabulary", "uri": "https://example.com/words.txt", "mountPath": "/words" },
        ],
        "replicas": 3,
        "pod": {
            "serviceAccountName": "iris",
            "imagePullSecrets": [{ "name": "pull" }],
            "nodeSelector": { "disk": "fast" },
            "tolerations": [{ "key": "gpu", "operator": "Exists" }],
            "labels": { "team": "flowers" },
            "annotations": { "note": "kept" },
            "terminationGracePeriodSeconds": 60,
        },
    })
}

/// A model that an autoscaler scales, with all settings that came after those of [`full`].
pub(crate) fn scaled() -> Value {
    json!({
        "container": {
            "image": "registry.example/iris:1",
            "ports": [{ "name": "http", "port": 8080 }],
            "resources": { "requests": { "cpu": "500m" } },
        },
        "parameters": [
            { "name": "weights", "uri": "s3://models/iris/1/", "mountPath": "/models", "resources": { "limits": { "memory": "1Gi" } } },
            { "name": "vocabulary", "uri": "https://example.com/words.txt", "mountPath": "/words" },
        ],
        "autoscaling": {
            "minReplicas": 2,
            "maxReplicas": 9,
            "cpuUtilization": 60,
            "metrics": [{ "type": "Pods", "pods": { "metric": { "name": "in_flight" }, "target": { "type": "AverageValue", "averageValue": "8" } } }],
            "behavior": { "scaleDown": { "stabilizationWindowSeconds": 600 } },
        },
        "pod": {
            "securityContext": { "fsGroup": 65532, "runAsNonRoot": true },
            "affinity": { "podAntiAffinity": {} },
            "topologySpreadConstraints": [
                { "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule" },
            ],
            "priorityClassName": "serving",
        },
    })
}

/// A model whose executor has settings.
pub(crate) fn executor() -> Value {
    json!({
        "container": {
            "image": "registry.example/iris:1",
            "ports": [{ "name": "http", "port": 8080 }, { "name": "raw", "port": 9901 }],
            "readinessProbe": { "httpGet": { "path": "/ready", "port": 8080 } },
        },
        "replicas": 1,
        "executor": {
            "image": "registry.example/executor:3",
            "secrets": ["queue"],
            "ports": [
                { "name": "raw", "direct": true },
                { "name": "http", "settings": {
                    "timeout": "10s", "maxInFlight": 8, "maxBody": "64MiB", "paths": ["/v2/models/{model}/infer"],
                    "async": {
                        "paths": ["/v2/models/{model}/infer"],
                        "queue": { "redis": "redis://redis:6379", "key": "iris", "passwordFile": "/var/run/secrets/berth/queue/password" },
                    },
                } },
            ],
        },
    })
}

/// A model with a pool, and a route to it.
pub(crate) fn pooled() -> Value {
    let mut spec = least();
    spec["inferencePool"] = json!({
        "port": "http",
        "failureMode": "FailClose",
        "maxInFlight": 8,
        "gateway": "infra/public",
        "hostnames": ["iris.example.com"],
    });
    spec
}

/// 200 models of all shapes: each field of [`full`] is there or not, by a pattern that repeats after none of them.
pub(crate) fn shapes() -> Vec<ModelDeployment> {
    (0_usize..200).map(shape).collect()
}

fn shape(number: usize) -> ModelDeployment {
    let mut spec = full();
    let mut left_out = |place: &str, fields: &[&str], step: usize| {
        let part = spec.pointer_mut(place).and_then(Value::as_object_mut).expect("the place");
        for (at, field) in fields.iter().enumerate() {
            if (number / (at % 7 + 1) + at * step).is_multiple_of(3) {
                part.remove(*field);
            }
        }
    };
    let container = [
        "imagePullPolicy",
        "command",
        "args",
        "env",
        "envFrom",
        "resources",
        "readinessProbe",
        "livenessProbe",
        "startupProbe",
        "securityContext",
    ];
    left_out("/container", &container, 5);
    left_out("", &["parameters", "replicas"], 2);
    let pod = [
        "serviceAccountName",
        "imagePullSecrets",
        "nodeSelector",
        "tolerations",
        "labels",
        "annotations",
        "terminationGracePeriodSeconds",
    ];
    left_out("/pod", &pod, 2);
    let mut model = model(spec);
    model.metadata.name = Some(format!("model-{number}"));
    model.metadata.uid = Some(format!("uid-{number}"));
    model
}
