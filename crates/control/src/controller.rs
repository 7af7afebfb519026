//! The controller's brain: it keeps the [`World`], asks `berth_plan` what should be, and says what to store and send.
//! It reads no clock and does no I/O; [`driver`](crate::driver) runs it, `berth_sim` runs it under a virtual clock.
//!
//! ```text
//! Settling ──those who may hold something have reported, or the time is up──▶ Idle
//!   Idle ──due──▶ plan() ──no record changes──▶ taken over, sent ──▶ Idle
//!                   └──────records to store──▶ Committing
//!   Committing ──Committed──▶ taken over, sent ──▶ Idle
//!   Committing ──Refused────▶ nothing sent, the same is planned again after a pause ──▶ Idle
//! ```
//!
//! Rules: there is never more than one plan in flight. Nothing is sent before what it rests on is stored. What people
//! declare counts once the store has it, and not in the middle of a commit. Events only say that something happened;
//! deciding is done on [`Event::Tick`], so what comes together is decided together.
//!
//! A new leader must not move what need not move, nor unroute what answers: it plans when it knows what workers hold
//! ([`settle`]), and until then gateways keep the routes that the last leader sent. Who is late then, and seen by the
//! members, is assumed to hold for a while what it held.

mod aliases;
mod drift_tracker;
mod effect;
mod event;
mod expected;
mod leaving;
mod outcomes;
mod reports;
mod send;
mod settle;
mod stopwatch;
mod terms;
mod unreported;
mod wanted;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Unbounded},
    sync::Arc,
    time::Duration,
};

use berth_plan::{Planned, Policy, Record, Scope, World, plan};
use berth_spec::{
    Alias, ByteSize, Cordon, Deployment, DeploymentName, Digest, GatewayEvent, GatewayId, Generation, Health,
    Namespace, RevisionId, RevisionOutcomes, Time, UnknownWorkers, WorkerId, WorkerTerms, routes::Readiness,
};

pub use aliases::AliasChange;
use drift_tracker::DriftTracker;
pub use effect::{ChangeKind, Command, CommandKind, Effect, PlanCommit, PlanSize, RouteRecipients};
pub use event::{Declared, Event};
pub use expected::ExpectedWorker;
use expected::NamedSince;
use outcomes::OutcomeTable;
pub use settle::{SETTLE, SETTLE_CLUSTER};
use stopwatch::Stopwatch;
pub use unreported::AbsentWorker;
use unreported::UnreportedWorkers;
use wanted::Wanted;

use crate::{debouncer::Debouncer, store::Rev};

/// The pause before declarations are planned, in which others may join them. A folder of manifests arrives within it,
/// and nobody notices it after an apply.
pub const DEBOUNCE: Duration = Duration::from_millis(10);

/// The pause before a plan that could not be stored is made again: short after a lost race, long enough to spare a
/// failing store.
pub const RETRY: Duration = Duration::from_millis(100);

/// The content of the store at the start of a term, for [`Controller::new`].
#[derive(Debug, Default)]
pub struct Restored {
    /// The store's rev when this was read.
    pub rev: Rev,
    /// Declared deployments, those that are being deleted included.
    pub deployments: Vec<Arc<Deployment>>,
    /// Aliases with their resource versions.
    pub aliases: Vec<(Arc<Alias>, Rev)>,
    /// The record that the last plan left for each deployment.
    pub records: Vec<(DeploymentName, Record)>,
    /// Memory that replicas were measured to take, by the digest of their artifact.
    pub measured: Vec<(Digest, ByteSize)>,
    /// Workers that operators have cordoned or are draining; others are open.
    pub cordons: BTreeMap<WorkerId, Cordon>,
    /// The registry's settings of workers.
    pub terms: BTreeMap<WorkerId, Arc<WorkerTerms>>,
    /// The treatment of workers that the registry does not name.
    pub unknown: UnknownWorkers,
    /// The number of the last plan that was stored.
    pub generation: Generation,
}

