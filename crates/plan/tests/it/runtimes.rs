//! Limits of the runtimes of a worker: each counts for the models of its formats alone.

use std::sync::Arc;

use berth_plan::{
    Scope,
    fixture::{Fixture, gib, world},
    report::{self, WorkerVerdict},
};
use berth_spec::{
    ByteSize, Failure, FailureCategory, Isolation, IsolationOffer, Residency, RuntimeInfo, WorkerInfo,
    deployment::{GpuNeed, ModelFormat},
};

fn triton(limit: impl FnOnce(&mut RuntimeInfo)) -> Fixture {
    let mut runtime = RuntimeInfo::unlimited("triton", &["tensorrt".parse().expect("a format")]);
    limit(&mut runtime);
    world().worker_with("w", gib(100), |info| {
        info.runtimes.push(runtime);
        info.gpus =
            (0..4).map(|n| berth_spec::Gpu { id: n.to_string(), kind: "a".to_owned(), memory: gib(24) }).collect();
    })
}

fn engine() -> ModelFormat {
    "tensorrt".parse().expect("a format")
}

/// On demand, of the limited runtime's format, used a second after the one before.
fn comes(w: Fixture, called: &str, memory: ByteSize, device: Option<ByteSize>) -> Fixture {
    let mut w = w.on_demand(called, memory);
    w.change(called, |spec| {
        spec.model.format = engine();
        spec.gpu = device.map(|memory| GpuNeed { count: 1, kind: None, memory: Some(memory) });
    });
    w.after(std::time::Duration::from_secs(1));
    w.demand(called, 1);
    w.settle();
    w.demand(called, 0);
    w
}

fn there(w: &Fixture) -> String {
    ["a", "b", "c", "d"].into_iter().filter(|called| !w.placed(called).is_empty()).collect()
}

