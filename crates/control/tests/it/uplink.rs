//! Search for the leader, with a clock in the test's hand.

use std::time::Duration;

use berth_control::uplink::leader_discovery::{
    DIAL_WITHIN, DOUBT, Effect, Event, LONGEST_PAUSE, LeaderDiscovery, Target,
};
use berth_spec::{Epoch, Time, WorkerId};
use proptest::prelude::*;

fn node(name: &str) -> WorkerId {
    WorkerId::new(name).expect("a name")
}

/// A search among three controllers, and what it wanted, as text.
struct Bench {
    leader_discovery: LeaderDiscovery,
    now: Time,
    controllers: Vec<WorkerId>,
}

impl Bench {
    fn new() -> Self {
        let controllers = ["a", "b", "c"].map(node).to_vec();
        Self { leader_discovery: LeaderDiscovery::new(node("me"), 0, Time::ZERO), now: Time::ZERO, controllers }
    }

    fn on(&mut self, event: Event) -> String {
        let effects = self.leader_discovery.on(event, &self.controllers, self.now);
        let show = |effect: Effect| match effect {
            Effect::Dial(Target::Here) => "dial here".to_owned(),
            Effect::Dial(Target::Node(name)) => format!("dial {name}"),
            Effect::Attach => "attach".to_owned(),
            Effect::HangUp => "hang up".to_owned(),
        };
        effects.into_iter().map(show).collect::<Vec<_>>().join(", ")
    }

    /// Goes to when it wants to be woken, and wakes it.
    fn wake(&mut self) -> (Duration, String) {
        let at = self.leader_discovery.wake_at().expect("it waits for something");
        let waited = at.since(self.now);
        self.now = self.now.max(at);
        (waited, self.on(Event::Tick))
    }
}

fn leader(name: &str, epoch: u64) -> Option<(WorkerId, Epoch)> {
    Some((node(name), Epoch(epoch)))
}

#[test]
fn it_asks_one_after_the_other_and_follows_who_is_named() {
    let mut bench = Bench::new();
    assert_eq!(bench.wake(), (Duration::ZERO, "dial a".to_owned()));
    assert_eq!(bench.on(Event::Failed), "dial b");
    assert_eq!(bench.on(Event::Elsewhere(leader("c", 7))), "dial c");
    assert_eq!(bench.on(Event::Welcomed(Epoch(7))), "attach");
    assert_eq!((bench.leader_discovery.attached(), bench.leader_discovery.wake_at()), (Some(Epoch(7)), None));
    assert_eq!(bench.on(Event::Failed), "", "of a connection that was given up");
    assert_eq!(bench.on(Event::Lost(None)), "hang up");
    let (waited, effects) = bench.wake();
    assert!(waited <= Duration::from_millis(50) && effects == "dial c", "the last leader first: {effects}");
}

#[test]
fn pauses_grow_when_all_are_asked_in_vain_and_end_with_news() {
    let mut bench = Bench::new();
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let (waited, effects) = bench.wake();
        assert!(effects.starts_with("dial"), "{effects}");
        pauses.push(waited);
        assert!(bench.on(Event::Failed).starts_with("dial") && bench.on(Event::Failed).starts_with("dial"));
        assert_eq!(bench.on(Event::Failed), "", "all were asked");
    }
    assert!(pauses[1] <= Duration::from_millis(50) && pauses[7] >= LONGEST_PAUSE / 2, "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= LONGEST_PAUSE), "{pauses:?}");
    assert_eq!(bench.on(Event::Leadership(leader("b", 3))), "dial b", "its own seat knows");
    assert_eq!(
        bench.wake(),
        (DIAL_WITHIN, "hang up, dial c".to_owned()),
        "who hangs is left; each round begins elsewhere"
    );
}

/// A thousand nodes must not come back forty times a second to a leader that cannot keep them.
#[test]
fn who_is_dropped_at_once_comes_back_ever_later() {
    let mut bench = Bench::new();
    bench.on(Event::Leadership(leader("b", 9)));
    let mut lost_again = |after: Duration| {
        assert_eq!(bench.on(Event::Welcomed(Epoch(9))), "attach");
        bench.now = bench.now + after;
        assert_eq!(bench.on(Event::Lost(leader("b", 9))), "hang up");
        let (waited, effects) = bench.wake();
        assert_eq!(effects, "dial b");
        waited
    };
    let pauses: Vec<Duration> = (0..8).map(|_| lost_again(Duration::from_millis(10))).collect();
    assert!(pauses[0] <= Duration::from_millis(50) && pauses[7] >= LONGEST_PAUSE / 2, "{pauses:?}");
    assert!(lost_again(Duration::from_secs(60)) <= Duration::from_millis(50), "that one was good");
}

#[test]
fn a_leader_of_an_earlier_term_is_none() {
    let mut bench = Bench::new();
    bench.on(Event::Leadership(leader("b", 9)));
    assert_eq!(bench.on(Event::Welcomed(Epoch(9))), "attach");
    bench.on(Event::Lost(leader("a", 10)));
    assert_eq!(bench.wake().1, "dial a", "the one that was named");
    assert_eq!(bench.on(Event::Welcomed(Epoch(8))), "hang up, dial b", "though it still believes in itself");
    assert_eq!(bench.on(Event::Elsewhere(leader("c", 4))), "dial c", "in its turn, not because it was named");
    assert_eq!(bench.on(Event::Welcomed(Epoch(10))), "attach");
    assert_eq!(bench.on(Event::Leadership(leader("b", 9))), "", "old news");
    assert_eq!(bench.on(Event::Leadership(leader("b", 11))), "hang up, dial b", "a later leader");
}

