//! The worker's brain, without a worker: events in, effects out, a clock that is a number.

mod cards;
mod laws;
mod limits;
mod processes;

use std::{sync::Arc, time::Duration};

use berth_spec::{
    AssignmentChange, ByteSize, Digest, FailureCategory, Generation, Placed, Residency, Revision, RevisionId, Serving,
    Time, WorkerId, WorkerLimits,
    deployment::{Batching, Concurrency, ModelFormat, RuntimeOptions, Warmup},
    worker::BreakerState,
};
use berth_worker::{
    Agent, Effect, Event, Fault,
    agent::PATIENCE,
    artifacts::{Artifact, Source},
    order::{Limits, PARALLEL_PREPARATIONS},
    prepare::Miss,
    replica::{Facts, Retries, Validated},
};

const LIMITS: Limits = Limits {
    memory: ByteSize(100),
    unload_reserve: ByteSize::ZERO,
    models: None,
    parallel_loads: 2,
    parallel_fetches: 4,
};

fn id(name: &str) -> RevisionId {
    let (deployment, hash) = name.split_once('@').unwrap_or((name, "1"));
    format!("{deployment}@{hash:0>12}").parse().expect("a revision")
}

fn placed(name: &str, claim: u64) -> Placed {
    let id = id(name);
    let serving = Serving {
        deployment: id.deployment().clone(),
        warmup: Warmup::Off,
        concurrency: Concurrency { max: None, queue: 8 },
        batching: Batching { max_rows: 1, max_delay: Duration::ZERO },
        drain_timeout: Duration::from_secs(5),
    };
    let revision = Revision {
        uri: format!("http://host/{name}"),
        id,
        format: ModelFormat::ONNX,
        digest: None,
        version: "1".to_owned(),
        signature: None,
        runtime: RuntimeOptions::default(),
        memory: None,
        card: None,
    };
    Placed {
        revision: Arc::new(revision),
        claim: ByteSize(claim),
        gpu: None,
        urgent: false,
        serving: Arc::new(serving),
    }
}

/// A replica of a model card, whose code is kept by `https://git`.
fn carded(name: &str, claim: u64) -> Placed {
    let mut placed = placed(name, claim);
    let revision = Arc::make_mut(&mut placed.revision);
    revision.card = Some(Arc::new(crate::card("https://git/m.git", &"0".repeat(40), "3.0.0")));
    revision.format = ModelFormat::PYTHON;
    placed
}

fn artifact(byte: u8) -> Artifact {
    Artifact { source: Source::File("artifact".into()), digest: Digest([byte; 32]), size: ByteSize(1) }
}

fn facts(memory: u64) -> Facts {
    Facts { memory: ByteSize(memory), measured: true, signature: None, note: None, unvalidated: None }
}

/// An agent, and a stage to play it on.
struct Stage {
    agent: Agent,
    now: Time,
    generation: u64,
    /// The registry's, with every change.
    limits: WorkerLimits,
}

impl Stage {
    fn new() -> Self {
        Self::within(LIMITS)
    }

    fn within(limits: Limits) -> Self {
        let agent = Agent::new(WorkerId::new("w").expect("a name"), 7, limits);
        let mut stage = Self { agent, now: Time(1_000_000_000_000), generation: 0, limits: WorkerLimits::default() };
        assert_eq!(stage.on(Event::Attached), "report seen 0 whole");
        stage
    }

    fn on(&mut self, event: Event) -> String {
        let effects = self.agent.on(event, self.now);
        effects.iter().map(show).collect::<Vec<_>>().join("; ")
    }

    /// A whole assignment.
    fn whole(&mut self, replicas: Vec<Placed>) -> String {
        self.generation += 1;
        let generation = Generation(self.generation);
        self.on(Event::Assigned(AssignmentChange {
            generation,
            base: None,
            limits: self.limits,
            set: replicas,
            unset: Vec::new(),
        }))
    }

    /// A change of the last one.
    fn change(&mut self, set: Vec<Placed>, unset: &[&str]) -> String {
        let base = Some(Generation(self.generation));
        self.generation += 1;
        let generation = Generation(self.generation);
        let unset = unset.iter().map(|name| id(name)).collect();
        self.on(Event::Assigned(AssignmentChange { generation, base, limits: self.limits, set, unset }))
    }

