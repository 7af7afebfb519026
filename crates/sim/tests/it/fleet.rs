//! A hundred workers and ten thousand models under each kind of fault; then it stops, and all must come to rest.
//!
//! `BERTH_SIM_SEED` picks another history; every failure names its seed.

use berth_sim::{
    fault::Kind,
    fleet::{self, Plan},
};

fn survives(seed: u64, plan: Plan) {
    let kinds: Vec<&str> = plan.kinds.iter().map(|kind| kind.as_str()).collect();
    let started = std::time::Instant::now();
    match fleet::run(seed, plan) {
        Ok(cluster) => {
            println!("{kinds:?} {:?} steps {} {:?}", cluster.requests.tally, cluster.steps, started.elapsed())
        }
        Err(story) => panic!("seed {seed} {kinds:?}:\n{story}"),
    }
}

#[test]
fn probe_each() {
    for kind in Kind::ALL {
        survives(1, Plan::ten(&[*kind], 2_000));
    }
}

#[test]
fn probe_hundred() {
    survives(1, Plan::hundred(&[Kind::WorkerCrash], 5_000));
}
