//! One candidate by tables; several under a model of etcd in which everything comes late, or not at all.

use std::{collections::BTreeMap, time::Duration};

use berth_control::{
    leadership::{Candidate, CandidateRole, Effect, Event, LeaderRecord, Policy, RenewalResult},
    store::{
        Rev,
        etcd::{Lease, LeaseId},
    },
};
use berth_spec::{Epoch, Time, WorkerId};
use proptest::prelude::*;

const TTL: Duration = Duration::from_secs(3);

fn name(name: &str) -> WorkerId {
    WorkerId::new(name).expect("a name")
}

fn leader(of: &str, lease: i64, epoch: u64) -> LeaderRecord {
    LeaderRecord { name: name(of), peer: String::new(), rules: None, lease: LeaseId(lease), epoch: Epoch(epoch) }
}

fn seen(at: u64, leader: Option<LeaderRecord>) -> Event {
    Event::Seen { at: Rev(at), leader }
}

/// A candidate and its clock, in milliseconds.
struct Bench {
    candidate: Candidate,
    now: Time,
}

impl Bench {
    fn new() -> Self {
        let mut bench = Self {
            candidate: Candidate::new(name("me"), Policy::default(), 7),
            now: Time::ZERO + Duration::from_secs(9),
        };
        assert_eq!(bench.on(Event::Tick), [Effect::Stand(CandidateRole::Following(None)), Effect::Look]);
        bench
    }

    fn on(&mut self, event: Event) -> Vec<Effect> {
        self.candidate.on(event, self.now)
    }

    fn after(&mut self, millis: u64) -> Vec<Effect> {
        self.now = self.now + Duration::from_millis(millis);
        self.on(Event::Tick)
    }

    fn granted(&mut self, lease: i64) -> Vec<Effect> {
        self.on(Event::Granted { sent: self.now, lease: Lease { id: LeaseId(lease), ttl: TTL } })
    }

    fn kept(&mut self, lease: i64, sent: Time, ttl: Option<Duration>) -> Vec<Effect> {
        self.on(Event::RenewalResult(RenewalResult { lease: LeaseId(lease), sent, ttl }))
    }

    /// One that has led term 5 with lease 1 since now.
    fn leading() -> Self {
        let mut bench = Self::new();
        assert_eq!(bench.on(seen(4, None)), []);
        assert_eq!(bench.after(100), [Effect::Grant]);
        assert_eq!(bench.granted(1), [Effect::Claim(LeaseId(1))]);
        let until = bench.now + TTL * 2 / 3;
        let leads = Effect::Stand(CandidateRole::Leading { epoch: Epoch(5), until });
        assert_eq!(bench.on(Event::Won { lease: LeaseId(1), epoch: Epoch(5) }), [leads]);
        assert_eq!(bench.candidate.leads(bench.now), Some(Epoch(5)));
        bench
    }
}

fn follows(other: Option<(&str, u64)>) -> Effect {
    Effect::Stand(CandidateRole::Following(other.map(|(other, epoch)| (name(other), Epoch(epoch)))))
}

#[test]
fn who_finds_a_leader_follows_and_looks_now_and_then() {
    let mut bench = Bench::new();
    assert_eq!(bench.on(seen(4, Some(leader("other", 9, 3)))), [follows(Some(("other", 3)))]);
    assert_eq!(bench.after(999), []);
    assert_eq!(bench.after(1), [Effect::Look]);
    assert_eq!(bench.on(seen(5, Some(leader("third", 8, 5)))), [follows(Some(("third", 5)))]);
    assert_eq!(bench.on(seen(4, Some(leader("other", 9, 3)))), [], "what is older says nothing");
    assert_eq!(bench.on(seen(6, None)), [follows(None)]);
    assert_eq!(bench.after(100), [Effect::Grant], "it waited a moment");
}

#[test]
fn a_key_of_ones_own_from_before_is_waited_out() {
    let mut bench = Bench::new();
    assert_eq!(bench.on(seen(4, Some(leader("me", 9, 3)))), [], "nobody else leads");
    assert_eq!(bench.candidate.leads(bench.now), None);
    assert_eq!(bench.on(seen(7, None)), []);
    assert_eq!(bench.after(100), [Effect::Grant]);
}

#[test]
fn the_lease_is_kept_at_a_third_and_counts_from_when_that_was_sent() {
    let mut bench = Bench::leading();
    assert_eq!(bench.after(999), []);
    assert_eq!(bench.after(1), [Effect::Keep(LeaseId(1))]);
    let sent = bench.now;
    assert_eq!(bench.after(500), [], "one at a time");
    assert_eq!(bench.kept(1, sent, Some(TTL)), [Effect::Extend(sent + TTL * 2 / 3)]);
    assert_eq!(bench.after(500), [Effect::Keep(LeaseId(1))]);
    assert_eq!(bench.kept(2, sent, Some(Duration::ZERO)), [], "another lease says nothing");
    assert_eq!(bench.kept(1, sent, None), []);
    assert_eq!(bench.after(100), [Effect::Keep(LeaseId(1))], "again, soon");
}

