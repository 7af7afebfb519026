//! A model that panics fails its own request: others on the same connection are answered.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_stream::StreamExt as _;
use tonic::Code;

use crate::{
    fixture::{Echo, REQUEST, TestGateway, soon},
    grpc::{client, infer},
};

fn panicking(id: &str) -> berth_wire::oip::ModelInferRequest {
    let mut request = infer("iris", id);
    request.inputs[0].name = "panic".to_owned();
    request
}

#[tokio::test]
async fn over_http_1_the_next_request_is_answered() {
    let mut gateway = TestGateway::new();
    gateway.serve("iris", "1", Echo::open()).await;
    let bad = REQUEST.replace("\"x\"", "\"panic\"");
    let mut stream = TcpStream::connect(gateway.address()).await.expect("it listens");
    for (body, close) in [(bad.as_str(), ""), (REQUEST, "Connection: close\r\n")] {
        let head = format!("POST /v2/models/iris/infer HTTP/1.1\r\nHost: x\r\n{close}Content-Length: {}", body.len());
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.expect("written");
    }
    let mut answers = String::new();
    soon("the answers", stream.read_to_string(&mut answers)).await.expect("answers");
    let statuses: Vec<_> = answers.split("HTTP/1.1 ").filter_map(|answer| answer.get(..3)).collect();
    assert_eq!(statuses, ["500", "200"], "{answers}");
}

#[tokio::test]
async fn over_http_2_the_other_streams_are_answered() {
    let mut gateway = TestGateway::new();
    let echo = Echo::shut();
    gateway.serve("iris", "1", echo.clone()).await;
    let client = client(&gateway).await;
    // One that runs while others on its connection panic.
    let mut waiting = client.clone();
    let waiting = tokio::task::spawn(async move { waiting.model_infer(infer("iris", "first")).await });
    echo.starts().await;
    let unary = client.clone().model_infer(panicking("unary")).await.expect_err("an error");
    assert_eq!(unary.code(), Code::Internal);
    let requests = tokio_stream::iter([panicking("1"), infer("none", "2")]);
    let answers = client.clone().model_stream_infer(requests).await.expect("a stream").into_inner();
    let answers: Vec<_> = answers.map(|answer| answer.expect("no status").error_message).collect().await;
    assert!(answers[0].starts_with("internal: ") && answers[1].starts_with("not_found: "), "{answers:?}");
    let mut strict = tonic::Request::new(tokio_stream::iter([panicking("1")]));
    strict.metadata_mut().insert("triton_grpc_error", "true".parse().expect("text"));
    let mut answers = client.clone().model_stream_infer(strict).await.expect("a stream").into_inner();
    assert_eq!(answers.next().await.expect("a status").expect_err("a status").code(), Code::Internal);
    echo.gate.close();
    soon("an answer", waiting).await.expect("it ran").expect("an answer");
}
