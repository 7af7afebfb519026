//! Memory per registered and per loaded model, and whether routing stays as fast with many of them.

use std::{fmt::Write as _, net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};

use crate::{
    Arguments,
    load::{self, HttpConnection},
    payload::TABULAR,
    server::Server,
};

/// The cost of a number of registered models.
pub(crate) struct Registered {
    pub(crate) models: usize,
    /// Resident memory of the whole process.
    pub(crate) resident: u64,
    /// Over the process with one model, per model.
    pub(crate) per_model: f64,
    /// `GET /v1/deployments/NAME`, median.
    pub(crate) get: Duration,
    /// An inference of a warm model at concurrency 1, median.
    pub(crate) infer: Duration,
}

/// The figures of the memory part.
pub(crate) struct Memory {
    pub(crate) registered: Vec<Registered>,
    /// Resident memory per loaded model over 200 loaded ones.
    pub(crate) per_loaded: f64,
    /// The size of one by Berth's own figures (measured at load).
    pub(crate) loaded: usize,
}

/// Models in one request of registration.
const CHUNK: usize = 1_000;

pub(crate) async fn measure(arguments: &Arguments) -> Result<Memory> {
    let server = Server::berth(&arguments.berth, &[&TABULAR], &[]).await?;
    let api = server.api.context("berth has a control API")?;
    let http = server.http.context("berth has an HTTP port")?;
    let base = settled(&server).await?;
    let mut registered = Vec::new();
    let mut count = 0;
    for target in [100, 10_000, 100_000, 1_000_000] {
        while count < target {
            let upto = target.min(count + CHUNK);
            register(api, TABULAR.artifact.as_ref(), count..upto).await?;
            count = upto;
        }
        let resident = settled(&server).await?;
        let infer = load::run(http, &TABULAR.json(), 1, 1).await?.p50;
        let get = median_get(api, &format!("/v1/deployments/{}", name(count / 2))).await?;
        let per_model = (resident.saturating_sub(base)) as f64 / count as f64;
        eprintln!("{count} registered: {} MiB, {per_model:.0} B per model", resident >> 20);
        registered.push(Registered { models: count, resident, per_model, get, infer });
    }
    let before = settled(&server).await?;
    let loaded = 200;
    for index in 0..loaded {
        infer_once(http, &name(index)).await?;
    }
    let per_loaded = (server.resident()?.saturating_sub(before)) as f64 / loaded as f64;
    Ok(Memory { registered, per_loaded, loaded })
}

/// Resident memory once the server has nothing to do: what it took for the work itself is given back within seconds.
async fn settled(server: &Server) -> Result<u64> {
    let mut last = server.resident()?;
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = server.resident()?;
        if now + now / 200 >= last {
            return Ok(now);
        }
        last = now;
    }
    Ok(last)
}

/// The name of the n-th model: six digits, so that all names of up to a million are as long.
pub(crate) fn name(index: usize) -> String {
    format!("model-{index:06}")
}

/// Declares on-demand deployments of one artifact.
pub(crate) async fn register(api: SocketAddr, artifact: &Path, range: std::ops::Range<usize>) -> Result<()> {
    let artifact = fs_err::canonicalize(artifact)?;
    let mut body = String::new();
    for index in range {
        write!(
            body,
            "---\napiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata: {{name: {}}}\n\
             spec: {{model: {{format: onnx, uri: \"file:{}\"}}, replicas: {{min: 0, max: 1}}}}\n",
            name(index),
            artifact.display()
        )?;
    }
    apply(api, &body).await
}

/// Declares what a text of manifests says.
pub(crate) async fn apply(api: SocketAddr, manifests: &str) -> Result<()> {
    let head = format!(
        "POST /v1/apply HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/yaml\r\ncontent-length: {}\r\n\r\n",
        manifests.len()
    );
    let (status, answer) = HttpConnection::open(api).await?.call((head + manifests).as_bytes()).await?;
    ensure!(status == 200, "apply: {status} {}", String::from_utf8_lossy(&answer));
    Ok(())
}

async fn median_get(api: SocketAddr, path: &str) -> Result<Duration> {
    let mut connection = HttpConnection::open(api).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n");
    let mut times = Vec::new();
    for _ in 0..500 {
        let started = std::time::Instant::now();
        let (status, _) = connection.call(request.as_bytes()).await?;
        ensure!(status == 200, "GET {path}: {status}");
        times.push(started.elapsed());
    }
    times.sort();
    Ok(times[times.len() / 2])
}

/// One inference, timed.
pub(crate) async fn infer_once(http: SocketAddr, model: &str) -> Result<Duration> {
    let body = r#"{"inputs":[{"name":"X","datatype":"FP32","shape":[1,4],"data":[5.1,3.5,1.4,0.2]}]}"#;
    let request = format!(
        "POST /v2/models/{model}/infer HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut connection = HttpConnection::open(http).await?;
    let started = std::time::Instant::now();
    let (status, answer) = connection.call(request.as_bytes()).await?;
    let took = started.elapsed();
    ensure!(status == 200, "infer {model}: {status} {}", String::from_utf8_lossy(&answer));
    Ok(took)
}