/// The brain of the control plane: plans, sends assignments and routes, and takes in reports. No I/O, no clock.
pub struct Controller {
    world: World,
    phase: Phase,
    /// When to plan.
    due: Debouncer,
    /// The scope of the plans that could not be stored; it is planned again.
    again: Option<Scope>,
    /// The first plan has not been made.
    fresh: bool,
    /// The resource version of each alias.
    alias_revs: BTreeMap<DeploymentName, Rev>,
    workers: BTreeMap<WorkerId, Attached>,
    /// When each worker last reported, also those that are gone.
    last_reports: BTreeMap<WorkerId, Time>,
    unreported: UnreportedWorkers,
    named_since: NamedSince,
    wanted: Wanted,
    /// Gateways that get their first routes with the first plan.
    unwelcomed: BTreeSet<GatewayId>,
    /// Workers that are to be empty before they go, with the replicas that they still had when it was last said.
    emptying: BTreeMap<WorkerId, usize>,
    cordons: BTreeMap<WorkerId, Cordon>,
    /// The health of nodes as the members see it; empty if this process is alone.
    members: BTreeMap<WorkerId, Health>,
    /// Changes that came while a plan was being stored.
    held: Vec<Event>,
    /// Counts changes of routes.
    route_seq: u64,
    readiness: Readiness,
    stopwatch: Stopwatch,
    drift_tracker: DriftTracker,
    outcomes: OutcomeTable,
    /// The rev up to which the store's changes have been taken in.
    seen: Rev,
    /// The rev up to which they are in the routes that were sent.
    in_force: Rev,
}

/// The state of the brain; see the diagram.
#[derive(Debug)]
enum Phase {
    Settling { since: Time, until: Time },
    Idle,
    Committing(Box<InFlight>),
}

#[derive(Debug)]
struct InFlight {
    planned: Planned,
    scope: Scope,
    /// All that was declared up to here is in it.
    covers: Rev,
}

/// A worker that is attached.
#[derive(Debug, Default)]
struct Attached {
    /// True once it has reported what it holds.
    reported: bool,
    /// True once it has been sent its whole assignment.
    greeted: bool,
}

impl Controller {
    /// Goes on where the store says that the last controller stopped.
    #[must_use]
    pub fn new(policy: Policy, restored: Restored, now: Time) -> Self {
        let mut world = World::new(policy);
        let unreported = UnreportedWorkers::of(&restored.records);
        let named_since = NamedSince::of(restored.terms.keys(), now);
        for (digest, size) in restored.measured {
            world.set_measured(digest, size);
        }
        for deployment in restored.deployments {
            world.set_deployment(deployment);
        }
        let mut alias_revs = BTreeMap::new();
        for (alias, rev) in restored.aliases {
            alias_revs.insert(alias.name.clone(), rev);
            world.set_alias(alias);
        }
        for (name, record) in restored.records {
            world.set_record(name, Some(record));
        }
        for (worker, terms) in restored.terms {
            world.set_terms(&worker, Some(terms));
        }
        world.set_unknown_workers(restored.unknown);
        world.resume(restored.generation);
        Self {
            world,
            phase: Phase::Settling { since: now, until: now + SETTLE },
            due: Debouncer::new(DEBOUNCE),
            again: None,
            fresh: true,
            alias_revs,
            workers: BTreeMap::new(),
            last_reports: BTreeMap::new(),
            unreported,
            named_since,
            wanted: Wanted::default(),
            unwelcomed: BTreeSet::new(),
            emptying: BTreeMap::new(),
            cordons: restored.cordons,
            members: BTreeMap::new(),
            held: Vec::new(),
            route_seq: 0,
            readiness: Readiness::default(),
            stopwatch: Stopwatch::default(),
            drift_tracker: DriftTracker::default(),
            outcomes: OutcomeTable::default(),
            seen: restored.rev,
            in_force: Rev::NONE,
        }
    }

