//! Measures the cost and the gain of the batcher: the engine in a loop, beside the same model through the batcher at
//! concurrency 1, 8 and 64. One JSON line per measurement on stdout.
//!
//! ```text
//! cargo run --release -p berth-worker --example engine_bench -- MODEL.onnx [LIBRARY] [SECONDS]
//! ```

use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use berth_spec::{
    Datatype, Digest, InferRequest, Revision, RevisionId, Serving, Signature, Tensor,
    deployment::{Batching, Concurrency, ModelFormat, RuntimeOptions, Warmup},
};
use berth_worker::{
    artifacts::Source,
    runtime::{
        LoadRequest, LoadedModel, Runtime,
        metrics::Families,
        onnx::{OnnxEngine, Options},
    },
};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let artifact = PathBuf::from(arguments.next().ok_or("usage: engine_bench MODEL.onnx [LIBRARY] [SECONDS]")?);
    let library = arguments.next().map(PathBuf::from);
    let seconds: f64 = arguments.next().map_or(Ok(2.0), |text| text.parse())?;
    let length = Duration::from_secs_f64(seconds);

    let engine =
        OnnxEngine::open(library.as_deref(), &Options::default(), Families::register(&mut Registry::default()))?;
    let name = artifact.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    for max_rows in [1, 64] {
        let begun = Instant::now();
        let loaded = engine.load(&request(&artifact, max_rows)?)?;
        let load_ms = begun.elapsed().as_secs_f64() * 1e3;
        let (memory, note) = (loaded.memory.0, &loaded.note);
        line(
            &serde_json::json!({"model": name, "load_ms": load_ms, "memory": memory, "measured": loaded.measured, "note": note}),
        )?;
        if max_rows == 1 {
            let (p50, rate) = in_a_loop(&*loaded.model, length)?;
            line(&serde_json::json!({"model": name, "what": "validate in a loop", "rate": rate, "p50_us": p50}))?;
        }
        for concurrency in [1, 8, 64] {
            let before = loaded.model.statistics();
            let (p50, p99, rate) = through_the_batcher(&loaded.model, concurrency, length)?;
            let after = loaded.model.statistics();
            let runs = (after.execution_count - before.execution_count).max(1);
            let rows = (after.inference_count - before.inference_count) as f64 / runs as f64;
            line(&serde_json::json!({
                "model": name, "what": "batcher", "max_rows": max_rows, "concurrency": concurrency, "rate": rate,
                "p50_us": p50, "p99_us": p99, "rows_per_run": rows,
            }))?;
        }
    }
    Ok(())
}

fn line(value: &serde_json::Value) -> std::io::Result<()> {
    writeln!(std::io::stdout().lock(), "{value}")
}

fn request(artifact: &Path, max_rows: u32) -> Result<LoadRequest, Box<dyn std::error::Error>> {
    let deployment: berth_spec::DeploymentName = "bench".parse()?;
    let revision = Revision {
        id: RevisionId::of(deployment.clone(), b"bench"),
        format: ModelFormat::ONNX,
        uri: "file:///bench".to_owned(),
        digest: None,
        version: "1".to_owned(),
        signature: None,
        runtime: RuntimeOptions::default(),
        memory: None,
        card: None,
    };
    let serving = Serving {
        deployment,
        warmup: Warmup::Generated,
        concurrency: Concurrency { max: None, queue: 0 },
        batching: Batching { max_rows, max_delay: Duration::ZERO },
        drain_timeout: Duration::from_secs(1),
    };
    let artifact = artifact.to_owned();
    Ok(LoadRequest {
        revision: Arc::new(revision),
        artifact: Source::File(artifact),
        size: berth_spec::ByteSize::ZERO,
        digest: Digest([0; 32]),
        serving: Arc::new(serving),
        prepared: None,
        pin: None,
        devices: Vec::new(),
        cancel: CancellationToken::new(),
    })
}

/// The validation inference over and over: the engine, and the making of its input.
fn in_a_loop(model: &dyn LoadedModel, length: Duration) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let mut times = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < length {
        let start = Instant::now();
        model.validate(&Warmup::Generated)?;
        times.push(start.elapsed());
    }
    Ok((quantile(&mut times, 0.5), times.len() as f64 / begun.elapsed().as_secs_f64()))
}

/// Clients in a closed loop on a runtime of two threads, as a gateway's connections are.
fn through_the_batcher(
    model: &Arc<dyn LoadedModel>,
    clients: usize,
    length: Duration,
) -> Result<(f64, f64, f64), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let begun = Instant::now();
    let mut times = runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..clients {
            let model = Arc::clone(model);
            tasks.spawn(async move {
                let inputs = zeros(model.signature());
                let mut times = Vec::new();
                while begun.elapsed() < length {
                    let start = Instant::now();
                    let request = InferRequest { inputs: inputs.clone(), ..InferRequest::default() };
                    if model.infer(request, start + Duration::from_secs(10)).await.is_ok() {
                        times.push(start.elapsed());
                    }
                }
                times
            });
        }
        tasks.join_all().await.concat()
    });
    let rate = times.len() as f64 / begun.elapsed().as_secs_f64();
    Ok((quantile(&mut times, 0.5), quantile(&mut times, 0.99), rate))
}

/// One row of zeros.
fn zeros(signature: &Signature) -> Vec<Tensor> {
    let inputs = signature.inputs.iter().map(|spec| {
        let shape: Vec<i64> = spec.shape.iter().map(|&dim| if dim < 0 { 1 } else { dim }).collect();
        let count = usize::try_from(shape.iter().product::<i64>()).unwrap_or(0);
        let size = if spec.datatype == Datatype::Bytes { 4 } else { spec.datatype.size().unwrap_or(4) };
        Tensor { name: spec.name.clone(), datatype: spec.datatype, shape, data: vec![0; count * size].into() }
    });
    inputs.collect()
}

/// Microseconds.
fn quantile(times: &mut [Duration], quantile: f64) -> f64 {
    times.sort_unstable();
    let index = (times.len() as f64 * quantile) as usize;
    times.get(index.min(times.len().saturating_sub(1))).map_or(0.0, |time| time.as_secs_f64() * 1e6)
}