#[test]
fn what_ends_a_term() {
    fn ends(why: &str, end: impl FnOnce(&mut Bench) -> Vec<Effect>, then: Option<(&str, u64)>) {
        let mut bench = Bench::leading();
        assert_eq!(end(&mut bench), [follows(then), Effect::Release(LeaseId(1))], "{why}");
        assert_eq!(bench.candidate.leads(bench.now), None, "{why}");
    }
    let no_answer = |bench: &mut Bench| {
        bench.after(1_000);
        bench.after(1_000)
    };
    ends("two thirds of the lease without an answer", no_answer, None);
    ends("the lease is over", |bench| bench.kept(1, bench.now, Some(Duration::ZERO)), None);
    ends("the key is gone", |bench| bench.on(seen(6, None)), None);
    ends("the key is another's", |bench| bench.on(seen(7, Some(leader("other", 2, 7)))), Some(("other", 7)));
    ends("it resigns", |bench| bench.on(Event::Resign), None);
}

#[test]
fn what_does_not_end_a_term() {
    let mut bench = Bench::leading();
    assert_eq!(bench.on(seen(3, None)), [], "that was before");
    assert_eq!(bench.on(seen(5, Some(leader("me", 1, 5)))), []);
    assert_eq!(bench.on(seen(9, Some(leader("me", 1, 5)))), []);
    assert_eq!(bench.candidate.leads(bench.now), Some(Epoch(5)));
}

#[test]
fn one_that_was_paused_knows_before_anything_happens() {
    let mut bench = Bench::leading();
    bench.after(1_000);
    let sent = bench.now;
    bench.now = bench.now + Duration::from_secs(10);
    assert_eq!(bench.candidate.leads(bench.now), None, "nobody has told it");
    let woken = bench.kept(1, sent, Some(TTL));
    assert_eq!(woken, [follows(None), Effect::Release(LeaseId(1))], "an old answer does not bring the term back");
}

#[test]
fn a_claim_whose_answer_is_lost_is_looked_up() {
    let claimed = || {
        let mut bench = Bench::new();
        bench.on(seen(4, None));
        bench.after(100);
        bench.granted(1);
        assert_eq!(bench.on(Event::NotWon { lease: LeaseId(1) }), [Effect::Look]);
        bench
    };
    let mut ours = claimed();
    let won = ours.on(seen(6, Some(leader("me", 1, 6))));
    assert!(matches!(won[..], [Effect::Stand(CandidateRole::Leading { epoch: Epoch(6), .. })]), "{won:?}");
    let mut theirs = claimed();
    let lost = theirs.on(seen(6, Some(leader("other", 2, 6))));
    assert_eq!(lost, [follows(Some(("other", 6))), Effect::Release(LeaseId(1))]);
    let mut nobodys = claimed();
    assert_eq!(nobodys.on(seen(6, None)), []);
    assert_eq!(nobodys.after(100), [Effect::Claim(LeaseId(1))]);
    let mut late = claimed();
    assert_eq!(late.after(2_000), [Effect::Release(LeaseId(1))], "it would not last long enough");
}

#[test]
fn a_lease_that_nobody_needs_any_more_is_given_back() {
    let mut bench = Bench::new();
    bench.on(seen(4, None));
    assert_eq!(bench.after(100), [Effect::Grant]);
    assert_eq!(bench.on(seen(5, Some(leader("other", 2, 5)))), [follows(Some(("other", 5)))]);
    assert_eq!(bench.granted(1), [Effect::Release(LeaseId(1))]);
    assert_eq!(bench.on(Event::Released { lease: LeaseId(1) }), [Effect::Look]);
    assert_eq!(bench.granted(3), [Effect::Release(LeaseId(3))], "late");
}

#[test]
fn who_resigns_gives_back_and_stands_no_more() {
    let mut bench = Bench::leading();
    bench.on(Event::Resign);
    assert!(!bench.candidate.is_over());
    bench.on(Event::Released { lease: LeaseId(1) });
    assert!(bench.candidate.is_over());
    assert_eq!(bench.on(seen(9, None)), []);
    assert_eq!(bench.after(10_000), []);
    let mut idle = Bench::new();
    idle.on(Event::Resign);
    assert!(idle.candidate.is_over());
    let mut waiting = Bench::new();
    waiting.on(seen(4, None));
    waiting.after(100);
    waiting.on(Event::Resign);
    assert_eq!(waiting.granted(1), [Effect::Release(LeaseId(1))]);
    waiting.on(Event::Released { lease: LeaseId(1) });
    assert!(waiting.candidate.is_over());
}

