//! A picker as a Gateway talks to it: streams of external processing, without a network.

use std::{
    collections::{BTreeSet, VecDeque},
    convert::Infallible,
    future::poll_fn,
    net::SocketAddr,
    num::NonZeroU32,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use berth_operator::picker::{PickerServer, Pool};
use berth_wire::{
    external_processor::{
        HttpBody, HttpHeaders, HttpTrailers, ListValue, Metadata, ProcessingRequest, ProcessingResponse,
        ProtocolConfiguration, Struct, Value,
        body_mutation::Mutation,
        external_processor_client::ExternalProcessorClient,
        processing_mode::{BodySendMode, HeaderSendMode},
        processing_request::Request,
        processing_response::Response,
        value::Kind,
    },
    health::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient},
};
use futures::{
    FutureExt as _,
    channel::mpsc::{Sender, channel},
};
use http_body::Frame;
use tonic::{
    Code, Streaming,
    codegen::{Body, Bytes, Service as _, http},
};

/// A stream about one request.
struct Conversation {
    parts: Sender<ProcessingRequest>,
    answers: Streaming<ProcessingResponse>,
}

fn address(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number], 8080))
}

fn pool(ready: &[u8], most: u32) -> Pool {
    let pool = Pool::new(NonZeroU32::new(most));
    pool.set_ready(&ready.iter().copied().map(address).collect::<BTreeSet<_>>());
    pool
}

async fn open(pool: &Pool) -> Conversation {
    let (parts, asked) = channel(8);
    let mut client = ExternalProcessorClient::new(PickerServer::new(pool.clone()));
    let answers = client.process(asked).await.expect("a stream").into_inner();
    Conversation { parts, answers }
}

fn part(request: Request) -> ProcessingRequest {
    ProcessingRequest { request: Some(request), ..ProcessingRequest::default() }
}

fn head() -> ProcessingRequest {
    part(Request::RequestHeaders(HttpHeaders { end_of_stream: false }))
}

fn body(text: &'static str, end_of_stream: bool) -> HttpBody {
    HttpBody { body: text.into(), end_of_stream }
}

fn text(text: &str) -> Value {
    Value { kind: Some(Kind::StringValue(text.to_owned())) }
}

fn metadata(namespace: &str, key: &str, value: Value) -> Option<Metadata> {
    let inner = Struct { fields: [(key.to_owned(), value)].into() };
    Some(Metadata { filter_metadata: [(namespace.to_owned(), inner)].into() })
}

/// The request headers, with the endpoints that may be chosen.
fn head_of(subset: &[&str]) -> ProcessingRequest {
    let values = subset.iter().map(|one| text(one)).collect();
    let list = Value { kind: Some(Kind::ListValue(ListValue { values })) };
    let hint = metadata("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", list);
    ProcessingRequest { metadata_context: hint, ..head() }
}

impl Conversation {
    async fn ask(&mut self, part: ProcessingRequest) -> ProcessingResponse {
        self.parts.try_send(part).expect("room");
        self.answers.message().await.expect("an answer").expect("the stream goes on")
    }