    /// Takes an event in and says what to do.
    pub fn on(&mut self, event: Event, now: Time) -> Vec<Effect> {
        let mut out = Vec::new();
        match event {
            Event::Changed { .. }
            | Event::Aliases(_)
            | Event::Cordon { .. }
            | Event::Terms { .. }
            | Event::UnknownWorkers(_)
            | Event::TypeRules(_)
                if self.committing() =>
            {
                self.held.push(event);
            }
            Event::Changed { rev, changes } => self.changed(rev, changes, now, &mut out),
            Event::Aliases(changes) => self.aliases_changed(changes, now, &mut out),
            Event::Cordon { worker, cordon } => self.cordon(worker, cordon, now, &mut out),
            Event::Terms { worker, terms } => self.terms(&worker, terms, now, &mut out),
            Event::UnknownWorkers(unknown) => self.unknown_workers(unknown, now, &mut out),
            Event::TypeRules(rules) => {
                self.world.set_type_rules(rules);
                self.due.change(now);
            }
            Event::WorkerAttached(info) => self.worker_attached(info, now, &mut out),
            Event::WorkerDetached(id) => self.worker_detached(&id, now, &mut out),
            Event::Reported(change) => self.reported(&change, now, &mut out),
            Event::Member { worker, health } => self.member(worker, health, now, &mut out),
            Event::GatewayAttached { id, region, .. } => {
                self.world.set_gateway(id, region);
                self.gateway_attached(id, now, &mut out);
            }
            Event::GatewayDetached(id) => {
                self.unwelcomed.remove(&id);
                self.world.forget_gateway(id);
                self.due.hurry(now);
            }
            Event::Gateway(id, GatewayEvent::Resync) => self.gateway_attached(id, now, &mut out),
            Event::Gateway(id, GatewayEvent::Demand(demands)) => {
                for demand in &demands {
                    self.world.demand(id, demand, now);
                }
                if demands.iter().any(|demand| demand.waiting > 0) {
                    self.due.hurry(now);
                }
            }
            Event::Gateway(_, GatewayEvent::Outcomes(outcomes)) => self.outcomes.add(outcomes, now),
            Event::Gateway(_, GatewayEvent::PageOut(name)) => {
                self.world.page_out(&name, now);
                self.due.hurry(now);
            }
            // Whoever sends the routes keeps count of that.
            Event::Gateway(_, GatewayEvent::Applied(_)) => {}
            Event::Wanted { deployment, last_used } => self.want(deployment, last_used, now),
            Event::Committed => self.committed(now, &mut out),
            Event::Refused => self.refused(now, &mut out),
            Event::Tick => self.tick(now, &mut out),
        }
        out
    }

    /// When to send [`Event::Tick`]; a time that has passed means at once.
    #[must_use]
    pub fn wake_at(&self) -> Option<Time> {
        match &self.phase {
            Phase::Settling { .. } if self.settled() => Some(Time::ZERO),
            Phase::Settling { until, .. } => Some(*until),
            Phase::Idle => [self.due.due(), self.world.wake_at()].into_iter().flatten().min(),
            Phase::Committing(_) => None,
        }
    }

    /// All that is known, for questions.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The results of a revision's requests, of the last one to two minutes, as all gateways saw them.
    #[must_use]
    pub fn outcomes(&self, revision: &RevisionId) -> Option<RevisionOutcomes> {
        self.outcomes.get(revision)
    }

    /// The rev at which a deployment was last written; `None`: it is not known.
    #[must_use]
    pub fn rev_of(&self, name: &DeploymentName) -> Option<Rev> {
        self.world.deployment(name).and_then(|deployment| stored_at(deployment))
    }

