//! gRPC says the same as REST, on the same port.

use berth_spec::ByteSize;
use berth_wire::control::v1::{
    ApplyRequest, DeleteRequest, Deployment, ExplainRequest, GetRequest, ListEventsRequest, ListRequest,
    ListWorkersRequest, Metadata, ModelSource, PlanRequest, Replicas, Spec, WatchRequest,
    control_client::ControlClient, watch_event::Type, worker_verdict::Verdict,
};
use tonic::{
    Code,
    transport::{Channel, Endpoint},
};
use tonic_types::StatusExt as _;

use super::world::{PATIENCE, World, manifest};

async fn client(world: &World) -> ControlClient<Channel> {
    let endpoint = Endpoint::from_shared(world.base.clone()).expect("a URI").timeout(PATIENCE);
    ControlClient::connect(endpoint).await.expect("it is serving")
}

fn typed(name: &str) -> Deployment {
    let model =
        ModelSource { format: "onnx".into(), uri: format!("https://example.com/{name}.onnx"), ..Default::default() };
    let replicas = Replicas { min: 0, max: Some(1), ..Replicas::default() };
    Deployment {
        metadata: Some(Metadata { name: name.into(), ..Default::default() }),
        spec: Some(Spec { model: Some(model), replicas: Some(replicas), priority: Some(70), ..Default::default() }),
        ..Default::default()
    }
}

#[tokio::test]
async fn typed_and_text_manifests_are_the_same() {
    let world = World::start().await;
    let mut client = client(&world).await;
    let request = ApplyRequest { deployments: vec![typed("wine")], ..Default::default() };
    let applied = client.apply(request.clone()).await.expect("it is right").into_inner();
    assert_eq!((applied.results[0].name.as_str(), applied.results[0].outcome.as_str()), ("wine", "created"));
    assert_eq!(client.apply(request).await.expect("again").into_inner().results[0].outcome, "unchanged");

    let found = client.get(GetRequest { name: "wine".into() }).await.expect("it is there").into_inner();
    assert_eq!(found.spec.as_ref(), typed("wine").spec.as_ref());
    let over_rest = world.get("/v1/deployments/wine").await.ok(200);
    assert_eq!(over_rest["spec"].to_string(), found.spec_json);

    let text = ApplyRequest { manifests: manifest("iris"), ..Default::default() };
    client.apply(text).await.expect("it is right");
    let request = ListRequest { label_selector: "app=shop".into(), ..Default::default() };
    let list = client.list(request).await.expect("it is serving").into_inner();
    assert_eq!(list.deployments.len(), 1);
    assert_eq!(list.deployments[0].metadata.as_ref().map(|metadata| metadata.name.as_str()), Some("iris"));
}

#[tokio::test]
async fn errors_carry_the_fields() {
    let world = World::start().await;
    let mut client = client(&world).await;
    let mut bad = typed("wine");
    bad.spec.as_mut().expect("it has one").priority = Some(700);
    let request = ApplyRequest { deployments: vec![bad], ..Default::default() };
    let status = client.apply(request).await.expect_err("700 is too much");
    assert_eq!(status.code(), Code::InvalidArgument);
    let fields = status.get_error_details().bad_request().expect("faults travel along").field_violations.clone();
    assert_eq!(fields[0].field, "spec.priority", "{fields:?}");

    let both = ApplyRequest { manifests: "x".into(), deployments: vec![typed("wine")], ..Default::default() };
    assert_eq!(client.apply(both).await.expect_err("one or the other").code(), Code::InvalidArgument);
    let missing = client.get(GetRequest { name: "nobody".into() }).await.expect_err("it is not there");
    assert_eq!(missing.code(), Code::NotFound);
    client.apply(ApplyRequest { deployments: vec![typed("wine")], ..Default::default() }).await.expect("it is right");
    let stale = DeleteRequest { name: "wine".into(), resource_version: "999".into(), ..Default::default() };
    assert_eq!(client.delete(stale).await.expect_err("another version").code(), Code::Aborted);
}

#[tokio::test]
async fn watch_explain_plan_and_lists() {
    let mut world = World::start().await;
    world.worker("node-1", ByteSize::gib(1)).await;
    let mut client = client(&world).await;
    let mut watch = client.watch(WatchRequest::default()).await.expect("it is serving").into_inner();
    let first = watch.message().await.expect("it goes on").expect("a message");
    assert_eq!(first.r#type(), Type::Bookmark);

    let request = PlanRequest { manifests: manifest("iris"), ..Default::default() };
    let plan = client.plan(request).await.expect("it is right").into_inner();
    assert_eq!((plan.steps.len(), plan.documents[0].outcome.as_str()), (1, "created"), "{plan:?}");

    client.apply(ApplyRequest { manifests: manifest("iris"), ..Default::default() }).await.expect("it is right");
    let available = async {
        loop {
            let event = watch.message().await.expect("it goes on").expect("a message");
            if event.deployment.and_then(|d| d.status).is_some_and(|status| status.phase == "Available") {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, available).await.expect("it is available");
    let explained = client.explain(ExplainRequest { name: "iris".into() }).await.expect("it is there").into_inner();
    assert_eq!(explained.workers[0].verdict(), Verdict::Holds);
    let workers = client.list_workers(ListWorkersRequest {}).await.expect("it is serving").into_inner().workers;
    assert_eq!((workers[0].name.as_str(), workers[0].ready), ("node-1", 1));
    let events = client.list_events(ListEventsRequest::default()).await.expect("it is serving").into_inner().events;
    assert!(events.iter().any(|event| event.deployment.as_deref() == Some("iris")), "{events:?}");
}

/// gRPC tools ask the server what it offers.
#[tokio::test]
async fn reflection_lists_the_service() {
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let world = World::start().await;
    let endpoint = tonic::transport::Endpoint::new(world.base.clone()).expect("a URI");
    let channel = endpoint.connect().await.expect("it is serving");
    let mut client = ServerReflectionClient::new(channel.clone());
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers =
        client.server_reflection_info(tokio_stream::once(request)).await.expect("it is serving").into_inner();
    let answer = answers.message().await.expect("it answers").expect("a message").message_response;
    let Some(MessageResponse::ListServicesResponse(list)) = answer else { panic!("not a list: {answer:?}") };
    assert!(list.service.iter().any(|service| service.name == "berth.control.v1.Control"), "{list:?}");

    let mut unknown = tonic::client::Grpc::new(channel);
    unknown.ready().await.expect("it is serving");
    let path = "/berth.control.v9.Nothing/Do".parse().expect("a path");
    let codec: tonic_prost::ProstCodec<GetRequest, Deployment> = Default::default();
    let status = unknown.unary(tonic::Request::new(GetRequest::default()), path, codec).await.expect_err("no such");
    assert_eq!(status.code(), Code::Unimplemented);
}