/// One node with a controller's certificate, or a store that was restored, must not keep all nodes from the leader for ever.
#[test]
fn a_term_that_nobody_leads_in_any_more_is_forgotten_after_a_while() {
    let mut bench = Bench::new();
    bench.controllers = vec![node("b")];
    assert_eq!(bench.wake().1, "dial b");
    assert_eq!(bench.on(Event::Welcomed(Epoch(u64::MAX))), "attach");
    assert_eq!(bench.on(Event::Leadership(leader("me", 9))), "", "its stream is there");
    assert_eq!(bench.on(Event::Lost(leader("c", u64::MAX))), "hang up");
    // The one that it names is no member any more; b and this node lead in earlier terms, as they say.
    let (lost, mut here, mut refused) = (bench.now, 0, 0);
    let attached = loop {
        let effects = bench.wake().1;
        let mut dialled = effects.rsplit(", ").next().unwrap_or_default().to_owned();
        while let Some(whom) = dialled.strip_prefix("dial ") {
            here += usize::from(whom == "here");
            let event = if whom == "c" { Event::Failed } else { Event::Welcomed(Epoch(9)) };
            dialled = bench.on(event).replace("hang up, ", "").replace("hang up", "");
            refused += 1;
        }
        if dialled == "attach" {
            break bench.leader_discovery.attached();
        }
        assert!(bench.now.since(lost) < DOUBT * 2, "it never follows anybody again");
    };
    assert_eq!(attached, Some(Epoch(9)));
    assert!(bench.now.since(lost) >= DOUBT && refused > 10 && here > 3, "{refused} {here}");
    assert_eq!(bench.on(Event::Lost(None)), "hang up");
    let next = bench.wake().1;
    assert!(["dial b", "dial here"].contains(&&*next), "what was said of the later term is forgotten: {next}");
    assert_eq!(bench.on(Event::Welcomed(Epoch(10))), "attach", "and others are followed at once");
    bench.on(Event::Lost(None));
    bench.wake();
    assert!(bench.on(Event::Welcomed(Epoch(9))).starts_with("hang up"), "terms count again");
}

#[test]
fn where_this_node_leads_it_stays_here_until_it_does_not() {
    let mut bench = Bench::new();
    assert_eq!(bench.on(Event::Leadership(leader("me", 5))), "dial here");
    assert_eq!(bench.on(Event::Welcomed(Epoch(5))), "attach");
    assert_eq!(bench.on(Event::Leadership(None)), "hang up, dial a", "it does not lead any more, whoever does");
    assert_eq!(bench.on(Event::Elsewhere(leader("me", 5))), "dial b", "what others believe is old");
    assert_eq!(bench.on(Event::Leadership(leader("me", 6))), "", "it is dialling");
    assert_eq!(bench.on(Event::Failed), "dial here");
}

#[test]
fn two_who_name_each_other_are_not_asked_for_ever() {
    let mut bench = Bench::new();
    bench.controllers.truncate(2);
    assert_eq!(bench.wake().1, "dial a");
    assert_eq!(bench.on(Event::Elsewhere(leader("b", 3))), "dial b");
    assert_eq!(bench.on(Event::Elsewhere(leader("a", 3))), "", "the same term: a pause");
    assert_eq!(bench.wake().1, "dial b");
    assert_eq!(bench.on(Event::Elsewhere(leader("a", 4))), "dial a", "a later term is news");
}

fn event() -> impl Strategy<Value = Event> {
    let name = prop_oneof![Just("a"), Just("b"), Just("c"), Just("me")];
    let someone = proptest::option::of((name, 0..6_u64).prop_map(|(name, epoch)| (node(name), Epoch(epoch))));
    prop_oneof![
        someone.clone().prop_map(Event::Leadership),
        (0..6_u64).prop_map(|epoch| Event::Welcomed(Epoch(epoch))),
        someone.clone().prop_map(Event::Elsewhere),
        Just(Event::Failed),
        someone.prop_map(Event::Lost),
        Just(Event::Tick),
    ]
}

proptest! {
    /// Whatever happens: it is attached or will wake up, terms do not go back before long, and pauses are short.
    #[test]
    fn it_never_gives_up_and_never_goes_back(events in proptest::collection::vec((event(), 0..2_000_u64), 0..60)) {
        let (mut bench, mut latest, mut followed) = (Bench::new(), Epoch(0), Time::ZERO);
        for (event, millis) in events {
            bench.now = bench.now + Duration::from_millis(millis);
            bench.on(event);
            if let Some(epoch) = bench.leader_discovery.attached() {
                prop_assert!(epoch >= latest || bench.now.since(followed) >= DOUBT);
                (latest, followed) = (epoch, bench.now);
            } else {
                let at = bench.leader_discovery.wake_at().expect("it waits for something");
                prop_assert!(at <= bench.now + DIAL_WITHIN);
            }
        }
    }
}
