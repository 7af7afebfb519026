//! Placement in a fleet of unlike workers: cores, GPUs, counts, types, versions, load, spread.

use std::time::Duration;

use berth_plan::{
    Policy, Rejection,
    fixture::{Fixture, gib, name, worker_id, world, world_with},
    report::{WorkerVerdict, explain},
};
use berth_spec::{
    Gpu, Load, Replicas, Spec,
    deployment::{GpuNeed, Selector, Spread},
    status::Phase,
};

fn verdict(w: &Fixture, called: &str, on: &str) -> WorkerVerdict {
    let explained = explain(&w.world, &name(called), w.now).expect("a deployment");
    explained.workers.into_iter().find(|view| view.worker == worker_id(on)).expect("a worker").verdict
}

fn rejection(w: &Fixture, called: &str, on: &str) -> String {
    match verdict(w, called, on) {
        WorkerVerdict::Rejected(rejection) => rejection.to_string(),
        other => panic!("{other:?}"),
    }
}

fn gpus(kind: &str, memories: &[u64]) -> Vec<Gpu> {
    memories.iter().map(|memory| Gpu { id: String::new(), kind: kind.to_owned(), memory: gib(*memory) }).collect()
}

fn needs_gpu(spec: &mut Spec, count: u32) {
    spec.gpu = Some(GpuNeed { count, kind: None, memory: None });
}

fn copies(spec: &mut Spec, count: u32) {
    spec.memory = Some(gib(1));
    spec.replicas = Replicas { min: count, max: count };
}

#[test]
fn cores_are_counted_and_make_room_like_memory() {
    let mut w = world().worker("a", gib(16)); // 4 cores
    for called in ["x", "y"] {
        w.change(called, |spec| {
            copies(spec, 1);
            spec.cpu = Some(2.0);
        });
    }
    w.settle();
    w.change("z", |spec| {
        copies(spec, 1);
        spec.cpu = Some(0.5);
    });
    w.settle();
    assert_eq!(rejection(&w, "z", "a"), "needs 0.5 cores, has 0 free and 0 that may be evicted, of 4");
    assert_eq!(w.status("z").phase, Phase::ScheduleFailed);
    assert!(w.status("z").conditions[0].message.contains("needs 0.5 cores"), "{:?}", w.status("z").conditions);
    w.change("z", |spec| spec.priority = 60);
    w.settle();
    assert_eq!(w.placed("z"), ["a"]);
    let left = ["x", "y"].iter().filter(|called| w.placed(called).is_empty()).count();
    assert_eq!(left, 1, "one gave its cores back, and no more");
    // What is asked of a worker may change without anything being loaded anew.
    w.change("z", |spec| spec.cpu = None);
    w.settle();
    assert_eq!(w.placed("x").len() + w.placed("y").len(), 2);
    w.change("z", |spec| spec.cpu = Some(1.0));
    w.settle();
    assert_eq!(w.placed("z").len(), 1, "what matters least leaves");
}

#[test]
fn gpus_are_claimed_whole_by_kind_and_memory() {
    let mut w = world()
        .worker_with("a", gib(64), |info| info.gpus = gpus("nvidia-l4", &[24, 24]))
        .worker_with("b", gib(64), |info| info.gpus = gpus("nvidia-h200", &[141]))
        .worker("c", gib(64));
    w.change("large", |spec| {
        copies(spec, 1);
        spec.gpu = Some(GpuNeed { count: 1, kind: None, memory: Some(gib(80)) });
    });
    w.change("pair", |spec| {
        copies(spec, 1);
        spec.gpu = Some(GpuNeed { count: 2, kind: Some("nvidia-l4".to_owned()), memory: None });
    });
    w.change("none", |spec| copies(spec, 1));
    w.settle();
    assert_eq!((w.placed("large"), w.placed("pair")), (vec!["b".to_owned()], vec!["a".to_owned()]));
    assert_eq!(w.placed("none"), ["c"], "GPUs are left for those who need them");
    w.change("more", |spec| {
        copies(spec, 1);
        needs_gpu(spec, 1);
    });
    w.settle();
    assert_eq!(rejection(&w, "more", "a"), "needs 1 GPU, has 0 free and 0 that may be evicted, of 2");
    assert_eq!(rejection(&w, "more", "c"), "needs 1 GPU, has none");
    assert_eq!(rejection(&w, "large", "c"), "needs 1 GPU with 80GiB, has none");
    // A need for a GPU evicts who has one, not who has memory.
    w.change("small", |spec| {
        copies(spec, 1);
        spec.priority = 1;
        spec.selector.required.clear();
    });
    w.settle();
    w.change("more", |spec| spec.priority = 60);
    w.settle();
    assert_eq!(w.placed("more").len(), 1);
    assert_eq!(w.placed("small").len(), 1);
    assert_eq!(w.placed("large").len() + w.placed("pair").len(), 1);
}

