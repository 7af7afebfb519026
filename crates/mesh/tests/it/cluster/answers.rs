//! An answer over a hop equals the answer of the worker's own gateway, byte for byte.

use berth_wire::oip::{self as wire, ModelInferRequest};
use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use prost::Message as _;
use tokio_stream::StreamExt as _;

use super::nodes::{TestCluster, metric};
use crate::{
    fixture::{Answer, Echo, REQUEST, TestGateway},
    grpc::{client, infer},
};

/// All that a client sees, but the time and the id of the request.
fn seen(answer: &Answer) -> (u16, Vec<(String, String)>, Bytes) {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = answer.headers.iter().map(|(name, value)| (name.to_string(), text(value)));
    let mut headers: Vec<_> = headers.filter(|(name, _)| name != "date" && name != "x-request-id").collect();
    headers.sort();
    (answer.status.as_u16(), headers, answer.body.clone())
}

fn binary() -> (String, Vec<u8>) {
    let head = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}}],"parameters":{"binary_data_output":true}}"#;
    let mut body = head.as_bytes().to_vec();
    [1.0_f32, 2.0, 3.5, 4.0].iter().for_each(|x| body.extend_from_slice(&x.to_le_bytes()));
    (head.len().to_string(), body)
}

async fn both(cluster: &mut TestCluster, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
    let (body, headers) = (body.into(), [headers, &[("x-request-id", "both")]].concat());
    let over = cluster.gateway("a").request(Method::POST, path, &headers, body.clone()).await;
    let local = cluster.gateway("b").request(Method::POST, path, &headers, body).await;
    assert_eq!(seen(&over), seen(&local), "{path} {headers:?}");
    over
}