/// etcd as far as an election goes: leases that end no earlier than their time, one key, revisions.
#[derive(Default)]
struct Model {
    rev: u64,
    key: Option<LeaderRecord>,
    /// When each lease ends.
    leases: BTreeMap<LeaseId, Time>,
}

impl Model {
    fn expire(&mut self, now: Time) -> bool {
        self.leases.retain(|_, end| *end > now);
        self.sweep()
    }

    /// The key goes with its lease.
    fn sweep(&mut self) -> bool {
        let gone = self.key.take_if(|leader| !self.leases.contains_key(&leader.lease)).is_some();
        self.rev += u64::from(gone);
        gone
    }

    fn seen(&self) -> Event {
        seen(self.rev, self.key.clone())
    }

    /// Does what is asked at `now`, and gives the answer with whether the key has changed.
    fn serve(&mut self, who: usize, request: &Request, now: Time) -> (Option<Event>, bool) {
        match request.effect {
            Effect::Look => (Some(self.seen()), false),
            Effect::Grant => {
                let id = LeaseId(self.leases.len() as i64 + i64::try_from(now.0).expect("small") * 10);
                self.leases.insert(id, now + TTL);
                (Some(Event::Granted { sent: request.sent, lease: Lease { id, ttl: TTL } }), false)
            }
            Effect::Claim(lease) => {
                if self.key.is_some() || !self.leases.contains_key(&lease) {
                    return (Some(Event::NotWon { lease }), false);
                }
                self.rev += 1;
                self.key = Some(leader(&format!("c{who}"), lease.0, self.rev));
                (Some(Event::Won { lease, epoch: Epoch(self.rev) }), true)
            }
            Effect::Keep(lease) => {
                let end = self.leases.get_mut(&lease);
                let ttl = if end.is_some() { TTL } else { Duration::ZERO };
                if let Some(end) = end {
                    *end = now + TTL;
                }
                (Some(Event::RenewalResult(RenewalResult { lease, sent: request.sent, ttl: Some(ttl) })), false)
            }
            Effect::Release(lease) => {
                self.leases.remove(&lease);
                (Some(Event::Released { lease }), self.sweep())
            }
            Effect::Stand(_) | Effect::Extend(_) => (None, false),
        }
    }
}

struct Request {
    effect: Effect,
    /// By the candidate's clock.
    sent: Time,
}

/// Message in transit.
enum Message {
    To(usize, Event),
    From(usize, Request),
    /// An answer that will never come: the driver's deadline.
    Failed(usize, Effect, Time),
}

/// Faults of a message: its delays there and back in milliseconds, and losses.
#[derive(Debug, Clone)]
struct Fate {
    there: u64,
    back: u64,
    lost: Option<bool>,
}

fn fate(trouble: bool) -> impl Strategy<Value = Fate> {
    let delay = move || {
        let late = 0..if trouble { 2_500_u64 } else { 20 };
        prop_oneof![4 => 0..20_u64, 1 => late]
    };
    let lost = prop_oneof![6 => Just(None), 1 => any::<bool>().prop_map(move |there| trouble.then_some(there))];
    (delay(), delay(), lost).prop_map(|(there, back, lost)| Fate { there, back, lost })
}

struct World {
    etcd: Model,
    candidates: Vec<Candidate>,
    /// Of 1,000: how fast each candidate's clock runs.
    speeds: Vec<u64>,
    /// Until when each candidate stands still.
    paused: Vec<Time>,
    messages: BTreeMap<(Time, u64), Message>,
    sent: u64,
    now: Time,
}

const STEP: Duration = Duration::from_millis(10);

impl World {
    fn new(speeds: &[u64]) -> Self {
        let candidate = |i: usize| Candidate::new(name(&format!("c{i}")), Policy::default(), i as u64);
        Self {
            etcd: Model { rev: 1, ..Model::default() },
            candidates: (0..speeds.len()).map(candidate).collect(),
            speeds: speeds.to_vec(),
            paused: vec![Time::ZERO; speeds.len()],
            messages: BTreeMap::new(),
            sent: 0,
            now: Time::ZERO + Duration::from_secs(1),
        }
    }

    fn clock(&self, who: usize) -> Time {
        Time(self.now.0 / 1_000 * self.speeds[who])
    }

    fn send(&mut self, at: Time, message: Message) {
        self.sent += 1;
        self.messages.insert((at, self.sent), message);
    }

    fn leaders(&self) -> Vec<usize> {
        (0..self.candidates.len()).filter(|who| self.candidates[*who].leads(self.clock(*who)).is_some()).collect()
    }

