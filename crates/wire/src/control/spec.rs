//! Typed manifests to and from JSON.
//!
//! ```text
//! v1::Deployment ──manifest()──▶ JSON ──spec::manifest::from_value──▶ checked, stored as written
//! JSON as written ──typed()──▶ v1::Spec
//! ```
//! Nothing is checked here: `spec::manifest` is the only judge, and it sees a typed manifest as the same JSON that
//! somebody else would have written. Reading is lenient: what is not of the expected kind is left unset, and the exact
//! words are in `Deployment.spec_json` beside it.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::v1;
use crate::api::API_VERSION;

/// A typed deployment as the manifest that one would have written. What the server fills in is left out.
#[must_use]
pub fn manifest(deployment: &v1::Deployment) -> Value {
    let metadata = deployment.metadata.clone().unwrap_or_default();
    let mut meta = Map::new();
    meta.insert("name".into(), metadata.name.into());
    put_map(&mut meta, "labels", &metadata.labels);
    put_map(&mut meta, "annotations", &metadata.annotations);
    if !metadata.resource_version.is_empty() {
        meta.insert("resourceVersion".into(), metadata.resource_version.into());
    }
    let spec = deployment.spec.as_ref().map_or(Value::Null, spec_json);
    json!({ "apiVersion": API_VERSION, "kind": "ModelDeployment", "metadata": meta, "spec": spec })
}

fn spec_json(spec: &v1::Spec) -> Value {
    let mut out = Map::new();
    put_object(&mut out, "model", spec.model.as_ref(), model_json);
    put_object(&mut out, "replicas", spec.replicas.as_ref(), replicas_json);
    put(&mut out, "idleAfter", spec.idle_after.clone());
    put(&mut out, "priority", spec.priority);
    put_object(&mut out, "resources", spec.resources.as_ref(), |resources, to| {
        put(to, "memory", resources.memory.clone());
        put(to, "cpu", resources.cpu);
        put_object(to, "gpu", resources.gpu.as_ref(), |gpu, to| {
            put(to, "count", gpu.count);
            put(to, "kind", gpu.kind.clone());
            put(to, "memory", gpu.memory.clone());
        });
    });
    put_object(&mut out, "selector", spec.selector.as_ref(), |selector, to| {
        put_map(to, "required", &selector.required);
        put_map(to, "preferred", &selector.preferred);
    });
    put_object(&mut out, "placement", spec.placement.as_ref(), |placement, to| {
        put(to, "spread", placement.spread.clone());
    });
    put(&mut out, "pinned", spec.pinned);
    put_object(&mut out, "scaling", spec.scaling.as_ref(), |scaling, to| {
        put(to, "targetRate", scaling.target_rate);
        put(to, "targetConcurrency", scaling.target_concurrency);
        put(to, "secondCopy", scaling.second_copy.clone());
    });
    put(&mut out, "idempotent", spec.idempotent);
    put_object(&mut out, "rollout", spec.rollout.as_ref(), |rollout, to| {
        put(to, "strategy", rollout.strategy.clone());
        put(to, "whenFull", rollout.when_full.clone());
        put(to, "drainTimeout", rollout.drain_timeout.clone());
        put(to, "deadline", rollout.deadline.clone());
    });
    if let Some(how) = spec.warmup.as_ref().and_then(|warmup| warmup.how.as_ref()) {
        out.insert("warmup".into(), warmup_json(how));
    }
    put(&mut out, "timeout", spec.timeout.clone());
    put_object(&mut out, "concurrency", spec.concurrency.as_ref(), |concurrency, to| {
        put(to, "max", concurrency.max);
        put(to, "queue", concurrency.queue);
    });
    put_object(&mut out, "batching", spec.batching.as_ref(), |batching, to| {
        put(to, "maxRows", batching.max_rows);
        put(to, "maxDelay", batching.max_delay.clone());
    });
    put_object(&mut out, "runtime", spec.runtime.as_ref(), |runtime, to| {
        put(to, "executionProvider", runtime.execution_provider.clone());
        put(to, "threads", runtime.threads);
    });
    Value::Object(out)
}

