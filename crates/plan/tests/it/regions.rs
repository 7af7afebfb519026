//! Counts by region: where copies belong, where they go when a region is lost, and how they come back.

use std::time::Duration;

use berth_plan::{
    Policy,
    fixture::{Fixture, gib, world},
};
use berth_spec::{Cordon, Replicas, deployment::ModelFormat, member::REGION, status::Phase};
use proptest::prelude::*;

/// Two workers in each region, of 4 GiB.
fn fleet(regions: &[&str]) -> Fixture {
    regions.iter().fold(world(), |w, region| {
        w.worker_in(&format!("{region}1"), gib(4), region, "1").worker_in(&format!("{region}2"), gib(4), region, "2")
    })
}

fn by_region(w: &mut Fixture, called: &str, regions: &[(&str, u32, u32)]) {
    w.change(called, |spec| {
        spec.memory = Some(gib(1));
        spec.regions = regions
            .iter()
            .map(|(region, min, max)| ((*region).to_owned(), Replicas { min: *min, max: *max }))
            .collect();
        let sum = |of: fn(&Replicas) -> u32| spec.regions.values().map(of).sum();
        let sums = Replicas { min: sum(|each| each.min), max: sum(|each| each.max) };
        spec.replicas = sums;
    });
}

fn where_is(w: &Fixture, called: &str) -> String {
    w.placed(called).join(" ")
}

#[test]
fn each_region_has_its_number() {
    let mut w = fleet(&["asia", "eu", "us"]);
    by_region(&mut w, "iris", &[("eu", 2, 2), ("us", 1, 1)]);
    w.settle();
    assert_eq!(where_is(&w, "iris"), "eu1 eu2 us1");
    by_region(&mut w, "iris", &[("eu", 1, 1), ("us", 1, 1), ("asia", 1, 1)]);
    w.settle();
    assert_eq!(w.placed("iris").len(), 3);
    assert!(where_is(&w, "iris").starts_with("asia"), "{}", where_is(&w, "iris"));
}

#[test]
fn a_region_whose_workers_hold_the_successor_alone_is_stood_in_for() {
    let of_format = |w: Fixture, called: &str, format: ModelFormat| {
        w.worker_with(called, gib(4), |info| {
            info.labels.insert(REGION.to_owned(), called[..2].to_owned());
            info.runtimes.retain(|runtime| runtime.takes(&format));
        })
    };
    let workers = ["eu1", "eu2", "us1"];
    let w = workers.into_iter().fold(world(), |w, called| of_format(w, called, ModelFormat::ONNX));
    let mut w = of_format(w, "us2", ModelFormat::PYTHON);
    by_region(&mut w, "iris", &[("eu", 1, 1), ("us", 1, 1)]);
    w.settle();
    assert_eq!(where_is(&w, "iris"), "eu1 us1");
    w.change("iris", |spec| spec.model.format = ModelFormat::PYTHON);
    w.advance();
    w.lose("us1");
    w.advance();
    w.after(Policy::default().lost_grace);
    w.advance();
    assert!(w.placed("iris").contains(&"eu2".to_owned()), "{}", where_is(&w, "iris"));
}

#[test]
fn a_lost_region_is_stood_in_for_and_gets_its_own_back() {
    let mut w = fleet(&["eu", "us"]);
    by_region(&mut w, "iris", &[("eu", 1, 1), ("us", 1, 1)]);
    w.settle();
    assert_eq!(where_is(&w, "iris"), "eu1 us1");
    w.lose("eu1");
    w.lose("eu2");
    w.run(Policy::default().mass_loss_hold + Duration::from_secs(60));
    assert_eq!(where_is(&w, "iris"), "us1 us2", "beyond what us should have at most");
    assert_eq!(w.status("iris").phase, Phase::Available);
    // Back: the copy at home is ready first, then the one that stood in goes.
    w.restart("eu2");
    w.advance();
    assert_eq!(where_is(&w, "iris"), "eu2 us1 us2");
    w.advance();
    assert_eq!(w.answers("iris"), ["us1", "us2"]);
    w.settle();
    assert_eq!(where_is(&w, "iris").split(' ').filter(|worker| worker.starts_with("us")).count(), 1);
    assert!(where_is(&w, "iris").contains("eu2"));
}

#[test]
fn a_region_that_is_closed_is_left_and_come_back_to() {
    let mut w = fleet(&["eu", "us"]);
    by_region(&mut w, "iris", &[("eu", 1, 1), ("us", 1, 1)]);
    w.settle();
    for worker in ["eu1", "eu2"] {
        w.cordon(worker, Cordon::Draining);
    }
    w.settle();
    assert_eq!(where_is(&w, "iris"), "us1 us2");
    w.cordon("eu1", Cordon::Open);
    w.settle();
    assert_eq!(w.placed("iris").len(), 2);
    assert!(where_is(&w, "iris").contains("eu1"), "{}", where_is(&w, "iris"));
}