    fn ticket(&self, name: &str) -> u64 {
        let found = self.agent.replicas().find(|(revision, _)| **revision == id(name));
        found.map_or(0, |(_, replica)| replica.ticket)
    }

    fn fetched(&mut self, name: &str, result: Result<Artifact, Fault>) -> String {
        let ticket = self.ticket(name);
        self.on(Event::Fetched { revision: id(name), ticket, result })
    }

    fn loaded(&mut self, name: &str, result: Result<Facts, Fault>) -> String {
        let ticket = self.ticket(name);
        self.on(Event::Loaded { revision: id(name), ticket, result })
    }

    fn validated(&mut self, name: &str, result: Result<Option<ByteSize>, Fault>) -> String {
        let ticket = self.ticket(name);
        let result = result.map(|memory| Validated { memory, ..Validated::default() });
        self.on(Event::Validated { revision: id(name), ticket, result })
    }

    /// From queued to ready, whatever it takes.
    fn ready(&mut self, name: &str, byte: u8, memory: u64) {
        self.fetched(name, Ok(artifact(byte)));
        self.loaded(name, Ok(facts(memory)));
        self.validated(name, Ok(None));
        assert!(self.residency(name).is_some_and(|r| r.is_ready()), "{name} should be ready");
    }

    fn residency(&self, name: &str) -> Option<Residency> {
        self.agent.residencies().find(|(revision, _)| **revision == id(name)).map(|(_, residency)| residency)
    }

    fn sleep(&mut self) -> String {
        self.now = self.agent.wake_at().expect("something is due");
        self.on(Event::Tick)
    }
}

/// An effect in a few words.
fn show(effect: &Effect) -> String {
    let word = |id: &RevisionId| id.to_string().replace("@000000000001", "").replace("@00000000000", "@");
    match effect {
        Effect::Prepare { revision, blocked, .. } => {
            let left_alone = [("git", blocked.git), ("packages", blocked.packages)];
            let names =
                left_alone.iter().filter(|(_, until)| until.is_some()).map(|(name, _)| format!(" without {name}"));
            format!("prepare {}{}", word(&revision.id), names.collect::<String>())
        }
        Effect::Fetch { revision, .. } => format!("fetch {}", word(&revision.id)),
        Effect::Forget { revision } => format!("forget {}", word(revision)),
        Effect::Load { revision, share: None, .. } => format!("load {}", word(&revision.id)),
        Effect::Load { revision, share: Some(shared), .. } => {
            format!("share {} for {}", word(shared), word(&revision.id))
        }
        Effect::GiveUp { revision } => format!("give up {}", word(revision)),
        Effect::Validate { revision, .. } => format!("validate {}", word(revision)),
        Effect::Announce { revision, .. } => format!("announce {}", word(revision)),
        Effect::Reconfigure { revision, .. } => format!("reconfigure {}", word(revision)),
        Effect::Drain { revision, .. } => format!("drain {}", word(revision)),
        Effect::Unload { revision } => format!("unload {}", word(revision)),
        Effect::Report(change) => {
            let replica = |(id, residency): &(RevisionId, Option<Residency>)| {
                format!(" {}={}", word(id), residency.as_ref().map_or("gone", Residency::as_str))
            };
            let whole = if change.whole { " whole" } else { "" };
            format!("report seen {}{whole}{}", change.seen, change.replicas.iter().map(replica).collect::<String>())
        }
    }
}

#[test]
fn a_load_that_nobody_wants_any_more_is_given_up() {
    let mut s = Stage::new();
    s.whole(vec![placed("a", 10)]);
    s.fetched("a", Ok(artifact(1)));
    assert_eq!(s.change(vec![], &["a"]), "give up a; report seen 2");
    assert_eq!(s.agent.held(), ByteSize(10), "until it has ended");
    let ended = || Fault::internal("the load was given up");
    assert_eq!(s.loaded("a", Err(ended())), "forget a; report seen 2 a=gone");
    assert_eq!(s.agent.held(), ByteSize::ZERO);
    // Wanted again before it has ended: it has not failed, it starts over.
    s.change(vec![placed("a", 10)], &[]);
    s.fetched("a", Ok(artifact(1)));
    s.change(vec![], &["a"]);
    s.change(vec![placed("a", 10)], &[]);
    assert_eq!(s.loaded("a", Err(ended())), "fetch a; report seen 5 a=Fetching");
    s.fetched("a", Ok(artifact(1)));
    assert_eq!(s.loaded("a", Ok(facts(8))), "validate a; report seen 5 a=Validating");
}

