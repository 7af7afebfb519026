//! The brain of one of several controllers: what it takes over, whom it waits for, and what it makes of members.

use std::collections::BTreeMap;

use berth_control::controller::SETTLE_CLUSTER;
use berth_plan::Record;
use berth_spec::{Cordon, DeploymentName, Health, Placed, RevisionId, WorkerId, WorkerState};

use super::*;

const GATEWAY: GatewayId = GatewayId(9);

/// State left by an earlier leader: the store, and the workers' inventories and assignments.
#[derive(Default)]
pub(super) struct Legacy {
    deployments: Vec<Arc<Deployment>>,
    records: BTreeMap<DeploymentName, Record>,
    generation: Generation,
    pub(super) held: BTreeMap<WorkerId, (Generation, BTreeMap<RevisionId, Placed>)>,
}

impl Legacy {
    fn take(&mut self, effects: &[Effect]) {
        for effect in effects {
            match effect {
                Effect::Commit(commit) => {
                    self.generation = commit.generation;
                    for (name, record) in &commit.records {
                        match record {
                            Some(record) => drop(self.records.insert(name.clone(), record.clone())),
                            None => drop(self.records.remove(name)),
                        }
                    }
                }
                Effect::SendAssignment { worker, change, .. } => {
                    let (seen, held) = self.held.entry(worker.clone()).or_default();
                    if change.base.is_none() {
                        held.clear();
                    }
                    *seen = change.generation;
                    held.extend(change.set.iter().map(|placed| (placed.revision.id.clone(), placed.clone())));
                    held.retain(|id, _| !change.unset.contains(id));
                }
                _ => {}
            }
        }
    }

    pub(super) fn restored(&self) -> Restored {
        Restored {
            rev: Rev(500),
            deployments: self.deployments.clone(),
            records: self.records.clone().into_iter().collect(),
            generation: self.generation,
            ..Restored::default()
        }
    }

    /// Report of a worker whose replicas are all ready.
    pub(super) fn report(&self, info: &WorkerInfo) -> InventoryChange {
        let (seen, held) = self.held.get(&info.id).cloned().unwrap_or_default();
        let replicas = held.into_keys().map(|id| (id, Some(ready(Time(5))))).collect();
        InventoryChange { seen, ..inventory(info, true, replicas) }
    }
}

pub(super) fn workers() -> [WorkerInfo; 3] {
    [worker("w-1", 1), worker("w-2", 1), worker("w-3", 1)]
}

pub(super) fn health(info: &WorkerInfo, health: Health) -> Event {
    Event::Member { worker: info.id.clone(), health }
}

fn attach_gateway(bench: &mut Bench) -> Vec<Effect> {
    let node = WorkerId::new("gateway").expect("a name");
    bench.on(Event::GatewayAttached { id: GATEWAY, node, region: None })
}

/// Three workers, twelve deployments, everything ready: what the first leader has done.
pub(super) fn first_term() -> Legacy {
    let mut bench = Bench::new(Restored::default());
    let mut legacy = Legacy::default();
    for info in &workers() {
        bench.on(health(info, Health::Alive));
        bench.on(Event::WorkerAttached(info.clone()));
        bench.on(Event::Reported(empty_inventory(info)));
    }
    legacy.take(&bench.settle());
    for i in 0..12 {
        let replicas = if i % 3 == 0 { "  replicas: 2\n" } else { "  replicas: 1\n" };
        let deployment = deployment(&format!("model-{i:02}"), replicas, 1);
        bench.set(&deployment);
        legacy.deployments.push(stored(&deployment, bench.rev));
    }
    for _ in 0..10 {
        let mut effects = bench.wait(DEBOUNCE);
        while bench.brain.committing() {
            effects.extend(bench.on(Event::Committed));
            effects.extend(bench.tick());
        }
        legacy.take(&effects);
        for info in &workers() {
            let report = legacy.report(info);
            bench.on(Event::Reported(report));
        }
    }
    assert_eq!(legacy.held.values().map(|(_, held)| held.len()).sum::<usize>(), 16, "everything is placed");
    legacy
}

