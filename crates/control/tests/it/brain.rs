//! The brain alone, with a clock in the test's hand.

mod cluster;
mod limits;
mod unreported;
mod wanted;

use std::{sync::Arc, time::Duration};

use berth_control::{
    controller::{
        CommandKind, Controller, DEBOUNCE, Declared, Effect, Event, RETRY, Restored, RouteRecipients, SETTLE,
    },
    store::Rev,
};
use berth_plan::Policy;
use berth_spec::{
    AssignmentChange, Demand, Deployment, GatewayEvent, GatewayId, Generation, InventoryChange, Origin, RouteChange,
    Time, WorkerInfo,
};

use crate::fixture::{empty_inventory, inventory, manifest, name, ready, worker};

/// A brain, its clock, and what it said so far.
struct Bench {
    brain: Controller,
    now: Time,
    rev: u64,
}

fn deployment(text_name: &str, extra: &str, generation: u64) -> Arc<Deployment> {
    let manifest = manifest(text_name, extra);
    Arc::new(Deployment {
        name: manifest.name,
        generation: Generation(generation),
        labels: manifest.labels.into(),
        origin: Origin::API,
        created: Time(1),
        deleting: false,
        resource_version: 0,
        spec: manifest.spec,
        digest: None,
        artifact: None,
    })
}

/// The same as the store has it.
fn stored(deployment: &Deployment, resource_version: u64) -> Arc<Deployment> {
    Arc::new(Deployment { resource_version, ..deployment.clone() })
}

impl Bench {
    fn new(restored: Restored) -> Self {
        let now = Time(1_000_000_000_000);
        Self { brain: Controller::new(Policy::default(), restored, now), now, rev: 100 }
    }

    /// With a worker that holds nothing, settled, with nothing left to plan.
    fn settled(info: &WorkerInfo) -> Self {
        let mut bench = Self::new(Restored::default());
        bench.on(Event::WorkerAttached(info.clone()));
        bench.on(Event::Reported(empty_inventory(info)));
        bench.settle();
        bench
    }

    fn on(&mut self, event: Event) -> Vec<Effect> {
        self.brain.on(event, self.now)
    }

    fn set(&mut self, deployment: &Arc<Deployment>) -> Vec<Effect> {
        self.rev += 1;
        let rev = Rev(self.rev);
        let changes = vec![Declared::Set(stored(deployment, rev.0))];
        self.on(Event::Changed { rev, changes })
    }

    /// Ticks while it wants to at once; stops at a commit.
    fn tick(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        while self.brain.wake_at().is_some_and(|at| at <= self.now) {
            effects.extend(self.on(Event::Tick));
        }
        effects
    }

    fn wait(&mut self, time: Duration) -> Vec<Effect> {
        self.now = self.now + time;
        self.tick()
    }

    /// Ticks and stores until nothing is due.
    fn settle(&mut self) -> Vec<Effect> {
        let mut effects = self.tick();
        while self.brain.committing() {
            effects.extend(self.on(Event::Committed));
            effects.extend(self.tick());
        }
        effects
    }
}

fn assignments(effects: &[Effect]) -> Vec<&AssignmentChange> {
    let found = effects.iter().filter_map(|effect| match effect {
        Effect::SendAssignment { change, .. } => Some(change),
        _ => None,
    });
    found.collect()
}

fn kinds(effects: &[Effect]) -> Vec<CommandKind> {
    let commands = effects.iter().filter_map(|effect| match effect {
        Effect::SendAssignment { commands, .. } => Some(commands),
        _ => None,
    });
    commands.flatten().map(|command| command.kind).collect()
}

fn routes(effects: &[Effect]) -> Vec<(RouteRecipients, &RouteChange)> {
    let found = effects.iter().filter_map(|effect| match effect {
        Effect::SendRoutes { to, change } => Some((*to, change)),
        _ => None,
    });
    found.collect()
}

fn commits(effects: &[Effect]) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::Commit(_))).count()
}

#[test]
fn it_waits_for_attached_workers_and_not_longer_than_it_must() {
    let info = worker("w", 1);
    let mut bench = Bench::new(Restored::default());
    assert_eq!(bench.brain.wake_at(), Some(bench.now + SETTLE));
    bench.on(Event::WorkerAttached(info.clone()));
    assert!(assignments(&bench.tick()).is_empty(), "nothing before it knows what the worker holds");
    bench.on(Event::Reported(empty_inventory(&info)));
    let effects = bench.settle();
    assert_eq!(assignments(&effects).len(), 1, "the worker is told to hold nothing");
    assert!(assignments(&effects)[0].base.is_none());

    let mut silent = Bench::new(Restored::default());
    silent.on(Event::WorkerAttached(info.clone()));
    assert!(commits(&silent.wait(SETTLE / 2)) == 0 && silent.brain.wake_at().is_some_and(|at| at > silent.now));
    silent.wait(SETTLE / 2);
    assert_eq!(silent.brain.wake_at(), None, "planned without it");
    let late = silent.on(Event::Reported(empty_inventory(&info)));
    assert_eq!(assignments(&late).len(), 1, "it hears what it should hold when it has said what it holds");
}