fn model_json(model: &v1::ModelSource, to: &mut Map<String, Value>) {
    put(to, "format", some_text(&model.format));
    put(to, "uri", some_text(&model.uri));
    put(to, "sha256", model.sha256.clone());
    put(to, "version", model.version.clone());
    put(to, "type", model.r#type.clone());
    for (field, tensors) in [("inputs", &model.inputs), ("outputs", &model.outputs)] {
        if !tensors.is_empty() {
            let tensors: Vec<Value> = tensors
                .iter()
                .map(|tensor| json!({ "name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape }))
                .collect();
            to.insert(field.into(), tensors.into());
        }
    }
}

fn replicas_json(replicas: &v1::Replicas, to: &mut Map<String, Value>) {
    // With regions, 0 says nothing: their sum is meant.
    put(to, "min", (replicas.min > 0 || replicas.regions.is_empty()).then_some(replicas.min));
    put(to, "max", replicas.max);
    if !replicas.regions.is_empty() {
        let region = |(name, region): (&String, &v1::RegionReplicas)| {
            let mut bounds = Map::new();
            put(&mut bounds, "min", Some(region.min));
            put(&mut bounds, "max", region.max);
            (name.clone(), Value::Object(bounds))
        };
        to.insert("regions".into(), replicas.regions.iter().map(region).collect());
    }
}

fn warmup_json(how: &v1::warmup::How) -> Value {
    match how {
        v1::warmup::How::Mode(mode) => Value::String(mode.clone()),
        // A text that is not JSON stays a text, which the manifest's checks refuse with a place and a remedy.
        v1::warmup::How::RequestJson(text) => {
            serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone()))
        }
    }
}

/// What was declared, as it was written, in types.
#[must_use]
pub fn typed(spec: &Value) -> v1::Spec {
    v1::Spec {
        model: spec.get("model").map(model_of),
        replicas: spec.get("replicas").and_then(replicas_of),
        idle_after: text(spec.get("idleAfter")),
        priority: number(spec.get("priority")),
        resources: spec.get("resources").map(|v| v1::Resources {
            memory: text(v.get("memory")),
            cpu: v.get("cpu").and_then(Value::as_f64),
            gpu: v.get("gpu").map(|gpu| v1::GpuNeed {
                count: number(gpu.get("count")),
                kind: text(gpu.get("kind")),
                memory: text(gpu.get("memory")),
            }),
        }),
        selector: spec.get("selector").map(|v| v1::Selector {
            required: labels(v.get("required")).into_iter().chain(labels(v.get("matchLabels"))).collect(),
            preferred: labels(v.get("preferred")),
        }),
        placement: spec.get("placement").map(|v| v1::Placement { spread: text(v.get("spread")) }),
        pinned: spec.get("pinned").and_then(Value::as_bool),
        scaling: spec.get("scaling").map(|v| v1::Scaling {
            target_rate: v.get("targetRate").and_then(Value::as_f64),
            target_concurrency: v.get("targetConcurrency").and_then(Value::as_f64),
            second_copy: text(v.get("secondCopy")),
        }),
        idempotent: spec.get("idempotent").and_then(Value::as_bool),
        rollout: spec.get("rollout").map(|v| v1::Rollout {
            strategy: text(v.get("strategy")),
            when_full: text(v.get("whenFull")),
            drain_timeout: text(v.get("drainTimeout")),
            deadline: text(v.get("deadline")),
        }),
        warmup: spec.get("warmup").map(warmup_of),
        timeout: text(spec.get("timeout")),
        concurrency: spec
            .get("concurrency")
            .map(|v| v1::Concurrency { max: number(v.get("max")), queue: number(v.get("queue")) }),
        batching: spec
            .get("batching")
            .map(|v| v1::Batching { max_rows: number(v.get("maxRows")), max_delay: text(v.get("maxDelay")) }),
        runtime: spec.get("runtime").map(|v| v1::Runtime {
            execution_provider: text(v.get("executionProvider")),
            threads: number(v.get("threads")),
        }),
    }
}

fn model_of(model: &Value) -> v1::ModelSource {
    let tensors = |field: &str| -> Vec<v1::Tensor> {
        let tensors = model.get(field).and_then(Value::as_array);
        tensors.into_iter().flatten().map(tensor_of).collect()
    };
    v1::ModelSource {
        format: text(model.get("format")).unwrap_or_default(),
        uri: text(model.get("uri")).unwrap_or_default(),
        sha256: text(model.get("sha256")),
        version: text(model.get("version")),
        r#type: text(model.get("type")),
        inputs: tensors("inputs"),
        outputs: tensors("outputs"),
    }
}

fn tensor_of(tensor: &Value) -> v1::Tensor {
    let shape = tensor.get("shape").and_then(Value::as_array);
    v1::Tensor {
        name: text(tensor.get("name")).unwrap_or_default(),
        datatype: text(tensor.get("datatype")).unwrap_or_default(),
        shape: shape.into_iter().flatten().map(|dim| dim.as_i64().unwrap_or(-1)).collect(),
    }
}

fn replicas_of(replicas: &Value) -> Option<v1::Replicas> {
    if let Some(count) = number(Some(replicas)) {
        return Some(v1::Replicas { min: count, max: Some(count), regions: HashMap::new() });
    }
    let regions = replicas.get("regions").and_then(Value::as_object);
    let region = |(name, region): (&String, &Value)| Some((name.clone(), region_of(region)?));
    replicas.is_object().then(|| v1::Replicas {
        min: number(replicas.get("min")).unwrap_or(0),
        max: number(replicas.get("max")),
        regions: regions.into_iter().flatten().filter_map(region).collect(),
    })
}

fn region_of(region: &Value) -> Option<v1::RegionReplicas> {
    if let Some(count) = number(Some(region)) {
        return Some(v1::RegionReplicas { min: count, max: Some(count) });
    }
    Some(v1::RegionReplicas { min: number(region.get("min"))?, max: number(region.get("max")) })
}

fn warmup_of(warmup: &Value) -> v1::Warmup {
    let how = match warmup {
        Value::String(mode) => v1::warmup::How::Mode(mode.clone()),
        request => v1::warmup::How::RequestJson(request.to_string()),
    };
    v1::Warmup { how: Some(how) }
}

/// A text, or a number or truth value as it is written: `memory: 1024` and `memory: 512MiB` are both sizes.
fn text(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        _ => None,
    }
}

fn some_text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn number(value: Option<&Value>) -> Option<u32> {
    value?.as_u64().and_then(|number| u32::try_from(number).ok())
}

fn labels(value: Option<&Value>) -> HashMap<String, String> {
    let labels = value.and_then(Value::as_object);
    labels.into_iter().flatten().filter_map(|(key, value)| Some((key.clone(), text(Some(value))?))).collect()
}

fn put(to: &mut Map<String, Value>, field: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        to.insert(field.to_owned(), value.into());
    }
}