#[test]
fn a_worker_that_holds_as_many_models_as_it_may_evicts_one() {
    let mut w = world().worker_with("a", gib(64), |info| info.max_models = Some(2));
    for called in ["old", "new"] {
        w = w.on_demand(called, gib(1));
        w.after(Duration::from_secs(1));
        w.demand(called, 1);
        w.settle();
        w.demand(called, 0);
    }
    w = w.on_demand("third", gib(1));
    w.demand("third", 1);
    w.settle();
    assert_eq!((w.placed("old").len(), w.placed("new").len(), w.placed("third").len()), (0, 1, 1));
    let mut w = world().worker_with("a", gib(64), |info| info.max_models = Some(1)).resident("x", gib(1));
    w.settle();
    w = w.resident("y", gib(1));
    w.settle();
    assert_eq!(
        rejection(&w, "y", "a"),
        "holds 1 models, which is all that it may hold, and none may be evicted for it"
    );
}

#[test]
fn what_is_pinned_never_leaves_for_others() {
    let mut w = world().worker("a", gib(4)).on_demand("iris", gib(3));
    w.change("iris", |spec| (spec.pinned, spec.priority) = (true, 1));
    w.demand("iris", 1);
    w.settle();
    w.demand("iris", 0);
    let mut w = w.resident("wine", gib(2));
    w.change("wine", |spec| spec.priority = 100);
    w.settle();
    assert_eq!((w.placed("iris").len(), w.placed("wine").len()), (1, 0));
    assert!(
        rejection(&w, "wine", "a").contains("has 1GiB free and 0B that may be evicted"),
        "{}",
        rejection(&w, "wine", "a")
    );
    w.change("iris", |spec| spec.pinned = false);
    w.settle();
    assert_eq!((w.placed("iris").len(), w.placed("wine").len()), (0, 1));
}

#[test]
fn what_holds_for_all_models_of_a_type_is_merged_with_their_own() {
    let label = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
    let required = Selector { required: label("pool", "llm"), preferred: label("disk", "ssd") };
    let policy = Policy { types: [("llm".to_owned(), required)].into(), ..Policy::default() };
    let mut w = world_with(policy)
        .worker("a", gib(64))
        .worker_with("b", gib(8), |info| info.labels = label("pool", "llm"))
        .worker_with("c", gib(4), |info| {
            info.labels = label("pool", "llm");
            info.labels.insert("disk".to_owned(), "ssd".to_owned());
        });
    w.change("chat", |spec| {
        copies(spec, 1);
        spec.model_type = Some("llm".into());
    });
    w.change("plain", |spec| copies(spec, 1));
    w.settle();
    assert_eq!((w.placed("chat"), w.placed("plain")), (vec!["c".to_owned()], vec!["a".to_owned()]));
    assert_eq!(rejection(&w, "chat", "a"), "lacks the label pool=llm, which models of type llm require");
}

