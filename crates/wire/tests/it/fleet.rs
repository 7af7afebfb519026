//! The streams of the fleet: what goes in comes out, in parts that are small enough, also from a later version.

mod arbitrary;

use std::{sync::Arc, time::Duration};

use berth_spec::{
    AssignmentChange, ByteSize, DeploymentName, Generation, InventoryChange, Load, Residency, RevisionId, Route,
    RouteChange, Time, WorkerId, WorkerLimits, WorkerState,
    deployment::Concurrency,
    residency::{Phases, Ready},
    routes::{OnMiss, Version},
};
use berth_wire::fleet::{Assembly, InParts, OutOfOrder, PART, Reporter, demands_of, demands_to, v1};
use proptest::prelude::*;
use prost::Message;

fn reporter() -> Reporter {
    Reporter { worker: WorkerId::new("w-1").expect("a name"), incarnation: 7 }
}

/// Over the wire and back; gives what came out and the bytes that it took.
fn sent<C: InParts>(change: C, context: C::Context) -> (C, usize) {
    let (mut assembly, mut bytes, mut ended) = (Assembly::new(context), 0, None);
    for part in change.in_parts() {
        assert!(ended.is_none(), "a part after the last");
        let encoded = part.encode_to_vec();
        bytes += encoded.len();
        let part = C::Part::decode(encoded.as_slice()).expect("it was just encoded");
        ended = assembly.push(part).expect("in order");
    }
    assert_eq!(assembly.left_out(), 0);
    (ended.expect("the last part"), bytes)
}

proptest! {
    #[test]
    fn assignments_come_out_as_they_went_in(change in arbitrary::assignment()) {
        prop_assert_eq!(sent(change.clone(), ()).0, change);
    }

    #[test]
    fn inventories_come_out_as_they_went_in(change in arbitrary::inventory(reporter())) {
        prop_assert_eq!(sent(change.clone(), reporter()).0, change);
    }

    #[test]
    fn routes_come_out_as_they_went_in(change in arbitrary::routes()) {
        prop_assert_eq!(sent(change.clone(), ()).0, change);
    }

    #[test]
    fn demands_come_out_as_they_went_in(demands in arbitrary::demands()) {
        let back: Vec<_> = demands_to(&demands).flat_map(demands_of).collect();
        prop_assert_eq!(back, demands);
    }

    #[test]
    fn workers_come_out_as_they_went_in(info in arbitrary::worker_info()) {
        let worker = Some(v1::WorkerInfo::from(&info));
        let hello = v1::Hello { node: info.id.to_string(), incarnation: info.incarnation, worker, ..Default::default() };
        let back = v1::Hello::decode(hello.encode_to_vec().as_slice()).expect("it was just encoded");
        prop_assert_eq!(back.worker_info(), Ok(Some(info)));
    }

    /// Whatever bytes come, nothing panics.
    #[test]
    fn bytes_of_others_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(part) = v1::RoutePart::decode(bytes.as_slice()) {
            let _ = Assembly::<RouteChange>::new(()).push(part);
        }
        if let Ok(part) = v1::AssignmentPart::decode(bytes.as_slice()) {
            let _ = Assembly::<AssignmentChange>::new(()).push(part);
        }
        if let Ok(part) = v1::InventoryPart::decode(bytes.as_slice()) {
            let _ = Assembly::<InventoryChange>::new(reporter()).push(part);
        }
    }
}

fn revision(name: &str, hash: u8) -> RevisionId {
    RevisionId::with_hash(DeploymentName::new(name).expect("a name"), [hash; 6])
}

fn route(number: usize, ready: &[&str]) -> Route {
    let id = revision(&format!("model-{number:06}"), 7);
    let ready = ready.iter().map(|name| WorkerId::new(name).expect("a name")).collect();
    Route {
        deployment: id.deployment().clone(),
        split: vec![(id.clone(), 100)],
        versions: vec![Version { name: id.hash(), revision: id, ready }],
        on_miss: OnMiss::Park,
        on_demand: true,
        timeout: Duration::from_secs(30),
        concurrency: Concurrency { max: None, queue: 100 },
        limits: berth_spec::UseLimits::default(),
        idempotent: true,
        endpoint: None,
    }
}

