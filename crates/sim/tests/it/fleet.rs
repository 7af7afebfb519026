//! A fleet under each kind of fault, and under all of them at once; then it stops, and all must come to rest.
//!
//! `BERTH_SIM_SEED` picks another history; every failure names its seed.

use berth_sim::{
    fault::Kind,
    fleet::{self, Plan},
};

/// The seed of the history in CI.
const SEED: u64 = 0xbe27;

fn seed() -> u64 {
    let given = std::env::var_os("BERTH_SIM_SEED").and_then(|seed| seed.to_str().and_then(|seed| seed.parse().ok()));
    given.unwrap_or(SEED)
}

fn survives(seed: u64, plan: Plan) {
    let kinds: Vec<&str> = plan.kinds.iter().map(|kind| kind.as_str()).collect();
    let started = std::time::Instant::now();
    match fleet::run(seed, plan) {
        Ok(cluster) => {
            let tally = &cluster.requests.tally;
            eprintln!("seed {seed} {kinds:?}: {tally:?}, {} steps, {:?}", cluster.steps, started.elapsed());
            assert!(tally.answered > 0, "seed {seed} {kinds:?}: nobody was answered");
        }
        Err(story) => panic!("seed {seed} {kinds:?}:\n{story}"),
    }
}

/// One test for each kind of fault: a hundred workers, ten thousand models.
macro_rules! each_kind {
    ($($test:ident: $kind:ident),* $(,)?) => {
        $(#[test] fn $test() { survives(seed(), Plan::hundred(&[Kind::$kind], 2_500)); })*

        #[test]
        fn there_is_a_test_for_each_kind() {
            assert_eq!([$(Kind::$kind),*], *Kind::ALL);
        }
    };
}

each_kind! {
    worker_crash: WorkerCrash,
    power_loss: PowerLoss,
    worker_pause: WorkerPause,
    mass_loss: MassLoss,
    region_loss: RegionLoss,
    leader_crash: LeaderCrash,
    leader_pause: LeaderPause,
    leader_churn: LeaderChurn,
    gateway_crash: GatewayCrash,
    partition_leader_from_workers: LeaderFromWorkers,
    partition_gateways_from_workers: GatewaysFromWorkers,
    partition_store_from_leader: StoreFromLeader,
    partition_into_halves: Halves,
    one_way_partition: OneWay,
    slow_node: SlowNode,
    full_disk: FullDisk,
    clock_jump: ClockJump,
    store_member_loss: StoreMemberLoss,
    store_quorum_loss: QuorumLoss,
    refused_commits: LostCommits,
    corrupt_artifacts: CorruptArtifacts,
    rough_network: RoughNetwork,
    false_suspicion: FalseSuspicion,
    rolling_restart: RollingRestart,
}

#[test]
fn everything_at_once() {
    survives(seed(), Plan::hundred(Kind::ALL, 40_000));
}

#[test]
fn many_small_fleets() {
    for nth in 0..10 {
        let mut kinds = Kind::ALL.to_vec();
        kinds.rotate_left(nth * 5 % Kind::ALL.len());
        survives(seed() + u64::try_from(nth).expect("ten"), Plan::ten(&kinds, 3_000));
    }
}
