//! Workers and gateways on other nodes than the leader's.

use std::time::Duration;

use berth_control::{Handle, leadership::LeadershipView, uplink::ConnectContext};
use berth_spec::{Demand, FromController, GatewayEvent, Time, status::Phase};
use berth_wire::fleet::v1::{self, fleet_client::FleetClient};
use futures::stream;
use tokio::{sync::watch, time::timeout};

use super::stage::{Stage, node};
use crate::fixture::{apply, empty_inventory, name, worker};

const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until it is so.
async fn until<T>(value: &mut watch::Receiver<T>, is: impl FnMut(&T) -> bool) {
    timeout(PATIENCE, value.wait_for(is)).await.expect("it comes about").expect("somebody tells");
}

async fn phase(handle: &Handle, deployment: &str, wanted: Phase) {
    let mut touched = tokio::time::interval(Duration::from_millis(5));
    let is = async {
        loop {
            touched.tick().await;
            let view = handle.get(&name(deployment)).await.expect("it is declared");
            if view.status.is_some_and(|status| status.phase == wanted) {
                return;
            }
        }
    };
    timeout(PATIENCE, is).await.expect("it comes about");
}

#[tokio::test]
async fn a_worker_and_a_gateway_find_the_leader_and_hear_of_what_is_declared() {
    let mut stage = Stage::of(&["a", "b", "c"]).await;
    let mut held = stage.obedient_worker(stage.context(2), worker("c", 1));
    let mut routed = stage.obedient_gateway(stage.context(2));
    // Nobody leads yet: they ask, and go on asking. Then one of those whom they ask says who does.
    let handle = stage.elect(1);
    until(&mut held, |held| held.attached == 1).await;
    until(&mut routed, |routed| routed.wholes == 1).await;
    handle.apply(apply("iris", "  replicas: 1\n")).await.expect("applied");
    assert!(routed.borrow().routes.contains_key(&name("iris")), "what was acknowledged is routed by");
    until(&mut held, |held| held.replicas.len() == 1).await;
    phase(&handle, "iris", Phase::Available).await;
    let ready = |routed: &super::stage::Routed| routed.routes[&name("iris")].versions[0].ready == [node("c")];
    until(&mut routed, ready).await;
}

#[tokio::test]
async fn leaders_change_while_much_is_declared_and_nothing_is_lost() {
    let mut stage = Stage::of(&["a", "b", "c"]).await;
    let mut handle = stage.elect(0);
    let mut held = stage.obedient_worker(stage.context(2), worker("c", 1));
    let mut routed = stage.obedient_gateway(stage.context(2));
    let mut local = stage
        .obedient_gateway(ConnectContext { leadership: stage.nodes[0].leadership.subscribe(), ..stage.context(0) });
    let mut declared = 0;
    for leader in [0, 1, 0, 1, 1] {
        handle = stage.elect(leader);
        for _ in 0..12 {
            let wanted = format!("  replicas: {{min: {}, max: 1}}\n", declared % 2);
            handle.apply(apply(&format!("m-{declared:02}"), &wanted)).await.expect("applied");
            declared += 1;
        }
    }
    until(&mut held, |held| held.replicas.len() == declared / 2).await;
    let complete = |routed: &super::stage::Routed| {
        let ready = routed.routes.values().filter(|route| !route.versions[0].ready.is_empty()).count();
        (routed.routes.len(), ready) == (declared, declared / 2)
    };
    until(&mut routed, complete).await;
    until(&mut local, complete).await;
    assert_eq!(routed.borrow().routes, local.borrow().routes);
    assert!(held.borrow().attached >= 2, "it was connected anew");
    let replicas = handle.replicas().await.expect("replicas");
    assert!(replicas.iter().all(|replica| held.borrow().replicas.contains(&replica.revision)));
}

#[tokio::test]
async fn eight_thousand_routes_come_whole() {
    let mut stage = Stage::of(&["a", "b"]).await;
    let handle = stage.elect(0);
    // Read once: most of the time would go into reading 8,000 manifests.
    let one = apply("model", "  replicas: {min: 0, max: 1}\n");
    let named = |i: u32| {
        let mut request = one.clone();
        request.manifest.name = name(&format!("model-{i:05}"));
        request.manifest.raw["metadata"]["name"] = request.manifest.name.as_str().into();
        request
    };
    let requests = (0..8_000).map(named).collect();
    assert!(handle.apply_all(requests).await.iter().all(Result::is_ok));
    let mut routed = stage.obedient_gateway(stage.context(1));
    until(&mut routed, |routed| routed.routes.len() == 8_000).await;
    assert_eq!((routed.borrow().wholes, routed.borrow().seq), (1, 1), "in parts, and one change for all that");
}

