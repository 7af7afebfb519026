//! Limits of the runtimes of a worker: each counts for the models of its formats alone.

use std::{sync::Arc, time::Duration};

use berth_plan::{
    Scope,
    fixture::{Fixture, died, gib, worker_id, world},
    report::{self, WorkerVerdict},
};
use berth_spec::{
    ByteSize, Cordon, Failure, FailureCategory, Isolation, IsolationOffer, Residency, RuntimeInfo, Spec, WorkerInfo,
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
    w.after(Duration::from_secs(1));
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
fn labels_of_a_runtime_count_for_its_models_over_the_workers() {
    let with = |tier: &'static str| {
        move |info: &mut WorkerInfo| {
            let mut runtime = RuntimeInfo::unlimited("triton", &[engine()]);
            runtime.labels = [("tier".to_owned(), tier.to_owned())].into();
            info.runtimes.push(runtime);
            info.labels = [("tier".to_owned(), "silver".to_owned()), ("disk".to_owned(), "nvme".to_owned())].into();
        }
    };
    let asks = |w: &mut Fixture, called: &str, labels: [(&str, &str); 2], format: ModelFormat| {
        w.change(called, |spec| {
            spec.memory = Some(gib(1));
            spec.model.format = format;
            spec.selector.required = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        });
        w.settle();
    };
    let mut w = world().worker_with("w", gib(8), with("bronze")).worker_with("x", gib(8), with("gold"));
    asks(&mut w, "a", [("tier", "gold"), ("disk", "nvme")], engine());
    assert_eq!(w.placed("a"), ["x"]);
    asks(&mut w, "b", [("tier", "silver"), ("disk", "nvme")], engine());
    assert!(w.placed("b").is_empty(), "the runtime's own word counts");
    assert_eq!(rejected(&w, "b"), "Label: lacks the label tier=silver");
    asks(&mut w, "c", [("tier", "silver"), ("disk", "nvme")], ModelFormat::ONNX);
    assert_eq!(w.placed("c").len(), 1, "another runtime has the worker's labels");
    w.change("d", |spec| {
        spec.memory = Some(gib(1));
        spec.model.format = engine();
        spec.selector.preferred = [("tier".to_owned(), "bronze".to_owned())].into();
    });
    w.settle();
    assert_eq!(w.placed("d"), ["w"]);
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

/// The device memory that a model claims is no part of its revision: it changes where the model stays.
#[test]
fn device_memory_that_is_declared_anew_counts_at_once() {
    let asks = |memory: u64| {
        move |spec: &mut Spec| {
            spec.model.format = engine();
            spec.memory = Some(gib(1));
            spec.gpu = Some(GpuNeed { count: 1, kind: None, memory: Some(gib(memory)) });
        }
    };
    let mut w = triton(|runtime| runtime.device_memory = Some(gib(8))).deploy("a", asks(6));
    w.settle();
    let mut w = comes(w, "b", gib(1), Some(gib(2)));
    assert_eq!(there(&w), "ab");
    w.change("a", asks(7));
    w.settle();
    assert_eq!(there(&w), "a", "what is on demand leaves");
    w.change("a", asks(10));
    w.settle();
    assert_eq!(there(&w), "", "it is larger than the whole runtime");
    assert!(rejected(&w, "a").contains("needs 10GiB of device memory"), "{}", rejected(&w, "a"));
    w.change("a", asks(6));
    w.settle();
    let w = comes(w, "b", gib(1), Some(gib(2)));
    assert_eq!(there(&w), "ab");
}

/// Replicas that serve ask for what they were declared with, though their deployment asks for something else by now.
#[test]
fn what_serves_stays_where_no_worker_can_hold_its_successor() {
    let changes: [fn(&mut Spec); 3] = [
        |spec| spec.model.format = engine(),
        |spec| spec.model.format = ModelFormat::PYTHON,
        |spec| spec.runtime.isolation = Some(Isolation::Sandbox),
    ];
    for change in changes {
        let offer = IsolationOffer { most: Isolation::Process, lacks: "this machine lacks namespaces".to_owned() };
        let mut w = world()
            .worker_with("w", gib(4), |info| {
                info.runtimes.truncate(1);
                info.runtimes[0].isolation = Some(offer);
            })
            .resident("iris", gib(1));
        w.settle();
        let old = w.revision("iris");
        w.change("iris", change);
        w.settle();
        let ready = w.world.worker(&worker_id("w")).and_then(|tracked| tracked.inventory.get(&old)).cloned();
        let down = died(&ready.expect("it is ready"), Some(Duration::from_secs(1)), w.now).expect("it was ready");
        let up = died(&down, None, w.now).expect("it is loaded");
        w.report("w", false, vec![(old.clone(), Some(down))]);
        w.advance();
        assert_eq!(w.placed("iris"), ["w"], "its process is started again");
        w.report("w", false, vec![(old.clone(), Some(up))]);
        w.advance();
        assert_eq!(w.answers("iris"), ["w"]);
        w.restart("w");
        w.advance();
        assert_eq!(w.placed("iris"), ["w"], "it is loaded again");
        w.settle();
        assert_eq!(w.answers("iris"), ["w"]);
        assert!(!w.was_told("ReplicaLost"), "{:?}", w.told);
    }
}

#[test]
fn an_older_copy_goes_to_no_worker_that_has_its_successors_runtime_alone() {
    let mut w = world()
        .worker_with("onnx", gib(4), |info| info.runtimes.truncate(1))
        .worker_with("python", gib(8), |info| info.runtimes.retain(|runtime| runtime.takes(&ModelFormat::PYTHON)))
        .resident("iris", gib(1));
    w.settle();
    assert_eq!(w.placed("iris"), ["onnx"]);
    w.change("iris", |spec| spec.model.format = ModelFormat::PYTHON);
    w.advance();
    w.lose("onnx");
    w.advance();
    let on_python = w.placed("iris").iter().filter(|worker| *worker == "python").count();
    assert_eq!(on_python, 1, "the new one");
    w.settle();
    assert_eq!(w.answers("iris"), ["python"]);
}

/// The limits are those of the runtime that the older copy runs in, not of its successor's.
#[test]
fn an_older_copy_of_another_format_keeps_to_the_limits_of_its_own_runtime() {
    let mut w = world()
        .worker("roomy", gib(8))
        .worker_with("small", gib(6), |info| info.runtimes[0].memory = Some(gib(1)))
        .resident("iris", gib(2));
    w.settle();
    assert_eq!(w.placed("iris"), ["roomy"]);
    w.change("iris", |spec| spec.model.format = ModelFormat::PYTHON);
    w.cordon("roomy", Cordon::Draining);
    w.advance();
    let mut placed = w.placed("iris");
    placed.sort();
    assert_eq!(placed, ["roomy", "small"], "the new one alone is put on the other worker");
    w.settle();
    assert_eq!(w.answers("iris"), ["small"]);
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
