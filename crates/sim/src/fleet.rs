//! A hundred workers, ten thousand models, some gateways and controllers: all of it under every kind of fault, then
//! calm, then still.
//!
//! ```text
//! found ── all residents are ready ──▶ stormy: clients, declarations, faults ──▶ calm: it settles ──▶ still: nothing moves
//! ```

use std::{collections::BTreeMap, time::Duration};

use berth_plan::fixture;
use berth_spec::{ByteSize, Deployment, Gpu, Replicas, Spec, WorkerInfo, deployment::GpuNeed};

use crate::{
    chaos::story,
    cluster::{Cluster, Memory, Watch},
    fault::Kind,
    node::Model,
    rng::Zipf,
};

/// The size of a fleet, and its faults.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Workers, each in one of three regions.
    pub workers: u64,
    /// Models, all declared before the system starts.
    pub models: u64,
    /// The kinds of fault; each strikes in turn.
    pub kinds: Vec<Kind>,
    /// The number of steps in the storm.
    pub steps: u64,
    /// The shortest and longest duration of a fault.
    pub lasts: (Duration, Duration),
    /// The shortest and longest pause between faults.
    pub pause: (Duration, Duration),
}

impl Plan {
    /// A hundred workers and ten thousand models.
    #[must_use]
    pub fn hundred(kinds: &[Kind], steps: u64) -> Self {
        let seconds = Duration::from_secs;
        Self {
            workers: 100,
            models: 10_000,
            kinds: kinds.to_vec(),
            steps,
            lasts: (seconds(2), seconds(20)),
            pause: (seconds(1), seconds(15)),
        }
    }

    /// Ten workers and two hundred models: the same, for long histories and many seeds.
    #[must_use]
    pub fn ten(kinds: &[Kind], steps: u64) -> Self {
        Self { workers: 10, models: 200, ..Self::hundred(kinds, steps) }
    }
}

/// The regions, with a gateway and a controller in each.
const REGIONS: [&str; 3] = ["eu", "us", "ap"];

/// One model in so many is always resident, one in so many of those has two copies.
const RESIDENT_ONE_IN: u64 = 20;
const TWO_COPIES_ONE_IN: u64 = 2;

/// One model in so many needs a GPU, one in so many of all has a copy in each of two regions.
const GPU_ONE_IN: u64 = 37;
const REGIONAL_ONE_IN: u64 = 400;

/// The most models on some of the workers.
const MOST_MODELS: u32 = 20;

/// The memory of a worker, and of the largest model.
const WORKER: ByteSize = ByteSize::gib(4);
const LARGEST_MIB: u64 = 400;

/// The interval between requests of clients.
const CLIENTS: Duration = Duration::from_millis(40);

/// The requests between two in which somebody declares, deletes or pages something out.
const DECLARE_ONE_IN: u64 = 25;

/// The time limit of the founding.
const FOUNDING: Duration = Duration::from_secs(120);

/// The time to settle in the calm: longer than the longest back-off, idle time and memory of a failure one after the
/// other.
const SETTLE: Duration = Duration::from_secs(2_700);

/// The extra time where clocks were up to an hour off, one ahead and one behind: what was used in the future is idle
/// only after that.
const CLOCKS: Duration = Duration::from_secs(2 * 3600);

/// The time after that in which nothing may move.
const QUIET_PERIOD: Duration = Duration::from_secs(900);

/// The number of steps between full checks by the linter.
const LINT_EVERY: u64 = 5_000;

/// A fleet in the making.
struct Fleet {
    cluster: Cluster,
    plan: Plan,
    use_of: Zipf,
    /// The versions of a model that were declared.
    versions: BTreeMap<u64, u64>,
}

/// Founds a fleet and lets everything befall it. `Err`: what was wrong, with the last things that happened.
pub fn run(seed: u64, plan: Plan) -> Result<Cluster, String> {
    let mut fleet = Fleet::found(seed, plan);
    fleet.settle_in()?;
    fleet.storm()?;
    fleet.calm()?;
    fleet.still()?;
    Ok(fleet.cluster)
}