    /// Deployments after `after` with their resource versions, by name: all, or those of a namespace.
    pub fn declared<'a>(
        &'a self,
        namespace: Option<&'a Namespace>,
        after: Option<&DeploymentName>,
    ) -> impl Iterator<Item = (&'a DeploymentName, Rev)> {
        let first = namespace.map(DeploymentName::before_all_of);
        let from = first.as_ref().max(after).map_or(Unbounded, Excluded);
        self.world
            .deployments_from(from)
            .take_while(move |each| namespace.is_none_or(|namespace| each.name.namespace() == namespace.as_str()))
            .filter_map(|each| Some((&each.name, stored_at(each)?)))
    }

    /// Aliases after `after` with their resource versions, by name: all, or those of a namespace.
    pub fn declared_aliases<'a>(
        &'a self,
        namespace: Option<&'a Namespace>,
        after: Option<&DeploymentName>,
    ) -> impl Iterator<Item = (&'a DeploymentName, Rev)> {
        let first = namespace.map(DeploymentName::before_all_of);
        let from = first.as_ref().max(after).map_or(Unbounded, Excluded);
        self.alias_revs
            .range::<DeploymentName, _>((from, Unbounded))
            .take_while(move |(name, _)| namespace.is_none_or(|namespace| name.namespace() == namespace.as_str()))
            .map(|(name, rev)| (name, *rev))
    }

    /// Workers that operators have cordoned or are draining; others are open.
    #[must_use]
    pub fn cordons(&self) -> &BTreeMap<WorkerId, Cordon> {
        &self.cordons
    }

    /// True while a plan is being stored. [`Event::Changed`] is put off until then, so leave it in the queue.
    #[must_use]
    pub fn committing(&self) -> bool {
        matches!(self.phase, Phase::Committing(_))
    }

    /// When a worker last spoke; `None`: not since this controller started.
    #[must_use]
    pub fn reported_at(&self, worker: &WorkerId) -> Option<Time> {
        self.last_reports.get(worker).copied()
    }

    fn tick(&mut self, now: Time, out: &mut Vec<Effect>) {
        if let Phase::Settling { until, .. } = self.phase {
            if now < until && !self.settled() {
                return;
            }
            self.phase = Phase::Idle;
            self.assume_members(now);
            self.due.hurry(now);
        }
        let woken = self.world.wake_at().is_some_and(|at| at <= now);
        if matches!(self.phase, Phase::Idle) && (self.due.take(now) || woken) {
            self.decide(now, out);
        }
    }

    fn decide(&mut self, now: Time, out: &mut Vec<Effect>) {
        let scope = self.scope(now);
        // What was put off until the next plan is not in this one.
        let covers = if self.again.is_some() { Rev::NONE } else { self.seen };
        self.drift_tracker.look(&self.world, &scope, out);
        let planned = plan(&self.world, &scope, now);
        if planned.records.is_empty() && planned.gone.is_empty() {
            self.take_over(InFlight { planned, scope, covers }, now, out);
            return;
        }
        out.push(Effect::Commit(PlanCommit {
            reconstructible: planned.is_reconstructible(&self.world),
            generation: planned.generation,
            records: planned.records.iter().map(|(name, record)| (name.clone(), record.clone())).collect(),
            forget: planned.gone.iter().map(|name| (name.clone(), self.rev_of(name).unwrap_or(Rev::NONE))).collect(),
        }));
        self.phase = Phase::Committing(Box::new(InFlight { planned, scope, covers }));
    }

    /// Chooses the scope of the next plan. The very first plan covers only what should always be resident, so that its
    /// loads go out before those of models that nobody has asked for yet.
    fn scope(&mut self, now: Time) -> Scope {
        let due = join(self.again.take(), self.world.due(now));
        if !std::mem::take(&mut self.fresh) {
            return due;
        }
        self.again = Some(due);
        self.due.hurry(now);
        let resident = |deployment: &&Arc<Deployment>| deployment.spec.replicas.min > 0;
        Scope::Only(self.world.deployments().filter(resident).map(|deployment| deployment.name.clone()).collect())
    }

    fn committed(&mut self, now: Time, out: &mut Vec<Effect>) {
        if let Phase::Committing(flight) = std::mem::replace(&mut self.phase, Phase::Idle) {
            self.take_over(*flight, now, out);
        }
        self.release(now, out);
    }

    fn refused(&mut self, now: Time, out: &mut Vec<Effect>) {
        if let Phase::Committing(flight) = std::mem::replace(&mut self.phase, Phase::Idle) {
            self.again = Some(join(self.again.take(), flight.scope));
            self.due.at(now + RETRY);
        }
        self.release(now, out);
    }

    /// Takes in what was held while a plan was being stored.
    fn release(&mut self, now: Time, out: &mut Vec<Effect>) {
        for event in std::mem::take(&mut self.held) {
            out.extend(self.on(event, now));
        }
    }
}

/// Both.
fn join(one: Option<Scope>, other: Scope) -> Scope {
    match (one, other) {
        (None, scope) => scope,
        (Some(Scope::Only(mut one)), Scope::Only(other)) => {
            one.extend(other);
            Scope::Only(one)
        }
        (Some(_), _) => Scope::All,
    }
}

/// The resource version of a deployment that the store has.
fn stored_at(deployment: &Deployment) -> Option<Rev> {
    (deployment.resource_version != 0).then_some(Rev(deployment.resource_version))
}