#[test]
fn nothing_is_sent_before_it_is_stored() {
    let info = worker("w", 1);
    let mut bench = Bench::settled(&info);
    bench.set(&deployment("iris", "  replicas: 1\n", 1));
    assert!(bench.tick().is_empty(), "declarations wait for others");
    let planned = bench.wait(DEBOUNCE);
    assert_eq!((commits(&planned), assignments(&planned).len(), routes(&planned).len()), (1, 0, 0));
    assert_eq!(bench.brain.wake_at(), None, "one plan at a time");
    let sent = bench.on(Event::Committed);
    assert_eq!(kinds(&sent), [CommandKind::Load]);
    assert_eq!(routes(&sent).len(), 1);
}

#[test]
fn what_is_declared_while_a_plan_is_stored_counts_afterwards() {
    let info = worker("w", 1);
    let mut bench = Bench::settled(&info);
    bench.set(&deployment("iris", "  replicas: 1\n", 1));
    assert_eq!(commits(&bench.wait(DEBOUNCE)), 1);
    let meanwhile = bench.set(&deployment("rose", "  replicas: 1\n", 1));
    assert!(meanwhile.is_empty(), "not even seen");
    let after = bench.on(Event::Committed);
    assert!(after.iter().any(|effect| matches!(effect, Effect::Seen(Rev(102)))), "{after:?}");
    assert_eq!(commits(&bench.wait(DEBOUNCE)), 1, "planned for after the debounce");
}

#[test]
fn a_refused_plan_is_made_again_after_a_pause() {
    let info = worker("w", 1);
    let mut bench = Bench::settled(&info);
    bench.set(&deployment("iris", "  replicas: 1\n", 1));
    assert_eq!(commits(&bench.wait(DEBOUNCE)), 1);
    assert!(assignments(&bench.on(Event::Refused)).is_empty());
    assert!(bench.tick().is_empty(), "not at once");
    assert_eq!(commits(&bench.wait(RETRY)), 1);
    assert_eq!(kinds(&bench.on(Event::Committed)), [CommandKind::Load]);
}

#[test]
fn the_time_to_ready_is_told_once_for_each_declaration() {
    let info = worker("w", 1);
    let mut bench = Bench::settled(&info);
    let declared = bench.now;
    let mut seen = bench.set(&deployment("iris", "", 1));
    seen.extend(bench.wait(DEBOUNCE));
    seen.extend(bench.settle());
    let revision = assignments(&seen)[0].set[0].revision.id.clone();
    bench.now = bench.now + Duration::from_secs(2);
    bench.on(Event::Reported(inventory(&info, false, vec![(revision, Some(ready(bench.now)))])));
    let took = |effects: &[Effect]| -> Vec<Duration> {
        effects
            .iter()
            .filter_map(|e| if let Effect::BecameReady { took, .. } = e { Some(*took) } else { None })
            .collect()
    };
    assert!(took(&seen).is_empty(), "not yet");
    assert_eq!(took(&bench.settle()), [bench.now.since(declared)]);
    bench.set(&deployment("iris", "  timeout: 9s\n", 2));
    let mut changed = bench.wait(DEBOUNCE);
    changed.extend(bench.settle());
    assert_eq!(took(&changed), [DEBOUNCE], "what loads nothing is ready when it was planned");
}

#[test]
fn a_miss_is_planned_for_at_once() {
    let info = worker("w", 1);
    let mut bench = Bench::settled(&info);
    bench.set(&deployment("iris", "  replicas: {min: 0, max: 1}\n", 1));
    let cold = bench.wait(DEBOUNCE);
    assert_eq!((commits(&cold), routes(&cold).len()), (0, 1), "a route, and nothing to store");
    let waiting = Demand { deployment: name("iris"), waiting: 1, in_flight: 0, last_used: bench.now, requests: 1 };
    bench.on(Event::Gateway(GatewayId(1), GatewayEvent::Demand(vec![waiting])));
    assert_eq!(bench.brain.wake_at(), Some(bench.now));
    let effects = bench.settle();
    let sent = assignments(&effects);
    assert!(sent[0].set[0].urgent, "somebody waits for it");
    let revision = sent[0].set[0].revision.id.clone();
    bench.on(Event::Reported(inventory(&info, false, vec![(revision, Some(ready(bench.now)))])));
    let effects = bench.settle();
    let (_, change) = *routes(&effects).first().expect("routes are told at once");
    assert_eq!(change.set[0].versions[0].ready.len(), 1);
}

