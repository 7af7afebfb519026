//! Lines that break, nodes that stop, replicas that are gone: a request is answered once, wherever a copy lives.

use std::sync::{Arc, atomic::Ordering::SeqCst};

use berth_spec::{Health, Route, deployment::Concurrency};
use futures::future::join_all;
use http::Method;

use super::nodes::{TestCluster, member, metric, worker};
use crate::fixture::{Echo, on, revision, soon, until};

fn runs(echo: &Echo) -> u64 {
    echo.runs.load(SeqCst)
}

/// Sends a request from `a`, and makes sure that the model on `b` has it: `c` is not routed to before.
async fn hanging_on_b(
    cluster: &mut TestCluster,
    held: &Arc<Echo>,
    other: &Arc<Echo>,
) -> tokio::task::JoinHandle<crate::fixture::Answer> {
    cluster.serve("iris", &[("b", held)]).await;
    let asked = tokio::spawn(cluster.gateway("a").infer("iris", &[]));
    held.starts().await;
    cluster.put("c", "iris", other);
    cluster.route("iris", &["b", "c"]).await;
    asked
}

#[tokio::test]
async fn a_line_that_breaks_sends_the_request_to_the_other_copy_once() {
    let mut cluster = TestCluster::new(&["a", "b", "c"]).await;
    let (held, other) = (Echo::shut(), Echo::open());
    let asked = hanging_on_b(&mut cluster, &held, &other).await;
    cluster.node("b").kill();
    let answer = asked.await.expect("it ran");
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!((runs(&held), runs(&other)), (0, 1));
    assert_eq!(metric(cluster.gateway("a"), "berth_gateway_retries_total", &["broken"]), 1);
}

#[tokio::test]
async fn a_node_that_membership_takes_for_dead_is_not_waited_for() {
    let mut cluster = TestCluster::new(&["a", "b", "c"]).await;
    let (held, other) = (Echo::shut(), Echo::open());
    let asked = hanging_on_b(&mut cluster, &held, &other).await;
    cluster.node("a").roster.set_health(&worker("b"), Health::Failed);
    // It would be 504 when the request's time was over.
    assert_eq!(asked.await.expect("it ran").status, 200);
    assert_eq!(runs(&other), 1);
    // While it is dead nothing is sent there.
    for _ in 0..5 {
        assert_eq!(cluster.gateway("a").infer("iris", &[]).await.status, 200);
    }
    assert_eq!(runs(&other), 6);
}

#[tokio::test]
async fn what_may_have_run_is_not_sent_again_if_it_must_not() {
    let mut cluster = TestCluster::new(&["a", "b", "c"]).await;
    let (held, other) = (Echo::shut(), Echo::open());
    let asked = hanging_on_b(&mut cluster, &held, &other).await;
    let route = Route { idempotent: false, ..on("iris", "1", &["b", "c"]) };
    cluster.gateway("a").set(vec![route]).await;
    cluster.node("b").kill();
    let answer = asked.await.expect("it ran");
    assert_eq!((answer.status.as_u16(), answer.reason().as_str()), (502, "unavailable"), "{answer:?}");
    assert_eq!(runs(&other), 0);
    assert_eq!(metric(cluster.gateway("a"), "berth_gateway_requests_total", &["502"]), 1);
}

