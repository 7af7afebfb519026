//! A deployment that is wanted without a request.

use super::*;

fn waiting(bench: &Bench, called: &str) -> u32 {
    bench.brain.world().used(&name(called), bench.now).waiting
}

fn want(bench: &mut Bench, called: &str) -> Vec<Effect> {
    let (deployment, last_used) = (name(called), bench.now);
    let mut effects = bench.on(Event::Wanted { deployment, last_used });
    effects.extend(bench.settle());
    effects
}

#[test]
fn it_is_loaded_once_and_then_left_to_requests() {
    let info = worker("w", 1);
    let mut bench = Bench::settled(&info);
    let iris = deployment("iris", "  replicas: {min: 0}\n", 1);
    bench.set(&iris);
    bench.wait(DEBOUNCE);
    bench.settle();
    assert_eq!(kinds(&want(&mut bench, "iris")), [CommandKind::Load]);
    assert_eq!(waiting(&bench, "iris"), 1, "until it is ready");
    let loaded = vec![(iris.revision_id(), Some(ready(bench.now)))];
    bench.on(Event::Reported(inventory(&info, false, loaded)));
    bench.wait(DEBOUNCE);
    bench.settle();
    assert_eq!(waiting(&bench, "iris"), 0);
    assert!(kinds(&want(&mut bench, "iris")).is_empty(), "it is there already");
    assert_eq!(waiting(&bench, "iris"), 0);
}

#[test]
fn nobody_waits_for_ever_for_what_has_no_room_or_is_not_declared() {
    let mut bench = Bench::settled(&worker("w", 1));
    bench.set(&deployment("huge", "  replicas: {min: 0}\n  resources: {memory: 8GiB}\n", 1));
    bench.wait(DEBOUNCE);
    bench.settle();
    assert!(kinds(&want(&mut bench, "huge")).is_empty());
    assert_eq!(waiting(&bench, "huge"), 0, "a plan has found no room");
    assert!(kinds(&want(&mut bench, "none")).is_empty());
    // What waits for room is given up after a while.
    bench.set(&deployment("slow", "  replicas: {min: 0}\n", 1));
    bench.wait(DEBOUNCE);
    bench.settle();
    want(&mut bench, "slow");
    assert_eq!(waiting(&bench, "slow"), 1, "its worker has said nothing of it");
    bench.wait(Duration::from_secs(601));
    bench.set(&deployment("other", "  replicas: {min: 0}\n", 1));
    bench.wait(DEBOUNCE);
    bench.settle();
    assert_eq!(waiting(&bench, "slow"), 0);
}

#[test]
fn a_load_that_failed_ends_the_wish_and_its_worker_tries_again() {
    let info = worker("w", 1);
    let mut bench = Bench::settled(&info);
    let iris = deployment("iris", "  replicas: {min: 0}\n", 1);
    bench.set(&iris);
    bench.wait(DEBOUNCE);
    bench.settle();
    want(&mut bench, "iris");
    let failure = berth_spec::Failure {
        category: berth_spec::FailureCategory::Network,
        message: "the store is silent".to_owned(),
        attempts: 1,
        at: bench.now,
        retry_at: Some(bench.now + Duration::from_secs(60)),
        trace: None,
        history: Vec::new(),
        needs: None,
    };
    let failed = berth_spec::Residency::Failed(std::sync::Arc::new(failure));
    bench.on(Event::Reported(inventory(&info, false, vec![(iris.revision_id(), Some(failed))])));
    bench.wait(DEBOUNCE);
    bench.settle();
    assert_eq!(waiting(&bench, "iris"), 0, "nobody waits for it any more");
    assert!(bench.brain.world().record(&iris.name).is_some(), "and it stays where it is until then");
}