#[test]
fn on_restart_residents_are_sent_first_and_the_rest_after() {
    let info = worker("w", 2);
    let deployments = vec![
        stored(&deployment("a-cold", "  replicas: {min: 0, max: 1}\n", 1), 1),
        stored(&deployment("z-warm", "  replicas: 1\n", 1), 2),
    ];
    let mut bench = Bench::new(Restored { rev: Rev(2), deployments, ..Restored::default() });
    let whole = bench.on(Event::GatewayAttached { id: GatewayId(1), node: info.id.clone(), region: None });
    assert_eq!(routes(&whole)[0].1.set.len(), 2, "requests are parked from the first moment");
    bench.on(Event::WorkerAttached(info.clone()));
    bench.on(Event::Reported(empty_inventory(&info)));
    let first = bench.tick();
    let Some(Effect::Commit(commit)) = first.iter().find(|effect| matches!(effect, Effect::Commit(_))) else {
        panic!("a plan for the resident: {first:?}");
    };
    assert_eq!(commit.records.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["z-warm"]);
    let effects = bench.settle();
    let change = assignments(&effects)[0];
    assert!(change.base.is_none(), "a worker that was greeted by nobody gets the whole");
    assert_eq!(change.set.len(), 1);
}

#[test]
fn a_deletion_that_is_done_is_forgotten_unless_it_was_declared_again() {
    let info = worker("w", 1);
    let mut bench = Bench::settled(&info);
    let iris = deployment("iris", "  replicas: {min: 0, max: 1}\n", 1);
    bench.set(&iris);
    bench.wait(DEBOUNCE);
    bench.set(&Arc::new(Deployment { deleting: true, ..iris.as_ref().clone() }));
    let planned = bench.wait(DEBOUNCE);
    let Some(Effect::Commit(commit)) = planned.iter().find(|effect| matches!(effect, Effect::Commit(_))) else {
        panic!("it is to be forgotten: {planned:?}");
    };
    assert_eq!(commit.forget, [(name("iris"), Rev(102))], "only what was deleted");
    let mut refused = bench.on(Event::Refused);
    refused.extend(bench.set(&deployment("iris", "  replicas: 1\n", 2)));
    let again = bench.wait(RETRY);
    let Some(Effect::Commit(commit)) = again.iter().find(|effect| matches!(effect, Effect::Commit(_))) else {
        panic!("it is placed: {again:?}");
    };
    assert!(commit.forget.is_empty());
    assert_eq!(kinds(&bench.on(Event::Committed)), [CommandKind::Load]);
}

#[test]
fn numbers_of_plans_go_on_after_a_restart() {
    let mut bench = Bench::new(Restored { generation: Generation(7), ..Restored::default() });
    let info = worker("w", 1);
    bench.on(Event::WorkerAttached(info.clone()));
    bench.on(Event::Reported(empty_inventory(&info)));
    bench.settle();
    bench.set(&deployment("iris", "  replicas: 1\n", 1));
    let effects = bench.wait(DEBOUNCE);
    let stored = effects.iter().find_map(|effect| match effect {
        Effect::Commit(commit) => Some(commit.generation),
        _ => None,
    });
    assert!(stored.is_some_and(|generation| generation > Generation(7)), "{stored:?}");
}

fn in_force(effects: &[Effect]) -> Option<Rev> {
    effects.iter().filter_map(|effect| if let Effect::InForce(rev) = effect { Some(*rev) } else { None }).next_back()
}

#[test]
fn a_declaration_is_in_force_when_its_route_was_sent() {
    let info = worker("w", 1);
    let mut bench = Bench::settled(&info);
    assert_eq!(in_force(&bench.set(&deployment("iris", "  replicas: 1\n", 1))), None);
    assert_eq!(in_force(&bench.wait(DEBOUNCE)), None, "the plan is being stored");
    bench.set(&deployment("rose", "  replicas: {min: 0, max: 1}\n", 1));
    assert_eq!(in_force(&bench.on(Event::Committed)), Some(Rev(101)), "not what came meanwhile");
    let nothing = Event::Changed { rev: Rev(103), changes: Vec::new() };
    assert_eq!(in_force(&bench.on(nothing)), None, "what came before it is not in force yet");
    assert_eq!(in_force(&bench.wait(DEBOUNCE)), Some(Rev(103)));
    let nothing = Event::Changed { rev: Rev(104), changes: Vec::new() };
    assert_eq!(in_force(&bench.on(nothing)), Some(Rev(104)), "nothing to wait for");
}

