//! Latency of the bytes of a stream: messages of a bidirectional gRPC call that the model's runtime sends straight back.

use std::{net::SocketAddr, time::Instant};

use anyhow::{Result, ensure};
use bytes::{Bytes, BytesMut};
use hdrhistogram::Histogram;
use serde_json::json;

use super::fleet::{Fleet, Plan, until};
use crate::{
    Arguments,
    load::{Figures, GrpcStream, figures, grpc_connection},
    server::{free, scratch},
};

/// The path of the message to the runtime and back.
pub(crate) struct Row {
    pub(crate) way: &'static str,
    /// From opening a stream to its first message back.
    pub(crate) first: Figures,
    /// From sending a message on an open stream to the same message back.
    pub(crate) later: Figures,
}

/// The runtime alone.
pub(crate) const RUNTIME: &str = "the runtime itself";
/// The gateway of the worker's node.
pub(crate) const LOCAL: &str = "its node";
/// The gateway of another node.
pub(crate) const HOP: &str = "another node";

/// Bytes of a message.
pub(crate) const MESSAGE: usize = 1_024;
const MODEL: &str = "echo";
/// Messages on a stream after the first.
const LATER: usize = 10;

pub(crate) async fn measure(arguments: &Arguments) -> Result<Vec<Row>> {
    let files = scratch("stream")?;
    let (runtime, declared) = (free()?, files.join("runtime.yaml"));
    let berth = fs_err::canonicalize(&arguments.berth)?;
    let manifest = json!({
        "apiVersion": "berth.dev/v1", "kind": "Runtime", "metadata": {"name": "scripted"}, "spec": {
            "protocol": "spi", "address": runtime.to_string(), "formats": ["*"],
            "command": [berth, "testing", "runtime", "--listen", runtime.to_string(), "--any-method"],
        },
    });
    fs_err::write(&declared, manifest.to_string())?;
    let declared = declared.to_string_lossy().into_owned();
    let fleet = Fleet::start(
        arguments,
        &[
            Plan { name: "holds", roles: "controller,worker,gateway", more: &["--runtime", &declared] },
            Plan { name: "forwards", roles: "gateway", more: &[] },
        ],
    )
    .await?;
    fleet.deploy(MODEL, json!({"format": "scripted", "uri": "runtime:SIZE_1000000"}), 1, json!({})).await?;
    let mut rows = Vec::new();
    for (way, address) in [(RUNTIME, runtime), (LOCAL, fleet.nodes[0].http), (HOP, fleet.nodes[1].http)] {
        until(way, || async { Ok(load(address, 1).await.ok()) }).await?;
        let (first, later) = load(address, arguments.seconds).await?;
        eprintln!("stream {way:20} first {first}\nstream {way:20} later {later}");
        rows.push(Row { way, first, later });
    }
    fs_err::remove_dir_all(files)?;
    Ok(rows)
}

/// One caller that opens stream after stream on one connection.
async fn load(address: SocketAddr, seconds: u64) -> Result<(Figures, Figures)> {
    let connection = grpc_connection(address).await?;
    let message = message();
    let (mut first, mut later) = (Histogram::<u64>::new(3)?, Histogram::<u64>::new(3)?);
    let end = Instant::now() + std::time::Duration::from_secs(seconds);
    while Instant::now() < end {
        let began = Instant::now();
        let headers = [("mm-model-id", MODEL)];
        let mut stream = GrpcStream::open(connection.clone(), address, "/bench.Echo/Talk", &headers).await?;
        for number in 0..=LATER {
            let sent = if number == 0 { began } else { Instant::now() };
            stream.send(message.clone(), false)?;
            let back = stream.receive(message.len()).await?;
            ensure!(back == message, "another message came back");
            let seen = if number == 0 { &mut first } else { &mut later };
            seen.record(sent.elapsed().as_nanos().try_into().unwrap_or(u64::MAX))?;
        }
        stream.send(Bytes::new(), true)?;
        stream.finish().await?;
    }
    Ok((figures(&first, seconds), figures(&later, seconds)))
}

/// A message with its frame.
fn message() -> Bytes {
    let mut message = BytesMut::with_capacity(5 + MESSAGE);
    message.extend_from_slice(&[0]);
    message.extend_from_slice(&u32::try_from(MESSAGE).unwrap_or_default().to_be_bytes());
    message.resize(5 + MESSAGE, 7);
    message.freeze()
}