#[test]
fn a_replica_from_assigned_to_gone() {
    let mut s = Stage::new();
    assert_eq!(s.whole(vec![placed("a", 10)]), "fetch a; report seen 1 a=Fetching");
    let (revision, ticket) = (id("a"), s.ticket("a"));
    let progress = Event::Progress { revision: revision.clone(), ticket, done: ByteSize(5), total: Some(ByteSize(9)) };
    assert_eq!(s.on(progress), "report seen 1 a=Fetching");
    assert_eq!(s.fetched("a", Ok(artifact(1))), "load a; report seen 1 a=Loading");
    assert_eq!(s.loaded("a", Ok(facts(8))), "validate a; report seen 1 a=Validating");
    assert_eq!(s.validated("a", Ok(None)), "announce a; report seen 1 a=Ready");
    assert_eq!(s.agent.held(), ByteSize(10), "the claim, as long as it is larger than what was measured");
    assert_eq!(s.change(vec![], &["a"]), "drain a; report seen 2 a=Draining");
    assert_eq!(s.on(Event::Draining { revision: revision.clone(), in_flight: 2 }), "report seen 2 a=Draining");
    assert_eq!(s.on(Event::Drained { revision: revision.clone() }), "unload a; report seen 2 a=Draining");
    assert_eq!(s.agent.held(), ByteSize(10), "until it is free");
    assert_eq!(s.on(Event::Unloaded { revision }), "report seen 2 a=gone");
    assert_eq!(s.agent.held(), ByteSize::ZERO);
}

#[test]
fn stale_changes_are_ignored_and_gaps_ask_for_the_whole() {
    let mut s = Stage::new();
    let delta = |generation, base| AssignmentChange {
        generation: Generation(generation),
        base: Some(Generation(base)),
        limits: WorkerLimits::default(),
        set: vec![placed("b", 1)],
        unset: vec![],
    };
    assert_eq!(s.on(Event::Assigned(delta(9, 8))), "report seen 0 whole", "nothing is held yet");
    s.generation = 9;
    s.whole(vec![placed("a", 10)]);
    assert_eq!(s.on(Event::Assigned(delta(9, 8))), "", "older than what is held");
    assert_eq!(s.on(Event::Assigned(delta(10, 9))), "", "the same again");
    assert_eq!(s.on(Event::Assigned(delta(12, 11))), "report seen 0 whole a=Fetching", "11 was missed");
    assert_eq!(s.on(Event::Assigned(delta(13, 12))), "report seen 0 whole a=Fetching", "still");
    s.generation = 13;
    assert_eq!(s.whole(vec![placed("a", 10)]), "report seen 14");
}

/// A node that plays the leader must not keep the worker from all later leaders.
#[test]
fn a_made_up_number_is_forgotten_at_the_next_connection() {
    let mut s = Stage::new();
    s.generation = 6;
    s.whole(vec![placed("a", 10)]);
    assert!(s.on(Event::Attached).starts_with("report seen 7 whole"), "another leader goes on from there");
    s.generation = u64::MAX - 1;
    s.whole(vec![placed("a", 10)]);
    s.generation = 7;
    assert_eq!(s.whole(vec![placed("b", 10)]), "", "an older word");
    assert!(s.on(Event::Attached).starts_with("report seen 0 whole"), "which asks for everything");
    let taken = s.whole(vec![placed("b", 10)]);
    assert!(taken.contains("fetch b") && s.residency("a").is_none(), "{taken}");
}

#[test]
fn frees_go_before_loads_and_urgent_before_the_rest() {
    let mut s = Stage::new();
    s.whole(vec![placed("old", 80)]);
    s.ready("old", 1, 80);
    let urgent = Placed { urgent: true, ..placed("wanted", 60) };
    assert_eq!(
        s.change(vec![placed("other", 30), urgent], &["old"]),
        "drain old; fetch wanted; fetch other; report seen 2 old=Draining other=Fetching wanted=Fetching"
    );
    assert_eq!(s.fetched("other", Ok(artifact(2))), "report seen 2 other=Queued");
    assert_eq!(s.fetched("wanted", Ok(artifact(3))), "report seen 2 wanted=Queued");
    s.on(Event::Drained { revision: id("old") });
    assert_eq!(
        s.on(Event::Unloaded { revision: id("old") }),
        "load wanted; load other; report seen 2 old=gone other=Loading wanted=Loading"
    );
}

