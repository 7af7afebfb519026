//! Objects of KServe and ModelMesh to the hub version.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use super::{
    super::ConversionError, FrameworkModel, IGNORED, KIND, Metadata, ModelFormat, Object, RUNTIME, Resources,
    ServiceModel, ServicePredictor, Storage, Trained, UnknownFields,
};
use crate::{
    card::estimator,
    manifest::{
        Problem,
        raw::{
            Decimal, Format, FormatVersion, InNamespace, Label, Location, Name, RawDeployment, RawEnvironment,
            RawFormat, RawFormatFields, RawGpu, RawModel, RawReplicas, RawResources, RawSelector, RawSpec,
            ReplicaRange, Size, Span, Whole,
        },
        uri::{STORAGE, VOLUME},
    },
};

/// Keys of a predictor that name a framework, as before `model`.
const FRAMEWORKS: [&str; 10] =
    ["sklearn", "xgboost", "lightgbm", "onnx", "pytorch", "tensorflow", "triton", "paddle", "pmml", "huggingface"];

/// Fields without which a client would get something else: path, and the way out.
const REFUSED: [(&str, &str); 5] = [
    ("transformer", "put what it does into a model card (docs/models.md), or run it in front of Berth"),
    ("explainer", "run it beside Berth"),
    (
        "containers",
        "Berth runs models, not images: write a model card (docs/models.md), or a Runtime (docs/runtimes.md)",
    ),
    ("workerSpec", "a model over several nodes is not there"),
    ("canary", CANARIES),
];

/// The way out where several models share the requests of one name.
const CANARIES: &str = "declare an object for each predictor, and an Alias with their shares as weights \
                        (docs/from-kserve.md#canaries)";

/// Endings of models that are one file; everything else in a store is a folder.
const FILES: [&str; 17] = [
    ".joblib", ".pkl", ".pickle", ".json", ".ubj", ".bst", ".txt", ".onnx", ".pt", ".pth", ".keras", ".h5", ".zip",
    ".tar", ".gz", ".tgz", ".pmml",
];

/// Parameters of a storage that have an effect. Others of its entry cannot be changed by a model: credentials go where it says.
const PARAMETERS: [&str; 4] = ["type", "bucket", "container", "name"];

/// The storage of a model that names none.
const DEFAULT: &str = "default";

/// The annotation that says how an InferenceService is run.
const MODE: &str = "serving.kserve.io/deploymentMode";

/// Note that `kubectl apply` keeps for itself.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The hub version of an object.
///
/// # Errors
/// Every field that cannot be carried over and may not be ignored, by its path in the object.
pub fn convert(object: &Object) -> Result<RawDeployment, Vec<ConversionError>> {
    let mut way = Conversion::default();
    let (metadata, spec, kind) = match object {
        Object::InferenceService(service) => {
            let mut others = service.spec.others.clone();
            way.canaries(&others.remove("canary").unwrap_or_default());
            way.others("spec", &others);
            let by_mesh = service.metadata.annotations.get(MODE).is_some_and(|mode| mode == "ModelMesh");
            (&service.metadata, way.service(&service.spec.predictor, by_mesh), "InferenceService")
        }
        Object::Predictor(predictor) => {
            let spec = &predictor.spec;
            way.others("spec", &spec.others);
            let source = Source {
                format: ("spec.modelType", &spec.model_type),
                uri: ("spec.storageUri", spec.storage_uri.as_deref()),
                storage: ("spec.storage", spec.storage.as_ref()),
                path: spec.path.as_deref(),
                runtime: spec.runtime.as_ref().map(|runtime| runtime.name.as_str()),
            };
            let model = way.model(&source);
            (&predictor.metadata, model.map(on_demand), "Predictor")
        }
        Object::TrainedModel(trained) => {
            way.ignored.push("spec.inferenceService".to_owned());
            (&trained.metadata, way.trained(&trained.spec.model), "TrainedModel")
        }
    };
    let name = way.take("metadata.name", Name::read(&metadata.name));
    match (name, spec) {
        (Some(name), Some(spec)) if way.errors.is_empty() => {
            let document = way.named(RawDeployment::of(name, spec), metadata, kind);
            if way.errors.is_empty() { Ok(document) } else { Err(way.errors) }
        }
        _ => Err(way.errors),
    }
}

/// The place of a model, and its format.
struct Source<'a> {
    format: (&'static str, &'a ModelFormat),
    uri: (&'static str, Option<&'a str>),
    storage: (&'static str, Option<&'a Storage>),
    /// Path in the storage, where it is beside it.
    path: Option<&'a str>,
    runtime: Option<&'a str>,
}

