//! Closed-loop callers that take as little of the machine as they can: requests are bytes that were made once.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use futures::future::join_all;
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

const BODY: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[5.1,3.5,1.4,0.2]}]}"#;
const GRPC: &str = "/inference.GRPCInferenceService/ModelInfer";

/// Streams on one connection of a gRPC client.
const STREAMS: usize = 16;

/// The protocol of the requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/1.1, a connection per caller.
    Rest,
    /// HTTP/2, [`STREAMS`] callers on a connection.
    Grpc,
}

/// Sends requests and returns the time of each, in nanoseconds.
pub(crate) async fn run(to: SocketAddr, protocol: Protocol, callers: usize, time: Duration) -> Vec<u32> {
    let until = Instant::now() + time;
    let mut tasks = Vec::new();
    match protocol {
        Protocol::Rest => tasks.extend((0..callers).map(|_| tokio::spawn(rest(to, until)))),
        Protocol::Grpc => {
            for first in (0..callers).step_by(STREAMS) {
                let sender = connect(to).await;
                let here = callers.min(first + STREAMS) - first;
                tasks.extend((0..here).map(|_| tokio::spawn(grpc(sender.clone(), to, until))));
            }
        }
    }
    join_all(tasks).await.into_iter().flat_map(|took| took.expect("it runs")).collect()
}

fn since(started: Instant) -> u32 {
    u32::try_from(started.elapsed().as_nanos()).unwrap_or(u32::MAX)
}

async fn rest(to: SocketAddr, until: Instant) -> Vec<u32> {
    let mut stream = TcpStream::connect(to).await.expect("it listens");
    stream.set_nodelay(true).expect("a socket");
    let request = format!(
        "POST /v2/models/iris/infer HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    let (mut took, mut buffer) = (Vec::new(), BytesMut::with_capacity(4 << 10));
    while Instant::now() < until {
        let started = Instant::now();
        stream.write_all(request.as_bytes()).await.expect("written");
        buffer.clear();
        while !is_whole(&buffer) {
            assert!(stream.read_buf(&mut buffer).await.expect("read") > 0, "closed");
        }
        took.push(since(started));
    }
    took
}

/// True if the answer is complete; it has a content length, and its status is 200.
fn is_whole(buffer: &[u8]) -> bool {
    let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let length = head.split("content-length:").nth(1).and_then(|rest| rest.split("\r\n").next());
    let length: usize = length.and_then(|length| length.trim().parse().ok()).expect("a length");
    buffer.len() >= end + 4 + length
}

async fn connect(to: SocketAddr) -> h2::client::SendRequest<Bytes> {
    let stream = TcpStream::connect(to).await.expect("it listens");
    stream.set_nodelay(true).expect("a socket");
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(1 << 20).initial_connection_window_size(8 << 20);
    let (sender, connection) = builder.handshake(stream).await.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

async fn grpc(sender: h2::client::SendRequest<Bytes>, to: SocketAddr, until: Instant) -> Vec<u32> {
    let (mut took, message) = (Vec::new(), message());
    while Instant::now() < until {
        let started = Instant::now();
        let mut sender = sender.clone().ready().await.expect("open");
        let request = http::Request::post(format!("http://{to}{GRPC}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .expect("a request");
        let (response, mut body) = sender.send_request(request, false).expect("sent");
        body.send_data(message.clone(), true).expect("sent");
        let mut answer = response.await.expect("an answer").into_body();
        while let Some(data) = answer.data().await {
            let length = data.expect("data").len();
            answer.flow_control().release_capacity(length).expect("it was taken");
        }
        let trailers = answer.trailers().await.expect("read").expect("trailers");
        assert!(trailers.get("grpc-status").is_some_and(|status| status == "0"), "{trailers:?}");
        took.push(since(started));
    }
    took
}

/// One framed inference.
fn message() -> Bytes {
    let input = berth_wire::oip::model_infer_request::InferInputTensor {
        name: "x".to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![1, 4],
        ..Default::default()
    };
    let message = berth_wire::oip::ModelInferRequest {
        model_name: "iris".to_owned(),
        inputs: vec![input],
        raw_input_contents: vec![vec![0; 16].into()],
        ..Default::default()
    };
    let mut framed = vec![0];
    framed.extend_from_slice(&u32::try_from(message.encoded_len()).expect("small").to_be_bytes());
    message.encode(&mut framed).expect("room");
    framed.into()
}