#[tokio::test]
async fn a_gateway_that_does_not_read_holds_up_nobody_and_misses_nothing() {
    let mut stage = Stage::of(&["a", "b", "c"]).await;
    let handle = stage.elect(0);
    let (events, mut slow) = stage.gateway(stage.context(1));
    let first = timeout(PATIENCE, slow.recv()).await.expect("in time").expect("every route");
    events.send(GatewayEvent::Applied(first.seq)).await.expect("it is heard");
    let mut quick = stage.obedient_gateway(stage.context(2));
    until(&mut quick, |routed| routed.wholes == 1).await;
    for i in 0..60 {
        let extra = format!("  replicas: {{min: 0, max: 1}}\n  timeout: {}s\n", 1 + i);
        // The one that does not read has said before what it routes by: an acknowledgement waits for it, for a while.
        let request = apply(&format!("m-{:02}", i % 40), &extra);
        drop(timeout(Duration::from_millis(20), handle.apply(request)).await);
    }
    until(&mut quick, |routed| routed.routes.len() == 40).await;
    let last = |routed: &super::stage::Routed| {
        routed.routes.values().map(|route| route.timeout).max() == Some(Duration::from_secs(60))
    };
    until(&mut quick, last).await;
    let mut state = super::stage::Routed::default();
    state.apply(first);
    while !last(&state) {
        state.apply(timeout(PATIENCE, slow.recv()).await.expect("in time").expect("it goes on"));
    }
    assert_eq!(state.routes, quick.borrow().routes);
}

#[tokio::test]
async fn a_new_leader_hears_at_once_who_waits_and_what_is_held() {
    let mut stage = Stage::of(&["a", "b", "c"]).await;
    let first = stage.elect(0);
    let (events, mut changes) = stage.gateway(stage.context(2));
    timeout(PATIENCE, changes.recv()).await.expect("in time").expect("every route");
    first.apply(apply("iris", "  replicas: {min: 0, max: 1}\n")).await.expect("applied");
    let demand = |waiting| Demand {
        deployment: name("iris"),
        waiting,
        in_flight: 0,
        last_used: Time(1_760_000_000_000_000_000),
        requests: 3,
    };
    events.send(GatewayEvent::Demand(vec![demand(2)])).await.expect("it is heard");
    drop(first);
    stage.elect(1);
    // The gateway says nothing more: that two wait, the new leader hears all the same.
    let mut held = stage.obedient_worker(stage.context(2), worker("c", 1));
    until(&mut held, |held| held.replicas.len() == 1).await;
}

#[tokio::test]
async fn a_worker_says_everything_to_whoever_it_is_attached_to_and_hears_what_it_should_hold() {
    let mut stage = Stage::of(&["a", "b"]).await;
    stage.elect(0);
    let info = worker("b", 1);
    let (reports, mut orders) = stage.worker(stage.context(1), info.clone());
    let first = timeout(PATIENCE, orders.recv()).await.expect("in time");
    assert_eq!(first, Some(FromController::Attached));
    // A change, before it has said everything: it would mean nothing.
    let part = berth_spec::InventoryChange { whole: false, ..empty_inventory(&info) };
    reports.send(part).await.expect("it is read");
    reports.send(empty_inventory(&info)).await.expect("it is read");
    let order = timeout(PATIENCE, orders.recv()).await.expect("in time");
    assert!(matches!(&order, Some(FromController::Assigned(change)) if change.base.is_none()), "{order:?}");
}

#[tokio::test]
async fn a_node_speaks_by_any_name_that_its_certificate_is_good_for() {
    let mut stage = Stage::of(&["a", "node-b"]).await;
    stage.elect(0);
    for me in ["b", "node-b"] {
        let context = ConnectContext { me: node(me), ..stage.context(1) };
        let (_reports, mut orders) = stage.worker(context.clone(), worker(me, 1));
        let first = timeout(PATIENCE, orders.recv()).await.expect("in time");
        assert_eq!(first, Some(FromController::Attached), "{me}");
        let (_events, mut changes) = stage.gateway(context);
        assert!(timeout(PATIENCE, changes.recv()).await.expect("in time").is_some(), "{me}");
    }
}

