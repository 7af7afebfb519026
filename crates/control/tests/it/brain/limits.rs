//! Terms of the registry reach a worker, and the labels that types of models ask for reach the planner.

use berth_plan::TypeRules;
use berth_spec::{WorkerLimits, WorkerTerms, deployment::Selector, worker::Eviction};

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

#[test]
fn labels_of_types_count_from_the_next_plan_on() {
    let mut bench = Bench::settled(&worker("w", 1));
    let selector = Selector { required: [("gpu".to_owned(), "true".to_owned())].into(), ..Selector::default() };
    bench.on(Event::TypeRules(TypeRules { others: Some(selector), ..TypeRules::default() }));
    bench.set(&deployment("iris", "  replicas: 1\n", 1));
    let mut effects = bench.wait(DEBOUNCE);
    effects.extend(bench.settle());
    assert!(kinds(&effects).is_empty(), "the worker lacks the label");
    bench.on(Event::TypeRules(TypeRules::default()));
    let mut effects = bench.wait(DEBOUNCE);
    effects.extend(bench.settle());
    assert_eq!(kinds(&effects), [CommandKind::Load]);
}
