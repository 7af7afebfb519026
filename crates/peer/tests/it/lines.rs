use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::{Duration, Instant},
};

use berth_peer::{EventLoops, LinePolicy, Members, PROTOCOL, Peer, Peers, SendError};
use berth_spec::{Health, Member, Roles};
use futures::future::join_all;
use http_body_util::BodyExt as _;
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::oneshot,
};

use crate::{
    node::{Ca, Node, PATIENCE, ask, get, name, until},
    proxy::Proxy,
};

fn member(text: &str, at: std::net::SocketAddr, incarnation: u64) -> Member {
    Member {
        name: name(text),
        incarnation,
        gossip: at,
        peer: at,
        roles: Roles::ALL,
        labels: Default::default(),
        version: "0".into(),
        protocol: PROTOCOL,
    }
}

/// Limits for a busy machine.
fn patient() -> LinePolicy {
    LinePolicy { dial: PATIENCE, ping_timeout: PATIENCE, ..LinePolicy::default() }
}

/// The peer `b`, once membership has told of it.
async fn known(peers: &Peers) -> Arc<Peer> {
    until("b is known", || peers.get(&name("b")).is_some()).await;
    peers.get(&name("b")).expect("it was there")
}

async fn lost(peer: &Peer) {
    tokio::time::timeout(PATIENCE, peer.lost()).await.expect("it is told");
}

#[tokio::test]
async fn a_request_is_answered_and_the_caller_is_known() {
    let ca = Ca::new();
    let node = Node::start(ca.identity("b"));
    let peer = ca.lines("a", "b", node.at).get(&name("b")).expect("known");
    // The peers themselves are gone, and so are their lines.
    assert!(ask(&peer, "/echo").await.is_err());

    let peers = ca.lines("a", "b", node.at);
    let peer = peers.get(&name("b")).expect("known");
    let answer = ask(&peer, "/echo").await.expect("an answer");
    assert_eq!(answer.headers()["caller"], "a");
    assert_eq!(answer.into_body().collect().await.expect("a body").to_bytes(), "tensor");
    assert!(peer.rtt().is_some() && !peer.failing());
    assert!(peers.get(&name("a")).is_none() && peers.all().len() == 1);
    drop((peer, peers));
    node.stop().await;
}

#[tokio::test]
async fn concurrent_requests_join_in_one_dial_and_lines_are_few() {
    let ca = Ca::new();
    let node = Node::start(ca.identity("b"));
    let proxy = Proxy::to(node.at).await;
    let peers = ca.lines("a", "b", proxy.at);
    let peer = peers.get(&name("b")).expect("known");
    for _ in 0..20 {
        let answers = join_all((0..50).map(|_| ask(&peer, "/echo"))).await;
        assert!(answers.iter().all(Result::is_ok));
    }
    assert_eq!(proxy.accepted.load(SeqCst), LinePolicy::default().lines);
}

/// Runs on each of two event loops, one after the other.
async fn on_each<F>(loops: &EventLoops, port: &TcpListener, run: impl Fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut held = Vec::new();
    for _ in 0..2 {
        // A loop is given what comes with a connection, and the next one goes to the other.
        let (client, accepted) = tokio::join!(TcpStream::connect(port.local_addr().expect("bound")), port.accept());
        let ((stream, _), (done, waits)) = (accepted.expect("one comes"), oneshot::channel());
        let asking = run();
        let serve = move |mut stream: TcpStream| async move {
            asking.await;
            done.send(()).expect("it waits");
            // Until the other end is gone.
            stream.read_to_end(&mut Vec::new()).await.expect("read");
        };
        loops.adopt(stream, serve).expect("taken");
        waits.await.expect("it ends");
        held.push(client.expect("it listens"));
    }
}

