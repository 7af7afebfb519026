//! The gRPC face, with tonic's client.

use std::time::Duration;

use berth_wire::oip::{
    self as wire, ModelInferRequest, grpc_inference_service_client::GrpcInferenceServiceClient,
    model_infer_request::InferInputTensor,
};
use http_body_util::BodyExt as _;
use prost::Message as _;
use tokio_stream::StreamExt as _;
use tonic::{
    Code, Request,
    transport::{Channel, Endpoint},
};

use crate::fixture::{Echo, PATIENCE, TestGateway, cold, revision, soon, until, warm};

pub(crate) async fn client(gateway: &TestGateway) -> GrpcInferenceServiceClient<Channel> {
    // Nothing here takes so long.
    let endpoint = Endpoint::from_shared(gateway.uri("")).expect("a URI").timeout(PATIENCE);
    GrpcInferenceServiceClient::connect(endpoint).await.expect("it listens")
}

pub(crate) fn infer(model: &str, id: &str) -> ModelInferRequest {
    let input = InferInputTensor {
        name: "x".to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![1, 4],
        ..InferInputTensor::default()
    };
    ModelInferRequest {
        model_name: model.to_owned(),
        id: id.to_owned(),
        inputs: vec![input],
        raw_input_contents: vec![vec![0; 16].into()],
        ..ModelInferRequest::default()
    }
}

#[tokio::test]
async fn the_whole_service() {
    let mut gateway = TestGateway::new();
    gateway.serve("iris", "1", Echo::open()).await;
    let mut client = client(&gateway).await;
    assert!(client.server_live(wire::ServerLiveRequest {}).await.expect("live").into_inner().live);
    assert!(client.server_ready(wire::ServerReadyRequest {}).await.expect("ready").into_inner().ready);
    let server = client.server_metadata(wire::ServerMetadataRequest {}).await.expect("metadata").into_inner();
    assert!(server.name == "berth" && server.extensions.iter().any(|e| e == "statistics"));
    let (name, version) = ("iris".to_owned(), String::new());
    let ready = wire::ModelReadyRequest { name: name.clone(), version: version.clone() };
    assert!(client.model_ready(ready).await.expect("ready").into_inner().ready);
    let metadata = wire::ModelMetadataRequest { name: name.clone(), version: version.clone() };
    let metadata = client.model_metadata(metadata).await.expect("metadata").into_inner();
    assert_eq!((metadata.platform.as_str(), metadata.versions), ("echo_echo", vec!["1".to_owned()]));
    let config = wire::ModelConfigRequest { name: name.clone(), version: version.clone() };
    let config = client.model_config(config).await.expect("config").into_inner().config.expect("given");
    assert_eq!(config.max_batch_size, 8);
    let Some(wire::model_config::SchedulingChoice::DynamicBatching(batching)) = config.scheduling_choice else {
        panic!("it batches")
    };
    assert_eq!(batching.max_queue_delay_microseconds, 3_000);
    let answer = client.model_infer(infer("iris", "7")).await.expect("an answer").into_inner();
    assert_eq!((answer.id.as_str(), answer.model_version.as_str(), answer.raw_output_contents.len()), ("7", "1", 1));
    let statistics = wire::ModelStatisticsRequest { name: name.clone(), version };
    let statistics = client.model_statistics(statistics).await.expect("statistics").into_inner();
    assert_eq!(statistics.model_stats[0].inference_count, 1);
    let index = client.repository_index(wire::RepositoryIndexRequest::default()).await.expect("index").into_inner();
    assert_eq!(index.models[0].state, "READY");
    let load = wire::RepositoryModelLoadRequest { model_name: name.clone(), ..Default::default() };
    client.repository_model_load(load).await.expect("loaded");
    gateway.set(vec![cold("iris")]).await;
    let unload = wire::RepositoryModelUnloadRequest { model_name: name, ..Default::default() };
    client.repository_model_unload(unload).await.expect("unloaded");
}