#[test]
fn what_does_not_fit_waits_for_the_plan_to_make_room() {
    let mut s = Stage::new();
    s.whole(vec![placed("a", 10)]);
    s.ready("a", 1, 90);
    s.change(vec![placed("b", 20)], &[]);
    assert_eq!(s.fetched("b", Ok(artifact(2))), "report seen 2 b=Queued", "the plan knows by now that a takes 90");
    assert_eq!(s.change(vec![], &["a"]), "drain a; report seen 3 a=Draining");
    s.on(Event::Drained { revision: id("a") });
    assert_eq!(s.on(Event::Unloaded { revision: id("a") }), "load b; report seen 3 a=gone b=Loading");
    assert_eq!(s.agent.wake_at(), None);
}

#[test]
fn what_is_given_no_room_is_refused_in_the_end_and_loaded_when_there_is_some() {
    let mut s = Stage::new();
    s.whole(vec![placed("a", 10)]);
    s.ready("a", 1, 90);
    s.change(vec![placed("b", 20)], &[]);
    s.fetched("b", Ok(artifact(2)));
    let waited = s.agent.wake_at().expect("it does not wait for ever").since(s.now);
    assert_eq!(waited, PATIENCE);
    assert_eq!(s.sleep(), "report seen 2 b=Failed");
    let Some(Residency::Failed(failure)) = s.residency("b") else { panic!("b should have been refused") };
    assert_eq!((failure.category, failure.attempts), (FailureCategory::Memory, 1));
    assert!(failure.message.contains("20B") && failure.message.contains("10B"), "{}", failure.message);
    assert_eq!(s.sleep(), "report seen 2 b=Queued", "tried again by itself");
    s.change(vec![], &["a"]);
    s.on(Event::Drained { revision: id("a") });
    assert_eq!(s.on(Event::Unloaded { revision: id("a") }), "load b; report seen 3 a=gone b=Loading");
}

#[test]
fn what_is_larger_than_the_worker_is_refused_at_once() {
    let mut s = Stage::new();
    s.whole(vec![placed("a", 101)]);
    assert_eq!(s.fetched("a", Ok(artifact(1))), "report seen 1 a=Failed");
}

#[test]
fn what_the_process_takes_beside_its_models_is_told_in_steps_and_kept_free() {
    let mib = |n| ByteSize::mib(n).0;
    let limits = Limits { memory: ByteSize::mib(640), ..LIMITS };
    let mut s = Stage { agent: Agent::new(WorkerId::new("w").expect("a name"), 7, limits), ..Stage::new() };
    s.on(Event::Attached);
    s.whole(vec![placed("a", mib(300))]);
    let told = |s: &mut Stage, bytes: u64| {
        let effects = s.agent.on(Event::Overhead(ByteSize(bytes)), s.now);
        let report = effects.into_iter().find_map(|effect| match effect {
            Effect::Report(change) => Some(change.overhead),
            _ => None,
        });
        report.map(|overhead| overhead.0 >> 20)
    };
    assert_eq!(told(&mut s, mib(95)), Some(100), "in steps of a 64th");
    assert_eq!(told(&mut s, mib(99)), None);
    assert_eq!(told(&mut s, mib(85)), None, "it will be back");
    assert_eq!(told(&mut s, mib(101)), Some(110));
    assert_eq!(told(&mut s, mib(70)), Some(70));
    assert_eq!(told(&mut s, mib(2_000)), Some(320), "half is for models");
    assert_eq!(told(&mut s, mib(200)), Some(200));
    // Set aside are 300 MiB, 120 are taken: that makes up for most of it.
    s.ready("a", 1, mib(120));
    assert_eq!(s.agent.overhead(), ByteSize::mib(20));
    assert_eq!(told(&mut s, mib(400)), Some(220));
    s.change(vec![placed("b", mib(200)), placed("c", mib(100))], &[]);
    assert_eq!(s.fetched("b", Ok(artifact(2))), "report seen 2 b=Queued", "of 640 MiB 120 are free");
    assert_eq!(s.fetched("c", Ok(artifact(3))), "load c; report seen 2 c=Loading");
}