/// A conversion under way.
#[derive(Default)]
struct Conversion {
    errors: Vec<ConversionError>,
    ignored: Vec<String>,
    runtime: Option<String>,
}

impl Conversion {
    fn refuse(&mut self, path: impl Into<String>, message: &str, remedy: &str) {
        self.errors.push(ConversionError::new(path, message, remedy));
    }

    /// The value, or nothing and an error.
    fn take<T>(&mut self, path: &str, value: Result<T, Problem>) -> Option<T> {
        value.map_err(|problem| self.errors.push(ConversionError::at(path, problem))).ok()
    }

    /// Refuses or ignores fields that are not in the types.
    fn others(&mut self, at: &str, others: &UnknownFields) {
        for name in others.keys() {
            let path = format!("{at}.{name}");
            match REFUSED.iter().find(|(refused, _)| refused == name) {
                Some((_, remedy)) => self.refuse(path, "this cannot be carried over", remedy),
                None => self.ignored.push(path),
            }
        }
    }

    /// Refuses predictors beside the first, as KServe has them from 0.20 on: a deployment has one model. A single one has the same effect
    /// as a canary update.
    fn canaries(&mut self, canaries: &Value) {
        let listed = canaries.as_array().map(Vec::as_slice);
        let percent = match listed {
            None if canaries.is_null() => return,
            Some([]) => return,
            Some([canary]) => canary.get("trafficPercent").and_then(Value::as_u64).filter(|percent| *percent <= 100),
            _ => None,
        };
        let remedy = percent.map(|percent| {
            format!(
                "write the fields of its predictor into spec.predictor, add canaryTrafficPercent: {percent} there, and \
                 remove canary: the model that serves now keeps the other requests (docs/from-kserve.md#canaries)"
            )
        });
        self.refuse("spec.canary", "a deployment has one model", remedy.as_deref().unwrap_or(CANARIES));
    }

    fn service(&mut self, predictor: &ServicePredictor, by_mesh: bool) -> Option<RawSpec> {
        const AT: &str = "spec.predictor";
        let mut others = predictor.others.clone();
        let old = FRAMEWORKS.iter().find_map(|name| Some((*name, others.remove(*name)?)));
        self.others(AT, &others);
        let (path, model) = match (&predictor.model, old) {
            (Some(model), None) => (format!("{AT}.model"), model.clone()),
            (None, Some((framework, value))) => (format!("{AT}.{framework}"), self.old_model(framework, value)?),
            (Some(_), Some((framework, _))) => {
                self.refuse(format!("{AT}.{framework}"), "there are two models", "leave model, and remove this");
                return None;
            }
            (None, None) => {
                self.refuse(AT, "it has no model", "write model.modelFormat.name and model.storageUri");
                return None;
            }
        };
        self.others(&path, &model.others);
        let source = Source {
            format: ("spec.predictor.model.modelFormat", &model.model_format),
            uri: ("spec.predictor.model.storageUri", model.storage_uri.as_deref()),
            storage: ("spec.predictor.model.storage", model.storage.as_ref()),
            path: None,
            runtime: model.runtime.as_deref(),
        };
        let mut spec = RawSpec::of(self.model(&source)?);
        spec.resources = self.resources(&path, &model.resources);
        self.scaling(&mut spec, predictor, by_mesh);
        if let Some(seconds) = predictor.timeout.filter(|seconds| *seconds > 0) {
            spec.timeout = Span(Duration::from_secs(seconds));
        }
        if let Some(most) = predictor.container_concurrency.filter(|most| *most > 0) {
            spec.concurrency.max = self.take("spec.predictor.containerConcurrency", Whole::new(most));
        }
        if let Some(batcher) = &predictor.batcher {
            let rows = batcher.max_batch_size.map(Whole::new);
            spec.batching.max_rows = rows.and_then(|rows| self.take("spec.predictor.batcher.maxBatchSize", rows));
            spec.batching.max_delay = Span(Duration::from_millis(batcher.max_latency.unwrap_or_default()));
        }
        if let Some(percent) = predictor.canary_traffic_percent {
            spec.rollout.canary = self.take("spec.predictor.canaryTrafficPercent", Whole::new(percent));
        }
        let mut required = BTreeMap::new();
        for (key, value) in &predictor.node_selector {
            if let Some(label) = self.take("spec.predictor.nodeSelector", Label::read(value)) {
                required.insert(key.clone(), label);
            }
        }
        spec.selector = RawSelector { required, ..RawSelector::default() };
        Some(spec)
    }

