//! Calls to models of a runtime: what passes, what is put in, what is loaded again.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use berth_mesh::exchange;
use berth_spec::{Datatype, FailureCategory, InferError, InferRequest, Tensor, inference::Shed};
use berth_wire::mmesh::LoadModelRequest;
use berth_worker::{
    runtime::{LoadedModel, Runtime as _, spi::Settings},
    scripted,
};
use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, Request};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use prost::Message as _;
use tokio::sync::oneshot;

use super::{Bench, PATIENCE, request};

fn framed(message: &[u8]) -> Bytes {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(message.len()).expect("short").to_be_bytes());
    bytes.extend_from_slice(message);
    bytes.into()
}

/// An answer: its head, its bytes, its trailers.
type Answer = (HeaderMap, Bytes, HeaderMap);

async fn call(
    model: &dyn LoadedModel,
    method: &str,
    metadata: &[(&'static str, &str)],
    body: Bytes,
) -> Result<Answer, InferError> {
    let mut parts = Request::post(method).body(()).expect("a request").into_parts().0;
    for (name, value) in metadata {
        parts.headers.append(*name, value.parse().expect("a value"));
    }
    let body = Full::new(body).map_err(|never| match never {}).boxed_unsync();
    let (head, body) = model.exchange(parts, body).await?.into_parts();
    let collected = collect(body).await;
    let trailers = collected.trailers().cloned().unwrap_or_default();
    Ok((head.headers, collected.to_bytes(), trailers))
}

fn collect(body: exchange::Body) -> futures::future::BoxFuture<'static, http_body_util::Collected<Bytes>> {
    Box::pin(async move { body.collect().await.expect("the whole answer") })
}

fn status(answer: &Answer) -> &str {
    let (head, _, trailers) = answer;
    head.get("grpc-status").or(trailers.get("grpc-status")).map_or("", |value| value.to_str().expect("a number"))
}

#[test]
fn any_method_passes_with_its_metadata() {
    let bench = Bench::start(scripted::Settings::default());
    let loaded = bench.runtime.load(&request("myModel", "SIZE_1")).expect("it loads");
    let answer = bench.tokio.block_on(call(
        &*loaded.model,
        "/any.Service/method",
        &[("x-mine", "1"), ("x-mine", "2"), ("mm-model-id", "alias")],
        framed(b"payload"),
    ));
    let answer = answer.expect("an answer");
    assert_eq!((status(&answer), &answer.1), ("0", &framed(b"payload")));
    assert_eq!(answer.0["testing-model-id"], "myModel", "not as the client called it");
    assert_eq!(answer.0.get_all("x-mine").iter().count(), 2);
}

#[test]
fn a_method_that_wants_the_id_gets_it_and_others_are_refused() {
    let methods = vec![("a.B/named".to_owned(), vec![1]), ("a.B/plain".to_owned(), vec![])];
    let bench = Bench::start(scripted::Settings { methods, ..scripted::Settings::default() });
    let loaded = bench.runtime.load(&request("myModel", "SIZE_1")).expect("it loads");
    let message =
        LoadModelRequest { model_id: "alias".to_owned(), model_path: "p".repeat(100_000), ..Default::default() };
    let ask = |method| bench.tokio.block_on(call(&*loaded.model, method, &[], framed(&message.encode_to_vec())));
    let named = ask("/a.B/named").expect("an answer");
    let named = LoadModelRequest::decode(&named.1[5..]).expect("a message");
    assert_eq!(named, LoadModelRequest { model_id: "myModel".to_owned(), ..message.clone() });
    let plain = ask("/a.B/plain").expect("an answer");
    assert_eq!(plain.1, framed(&message.encode_to_vec()));
    assert_eq!(status(&ask("/a.B/other").expect("an answer")), "12");
    assert_eq!(status(&ask("/mmesh.ModelRuntime/unloadModel").expect("an answer")), "12");
    assert_eq!(bench.counts.loaded(), ["myModel"]);
}

#[test]
fn a_compressed_message_that_cannot_name_the_model_is_refused_with_the_reason() {
    let methods = vec![("a.B/named".to_owned(), vec![1])];
    let bench = Bench::start(scripted::Settings { methods, ..scripted::Settings::default() });
    let loaded = bench.runtime.load(&request("myModel", "SIZE_1")).expect("it loads");
    let mut compressed = framed(b"zip").to_vec();
    compressed[0] = 1;
    let answer = bench.tokio.block_on(call(&*loaded.model, "/a.B/named", &[], compressed.into()));
    let answer = answer.expect("an answer");
    let why = answer.0["grpc-message"].to_str().expect("text");
    assert!(status(&answer) == "12" && why.contains("uncompressed"), "{} {why}", status(&answer));
}

#[test]
fn statuses_of_the_runtime_pass() {
    let bench = Bench::start(scripted::Settings::default());
    let loaded = bench.runtime.load(&request("m", "SIZE_1")).expect("it loads");
    for (asked, code) in [("UNAVAILABLE:busy", "14"), ("INTERNAL:broken", "13"), ("DATA_LOSS:gone", "15")] {
        let testing = format!("error={asked}");
        let answer = bench.tokio.block_on(call(&*loaded.model, "/a.B/c", &[("testing", &testing)], framed(b"x")));
        assert_eq!(status(&answer.expect("an answer")), code);
    }
    assert_eq!(bench.counts.loads(), 1, "none of these says that the model is not there");
}

/// HTTP/2 ends a connection on which far too many headers come: here one that the calls of a thread share.
#[test]
fn an_answer_with_many_headers_leaves_the_connection_to_the_others() {
    let bench = Bench::start(scripted::Settings::default());
    let loaded = bench.runtime.load(&request("m", "SIZE_1")).expect("it loads");
    let (done, long_is_done) = oneshot::channel::<()>();
    let late = stream::once(async move {
        long_is_done.await.expect("it ends");
        Ok(Frame::data(framed(b"late")))
    });
    let other = async {
        let parts = Request::post("/a.B/other").body(()).expect("a request").into_parts().0;
        let answer = loaded.model.exchange(parts, StreamBody::new(late).boxed_unsync()).await.expect("an answer");
        collect(answer.into_body()).await.to_bytes()
    };
    let long = async {
        let many = "x".repeat(300_000);
        let answer = call(&*loaded.model, "/a.B/long", &[("x-mine", &many)], framed(b"x")).await;
        done.send(()).expect("it waits");
        answer.expect("an answer").0["x-mine"].len()
    };
    let (other, long) = bench.tokio.block_on(async { tokio::join!(other, long) });
    assert_eq!((other, long), (framed(b"late"), 300_000));
}

#[test]
fn a_runtime_that_lost_its_models_loads_them_again_under_the_request() {
    let bench = Bench::start(scripted::Settings::default());
    let loaded = bench.runtime.load(&request("m", "SIZE_1_20")).expect("it loads");
    bench.counts.purge();
    let answers = bench.tokio.block_on(async {
        let one = || call(&*loaded.model, "/a.B/c", &[], framed(&[7; 100_000]));
        futures::future::join_all((0..8).map(|_| one())).await
    });
    for answer in answers {
        let answer = answer.expect("nobody sees it");
        assert_eq!((status(&answer), answer.1.len()), ("0", 100_005));
    }
    assert_eq!(bench.counts.loads(), 2, "once for all");
    assert_eq!(loaded.model.health().lost, None);
}

#[test]
fn long_requests_are_repeated_up_to_the_bound() {
    let bounded = |settings| Settings { kept: 6 << 20, ..settings };
    let bench = Bench::declared(scripted::Settings::default(), bounded);
    let loaded = bench.runtime.load(&request("m", "SIZE_1_20")).expect("it loads");
    for (bytes, repeated) in [(5 << 20, true), (7 << 20, false)] {
        bench.counts.purge();
        let answer = bench.tokio.block_on(call(&*loaded.model, "/a.B/c", &[], framed(&vec![7; bytes])));
        match answer {
            Ok(answer) => assert_eq!((status(&answer), answer.1.len(), repeated), ("0", bytes + 5, true)),
            Err(error) => {
                assert!(matches!(error, InferError::Shed { reason: Shed::Unavailable, .. }), "{error}");
                assert!(!repeated, "{bytes} bytes: {error}");
            }
        }
    }
    assert_eq!(bench.counts.loads(), 3, "it is loaded again all the same");
}

#[test]
fn not_found_is_the_answer_where_the_model_is_there() {
    let bench = Bench::start(scripted::Settings::default());
    let loaded = bench.runtime.load(&request("m", "SIZE_1")).expect("it loads");
    for _ in 0..5 {
        let testing = [("testing", "error=NOT_FOUND:no such customer")];
        let answer = bench.tokio.block_on(call(&*loaded.model, "/a.B/c", &testing, framed(b"x")));
        assert_eq!(status(&answer.expect("an answer")), "5");
    }
    assert_eq!(bench.counts.loads(), 4, "it was loaded some more times, to see, and then believed");
}

#[test]
fn a_model_that_is_lost_again_and_again_is_loaded_as_often() {
    let bench = Bench::start(scripted::Settings::default());
    let loaded = bench.runtime.load(&request("m", "SIZE_1")).expect("it loads");
    for _ in 0..5 {
        let testing = [("testing", "lose=2")];
        let answer = bench.tokio.block_on(call(&*loaded.model, "/a.B/c", &testing, framed(b"x")));
        assert_eq!(status(&answer.expect("an answer")), "0");
    }
    assert_eq!(bench.counts.loads(), 11, "twice for each request");
    let hopeless = bench.tokio.block_on(call(&*loaded.model, "/a.B/c", &[("testing", "lose=99")], framed(b"x")));
    assert!(matches!(hopeless, Err(InferError::Shed { reason: Shed::Unavailable, .. })), "{hopeless:?}");
}

#[test]
fn unavailable_is_internal_where_modelmesh_says_so() {
    let wraps = |settings| Settings { wraps_unavailable: true, ..settings };
    let bench = Bench::declared(scripted::Settings::default(), wraps);
    let loaded = bench.runtime.load(&request("m", "SIZE_1")).expect("it loads");
    let testing = [("testing", "error=UNAVAILABLE:busy")];
    let answer = bench.tokio.block_on(call(&*loaded.model, "/a.B/c", &testing, framed(b"x"))).expect("an answer");
    assert_eq!(status(&answer), "13");
    assert_eq!(answer.0["grpc-message"], "ModelRuntime%20UNAVAILABLE:%20a.B/c:%20UNAVAILABLE:%20busy");
}

#[test]
fn a_lost_model_that_cannot_be_loaded_again_is_told() {
    let bench = Bench::start(scripted::Settings::default());
    let loaded = bench.runtime.load(&request("m", "SIZE_1")).expect("it loads");
    let mut changes = loaded.model.changes().expect("it tells");
    bench.counts.purge();
    bench.counts.refuse("the disk is gone");
    let refused = bench.tokio.block_on(call(&*loaded.model, "/a.B/c", &[], framed(b"x"))).expect_err("it is gone");
    assert!(matches!(&refused, InferError::Shed { reason: Shed::Unavailable, .. }), "{refused:?}");
    let lost = changes.borrow_and_update().lost.clone().expect("it is lost");
    assert!(lost.message.contains("the disk is gone"), "{lost}");
}

/// Models of a server that is gone: claimed as ready, none of them would be loaded elsewhere. Takes the 20 s for which it may be away.
#[test]
fn a_runtime_that_stays_away_has_lost_its_models() {
    let bench = Bench::start(scripted::Settings::default());
    let load = |name| bench.runtime.load(&request(name, "SIZE_1"));
    let [asked, silent] = ["asked", "silent"].map(|name| load(name).expect("it loads").model);
    let mut changes = silent.changes().expect("it tells");
    bench.tokio.shutdown_timeout(PATIENCE);
    let tokio = tokio::runtime::Runtime::new().expect("threads");
    assert!(tokio.block_on(call(&*asked, "/a.B/c", &[], framed(b"x"))).is_err());
    assert_eq!(silent.health().lost, None, "it may be started again");
    tokio.block_on(changes.changed()).expect("it tells");
    let lost = changes.borrow_and_update().lost.clone().expect("it is lost");
    assert_eq!(lost.category, FailureCategory::Network, "{lost}");
    let refused = load("next").err().expect("nobody is there");
    assert_eq!(refused.category, FailureCategory::Network, "{refused}");
}

#[test]
fn requests_at_once_are_bounded_where_the_runtime_says_so() {
    let bench = Bench::start(scripted::Settings { concurrency: 1, ..scripted::Settings::default() });
    let loaded = bench.runtime.load(&request("m", "SIZE_1")).expect("it loads");
    let outcomes = bench.tokio.block_on(async {
        let slow = || call(&*loaded.model, "/a.B/c", &[("testing", "delay=10")], framed(b"x"));
        futures::future::join_all((0..20).map(|_| slow())).await
    });
    let full = outcomes.iter().filter(|one| matches!(one, Err(InferError::Shed { reason: Shed::QueueFull, .. })));
    assert_eq!((full.count(), outcomes.iter().filter(|one| one.is_ok()).count()), (3, 17));
}

#[test]
fn tensors_go_as_an_inference_of_the_protocol() {
    let bench = Bench::start(scripted::Settings::default());
    let loaded = bench.runtime.load(&request("m", "SIZE_1")).expect("it loads");
    let data: Vec<u8> = [1.5_f32, -2.0].into_iter().flat_map(f32::to_le_bytes).collect();
    let tensor = Tensor::new("x".to_owned(), Datatype::Fp32, vec![1, 2], data.into()).expect("a tensor");
    let deadline = Instant::now() + Duration::from_secs(60);
    let infer = InferRequest { id: None, parameters: BTreeMap::new(), inputs: vec![tensor.clone()], outputs: vec![] };
    let outputs = bench.tokio.block_on(loaded.model.infer(infer, deadline)).expect("an answer");
    assert_eq!((outputs.len(), &outputs[0].data, &outputs[0].name), (1, &tensor.data, &tensor.name));
    assert!(loaded.model.infers_undecoded());
}