#[test]
fn nothing_moves_when_another_takes_over() {
    let legacy = first_term();
    let mut bench = Bench::new(legacy.restored());
    for info in &workers() {
        bench.on(health(info, Health::Alive));
    }
    let early = attach_gateway(&mut bench);
    assert!(routes(&early).is_empty(), "the gateway keeps the routes of the last leader");
    for info in &workers() {
        bench.on(Event::WorkerAttached(info.clone()));
        assert!(routes(&bench.tick()).is_empty(), "not before all have said what they hold");
        bench.on(Event::Reported(legacy.report(info)));
    }
    let mut effects = bench.settle();
    for _ in 0..20 {
        effects.extend(bench.wait(Duration::from_secs(1)));
    }
    assert_eq!(commits(&effects), 0, "what is stored stays as it is");
    let told: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::SendAssignment { worker, change, .. } => Some((worker.clone(), change)),
            _ => None,
        })
        .collect();
    assert_eq!(told.len(), 3, "each worker is greeted, and then nothing");
    for (worker, change) in told {
        let (seen, held) = &legacy.held[&worker];
        assert!(change.base.is_none() && change.generation >= *seen, "it would ignore an earlier one");
        let now: BTreeMap<RevisionId, Placed> =
            change.set.iter().map(|placed| (placed.revision.id.clone(), placed.clone())).collect();
        let same = |id: &RevisionId| {
            now.get(id).map(|placed| (&placed.revision, &placed.serving))
                == held.get(id).map(|placed| (&placed.revision, &placed.serving))
        };
        assert!(now.len() == held.len() && now.keys().all(same), "{worker} keeps what it holds");
    }
    let whole: Vec<_> = routes(&effects).into_iter().filter(|(to, _)| *to == RouteRecipients::One(GATEWAY)).collect();
    assert_eq!((whole.len(), whole[0].1.base, whole[0].1.set.len()), (1, None, 12));
    let ready: usize = whole[0].1.set.iter().map(|route| route.versions[0].ready.len()).sum();
    assert_eq!(ready, 16, "everything that answers is routed to from the first moment");
    assert!(whole[0].1.readiness.planned && whole[0].1.readiness.ready == 12);
}

#[test]
fn it_waits_for_members_that_live_and_for_workers_that_records_name() {
    let legacy = first_term();
    let [first, second, third] = workers();
    let begin = || {
        let mut bench = Bench::new(legacy.restored());
        bench.on(health(&first, Health::Alive));
        bench.on(Event::WorkerAttached(first.clone()));
        bench.on(Event::Reported(legacy.report(&first)));
        bench
    };
    let waits = |bench: &Bench| bench.brain.wake_at().is_some_and(|at| at > bench.now);

    let mut bench = begin();
    assert!(waits(&bench), "records name two that this member does not know yet");
    bench.on(health(&second, Health::Failed));
    bench.on(health(&third, Health::Suspect));
    assert!(waits(&bench), "the third may live");
    bench.on(health(&third, Health::Left));
    assert!(!waits(&bench), "nobody else can hold anything");

    let mut bench = begin();
    bench.on(health(&second, Health::Alive));
    assert_eq!(bench.brain.wake_at(), Some(bench.now + SETTLE_CLUSTER), "and not for ever");
    assert!(routes(&attach_gateway(&mut bench)).is_empty());
    let mut effects = bench.wait(SETTLE_CLUSTER);
    effects.extend(bench.settle());
    assert!(routes(&effects).iter().any(|(to, change)| *to == RouteRecipients::One(GATEWAY) && change.base.is_none()));
    let asked = bench.on(Event::Gateway(GATEWAY, GatewayEvent::Resync));
    assert_eq!(routes(&asked).len(), 1, "from then on at once");
}

/// The replicas of one worker that requests go to, by the last whole routes and what came after.
fn leading_to(effects: &[Effect], worker: &WorkerInfo) -> usize {
    let mut known: BTreeMap<DeploymentName, usize> = BTreeMap::new();
    for (_, change) in routes(effects) {
        for route in &change.set {
            let there = route.versions[0].ready.iter().filter(|id| **id == worker.id).count();
            known.insert(route.deployment.clone(), there);
        }
    }
    known.values().sum()
}

