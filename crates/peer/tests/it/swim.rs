//! The brain in a network of this file's: virtual time, seeded loss, delay, crashes and partitions.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use berth_peer::{
    Hint, MemberTable, PROTOCOL, Tier,
    membership::{Effect, Event, Membership, Metrics, Policy},
};
use berth_spec::{Health, Member, RevisionId, Roles, WorkerId};
use proptest::prelude::*;
use rand::{SeedableRng as _, rngs::StdRng};

use crate::node::name;

const SECOND: Duration = Duration::from_secs(1);

fn at(index: usize) -> SocketAddr {
    let [.., high, low] = index.to_be_bytes();
    SocketAddr::from(([10, 0, high, low], 7946))
}

fn id(index: usize) -> WorkerId {
    name(&format!("n{index}"))
}

struct Host {
    brain: Membership,
    table: Arc<MemberTable>,
    hints: Vec<Hint>,
    up: bool,
    left: bool,
    start: u64,
    /// The earliest wake that is queued.
    woken: Option<Instant>,
}

enum Occurrence {
    Packet(Vec<u8>),
    Wake,
}

struct Net {
    begun: Instant,
    now: Instant,
    hosts: Vec<Host>,
    queue: BinaryHeap<Reverse<(Instant, u64, usize, usize)>>,
    pending: BTreeMap<u64, (usize, Occurrence)>,
    count: u64,
    rng: StdRng,
    loss: f64,
    /// Hosts of different groups do not hear each other.
    group: Vec<usize>,
    /// Every time a host was shown as failed: who thought so, of whom.
    failures: Vec<(usize, WorkerId, Duration)>,
    packets: u64,
    /// The name that a host has, by its number.
    names: Vec<usize>,
    /// The longest that a packet is on its way, in microseconds.
    slow: u64,
    /// Hosts that said that another has their name.
    namesakes: BTreeSet<usize>,
}

impl Net {
    fn new(seed: u64, loss: f64) -> Self {
        let begun = Instant::now();
        Self {
            begun,
            now: begun,
            hosts: Vec::new(),
            queue: BinaryHeap::new(),
            pending: BTreeMap::new(),
            count: 0,
            rng: StdRng::seed_from_u64(seed),
            loss,
            group: Vec::new(),
            failures: Vec::new(),
            packets: 0,
            names: (0..256).collect(),
            slow: 3_000,
            namesakes: BTreeSet::new(),
        }
    }

    /// `size` hosts that all join the first.
    fn of(size: usize, seed: u64, loss: f64) -> Self {
        let mut net = Self::new(seed, loss);
        for _ in 0..size {
            net.start();
        }
        net
    }

    fn brain(&mut self, index: usize, start: u64) -> Membership {
        let member = Member {
            name: id(self.names[index]),
            incarnation: start,
            gossip: at(index),
            peer: at(index),
            roles: Roles::ALL,
            labels: BTreeMap::from([("region".into(), "eu-west-1".into()), ("pool".into(), "production".into())]),
            version: "0.1.0".into(),
            protocol: PROTOCOL,
        };
        Membership::new(member, Policy::default(), self.rng.random(), Metrics::default(), self.now).expect("it fits")
    }

    fn start(&mut self) {
        let index = self.hosts.len();
        let start = if self.names[index] == index { 100 } else { 300 };
        let brain = self.brain(index, start);
        self.group.push(0);
        self.hosts.push(Host {
            brain,
            table: Arc::default(),
            hints: vec![],
            up: true,
            left: false,
            start,
            woken: None,
        });
        self.give(index, Event::Seeds(vec![at(0), at(1)]));
    }

    fn restart(&mut self, index: usize, start: u64) {
        let brain = self.brain(index, start);
        let host = &mut self.hosts[index];
        (host.brain, host.table, host.up, host.start, host.woken) = (brain, Arc::default(), true, start, None);
        self.give(index, Event::Seeds(vec![at(0), at(1)]));
    }

    fn push(&mut self, when: Instant, from: usize, to: usize, what: Occurrence) {
        self.count += 1;
        self.pending.insert(self.count, (from, what));
        self.queue.push(Reverse((when, self.count, from, to)));
    }