#[test]
fn transient_failures_are_retried_three_times_then_not() {
    let mut s = Stage::new();
    s.whole(vec![placed("a", 10)]);
    let delays: Vec<_> =
        (1..=5).map(|attempts| Retries::default().delay(attempts).map(|delay| delay.as_secs())).collect();
    assert_eq!(delays, [Some(30), Some(60), Some(120), None, None]);
    for delay in delays.iter().take(4) {
        let before = s.now;
        s.fetched("a", Err(Fault::new(FailureCategory::Timeout, "slow")));
        assert_eq!(s.agent.wake_at().map(|at| at.since(before).as_secs()), *delay);
        if delay.is_some() {
            assert_eq!(s.sleep(), "fetch a; report seen 1 a=Fetching");
        }
    }
    assert_eq!(s.agent.wake_at(), None);
}

#[test]
fn permanent_failures_are_not_retried() {
    for category in [
        FailureCategory::NotFound,
        FailureCategory::Auth,
        FailureCategory::Checksum,
        FailureCategory::InvalidModel,
        FailureCategory::Validation,
        FailureCategory::Runtime,
    ] {
        let mut s = Stage::new();
        s.whole(vec![placed("a", 10)]);
        s.fetched("a", Err(Fault::new(category, "no")));
        assert_eq!(s.agent.wake_at(), None, "{category:?}");
        assert_eq!(s.change(vec![], &["a"]), "forget a; report seen 2 a=gone");
    }
}

#[test]
fn a_model_that_fails_validation_is_unloaded_before_it_counts_as_failed() {
    let mut s = Stage::new();
    s.whole(vec![placed("a", 10)]);
    s.fetched("a", Ok(artifact(1)));
    s.loaded("a", Ok(facts(10)));
    let fault = Fault::new(FailureCategory::Validation, "nan");
    assert_eq!(s.validated("a", Err(fault)), "unload a; report seen 1 a=Failed");
    assert_eq!(s.agent.held(), ByteSize(10));
    s.on(Event::Unloaded { revision: id("a") });
    assert_eq!((s.agent.held(), s.agent.wake_at()), (ByteSize::ZERO, None));
}

#[test]
fn a_load_that_is_no_longer_wanted_ends_and_is_unloaded() {
    let mut s = Stage::new();
    s.whole(vec![placed("a", 60)]);
    s.fetched("a", Ok(artifact(1)));
    assert_eq!(s.change(vec![placed("b", 60)], &["a"]), "give up a; fetch b; report seen 2 b=Fetching");
    // Its engine cannot end it.
    assert_eq!(s.fetched("b", Ok(artifact(2))), "report seen 2 b=Queued", "a still takes its memory");
    assert_eq!(s.loaded("a", Ok(facts(60))), "unload a; report seen 2 a=Draining");
    assert_eq!(s.on(Event::Unloaded { revision: id("a") }), "load b; report seen 2 a=gone b=Loading");
}

#[test]
fn a_fetch_that_is_no_longer_wanted_is_cancelled_and_its_answer_ignored() {
    let mut s = Stage::new();
    s.whole(vec![placed("a", 10)]);
    let ticket = s.ticket("a");
    assert_eq!(s.change(vec![], &["a"]), "forget a; report seen 2 a=gone");
    assert_eq!(s.change(vec![placed("a", 10)], &[]), "fetch a; report seen 3 a=Fetching");
    assert_eq!(s.on(Event::Fetched { revision: id("a"), ticket, result: Ok(artifact(1)) }), "", "the old answer");
    assert_eq!(s.fetched("a", Ok(artifact(1))), "load a; report seen 3 a=Loading");
}

#[test]
fn wanted_again_while_it_drains_it_goes_and_comes_back() {
    let mut s = Stage::new();
    s.whole(vec![placed("a", 10)]);
    s.ready("a", 1, 10);
    s.change(vec![], &["a"]);
    assert_eq!(s.change(vec![placed("a", 10)], &[]), "report seen 3");
    s.on(Event::Drained { revision: id("a") });
    assert_eq!(s.on(Event::Unloaded { revision: id("a") }), "fetch a; report seen 3 a=Fetching");
}