#[test]
fn a_worker_that_is_late_to_a_new_leader_is_routed_to_for_a_while() {
    let legacy = first_term();
    let [first, second, third] = workers();
    let held = legacy.held[&third.id].1.len();
    let late = || {
        let mut bench = Bench::new(legacy.restored());
        bench.on(health(&third, Health::Suspect));
        for info in [&first, &second] {
            bench.on(health(info, Health::Alive));
            bench.on(Event::WorkerAttached(info.clone()));
            bench.on(Event::Reported(legacy.report(info)));
        }
        let mut effects = attach_gateway(&mut bench);
        effects.extend(bench.wait(SETTLE_CLUSTER));
        effects.extend(bench.settle());
        (bench, effects)
    };
    let (mut bench, mut effects) = late();
    let whole =
        routes(&effects).into_iter().find(|(to, _)| *to == RouteRecipients::One(GATEWAY)).expect("every route").1;
    assert_eq!(
        whole.set.iter().map(|route| route.versions[0].ready.len()).sum::<usize>(),
        16,
        "as the last leader had it"
    );
    for _ in 1..Policy::default().assumed_for.as_secs() {
        effects.extend(bench.wait(Duration::from_secs(1)));
    }
    assert_eq!((commits(&effects), assignments(&effects).len()), (0, 2), "two are greeted, and nothing moves");
    assert_eq!(leading_to(&effects, &third), held);
    effects.extend(bench.wait(Duration::from_secs(1)));
    effects.extend(bench.settle());
    assert_eq!(leading_to(&effects, &third), 0, "and no longer");

    let (mut bench, mut effects) = late();
    bench.on(Event::WorkerAttached(third.clone()));
    effects.extend(bench.settle());
    assert_eq!(leading_to(&effects, &third), held, "it has not said what it holds");
    bench.on(Event::Reported(InventoryChange { seen: legacy.held[&third.id].0, ..empty_inventory(&third) }));
    effects.extend(bench.settle());
    assert_eq!(leading_to(&effects, &third), 0, "now it has");
}

fn hung_up(effects: &[Effect]) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::HangUp(_))).count()
}

fn told(effects: &[Effect], reason: &str) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::Emit(event) if event.reason == reason)).count()
}

#[test]
fn who_is_failed_is_hung_up_on_and_counts_again_when_it_is_attached_again() {
    let [first, second, _] = workers();
    let mut bench = Bench::new(Restored::default());
    for info in [&first, &second] {
        bench.on(health(info, Health::Alive));
        bench.on(Event::WorkerAttached(info.clone()));
        bench.on(Event::Reported(empty_inventory(info)));
    }
    bench.settle();
    assert_eq!(hung_up(&bench.on(health(&first, Health::Suspect))), 0, "it may refute that");
    assert_eq!(hung_up(&bench.on(health(&first, Health::Failed))), 1, "though its stream seems open");
    assert!(!bench.brain.world().worker(&first.id).expect("known").answers());
    bench.settle();
    assert!(bench.on(health(&first, Health::Alive)).is_empty());
    assert!(!bench.brain.world().worker(&first.id).expect("known").answers(), "nobody knows what it holds");
    bench.on(Event::WorkerAttached(first.clone()));
    assert!(bench.brain.world().worker(&first.id).expect("known").answers());
    let greeted = bench.on(Event::Reported(empty_inventory(&first)));
    assert_eq!(assignments(&greeted).len(), 1);
}

#[test]
fn who_is_detached_and_alive_is_routed_to() {
    let [info, ..] = workers();
    let mut bench = Bench::new(Restored::default());
    bench.on(health(&info, Health::Alive));
    bench.on(Event::WorkerAttached(info.clone()));
    bench.on(Event::Reported(empty_inventory(&info)));
    bench.settle();
    bench.set(&deployment("iris", "  replicas: 1\n", 1));
    let mut effects = bench.wait(DEBOUNCE);
    effects.extend(bench.settle());
    let revision = assignments(&effects)[0].set[0].revision.id.clone();
    bench.on(Event::Reported(inventory(&info, false, vec![(revision, Some(ready(bench.now)))])));
    bench.settle();
    let mut effects = bench.on(Event::WorkerDetached(info.id.clone()));
    assert_eq!((told(&effects, "WorkerDetached"), told(&effects, "WorkerLost")), (1, 0));
    effects.extend(bench.wait(Duration::from_secs(1)));
    effects.extend(bench.settle());
    effects.extend(attach_gateway(&mut bench));
    let (_, whole) = *routes(&effects).last().expect("every route");
    assert_eq!(whole.set[0].versions[0].ready, std::slice::from_ref(&info.id), "only this controller has lost it");
    let mut effects = bench.on(health(&info, Health::Failed));
    effects.extend(bench.settle());
    let (_, change) = *routes(&effects).first().expect("a change");
    assert!(change.set[0].versions[0].ready.is_empty(), "now everybody has");
    assert_eq!(told(&effects, "WorkerLost"), 1);
    assert_eq!(told(&bench.on(health(&info, Health::Left)), "WorkerLost"), 0, "forgotten, and told already");
}