    /// A model below the name of its framework.
    fn old_model(&mut self, framework: &str, value: Value) -> Option<ServiceModel> {
        let at = format!("spec.predictor.{framework}");
        if !value.is_object() {
            self.refuse(at, "it must be an object", "write storageUri below it");
            return None;
        }
        let read = serde_json::from_value(value).map_err(|error| Problem::new(error.to_string(), ""));
        let FrameworkModel { storage_uri, storage, runtime, resources, mut others } = self.take(&at, read)?;
        // The key says the format, whatever stands below it.
        others.remove("modelFormat");
        let model_format = ModelFormat { name: framework.to_owned(), version: None };
        Some(ServiceModel { model_format, storage_uri, storage, runtime, resources, others })
    }

    fn scaling(&mut self, spec: &mut RawSpec, predictor: &ServicePredictor, by_mesh: bool) {
        let fewest = predictor.min_replicas.unwrap_or(u32::from(!by_mesh));
        let most = predictor.max_replicas.filter(|most| *most > 0);
        let min = self.take("spec.predictor.minReplicas", Whole::new(fewest));
        let max = most.and_then(|most| self.take("spec.predictor.maxReplicas", Whole::new(most)));
        spec.replicas = match (min, max) {
            (Some(min), None) if fewest > 0 => RawReplicas::Exactly(min),
            (min, max) => RawReplicas::Between(ReplicaRange { min, max, regions: BTreeMap::new() }),
        };
        let Some(target) = predictor.scale_target else { return };
        match predictor.scale_metric.as_deref() {
            None | Some("concurrency") => spec.scaling.target_concurrency = Some(Decimal(target)),
            Some("rps") => spec.scaling.target_rate = Some(Decimal(target * 60.0)),
            Some(_) => self.ignored.push("spec.predictor.scaleMetric".to_owned()),
        }
    }

    fn trained(&mut self, model: &Trained) -> Option<RawSpec> {
        let format = ModelFormat { name: model.framework.clone(), version: None };
        let source = Source {
            format: ("spec.model.framework", &format),
            uri: ("spec.model.storageUri", Some(&model.storage_uri)),
            storage: ("spec.model.storageUri", None),
            path: None,
            runtime: None,
        };
        let mut spec = RawSpec::of(self.model(&source)?);
        if let Some(memory) = &model.memory {
            spec.resources.memory = self.size("spec.model.memory", memory);
        }
        Some(spec)
    }

    fn model(&mut self, source: &Source<'_>) -> Option<RawModel> {
        let (at, ModelFormat { name, version }) = source.format;
        let name = self.take(at, Format::read(name))?;
        let version = version.as_deref().map(|version| self.take(at, FormatVersion::read(version)));
        let version = match version {
            Some(None) => return None,
            version => version.flatten(),
        };
        let usual = !estimator::usual_packages(name.0.name()).is_empty();
        let uri = self.location(source)?;
        self.runtime = source.runtime.map(str::to_owned);
        let format = match version {
            None => RawFormat::Text(name),
            version => RawFormat::Fields(RawFormatFields { name, version }),
        };
        Some(RawModel {
            // Where no model server is named, Berth runs the model by itself.
            environment: (usual && source.runtime.is_none()).then(RawEnvironment::default),
            ..RawModel::at(format, uri)
        })
    }

    fn location(&mut self, source: &Source<'_>) -> Option<Location> {
        let (at, written) = match (source.uri, source.storage) {
            ((at, Some(uri)), _) => (at, uri.to_owned()),
            (_, (at, Some(storage))) => (at, self.stored(at, storage, source.path)?),
            ((at, None), (_, None)) => {
                self.refuse(at, "the model has no location", "write storageUri");
                return None;
            }
        };
        self.take(at, Location::read(&as_folder(written)))
    }

    /// The URI of a model in a storage. Where an entry of the Secret `storage-config` is needed the worker looks it up.
    fn stored(&mut self, at: &str, storage: &Storage, beside: Option<&str>) -> Option<String> {
        self.others(at, &storage.others);
        for name in storage.parameters.keys().filter(|name| !PARAMETERS.contains(&name.as_str())) {
            self.ignored.push(format!("{at}.parameters.{name}"));
        }
        let parameter = |name: &str| storage.parameters.get(name);
        let path = storage.path.as_deref().or(beside).unwrap_or_default().trim_start_matches('/');
        let path = path.replace('?', "%3F").replace('#', "%23");
        if let Some(volume) = &storage.persistent_volume_claim {
            return Some(format!("{VOLUME}://{}/{path}", volume.claim_name));
        }
        let bucket = parameter("bucket").or_else(|| parameter("container"));
        let bucket = bucket.or_else(|| storage.s3.as_ref().and_then(|s3| s3.bucket.as_ref()));
        let key = storage.key.as_ref().or_else(|| storage.s3.as_ref().and_then(|s3| s3.secret_key.as_ref()));
        let kind = parameter("type").map(String::as_str);
        match (kind.unwrap_or("s3"), key, bucket, parameter("name")) {
            ("s3", None, Some(bucket), _) => return Some(format!("s3://{bucket}/{path}")),
            ("gcs" | "gs", None, Some(bucket), _) => return Some(format!("gs://{bucket}/{path}")),
            ("pvc", None, _, Some(name)) => return Some(format!("{VOLUME}://{name}/{path}")),
            ("s3" | "gcs" | "gs" | "azure" | "http" | "https" | "pvc", ..) => {}
            (other, ..) => {
                let message = format!("{other:?} is no type of storage: s3, gcs, azure, http and pvc are");
                self.refuse(format!("{at}.parameters.type"), &message, "write storageUri");
                return None;
            }
        }
        let query = [("bucket", bucket.map(String::as_str)), ("type", kind)];
        let query: Vec<String> = query.iter().filter_map(|(key, value)| Some(format!("{key}={}", (*value)?))).collect();
        let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
        Some(format!("{STORAGE}://{}/{path}{query}", key.map_or(DEFAULT, String::as_str)))
    }

