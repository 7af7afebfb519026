//! `ModelStreamInfer` with a model that gives many answers to one request.

use berth_wire::oip::{
    ModelInferRequest, ModelInferResponse, ModelStreamInferResponse,
    grpc_inference_service_client::GrpcInferenceServiceClient,
};
use bytes::Bytes;
use futures::StreamExt as _;
use prost::Message as _;

use super::{NODES, cluster, talk::framed};

/// The model's answers: one for each letter of the request's id, and the status after them.
pub(super) fn answers(asked: &Bytes) -> (Vec<Bytes>, &'static str) {
    let request = ModelInferRequest::decode(&asked[5..]).expect("a message");
    let answer = |letter: char| {
        let response = ModelInferResponse { id: letter.to_string(), ..ModelInferResponse::default() };
        let message = ModelStreamInferResponse { error_message: String::new(), infer_response: Some(response) };
        framed(&message.encode_to_vec())
    };
    let status = if request.id.ends_with('!') { "13" } else { "0" };
    (request.id.chars().map(answer).collect(), status)
}

#[tokio::test]
async fn each_request_of_a_stream_has_any_number_of_answers() {
    let (mut cluster, _talk) = cluster().await;
    for node in NODES {
        let address = cluster.gateway(node).uri("");
        let mut client = GrpcInferenceServiceClient::connect(address).await.expect("connected");
        let request = |model: &str, id: &str| ModelInferRequest {
            model_name: model.to_owned(),
            id: id.to_owned(),
            ..ModelInferRequest::default()
        };
        let requests = [request("talk", "abc"), request("talk", "x!"), request("none", "n"), request("talk", "z")];
        let answers = client.model_stream_infer(futures::stream::iter(requests)).await.expect("a stream").into_inner();
        let answers: Vec<_> = answers.map(|answer| answer.expect("the stream goes on")).collect().await;
        let told: Vec<_> = answers
            .into_iter()
            .map(|answer| (answer.infer_response.unwrap_or_default().id, answer.error_message))
            .collect();
        let (ids, errors): (Vec<_>, Vec<_>) = told.into_iter().unzip();
        assert_eq!(ids, ["a", "b", "c", "x", "!", "x!", "n", "z"], "{node}: {errors:?}");
        let failed: Vec<_> = errors.iter().map(|error| error.split(':').next().unwrap_or_default()).collect();
        assert_eq!(failed, ["", "", "", "", "", "internal", "not_found", ""], "{node}");
    }
}