    fn give(&mut self, index: usize, event: Event<'_>) {
        let effects = self.hosts[index].brain.on(event, self.now);
        for effect in effects {
            match effect {
                Effect::Send { to, packet } => {
                    assert!(packet.len() <= 1_400 - 33, "a datagram of {} bytes", packet.len());
                    self.packets += 1;
                    let SocketAddr::V4(v4) = to else { panic!("{to}") };
                    let [_, _, high, low] = v4.ip().octets();
                    let to = usize::from(high) << 8 | usize::from(low);
                    let lost = self.rng.random_bool(self.loss) || self.group[index] != self.group[to];
                    if !lost {
                        let delay = Duration::from_micros(self.rng.random_range(self.slow / 30..self.slow));
                        self.push(self.now + delay, index, to, Occurrence::Packet(packet));
                    }
                }
                Effect::Table(table) => {
                    let own = id(self.names[index]);
                    for (other, _) in table.iter().filter(|(_, (_, health))| *health == Health::Failed) {
                        let before = self.hosts[index].table.get(other).map(|(_, health)| *health);
                        if before != Some(Health::Failed) {
                            assert_ne!(*other, own, "it declares itself failed");
                            self.failures.push((index, other.clone(), self.now - self.begun));
                        }
                    }
                    assert_eq!(table[&own].1, Health::Alive, "it knows that it lives");
                    self.hosts[index].table = table;
                }
                Effect::Hint(hint) => self.hosts[index].hints.push(hint),
                Effect::Rtts(_) => {}
                Effect::Namesake => drop(self.namesakes.insert(index)),
                Effect::Left => self.hosts[index].left = true,
            }
        }
        if let Some(wake) = self.hosts[index].brain.wake_at()
            && self.hosts[index].woken.is_none_or(|woken| wake < woken)
        {
            self.hosts[index].woken = Some(wake);
            self.push(wake, index, index, Occurrence::Wake);
        }
    }

    fn step(&mut self) {
        let Some(Reverse((when, number, _, to))) = self.queue.pop() else { return };
        let (from, what) = self.pending.remove(&number).expect("pending");
        self.now = self.now.max(when);
        if !self.hosts[to].up {
            return;
        }
        match what {
            Occurrence::Packet(_) if self.group[from] != self.group[to] => {}
            Occurrence::Packet(packet) => self.give(to, Event::Datagram(&packet)),
            Occurrence::Wake => {
                if self.hosts[to].woken == Some(when) {
                    self.hosts[to].woken = None;
                }
                match self.hosts[to].brain.wake_at() {
                    Some(due) if due <= self.now => self.give(to, Event::Wake),
                    Some(due) if self.hosts[to].woken.is_none() => {
                        self.hosts[to].woken = Some(due);
                        self.push(due, to, to, Occurrence::Wake);
                    }
                    _ => {}
                }
            }
        }
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.queue.peek().is_some_and(|Reverse((when, ..))| *when <= until) {
            self.step();
        }
        self.now = until;
    }

    /// Runs until it is so, and says how long that took.
    fn until(&mut self, within: Duration, so: impl Fn(&Self) -> bool) -> Duration {
        let begun = self.now;
        while !so(self) {
            assert!(self.now - begun <= within, "not so after {within:?}: {}", self.shown());
            self.run(Duration::from_millis(20));
        }
        self.now - begun
    }

    fn health(&self, of: usize, by: usize) -> Option<Health> {
        self.hosts[by].table.get(&id(of)).map(|(_, health)| *health)
    }

    /// All that are up think so of this one.
    fn all_think(&self, of: usize, health: Health) -> bool {
        let name = id(of);
        let mut others = self.hosts.iter().enumerate().filter(|(by, host)| *by != of && host.up);
        others.all(|(_, host)| host.table.get(&name).is_some_and(|(_, seen)| *seen == health))
    }

    fn all_alive(&self) -> bool {
        (0..self.hosts.len()).filter(|of| self.hosts[*of].up).all(|of| self.all_think(of, Health::Alive))
    }

