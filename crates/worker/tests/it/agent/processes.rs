//! Replicas whose model has a process of its own, which may die.

use berth_spec::residency::Deaths;
use berth_worker::runtime::Health;

use super::*;

/// The health of a model whose process died so often, and is started again then; `None`: it is up.
fn dead(count: u32, again_at: Option<u64>) -> Health {
    let cause = "it ended with code 3".to_owned();
    let deaths = Deaths { count, in_a_row: count, at: Time(1), cause, again_at: again_at.map(Time) };
    Health { memory: None, deaths: Some(Arc::new(deaths)), lost: None }
}

#[test]
fn a_replica_whose_process_dies_is_restarting_until_it_is_up() {
    let mut s = Stage::new();
    s.whole(vec![placed("a", 10)]);
    let health = |health| Event::Health { revision: id("a"), health };
    assert_eq!(s.on(health(dead(1, Some(5)))), "", "it has not loaded");
    s.ready("a", 1, 8);
    let table = [
        (Health::default(), ""),
        (dead(1, Some(5)), "report seen 1 a=Restarting"),
        (dead(1, Some(5)), ""),
        (dead(2, Some(9)), "report seen 1 a=Restarting"),
        (dead(2, None), "report seen 1 a=Ready"),
        (dead(2, None), ""),
        (dead(3, Some(20)), "report seen 1 a=Restarting"),
    ];
    for (how, told) in table {
        assert_eq!(s.on(health(how.clone())), told, "{how:?}");
        assert_eq!(s.agent.held(), ByteSize(10), "it keeps its memory");
    }
    assert_eq!(s.change(vec![], &["a"]), "drain a; report seen 2 a=Draining", "it may leave like any other");
    assert_eq!(s.on(health(dead(3, None))), "", "what leaves is not called ready again");
}