#[tokio::test]
async fn rest_json_binary_raw_compressed_and_wrong() {
    let mut cluster = TestCluster::new(&["a", "b"]).await;
    let echo = Echo::open();
    cluster.serve("iris", &[("b", &echo)]).await;
    let path = "/v2/models/iris/infer";
    let answer = both(&mut cluster, path, &[], REQUEST).await;
    assert_eq!((answer.status.as_u16(), answer.json()["model_version"].as_str()), (200, Some("1")));
    assert_eq!(answer.json()["id"], "7");
    let (length, body) = binary();
    let binary = [("inference-header-content-length", length.as_str())];
    assert_eq!(both(&mut cluster, path, &binary, body).await.status, 200);
    assert_eq!(both(&mut cluster, "/v2/models/iris/versions/1/infer", &[], REQUEST).await.status, 200);
    let raw = [("inference-header-content-length", "0")];
    assert_eq!(both(&mut cluster, path, &raw, vec![0_u8; 16]).await.status, 200);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, REQUEST.as_bytes()).expect("room");
    let gzip = gzip.finish().expect("room");
    assert_eq!(both(&mut cluster, path, &[("content-encoding", "gzip")], gzip).await.status, 200);
    assert_eq!(both(&mut cluster, path, &[("accept-encoding", "gzip")], REQUEST).await.status, 200);
    let wide = format!(r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":[500,4],"data":{:?}}}]}}"#, [0.5; 2_000]);
    let squeezed = both(&mut cluster, path, &[("accept-encoding", "gzip")], wide).await;
    assert_eq!(squeezed.header("content-encoding"), "gzip");
    for (body, status) in [("{", 400), (r#"{"inputs":[]}"#, 400)] {
        assert_eq!(both(&mut cluster, path, &[], body).await.status, status, "{body}");
    }
    let fails = r#"{"inputs":[{"name":"fail","datatype":"FP32","shape":[1],"data":[1]}]}"#;
    assert_eq!(both(&mut cluster, path, &[], fails).await.status, 500);
    assert_eq!(both(&mut cluster, "/v2/models/rose/infer", &[], REQUEST).await.status, 404);
    assert_eq!(both(&mut cluster, "/v2/models/iris/versions/9/infer", &[], REQUEST).await.status, 404);
    assert_eq!(both(&mut cluster, path, &[("content-encoding", "br")], REQUEST).await.status, 501);
    assert!(metric(cluster.gateway("a"), "berth_gateway_forwards_total", &["answered"]) >= 9);
    assert_eq!(metric(cluster.gateway("a"), "berth_gateway_retries_total", &[]), 0);
}

#[tokio::test]
async fn descriptions_come_from_where_the_model_is() {
    let mut cluster = TestCluster::new(&["a", "b", "c"]).await;
    let (one, two) = (Echo::open(), Echo::open());
    cluster.serve("iris", &[("b", &one), ("c", &two)]).await;
    for path in ["/v2/models/iris", "/v2/models/iris/config", "/v2/models/iris/versions/1", "/v2/models/iris/ready"] {
        let (over, local) = (cluster.gateway("a").get(path).await, cluster.gateway("b").get(path).await);
        assert_eq!(seen(&over), seen(&local), "{path}");
        assert_eq!(over.status, 200);
    }
    for _ in 0..6 {
        assert_eq!(cluster.gateway("a").infer("iris", &[]).await.status, 200);
    }
    let stats = cluster.gateway("a").get("/v2/models/iris/stats").await.json();
    assert_eq!(stats["model_stats"][0]["inference_count"], 6, "of both copies: {stats}");
    let mut client = client(cluster.gateway("a")).await;
    let (name, version) = ("iris".to_owned(), String::new());
    let asked = wire::ModelMetadataRequest { name: name.clone(), version: version.clone() };
    let metadata = client.model_metadata(asked).await.expect("metadata").into_inner();
    assert_eq!((metadata.platform.as_str(), metadata.versions), ("echo_echo", vec!["1".to_owned()]));
    let asked = wire::ModelConfigRequest { name: name.clone(), version: version.clone() };
    let config = client.model_config(asked).await.expect("config").into_inner().config.expect("given");
    assert_eq!(config.max_batch_size, 8);
    let asked = wire::ModelStatisticsRequest { name: name.clone(), version: version.clone() };
    let statistics = client.model_statistics(asked).await.expect("statistics").into_inner();
    assert_eq!(statistics.model_stats[0].inference_count, 6);
    assert!(client.model_ready(wire::ModelReadyRequest { name, version }).await.expect("ready").into_inner().ready);
    let index = client.repository_index(wire::RepositoryIndexRequest::default()).await.expect("index").into_inner();
    assert_eq!(index.models[0].state, "READY");
}

/// The bytes of one gRPC call, without a client that interprets them.
async fn call(
    gateway: &TestGateway,
    body: Bytes,
    headers: &[(&str, &str)],
) -> (u16, HeaderMap, Bytes, Option<HeaderMap>) {
    let mut builder = Client::builder(TokioExecutor::new());
    let client: Client<_, Full<Bytes>> = builder.http2_only(true).build_http();
    let mut request = Request::post(gateway.uri("/inference.GRPCInferenceService/ModelInfer"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("x-request-id", "both");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = client.request(request.body(Full::new(body)).expect("a request")).await.expect("an answer");
    let (mut head, body) = answer.into_parts();
    let body = body.collect().await.expect("a body");
    head.headers.remove("date");
    let trailers = body.trailers().cloned();
    (head.status.as_u16(), head.headers, body.to_bytes(), trailers)
}

fn framed(flag: u8, message: &[u8]) -> Bytes {
    let mut framed = BytesMut::new();
    framed.put_u8(flag);
    framed.put_u32(u32::try_from(message.len()).expect("small"));
    framed.extend_from_slice(message);
    framed.freeze()
}

#[tokio::test]
async fn grpc_plain_compressed_and_wrong() {
    let mut cluster = TestCluster::new(&["a", "b"]).await;
    let echo = Echo::open();
    cluster.serve("iris", &[("b", &echo)]).await;
    let message = infer("iris", "7").encode_to_vec();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, &message).expect("room");
    let mut empty = infer("iris", "8");
    (empty.inputs, empty.raw_input_contents) = (Vec::new(), Vec::new());
    let mut fails = infer("iris", "9");
    fails.inputs[0].name = "fail".to_owned();
    let gzipped: &[(&str, &str)] = &[("grpc-encoding", "gzip")];
    for (what, body, headers) in [
        ("plain", framed(0, &message), &[][..]),
        ("compressed", framed(1, &gzip.finish().expect("room")), gzipped),
        ("no compression though there could be", framed(0, &message), gzipped),
        ("another encoding", framed(1, &message), &[("grpc-encoding", "zstd")][..]),
        ("invalid", framed(0, &empty.encode_to_vec()), &[]),
        ("the model fails", framed(0, &fails.encode_to_vec()), &[]),
        ("unknown", framed(0, &infer("rose", "1").encode_to_vec()), &[]),
        ("no message", framed(0, b"\xff\xff\xff"), &[]),
    ] {
        let over = call(cluster.gateway("a"), body.clone(), headers).await;
        let local = call(cluster.gateway("b"), body, headers).await;
        assert_eq!(over, local, "{what}");
    }
    assert_eq!(echo.runs.load(std::sync::atomic::Ordering::SeqCst), 6);
}

#[tokio::test]
async fn the_messages_of_a_stream_go_their_own_ways() {
    let mut cluster = TestCluster::new(&["a", "b", "c"]).await;
    let (one, two) = (Echo::open(), Echo::open());
    cluster.put("b", "iris", &one);
    cluster.put("c", "rose", &two);
    let routes = || vec![crate::fixture::on("iris", "1", &["b"]), crate::fixture::on("rose", "1", &["c"])];
    cluster.gateway("a").set(routes()).await;
    let mut client = client(cluster.gateway("a")).await;
    let mut asked: Vec<ModelInferRequest> = Vec::new();
    for n in 0..40 {
        asked.push(infer(["iris", "rose", "tulip"][n % 3], &n.to_string()));
    }
    let mut answers = client.model_stream_infer(tokio_stream::iter(asked)).await.expect("a stream").into_inner();
    for n in 0..40 {
        let answer = answers.next().await.expect("an answer").expect("no status");
        let response = answer.infer_response.expect("a response");
        assert_eq!(response.id, n.to_string(), "in order");
        assert_eq!(answer.error_message.starts_with("not_found: "), n % 3 == 2, "{}", answer.error_message);
        if n % 3 < 2 {
            assert_eq!(
                (response.model_name.as_str(), response.raw_output_contents.len()),
                (["iris", "rose"][n % 3], 1)
            );
        }
    }
    assert!(answers.next().await.is_none());
}