    fn shown(&self) -> String {
        let count = |host: &Host| {
            let of = |health| host.table.values().filter(|(_, now)| *now == health).count();
            [Health::Alive, Health::Suspect, Health::Failed, Health::Left].map(of)
        };
        self.hosts.iter().map(|host| format!("{:?} ", count(host))).collect()
    }
}

#[test]
fn fifty_join_through_one_with_a_twentieth_of_all_packets_lost() {
    for (seed, size) in [(0, 50), (1, 50), (2, 50), (3, 100)] {
        let mut net = Net::of(size, seed, 0.05);
        let took = net.until(10 * SECOND, Net::all_alive);
        println!("{size} nodes: all know all after {took:?}, {} packets", net.packets);
        let (member, _) = &net.hosts[7].table[&id(49)];
        assert_eq!((member.region(), member.peer), (Some("eu-west-1"), at(49)));
        assert_eq!(net.failures, []);
    }
}

#[test]
fn a_node_that_dies_is_failed_everywhere_within_three_seconds() {
    for (size, loss, bound) in [(2, 0.0, 2_000), (5, 0.0, 2_500), (5, 0.05, 3_000), (50, 0.0, 2_500), (50, 0.05, 3_000)]
    {
        let mut net = Net::of(size, 11, loss);
        net.until(10 * SECOND, Net::all_alive);
        net.run(5 * SECOND);
        net.hosts[1].up = false;
        let took = net.until(Duration::from_millis(bound), |net| net.all_think(1, Health::Failed));
        println!("{size} nodes, loss {loss}: failed everywhere after {took:?}");
        assert!(net.failures.iter().all(|(_, of, _)| *of == id(1)), "{:?}", net.failures);
    }
}

#[test]
fn loss_alone_buries_nobody() {
    for (size, loss, time) in [(10, 0.05, 300), (50, 0.05, 30), (5, 0.2, 60)] {
        let mut net = Net::of(size, 5, loss);
        net.until(20 * SECOND, Net::all_alive);
        let before = net.packets;
        net.run(time * SECOND);
        let rate = (net.packets - before) as f64 / f64::from(time) / size as f64;
        println!("{size} nodes, loss {loss}: {rate:.1} packets/s each");
        assert_eq!(net.failures, [], "loss {loss}");
    }
}

#[test]
fn a_partition_heals_and_both_sides_know_all_again() {
    for (size, small, seconds) in [(5, 2, 30), (5, 1, 30), (2, 1, 30), (20, 7, 2), (20, 7, 3), (20, 1, 40), (20, 9, 40)]
    {
        for seed in 0..2 {
            let mut net = Net::of(size, seed, 0.02);
            net.until(20 * SECOND, Net::all_alive);
            (0..small).for_each(|index| net.group[index] = 1);
            net.run(seconds * SECOND);
            if seconds > 3 {
                assert!(net.all_think(0, Health::Failed) || small > 1, "{}", net.shown());
                for (of, by) in [(0, size - 1), (size - 1, 0)] {
                    assert_eq!(net.health(of, by), Some(Health::Failed));
                }
            }
            let across = |failures: &[(usize, WorkerId, Duration)]| {
                failures
                    .iter()
                    .all(|(by, of, _)| (*by < small) != (of.as_str()[1..].parse::<usize>().expect("n") < small))
            };
            assert!(across(&net.failures), "somebody failed on its own side: {:?}", net.failures);
            net.group.fill(0);
            let healed = net.now - net.begun;
            let took = net.until(15 * SECOND, Net::all_alive);
            println!("{size}/{small} apart for {seconds} s: whole again after {took:?}");
            net.run(5 * SECOND);
            assert!(net.all_alive(), "{}", net.shown());
            let late: Vec<_> =
                net.failures.iter().filter(|(.., when)| *when > healed + Duration::from_millis(300)).collect();
            assert!(across(&net.failures) && late.is_empty(), "healing buried somebody: {late:?}");
            if seconds > 3 {
                assert_eq!(net.hosts[0].table.tier(&id(size - 1)), Some(Tier::Recovering));
                net.run(15 * SECOND);
                assert_eq!(net.hosts[0].table.tier(&id(size - 1)), Some(Tier::Healthy));
            }
        }
    }
}