#[tokio::test]
async fn who_is_not_who_he_says_or_speaks_another_protocol_is_refused() {
    let mut stage = Stage::of(&["a", "b"]).await;
    let hello = |node: &str, oldest| {
        let hello = v1::Hello { node: node.to_owned(), incarnation: 1, oldest, newest: oldest, ..Default::default() };
        v1::GatewayWord { word: Some(v1::gateway_word::Word::Hello(hello)) }
    };
    let peer = stage.nodes[1].peers.get(&node("a")).expect("it is known");
    let ask = |word| {
        let mut client = FleetClient::new(berth_peer::PeerChannel(std::sync::Arc::clone(&peer)));
        async move { client.route(stream::iter([word])).await.map(drop).expect_err("refused") }
    };
    let nobody = ask(hello("b", 1)).await;
    assert_eq!((nobody.code(), nobody.metadata().get("berth-leader")), (tonic::Code::FailedPrecondition, None));
    stage.nodes[0]
        .leadership
        .send_replace(LeadershipView::Following { leader: Some((node("b"), berth_spec::Epoch(7))) });
    let elsewhere = ask(hello("b", 1)).await;
    assert_eq!(elsewhere.metadata().get("berth-leader").expect("named"), "b");
    assert_eq!(elsewhere.metadata().get("berth-epoch").expect("named"), "7");
    stage.elect(0);
    for other in ["a", "node-b", "node-a", ""] {
        assert_eq!(ask(hello(other, 1)).await.code(), tonic::Code::PermissionDenied, "{other}");
    }
    assert_eq!(ask(hello("b", 99)).await.code(), tonic::Code::Unimplemented);
    let mute = v1::GatewayWord { word: None };
    assert_eq!(ask(mute).await.code(), tonic::Code::InvalidArgument);
}

/// Two processes with one name are one member: the address that the members have may be the other's.
#[tokio::test]
async fn the_leader_is_found_where_the_store_has_it() {
    let mut stage = Stage::of(&["a", "b", "c"]).await;
    stage.elect(0);
    let [a, c] = ["a", "c"].map(|name| stage.nodes[1].peers.get(&node(name)).expect("it is known").member().peer);
    // Who is there is not the one who leads.
    let members = [(node("a"), c), (node("c"), c)];
    let peers = berth_peer::Peers::fixed(stage.nodes[1].identity.clone(), members);
    let context = ConnectContext { peers: peers.clone(), ..stage.context(1) };
    let mut held = stage.obedient_worker(context, worker("b", 1));
    until(&mut held, |held| held.attached == 1).await;
    let leader = peers.leader_peer(&node("a")).expect("it is known");
    assert_eq!(leader.member().peer, a, "c said where it is");
}

#[tokio::test]
async fn of_two_processes_with_one_name_the_earlier_is_told_what_to_do() {
    let mut stage = Stage::of(&["a", "b"]).await;
    stage.elect(0);
    let context = berth_control::uplink::ConnectContext { incarnation: 2, ..stage.context(1) };
    let mut later = stage.obedient_worker(context, worker("b", 2));
    until(&mut later, |held| held.attached == 1).await;
    let info = worker("b", 1);
    let hello = v1::Hello {
        node: "b".to_owned(),
        incarnation: 1,
        oldest: 1,
        newest: 1,
        worker: Some((&info).into()),
        ..Default::default()
    };
    let hello = v1::WorkerWord { word: Some(v1::worker_word::Word::Hello(hello)) };
    let peer = stage.nodes[1].peers.get(&node("a")).expect("it is known");
    let mut client = FleetClient::new(berth_peer::PeerChannel(peer));
    let refused = client.work(stream::iter([hello])).await.map(drop).expect_err("there is a later one");
    assert_eq!(refused.code(), tonic::Code::AlreadyExists, "{refused}");
    assert!(refused.message().contains("stop one of them"), "{refused}");
    assert_eq!(later.borrow().attached, 1, "and the later one goes on");
}