impl Fleet {
    fn found(seed: u64, plan: Plan) -> Self {
        let controllers = ["c-eu", "c-us", "c-ap"];
        let gateways = ["g-eu", "g-us", "g-ap"].into_iter().zip(REGIONS.map(Some)).collect::<Vec<_>>();
        let mut cluster = Cluster::fleet(seed, &controllers, &gateways);
        cluster.watch =
            Watch { lint_every: LINT_EVERY, patience: Some(Duration::from_secs(30)), memory: Memory::Declared };
        for nth in 0..plan.workers {
            cluster.start(worker(nth));
        }
        let use_of = Zipf::new(plan.models);
        let mut fleet = Self { cluster, plan, use_of, versions: BTreeMap::new() };
        for nth in 0..fleet.plan.models {
            let deployment = fleet.deployment(nth);
            fleet.cluster.store_before_start(deployment);
        }
        fleet
    }

    /// Until what is always resident is ready.
    fn settle_in(&mut self) -> Result<(), String> {
        self.cluster.run_for(FOUNDING);
        let unready = |world: &berth_plan::World| world.readiness().expected - world.readiness().ready;
        let unready = self.cluster.world().map(unready);
        if unready == Some(0) && self.cluster.broken.is_empty() {
            return Ok(());
        }
        let mut wrong = vec![format!("founding: {unready:?} residents are not ready")];
        wrong.append(&mut self.cluster.broken);
        Err(story(&self.cluster, &wrong))
    }

    fn storm(&mut self) -> Result<(), String> {
        let until = self.cluster.steps + self.plan.steps;
        let mut kinds = self.plan.kinds.clone().into_iter().cycle();
        let (mut clients, mut fate) = (self.cluster.now, self.cluster.now);
        while self.cluster.steps < until {
            let next = self.cluster.next().unwrap_or(clients).min(clients);
            if fate <= next {
                self.cluster.now = fate.max(self.cluster.now);
                if let Some(kind) = kinds.next() {
                    let lasts = self.cluster.rng.between(self.plan.lasts.0, self.plan.lasts.1);
                    self.cluster.strike(kind, lasts);
                }
                fate = fate + self.cluster.rng.between(self.plan.pause.0, self.plan.pause.1);
            } else if clients <= next {
                self.cluster.now = clients.max(self.cluster.now);
                self.people();
                clients = clients + self.cluster.rng.up_to(CLIENTS * 2);
            } else {
                self.cluster.step();
            }
            self.check()?;
        }
        Ok(())
    }

    fn calm(&mut self) -> Result<(), String> {
        self.cluster.calm();
        let clocks = if self.plan.kinds.contains(&Kind::ClockJump) { CLOCKS } else { Duration::ZERO };
        let until = self.cluster.now + SETTLE + clocks;
        while self.cluster.now < until && self.cluster.next().is_some_and(|at| at <= until) {
            self.cluster.step();
            self.check()?;
        }
        self.cluster.now = until;
        self.cluster.lint();
        let wrong: Vec<String> = self.cluster.broken.iter().cloned().chain(self.cluster.unsettled()).collect();
        if wrong.is_empty() { Ok(()) } else { Err(story(&self.cluster, &wrong)) }
    }

    /// A fleet that is left alone does not move, nor when another controller takes the lead.
    fn still(&mut self) -> Result<(), String> {
        let before = (self.cluster.placement(), self.cluster.callable());
        if let Some(leader) = self.cluster.leader().cloned() {
            self.cluster.crash(&leader);
            self.cluster.run_for(QUIET_PERIOD / 2);
            self.cluster.restart(&leader);
        }
        self.cluster.run_for(QUIET_PERIOD / 2);
        let after = (self.cluster.placement(), self.cluster.callable());
        let mut wrong = std::mem::take(&mut self.cluster.broken);
        wrong.extend(self.cluster.unsettled());
        for (name, controllers) in
            before.0.iter().filter(|(name, controllers)| after.0.get(*name) != Some(*controllers))
        {
            wrong.push(format!("{name} moved from {controllers:?} to {:?} in the calm", after.0.get(name)));
        }
        wrong.extend(before.1.difference(&after.1).map(|(worker, lost)| format!("{worker} let {lost} go in the calm")));
        if wrong.is_empty() { Ok(()) } else { Err(story(&self.cluster, &wrong)) }
    }