fn put_map(to: &mut Map<String, Value>, field: &str, map: &HashMap<String, String>) {
    if !map.is_empty() {
        to.insert(field.to_owned(), map.iter().map(|(k, v)| (k.clone(), Value::from(v.clone()))).collect());
    }
}

fn put_object<T>(
    to: &mut Map<String, Value>,
    field: &str,
    message: Option<&T>,
    fill: impl FnOnce(&T, &mut Map<String, Value>),
) {
    if let Some(message) = message {
        let mut object = Map::new();
        fill(message, &mut object);
        to.insert(field.to_owned(), object.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Value {
        json!({
            "model": {
                "format": "onnx", "uri": "s3://models/iris.onnx", "sha256": "ab", "version": "3", "type": "vision",
                "inputs": [{ "name": "x", "datatype": "FP32", "shape": [-1, 4] }],
                "outputs": [{ "name": "y", "datatype": "INT64", "shape": [-1] }],
            },
            "replicas": { "min": 2, "max": 5, "regions": { "eu": { "min": 2, "max": 3 }, "us": { "min": 0, "max": 2 } } },
            "idleAfter": "10m",
            "priority": 70,
            "resources": {
                "memory": "512MiB", "cpu": 0.5, "gpu": { "count": 2, "kind": "nvidia-l4", "memory": "24GiB" },
            },
            "placement": { "spread": "worker" },
            "pinned": true,
            "scaling": { "targetRate": 600.0, "targetConcurrency": 2.5, "secondCopy": "never" },
            "idempotent": false,
            "selector": { "required": { "zone": "a" }, "preferred": { "disk": "fast" } },
            "rollout": { "strategy": "BlueGreen", "whenFull": "recreate", "drainTimeout": "5s", "deadline": "10m" },
            "warmup": { "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4] }] },
            "timeout": "30s",
            "concurrency": { "max": 8, "queue": 100 },
            "batching": { "maxRows": 32, "maxDelay": "2ms" },
            "runtime": { "executionProvider": "cpu", "threads": 2 },
        })
    }

    /// A manifest that says everything, in its long form, comes back as it was.
    #[test]
    fn nothing_is_lost_on_the_way() {
        let spec = typed(&full());
        let metadata = v1::Metadata { name: "iris".into(), resource_version: "7".into(), ..Default::default() };
        let back = manifest(&v1::Deployment { metadata: Some(metadata), spec: Some(spec), ..Default::default() });
        assert_eq!(back["spec"], full());
        assert_eq!(back["metadata"], json!({ "name": "iris", "resourceVersion": "7" }));
    }

    #[test]
    fn short_forms_mean_the_same() {
        let spec = typed(&json!({
            "model": { "format": "onnx", "uri": "file:///m.onnx" },
            "replicas": 2,
            "warmup": "off",
            "resources": { "memory": 1024 },
            "selector": { "matchLabels": { "gpu": true }, "required": { "zone": "a" } },
        }));
        let back = spec_json(&spec);
        assert_eq!(back["replicas"], json!({ "min": 2, "max": 2 }));
        assert_eq!(back["warmup"], json!("off"));
        assert_eq!(back["resources"], json!({ "memory": "1024" }));
        assert_eq!(back["selector"], json!({ "required": { "zone": "a", "gpu": "true" } }));
        assert_eq!(spec_json(&v1::Spec::default()), json!({}));
        let by_region = json!({ "model": {}, "replicas": { "regions": { "eu": 2 } } });
        let back = spec_json(&typed(&by_region));
        assert_eq!(back["replicas"], json!({ "regions": { "eu": { "min": 2, "max": 2 } } }));
    }

    /// Whatever the JSON is, reading it does not fail.
    #[test]
    fn reading_is_lenient() {
        for odd in [json!(null), json!([]), json!({ "model": 1, "replicas": "many", "selector": [], "warmup": [] })] {
            let _ = typed(&odd);
        }
    }
}
