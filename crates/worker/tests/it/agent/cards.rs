//! The brain and model cards: what comes before the artifact, and the circuit breakers of those who are asked for it.

use berth_spec::{Failure, Usage, residency::Preparing};
use berth_worker::{breaker::Dependency, runtime::Health};

use super::*;

impl Stage {
    fn prepared(&mut self, name: &str, result: Result<(), Miss>, outcomes: &[(Dependency, bool)]) -> String {
        let ticket = self.ticket(name);
        self.on(Event::Prepared { revision: id(name), ticket, result, outcomes: outcomes.to_vec() })
    }

    fn failure(&self, name: &str) -> Arc<Failure> {
        match self.residency(name) {
            Some(Residency::Failed(failure)) => failure,
            other => panic!("{name} has not failed: {other:?}"),
        }
    }
}

fn down(category: FailureCategory) -> Result<(), Miss> {
    Err(Miss::Failed(Fault::new(category, "scripted").with_trace("Traceback")))
}

#[test]
fn a_card_is_prepared_before_its_artifact_is_fetched() {
    let mut s = Stage::new();
    assert_eq!(s.whole(vec![carded("a", 10)]), "prepare a; report seen 1 a=Preparing");
    let installing = Preparing::Environment(Some("installing 23 packages".into()));
    for step in [Preparing::Code, Preparing::SystemPackages, Preparing::Environment(None), installing] {
        let ticket = s.ticket("a");
        s.on(Event::Preparing { revision: id("a"), ticket, step: step.clone() });
        assert_eq!(s.residency("a"), Some(Residency::Preparing(step)));
    }
    assert_eq!(s.prepared("a", Ok(()), &[]), "fetch a; report seen 1 a=Fetching");
    assert_eq!(s.fetched("a", Ok(artifact(1))), "load a; report seen 1 a=Loading");
    assert_eq!(s.loaded("a", Ok(facts(8))), "validate a; report seen 1 a=Validating");
    assert_eq!(s.validated("a", Ok(None)), "announce a; report seen 1 a=Ready");
    assert_eq!(s.change(vec![carded("b", 10)], &[]), "prepare b; report seen 2 b=Preparing");
    assert_eq!(s.change(vec![], &["b"]), "forget b; report seen 3 b=gone", "a preparation is cancelled");
    assert_eq!(s.prepared("b", Ok(()), &[]), "", "a late answer is nobody's");
}

#[test]
fn how_a_ready_model_is_is_told_where_it_is_news() {
    let mut s = Stage::new();
    s.whole(vec![placed("a", 10)]);
    let health = |memory| Event::Health { revision: id("a"), health: Health { memory, deaths: None, lost: None } };
    assert_eq!(s.on(health(Some(ByteSize(1)))), "", "it is not ready");
    s.fetched("a", Ok(artifact(1)));
    s.loaded("a", Ok(facts(8)));
    s.validated("a", Ok(Some(ByteSize(9))));
    let memory = |s: &Stage| match s.residency("a") {
        Some(Residency::Ready(ready)) => ready.memory,
        other => panic!("it is ready: {other:?}"),
    };
    assert_eq!(memory(&s), ByteSize(9), "what it takes after its first run");
    assert_eq!(s.on(health(Some(ByteSize(10)))), "");
    assert_eq!(s.on(health(Some(ByteSize::mib(30)))), "report seen 1 a=Ready");
    assert_eq!(memory(&s), ByteSize::mib(30));
}

#[test]
fn what_cannot_be_done_here_is_said_before_anything_is_fetched() {
    let mut s = Stage::new();
    let mut newer = carded("a", 10);
    let revision = Arc::make_mut(&mut newer.revision);
    revision.card = Some(Arc::new(crate::card("https://git/m.git", &"0".repeat(40), "4.0.0")));
    assert_eq!(s.whole(vec![newer, carded("b", 101)]), "report seen 1 a=Failed b=Failed");
    let failure = s.failure("a");
    assert_eq!((failure.category, failure.retry_at), (FailureCategory::Schema, None));
    assert!(failure.message.contains("4.0.0") && failure.message.contains("3.0.0, 3.1.0"), "{}", failure.message);
    assert_eq!(s.failure("b").category, FailureCategory::Memory);
}

#[test]
fn failures_are_remembered_over_the_attempts() {
    let mut s = Stage::new();
    s.whole(vec![carded("a", 10)]);
    let mut waits = Vec::new();
    for _ in 0..4 {
        assert_eq!(s.prepared("a", down(FailureCategory::Network), &[]), "report seen 1 a=Failed");
        let failure = s.failure("a");
        waits.extend(failure.retry_at.map(|at| at.since(s.now).as_secs()));
        if failure.retry_at.is_some() {
            s.sleep();
        }
    }
    assert_eq!(waits, [30, 60, 120], "and then no more");
    let failure = s.failure("a");
    assert_eq!((failure.attempts, failure.history.len()), (4, 3), "the three before the last");
    assert!(failure.history.is_sorted_by_key(|attempt| attempt.at));
    assert_eq!(failure.trace.as_deref(), Some("Traceback"));
    let mut s = Stage::new();
    s.whole(vec![carded("a", 10)]);
    s.prepared("a", down(FailureCategory::Dependencies), &[]);
    assert_eq!(s.failure("a").retry_at, None, "nobody mends a card by waiting");
}

