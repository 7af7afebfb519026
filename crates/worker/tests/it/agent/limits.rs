//! Room is made before it is taken: by the worker's own limits, and by those that the registry gives it.

use berth_spec::deployment::GpuNeed;

use super::*;

fn with_gpus(name: &str, gpus: u32) -> Placed {
    Placed { gpu: Some(GpuNeed { count: gpus, kind: None, memory: None }), ..placed(name, 10) }
}

/// `new` is assigned in the place of `old`: it is fetched meanwhile, and loaded once `old` has gone.
fn takes_the_place(s: &mut Stage, old: &str, new: Placed) {
    s.change(vec![new], &[old]);
    assert_eq!(s.fetched("new", Ok(artifact(9))), "report seen 2 new=Queued", "{old} still answers");
    assert_eq!(s.on(Event::Drained { revision: id(old) }), format!("unload {old}"), "it is in memory");
    let gone = s.on(Event::Unloaded { revision: id(old) });
    assert!(gone.starts_with("load new"), "{gone}");
}

#[test]
fn what_leaves_is_gone_before_what_comes_is_loaded() {
    type Limit = fn(&mut Stage);
    let cases: [(Limit, Placed, Placed); 3] = [
        (|s| s.limits.models = Some(2), placed("old", 10), placed("new", 10)),
        (|s| s.limits.memory = Some(ByteSize(25)), placed("old", 10), placed("new", 10)),
        (|_| (), with_gpus("old", 1), with_gpus("new", 2)),
    ];
    for (limit, old, new) in cases {
        let mut s = Stage::new();
        limit(&mut s);
        s.whole(vec![placed("stays", 10), old]);
        s.ready("stays", 1, 10);
        s.ready("old", 2, 10);
        takes_the_place(&mut s, "old", new);
    }
}

#[test]
fn a_load_that_lacks_no_more_than_the_reserve_waits_for_no_unload() {
    let loads_beside = |reserve| {
        let mut s = Stage::within(Limits { memory: ByteSize(25), unload_reserve: ByteSize(reserve), ..LIMITS });
        s.whole(vec![placed("stays", 10), placed("old", 10)]);
        s.ready("stays", 1, 10);
        s.ready("old", 2, 10);
        s.change(vec![placed("new", 10)], &["old"]);
        let fetched = s.fetched("new", Ok(artifact(9)));
        assert!(!fetched.contains("load new"), "old still answers: {fetched}");
        s.on(Event::Drained { revision: id("old") }).contains("load new")
    };
    assert_eq!([4, 5].map(loads_beside), [false, true]);
}

#[test]
fn what_happens_together_is_reported_together() {
    let mut s = Stage::new();
    s.whole(vec![placed("a", 10), placed("b", 10)]);
    s.ready("a", 1, 10);
    s.ready("b", 2, 10);
    s.change(vec![], &["a", "b"]);
    let drained = s.agent.on_all(["a", "b"].map(|name| Event::Drained { revision: id(name) }), s.now);
    assert_eq!(drained.iter().map(show).collect::<Vec<_>>(), ["unload a", "unload b"]);
    let unloaded = s.agent.on_all(["a", "b"].map(|name| Event::Unloaded { revision: id(name) }), s.now);
    assert_eq!(unloaded.iter().map(show).collect::<Vec<_>>(), ["report seen 2 a=gone b=gone"]);
}

#[test]
fn the_tighter_limit_counts_and_is_kept_until_another_is_told() {
    let mut s = Stage::new();
    assert_eq!(s.agent.limits(), LIMITS, "nothing was told");
    s.limits = WorkerLimits { memory: Some(ByteSize(40)), models: Some(3) };
    s.whole(vec![]);
    let told = Limits { memory: ByteSize(40), models: Some(3), ..LIMITS };
    assert_eq!(s.agent.limits(), told);
    s.on(Event::Attached);
    assert_eq!(s.agent.limits(), told, "another controller has said nothing yet");
    s.limits.memory = Some(ByteSize(1_000));
    s.change(vec![], &[]);
    assert_eq!(s.agent.limits().memory, LIMITS.memory, "more than there is, is not there");
    s.limits = WorkerLimits::default();
    s.change(vec![], &[]);
    assert_eq!(s.agent.limits(), LIMITS, "the registry says nothing any more");
}

#[test]
fn the_reserve_for_unloads_is_a_share_of_the_memory_in_force() {
    let mut s = Stage::within(Limits { unload_reserve: ByteSize(10), ..LIMITS });
    assert_eq!(s.agent.limits().unload_reserve, ByteSize(10));
    s.limits.memory = Some(ByteSize(40));
    s.whole(vec![]);
    assert_eq!(s.agent.limits().unload_reserve, ByteSize(4));
}

#[test]
fn what_is_above_the_registrys_memory_names_the_registry() {
    let mut s = Stage::new();
    s.limits.memory = Some(ByteSize(40));
    s.whole(vec![placed("a", 50)]);
    s.fetched("a", Ok(artifact(1)));
    let Some(Residency::Failed(failure)) = s.residency("a") else { panic!("it does not fit") };
    assert!(failure.message.contains("of 40B") && failure.message.contains("max_memory"), "{}", failure.message);
}