/// ModelMesh's upgrade tracking was blind to workers with labels (2.10 j), and preferred the new version even when it
/// was full, because it compared a moment with an age (2.10 b).
#[test]
fn nodes_that_are_being_replaced_get_nothing_new_unless_only_they_are_left() {
    let version = |version: &'static str| {
        move |info: &mut berth_spec::WorkerInfo| {
            info.version = version.to_owned();
            info.labels.insert("pool".to_owned(), "blue".to_owned());
        }
    };
    let mut w = world().worker_with("old", gib(64), version("0.9.0")).resident("before", gib(1));
    w.settle();
    let mut w = w.worker_with("new", gib(2), version("0.10.0")).resident("x", gib(1)).resident("y", gib(1));
    w.settle();
    assert_eq!((w.placed("x"), w.placed("y")), (vec!["new".to_owned()], vec!["new".to_owned()]));
    assert_eq!(w.placed("before"), ["old"], "what is there stays until somebody moves it");
    let mut w = w.resident("z", gib(1));
    w.settle();
    assert_eq!(w.placed("z"), ["old"], "the new one is full");
    // An upgrade that stopped half-way does not make the old half idle for ever.
    w.after(Policy::default().replacing_window);
    let mut w = w.worker_with("late", gib(8), version("0.9.0")).resident("last", gib(1));
    w.settle();
    assert_eq!(w.placed("last"), ["old"], "the most room");
}

#[test]
fn a_machine_that_is_short_of_memory_gets_nothing_more_unless_there_is_no_other_place() {
    let mut w = world().worker("short", gib(64)).worker("well", gib(2)).resident("before", gib(8));
    w.settle();
    w.loaded("short", berth_spec::Load { degraded: true, ..berth_spec::Load::default() });
    let mut w = w.resident("x", gib(1)).resident("y", gib(1)).resident("z", gib(1));
    w.settle();
    assert_eq!((w.placed("x"), w.placed("y")), (vec!["well".to_owned()], vec!["well".to_owned()]));
    assert_eq!((w.placed("before"), w.placed("z")), (vec!["short".to_owned()], vec!["short".to_owned()]));
}

#[test]
fn copies_lie_apart() {
    let places = [("a1", "eu", "1"), ("a2", "eu", "1"), ("b1", "eu", "2"), ("c1", "us", "1"), ("c2", "us", "2")];
    let fleet = || places.iter().fold(world(), |w, (called, region, zone)| w.worker_in(called, gib(8), region, zone));
    for (count, expected) in [(1, "a1"), (2, "a1 c1"), (3, "a1 b1 c1"), (4, "a1 b1 c1 c2"), (5, "a1 a2 b1 c1 c2")] {
        let mut w = fleet();
        w.change("iris", |spec| copies(spec, count));
        w.settle();
        assert_eq!(w.placed("iris").join(" "), expected);
    }
    let mut w = fleet();
    w.change("iris", |spec| {
        copies(spec, 2);
        spec.spread = Spread::Worker;
    });
    w.settle();
    assert_eq!(w.placed("iris").join(" "), "a1 a2");
}

#[test]
fn a_model_goes_where_its_requests_come_from() {
    let mut w = world().worker_in("a", gib(64), "eu", "1").worker_in("b", gib(8), "us", "1").on_demand("iris", gib(1));
    w.world.set_gateway(berth_spec::GatewayId(7), Some("us".to_owned()));
    w.used(7, "iris", 3, 0, 3);
    w.settle();
    assert_eq!(w.placed("iris"), ["b"]);
}

#[test]
fn busy_models_go_to_quiet_workers_and_quiet_ones_to_busy_ones() {
    let mut w = world().worker("a", gib(8)).worker("b", gib(8));
    w.loaded("a", Load { requests_per_minute: 5_000, cpu_percent: [90.0; 3], ..Load::default() });
    w.change("rare", |spec| copies(spec, 1));
    w.settle();
    assert_eq!(w.placed("rare"), ["a"]);
    w.change("hot", |spec| {
        copies(spec, 1);
        spec.replicas = Replicas { min: 0, max: 1 };
    });
    w.used(1, "hot", 0, 1, 1_000);
    w.change("hot", |spec| spec.replicas = Replicas { min: 1, max: 1 });
    w.settle();
    assert_eq!(w.placed("hot"), ["b"]);
}

#[test]
fn loads_queue_where_fewer_wait() {
    let mut w = world().worker("a", gib(64)).worker("b", gib(8));
    w.loaded("a", Load { queue: 20, ..Load::default() });
    w.change("iris", |spec| copies(spec, 1));
    w.settle();
    assert_eq!(w.placed("iris"), ["b"]);
}