#[test]
fn who_does_not_answer_is_left_alone_by_its_kind() {
    let (git, index) = (Dependency::git("https://git"), Dependency::packages("https://index"));
    let mut s = Stage::new();
    let names = ["a", "b", "c", "d", "e"];
    s.whole(names.iter().map(|name| carded(name, 1)).collect());
    for name in names {
        s.prepared(name, down(FailureCategory::Network), &[(git.clone(), false), (index.clone(), true)]);
    }
    let told = s.agent.breakers().told();
    assert_eq!(
        (told.len(), told[0].state, told[0].failures),
        (1, BreakerState::Open, 5),
        "the index is well: {told:?}"
    );
    assert_eq!(s.change(vec![placed("plain", 1)], &[]), "fetch plain; report seen 2 plain=Fetching");
    assert_eq!(s.change(vec![carded("f", 1)], &[]), "prepare f without git; report seen 3 f=Preparing");
    let until = s.now + Duration::from_secs(60);
    let held_off = Err(Miss::HeldOff { dependency: git.clone(), until });
    s.prepared("f", held_off, &[]);
    let failure = s.failure("f");
    assert_eq!((failure.attempts, failure.retry_at), (0, Some(until)), "not an attempt");
    assert!(failure.message.contains("https://git"), "{}", failure.message);
    assert_eq!(s.change(vec![carded("g", 1)], &[]), "prepare g without git; report seen 4 g=Preparing");
    s.prepared("g", Ok(()), &[]);
    assert_eq!(s.agent.breakers().told().len(), 1, "what was here already needed nobody");
}

#[test]
fn a_probe_that_did_not_ask_lets_the_next_one() {
    let git = Dependency::git("https://git");
    let mut s = Stage::new();
    let names = ["a", "b", "c", "d", "e"];
    s.whole(names.iter().map(|name| carded(name, 1)).collect());
    names.iter().for_each(|name| drop(s.prepared(name, down(FailureCategory::Network), &[(git.clone(), false)])));
    s.change(vec![], &names);
    s.now = s.now + Duration::from_secs(61);
    assert_eq!(s.change(vec![carded("f", 1), carded("g", 1)], &[]).matches("without git").count(), 1, "one probe");
    assert_eq!(s.agent.breakers().told()[0].state, BreakerState::HalfOpen);
    s.prepared("f", Ok(()), &[]);
    assert_eq!(s.agent.breakers().told()[0].state, BreakerState::Open, "nobody knows how it is");
    assert_eq!(s.change(vec![carded("h", 1)], &[]), "prepare h; report seen 4 h=Preparing", "the next one asks");
    s.prepared("h", Ok(()), &[(git, true)]);
    assert!(s.agent.breakers().told().is_empty());
}

#[test]
fn breakers_are_told_when_they_change() {
    let told = |effects: Vec<Effect>| {
        effects.into_iter().find_map(|effect| match effect {
            Effect::Report(change) => Some(change.breakers.map(|all| all.len())),
            _ => None,
        })
    };
    let mut s = Stage::new();
    s.whole(vec![placed("a", 1), placed("b", 1)]);
    let mut fetched = |name: &str, result| {
        let (revision, ticket) = (id(name), s.ticket(name));
        told(s.agent.on(Event::Fetched { revision, ticket, result }, s.now))
    };
    let down = Fault::new(FailureCategory::Network, "connection refused");
    assert_eq!(fetched("a", Err(down)), Some(Some(1)));
    assert_eq!(fetched("b", Ok(artifact(1))), Some(Some(0)), "the host is well again");
    assert_eq!(told(s.agent.on(Event::Attached, s.now)), Some(Some(0)), "whoever hears everything hears this");
    assert_eq!(told(s.on_all(Event::Leave)), Some(None));
}

#[test]
fn use_is_told_by_itself_again_with_the_whole_and_not_of_what_is_gone() {
    let told = |effects: Vec<Effect>| {
        let report = effects.into_iter().find_map(|effect| match effect {
            Effect::Report(change) => Some(change),
            _ => None,
        });
        report.map(|change| (change.whole, change.replicas.len(), change.usage))
    };
    let mut s = Stage::new();
    s.whole(vec![placed("a", 1)]);
    let used = (id("a"), Usage { requests: 3, last: Some(s.now) });
    let unknown = (id("gone"), Usage { requests: 1, last: None });
    let word = told(s.on_all(Event::Used(vec![used.clone(), unknown])));
    assert_eq!(word, Some((false, 0, vec![used.clone()])));
    assert_eq!(told(s.on_all(Event::Leave)), Some((false, 0, vec![])), "once");
    assert_eq!(told(s.on_all(Event::Attached)), Some((true, 1, vec![used])), "whoever hears everything hears this");
}

impl Stage {
    fn on_all(&mut self, event: Event) -> Vec<Effect> {
        self.agent.on(event, self.now)
    }
}

#[test]
fn two_cards_over_the_same_bytes_are_two_models() {
    let mut s = Stage::new();
    s.whole(vec![carded("a@1", 10), carded("a@2", 10)]);
    for name in ["a@1", "a@2"] {
        s.prepared(name, Ok(()), &[]);
    }
    s.fetched("a@1", Ok(artifact(1)));
    assert_eq!(s.fetched("a@2", Ok(artifact(1))), "load a@2; report seen 1 a@2=Loading", "not shared");
}
