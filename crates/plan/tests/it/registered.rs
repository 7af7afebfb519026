//! The registry's settings of workers, and the demands of model cards.

use std::{collections::BTreeMap, sync::Arc};

use berth_plan::{
    Rejection,
    fixture::{Fixture, gib, name, worker_id, world},
    report::{WorkerVerdict, explain},
};
use berth_spec::{
    ByteSize, Gpu, UnknownWorkers, WorkerLimits, WorkerTerms,
    deployment::{GpuNeed, ModelFormat},
    status::Phase,
    worker::{Eviction, EvictionStrategy},
};

use crate::laws::registered::card;

/// Terms that say nothing but which cards.
fn terms() -> WorkerTerms {
    WorkerTerms {
        labels: BTreeMap::new(),
        memory: None,
        cpus: None,
        max_models: None,
        max_gpus: None,
        schema_versions: vec!["3.0.0".to_owned(), "3.1.0".to_owned()],
        eviction: Eviction::default(),
    }
}

/// Steps of these stories beside those of the fixture.
trait Registered {
    fn under(&mut self, worker: &str, change: impl FnOnce(&mut WorkerTerms));
    /// The reason why a deployment cannot be on a worker.
    fn why_not(&self, called: &str, worker: &str) -> Rejection;
}

impl Registered for Fixture {
    fn under(&mut self, worker: &str, change: impl FnOnce(&mut WorkerTerms)) {
        let mut terms = terms();
        change(&mut terms);
        self.world.set_terms(&worker_id(worker), Some(Arc::new(terms)));
    }