/// A question about a model runs nothing: it may be asked of another node, whatever the model is.
#[tokio::test]
async fn a_question_about_a_model_that_must_not_run_twice_is_asked_again() {
    let mut cluster = TestCluster::new(&["a", "b", "c"]).await;
    let (one, other) = (Echo::open(), Echo::open());
    cluster.put("b", "iris", &one);
    cluster.put("c", "iris", &other);
    let route = |workers: &[&str]| vec![Route { idempotent: false, ..on("iris", "1", workers) }];
    cluster.gateway("a").set(route(&["b"])).await;
    let answers = Arc::clone(&cluster.node("b").answers);
    answers.shut();
    let asked = tokio::spawn(cluster.gateway("a").request(Method::GET, "/v2/models/iris", &[], ""));
    answers.arrived().await;
    cluster.gateway("a").set(route(&["b", "c"])).await;
    cut(&mut cluster, "b").await;
    let answer = asked.await.expect("it ran");
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[tokio::test]
async fn what_was_not_sent_goes_elsewhere_whatever_it_is() {
    let mut cluster = TestCluster::new(&["a", "b", "c"]).await;
    let other = Echo::open();
    cluster.put("c", "iris", &other);
    cluster.node("b").kill();
    let route = Route { idempotent: false, ..on("iris", "1", &["b", "c"]) };
    cluster.gateway("a").set(vec![route]).await;
    for _ in 0..20 {
        assert_eq!(cluster.gateway("a").infer("iris", &[]).await.status, 200);
    }
    assert_eq!(runs(&other), 20);
    assert!(metric(cluster.gateway("a"), "berth_gateway_forwards_total", &["not_sent"]) <= 6, "it is avoided soon");
}

#[tokio::test]
async fn a_replica_that_drains_or_is_absent_was_not_run() {
    let mut cluster = TestCluster::new(&["a", "b", "c", "d"]).await;
    let (drains, other) = (Echo::open(), Echo::open());
    cluster.put("b", "iris", &drains).begin_drain();
    cluster.put("d", "iris", &other);
    let route = Route { idempotent: false, ..on("iris", "1", &["b", "c", "d"]) };
    cluster.gateway("a").set(vec![route]).await;
    for _ in 0..50 {
        assert_eq!(cluster.gateway("a").infer("iris", &[]).await.status, 200);
    }
    assert_eq!((runs(&drains), runs(&other)), (0, 50));
    let gateway = cluster.gateway("a");
    assert!(metric(gateway, "berth_gateway_retries_total", &["draining"]) >= 1);
    assert!(metric(gateway, "berth_gateway_retries_total", &["absent"]) >= 1);
    assert!(metric(gateway, "berth_gateway_forwards_total", &["not_run"]) < 20, "it is not asked every time");
    assert!(metric(cluster.gateway("c"), "berth_gateway_hops_total", &["absent"]) >= 1);
}

#[tokio::test]
async fn a_models_own_failure_is_its_answer() {
    let mut cluster = TestCluster::new(&["a", "b", "c"]).await;
    let (one, two) = (Echo::open(), Echo::open());
    cluster.serve("iris", &[("b", &one), ("c", &two)]).await;
    let fails = r#"{"inputs":[{"name":"fail","datatype":"FP32","shape":[1],"data":[1]}]}"#;
    let answer = cluster.gateway("a").post("/v2/models/iris/infer", fails).await;
    assert_eq!((answer.status.as_u16(), answer.reason().as_str()), (500, "model"));
    let starts = one.started.available_permits() + two.started.available_permits();
    assert_eq!(starts, 1, "it was run once");
}

#[tokio::test]
async fn a_request_that_lost_its_last_place_waits_for_the_next_one() {
    let mut cluster = TestCluster::new(&["a", "b", "c"]).await;
    let (held, next) = (Echo::shut(), Echo::open());
    cluster.serve("iris", &[("b", &held)]).await;
    let asked = tokio::spawn(cluster.gateway("a").infer("iris", &[]));
    held.starts().await;
    cluster.node("b").kill();
    // The controller is told, as of any miss.
    assert_eq!(cluster.gateway("a").miss("iris").await.waiting, 1);
    cluster.put("c", "iris", &next);
    cluster.route("iris", &["c"]).await;
    assert_eq!(asked.await.expect("it ran").status, 200);
    assert_eq!(runs(&next), 1);
}

#[tokio::test]
async fn time_is_over_there_as_well_as_here() {
    let mut cluster = TestCluster::new(&["a", "b"]).await;
    let held = Echo::shut();
    cluster.serve("iris", &[("b", &held)]).await;
    let answer = cluster.gateway("a").infer("iris", &[("berth-timeout-ms", "100")]).await;
    assert_eq!((answer.status.as_u16(), answer.reason().as_str()), (504, "deadline"), "{answer:?}");
    let replica = cluster.gateway("b").replicas.get(&revision("iris", "1")).expect("there");
    replica.begin_drain();
    soon("it is taken out of the model", replica.drained()).await;
}

/// Hundreds at once, and one of two copies dies: nobody notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_death_under_load_costs_nothing() {
    let mut cluster = TestCluster::new(&["a", "b", "c"]).await;
    let (one, two) = (Echo::open(), Echo::open());
    cluster.serve("iris", &[("b", &one), ("c", &two)]).await;
    let client = |n: usize| {
        let asked: Vec<_> = (0..40).map(|_| cluster.nodes[0].gateway.infer("iris", &[])).collect();
        tokio::spawn(async move {
            let mut failed = Vec::new();
            for asked in asked {
                let answer = asked.await;
                if answer.status != 200 {
                    failed.push((n, answer));
                }
            }
            failed
        })
    };
    let clients: Vec<_> = (0..32).map(client).collect();
    until("a hundred have run there", || runs(&one) >= 100).await;
    cluster.node("b").kill();
    let failed: Vec<_> = join_all(clients).await.into_iter().flat_map(|failed| failed.expect("it ran")).collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert!(runs(&one) + runs(&two) >= 32 * 40);
}

