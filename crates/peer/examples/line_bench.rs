//! Cost of a connection: echo over loopback with mutual TLS, one caller and many.
//!
//! `cargo run --release -p berth-peer --example line_bench [BYTES] [SECONDS]`

#![expect(clippy::print_stdout, reason = "its result is what it prints")]

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use berth_peer::{Identity, PeerBody, PeerHandler, PeerListener, Peers, full, pki::Authority};
use berth_spec::WorkerId;
use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use hdrhistogram::Histogram;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;

struct Echo;

impl PeerHandler for Echo {
    fn serve(
        self: Arc<Self>,
        _: &berth_peer::Caller,
        request: Request<Incoming>,
    ) -> BoxFuture<'static, Response<PeerBody>> {
        async move {
            let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            Response::new(full(body))
        }
        .boxed()
    }
}

async fn ask(peers: &Peers, name: &WorkerId, body: &Bytes, until: Instant) -> Histogram<u64> {
    let peer = peers.get(name).expect("known");
    let mut times = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("three digits");
    while Instant::now() < until {
        let begun = Instant::now();
        let request = Request::post("/v2/models/iris/infer").body(full(body.clone())).expect("a request");
        let answer = peer.send(request).await.expect("an answer");
        answer.into_body().collect().await.expect("a body");
        times.saturating_record(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    times
}

fn main() {
    let mut words = std::env::args().skip(1);
    let bytes = words.next().map_or(256, |word| word.parse().expect("bytes"));
    let time = Duration::from_secs(words.next().map_or(3, |word| word.parse().expect("seconds")));
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::create(folder.path()).expect("a CA");
    let [a, b] = ["a", "b"].map(|name| {
        let folder = authority.issue(&WorkerId::new(name).expect("a name"), &[]).expect("issued");
        Identity::load(folder).expect("loads")
    });
    let (listener, name) =
        (PeerListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)), b), WorkerId::new("b").expect("a name"));
    let listener = listener.expect("a port");
    let at = listener.local_addr().expect("an address");
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let (server, client) = (runtime(), runtime());
    let serving = server.spawn(listener.run(Arc::new(Echo), CancellationToken::new()));
    let body = Bytes::from(vec![7; bytes]);
    client.block_on(async {
        let peers = Peers::fixed(a, [(name.clone(), at)]);
        for callers in [1, 8, 64] {
            ask(&peers, &name, &body, Instant::now() + Duration::from_millis(300)).await;
            let until = Instant::now() + time;
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..callers {
                let (peers, name, body) = (peers.clone(), name.clone(), body.clone());
                tasks.spawn(async move { ask(&peers, &name, &body, until).await });
            }
            let mut all = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).expect("three digits");
            while let Some(times) = tasks.join_next().await {
                all.add(times.expect("no panic")).expect("same range");
            }
            let micros = |quantile| all.value_at_quantile(quantile) as f64 / 1e3;
            let rate = all.len() as f64 / time.as_secs_f64();
            println!(
                "{callers:>3} at once, {bytes} bytes: p50 {:.1} µs, p99 {:.1} µs, {rate:.0}/s",
                micros(0.5),
                micros(0.99)
            );
        }
    });
    serving.abort();
}