/// ModelMesh judged other instances by its own numbers (2.10 a): here each worker is judged by what it said itself.
#[test]
fn each_worker_is_judged_by_its_own_numbers() {
    let mut w = world().worker("a", gib(2)).worker("b", gib(8)).worker("c", gib(4));
    for worker in ["a", "c"] {
        w.loaded(worker, Load { queue: 100, ..Load::default() });
    }
    w.change("iris", |spec| copies(spec, 1));
    w.settle();
    let WorkerVerdict::Fits { score, .. } = verdict(&w, "iris", "c") else { panic!("it fits") };
    assert_eq!((score.free.0, w.placed("iris")), (gib(4), vec!["b".to_owned()]));
}

/// ModelMesh subtracted excluded instances twice, so that small fleets got no second copy (2.10 e).
#[test]
fn the_last_worker_that_may_hold_a_copy_gets_it() {
    let mut w = world().worker("a", gib(2)).worker("b", gib(2)).worker("c", gib(2));
    w.cordon("c", berth_spec::Cordon::Cordoned);
    w.change("iris", |spec| copies(spec, 2));
    w.settle();
    assert_eq!(w.placed("iris"), ["a", "b"]);
    assert_eq!(rejection(&w, "iris", "c"), "is cordoned");
}

#[test]
fn workers_that_cannot_take_more_say_why() {
    let mut w = world().worker("a", gib(8)).worker("b", gib(8)).worker("c", gib(8)).worker("d", gib(8));
    w.change("iris", |spec| copies(spec, 1));
    w.settle();
    w.leave("b");
    w.detach("c");
    w.lose("d");
    let said = ["b", "c", "d"].map(|worker| rejection(&w, "iris", worker));
    assert_eq!(
        said,
        ["is about to stop", "cannot be reached by the controller, only by the other nodes", "cannot be reached"]
    );
    w.cordon("a", berth_spec::Cordon::Draining);
    w.change("wine", |spec| copies(spec, 1));
    assert_eq!(verdict(&w, "wine", "a"), WorkerVerdict::Rejected(Rejection::Draining));
}

#[test]
fn a_failed_worker_is_avoided_until_its_failure_is_forgotten() {
    let mut w = world().worker("a", gib(8)).worker("b", gib(4)).resident("iris", gib(1));
    w.advance();
    w.fail("iris", "a", berth_spec::FailureCategory::Runtime, None);
    w.settle();
    assert_eq!(w.placed("iris"), ["b"]);
    assert!(rejection(&w, "iris", "a").contains("failed to load it: runtime: it broke"));
    w.after(Policy::default().failure_memory);
    assert!(matches!(verdict(&w, "iris", "a"), WorkerVerdict::Fits { .. }));
}

#[test]
fn a_placement_says_what_it_was_better_than() {
    let mut w = world().worker("a", gib(4)).worker("b", gib(8)).resident("iris", gib(1));
    w.settle();
    let (_, placed) = w.told.iter().find(|(reason, _)| *reason == "Placed").expect("told");
    assert!(placed.ends_with("rather than to a: it has 8GiB free, the other 4GiB"), "{placed}");
}

#[test]
fn an_explanation_says_why_here_and_why_not_there() {
    let mut w = world()
        .worker_in("a", gib(4), "eu", "1")
        .worker_in("b", gib(8), "eu", "1")
        .worker_in("c", gib(2), "us", "1")
        .resident("iris", gib(1));
    let why = |w: &Fixture, on: &str| {
        let explained = explain(&w.world, &name("iris"), w.now).expect("a deployment");
        explained.workers.into_iter().find(|view| view.worker == worker_id(on)).expect("a worker").why
    };
    let said = |text: &str| Some(text.to_owned());
    assert_eq!(why(&w, "b"), said("the next one goes here rather than to a: it has 8GiB free, the other 4GiB"));
    assert_eq!(why(&w, "c"), said("b comes before it: it has 8GiB free, the other 2GiB"));
    w.settle();
    assert_eq!(why(&w, "b"), said("better than a: it has 8GiB free, the other 4GiB"));
    assert_eq!(why(&w, "a"), said("c comes before it: its region has 0 of the replicas, the other's 1"));
    let w = w.worker_in("d", gib(64), "eu", "1");
    assert_eq!(
        why(&w, "b"),
        said("placed now it would go to d: it has 64GiB free, the other 8GiB; nothing moves for that")
    );
}
