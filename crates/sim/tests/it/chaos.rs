//! Everything goes wrong, in an order that the seed decides; then it stops, and all must come to rest.

use berth_sim::chaos;

fn survives(seed: u64, steps: u64, lint_every: u64) {
    match chaos::run(seed, steps, lint_every) {
        Ok(cluster) => assert!(cluster.requests.tally.answered > 0, "seed {seed}: nobody was answered"),
        Err(story) => panic!("seed {seed}:\n{story}"),
    }
}

#[test]
fn many_short_histories() {
    for seed in 0..20 {
        survives(seed, 2_000, 1);
    }
}

#[test]
fn one_long_history() {
    survives(0xbe27, 100_000, 10);
}
