//! Drift: differences between desired state and workers' reports, kind by kind.

use berth_plan::{
    Scope,
    drift::{DriftKind, drift, unresponsive},
    fixture::{Fixture, gib, world},
};
use berth_spec::{FailureCategory, Replicas};

fn kinds(w: &Fixture) -> Vec<DriftKind> {
    let found = drift(&w.world, &Scope::All).into_iter().chain(unresponsive(&w.world));
    found.map(|drift| drift.kind).collect()
}

#[test]
fn each_kind_is_found_and_goes_when_it_is_repaired() {
    let mut w = world().worker("a", gib(4)).worker("b", gib(4)).resident("m", gib(1));
    assert_eq!(kinds(&w), [DriftKind::NewDeployment]);
    w.settle();
    assert!(kinds(&w).is_empty());
    w.change("m", |spec| spec.replicas = Replicas { min: 2, max: 2 });
    assert_eq!(kinds(&w), [DriftKind::ScaleUp]);
    w.settle();
    w.change("m", |spec| spec.replicas = Replicas { min: 1, max: 1 });
    assert_eq!(kinds(&w), [DriftKind::ScaleDown]);
    w.settle();
    w.update("m", "2");
    assert_eq!(kinds(&w), [DriftKind::VersionUpdate]);
    w.settle();
    let on = w.placed("m")[0].clone();
    w.lose(&on);
    assert_eq!(kinds(&w), [DriftKind::NewDeployment, DriftKind::UnresponsiveWorker]);
    w.attach(&on);
    w.settle();
    assert!(kinds(&w).is_empty());
    w.fail("m", &on, FailureCategory::Code, None);
    assert_eq!(kinds(&w), [DriftKind::FailedModel, DriftKind::NewDeployment]);
    w.load_all();
    w.settle();
    w.change("m", |spec| spec.replicas = Replicas { min: 0, max: 0 });
    assert_eq!(kinds(&w), [DriftKind::Disable]);
    w.settle();
    assert!(kinds(&w).is_empty());
}

#[test]
fn what_is_on_demand_differs_only_while_somebody_waits() {
    let mut w = world().worker("a", gib(4)).on_demand("m", gib(1));
    assert!(kinds(&w).is_empty());
    w.demand("m", 1);
    assert_eq!(kinds(&w), [DriftKind::NewDeployment]);
    w.settle();
    w.demand("m", 0);
    w.settle();
    assert!(kinds(&w).is_empty());
    w.world.remove_deployment(&berth_plan::fixture::name("m"));
    assert_eq!(kinds(&w), [DriftKind::Disable]);
}
