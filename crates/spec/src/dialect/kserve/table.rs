//! The table of KServe's and ModelMesh's objects.

use super::super::{
    Dialect, Field, Hub,
    Mapping::{Annotation, Ignored, Refused, To},
};

/// KServe's and ModelMesh's objects.
pub const DIALECT: Dialect = Dialect {
    title: "KServe and ModelMesh objects",
    introduction: "`InferenceService` (`serving.kserve.io/v1beta1`), `Predictor` and `TrainedModel` (`serving.kserve.io/v1alpha1`) are accepted \
                   wherever manifests are: `berth apply`, folders, the API. `berth convert` prints what they become. A field that is not in this table \
                   is ignored, and named in the annotation `kserve.berth.dev/ignored`. A `Predictor`, and an `InferenceService` with the annotation \
                   `serving.kserve.io/deploymentMode: ModelMesh`, is loaded by its first request. Fields of a `Predictor` and a `TrainedModel` are below, \
                   after those of an `InferenceService`.",
    hub: Hub::Deployment,
    one_way: true,
    fields: &[
        Field { path: "metadata.name", mapping: To(&["metadata.name"]), note: "" },
        Field { path: "metadata.namespace", mapping: To(&["metadata.namespace"]), note: "" },
        Field { path: "metadata.labels", mapping: To(&["metadata.labels"]), note: "" },
        Field { path: "metadata.annotations", mapping: To(&["metadata.annotations"]), note: "without `kubectl`'s own" },
        Field {
            path: "spec.predictor.model.modelFormat",
            mapping: To(&["spec.model.format", "spec.model.environment"]),
            note: "`sklearn`, `xgboost` and `lightgbm` without a `runtime` are run by Berth itself, with its usual packages. A framework as a key \
                   (`spec.predictor.sklearn`) means the same",
        },
        Field {
            path: "spec.predictor.model.storageUri",
            mapping: To(&["spec.model.uri"]),
            note: "`s3`, `gs`, `az`, `http`, `https`, `file`, `pvc`. In a bucket it is a folder, unless it ends like a file (`.joblib`, `.onnx`, …); a folder holds one model. \
                   `pvc://NAME/PATH` is where the volume is mounted on the worker ([storages](runtimes.md#storages))",
        },
        Field {
            path: "spec.predictor.model.storage",
            mapping: To(&["spec.model.uri"]),
            note: "`path` in the storage `key`, as `storage://KEY/PATH?bucket=BUCKET`: the worker finds it in its `storage-config` ([storages](runtimes.md#storages)). Without \
                   a key `parameters.bucket` is a bucket of `s3` or `gcs`, as `parameters.type` says. Other parameters are ignored",
        },
        Field {
            path: "spec.predictor.model.runtime",
            mapping: Annotation("kserve.berth.dev/runtime"),
            note: "a worker with any model server for the format takes it ([runtimes](runtimes.md))",
        },
        Field {
            path: "spec.predictor.model.resources",
            mapping: To(&["spec.resources"]),
            note: "`memory`, `cpu`, `nvidia.com/gpu`, of `limits`, else of `requests`",
        },
        Field {
            path: "spec.predictor.minReplicas",
            mapping: To(&["spec.replicas"]),
            note: "`min`; 1 where it is left out",
        },
        Field { path: "spec.predictor.maxReplicas", mapping: To(&["spec.replicas"]), note: "`max`" },
        Field {
            path: "spec.predictor.scaleTarget",
            mapping: To(&["spec.scaling"]),
            note: "`targetConcurrency`, or `targetRate` per minute",
        },
        Field {
            path: "spec.predictor.scaleMetric",
            mapping: To(&["spec.scaling"]),
            note: "`concurrency` or `rps`; others are ignored",
        },
        Field {
            path: "spec.predictor.containerConcurrency",
            mapping: To(&["spec.concurrency"]),
            note: "`max`; 0 is the default",
        },
        Field { path: "spec.predictor.timeout", mapping: To(&["spec.timeout"]), note: "in seconds" },
        Field {
            path: "spec.predictor.batcher",
            mapping: To(&["spec.batching"]),
            note: "`maxBatchSize` is `maxRows`, `maxLatency` is `maxDelay`",
        },
        Field {
            path: "spec.predictor.nodeSelector",
            mapping: To(&["spec.selector.required"]),
            note: "of workers' labels",
        },
        Field {
            path: "spec.predictor.canaryTrafficPercent",
            mapping: To(&["spec.rollout"]),
            note: "`canary`; 100 promotes",
        },
        Field {
            path: "spec.canary",
            mapping: Refused,
            note: "KServe 0.20's list of predictors with a share each: for one of them write `canaryTrafficPercent`, for several an `Alias` with weights ([canaries](from-kserve.md#canaries)). An empty list is taken",
        },
        Field { path: "spec.predictor.canary", mapping: Refused, note: "as `spec.canary`" },
        Field { path: "spec.predictor.containers", mapping: Refused, note: "Berth runs models, not images" },
        Field { path: "spec.predictor.workerSpec", mapping: Refused, note: "" },
        Field { path: "spec.transformer", mapping: Refused, note: "" },
        Field { path: "spec.explainer", mapping: Refused, note: "" },
        Field { path: "spec.modelType", mapping: To(&["spec.model.format"]), note: "of a `Predictor`" },
        Field {
            path: "spec.path",
            mapping: To(&["spec.model.uri"]),
            note: "of a `Predictor`, in the bucket of `storage`",
        },
        Field {
            path: "spec.storage",
            mapping: To(&["spec.model.uri"]),
            note: "of a `Predictor`: `s3.secretKey` is the `key`, `s3.bucket` the bucket, `persistentVolumeClaim.claimName` a volume",
        },
        Field { path: "spec.storageUri", mapping: To(&["spec.model.uri"]), note: "of a `Predictor`" },
        Field { path: "spec.runtime", mapping: Annotation("kserve.berth.dev/runtime"), note: "of a `Predictor`" },
        Field { path: "spec.model.framework", mapping: To(&["spec.model.format"]), note: "of a `TrainedModel`" },
        Field { path: "spec.model.storageUri", mapping: To(&["spec.model.uri"]), note: "of a `TrainedModel`" },
        Field { path: "spec.model.memory", mapping: To(&["spec.resources"]), note: "of a `TrainedModel`" },
        Field {
            path: "spec.inferenceService",
            mapping: Ignored,
            note: "of a `TrainedModel`: workers hold models of many",
        },
    ],
    inputs: &[],
};
