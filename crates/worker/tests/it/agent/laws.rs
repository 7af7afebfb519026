//! Laws of the agent over random assignments, failures, delays and orders of events.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const MEMORY: u64 = 100;

/// (revision, claim, content): `a@1` and `a@2` have the same bytes.
const MODELS: [(&str, u64, u8); 6] =
    [("a@1", 40, 1), ("a@2", 40, 1), ("b@1", 30, 2), ("b@2", 50, 3), ("c@1", 70, 4), ("d@1", 5, 5)];

#[derive(Debug, Clone)]
enum Move {
    /// Assign this subset (a bit per model), as a delta or whole; the message may get lost.
    Assign { subset: u8, whole: bool, lost: bool },
    /// The n-th piece of work under way ends; a failure where there is one.
    Finish { which: usize, failure: Option<FailureCategory> },
    /// Seconds pass.
    Wait(u64),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let failure = prop_oneof![
        3 => Just(None),
        1 => prop::sample::select(vec![
            FailureCategory::Network,
            FailureCategory::NotFound,
            FailureCategory::Internal,
            FailureCategory::Validation,
        ]).prop_map(Some),
    ];
    let one = prop_oneof![
        2 => (0u8..64, any::<bool>(), prop::bool::weighted(0.1))
            .prop_map(|(subset, whole, lost)| Move::Assign { subset, whole, lost }),
        6 => (0usize..8, failure).prop_map(|(which, failure)| Move::Finish { which, failure }),
        1 => (1u64..200).prop_map(Move::Wait),
    ];
    prop::collection::vec(one, 0..80)
}

/// Work that the agent asked for and that has not ended.
#[derive(Debug, Clone)]
enum Work {
    Prepare(RevisionId, u64),
    Fetch(RevisionId, u64, String),
    Load(RevisionId, u64),
    Validate(RevisionId, u64),
    Drain(RevisionId),
    Unload(RevisionId),
}

/// A naive worker and a naive controller, which share nothing with the agent's own accounting.
struct Model {
    stage: Stage,
    work: Vec<Work>,
    /// Loaded models: who holds which content of which deployment.
    memory: BTreeMap<RevisionId, (String, u8, u64)>,
    callable: BTreeSet<RevisionId>,
    inventory: BTreeMap<RevisionId, Residency>,
    asked: bool,
    wanted: BTreeMap<RevisionId, Placed>,
    sent: u64,
    /// Memory that may be held beyond the limit by what is being unloaded.
    reserve: u64,
}

/// Two of them are model cards.
fn subject(name: &str, claim: u64) -> Placed {
    if matches!(name, "b@2" | "d@1") { carded(name, claim) } else { placed(name, claim) }
}

fn content(revision: &RevisionId) -> (u64, u8) {
    let found = MODELS.iter().find(|(name, ..)| id(name) == *revision);
    found.map(|&(_, claim, byte)| (claim, byte)).expect("one of ours")
}

impl Model {
    fn new(reserve: u64) -> Self {
        let stage = Stage::within(Limits { unload_reserve: ByteSize(reserve), ..LIMITS });
        let (work, memory, callable, inventory, wanted) = Default::default();
        Self { stage, work, memory, callable, inventory, asked: true, wanted, sent: 0, reserve }
    }

    /// The memory that models hold; those with the same content count once.
    fn held(&self, counts: impl Fn(&RevisionId) -> bool) -> u64 {
        let counted = self.memory.iter().filter(|(id, _)| counts(id));
        counted.map(|(_, held)| held).collect::<BTreeSet<_>>().iter().map(|(.., claim)| claim).sum()
    }

    fn is_unloading(&self, revision: &RevisionId) -> bool {
        self.work.iter().any(|work| matches!(work, Work::Unload(id) if id == revision))
    }

