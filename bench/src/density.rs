//! Many models over two model servers that hold a tenth of them: hits at a steady rate of requests against Belady's rule, latencies,
//! memory per model; and the cost of a call through Berth against calling the model server directly.
//!
//! The servers are `berth testing runtime`, each for a format of its own: every other model.

mod belady;
mod cost;
mod page;
mod requests;

use std::{fmt::Write as _, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use serde_json::json;

use self::{
    cost::Cost,
    requests::{Popularity, Seen},
};
use crate::{
    Arguments,
    load::{HttpConnection, once},
    memory::apply,
    server::{Server, free, scratch},
};

/// Models that are registered.
const REGISTERED: [usize; 2] = [20_000, 100_000];

/// One of so many models is held.
const HELD: usize = 10;

/// Bytes of a model: one megabyte, so that a capacity of so many megabytes holds as many models.
const SIZE: usize = 1_000_000;

/// Milliseconds that a load and an unload take in the model server.
const LOAD: (u32, u32) = (5, 1);

/// The time before anything is counted: the servers are full by then.
const FILLING: Duration = Duration::from_secs(30);

/// The counted part, as a multiple of the seconds per measurement.
const COUNTED_FACTOR: u64 = 20;

/// Models in one request of registration.
const CHUNK: usize = 1_000;

/// Models that are registered before memory is looked at.
pub(crate) const WARMING: usize = 5_000;

/// The figures for one number of models.
pub(crate) struct Row {
    pub(crate) models: usize,
    pub(crate) seen: Seen,
    /// Shares of hits in the counted part: seen, of Belady's rule, and of throwing out the longest unused.
    pub(crate) hits: [f64; 3],
    pub(crate) evictions: u64,
    /// Memory of Berth per registered model, in bytes, and of the whole process at the end.
    pub(crate) per_model: f64,
    pub(crate) resident: u64,
}

/// Measures all of it, or the parts that were asked for; gives the page.
pub(crate) async fn measure(arguments: &Arguments) -> Result<String> {
    let parts: Vec<_> = arguments.parts.iter().filter(|part| *part != "density").collect();
    let wants = |part: &str| parts.is_empty() || parts.iter().any(|wanted| *wanted == part);
    let (mut rows, mut costs) = (Vec::new(), Vec::<Cost>::new());
    if wants("hits") {
        let models = if arguments.models.is_empty() { &REGISTERED[..] } else { &arguments.models };
        for models in models {
            rows.push(serve(arguments, *models).await?);
        }
    }
    if wants("cost") {
        costs = cost::measure(arguments).await?;
    }
    page::of(&rows, &costs, arguments.rate)
}

async fn serve(arguments: &Arguments, models: usize) -> Result<Row> {
    let files = scratch("density")?;
    let held = models / HELD / 2;
    let declared = [("even", held), ("odd", held)].map(|(format, held)| runtime(arguments, &files, format, held));
    let [even, odd] = declared;
    let (even, odd) = (even?, odd?);
    let more = ["--runtime", &even, "--runtime", &odd, "--memory", "1TiB"];
    let server = Server::berth(&arguments.berth, &[], &more).await?;
    let (api, http) = (server.api.context("a control API")?, server.http.context("an HTTP port")?);
    // The first ones have the process grow to what it needs for any number of models: buffers, threads, code.
    let (mut first, mut counted) = (server.resident()?, models);
    for from in (0..models).step_by(CHUNK) {
        let to = (from + CHUNK).min(models);
        register(api, from..to).await?;
        if counted == models && to >= WARMING.min(models / 2) {
            tokio::time::sleep(Duration::from_secs(5)).await;
            (first, counted) = (server.resident()?, models - to);
        }
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let per_model = server.resident()?.saturating_sub(first) as f64 / counted.max(1) as f64;
    eprintln!("{models} registered: {per_model:.0} B each");
    let mut popularity = Popularity::new(models, 7);
    let rate = arguments.rate;
    let count = |seconds: u64| (rate * seconds as f64) as usize;
    let (filling, counted) = (count(FILLING.as_secs()), count(arguments.seconds * COUNTED_FACTOR));
    let order: Vec<usize> = (0..filling + counted).map(|_| popularity.draw()).collect();
    requests::send(http, &order[..filling], rate).await?;
    let before = (metric(api, "berth_gateway_misses_total").await?, metric(api, "berth_plan_evictions_total").await?);
    let mut seen = requests::send(http, &order[filling..], rate).await?;
    let misses = metric(api, "berth_gateway_misses_total").await? - before.0;
    let evictions = metric(api, "berth_plan_evictions_total").await? - before.1;
    seen.split(misses as usize);
    let hits = [
        1.0 - misses / counted as f64,
        belady::hits(&order, filling, held, belady::Rule::Belady),
        belady::hits(&order, filling, held, belady::Rule::LongestUnused),
    ];
    eprintln!("{models}: hits {hits:.3?}, {} failed, {evictions} evictions", seen.failed);
    let row = Row { models, seen, hits, evictions: evictions as u64, per_model, resident: server.resident()? };
    fs_err::remove_dir_all(files)?;
    Ok(row)
}

/// The file of a runtime that holds so many models of a format.
fn runtime(arguments: &Arguments, files: &std::path::Path, format: &str, held: usize) -> Result<String> {
    let path: PathBuf = files.join(format!("{format}.yaml"));
    let berth = fs_err::canonicalize(&arguments.berth)?;
    let capacity = format!("{held}MB");
    let manifest = json!({
        "apiVersion": "berth.dev/v1", "kind": "Runtime", "metadata": {"name": format}, "spec": {
            "protocol": "spi", "formats": [format],
            "command": [
                berth, "testing", "runtime", "--listen", "127.0.0.1:{port}", "--any-method", "--capacity", capacity,
                "--default-size", "1MB",
            ],
        },
    });
    fs_err::write(&path, manifest.to_string())?;
    Ok(path.to_string_lossy().into_owned())
}

/// The name of the n-th model: six digits, so that all names of up to a million are as long.
pub(crate) fn name(index: usize) -> String {
    format!("model-{index:06}")
}

async fn register(api: SocketAddr, range: std::ops::Range<usize>) -> Result<()> {
    let mut body = String::new();
    for index in range {
        let format = if index % 2 == 0 { "even" } else { "odd" };
        let (load, unload) = LOAD;
        write!(
            body,
            "---\napiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata: {{name: {}}}\n\
             spec: {{model: {{format: {format}, uri: \"runtime:SIZE_{SIZE}_{load}_{unload}?type=T\"}}, replicas: {{min: 0, max: 1}}}}\n",
            name(index),
        )?;
    }
    apply(api, &body).await
}

/// The sum of a metric's samples.
async fn metric(api: SocketAddr, name: &str) -> Result<f64> {
    let request = b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n";
    let (status, text) = once(api, None, request).await?;
    anyhow::ensure!(status == 200, "metrics: {status}");
    let text = std::str::from_utf8(&text)?;
    let samples = text.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
    Ok(samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
}

/// A connection that can be opened: the server is there.
pub(crate) async fn until_open(address: SocketAddr) -> Result<()> {
    for _ in 0..600 {
        if HttpConnection::open(address).await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    anyhow::bail!("nobody listens on {address}")
}

/// A free address.
pub(crate) fn address() -> Result<SocketAddr> {
    free()
}