#[tokio::test]
async fn what_runs_on_an_event_loop_has_a_line_there() {
    let ca = Ca::new();
    let node = Node::start(ca.identity("b"));
    let proxy = Proxy::to(node.at).await;
    let peers = ca.lines("a", "b", proxy.at);
    let peer = peers.get(&name("b")).expect("known");
    let (loops, port) =
        (EventLoops::start(Some(2)).expect("threads"), TcpListener::bind("127.0.0.1:0").await.expect("a port"));
    let twenty = || {
        let peer = Arc::clone(&peer);
        async move {
            for _ in 0..20 {
                ask(&peer, "/echo").await.expect("an answer");
            }
        }
    };
    on_each(&loops, &port, twenty).await;
    // The second loop begins with the line of the first, and makes its own meanwhile.
    until("a line of its own", || proxy.accepted.load(SeqCst) >= 2).await;
    on_each(&loops, &port, twenty).await;
    assert_eq!(proxy.accepted.load(SeqCst), 2);
    // A loop that ended took its lines with it, and nothing else.
    drop(loops);
    let mut unsent = 0;
    while let Err(error) = ask(&peer, "/echo").await {
        assert!(unsent < 20, "{error}");
        unsent += 1;
    }
}

#[tokio::test]
async fn a_peer_that_takes_no_connection_has_received_nothing_and_is_found_again() {
    let ca = Ca::new();
    let node = Node::start_apart(ca.identity("b"));
    let at = node.at;
    node.stop().await;
    let peers = ca.lines("a", "b", at);
    let peer = peers.get(&name("b")).expect("known");
    let error = ask(&peer, "/echo").await.expect_err("nobody there");
    assert!(error.is_not_sent() && error.to_string().contains(&at.to_string()), "{error}");
    assert!(peer.failing());
    // While it rests nobody dials.
    assert!(ask(&peer, "/echo").await.expect_err("resting").is_not_sent());

    let node = Node::start_at(ca.identity("b"), at);
    let end = Instant::now() + PATIENCE;
    while ask(&peer, "/echo").await.is_err() {
        assert!(Instant::now() < end, "it is back and nobody noticed");
        tokio::task::yield_now().await;
    }
    assert!(!peer.failing());
    drop(node);
}