    fn why_not(&self, called: &str, worker: &str) -> Rejection {
        let explained = explain(&self.world, &name(called), self.now).expect("a deployment");
        let view = explained.workers.into_iter().find(|view| view.worker.as_str() == worker).expect("a worker");
        match view.verdict {
            WorkerVerdict::Rejected(rejection) => rejection,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_card_goes_where_its_version_is_read() {
    let mut w = world().worker("new", gib(4)).worker_with("old", gib(8), |info| {
        info.schema_versions = vec!["3.0.0".to_owned()];
    });
    let carded = |spec: &mut berth_spec::Spec| {
        spec.model.format = ModelFormat::PYTHON;
        spec.model.card = Some(card(true));
        spec.memory = Some(gib(1));
    };
    w.change("m", carded);
    w.settle();
    assert_eq!(w.placed("m"), ["new"], "old has more room, and does not read it");
    let why = w.why_not("m", "old");
    assert!(
        why.to_string().starts_with("reads model cards of the versions 3.0.0, and this one has version 3.1.0"),
        "{why}"
    );
    w.under("new", |terms| terms.schema_versions = vec!["3.0.0".to_owned()]);
    w.settle();
    assert_eq!(
        w.answers("m"),
        ["new"],
        "the registry takes the version away, and nobody else reads it: no outage for that"
    );
    let status = w.status("m");
    assert_eq!((status.phase, status.conditions[1].reason.as_str()), (Phase::Available, "LeaveWaits"));
    w.under("new", |_| {});
    w.settle();
    assert_eq!(w.placed("m"), ["new"]);
    assert_eq!(w.status("m").conditions[1].reason, "Settled", "it is given back");
}

/// A word of the registry about a worker that serves moves what it may not hold any more: as a drain does.
#[test]
fn what_may_not_stay_answers_until_its_successor_does() {
    type Change = fn(&mut WorkerTerms);
    let changes: [(&str, Change); 2] = [
        ("a label", |terms| drop(terms.labels.insert("pool".to_owned(), "staging".to_owned()))),
        ("a version", |terms| terms.schema_versions = vec!["3.0.0".to_owned()]),
    ];
    for (what, change) in changes {
        let mut w = world().worker("a", gib(4));
        let production =
            |terms: &mut WorkerTerms| drop(terms.labels.insert("pool".to_owned(), "production".to_owned()));
        w.under("a", production);
        w.change("m", |spec| {
            spec.model.format = ModelFormat::PYTHON;
            spec.model.card = Some(card(true));
            spec.memory = Some(gib(1));
            spec.selector.required.insert("pool".to_owned(), "production".to_owned());
        });
        w.settle();
        w = w.worker("b", gib(4));
        w.under("b", production);
        w.settle();
        w.under("a", |terms| {
            production(terms);
            change(terms);
        });
        w.advance();
        assert_eq!((w.placed("m").len(), w.answers("m")), (2, vec!["a".to_owned()]), "{what}: b loads, a answers");
        w.load_all();
        w.advance();
        assert_eq!((w.placed("m"), w.answers("m")), (vec!["b".to_owned()], vec!["b".to_owned()]), "{what}");
        assert!(w.was_told("HandedOver") && !w.was_told("ReplicaLost"), "{what}");
    }
}

/// One commit may turn a pool of workers and what runs there over to another name: nothing moves for that.
#[test]
fn a_label_that_changes_with_who_asks_for_it_moves_nothing() {
    let mut w = world().worker("a", gib(4)).worker("b", gib(4));
    let pool = |name: &'static str| {
        move |terms: &mut WorkerTerms| drop(terms.labels.insert("pool".to_owned(), name.to_owned()))
    };
    w.under("a", pool("old"));
    w.under("b", pool("other"));
    let ask = |w: &mut Fixture, name: &str| {
        w.change("m", |spec| {
            spec.memory = Some(gib(1));
            spec.selector.required.insert("pool".to_owned(), name.to_owned());
        });
    };
    ask(&mut w, "old");
    w.settle();
    assert_eq!(w.answers("m"), ["a"]);
    w.under("a", pool("new"));
    w.advance();
    assert_eq!(w.answers("m"), ["a"], "workers are told of before deployments");
    ask(&mut w, "new");
    w.settle();
    assert_eq!(w.answers("m"), ["a"]);
    assert!(!w.was_told("ReplicaLost"));
}

#[test]
fn a_worker_that_shrinks_keeps_what_matters_most() {
    let mut w = world().worker("a", gib(8)).resident("low", gib(2)).resident("high", gib(2));
    w.change("high", |spec| spec.priority = 90);
    w.settle();
    assert_eq!((w.placed("low").len(), w.placed("high").len()), (1, 1));
    w.under("a", |terms| terms.memory = Some(gib(3)));
    w.settle();
    assert_eq!((w.placed("low").len(), w.placed("high").len()), (0, 1));
    assert!(w.told.iter().any(|(reason, why)| *reason == "Evicted" && why.contains("less room than it claims")));
    assert_eq!(w.status("low").phase, Phase::ScheduleFailed);
    w = w.worker("b", gib(2));
    w.settle();
    assert_eq!(w.placed("low"), ["b"], "what left is placed elsewhere as soon as it fits");
    w.under("a", |terms| terms.max_models = Some(0));
    w.settle();
    assert_eq!(w.placed("high"), ["b"], "it matters more than low, wherever that is");
    w.world.set_terms(&worker_id("a"), None);
    w.settle();
    assert_eq!(w.placed("low"), ["a"], "by its own word it has all its room again");
}

#[test]
fn residents_leave_for_what_matters_more_and_explanations_say_so() {
    let mut w = world().worker("a", gib(4)).worker("b", gib(2)).resident("low", gib(2)).resident("mid", gib(4));
    w.change("low", |spec| spec.priority = 10);
    w.settle();
    let before = w.placed("low");
    assert_eq!((before.as_slice(), w.placed("mid").len()), (&["b".to_owned()][..], 1));
    w = w.resident("high", gib(2));
    w.change("high", |spec| {
        spec.priority = 90;
        spec.replicas = berth_spec::Replicas { min: 2, max: 2 };
    });
    w.settle();
    assert_eq!(w.placed("high").len(), 2, "a fixed number of replicas evicts residents that matter less");
    let explained = explain(&w.world, &name("low"), w.now).expect("a deployment");
    let told: Vec<_> = explained.evictions.iter().map(|it| (it.worker.as_str(), it.whom.clone())).collect();
    assert!(told.contains(&("b", Some(name("high")))), "{told:?}");
    let explained = explain(&w.world, &name("high"), w.now).expect("a deployment");
    assert!(explained.evictions.iter().any(|it| it.revision.deployment() == &name("low")), "both sides know");
    assert_eq!(w.placed("low"), ["a"], "it fits beside, where mid had to leave as well");
    assert_eq!(w.status("mid").phase, Phase::ScheduleFailed, "and who has no place says so");
}

#[test]
fn evictions_follow_the_registry() {
    let full = || {
        let mut w = world().worker("a", gib(2)).on_demand("first", gib(2)).on_demand("second", gib(2));
        w.demand("first", 1);
        w.settle();
        w.demand("first", 0);
        w.after(std::time::Duration::from_secs(3_600));
        w
    };
    for (eviction, priority, goes) in [
        (Eviction { strategy: EvictionStrategy::Lru, automatic: true }, 50, true),
        (Eviction { strategy: EvictionStrategy::Priority, automatic: true }, 50, false),
        (Eviction { strategy: EvictionStrategy::Priority, automatic: true }, 51, true),
        (Eviction { strategy: EvictionStrategy::Lru, automatic: false }, 99, false),
    ] {
        let mut w = full();
        w.under("a", |terms| terms.eviction = eviction);
        w.change("second", |spec| spec.priority = priority);
        w.demand("second", 1);
        w.settle();
        assert_eq!(w.placed("second").len(), usize::from(goes), "{eviction:?} {priority}");
        if !eviction.automatic {
            let why = w.why_not("second", "a");
            assert!(
                matches!(&why, Rejection::KeepsAll { short } if matches!(**short, Rejection::Memory { .. })),
                "{why:?}"
            );
            assert!(why.to_string().contains("enable_auto_eviction"), "{why}");
        }
    }
}

#[test]
fn workers_that_the_registry_does_not_name_hold_nothing_if_it_says_so() {
    let mut w = world().worker("named", gib(2)).worker("other", gib(4)).resident("m", gib(1));
    w.under("named", |_| {});
    w.settle();
    assert_eq!(w.placed("m"), ["other"]);
    w.world.set_unknown_workers(UnknownWorkers::Ignore);
    let _ = w.plan();
    assert_eq!(w.answers("m"), ["other"], "it answers until its successor does");
    w.settle();
    assert_eq!(w.placed("m"), ["named"]);
    assert_eq!(w.why_not("m", "other"), Rejection::Unlisted);
    assert!(!w.world.refuses(&worker_id("other")));
    w.world.set_unknown_workers(UnknownWorkers::Refuse);
    assert!(w.world.refuses(&worker_id("other")) && !w.world.refuses(&worker_id("named")));
    w.world.set_terms(&worker_id("named"), None);
    w.world.set_unknown_workers(UnknownWorkers::Allow);
    w.settle();
    assert_eq!(w.placed("m"), ["named"], "without a registry everybody is one, and nothing moves");
}

#[test]
fn a_kind_of_gpu_is_asked_for_by_its_word() {
    let gpu = |kind: &str| Gpu { id: String::new(), kind: kind.to_owned(), memory: ByteSize::gib(16) };
    let mut w = world().worker_with("t4", gib(4), |info| info.gpus = vec![gpu("tesla-t4")]).worker_with(
        "v100",
        gib(8),
        |info| info.gpus = vec![gpu("nvidia-v100-sxm2-16gb")],
    );
    w.change("m", |spec| {
        spec.memory = Some(gib(1));
        spec.gpu = Some(GpuNeed { count: 1, kind: Some("T4".to_owned()), memory: None });
    });
    w.settle();
    assert_eq!(w.placed("m"), ["t4"]);
}

#[test]
fn fewer_copies_leave_the_fullest_worker_first() {
    let mut w = world().worker("a", gib(8)).worker("b", gib(8)).worker("c", gib(8));
    for (called, on) in [("x", "a"), ("y", "b")] {
        w.change(called, |spec| {
            spec.memory = Some(gib(if called == "x" { 2 } else { 4 }));
            spec.selector.required.insert("name".to_owned(), on.to_owned());
        });
    }
    for on in ["a", "b", "c"] {
        w.under(on, |terms| terms.labels = [("name".to_owned(), on.to_owned())].into());
    }
    w.change("m", |spec| {
        spec.memory = Some(gib(1));
        spec.replicas = berth_spec::Replicas { min: 3, max: 3 };
    });
    w.settle();
    assert_eq!(w.placed("m").len(), 3);
    for (min, left) in [(2, vec!["a", "c"]), (1, vec!["c"])] {
        w.change("m", |spec| spec.replicas = berth_spec::Replicas { min, max: min });
        w.settle();
        let mut placed = w.placed("m");
        placed.sort();
        assert_eq!(placed, left);
    }
}

#[test]
fn two_that_declare_one_path_in_one_region_are_told() {
    let region = |spec: &mut berth_spec::Spec, region: &str| {
        spec.endpoint = Some("/v1/m".into());
        spec.selector.required.insert("region".to_owned(), region.to_owned());
    };
    let mut w = world();
    for (called, at) in [("a-eu", "eu"), ("b-us", "us"), ("c-eu", "eu")] {
        w.change(called, |spec| region(spec, at));
    }
    let taken = |w: &Fixture| ["a-eu", "b-us", "c-eu"].map(|it| w.world.endpoint_taken_by(&name(it)).cloned());
    assert_eq!(taken(&w), [None, None, Some(name("a-eu"))]);
    let condition = w.status("c-eu").conditions.into_iter().find(|condition| condition.kind == "Endpoint");
    assert_eq!(condition.expect("it is told").reason, "EndpointTaken");
    w.change("c-eu", |spec| spec.endpoint = Some("/v1/other".into()));
    assert_eq!(taken(&w), [None, None, None]);
    w.change("c-eu", |spec| spec.endpoint = Some("/v1/m".into()));
    w.world.remove_deployment(&name("a-eu"));
    assert_eq!(taken(&w), [None, None, None], "what is gone takes nothing");
}

/// The worker counts what it still drains, the plan does not: so it has to know its limits itself.
#[test]
fn a_worker_is_told_its_limits_when_they_change_and_with_all_else() {
    let mut w = world().worker("a", gib(4)).worker("b", gib(4));
    w.change("m", |spec| spec.memory = Some(gib(1)));
    w.settle();
    let limits = WorkerLimits { memory: Some(gib(2)), models: Some(3) };
    let change = |terms: &mut WorkerTerms| (terms.memory, terms.max_models) = (limits.memory, limits.models);
    w.under("a", change);
    let planned = w.plan();
    let told: Vec<_> = planned.assignments.iter().map(|(id, change)| (id.as_str(), change.limits)).collect();
    assert_eq!(told, [("a", limits)], "nothing but that is new, and only for it");
    let sent = &planned.assignments[&worker_id("a")];
    assert!(sent.base.is_some() && sent.set.is_empty() && sent.unset.is_empty(), "{sent:?}");
    w.under("a", change);
    assert!(w.plan().assignments.is_empty(), "it was told");
    assert_eq!(w.world.whole_assignment(&worker_id("a")).limits, limits, "whoever comes back hears it again");
    w.world.set_terms(&worker_id("a"), None);
    assert_eq!(w.plan().assignments[&worker_id("a")].limits, WorkerLimits::default(), "its own again");
}

#[test]
fn a_plan_that_was_made_before_the_limits_changed_again_does_not_count_as_telling_them() {
    let mut w = world().worker("a", gib(4));
    w.settle();
    w.under("a", |terms| terms.max_models = Some(3));
    let scope = w.world.due(w.now);
    let early = berth_plan::plan(&w.world, &scope, w.now);
    w.under("a", |terms| terms.max_models = Some(2));
    w.world.commit(&early);
    assert_eq!(w.plan().assignments[&worker_id("a")].limits.models, Some(2));
}
