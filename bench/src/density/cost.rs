//! The cost of a gRPC call through Berth, against calling the model server directly and through a bare proxy: unary calls, and messages of
//! open streams.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use bytes::{BufMut as _, Bytes, BytesMut};
use hdrhistogram::Histogram;
use serde_json::json;

use super::{address, until_open};
use crate::{
    Arguments,
    cluster::hop::proxy,
    load::{Figures, GrpcStream, figures, grpc_connection},
    memory::apply,
    server::{Server, scratch},
};

/// Bytes of the messages.
const SIZES: [(usize, &str); 3] = [(1 << 10, "1 KiB"), (100 << 10, "100 KiB"), (4 << 20, "4 MiB")];

/// Messages on a stream.
const MESSAGES: usize = 10;

/// Each is measured so often, in turn.
const ROUNDS: usize = 3;

/// Threads of the bare proxy: with one, a call passes it without waking another thread.
const PROXY_THREADS: usize = 1;

/// The model of these calls.
const MODEL: &str = "echo";

/// One line of the table.
pub(crate) struct Cost {
    pub(crate) kind: &'static str,
    pub(crate) size: &'static str,
    pub(crate) direct: Figures,
    /// Through a bare proxy, which looks at nothing: what any proxy with this HTTP library costs here.
    pub(crate) bare: Figures,
    pub(crate) through: Figures,
}

pub(crate) async fn measure(arguments: &Arguments) -> Result<Vec<Cost>> {
    let files = scratch("cost")?;
    let runtime = address()?;
    let (berth, declared) = (fs_err::canonicalize(&arguments.berth)?, files.join("runtime.yaml"));
    let manifest = json!({
        "apiVersion": "berth.dev/v1", "kind": "Runtime", "metadata": {"name": "scripted"}, "spec": {
            "protocol": "spi", "address": runtime.to_string(), "formats": ["scripted"],
            "command": [berth, "testing", "runtime", "--listen", runtime.to_string(), "--any-method"],
        },
    });
    fs_err::write(&declared, manifest.to_string())?;
    let server = Server::berth(&arguments.berth, &[], &["--runtime", &declared.to_string_lossy()]).await?;
    let (api, http) = (server.api.context("a control API")?, server.http.context("an HTTP port")?);
    until_open(runtime).await?;
    let model = format!(
        "apiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata: {{name: {MODEL}}}\n\
         spec: {{model: {{format: scripted, uri: \"runtime:SIZE_1000?type=T\"}}, replicas: {{min: 0, max: 1}}}}\n"
    );
    apply(api, &model).await?;
    let (bare, _bare) = proxy(runtime, PROXY_THREADS)?;
    until_open(bare).await?;
    let mut costs = Vec::new();
    for (kind, streams) in [("unary", false), ("stream", true)] {
        for (bytes, size) in SIZES {
            let mut seen = [const { Vec::new() }; 3];
            for _ in 0..ROUNDS {
                for (at, seen) in [runtime, bare, http].into_iter().zip(&mut seen) {
                    // The model is loaded by the first call through Berth, which is not counted.
                    if at == runtime && !loaded(runtime).await {
                        load(http, framed(bytes), streams, 0).await?;
                    }
                    seen.push(load(at, framed(bytes), streams, arguments.seconds).await?);
                }
            }
            let [direct, bare, through] = seen.map(median);
            eprintln!("{kind} {size}: direct {direct}, through a bare proxy {bare}, through Berth {through}");
            let cost = Cost { kind, size, direct, bare, through };
            costs.push(cost);
        }
    }
    fs_err::remove_dir_all(files)?;
    Ok(costs)
}

fn median(mut rounds: Vec<Figures>) -> Figures {
    rounds.sort_by_key(|figures| figures.p50);
    rounds.swap_remove(rounds.len() / 2)
}

async fn loaded(runtime: std::net::SocketAddr) -> bool {
    load(runtime, framed(1), false, 0).await.is_ok()
}

/// One caller: at least one call, and calls for so many seconds. It has a thread of its own with its connection, as clients in use
/// do: a request leaves in one write.
async fn load(address: std::net::SocketAddr, message: Bytes, streams: bool, seconds: u64) -> Result<Figures> {
    let caller = move || {
        let thread = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread.block_on(call(address, message, streams, seconds))
    };
    tokio::task::spawn_blocking(caller).await?
}

async fn call(address: std::net::SocketAddr, message: Bytes, streams: bool, seconds: u64) -> Result<Figures> {
    let connection = grpc_connection(address).await?;
    let mut seen = Histogram::<u64>::new(3)?;
    let begin = Instant::now();
    loop {
        let mut sent = Instant::now();
        let metadata = [("mm-model-id", MODEL)];
        let mut stream = GrpcStream::open(connection.clone(), address, "/bench.Echo/Say", &metadata).await?;
        for number in 0..if streams { MESSAGES } else { 1 } {
            if number > 0 {
                sent = Instant::now();
            }
            stream.send(message.clone(), !streams)?;
            let back = stream.receive(message.len()).await?;
            ensure!(back.len() == message.len(), "another message came back");
            // A stream's first message opens it.
            if number > 0 || !streams {
                seen.record(sent.elapsed().as_nanos().try_into().unwrap_or(u64::MAX))?;
            }
        }
        if streams {
            stream.send(Bytes::new(), true)?;
        }
        stream.finish().await?;
        if begin.elapsed().as_secs() >= seconds {
            return Ok(figures(&seen, seconds.max(1)));
        }
    }
}

/// A message of so many bytes, with its frame.
pub(crate) fn framed(bytes: usize) -> Bytes {
    let mut message = BytesMut::with_capacity(5 + bytes);
    message.put_u8(0);
    message.put_u32(u32::try_from(bytes).unwrap_or_default());
    message.resize(5 + bytes, 7);
    message.freeze()
}