#[tokio::test]
async fn errors_have_their_codes() {
    let mut gateway = TestGateway::new();
    gateway.serve("iris", "1", Echo::open()).await;
    gateway.set(vec![cold("cold")]).await;
    let mut client = client(&gateway).await;
    let mut codes = Vec::new();
    let mut bad = infer("iris", "");
    bad.inputs[0].shape = vec![-1];
    let mut failing = infer("iris", "");
    failing.inputs[0].name = "fail".to_owned();
    let mut panicking = infer("iris", "");
    panicking.inputs[0].name = "panic".to_owned();
    for request in [infer("none", ""), bad, failing, panicking] {
        codes.push(client.model_infer(request).await.expect_err("an error").code());
    }
    assert_eq!(codes, [Code::NotFound, Code::InvalidArgument, Code::Internal, Code::Internal]);
    let mut hurried = Request::new(infer("cold", ""));
    hurried.metadata_mut().insert("berth-timeout-ms", "20".parse().expect("text"));
    let shed = client.model_infer(hurried).await.expect_err("an error");
    assert_eq!(shed.code(), Code::Unavailable);
    assert_eq!(shed.metadata().get("berth-reason").expect("a reason"), "loading");
    assert!(shed.metadata().get("retry-after").is_some());
    let mut wrong = Request::new(infer("iris", ""));
    wrong.metadata_mut().insert("berth-timeout-ms", "soon".parse().expect("text"));
    assert_eq!(client.model_infer(wrong).await.expect_err("an error").code(), Code::InvalidArgument);
    let refused = client.log_settings(wire::LogSettingsRequest::default()).await.expect_err("an error");
    assert_eq!(refused.code(), Code::Unimplemented);
    let shm = client.system_shared_memory_status(wire::SystemSharedMemoryStatusRequest::default()).await;
    assert_eq!(shm.expect_err("an error").code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_deadline_of_the_client_is_kept() {
    let mut gateway = TestGateway::new();
    let echo = Echo::shut();
    gateway.serve("iris", "1", echo.clone()).await;
    let mut client = client(&gateway).await;
    let mut request = Request::new(infer("iris", ""));
    request.set_timeout(Duration::from_millis(30));
    let error = client.model_infer(request).await.expect_err("an error");
    assert!(matches!(error.code(), Code::DeadlineExceeded | Code::Cancelled), "{error:?}");
    until("it is out", || gateway.handle.inside() == 0).await;
}

#[tokio::test]
async fn a_cold_model_is_waited_for() {
    let mut gateway = TestGateway::new();
    gateway.set(vec![cold("iris")]).await;
    let mut client = client(&gateway).await;
    let waiting = tokio::task::spawn(async move { client.model_infer(infer("iris", "")).await });
    gateway.miss("iris").await;
    gateway.serve("iris", "1", Echo::open()).await;
    waiting.await.expect("it ran").expect("an answer");
}

#[tokio::test]
async fn a_stream_answers_in_order_and_survives_errors() {
    let mut gateway = TestGateway::new();
    gateway.replicas.insert(revision("iris", "1"), Echo::open());
    gateway.set(vec![warm("iris", "1")]).await;
    let mut client = client(&gateway).await;
    let requests: Vec<_> = (0..100).map(|i| infer(if i % 10 == 3 { "none" } else { "iris" }, &i.to_string())).collect();
    let answers = client.model_stream_infer(tokio_stream::iter(requests.clone())).await.expect("a stream");
    let answers = answers.into_inner().map(|answer| answer.expect("no status")).collect::<Vec<_>>();
    let answers = soon("the end of the stream", answers).await;
    assert_eq!(answers.len(), 100);
    for (i, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer.error_message.is_empty(), i % 10 != 3, "{i}");
        assert!(i % 10 != 3 || answer.error_message.starts_with("not_found: "), "{}", answer.error_message);
        assert_eq!(answer.infer_response.expect("an answer").id, i.to_string());
    }
    let mut strict = Request::new(tokio_stream::iter(requests));
    strict.metadata_mut().insert("triton_grpc_error", "true".parse().expect("text"));
    let answers: Vec<_> = client.model_stream_infer(strict).await.expect("a stream").into_inner().collect().await;
    assert_eq!(answers.len(), 4);
    assert_eq!(answers[3].as_ref().expect_err("a status").code(), Code::NotFound);
}

/// A message that is no request fails alone: those before and after it are answered.
#[tokio::test]
async fn a_stream_survives_a_message_that_cannot_be_decoded() {
    let mut gateway = TestGateway::new();
    gateway.serve("iris", "1", Echo::open()).await;
    // Of the one not even the names can be read, of the other not the tensors (field 5, of which the first key is none).
    let nameless = vec![0x0f];
    let names = ModelInferRequest { inputs: Vec::new(), raw_input_contents: Vec::new(), ..infer("iris", "3") };
    let mut named = names.encode_to_vec();
    named.extend([0x2a, 1, 0x0f]);
    let mut body = Vec::new();
    for message in [infer("iris", "1").encode_to_vec(), nameless, named, infer("iris", "4").encode_to_vec()] {
        body.push(0);
        body.extend(u32::try_from(message.len()).expect("short").to_be_bytes());
        body.extend(message);
    }
    let mut connector = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new());
    let http2 = connector.http2_only(true).build_http::<http_body_util::Full<bytes::Bytes>>();
    let request = http::Request::post(gateway.uri("/inference.GRPCInferenceService/ModelStreamInfer"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(http_body_util::Full::new(bytes::Bytes::from(body)))
        .expect("a request");
    let answer = soon("an answer", http2.request(request)).await.expect("an answer");
    let answer = soon("the end of the stream", answer.into_body().collect()).await.expect("a body");
    assert_eq!(answer.trailers().expect("trailers").get("grpc-status").expect("a status"), "0");
    let (mut rest, mut answers) = (answer.to_bytes(), Vec::new());
    while !rest.is_empty() {
        let prefix = rest.split_to(5);
        let length = u32::from_be_bytes(prefix[1..].try_into().expect("four bytes")) as usize;
        answers.push(wire::ModelStreamInferResponse::decode(rest.split_to(length)).expect("an answer"));
    }
    let id = |answer: &wire::ModelStreamInferResponse| answer.infer_response.as_ref().expect("an answer").id.clone();
    assert_eq!(answers.iter().map(id).collect::<Vec<_>>(), ["1", "", "3", "4"]);
    for (answer, fails) in answers.iter().zip([false, true, true, false]) {
        assert_eq!(answer.error_message.contains("no ModelInferRequest"), fails, "{answer:?}");
        assert!(fails || answer.error_message.is_empty(), "{answer:?}");
    }
}

/// The head of a stream says how long each of its requests may take, or all of them together.
#[tokio::test]
async fn the_requests_of_a_stream_keep_its_deadlines() {
    let mut gateway = TestGateway::new();
    gateway.serve("iris", "1", Echo::shut()).await;
    let mut client = client(&gateway).await;
    // The second one tonic's client keeps as well: what is too short for a busy machine ends there.
    for (name, value) in [("berth-timeout-ms", "30"), ("grpc-timeout", "5S")] {
        let mut request = Request::new(tokio_stream::iter([infer("iris", "1"), infer("iris", "2")]));
        request.metadata_mut().insert(name, value.parse().expect("text"));
        let answers = client.model_stream_infer(request).await.expect("a stream").into_inner();
        let answers = answers.map(|answer| answer.expect("no status").error_message).collect::<Vec<_>>();
        let answers = soon("the end of the stream", answers).await;
        assert!(answers.len() == 2 && answers.iter().all(|text| text.starts_with("deadline: ")), "{name} {answers:?}");
    }
    let mut wrong = Request::new(tokio_stream::empty());
    wrong.metadata_mut().insert("berth-timeout-ms", "soon".parse().expect("text"));
    assert_eq!(client.model_stream_infer(wrong).await.expect_err("a status").code(), Code::InvalidArgument);
}

/// A call whose body never comes is ended; a stream that rests is not.
#[tokio::test]
async fn calls_may_not_pause_and_streams_may() {
    let mut gateway = TestGateway::with(|limits| limits.body_idle = Duration::from_millis(50));
    gateway.serve("iris", "1", Echo::open()).await;
    let mut client = client(&gateway).await;
    let (requests, rest) = tokio::sync::mpsc::channel(4);
    let stream = client.model_stream_infer(tokio_stream::wrappers::ReceiverStream::new(rest));
    let mut connector = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new());
    let http2 = connector.http2_only(true).build_http::<http_body_util::StreamBody<_>>();
    let silent = tokio_stream::pending::<Result<http_body::Frame<bytes::Bytes>, std::convert::Infallible>>();
    let request = http::Request::post(gateway.uri("/inference.GRPCInferenceService/ModelInfer"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(http_body_util::StreamBody::new(silent))
        .expect("a request");
    let answer = soon("an answer", http2.request(request)).await.expect("an answer");
    assert_eq!(answer.headers().get("grpc-status").expect("a status"), "4");
    requests.send(infer("iris", "1")).await.expect("the stream is open");
    let mut answers = soon("a stream", stream).await.expect("a stream").into_inner();
    assert!(soon("an answer", answers.next()).await.expect("an answer").is_ok());
}

/// Megabytes of typed numbers take the way around the connection's task, and come back whole.
#[tokio::test]
async fn large_typed_contents_come_back() {
    let mut gateway = TestGateway::new();
    gateway.serve("iris", "1", Echo::open()).await;
    let numbers: Vec<f32> = (0..1 << 18).map(|i| i as f32).collect();
    let mut request = infer("iris", "");
    request.raw_input_contents.clear();
    request.inputs[0].shape = vec![1, 1 << 18];
    request.inputs[0].contents =
        Some(wire::InferTensorContents { fp32_contents: numbers.clone(), ..Default::default() });
    let answer = client(&gateway).await.model_infer(request).await.expect("an answer").into_inner();
    assert_eq!(answer.outputs[0].contents.as_ref().expect("typed").fp32_contents, numbers);
}