#[tokio::test]
async fn no_more_is_sent_again_than_the_budget_has() {
    let mut cluster = TestCluster::with(&["a", "b", "c"], |_, config| config.limits.retry_burst = 0).await;
    let (held, other) = (Echo::shut(), Echo::open());
    let asked = hanging_on_b(&mut cluster, &held, &other).await;
    cluster.node("b").kill();
    let answer = asked.await.expect("it ran");
    assert_eq!((answer.status.as_u16(), answer.reason().as_str()), (502, "unavailable"), "{answer:?}");
    assert_eq!(runs(&other), 0);
}

/// Whose node is not there waits; it comes back, and nobody says more than that.
#[tokio::test]
async fn a_node_that_comes_back_answers_who_waited() {
    let mut cluster = TestCluster::new(&["a", "b"]).await;
    let echo = Echo::open();
    cluster.serve("iris", &[("b", &echo)]).await;
    cluster.node("a").roster.set_health(&worker("b"), Health::Failed);
    cluster.gateway("a").comes_to(503, |gateway| gateway.request(Method::GET, "/v2/models/iris/ready", &[], "")).await;
    let asked = tokio::spawn(cluster.gateway("a").infer("iris", &[]));
    assert_eq!(cluster.gateway("a").miss("iris").await.waiting, 1);
    cluster.node("a").roster.set_health(&worker("b"), Health::Alive);
    assert_eq!(asked.await.expect("it ran").status, 200);
}

/// A request that a full model refuses goes to the other copy; where all are full the client is told, in its own
/// protocol.
#[tokio::test]
async fn a_full_model_sends_requests_to_the_other_copy() {
    let mut cluster = TestCluster::new(&["a", "b", "c"]).await;
    let (full, other) = (Echo::open(), Echo::open());
    full.full.store(true, SeqCst);
    cluster.serve("iris", &[("b", &full), ("c", &other)]).await;
    for _ in 0..20 {
        assert_eq!(cluster.gateway("a").infer("iris", &[]).await.status, 200);
    }
    assert_eq!(runs(&other), 20);
    other.full.store(true, SeqCst);
    let answer = cluster.gateway("a").infer("iris", &[]).await;
    assert_eq!((answer.status.as_u16(), answer.reason().as_str()), (503, "queue_full"), "{answer:?}");
    assert!(!answer.header("retry-after").is_empty() && answer.header("berth-not-run").is_empty());
    let mut client = crate::grpc::client(cluster.gateway("a")).await;
    let status = client.model_infer(crate::grpc::infer("iris", "1")).await.expect_err("full");
    assert_eq!(status.metadata().get("berth-reason").expect("a reason"), "queue_full");
}

/// `concurrency.max` is each replica's: two of them take twice as many, a full one sends requests to the other, and what is beyond
/// both is refused.
#[tokio::test]
async fn each_copy_takes_as_many_at_once_as_the_deployment_says() {
    let mut cluster = TestCluster::new(&["a", "b", "c"]).await;
    let (here, there) = (Echo::shut(), Echo::shut());
    for (name, model) in [("a", &here), ("b", &there)] {
        model.bound.store(2, SeqCst);
        cluster.put(name, "iris", model);
    }
    for node in &mut cluster.nodes {
        let concurrency = Concurrency { max: Some(2), queue: 100 };
        node.gateway.set(vec![Route { concurrency, ..on("iris", "1", &["a", "b"]) }]).await;
    }
    let asked: Vec<_> = (0..4).map(|_| tokio::spawn(cluster.gateway("a").infer("iris", &[]))).collect();
    for model in [&here, &there] {
        model.starts().await;
        model.starts().await;
    }
    for from in ["a", "b", "c"] {
        let answer = cluster.gateway(from).infer("iris", &[]).await;
        assert_eq!((answer.status.as_u16(), answer.reason().as_str()), (503, "queue_full"), "{from}: {answer:?}");
        assert!(!answer.header("retry-after").is_empty());
    }
    here.gate.close();
    there.gate.close();
    for one in asked {
        assert_eq!(one.await.expect("it ran").status, 200);
    }
    assert_eq!((runs(&here), runs(&there)), (2, 2));
}

