//! Terms of the registry reach a worker.

use berth_spec::{WorkerLimits, WorkerTerms, worker::Eviction};

use super::*;

#[test]
fn a_worker_is_told_the_registrys_limits_at_once_and_again_when_it_comes_back() {
    let info = worker("w-1", 1);
    let mut bench = Bench::settled(&info);
    let terms = WorkerTerms {
        labels: std::collections::BTreeMap::new(),
        memory: None,
        cpus: None,
        max_models: Some(3),
        max_gpus: None,
        schema_versions: Vec::new(),
        eviction: Eviction::default(),
    };
    let limits = WorkerLimits { memory: None, models: Some(3) };
    let told = |effects: &[Effect]| assignments(effects).iter().map(|change| change.limits).collect::<Vec<_>>();
    bench.on(Event::Terms { worker: info.id.clone(), terms: Some(Arc::new(terms)) });
    let effects = bench.wait(DEBOUNCE);
    assert_eq!((told(&effects), kinds(&effects).len()), (vec![limits], 0), "it holds nothing, and nothing comes");

    bench.on(Event::WorkerAttached(WorkerInfo { incarnation: 2, ..info.clone() }));
    let again = WorkerInfo { incarnation: 2, ..info };
    let mut effects = bench.on(Event::Reported(empty_inventory(&again)));
    effects.extend(bench.wait(DEBOUNCE));
    effects.extend(bench.settle());
    assert_eq!(told(&effects), [limits], "a process that has just begun");
}
