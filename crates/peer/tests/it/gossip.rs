//! Membership over real sockets.

use std::net::SocketAddr;

use berth_peer::{
    Hint, Identity, LinePolicy, Members, PROTOCOL, Peers,
    membership::{Gossip, GossipConfig, GossipError, Policy},
    pki::{GOSSIP_KEY, Keyring},
};
use berth_spec::{Health, Member, Roles};
use fs_err as fs;
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{net::UdpSocket, runtime::Handle, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::node::{Ca, Node, PATIENCE, ask, name, until};

const LOCAL: [u8; 4] = [127, 0, 0, 1];

struct Live {
    members: Members,
    at: SocketAddr,
    registry: Registry,
    crash: CancellationToken,
    run: JoinHandle<()>,
}

fn member(text: &str, peer: SocketAddr) -> Member {
    Member {
        name: name(text),
        incarnation: 1,
        gossip: SocketAddr::from((LOCAL, 0)),
        peer,
        roles: Roles::ALL,
        labels: [("region".to_owned(), "here".to_owned())].into(),
        version: "0".into(),
        protocol: PROTOCOL,
    }
}

impl Live {
    fn start(identity: Identity, peer: SocketAddr, join: &[SocketAddr]) -> Self {
        let me = member(identity.name().as_str(), peer);
        let join = join.iter().map(ToString::to_string).collect();
        let config = GossipConfig { bind: SocketAddr::from((LOCAL, 0)), join, policy: Policy::default() };
        let mut registry = Registry::default();
        let (members, gossip) = Gossip::bind(config, me, identity, &mut registry).expect("a socket");
        let (at, crash) = (gossip.local_addr().expect("an address"), CancellationToken::new());
        let run = gossip.run(crash.clone());
        let run = Handle::current().spawn(async move { run.await.expect("it runs") });
        Self { members, at, registry, crash, run }
    }

    async fn sees(&self, other: &str, health: Health) {
        let mut table = self.members.changed();
        let so = table.wait_for(|table| table.get(&name(other)).is_some_and(|(_, now)| *now == health));
        let seen = tokio::time::timeout(PATIENCE, so).await.map(|seen| seen.is_ok());
        assert_eq!(seen, Ok(true), "{} does not see {other} {health:?}", self.members.me());
    }

    /// Says something that nobody said before, and waits until the other one hears it.
    async fn is_heard_by(&self, other: &Self, number: u64) {
        let revision = format!("iris@{number:012x}").parse().expect("a revision");
        let hint = Hint { worker: self.members.me().clone(), revision, ready: true };
        let mut hints = other.members.hints();
        self.members.say(hint.clone());
        let heard = async { while hints.recv().await.expect("it gossips") != hint {} };
        let heard = tokio::time::timeout(PATIENCE, heard).await;
        assert!(heard.is_ok(), "{} does not hear {hint:?}", other.members.me());
    }

    fn metric(&self, line: &str) -> bool {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("text");
        text.contains(line)
    }

    async fn die(self) {
        self.crash.cancel();
        tokio::time::timeout(PATIENCE, self.run).await.expect("in time").expect("it ends");
    }
}

#[tokio::test]
async fn a_node_has_a_name_that_its_certificate_is_good_for() {
    let ca = Ca::new();
    for (certificate, me, may) in
        [("a", "a", true), ("node-a", "a", true), ("node-a", "b", false), ("a", "node-a", false)]
    {
        let identity = ca.identity(certificate);
        let config = GossipConfig { bind: SocketAddr::from((LOCAL, 0)), join: vec![], policy: Policy::default() };
        let me = member(me, SocketAddr::from((LOCAL, 1)));
        match Gossip::bind(config, me.clone(), identity.clone(), &mut Registry::default()) {
            Ok((members, _gossip)) => {
                assert!(may, "{certificate} for {}", me.name);
                // It is no peer of its own, whatever its certificate says.
                assert!(Peers::start(identity, members, LinePolicy::default()).all().is_empty());
            }
            Err(error) => {
                assert!(!may && error.to_string().contains("its certificate is for"), "{error}");
            }
        }
    }
}

/// Others would take the second one for the first, and not find that any more.
#[tokio::test]
async fn a_process_does_not_take_the_name_of_one_that_lives() {
    let ca = Ca::new();
    let port = SocketAddr::from((LOCAL, 7));
    let a = Live::start(ca.identity("a"), SocketAddr::from((LOCAL, 1)), &[]);
    let b = Live::start(ca.identity("b"), port, &[a.at]);
    a.sees("b", Health::Alive).await;
    let seed = a.at.to_string();
    let second = |name: &str| {
        // It knows where a is, and a knows b.
        let config =
            GossipConfig { bind: SocketAddr::from((LOCAL, 0)), join: vec![seed.clone()], policy: Policy::default() };
        let me = Member { incarnation: 2, ..member(name, SocketAddr::from((LOCAL, 9))) };
        let (_, gossip) = Gossip::bind(config, me, ca.identity(name), &mut Registry::default()).expect("a socket");
        async move { gossip.ask_for_name().await }
    };
    let taken = async {
        loop {
            // It is free where nobody comes to answer in time.
            if let Err(error) = second("b").await {
                break error;
            }
        }
    };
    let taken = tokio::time::timeout(PATIENCE, taken).await.expect("it is told");
    assert!(matches!(taken, GossipError::Taken { at, .. } if at == port), "{taken:?}");
    assert!(taken.to_string().contains("the name b ") && taken.to_string().contains("--name"), "{taken}");
    let (known, health) = &a.members.table()[&name("b")];
    assert_eq!((known.peer, *health), (port, Health::Alive), "nobody has heard of the second one");
    second("c").await.expect("nobody has that name");
    b.die().await;
    second("b").await.expect("who is dead does not keep a name");
    a.die().await;
    second("a").await.expect("nobody answers");
}

#[tokio::test]
async fn three_meet_one_dies_one_leaves() {
    let ca = Ca::new();
    let port = Node::start(ca.identity("b"));
    let a = Live::start(ca.identity("a"), SocketAddr::from((LOCAL, 1)), &[]);
    let b = Live::start(ca.identity("b"), port.at, &[a.at]);
    let c = Live::start(ca.identity("c"), SocketAddr::from((LOCAL, 3)), &[a.at]);
    for (by, of) in [(&a, "b"), (&a, "c"), (&b, "a"), (&b, "c"), (&c, "a"), (&c, "b")] {
        by.sees(of, Health::Alive).await;
    }
    let (known, _) = &c.members.table()[&name("b")];
    assert_eq!((known.region(), known.peer, known.gossip), (Some("here"), port.at, b.at));

    // Lines follow membership, and time to a member is known from probes.
    let patient = LinePolicy { dial: PATIENCE, ping_timeout: PATIENCE, ..LinePolicy::default() };
    let peers = Peers::start(ca.identity("a"), a.members.clone(), patient);
    until("b is known", || peers.get(&name("b")).is_some()).await;
    let peer = peers.get(&name("b")).expect("it was there");
    ask(&peer, "/echo").await.expect("an answer");
    until("a probe is answered", || a.members.rtt(&name("b")).is_some()).await;

    a.is_heard_by(&c, 0).await;

    b.die().await;
    a.sees("b", Health::Failed).await;
    c.sees("b", Health::Failed).await;
    tokio::time::timeout(PATIENCE, peer.lost()).await.expect("told");
    assert!(a.metric("berth_members{health=\"Failed\"} 1") && a.metric("berth_members{health=\"Alive\"} 2"));

    c.members.leave().await;
    a.sees("c", Health::Left).await;
    tokio::time::timeout(PATIENCE, c.run).await.expect("in time").expect("it ended by itself");
    a.members.leave().await;
}

#[tokio::test]
async fn what_does_not_open_is_dropped_and_counted() {
    let (ca, other) = (Ca::new(), Ca::new());
    let a = Live::start(ca.identity("a"), SocketAddr::from((LOCAL, 1)), &[]);
    let stranger = Live::start(other.identity("b"), SocketAddr::from((LOCAL, 2)), &[a.at]);
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    socket.send_to(b"hello", a.at).await.expect("sent");
    let counted = |a: &Live| a.metric("reason=\"key\"}") && a.metric("reason=\"form\"}");
    until("it is counted", || counted(&a)).await;
    assert_eq!((a.members.table().len(), stranger.members.table().len()), (1, 1));
}

#[tokio::test]
async fn one_gossip_key_replaces_another_without_a_gap() {
    let ca = Ca::new();
    let (at_a, at_b) = (ca.folder("a"), ca.folder("b"));
    let identities = [&at_a, &at_b].map(|folder| Identity::load(folder).expect("an identity"));
    let a = Live::start(identities[0].clone(), SocketAddr::from((LOCAL, 1)), &[]);
    let b = Live::start(identities[1].clone(), SocketAddr::from((LOCAL, 2)), &[a.at]);
    a.sees("b", Health::Alive).await;
    let old = fs::read_to_string(at_a.join(GOSSIP_KEY)).expect("a key");
    let new = Keyring::generate_text();
    let mut step = 0;
    // First all can open with the new one, then it seals, then the old one goes.
    for keys in [format!("{old}{new}"), format!("{new}{old}"), new.clone()] {
        for (folder, identity) in [(&at_a, &identities[0]), (&at_b, &identities[1])] {
            fs::write(folder.join(GOSSIP_KEY), &keys).expect("written");
            assert!(identity.reload().expect("good keys"));
            // Half way and at the end: each opens what the other seals.
            for (by, to) in [(&a, &b), (&b, &a)] {
                step += 1;
                by.is_heard_by(to, step).await;
            }
        }
    }
    a.sees("b", Health::Alive).await;
    b.members.leave().await;
    a.sees("b", Health::Left).await;
}

#[test]
fn a_node_is_named_as_its_certificate_says_and_its_labels_fit() {
    let ca = Ca::new();
    let bind = |member: Member| {
        let config = GossipConfig { bind: SocketAddr::from((LOCAL, 0)), join: vec![], policy: Policy::default() };
        Gossip::bind(config, member, ca.identity("a"), &mut Registry::default()).map(drop)
    };
    let at = SocketAddr::from((LOCAL, 1));
    bind(member("a", at)).expect("as it should be");
    let error = bind(member("b", at)).expect_err("another name").to_string();
    assert!(error.contains("called b") && error.contains("for a"), "{error}");
    let mut wordy = member("a", at);
    wordy.labels.extend((0..40).map(|index| (format!("label-{index}"), "a rather long value".to_owned())));
    let error = bind(wordy).expect_err("too many labels").to_string();
    assert!(error.contains("fewer labels"), "{error}");
}