#[test]
fn a_hundred_thousand_routes_are_parts_of_a_mebibyte() {
    let workers: Vec<String> = (0..1_000).map(|number| format!("worker-{number}.eu-west-1")).collect();
    let set: Vec<Route> = (0..100_000).map(|number| route(number, &[workers[number % 1_000].as_str()])).collect();
    let whole = RouteChange { seq: 9, set, ..RouteChange::default() };
    let parts: Vec<_> = whole.clone().in_parts().collect();
    let sizes: Vec<usize> = parts.iter().map(Message::encoded_len).collect();
    let largest = sizes.iter().max().copied().unwrap_or_default();
    assert!(parts.len() > 5 && largest <= PART + (64 << 10), "{} parts, the largest of {largest} bytes", parts.len());
    assert!(sizes.iter().sum::<usize>() < 9 << 20, "90 bytes for a route: {}", sizes.iter().sum::<usize>());
    assert_eq!(sent(whole.clone(), ()).0, whole);
}

/// One miss at 1,000 workers: one worker hears what to load, it says how far it is, and each gateway hears where it is.
#[test]
fn a_change_costs_a_few_hundred_bytes() {
    let mut placed = arbitrary::plain_placed(&revision("resnet-50", 3));
    placed.urgent = true;
    let order = AssignmentChange {
        generation: Generation(120_456),
        base: Some(Generation(120_455)),
        limits: WorkerLimits::default(),
        set: vec![placed],
        unset: vec![revision("bert-base", 9)],
    };
    let (_, order) = sent(order, ());
    let ready = Ready {
        since: Time(1_760_000_000_000_000_000),
        memory: ByteSize::mib(190),
        measured: true,
        digest: berth_spec::Digest([3; 32]),
        signature: Some(Arc::new(arbitrary::plain_signature())),
        devices: Vec::new(),
        phases: Phases { queued_ms: 1.0, fetch_ms: 800.0, load_ms: 300.0, validate_ms: 20.0 },
        note: None,
        unvalidated: None,
        deaths: None,
    };
    let report = |residency| InventoryChange {
        worker: reporter().worker,
        incarnation: 7,
        seen: Generation(120_456),
        whole: false,
        state: WorkerState::Serving,
        load: None,
        breakers: None,
        credentials: berth_spec::Generation(0),
        overhead: berth_spec::ByteSize::ZERO,
        usage: Vec::new(),
        replicas: vec![(revision("resnet-50", 3), residency)],
    };
    let (_, fetching) =
        sent(report(Some(Residency::Fetching { done: ByteSize::mib(3), total: Some(ByteSize::mib(98)) })), reporter());
    let (_, ready) = sent(report(Some(Residency::Ready(Arc::new(ready)))), reporter());
    let routes = RouteChange {
        seq: 4_711,
        base: Some(4_710),
        set: vec![route(5, &["worker-17.eu-west-1"])],
        ..RouteChange::default()
    };
    let (_, routes) = sent(routes, ());
    let load = InventoryChange {
        load: Some(Load {
            at: Time(1),
            cpu_percent: [1.0; 3],
            memory_used: ByteSize::gib(3),
            queue: 2,
            requests_per_minute: 900,
            degraded: false,
            gpus: Arc::default(),
        }),
        replicas: vec![],
        ..report(None)
    };
    let (_, heartbeat) = sent(load, reporter());
    println!("order {order}, fetching {fetching}, ready {ready}, routes {routes}, heartbeat {heartbeat} bytes");
    assert!(order <= 250 && fetching <= 60 && ready <= 250 && routes <= 120 && heartbeat <= 60);
}