/// A node that stops says so of every request, and is left alone.
#[tokio::test]
async fn a_node_that_stops_is_left_alone() {
    let mut cluster = TestCluster::new(&["a", "b", "c"]).await;
    let (one, two) = (Echo::open(), Echo::open());
    cluster.serve("iris", &[("b", &one), ("c", &two)]).await;
    cluster.gateway("b").shutdown.cancel();
    cluster.gateway("b").leaves().await;
    cluster.gateway("b").ended().await;
    let before = runs(&one);
    for _ in 0..20 {
        assert_eq!(cluster.gateway("a").infer("iris", &[]).await.status, 200);
    }
    assert_eq!((runs(&one), runs(&two)), (before, 20));
    assert!(metric(cluster.gateway("b"), "berth_gateway_hops_total", &["stopping"]) <= 2);
}

/// Two copies that were measured, of which the one on `b` then takes requests and answers nothing.
async fn one_that_hangs(cluster: &mut TestCluster) -> (Arc<Echo>, Arc<Echo>) {
    let (hangs, other) = (Echo::shut(), Echo::open());
    cluster.serve("iris", &[("b", &hangs), ("c", &other)]).await;
    hangs.gate.add_permits(20);
    while hangs.gate.available_permits() > 0 {
        assert!(some(cluster, &[]).await.iter().all(|status| *status == 200));
    }
    (hangs, other)
}

/// Some at once, so that both copies get their share: what became of them.
async fn some(cluster: &mut TestCluster, headers: &[(&str, &str)]) -> Vec<u16> {
    let gateway = cluster.gateway("a");
    join_all((0..8).map(|_| gateway.infer("iris", headers))).await.iter().map(|answer| answer.status.as_u16()).collect()
}

/// Nobody waits to the end of his time for what takes requests, answers pings, and nothing else.
#[tokio::test]
async fn what_hangs_is_left_in_time_and_then_left_alone() {
    let mut cluster = TestCluster::new(&["a", "b", "c"]).await;
    let (hangs, other) = one_that_hangs(&mut cluster).await;
    let late = |cluster: &mut TestCluster| metric(cluster.gateway("a"), "berth_gateway_retries_total", &["late"]);
    while late(&mut cluster) < 5 {
        assert_eq!(some(&mut cluster, &[]).await, [200; 8]);
    }
    let (asked, before) = (hangs.started.available_permits(), runs(&other));
    for _ in 0..50 {
        assert_eq!(cluster.gateway("a").infer("iris", &[]).await.status, 200);
    }
    // Each probe comes later than the one before: so many take a minute.
    assert!(hangs.started.available_permits() <= asked + 6, "no more than its probes");
    assert_eq!(runs(&other), before + 50);
    // What left it is not run there later.
    let replica = cluster.gateway("b").replicas.get(&revision("iris", "1")).expect("there");
    replica.begin_drain();
    soon("all leases", replica.drained()).await;
    assert_eq!(runs(&hangs), 20);
}

/// Requests that had left both silent nodes of a partition, and were at one of them for the second time, failed when it was given up.
#[tokio::test]
async fn nodes_that_fall_silent_use_up_one_attempt_each() {
    let mut cluster = TestCluster::new(&["a", "b", "c", "d"]).await;
    let silent = [Echo::shut(), Echo::shut()];
    cluster.serve("iris", &[("b", &silent[0]), ("c", &silent[1])]).await;
    silent.iter().for_each(|copy| copy.gate.add_permits(100));
    assert_eq!(some(&mut cluster, &[]).await, [200; 8], "both are measured");
    let left = |copy: &Arc<Echo>| copy.gate.forget_permits(100) > 0;
    assert!(silent.iter().all(left));
    let started = || [0, 1].map(|at: usize| silent[at].started.available_permits());
    let before = started();
    let asked = tokio::spawn(cluster.gateway("a").infer("iris", &[]));
    until("one has it", || started() != before).await;
    let first = usize::from(started()[0] == before[0]);
    let second = 1 - first;
    until("the other one has it", || started()[second] > before[second]).await;
    cluster.node("a").roster.set_health(&worker(["b", "c"][second]), Health::Failed);
    until("the first one has it again", || started()[first] == before[first] + 2).await;
    cluster.node("a").roster.set_health(&worker(["b", "c"][first]), Health::Failed);
    let next = Echo::open();
    cluster.put("d", "iris", &next);
    cluster.route("iris", &["d"]).await;
    let answer = asked.await.expect("it ran");
    assert_eq!((answer.status.as_u16(), runs(&next)), (200, 1), "{answer:?}");
}