#[test]
fn a_node_that_leaves_has_left_and_did_not_fail() {
    for (size, loss) in [(2, 0.0), (5, 0.05), (50, 0.05)] {
        let mut net = Net::of(size, 3, loss);
        net.until(10 * SECOND, Net::all_alive);
        net.give(1, Event::Leave);
        net.until(SECOND, |net| net.hosts[1].left);
        net.hosts[1].up = false;
        let took = net.until(2 * SECOND, |net| net.all_think(1, Health::Left));
        println!("{size} nodes, loss {loss}: left everywhere {took:?} after it was gone");
        net.run(10 * SECOND);
        assert!(net.all_think(1, Health::Left), "{}", net.shown());
        assert_eq!(net.failures, []);
        // It comes again.
        net.restart(1, 200);
        net.until(5 * SECOND, Net::all_alive);
    }
}

#[test]
fn a_node_that_is_started_anew_is_known_by_its_new_incarnation() {
    for (down_for, start) in [(0, 200), (10, 200), (0, 50), (10, 50)] {
        let mut net = Net::of(5, 9, 0.02);
        net.until(10 * SECOND, Net::all_alive);
        net.hosts[3].up = false;
        net.run(down_for * SECOND);
        net.restart(3, start);
        let took = net.until(10 * SECOND, |net| {
            net.all_alive() && (0..5).all(|by| net.hosts[by].table[&id(3)].0.incarnation != 100)
        });
        println!("down for {down_for} s, back as start {start}: known after {took:?}");
        // A clock that went back is outbid: the new start counts as later.
        assert!(net.hosts[0].table[&id(3)].0.incarnation > 100);
    }
}

#[test]
fn a_pause_of_one_node_is_not_held_against_the_others() {
    let mut net = Net::of(8, 21, 0.0);
    net.until(10 * SECOND, Net::all_alive);
    // Half a second without processor time: it is suspected, and refutes.
    for _ in 0..10 {
        let others: Vec<_> = net.queue.drain().collect();
        let pause = net.now + Duration::from_millis(500);
        for Reverse((when, number, from, to)) in others {
            net.queue.push(Reverse((if to == 4 { when.max(pause) } else { when }, number, from, to)));
        }
        if let Some(woken) = &mut net.hosts[4].woken {
            *woken = (*woken).max(pause);
        }
        net.run(3 * SECOND);
    }
    assert_eq!(net.failures, []);
    // A long pause: the others bury it, it buries nobody, and it comes back.
    net.group[4] = 1;
    net.hosts[4].up = false;
    net.run(30 * SECOND);
    assert!(net.all_think(4, Health::Failed));
    (net.hosts[4].up, net.group[4]) = (true, 0);
    net.hosts[4].woken = None;
    net.give(4, Event::Wake);
    net.until(5 * SECOND, Net::all_alive);
    assert!(net.failures.iter().all(|(_, of, _)| *of == id(4)), "{:?}", net.failures);
}

#[test]
fn two_nodes_with_one_name_are_told_and_do_not_flood_the_others() {
    // However fast packets go: machines of one rack answer each other within 0.1 ms.
    for slow in [60, 3_000] {
        let mut net = Net::new(4, 0.01);
        (net.names[4], net.slow) = (3, slow);
        for _ in 0..5 {
            net.start();
        }
        net.run(20 * SECOND);
        assert_eq!(net.namesakes, BTreeSet::from([3, 4]), "both say so");
        let before = net.packets;
        net.run(20 * SECOND);
        let rate = (net.packets - before) / 20 / 5;
        println!("two of five with one name, packets of up to {slow} us: {rate} packets/s each");
        assert!(rate < 90, "{rate} packets/s each");
        for (of, by) in [(0, 1), (1, 2), (2, 0)] {
            assert_eq!(net.health(of, by), Some(Health::Alive));
        }
    }
}