#[test]
fn the_same_bytes_under_another_uri_are_shared() {
    let mut s = Stage::new();
    s.whole(vec![placed("a@1", 70)]);
    s.ready("a@1", 1, 70);
    s.change(vec![placed("a@2", 70)], &[]);
    assert_eq!(s.fetched("a@2", Ok(artifact(1))), "share a for a@2; report seen 2 a@2=Loading");
    s.loaded("a@2", Ok(facts(70)));
    s.validated("a@2", Ok(None));
    assert_eq!(s.agent.held(), ByteSize(70), "counted once");
    s.change(vec![], &["a@1"]);
    s.on(Event::Drained { revision: id("a@1") });
    s.on(Event::Unloaded { revision: id("a@1") });
    assert_eq!(s.agent.held(), ByteSize(70), "the shared still has them");
    s.change(vec![placed("b", 70)], &[]);
    assert_eq!(s.fetched("b", Ok(artifact(1))), "report seen 4 b=Queued", "another deployment shares nothing");
}

#[test]
fn a_failing_host_is_left_alone_and_probed_once() {
    let mut s = Stage::new();
    let names = ["a", "b", "c", "d", "e", "f"];
    s.whole(names.iter().map(|name| placed(name, 1)).collect());
    let down = || Fault::new(FailureCategory::Network, "connection refused");
    for name in &names[..4] {
        s.fetched(name, Err(down()));
    }
    assert_eq!(s.fetched("e", Err(down())), "report seen 1 e=Failed", "the fifth opens it");
    s.fetched("f", Err(down()));
    let effects = s.change(vec![placed("g", 1)], &[]);
    assert_eq!(effects, "report seen 2 g=Failed", "nothing is asked of the host");
    let Some(Residency::Failed(failure)) = s.residency("g") else { panic!("g is held off") };
    assert_eq!((failure.attempts, failure.category), (0, FailureCategory::Network), "not an attempt");
    s.sleep();
    let breakers: Vec<_> = s.agent.breakers().iter().map(|(host, breaker)| (host.name(), breaker)).collect();
    assert!(
        matches!(breakers[..], [("http://host", breaker)] if breaker.state() == BreakerState::Open),
        "{breakers:?}"
    );
    let probe = s.sleep();
    assert_eq!(probe.matches("fetch").count(), 1, "{probe}");
    let name = probe.split("fetch ").nth(1).and_then(|rest| rest.split(';').next()).expect("one fetch").to_owned();
    let recovered = s.fetched(&name, Ok(artifact(1)));
    assert_eq!(recovered.matches("fetch").count(), 4, "the others follow at once: {recovered}");
}

#[test]
fn a_change_of_serving_loads_nothing() {
    let mut s = Stage::new();
    s.whole(vec![placed("a", 10)]);
    s.ready("a", 1, 10);
    let mut changed = placed("a", 10);
    Arc::make_mut(&mut changed.serving).batching.max_rows = 32;
    assert_eq!(s.change(vec![changed.clone()], &[]), "reconfigure a; report seen 2");
    assert_eq!(s.change(vec![Placed { claim: ByteSize(12), ..changed }], &[]), "report seen 3", "a corrected claim");
}

#[test]
fn stopping_drains_everything_and_says_so() {
    let mut s = Stage::new();
    s.whole(vec![placed("a", 10), placed("b", 10), placed("c", 10)]);
    s.ready("a", 1, 10);
    s.fetched("b", Ok(artifact(2)));
    let effects = s.on(Event::Stop);
    assert_eq!(effects, "drain a; give up b; forget c; report seen 1 whole a=Draining b=Loading");
    assert_eq!(s.whole(vec![placed("d", 1)]), "", "nothing new");
    s.on(Event::Drained { revision: id("a") });
    s.on(Event::Unloaded { revision: id("a") });
    s.loaded("b", Ok(facts(10)));
    assert!(!s.agent.stopped());
    assert_eq!(s.on(Event::Unloaded { revision: id("b") }), "report seen 1 whole");
    assert!(s.agent.stopped());
}