fn rejected(w: &Fixture, called: &str) -> String {
    let explained = report::explain(&w.world, &berth_plan::fixture::name(called), w.now).expect("known");
    match &explained.workers[0].verdict {
        WorkerVerdict::Rejected(rejection) => format!("{}: {rejection}", rejection.reason()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_longest_unused_of_the_runtime_leaves_for_its_next_model() {
    let none: fn(u64) -> Option<ByteSize> = |_| None;
    let some: fn(u64) -> Option<ByteSize> = |n| Some(gib(n));
    for (what, limit, device) in [
        ("memory", (|runtime| runtime.memory = Some(gib(4))) as fn(&mut RuntimeInfo), none),
        ("models", |runtime| runtime.max_models = Some(2), none),
        ("device memory", |runtime| runtime.device_memory = Some(gib(20)), some),
    ] {
        let mut w = triton(limit).on_demand("d", gib(2));
        w.demand("d", 1);
        w.settle();
        w.demand("d", 0);
        for called in ["a", "b", "c"] {
            w = comes(w, called, gib(2), device(10));
        }
        assert_eq!(there(&w), "bcd", "{what}: d is in another runtime, and older than all of them");
    }
}

#[test]
fn what_does_not_fit_into_the_runtime_is_refused_with_its_name_and_numbers() {
    let mut w = triton(|runtime| runtime.memory = Some(gib(4))).resident("a", gib(3));
    w.change("a", |spec| spec.model.format = engine());
    w.settle();
    let w = comes(w, "b", gib(2), None);
    assert_eq!(there(&w), "a");
    let rejection = rejected(&w, "b");
    assert!(rejection.starts_with("Runtime: needs 2GiB, has 1GiB free"), "{rejection}");
    assert!(rejection.ends_with("of 4GiB in its runtime triton"), "{rejection}");
    let w = triton(|runtime| runtime.device_memory = Some(gib(8)));
    let w = comes(w, "a", gib(1), Some(gib(16)));
    assert!(rejected(&w, "a").contains("needs 16GiB of device memory"), "{}", rejected(&w, "a"));
    let mut w = triton(|runtime| runtime.max_models = Some(0)).resident("a", gib(1));
    w.change("a", |spec| spec.model.format = engine());
    w.settle();
    assert!(w.status("a").conditions[0].message.contains("in its runtime triton"), "{:?}", w.status("a").conditions);
}

#[test]
fn nothing_leaves_for_what_is_larger_than_the_whole_runtime() {
    let mut w = triton(|runtime| runtime.memory = Some(gib(4)));
    for called in ["a", "b"] {
        w = comes(w, called, gib(2), None);
    }
    let mut w = comes(w, "c", gib(5), None);
    w.demand("c", 1);
    w.settle();
    assert_eq!(there(&w), "ab");
    let why = w.status("c").conditions[0].message.clone();
    assert!(why.contains("needs 5GiB"), "{why}");
    assert!(why.contains("of 4GiB in its runtime triton: give the runtime more"), "{why}");
}

#[test]
fn a_model_that_was_too_large_for_one_runtime_is_not_tried_in_others_of_its_size() {
    let with_triton = |memory: ByteSize| {
        move |info: &mut WorkerInfo| {
            let mut runtime = RuntimeInfo::unlimited("triton", &[engine()]);
            runtime.memory = Some(memory);
            info.runtimes.push(runtime);
        }
    };
    let mut w = world()
        .worker_with("a", gib(100), with_triton(gib(4)))
        .worker_with("b", gib(100), with_triton(gib(4)))
        .deploy("iris", |spec| spec.model.format = engine());
    w.advance();
    let [first]: [String; 1] = w.placed("iris").try_into().expect("one place");
    let failure = Failure {
        category: FailureCategory::Runtime,
        message: "it is too large".to_owned(),
        attempts: 1,
        at: w.now,
        retry_at: None,
        trace: None,
        history: Vec::new(),
        needs: Some(gib(5)),
    };
    let revision = w.revision("iris");
    w.report(&first, false, vec![(revision, Some(Residency::Failed(Arc::new(failure))))]);
    w.settle();
    assert!(w.placed("iris").is_empty(), "the other one is no larger");
    let why = w.status("iris").conditions[0].message.clone();
    assert!(why.contains("needs 5GiB"), "{why}");
    let mut w = w.worker_with("c", gib(100), with_triton(gib(16)));
    let _ = w.plan_for(&Scope::All);
    assert_eq!(w.placed("iris"), ["c"]);
}

#[test]
fn the_best_worker_is_not_one_where_it_can_never_be() {
    let mut w = triton(|runtime| runtime.memory = Some(gib(4)))
        .worker_with("x", gib(8), |info| info.runtimes.push(RuntimeInfo::unlimited("triton", &[engine()])))
        .resident("full", gib(7));
    w.change("full", |spec| spec.model.format = engine());
    w.settle();
    assert_eq!(w.placed("full"), ["x"]);
    let mut w = comes(w, "c", gib(5), None);
    w.demand("c", 1);
    w.settle();
    let why = w.status("c").conditions[0].message.clone();
    assert!(why.contains("the best worker, x, has 1GiB free"), "{why}");
    assert!(why.contains("raise its priority"), "{why}");
}

#[test]
fn a_runtime_that_comes_back_smaller_is_relieved() {
    let mut w = triton(|runtime| runtime.max_models = Some(3)).on_demand("d", gib(2));
    w.demand("d", 1);
    w.settle();
    for called in ["a", "b", "c"] {
        w = comes(w, called, gib(2), None);
    }
    assert_eq!(there(&w), "abcd");
    let mut info = w.world.workers().next().and_then(|(_, tracked)| tracked.said.clone()).expect("a worker");
    info.runtimes.last_mut().expect("triton").max_models = Some(1);
    w.world.set_worker(info);
    w.settle();
    assert_eq!(there(&w), "cd");
}

/// A deployment that asks for isolation goes where it is given whole, and nowhere else.
#[test]
fn isolation_is_a_matter_of_the_worker() {
    let gives = |most: Isolation, lacks: &str| {
        let offer = IsolationOffer { most, lacks: lacks.to_owned() };
        move |info: &mut berth_spec::WorkerInfo| {
            info.runtimes.iter_mut().for_each(|runtime| runtime.isolation = Some(offer.clone()));
        }
    };
    let mut w = world()
        .worker_with("weak", gib(100), gives(Isolation::Process, "this machine lacks a user of its own"))
        .worker_with("strong", gib(4), gives(Isolation::Sandbox, ""));
    let isolated = |level| {
        move |spec: &mut berth_spec::Spec| {
            spec.memory = Some(gib(1));
            spec.runtime.isolation = level;
        }
    };
    w.change("any", isolated(None));
    w.change("apart", isolated(Some(Isolation::Process)));
    w.change("fenced", isolated(Some(Isolation::Sandbox)));
    w.settle();
    assert_eq!(w.placed("fenced"), ["strong"], "the other has more room");
    assert_eq!((w.placed("any"), w.placed("apart")), (vec!["weak".to_owned()], vec!["weak".to_owned()]));

    let explained = report::explain(&w.world, &berth_plan::fixture::name("fenced"), w.now).expect("known");
    let weak = explained.workers.iter().find(|view| view.worker.as_str() == "weak").expect("a worker");
    let WorkerVerdict::Rejected(why) = &weak.verdict else { panic!("{:?}", weak.verdict) };
    assert_eq!(why.reason(), "Isolation");
    assert_eq!(
        why.to_string(),
        "gives models of its runtime onnx at most the isolation process, and runtime.isolation asks for sandbox: this machine \
         lacks a user of its own"
    );
}

/// A worker of an earlier version says nothing of isolation: its loads tell.
#[test]
fn a_worker_that_says_nothing_of_isolation_is_tried() {
    let mut w = world().worker("old", gib(4));
    w.change("m", |spec| spec.runtime.isolation = Some(Isolation::Sandbox));
    w.settle();
    assert_eq!(w.placed("m"), ["old"]);
}