#[test]
fn a_part_that_is_missing_is_noticed_and_a_whole_can_begin_again() {
    let set: Vec<Route> = (0..40_000).map(|number| route(number, &[])).collect();
    let whole = RouteChange { seq: 1, set, ..RouteChange::default() };
    let parts: Vec<_> = whole.clone().in_parts().collect();
    let mut assembly = Assembly::<RouteChange>::new(());
    assert_eq!(assembly.push(parts[0].clone()), Ok(None));
    assert_eq!(assembly.push(parts[2].clone()), Err(OutOfOrder { expected: 1, found: 2 }));
    assert_eq!(
        assembly.push(parts[1].clone()),
        Err(OutOfOrder { expected: 0, found: 1 }),
        "what had come is forgotten"
    );
    let mut last = None;
    for part in parts {
        last = assembly.push(part).expect("in order");
    }
    assert_eq!(last, Some(whole));
}

/// A later version has more words and fields than this one.
mod later {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Replica {
        #[prost(message, optional, tag = "1")]
        pub(super) name: Option<super::v1::RevisionName>,
        #[prost(int32, tag = "2")]
        pub(super) residency: i32,
        #[prost(string, tag = "99")]
        pub(super) new: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct InventoryPart {
        #[prost(uint64, tag = "3")]
        pub(super) seen: u64,
        #[prost(int32, tag = "5")]
        pub(super) state: i32,
        #[prost(message, repeated, tag = "7")]
        pub(super) replicas: Vec<Replica>,
        #[prost(bytes = "vec", tag = "100")]
        pub(super) new: Vec<u8>,
    }
}

#[test]
fn what_a_later_version_says_is_understood_as_far_as_it_can_be() {
    let name = |name: &str| Some(v1::RevisionName { deployment: name.to_owned(), hash: vec![1; 6].into() });
    let part = later::InventoryPart {
        seen: 3,
        state: 17,
        replicas: vec![
            later::Replica { name: name("a"), residency: 55, new: "x".to_owned() },
            later::Replica { name: name("b"), residency: v1::Residency::Ready.into(), new: String::new() },
            later::Replica { name: name(" no name"), residency: 1, new: String::new() },
            later::Replica { name: None, residency: 1, new: String::new() },
            later::Replica { name: name("c"), residency: 0, new: String::new() },
        ],
        new: vec![1, 2, 3],
    };
    let mut assembly = Assembly::<InventoryChange>::new(reporter());
    let part =
        v1::InventoryPart::decode(part.encode_to_vec().as_slice()).expect("fields that are not known do no harm");
    let change = assembly.push(part).expect("in order").expect("the last");
    assert_eq!((change.state, change.seen), (WorkerState::Serving, Generation(3)));
    let said: Vec<_> = change.replicas.iter().map(|(id, word)| (id.deployment().as_str(), word.clone())).collect();
    let expected = [("a", Some(Residency::Loading)), ("b", Some(Residency::Loading)), ("c", None)];
    assert_eq!(said, expected, "takes up memory and does not answer, whatever it is called");
    assert_eq!((assembly.left_out(), assembly.left_out()), (2, 0));

    let later = v1::RoutePart {
        workers: vec!["w".to_owned(), "No Name".to_owned()],
        set: vec![v1::Route {
            deployment: "iris".to_owned(),
            on_miss: 44,
            versions: vec![v1::Version { hash: vec![1; 6].into(), ready: vec![0, 1, 9], ..Default::default() }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let change = Assembly::<RouteChange>::new(()).push(later).expect("in order").expect("the last");
    assert_eq!(change.set[0].on_miss, OnMiss::Park);
    assert_eq!(change.set[0].versions[0].ready.len(), 1, "the workers that are known");

    let placed = |format: &str, warmup| v1::Placed {
        name: name("iris"),
        format: format.to_owned(),
        serving: Some(v1::Serving { warmup, ..Default::default() }),
        ..Default::default()
    };
    let order = v1::AssignmentPart { set: vec![placed("No Format", 0), placed("onnx", 99)], ..Default::default() };
    let mut assembly = Assembly::<AssignmentChange>::new(());
    let change = assembly.push(order).expect("in order").expect("the last");
    assert_eq!((change.set.len(), assembly.left_out()), (1, 1), "what is no format is left out");
}