    fn on(&mut self, event: Event) {
        let effects = self.stage.agent.on(event, self.stage.now);
        effects.into_iter().for_each(|effect| self.perform(effect));
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Prepare { revision, ticket, blocked: _ } => {
                assert!(revision.card.is_some());
                self.work.push(Work::Prepare(revision.id.clone(), ticket));
                let preparing = self.work.iter().filter(|work| matches!(work, Work::Prepare(..))).count();
                assert!(preparing <= PARALLEL_PREPARATIONS, "bounded preparations");
            }
            Effect::Fetch { revision, ticket } => {
                let twice = self.work.iter().any(|work| matches!(work, Work::Fetch(_, _, uri) if *uri == revision.uri));
                assert!(!twice, "{} is fetched twice at once", revision.uri);
                self.work.push(Work::Fetch(revision.id.clone(), ticket, revision.uri.clone()));
            }
            Effect::Forget { revision } => {
                self.work.retain(|work| !matches!(work, Work::Fetch(id, ..) | Work::Prepare(id, _) if *id == revision));
                assert!(!self.memory.contains_key(&revision), "what holds memory is not forgotten");
            }
            Effect::Load { revision, ticket, share, .. } => {
                let id = revision.id.clone();
                let twice = self.work.iter().any(|work| matches!(work, Work::Load(other, _) if *other == id));
                assert!(!twice && !self.memory.contains_key(&id), "{id} is loaded twice");
                let (claim, byte) = content(&id);
                if let Some(shared) = share {
                    assert_eq!(content(&shared).1, byte);
                    assert!(self.memory.contains_key(&shared), "the shared is in memory");
                }
                self.memory.insert(id.clone(), (id.deployment().to_string(), byte, claim));
                let (held, used) = (self.held(|_| true), self.held(|id| !self.is_unloading(id)));
                let most = MEMORY + self.reserve.min(held - used);
                assert!(held <= most, "{held} of {most} held after the load of {id}");
                self.work.push(Work::Load(id, ticket));
                let loading = self.work.iter().filter(|work| matches!(work, Work::Load(..))).count();
                assert!(loading <= LIMITS.parallel_loads + 2, "bounded loads (shares are free)");
            }
            // As an engine does that cannot.
            Effect::GiveUp { .. } => {}
            Effect::Validate { revision, ticket, .. } => self.work.push(Work::Validate(revision, ticket)),
            Effect::Announce { revision, .. } => {
                assert!(self.memory.contains_key(&revision));
                assert!(self.callable.insert(revision), "announced twice");
            }
            Effect::Reconfigure { .. } => {}
            Effect::Drain { revision, .. } => {
                assert!(self.callable.remove(&revision), "only what answers is drained");
                self.work.push(Work::Drain(revision));
            }
            Effect::Unload { revision } => {
                assert!(self.memory.contains_key(&revision) && !self.callable.contains(&revision));
                self.work.push(Work::Unload(revision));
            }
            Effect::Report(change) => {
                if change.whole {
                    self.inventory.clear();
                }
                self.asked |= change.whole && change.seen == Generation(0);
                for (revision, residency) in change.replicas {
                    match residency {
                        Some(residency) => self.inventory.insert(revision, residency),
                        None => self.inventory.remove(&revision),
                    };
                }
            }
        }
    }

    fn finish(&mut self, which: usize, failure: Option<FailureCategory>) {
        if self.work.is_empty() {
            return;
        }
        let fault = failure.map(|category| Fault::new(category, "scripted"));
        let work = self.work.remove(which % self.work.len());
        match work {
            Work::Prepare(revision, ticket) => {
                let (result, outcomes) = (fault.map_or(Ok(()), |fault| Err(Miss::Failed(fault))), Vec::new());
                self.on(Event::Prepared { revision, ticket, result, outcomes });
            }
            Work::Fetch(revision, ticket, _) => {
                let result = fault.map_or_else(|| Ok(artifact(content(&revision).1)), Err);
                self.on(Event::Fetched { revision, ticket, result });
            }
            Work::Load(revision, ticket) => {
                if fault.is_some() {
                    self.memory.remove(&revision);
                }
                let result = fault.map_or_else(|| Ok(facts(content(&revision).0)), Err);
                self.on(Event::Loaded { revision, ticket, result });
            }
            Work::Validate(revision, ticket) => {
                let result = fault.map_or_else(|| Ok(Validated::default()), Err);
                self.on(Event::Validated { revision, ticket, result });
            }
            Work::Drain(revision) => self.on(Event::Drained { revision }),
            Work::Unload(revision) => {
                self.memory.remove(&revision);
                self.on(Event::Unloaded { revision });
            }
        }
    }

    fn assign(&mut self, subset: u8, whole: bool, lost: bool) {
        // As the plan does: what it assigns fits, in order.
        let mut free = MEMORY;
        let mut wanted = BTreeMap::new();
        for (bit, (name, claim, _)) in MODELS.iter().enumerate() {
            if subset & (1 << bit) != 0 && *claim <= free {
                free -= claim;
                wanted.insert(id(name), subject(name, *claim));
            }
        }
        let base = (!whole && !self.asked).then_some(Generation(self.sent));
        self.sent += 1;
        let old = std::mem::replace(&mut self.wanted, wanted);
        let set = self.wanted.iter().filter(|(id, _)| base.is_none() || !old.contains_key(id));
        let set = set.map(|(_, placed)| placed.clone()).collect();
        let unset = old.keys().filter(|id| !self.wanted.contains_key(id)).cloned().collect();
        let change =
            AssignmentChange { generation: Generation(self.sent), base, limits: self.stage.limits, set, unset };
        if !lost {
            self.asked = false;
            self.on(Event::Assigned(change));
        }
    }

    /// Everything ends well and time passes, until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..1_000 {
            if self.asked {
                let all = self.wanted.values().cloned().collect();
                self.sent += 1;
                self.asked = false;
                let (generation, limits) = (Generation(self.sent), self.stage.limits);
                let change = AssignmentChange { generation, base: None, limits, set: all, unset: vec![] };
                self.on(Event::Assigned(change));
            } else if !self.work.is_empty() {
                self.finish(0, None);
            } else if let Some(at) = self.stage.agent.wake_at() {
                self.stage.now = self.stage.now.max(at);
                self.on(Event::Tick);
            } else {
                return;
            }
        }
        panic!("it never settles");
    }

    fn check(&self) {
        let truth: BTreeMap<_, _> = self.stage.agent.residencies().map(|(id, r)| (id.clone(), r)).collect();
        assert_eq!(self.inventory, truth, "the reports add up to the truth");
        let held = self.held(|_| true);
        assert_eq!(self.stage.agent.held(), ByteSize(held), "the agent's accounting is the naive one");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Never two loads of one replica, never more memory than there is and the reserve for unloads, truthful reports; and in the end exactly what
    /// is assigned is ready, but for what failed for good.
    #[test]
    fn it_gets_to_its_assignment(moves in moves(), reserve in prop::sample::select(vec![0, 10, 45])) {
        let mut model = Model::new(reserve);
        for one in moves {
            match one {
                Move::Assign { subset, whole, lost } => model.assign(subset, whole, lost),
                Move::Finish { which, failure } => model.finish(which, failure),
                Move::Wait(seconds) => {
                    model.stage.now = model.stage.now + Duration::from_secs(seconds);
                    model.on(Event::Tick);
                }
            }
            model.check();
        }
        // Whatever got lost is noticed with the next change.
        model.assign(0b1_0101, false, false);
        model.settle();
        model.check();
        for (revision, residency) in &model.inventory {
            prop_assert!(model.wanted.contains_key(revision), "{revision} is not wanted");
            let settled = match residency {
                Residency::Ready(_) => true,
                Residency::Failed(failure) => failure.retry_at.is_none(),
                _ => false,
            };
            prop_assert!(settled, "{revision} is {}", residency.as_str());
        }
        prop_assert_eq!(model.inventory.len(), model.wanted.len());
        prop_assert_eq!(model.callable.len(), model.inventory.values().filter(|r| r.is_ready()).count());
    }
}
