//! The built-in engine on real graphs (`tests/fixtures`, made by `make.py`). Needs the library of ONNX Runtime, which
//! `cargo xtask setup` fetches; without it these tests say so and pass.

mod batched;
mod datatypes;
mod endless;
mod load;
mod memory;
mod run;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use berth_spec::{
    ByteSize, Datatype, DeploymentName, Digest, InferError, InferRequest, Revision, RevisionId, Serving, Tensor,
    deployment::{Batching, Concurrency, ModelFormat, RuntimeOptions, Warmup},
};
use berth_worker::{
    artifacts::{Artifact, Source},
    runtime::{
        LoadError, LoadRequest, Loaded, Runtime,
        metrics::Families,
        onnx::{OnnxEngine, Options},
    },
};
use bytes::Bytes;
use prometheus_client::registry::Registry;

/// The engine, one per process; `None` without the library.
pub(crate) fn engine() -> Option<&'static OnnxEngine> {
    static ENGINE: OnceLock<Option<OnnxEngine>> = OnceLock::new();
    ENGINE
        .get_or_init(|| {
            let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/onnxruntime");
            let library = std::env::var_os("ORT_DYLIB_PATH").map(PathBuf::from).or(Some(fetched));
            let families = Families::register(&mut Registry::default());
            let options = Options { threads: 2, ..Options::default() };
            OnnxEngine::open(library.as_deref(), &options, families)
                .inspect_err(|error| eprintln!("skipped: {error}"))
                .ok()
        })
        .as_ref()
}

pub(crate) fn request(name: &str) -> LoadRequest {
    let artifact = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/{name}.onnx"));
    let deployment: DeploymentName = name.replace('_', "-").parse().expect("a name");
    let mut digest = [0; 32];
    digest[..name.len()].copy_from_slice(name.as_bytes());
    let digest = Digest(digest);
    let revision = Revision {
        id: RevisionId::of(deployment.clone(), name.as_bytes()),
        format: ModelFormat::ONNX,
        uri: format!("file:///{name}.onnx"),
        digest: Some(digest),
        version: "1".to_owned(),
        signature: None,
        runtime: RuntimeOptions::default(),
        memory: None,
        card: None,
    };
    let serving = Serving {
        deployment,
        warmup: Warmup::Generated,
        concurrency: Concurrency { max: None, queue: 100 },
        batching: Batching { max_rows: 32, max_delay: Duration::ZERO },
        drain_timeout: Duration::from_secs(1),
    };
    let artifact = Artifact { source: Source::File(artifact), digest, size: ByteSize(1) };
    LoadRequest::new(Arc::new(revision), artifact, Arc::new(serving))
}

fn load(engine: &OnnxEngine, name: &str) -> Result<Loaded, LoadError> {
    engine.load(&request(name))
}

fn tensor(name: &str, datatype: Datatype, shape: &[i64], data: impl Into<Bytes>) -> Tensor {
    Tensor::new(name.to_owned(), datatype, shape.to_vec(), data.into()).expect("a tensor")
}

fn floats(name: &str, shape: &[i64], values: &[f32]) -> Tensor {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensor(name, Datatype::Fp32, shape, data)
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn infer(loaded: &Loaded, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, InferError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let request = InferRequest { inputs, ..InferRequest::default() };
    runtime.block_on(loaded.model.infer(request, Instant::now() + Duration::from_secs(120)))
}