    /// The endpoint that is chosen, or the status that a client gets.
    async fn pick(&mut self, head: ProcessingRequest) -> String {
        let answer = self.ask(head).await;
        match answer.response.expect("an answer") {
            Response::RequestHeaders(headers) => {
                let common = headers.response.expect("instructions");
                let set = common.header_mutation.expect("a header").set_headers.remove(0).header.expect("a header");
                assert_eq!(set.key, "x-gateway-destination-endpoint");
                let chosen = String::from_utf8(set.raw_value.to_vec()).expect("text");
                let mut spaces = answer.dynamic_metadata.expect("metadata").fields;
                let Some(Kind::StructValue(balancer)) = spaces.remove("envoy.lb").and_then(|one| one.kind) else {
                    panic!("no metadata of a load balancer: {spaces:?}")
                };
                assert_eq!(balancer.fields["x-gateway-destination-endpoint"], text(&chosen), "both say the same");
                chosen
            }
            Response::ImmediateResponse(refusal) => refusal.status.expect("a status").code.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

fn in_flight(pool: &Pool) -> i64 {
    let text = pool.metrics();
    let line = text.lines().find(|line| line.starts_with("berth_picker_requests_in_flight "));
    line.and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a sample")
}

#[tokio::test]
async fn requests_spread_and_their_places_are_released_however_they_end() {
    let pool = pool(&[1, 2, 3], 0);
    let mut all = Vec::new();
    let mut chosen = Vec::new();
    for _ in 0..6 {
        let mut conversation = open(&pool).await;
        chosen.push(conversation.pick(head()).await);
        all.push(conversation);
    }
    let each = ["10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.3:8080"];
    assert_eq!(chosen, [each, each].concat());
    assert_eq!(in_flight(&pool), 6);

    // The response ends, with its headers, its body or its trailers.
    let mut ended = 6;
    for (conversation, last) in all.iter_mut().zip([
        Request::ResponseHeaders(HttpHeaders { end_of_stream: true }),
        Request::ResponseBody(body("done", true)),
        Request::ResponseTrailers(HttpTrailers {}),
    ]) {
        conversation.ask(part(last)).await;
        ended -= 1;
        assert_eq!(in_flight(&pool), ended);
    }
    // The Gateway has nothing more to ask.
    let mut quiet = all.remove(3);
    quiet.parts.close_channel();
    assert!(quiet.answers.message().await.expect("an end in good order").is_none());
    assert_eq!(in_flight(&pool), 2);
    // The client goes, and with it the stream.
    drop(all.pop());
    assert_eq!(in_flight(&pool), 1);
    drop(all);
    assert_eq!(in_flight(&pool), 0);
    assert!(pool.metrics().contains("berth_picker_requests_total{outcome=\"picked\"} 6"), "{}", pool.metrics());
}

#[tokio::test]
async fn a_gateway_says_which_endpoints_there_are_for_it() {
    let pool = pool(&[1, 2], 0);
    let cases: [(&[&str], &str); 4] = [
        (&["10.0.0.2:8080"], "10.0.0.2:8080"),
        (&["10.0.0.9:8080", "10.0.0.2:8080", "nonsense"], "10.0.0.2:8080"),
        (&["10.0.0.9:8080"], "503"),
        (&[], "503"),
    ];
    for (subset, expected) in cases {
        assert_eq!(open(&pool).await.pick(head_of(subset)).await, expected, "{subset:?}");
    }
    assert_eq!(in_flight(&pool), 0);
}

#[tokio::test]
async fn without_an_endpoint_clients_get_an_answer() {
    let pool = pool(&[1], 2);
    let (mut first, mut second) = (open(&pool).await, open(&pool).await);
    assert_eq!((first.pick(head()).await, second.pick(head()).await), ("10.0.0.1:8080".into(), "10.0.0.1:8080".into()));
    assert_eq!(open(&pool).await.pick(head()).await, "429");
    drop(first);
    assert_eq!(open(&pool).await.pick(head()).await, "10.0.0.1:8080");
    pool.set_ready(&BTreeSet::new());
    assert_eq!(open(&pool).await.pick(head()).await, "503");
    let text = pool.metrics();
    for line in ["{outcome=\"busy\"} 1", "{outcome=\"none_ready\"} 1", "berth_picker_ready_pods 0"] {
        assert!(text.contains(line), "{text}");
    }
}

#[tokio::test]
async fn bodies_go_back_as_they_came_where_the_gateway_streams_them() {
    let pool = pool(&[1], 0);
    let mut conversation = open(&pool).await;
    let streamed = BodySendMode::FullDuplexStreamed.into();
    let config =
        ProtocolConfiguration { request_body_mode: streamed, response_body_mode: streamed, ..Default::default() };
    let answer = conversation.ask(ProcessingRequest { protocol_config: Some(config), ..head() }).await;
    assert_eq!(answer.mode_override, None, "a body is on its way");
    let chunks = [("a", false), ("b", true)];
    for (chunk, ends) in chunks {
        let Some(Response::RequestBody(back)) =
            conversation.ask(part(Request::RequestBody(body(chunk, ends)))).await.response
        else {
            panic!("no body")
        };
        let mutation = back.response.and_then(|common| common.body_mutation).and_then(|one| one.mutation);
        let Some(Mutation::StreamedResponse(back)) = mutation else { panic!("it is kept") };
        assert_eq!((back.body.as_ref(), back.end_of_stream), (chunk.as_bytes(), ends));
    }
    conversation.ask(part(Request::ResponseHeaders(HttpHeaders { end_of_stream: false }))).await;
    let Some(Response::ResponseBody(_)) =
        conversation.ask(part(Request::ResponseBody(body("x", false)))).await.response
    else {
        panic!("no body")
    };
    assert_eq!(in_flight(&pool), 1, "the response goes on");
}

#[tokio::test]
async fn bodies_are_not_sent_where_the_gateway_can_be_told_so() {
    let pool = pool(&[1], 0);
    for (mode, early, told) in [
        (BodySendMode::Buffered, false, true),
        (BodySendMode::Streamed, false, true),
        (BodySendMode::Streamed, true, false),
        (BodySendMode::None, false, false),
    ] {
        let mut conversation = open(&pool).await;
        let config = ProtocolConfiguration {
            request_body_mode: mode.into(),
            response_body_mode: BodySendMode::None.into(),
            send_body_without_waiting_for_header_response: early,
        };
        let answer = conversation.ask(ProcessingRequest { protocol_config: Some(config), ..head() }).await;
        assert_eq!(answer.mode_override.is_some(), told, "{mode:?}");
        if let Some(mode) = answer.mode_override {
            let bodies = (mode.request_body_mode(), mode.response_body_mode());
            assert_eq!(bodies, (BodySendMode::None, BodySendMode::None));
            assert_eq!(mode.response_trailer_mode(), HeaderSendMode::Send, "the stream lasts as long as the response");
        }
        // One that comes anyway goes on unchanged.
        let Some(Response::RequestBody(back)) =
            conversation.ask(part(Request::RequestBody(body("a", true)))).await.response
        else {
            panic!("no body")
        };
        assert_eq!(back.response.expect("go on").body_mutation, None);
    }
}

#[tokio::test]
async fn a_request_counts_where_the_gateway_says_that_it_is_served() {
    let pool = pool(&[1, 2], 1);
    let mut conversation = open(&pool).await;
    assert_eq!(conversation.pick(head()).await, "10.0.0.1:8080");
    let served = metadata("envoy.lb", "x-gateway-destination-endpoint-served", text("10.0.0.2:8080"));
    let headers = part(Request::ResponseHeaders(HttpHeaders { end_of_stream: false }));
    conversation.ask(ProcessingRequest { metadata_context: served, ..headers }).await;
    let mut next = open(&pool).await;
    assert_eq!(next.pick(head()).await, "10.0.0.1:8080", "the other one is busy");
    assert_eq!(open(&pool).await.pick(head()).await, "429");
}

#[tokio::test]
async fn an_observer_gets_no_answers_and_no_place() {
    let pool = pool(&[1], 0);
    let mut conversation = open(&pool).await;
    conversation.parts.try_send(ProcessingRequest { observability_mode: true, ..head() }).expect("room");
    conversation.parts.close_channel();
    assert!(conversation.answers.message().await.expect("an end in good order").is_none());
    assert!(!pool.metrics().contains("outcome="), "{}", pool.metrics());
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_too_large_or_never_begins_ends() {
    let pool = pool(&[1], 0);
    let mut large = open(&pool).await;
    let body = HttpBody { body: vec![b'x'; 3 << 20].into(), end_of_stream: true };
    large.parts.try_send(part(Request::RequestBody(body))).expect("room");
    assert_eq!(large.answers.message().await.expect_err("too large").code(), Code::OutOfRange);
    let mut silent = open(&pool).await;
    assert_eq!(silent.answers.message().await.expect_err("nothing came").code(), Code::DeadlineExceeded);
    // Of a request that has begun, nothing may come for as long as its model takes.
    let mut slow = open(&pool).await;
    assert_eq!(slow.pick(head()).await, "10.0.0.1:8080");
    let more = tokio::time::timeout(Duration::from_secs(3_600), slow.answers.message());
    assert!(more.await.is_err(), "it goes on");
    assert_eq!(in_flight(&pool), 1);
}

#[tokio::test]
async fn streams_at_once_are_bounded() {
    let server = PickerServer::new(pool(&[1], 0));
    let mut streams = Vec::new();
    let refused = loop {
        assert!(streams.len() <= 8_192, "there is no bound");
        let (parts, asked) = channel::<ProcessingRequest>(1);
        match ExternalProcessorClient::new(server.clone()).process(asked).await {
            Ok(answers) => streams.push((parts, answers)),
            Err(status) => break status,
        }
    };
    assert_eq!((refused.code(), streams.len()), (Code::Unavailable, 8_192), "{refused}");
    drop(streams.pop());
    let (_parts, asked) = channel::<ProcessingRequest>(1);
    assert!(ExternalProcessorClient::new(server).process(asked).await.is_ok(), "one has ended");
}

/// A stream whose data are these pieces, and then nothing for as long as it lasts.
struct Pieces(VecDeque<Bytes>);

impl Pieces {
    /// A message without anything in it, and of one of 2 MiB so much in pieces of 16 KiB.
    fn begun(pieces: usize) -> Self {
        let prefixes = [Bytes::from_static(&[0; 5]), Bytes::from_static(&[0, 0, 0x20, 0, 0])];
        let piece = Bytes::from_static(&[b'x'; 16 << 10]);
        Self(prefixes.into_iter().chain(std::iter::repeat_n(piece, pieces)).collect())
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.pop_front().map_or(Poll::Pending, |piece| Poll::Ready(Some(Ok(Frame::data(piece)))))
    }
}

async fn begin(server: &PickerServer, pieces: Pieces) -> tonic::body::Body {
    let request = http::Request::post("/envoy.service.ext_proc.v3.ExternalProcessor/Process");
    let request = request.header("content-type", "application/grpc").body(pieces).expect("a request");
    server.clone().call(request).await.expect("an answer").into_body()
}

/// The status of a stream, at its end.
async fn status(answers: &mut tonic::body::Body) -> String {
    let frame = poll_fn(|cx| Pin::new(&mut *answers).poll_frame(cx)).await.expect("an end").expect("no error");
    let trailers = frame.into_trailers().expect("no answer");
    trailers["grpc-status"].to_str().expect("text").to_owned()
}

#[tokio::test(start_paused = true)]
async fn parts_that_are_not_whole_have_a_sum_and_an_end() {
    let pool = pool(&[1], 0);
    let server = PickerServer::new(pool.clone());
    let mut held = Vec::new();
    // Each is 16 KiB short of 2 MiB, and all of them half a MiB short of 64.
    for _ in 0..32 {
        let mut answers = begin(&server, Pieces::begun(127)).await;
        assert!(status(&mut answers).now_or_never().is_none(), "there is room");
        held.push(answers);
    }
    let mut more = begin(&server, Pieces::begun(127)).await;
    assert_eq!(status(&mut more).await, "14", "UNAVAILABLE");
    assert!(pool.metrics().contains("berth_picker_parts_refused_total 1"), "{}", pool.metrics());
    // What never becomes whole ends, and another has its room.
    for mut answers in held {
        assert_eq!(status(&mut answers).await, "4", "DEADLINE_EXCEEDED");
    }
    let mut again = begin(&server, Pieces::begun(127)).await;
    assert!(status(&mut again).now_or_never().is_none(), "there is room again");
}

#[tokio::test]
async fn parts_that_were_answered_do_not_count() {
    let mut conversation = open(&pool(&[1], 0)).await;
    for _ in 0..70 {
        let body = HttpBody { body: vec![b'x'; 1 << 20].into(), end_of_stream: false };
        let answer = conversation.ask(part(Request::RequestBody(body))).await;
        assert!(matches!(answer.response, Some(Response::RequestBody(_))));
    }
}

#[tokio::test]
async fn health_is_that_of_the_pool() {
    let pool = Pool::new(None);
    let mut client = HealthClient::new(PickerServer::new(pool.clone()));
    let mut asked = Vec::new();
    for _ in 0..2 {
        for service in ["liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", ""] {
            let answer = client.check(HealthCheckRequest { service: service.to_owned() }).await.expect("an answer");
            asked.push(answer.into_inner().status() == ServingStatus::Serving);
        }
        pool.set_ready(&BTreeSet::new());
    }
    assert_eq!(asked, [true, false, false, false, true, true, true, true]);
    let unknown = client.check(HealthCheckRequest { service: "other".to_owned() }).await.expect_err("unknown");
    assert_eq!(unknown.code(), Code::NotFound);
}
