//! Rings, places and sums.

use super::{track::COARSE, *};

const START: u64 = 1_200_000;

fn rate(requests: f32) -> ModelFigures {
    [requests, 0.0, 0.0, 1.0, 2.0]
}

fn each(models: &[(&str, f32)]) -> BTreeMap<String, ModelFigures> {
    models.iter().map(|(name, requests)| ((*name).to_owned(), rate(*requests))).collect()
}

fn requests(points: &[ModelFigures]) -> Vec<f32> {
    points.iter().map(|point| point[0]).collect()
}

#[test]
fn the_fine_ring_is_an_hour_and_the_coarse_one_a_day_of_means() {
    let mut history = History::default();
    for at in 0..10_000_u64 {
        history.models(START + at, rate(at as f32), &BTreeMap::new());
    }
    let now = START + 9_999;
    let hour = history.of_model(None, Range::Hour, now);
    assert_eq!((hour.len(), hour[0][0], hour[359][0]), (360, 9_640.0, 9_999.0));
    let day = history.of_model(None, Range::Day, now);
    // START is a multiple of 12, so that the last whole step ends at 9,995: the mean of 9,984 to 9,995.
    assert_eq!((day.len(), day[719][0], day[718][0]), (720, 9_989.5, 9_977.5));
}

#[test]
fn silence_is_unknown_and_not_nothing() {
    let mut track = Track::<1>::default();
    track.push(START, [1.0]);
    track.push(START + 3, [4.0]);
    track.push(START + 3, [9.0]);
    track.push(START + 1, [9.0]);
    let points: Vec<f32> = track.points(Range::Hour, START + 5).into_iter().flatten().collect();
    assert_eq!((points.len(), points[0], points[3]), (6, 1.0, 4.0));
    assert!([1, 2, 4, 5].iter().all(|at: &usize| points[*at].is_nan()), "{points:?}");
    track.push(START + 11, [7.0]);
    assert_eq!(track.points(Range::Day, START + 11), [[4.0]], "the mean of what is known");
    track.push(START + 1_000_000, [5.0]);
    assert_eq!(track.points(Range::Hour, START + 1_000_000), [[5.0]], "a day later nothing of before is left");
}

#[test]
fn places_are_for_the_busiest_and_do_not_flap() {
    let mut history = History::default();
    let names: Vec<String> = (0..MODELS).map(|number| format!("m{number:02}")).collect();
    let busy: Vec<(&str, f32)> = names.iter().map(|name| (name.as_str(), 10.0)).collect();
    for at in 0..1_000 {
        history.models(START + at, rate(640.0), &each(&busy));
    }
    let mut crowd = busy.clone();
    crowd.push(("equal", 11.0));
    history.models(START + 1_000, rate(0.0), &each(&crowd));
    assert!(history.models.track("equal").is_none(), "it is as busy as the others");
    crowd.push(("burst", 1_000.0));
    history.models(START + 1_001, rate(0.0), &each(&crowd));
    assert!(history.models.track("burst").is_some());
    assert_eq!(history.models.names().len(), MODELS);
    // All fall silent: a day and some smoothing later the places are free.
    for at in 1_002..16_000 {
        history.models(START + at, rate(0.0), &BTreeMap::new());
    }
    assert_eq!(history.models.names(), Vec::<&str>::new());
}

#[test]
fn memory_stays_below_the_sum_that_is_said() {
    const { assert!(MOST_BYTES < 6_000_000) };
    let mut history = History::default();
    let names: Vec<String> = (0..2 * MODELS).map(|number| format!("m{number}")).collect();
    let models: Vec<(&str, f32)> = names.iter().map(|name| (name.as_str(), 1.0)).collect();
    let models = each(&models);
    let id = |number: usize| WorkerId::new(&format!("w{number}")).expect("a name");
    let workers: BTreeMap<WorkerId, WorkerFigures> = (0..2 * WORKERS).map(|number| (id(number), [1.0; 4])).collect();
    for at in 0..COARSE.points as u64 * 12 + 100 {
        history.models(START + at, rate(1.0), &models);
        if at % 12 == 0 {
            history.workers(START + at, &workers);
        }
    }
    let workers: usize = history.workers.values().map(Track::allocated).sum();
    let bytes = history.total.allocated() + history.models.allocated() + workers;
    assert!(bytes <= MOST_BYTES, "{bytes} of {MOST_BYTES}");
    assert_eq!((history.workers.len(), history.models.names().len()), (WORKERS, MODELS));
}

#[test]
fn a_worker_that_is_gone_for_a_day_is_forgotten() {
    let mut history = History::default();
    let id = WorkerId::new("a").expect("a name");
    history.workers(START, &BTreeMap::from([(id.clone(), [1.0; 4])]));
    history.workers(START + 8_640, &BTreeMap::new());
    assert_eq!(history.workers.len(), 1);
    history.workers(START + 8_641, &BTreeMap::new());
    assert!(history.of_worker(&id, Range::Day, START + 8_641).is_empty());
}

#[test]
fn gateways_together() {
    let none = f32::NAN;
    let merged = together(vec![
        vec![[1.0, 0.0, 0.0, none, none], [30.0, 1.0, 0.0, 2.0, 9.0]],
        vec![[10.0, 0.0, 2.0, 6.0, 7.0]],
        vec![],
    ]);
    assert_eq!(requests(&merged), [1.0, 40.0]);
    assert_eq!(merged[1], [40.0, 1.0, 2.0, 3.0, 9.0]);
    assert!(merged[0][3].is_nan());
    assert!(together(Vec::new()).is_empty());
}