/// The address of a second process with a name must not outlive it.
#[test]
fn who_stays_of_two_with_one_name_is_found_where_he_is() {
    for (seed, leaves, after) in [(0, false, 20), (1, true, 20), (2, false, 1), (3, true, 1), (4, false, 120)] {
        let mut net = Net::new(seed, 0.01);
        net.names[4] = 3;
        for _ in 0..5 {
            net.start();
        }
        net.run(after * SECOND);
        if leaves {
            net.give(4, Event::Leave);
            net.until(SECOND, |net| net.hosts[4].left);
        }
        net.hosts[4].up = false;
        let stays = |net: &Net, by: usize| {
            net.hosts[by]
                .table
                .get(&id(3))
                .is_some_and(|(member, health)| (member.gossip, member.peer, *health) == (at(3), at(3), Health::Alive))
        };
        let took = net.until(5 * SECOND, |net| (0..3).all(|by| stays(net, by)));
        println!("the second one gone after {after} s: the first one is known again after {took:?}");
        net.run(10 * SECOND);
        assert!((0..3).all(|by| stays(&net, by)), "{}", net.shown());
    }
}

/// A node that is told to stop announces it long before it goes, so that nobody counts on it for a hand-over.
#[test]
fn that_a_node_will_leave_is_known_before_it_goes() {
    for loss in [0.0, 0.05] {
        let mut net = Net::of(5, 11, loss);
        net.until(10 * SECOND, Net::all_alive);
        let stays = |net: &Net, by: usize, of: usize| net.hosts[by].table.staying().any(|member| member.name == id(of));
        assert!(stays(&net, 0, 1) && stays(&net, 1, 1));
        net.give(1, Event::Announce);
        net.until(SECOND, |net| (0..5).all(|by| !stays(net, by, 1)));
        net.run(10 * SECOND);
        assert!(net.all_alive() && (0..5).all(|by| stays(&net, by, 2)), "it goes on answering: {}", net.shown());
        assert_eq!(net.failures, []);
        // One who comes later is told, too.
        net.start();
        net.until(10 * SECOND, |net| net.all_alive() && !stays(net, 5, 1));
        // Started anew, it stays.
        net.hosts[1].up = false;
        net.restart(1, 200);
        net.until(10 * SECOND, |net| net.all_alive() && (0..6).all(|by| stays(net, by, 1)));
    }
}

#[test]
fn hints_reach_others_and_the_newest_counts() {
    let mut net = Net::of(10, 2, 0.05);
    net.until(10 * SECOND, Net::all_alive);
    let revision: RevisionId = "iris@3f2a9c41d07b".parse().expect("a revision");
    for ready in [true, false] {
        net.give(2, Event::Say(Hint { worker: id(2), revision: revision.clone(), ready }));
        net.run(SECOND);
    }
    let heard = |host: &Host| host.hints.last().is_some_and(|hint| !hint.ready && hint.worker == id(2));
    let some = net.hosts.iter().filter(|host| heard(host)).count();
    assert!(some >= 8, "{some} of 9 heard the last hint");
    assert!(net.hosts[2].hints.is_empty() && net.hosts.iter().all(|host| host.hints.len() <= 2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    /// Whatever the network does: nobody declares itself failed (checked at each step), and once it is whole and
    /// everybody is up, all know all.
    #[test]
    fn whatever_happens_all_know_all_in_the_end(
        seed: u64, size in 2_usize..9, loss in 0.0..0.2_f64,
        faults in prop::collection::vec((0_usize..9, 0_u8..3, 100_u64..6_000), 0..6),
    ) {
        let mut net = Net::of(size, seed, loss);
        for (index, fault, millis) in faults {
            let index = index % size;
            match fault {
                0 if net.hosts[index].up => net.hosts[index].up = false,
                0 => {
                    let start = net.hosts[index].start + 1;
                    net.restart(index, start);
                }
                1 => net.group[index] ^= 1,
                _ => net.loss = (net.loss + 0.1) % 0.5,
            }
            net.run(Duration::from_millis(millis));
        }
        net.loss = 0.02;
        net.group.fill(0);
        for index in 0..size {
            if !net.hosts[index].up {
                let start = net.hosts[index].start + 1;
                net.restart(index, start);
            }
        }
        net.until(20 * SECOND, Net::all_alive);
        net.run(3 * SECOND);
        net.until(5 * SECOND, Net::all_alive);
    }
}