#[test]
fn the_first_plan_for_residents_alone_puts_nothing_in_force() {
    let deployments =
        vec![stored(&deployment("a-cold", "", 1), 1), stored(&deployment("z-warm", "  replicas: 1\n", 1), 2)];
    let mut bench = Bench::new(Restored { rev: Rev(2), deployments, ..Restored::default() });
    bench.on(Event::Changed { rev: Rev(3), changes: Vec::new() });
    bench.now = bench.now + SETTLE;
    assert_eq!(in_force(&bench.on(Event::Tick)), None);
    assert_eq!(in_force(&bench.settle()), Some(Rev(3)));
}

#[test]
fn a_worker_that_lost_count_is_sent_everything_again() {
    let info = worker("w", 1);
    let mut bench = Bench::settled(&info);
    bench.set(&deployment("iris", "  replicas: 1\n", 1));
    bench.wait(DEBOUNCE);
    assert_eq!(kinds(&bench.on(Event::Committed)), [CommandKind::Load]);
    let effects = bench.on(Event::Reported(empty_inventory(&info)));
    let sent = assignments(&effects);
    assert_eq!((sent.len(), sent[0].base, sent[0].set.len()), (1, None, 1));
    let held = sent[0].set[0].revision.id.clone();
    let counted = InventoryChange { seen: sent[0].generation, ..inventory(&info, true, vec![(held, None)]) };
    assert!(assignments(&bench.on(Event::Reported(counted))).is_empty(), "this one has not");
}

#[test]
fn what_is_disabled_leaves_at_once_and_before_anything_is_loaded() {
    let info = worker("w", 1);
    let mut bench = Bench::settled(&info);
    bench.set(&deployment("fraud", "  replicas: 1\n", 1));
    bench.wait(DEBOUNCE);
    bench.settle();
    let held = deployment("fraud", "", 1).revision_id();
    bench.on(Event::Reported(inventory(&info, false, vec![(held.clone(), Some(ready(bench.now)))])));
    bench.settle();
    bench.set(&deployment("fraud", "  replicas: 0\n", 2));
    assert!(bench.brain.wake_at().is_some_and(|at| at <= bench.now), "it waits for nobody");
    bench.set(&deployment("other", "  replicas: 1\n", 1));
    let effects = bench.settle();
    let sent = assignments(&effects);
    assert_eq!((sent.len(), sent[0].unset.as_slice()), (1, &[held][..]));
    assert_eq!(sent[0].set.len(), 1, "what else is declared goes with it");
    let off = routes(&effects).into_iter().flat_map(|(_, change)| &change.set);
    assert!(off.into_iter().any(|route| {
        route.deployment.as_str() == "fraud" && route.on_miss == berth_spec::routes::OnMiss::ScaledDown
    }));
}

#[test]
fn a_difference_is_told_once_and_counted_while_it_lasts() {
    use berth_plan::drift::DriftKind;
    let info = worker("w", 1);
    let mut bench = Bench::settled(&info);
    bench.set(&deployment("iris", "  replicas: 1\n", 1));
    let mut effects = bench.wait(DEBOUNCE);
    effects.extend(bench.settle());
    bench.set(&deployment("iris", "  replicas: 1\n  priority: 60\n", 2));
    effects.extend(bench.wait(DEBOUNCE));
    effects.extend(bench.settle());
    let told = |effects: &[Effect]| {
        let kinds = effects.iter().filter_map(|effect| match effect {
            Effect::Drifted(drift) => Some(drift.kind),
            _ => None,
        });
        kinds.collect::<Vec<_>>()
    };
    assert_eq!(told(&effects), [DriftKind::NewDeployment]);
    let held = deployment("iris", "", 1).revision_id();
    let mut effects = bench.on(Event::Reported(inventory(&info, false, vec![(held, Some(ready(bench.now)))])));
    effects.extend(bench.settle());
    assert!(told(&effects).is_empty());
    let mut counts = effects.iter().filter_map(|effect| match effect {
        Effect::DriftCount(counted) => Some(counted.len()),
        _ => None,
    });
    assert_eq!(counts.next_back(), Some(0), "nothing differs any more");
}