/// The copy that the next request has reached.
async fn reached(copies: &[Arc<Echo>]) -> usize {
    let mut at = None;
    let has = || {
        at = copies.iter().position(|copy| copy.started.forget_permits(1) > 0);
        at.is_some()
    };
    until("one has it", has).await;
    at.expect("one has it")
}

/// Cuts the lines of `a` to a node, which stays the same node: membership gives it up for a moment.
async fn cut(cluster: &mut TestCluster, name: &str) {
    let (node, name) = (cluster.node("a"), worker(name));
    let peer = node.peers.get(&name).expect("known");
    for health in [Health::Failed, Health::Alive] {
        node.roster.set_health(&name, health);
        until("it is told", || peer.health() == health).await;
    }
}

/// Both copies were on the nodes of a partition, whose lines broke one after the other: the third one failed the request.
#[tokio::test]
async fn a_node_counts_once_however_many_lines_to_it_break() {
    let mut cluster = TestCluster::new(&["a", "b", "c", "d"]).await;
    let held = [Echo::shut(), Echo::shut()];
    cluster.serve("iris", &[("b", &held[0]), ("c", &held[1])]).await;
    let asked = tokio::spawn(cluster.gateway("a").infer("iris", &[]));
    for _ in 0..4 {
        let at = reached(&held).await;
        cut(&mut cluster, ["b", "c"][at]).await;
    }
    let last = reached(&held).await;
    let next = Echo::open();
    cluster.put("d", "iris", &next);
    cluster.route("iris", &["d"]).await;
    cut(&mut cluster, ["b", "c"][last]).await;
    let answer = asked.await.expect("it ran");
    assert_eq!((answer.status.as_u16(), runs(&next)), (200, 1), "{answer:?}");
    assert_eq!(metric(cluster.gateway("a"), "berth_gateway_retries_total", &["broken"]), 5);
}

/// A request may be the cause itself, and others' requests break with it.
#[tokio::test]
async fn a_request_under_which_line_after_line_breaks_is_given_up() {
    let mut cluster = TestCluster::new(&["a", "b"]).await;
    let held = [Echo::shut()];
    cluster.serve("iris", &[("b", &held[0])]).await;
    let asked = tokio::spawn(cluster.gateway("a").infer("iris", &[]));
    for _ in 0..12 {
        reached(&held).await;
        cut(&mut cluster, "b").await;
    }
    let answer = asked.await.expect("it ran");
    assert_eq!((answer.status.as_u16(), answer.reason().as_str()), (502, "unavailable"), "{answer:?}");
    assert!(answer.json()["error"].as_str().is_some_and(|error| error.contains("twelve lines broke")), "{answer:?}");
    assert_eq!(metric(cluster.gateway("a"), "berth_gateway_retries_total", &["broken"]), 11);
}

#[tokio::test]
async fn what_must_not_run_twice_waits_for_what_hangs() {
    let mut cluster = TestCluster::new(&["a", "b", "c"]).await;
    one_that_hangs(&mut cluster).await;
    let before = metric(cluster.gateway("a"), "berth_gateway_retries_total", &[]);
    let route = Route { idempotent: false, ..on("iris", "1", &["b", "c"]) };
    cluster.gateway("a").set(vec![route]).await;
    while !some(&mut cluster, &[("berth-timeout-ms", "300")]).await.contains(&504) {}
    assert_eq!(metric(cluster.gateway("a"), "berth_gateway_retries_total", &[]), before);
}

/// Membership gives a node up while it is being dialled: whatever the request is, nobody has received it.
#[tokio::test]
async fn what_was_still_dialling_was_not_sent() {
    let mut cluster = TestCluster::new(&["a", "c"]).await;
    let other = Echo::open();
    cluster.put("c", "iris", &other);
    // It takes connections, and no more.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let at = silent.local_addr().expect("bound");
    cluster.node("a").roster.set(member("b", at, None), Health::Alive);
    let route = |workers: &[&str]| vec![Route { idempotent: false, ..on("iris", "1", workers) }];
    cluster.gateway("a").set(route(&["b"])).await;
    let asked = tokio::spawn(cluster.gateway("a").infer("iris", &[]));
    let _dialled = soon("it is dialled", silent.accept()).await.expect("it is dialled");
    cluster.gateway("a").set(route(&["b", "c"])).await;
    cluster.node("a").roster.set_health(&worker("b"), Health::Failed);
    let answer = asked.await.expect("it ran");
    assert_eq!((answer.status.as_u16(), runs(&other)), (200, 1), "{answer:?}");
}