#[tokio::test]
async fn a_line_that_breaks_in_flight_is_told_as_broken() {
    let ca = Ca::new();
    let node = Node::start(ca.identity("b"));
    let proxy = Proxy::to(node.at).await;
    let peers = ca.lines("a", "b", proxy.at);
    let peer = peers.get(&name("b")).expect("known");
    let cut = async {
        until("it is served", || node.echo.served.load(SeqCst) > 0).await;
        proxy.cut().await;
    };
    let (answer, ()) = tokio::join!(ask(&peer, "/hang"), cut);
    assert!(matches!(answer, Err(SendError::Broken { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_line_that_carries_nothing_any_more_is_noticed_by_its_pings() {
    let ca = Ca::new();
    let node = Node::start(ca.identity("b"));
    let proxy = Proxy::to(node.at).await;
    let (members, roster) = Members::by_hand(member("a", node.at, 1));
    roster.set(member("b", proxy.at, 1), Health::Alive);
    let peers = Peers::start(ca.identity("a"), members, LinePolicy::default());
    let peer = known(&peers).await;
    // A busy machine may not answer the first pings in time.
    let end = Instant::now() + PATIENCE;
    while let Err(error) = ask(&peer, "/echo").await {
        assert!(Instant::now() < end, "{error}");
    }
    proxy.swallow();
    // Nobody else would ever end it.
    let answer = ask(&peer, "/hang").await;
    assert!(matches!(answer, Err(SendError::Broken { .. })), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_requests_lose_none_while_lines_are_replaced() {
    let ca = Ca::new();
    let mut node = Node::start_apart(ca.identity("b"));
    let at = node.at;
    let peers = ca.lines("a", "b", at);
    let asking = Handle::current().spawn(async move {
        let peer = peers.get(&name("b")).expect("known");
        let mut again = 0;
        for _ in 0..125 {
            let batch = (0..8).map(|_| async {
                for again in 0.. {
                    match ask(&peer, "/echo").await {
                        Ok(answer) => {
                            assert_eq!(answer.into_body().collect().await.expect("whole").to_bytes(), "tensor");
                            return again;
                        }
                        // Nothing was received: whoever has another place sends there; here the node comes back.
                        Err(SendError::NotSent { .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
                        Err(broken) => panic!("lost: {broken}"),
                    }
                }
                unreachable!()
            });
            again += join_all(batch).await.into_iter().sum::<u32>();
        }
        again
    });
    let mut replaced = 0;
    while !asking.is_finished() {
        let next = node.echo.served.load(SeqCst) + 40;
        until("the next forty", || node.echo.served.load(SeqCst) >= next || asking.is_finished()).await;
        node.stop().await;
        node = Node::start_at(ca.identity("b"), at);
        replaced += 1;
    }
    let again = asking.await.expect("none lost");
    assert!(replaced >= 5, "lines were replaced {replaced} times, {again} requests were sent again");
    node.stop().await;
}

#[tokio::test]
async fn a_line_that_finishes_holds_up_no_new_requests() {
    let ca = Ca::new();
    let node = Node::start_apart(ca.identity("b"));
    let (at, echo) = (node.at, Arc::clone(&node.echo));
    let peers = ca.lines("a", "b", at);
    let peer = peers.get(&name("b")).expect("known");
    let mut hanging = Box::pin(peer.send(get("/hang")));
    let end = Instant::now() + PATIENCE;
    while echo.served.load(SeqCst) == 0 {
        assert!(futures::poll!(&mut hanging).is_pending() && Instant::now() < end);
        tokio::task::yield_now().await;
    }
    // It waits for what is in flight, and its port is free for the next.
    let stopping = Handle::current().spawn(node.stop());
    until("its port is free", || std::net::TcpListener::bind(at).is_ok()).await;
    let next = Node::start_at(ca.identity("b"), at);
    while next.echo.served.load(SeqCst) < 16 {
        match ask(&peer, "/echo").await {
            Ok(_) => {}
            Err(error) => assert!(error.is_not_sent() && Instant::now() < end, "{error}"),
        }
    }
    assert!(futures::poll!(&mut hanging).is_pending(), "they waited for the other to end");
    drop(hanging);
    stopping.await.expect("it ends");
    next.stop().await;
}

#[tokio::test]
async fn who_waits_for_a_peer_that_membership_gives_up_is_told() {
    let ca = Ca::new();
    let node = Node::start(ca.identity("b"));
    let (members, roster) = Members::by_hand(member("a", node.at, 1));
    let peers = Peers::start(ca.identity("a"), members.clone(), patient());
    roster.set(member("b", node.at, 1), Health::Alive);
    let peer = known(&peers).await;
    ask(&peer, "/echo").await.expect("an answer");
    let (asked, roster_ref) = (peer.send(get("/hang")), &roster);
    tokio::pin!(asked);
    assert!(futures::poll!(&mut asked).is_pending());
    roster_ref.set_health(&name("b"), Health::Failed);
    lost(&peer).await;
    let asked = tokio::time::timeout(PATIENCE, asked).await.expect("it is told");
    assert!(matches!(asked, Err(SendError::Broken { .. } | SendError::NotSent { .. })));

    // It is found alive after all: the same start, the same peer, new lines.
    roster.set_health(&name("b"), Health::Alive);
    until("it is alive", || peer.health() == Health::Alive).await;
    ask(&peer, "/echo").await.expect("an answer");

    // It is started anew: another peer, and the one before is lost.
    roster.set(member("b", node.at, 2), Health::Alive);
    lost(&peer).await;
    assert_eq!(peers.get(&name("b")).expect("known").member().incarnation, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_tensors_cross_whole_beside_small_requests() {
    let ca = Ca::new();
    let node = Node::start(ca.identity("b"));
    let peers = ca.lines("a", "b", node.at);
    let peer = peers.get(&name("b")).expect("known");
    let asked = (0..12_usize).map(|index| {
        let peer = Arc::clone(&peer);
        async move {
            let size = if index % 2 == 0 { (1 << 20) + index } else { 15 << 10 };
            let body: Vec<u8> = (0..size).map(|at| (at * 7 + index) as u8).collect();
            let request = http::Request::post("/echo").body(berth_peer::full(body.clone())).expect("a request");
            let whole = async { peer.send(request).await.expect("an answer").into_body().collect().await };
            let answer = tokio::time::timeout(PATIENCE, whole).await.expect("in time").expect("whole");
            assert!(answer.to_bytes() == body, "{index} came back otherwise");
        }
    });
    join_all(asked).await;
}

/// Twice as many bytes as clients and models may send: over HTTP/1, a port reads some more than it should.
#[tokio::test]
async fn long_heads_leave_the_line_to_the_others() {
    let ca = Ca::new();
    let node = Node::start(ca.identity("b"));
    let peers = ca.lines("a", "b", node.at);
    let peer = peers.get(&name("b")).expect("known");
    ask(&peer, "/echo").await.expect("an answer");
    let mut hanging: Vec<_> = (0..LinePolicy::default().lines).map(|_| Box::pin(peer.send(get("/hang")))).collect();
    for asked in &mut hanging {
        assert!(futures::poll!(asked).is_pending());
    }
    let long = "x".repeat(128 << 10);
    for _ in 0..2 * LinePolicy::default().lines {
        let request = http::Request::post("/echo").header("x-long", &long).body(berth_peer::full("tensor"));
        let answer = tokio::time::timeout(PATIENCE, peer.send(request.expect("a request"))).await.expect("in time");
        assert_eq!(answer.expect("an answer").headers()["x-long"].len(), long.len());
    }
    for asked in &mut hanging {
        assert!(futures::poll!(asked).is_pending(), "its line has ended");
    }
}

#[tokio::test]
async fn a_grpc_client_rides_on_a_peer() {
    use berth_peer::PeerChannel;
    let ca = Ca::new();
    let node = Node::start(ca.identity("b"));
    let peers = ca.lines("a", "b", node.at);
    let mut grpc = tonic::client::Grpc::new(PeerChannel(peers.get(&name("b")).expect("known")));
    grpc.ready().await.expect("always ready");
    // What generated clients need of a channel.
    fn is_channel<T: tonic::client::GrpcService<tonic::body::Body>>(_: &tonic::client::Grpc<T>) {}
    is_channel(&grpc);
}

#[tokio::test]
async fn requests_that_are_cancelled_leave_the_line_to_the_others() {
    let ca = Ca::new();
    let node = Node::start(ca.identity("b"));
    let proxy = Proxy::to(node.at).await;
    let peers = ca.lines("a", "b", proxy.at);
    let peer = peers.get(&name("b")).expect("known");
    for round in 0..10 {
        let before = node.echo.served.load(SeqCst);
        let hanging: Vec<_> = (0..400).map(|_| Box::pin(peer.send(get("/hang")))).collect();
        let mut all = join_all(hanging);
        assert!(futures::poll!(&mut all).is_pending());
        // Some are cancelled on their way, some while they are served.
        let end = Instant::now() + PATIENCE;
        while round % 2 == 0 && node.echo.served.load(SeqCst) < before + 400 {
            tokio::task::yield_now().await;
            assert!(futures::poll!(&mut all).is_pending() && Instant::now() < end);
        }
        drop(all);
        ask(&peer, "/echo").await.expect("an answer");
    }
    assert_eq!(proxy.accepted.load(SeqCst), LinePolicy::default().lines);
}