    fn resources(&mut self, at: &str, of: &Resources) -> RawResources {
        let find = |name: &str| {
            of.limits.get(name).map(|value| ("limits", value)).or_else(|| Some(("requests", of.requests.get(name)?)))
        };
        let memory =
            find("memory").and_then(|(which, value)| self.size(&format!("{at}.resources.{which}.memory"), value));
        let cpu = find("cpu").and_then(|(which, value)| self.cpu(&format!("{at}.resources.{which}.cpu"), value));
        let gpu = find("nvidia.com/gpu").and_then(|(which, value)| {
            let path = format!("{at}.resources.{which}.nvidia.com/gpu");
            let count = text(value).parse::<u32>().map_err(|_| Problem::new("it is not a number of GPUs", ""));
            let count = self.take(&path, count.and_then(Whole::new))?;
            Some(RawGpu { count, ..RawGpu::default() })
        });
        RawResources { memory, cpu, gpu }
    }

    fn size(&mut self, at: &str, value: &Value) -> Option<Size> {
        self.take(at, Size::read(&text(value)))
    }

    /// `2`, `0.5` or `500m`.
    fn cpu(&mut self, at: &str, value: &Value) -> Option<Decimal> {
        let text = text(value);
        let read = match text.strip_suffix('m') {
            Some(thousandths) => thousandths.parse::<f32>().map(|number| number / 1_000.0),
            None => text.parse::<f32>(),
        };
        let wrong = |_| Problem::new(format!("{text:?} is not a number of processors"), "write 2, 0.5 or 500m");
        self.take(at, read.map_err(wrong)).map(Decimal)
    }

    /// Name, labels and annotations.
    fn named(&mut self, mut document: RawDeployment, metadata: &Metadata, kind: &str) -> RawDeployment {
        let namespace = metadata.namespace.as_deref().map(InNamespace::read);
        document.metadata.namespace = namespace.and_then(|read| self.take("metadata.namespace", read));
        for (key, value) in &metadata.labels {
            if let Some(label) = self.take("metadata.labels", Label::read(value)) {
                document.metadata.labels.insert(key.clone(), label);
            }
        }
        let mut annotations = metadata.annotations.clone();
        annotations.remove(LAST_APPLIED);
        annotations.insert(KIND.to_owned(), kind.to_owned());
        if let Some(runtime) = &self.runtime {
            annotations.insert(RUNTIME.to_owned(), runtime.clone());
        }
        if !self.ignored.is_empty() {
            annotations.insert(IGNORED.to_owned(), self.ignored.join(", "));
        }
        document.metadata.annotations = annotations;
        document
    }
}

/// Models of ModelMesh are loaded by their first request.
fn on_demand(model: RawModel) -> RawSpec {
    let mut spec = RawSpec::of(model);
    let range = ReplicaRange { min: Some(Whole::constant(0)), max: None, regions: BTreeMap::new() };
    spec.replicas = RawReplicas::Between(range);
    spec
}

/// A location in a bucket names a folder unless it ends as a file does.
fn as_folder(uri: String) -> String {
    let in_bucket = ["s3://", "gs://", "az://", "storage://"].iter().any(|scheme| uri.starts_with(scheme));
    let (path, query) = uri.split_once('?').map_or((uri.as_str(), None), |(path, query)| (path, Some(query)));
    let lower = path.to_ascii_lowercase();
    if !in_bucket || path.ends_with('/') || FILES.iter().any(|ending| lower.ends_with(ending)) {
        return uri;
    }
    query.map_or_else(|| format!("{path}/"), |query| format!("{path}/?{query}"))
}

/// A quantity, which YAML may have read as a number.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