    fn check(&mut self) -> Result<(), String> {
        let log = &mut self.cluster.log;
        if log.len() > 1_000 {
            log.drain(..500);
        }
        if self.cluster.broken.is_empty() { Ok(()) } else { Err(story(&self.cluster, &self.cluster.broken)) }
    }

    /// Somebody wants something.
    fn people(&mut self) {
        let nth = self.use_of.pick(&mut self.cluster.rng);
        let nth = u64::try_from(nth).unwrap_or(0);
        let name = fixture::name(&called(nth));
        if !self.cluster.rng.once_in(DECLARE_ONE_IN) {
            let gateways: Vec<_> = self.cluster.gateways.keys().cloned().collect();
            let gateway_id = self.cluster.rng.of(&gateways).clone();
            return self.cluster.infer_at(&gateway_id, &name, 1);
        }
        // Anything, not what is used most.
        let nth = self.cluster.rng.below(self.plan.models);
        let name = fixture::name(&called(nth));
        let known = self.cluster.store.deployment(&name).cloned();
        match (self.cluster.rng.below(10), known) {
            (0..2, Some(known)) => {
                let generation = known.generation.next();
                self.cluster.declare(Deployment { deleting: true, generation, ..known.as_ref().clone() });
            }
            (2..4, Some(_)) => self.cluster.page_out(&name),
            (_, known) => {
                *self.versions.entry(nth).or_default() += 1;
                let generation = known.map_or(berth_spec::Generation(0), |known| known.generation).next();
                let deployment = Deployment { generation, ..self.deployment(nth) };
                self.cluster.declare(deployment);
            }
        }
    }

    /// A model's deployment in its present version, whose artifact exists from now on.
    fn deployment(&mut self, nth: u64) -> Deployment {
        let version = self.versions.get(&nth).copied().unwrap_or(0);
        let uri = format!("file:///{}/{version}", called(nth));
        let rng = &mut self.cluster.rng;
        let memory = ByteSize::mib(16 + (rng.below(LARGEST_MIB).pow(2)) / LARGEST_MIB);
        let model = Model {
            memory,
            fetch: Duration::from_millis(50 + rng.below(500)),
            load: Duration::from_millis(50 + memory.0 / (1 << 20) * 5),
            fails: None,
        };
        let mut deployment = fixture::deployment(&called(nth));
        deployment.spec.model.uri = uri.as_str().into();
        self.cluster.models.insert(uri, model);
        settings(nth, memory, &mut deployment.spec);
        deployment
    }
}

/// Always the same for the same model.
fn settings(nth: u64, memory: ByteSize, spec: &mut Spec) {
    let min = match (nth % RESIDENT_ONE_IN, nth / RESIDENT_ONE_IN % TWO_COPIES_ONE_IN) {
        (0, 0) => 2,
        (0, _) => 1,
        _ => 0,
    };
    spec.replicas = Replicas { min, max: min.max(2) };
    spec.memory = Some(memory);
    spec.priority = [20, 50, 80][usize::try_from(nth % 3).unwrap_or(0)];
    spec.idle_after = (!nth.is_multiple_of(4)).then(|| Duration::from_secs(120 + nth % 480));
    spec.idempotent = nth % 10 != 1;
    if nth % GPU_ONE_IN == 5 {
        spec.gpu = Some(GpuNeed { count: 1, kind: None, memory: Some(ByteSize::gib(8)) });
    }
    if nth.is_multiple_of(REGIONAL_ONE_IN) {
        spec.regions = REGIONS[..2].iter().map(|region| ((*region).to_owned(), Replicas { min: 1, max: 1 })).collect();
    }
}

fn called(nth: u64) -> String {
    format!("m{nth}")
}

fn worker(nth: u64) -> WorkerInfo {
    let region = REGIONS[usize::try_from(nth % 3).unwrap_or(0)];
    let labels = [("region", region.to_owned()), ("zone", format!("{region}-{}", nth / 3 % 3))];
    let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let gpus = if nth.is_multiple_of(5) { 4 } else { 0 };
    WorkerInfo {
        labels,
        gpus: (0..gpus).map(|n| Gpu { id: n.to_string(), kind: "l4".to_owned(), memory: ByteSize::gib(24) }).collect(),
        max_models: nth.is_multiple_of(7).then_some(MOST_MODELS),
        ..fixture::worker(&format!("w{nth:03}"), WORKER)
    }
}