#[test]
fn leaving_and_draining_are_told_with_their_end() {
    let [first, second, _] = workers();
    let mut bench = Bench::new(Restored::default());
    for info in [&first, &second] {
        bench.on(Event::WorkerAttached(info.clone()));
        bench.on(Event::Reported(empty_inventory(info)));
    }
    bench.settle();
    let leaving = InventoryChange { state: WorkerState::Leaving, ..inventory(&first, false, Vec::new()) };
    let mut effects = bench.on(Event::Reported(leaving.clone()));
    assert_eq!(told(&effects, "WorkerLeaving"), 1);
    effects = bench.on(Event::Reported(leaving));
    assert_eq!(told(&effects, "WorkerLeaving"), 0, "once");
    assert_eq!(told(&bench.settle(), "WorkerDrained"), 1, "it held nothing");
    let drain = Event::Cordon { worker: second.id.clone(), cordon: Cordon::Draining };
    assert_eq!(told(&bench.on(drain.clone()), "WorkerDraining"), 1);
    assert_eq!(told(&bench.on(drain), "WorkerDraining"), 0);
    assert_eq!(told(&bench.wait(DEBOUNCE), "WorkerDrained"), 1);
    let open = Event::Cordon { worker: second.id.clone(), cordon: Cordon::Open };
    assert_eq!(told(&bench.on(open), "WorkerUncordoned"), 1);
    for (info, reason) in [(first, "WorkerLeft"), (second, "WorkerLost")] {
        assert_eq!(told(&bench.on(Event::WorkerDetached(info.id)), reason), 1);
    }
}

#[test]
fn who_is_refused_while_attached_is_turned_away_once_it_is_empty() {
    let (named, other) = (worker("w-1", 1), worker("w-2", 1));
    let mut bench = Bench::new(Restored::default());
    let deployment = deployment("iris", "  replicas: 1\n", 1);
    for info in [&named, &other] {
        bench.on(health(info, Health::Alive));
    }
    bench.on(Event::WorkerAttached(other.clone()));
    bench.on(Event::Reported(empty_inventory(&other)));
    bench.settle();
    bench.set(&deployment);
    bench.wait(DEBOUNCE);
    bench.settle();
    let iris = || (deployment.revision_id(), Some(ready(Time(5))));
    bench.on(Event::Reported(inventory(&other, false, vec![iris()])));
    bench.settle();
    bench.on(Event::WorkerAttached(named.clone()));
    bench.on(Event::Reported(empty_inventory(&named)));
    bench.settle();

    let terms = berth_spec::WorkerTerms {
        labels: BTreeMap::new(),
        memory: None,
        cpus: None,
        max_models: None,
        max_gpus: None,
        schema_versions: Vec::new(),
        eviction: berth_spec::worker::Eviction::default(),
    };
    bench.on(Event::Terms { worker: named.id.clone(), terms: Some(Arc::new(terms)) });
    bench.on(Event::UnknownWorkers(berth_spec::UnknownWorkers::Refuse));
    let mut effects = bench.wait(DEBOUNCE);
    effects.extend(bench.settle());
    let hung_up =
        |effects: &[Effect]| effects.iter().any(|effect| matches!(effect, Effect::HangUp(id) if *id == other.id));
    assert!(!hung_up(&effects), "it answers until its successor does");
    let mut effects = bench.on(Event::Reported(inventory(&named, false, vec![iris()])));
    effects.extend(bench.settle());
    assert!(!hung_up(&effects), "its last requests are answered");
    let mut effects = bench.on(Event::Reported(inventory(&other, false, vec![(deployment.revision_id(), None)])));
    effects.extend(bench.settle());
    assert!(hung_up(&effects), "it is empty");
    assert!(
        bench.brain.world().worker(&other.id).is_some_and(|tracked| tracked.info.is_none()),
        "no worker that is lost"
    );
    assert!(bench.brain.world().worker(&named.id).is_some_and(|tracked| tracked.alive()));

    bench.on(Event::UnknownWorkers(berth_spec::UnknownWorkers::Allow));
    bench.on(Event::WorkerAttached(other.clone()));
    bench.on(Event::Reported(empty_inventory(&other)));
    bench.wait(DEBOUNCE);
    bench.settle();
    assert!(bench.brain.world().worker(&other.id).is_some_and(|tracked| tracked.alive() && tracked.info.is_some()));
}