#[test]
fn a_region_without_room_waits_and_says_so() {
    let mut w = fleet(&["eu", "us"]);
    by_region(&mut w, "iris", &[("eu", 2, 2)]);
    w.settle();
    by_region(&mut w, "iris", &[("eu", 3, 3)]);
    w.settle();
    assert_eq!(w.placed("iris").len(), 2);
    assert_eq!(w.status("iris").phase, Phase::Degraded);
    let why = berth_plan::report::explain(&w.world, &berth_plan::fixture::name("iris"), w.now).expect("it");
    let us = why.workers.iter().find(|view| view.worker.as_str() == "us1").expect("us1");
    assert!(format!("{:?}", us.verdict).contains("Region"), "{:?}", us.verdict);
}

#[test]
fn on_demand_it_comes_near_its_requests_and_never_into_other_regions() {
    let mut w = fleet(&["asia", "eu", "us"]);
    by_region(&mut w, "iris", &[("eu", 0, 1), ("us", 0, 1)]);
    for (gateway, region) in [(1, "asia"), (2, "us")] {
        w.world.set_gateway(berth_spec::GatewayId(gateway), Some(region.to_owned()));
    }
    w.used(2, "iris", 1, 0, 1);
    w.used(1, "iris", 5, 0, 5);
    w.settle();
    assert!(["eu1", "eu2", "us1", "us2"].contains(&where_is(&w, "iris").as_str()), "{}", where_is(&w, "iris"));
    w.used(1, "iris", 0, 0, 0);
    w.used(2, "iris", 0, 0, 0);
    w.world.page_out(&berth_plan::fixture::name("iris"), w.now);
    w.settle();
    w.used(2, "iris", 1, 0, 1);
    w.settle();
    assert_eq!(where_is(&w, "iris"), "us1");
}

#[test]
fn an_update_replaces_each_regions_copies() {
    let mut w = fleet(&["eu", "us"]);
    by_region(&mut w, "iris", &[("eu", 1, 1), ("us", 2, 2)]);
    w.settle();
    let before = w.revision("iris");
    w.update("iris", "2");
    w.settle();
    assert_ne!(w.revision("iris"), before);
    assert_eq!(w.status("iris").serving, Some(w.revision("iris")));
    assert_eq!(where_is(&w, "iris").split(' ').filter(|worker| worker.starts_with("us")).count(), 2);
    assert_eq!(w.placed("iris").len(), 3);
}

/// Something that happens to a worker of a region.
#[derive(Debug, Clone, Copy)]
enum Weather {
    Lose,
    Detach,
    Return,
    Restart,
    Drain,
    Open,
    Pass,
}

fn weather() -> impl Strategy<Value = (usize, Weather)> {
    use Weather::{Detach, Drain, Lose, Open, Pass, Restart, Return};
    let what = prop::sample::select(vec![Lose, Detach, Return, Restart, Drain, Open, Pass, Pass]);
    (0..6_usize, what)
}

const WORKERS: [&str; 6] = ["asia1", "asia2", "eu1", "eu2", "us1", "us2"];

fn happens(w: &mut Fixture, worker: &str, what: Weather) {
    match what {
        Weather::Lose => w.lose(worker),
        Weather::Detach => w.detach(worker),
        Weather::Return => w.attach(worker),
        Weather::Restart => w.restart(worker),
        Weather::Drain => w.cordon(worker, Cordon::Draining),
        Weather::Open => w.cordon(worker, Cordon::Open),
        Weather::Pass => w.after(Duration::from_secs(20)),
    }
}

fn in_region(w: &Fixture, called: &str, region: &str) -> usize {
    w.placed(called).iter().filter(|worker| worker.starts_with(region)).count()
}

proptest! {
    /// Whatever regions come and go: no plan takes away an answer that is not too many, and when all are back each has its
    /// own again.
    #[test]
    fn regions_come_and_go(history in prop::collection::vec(weather(), 1..40)) {
        let mut w = fleet(&["asia", "eu", "us"]);
        by_region(&mut w, "iris", &[("eu", 1, 1), ("us", 1, 1)]);
        by_region(&mut w, "wine", &[("asia", 1, 1), ("eu", 2, 2), ("us", 0, 0)]);
        w.settle();
        for (which, what) in history {
            happens(&mut w, WORKERS[which], what);
            for (called, total) in [("iris", 2), ("wine", 3)] {
                let before = w.answers(called).len();
                w.advance();
                let after = w.answers(called).len();
                prop_assert!(after >= before.min(total), "{called}: {before} answered, now {after}, after {what:?}");
            }
            w.load_all();
            w.advance();
        }
        for worker in WORKERS {
            w.cordon(worker, Cordon::Open);
            w.restart(worker);
        }
        w.settle();
        w.run(Duration::from_secs(600));
        prop_assert_eq!((in_region(&w, "iris", "eu"), in_region(&w, "iris", "us")), (1, 1), "{:?}", w.placed("iris"));
        prop_assert_eq!((in_region(&w, "wine", "asia"), in_region(&w, "wine", "eu")), (1, 2), "{:?}", w.placed("wine"));
        prop_assert_eq!(w.placed("iris").len() + w.placed("wine").len(), 5);
    }
}