    fn feed(&mut self, who: usize, event: Event, fates: &mut dyn FnMut() -> Fate) {
        let clock = self.clock(who);
        for effect in self.candidates[who].on(event, clock) {
            let fate = fates();
            let request = Request { effect: effect.clone(), sent: clock };
            // The driver gives up after a second.
            let deadline = self.now + Duration::from_secs(1);
            match (fate.lost, matches!(effect, Effect::Stand(_) | Effect::Extend(_))) {
                (_, true) => {}
                (Some(true), _) => self.send(deadline, Message::Failed(who, effect, clock)),
                _ => self.send(self.now + Duration::from_millis(fate.there), Message::From(who, request)),
            }
        }
    }

    /// One step of time: what has arrived by then is taken, everybody who is awake looks at the clock.
    fn step(&mut self, fates: &mut dyn FnMut() -> Fate) {
        self.now = self.now + STEP;
        if self.etcd.expire(self.now) {
            self.tell(fates);
        }
        while let Some(entry) = self.messages.first_entry() {
            let (at, number) = *entry.key();
            if at > self.now {
                break;
            }
            match entry.remove() {
                Message::From(who, request) => {
                    let (answer, changed) = self.etcd.serve(who, &request, self.now);
                    let fate = fates();
                    if fate.lost == Some(false) {
                        let deadline = self.now + Duration::from_secs(1);
                        self.send(deadline, Message::Failed(who, request.effect, request.sent));
                    } else if let Some(answer) = answer {
                        self.send(self.now + Duration::from_millis(fate.back), Message::To(who, answer));
                    }
                    if changed {
                        self.tell(fates);
                    }
                }
                // It stands still: later.
                Message::To(who, event) if self.paused[who] > self.now => {
                    self.messages.insert((self.paused[who], number), Message::To(who, event));
                }
                Message::To(who, event) => self.feed(who, event, fates),
                Message::Failed(who, effect, sent) => {
                    let event = match effect {
                        Effect::Grant => Event::NotGranted,
                        Effect::Claim(lease) => Event::NotWon { lease },
                        Effect::Keep(lease) => Event::RenewalResult(RenewalResult { lease, sent, ttl: None }),
                        Effect::Release(lease) => Event::Released { lease },
                        _ => Event::Tick,
                    };
                    self.send(self.now.max(self.paused[who]), Message::To(who, event));
                }
            }
        }
        for who in 0..self.candidates.len() {
            let due = self.candidates[who].wake_at().is_some_and(|at| at <= self.clock(who));
            if due && self.paused[who] <= self.now {
                self.feed(who, Event::Tick, fates);
            }
        }
    }

    /// The watch of everybody.
    fn tell(&mut self, fates: &mut dyn FnMut() -> Fate) {
        for who in 0..self.candidates.len() {
            let fate = fates();
            if fate.lost.is_none() {
                self.send(self.now + Duration::from_millis(fate.back), Message::To(who, self.etcd.seen()));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is late or lost, and whoever stands still for how long: never two lead at a time, and once it is quiet one
    /// does, and stays.
    #[test]
    fn never_two_and_in_the_end_one(
        speeds in prop::collection::vec(900..1_100_u64, 2..5),
        fates in prop::collection::vec(fate(true), 1..400),
        pauses in prop::collection::vec((0..3_000_usize, 0..5_usize, 0..8_000_u64), 0..12),
        calm in prop::collection::vec(fate(false), 1..50),
    ) {
        let mut world = World::new(&speeds);
        let (mut trouble, mut calm) = (fates.into_iter().cycle(), calm.into_iter().cycle());
        for who in 0..speeds.len() {
            world.feed(who, Event::Tick, &mut || trouble.next().expect("a cycle"));
        }
        for step in 0..3_000 {
            for (_, who, millis) in pauses.iter().filter(|(at, who, _)| *at == step && *who < speeds.len()) {
                world.paused[*who] = world.now + Duration::from_millis(*millis);
            }
            world.step(&mut || trouble.next().expect("a cycle"));
            let leaders = world.leaders();
            prop_assert!(leaders.len() <= 1, "{leaders:?} lead at {:?}", world.now);
            if let [leader] = leaders[..] {
                // The fence of whoever believes to lead is the key's.
                let epoch = world.candidates[leader].leads(world.clock(leader));
                prop_assert_eq!(world.etcd.key.as_ref().map(|key| key.epoch), epoch);
            }
        }
        for _ in 0..2_000 {
            world.step(&mut || calm.next().expect("a cycle"));
        }
        let leaders = world.leaders();
        prop_assert_eq!(leaders.len(), 1);
        for _ in 0..1_000 {
            world.step(&mut || calm.next().expect("a cycle"));
            prop_assert_eq!(&world.leaders(), &leaders);
        }
    }
}
