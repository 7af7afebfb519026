//! The leader is dialled at the address in the store.

use std::sync::atomic::Ordering::SeqCst;

use berth_spec::Epoch;

use crate::node::{Ca, Node, PATIENCE, ask, name};

#[tokio::test]
async fn the_leader_is_dialled_where_the_store_has_it_while_it_is_there() {
    let ca = Ca::new();
    let identity = ca.identity("a");
    let (first, second) = (Node::start(identity.clone()), Node::start_apart(identity));
    // Two processes with one name: the members have the address of the second.
    let peers = ca.lines("b", "a", second.at);
    let served = |node: &Node| node.echo.served.load(SeqCst);
    let (leader, me) = (name("a"), name("b"));
    let reached = async || {
        let peer = peers.leader_peer(&leader).expect("the members know it");
        ask(&peer, "/echo").await.map(drop)
    };
    reached().await.expect("an answer");
    assert_eq!((served(&first), served(&second)), (0, 1), "nobody has said who leads");
    peers.led_by(&leader, Epoch(2), first.at);
    reached().await.expect("an answer");
    peers.led_by(&leader, Epoch(1), second.at);
    reached().await.expect("an answer");
    assert_eq!((served(&first), served(&second)), (2, 1), "what was said of an earlier term is of no use");
    ask(&peers.get(&leader).expect("it is known"), "/echo").await.expect("an answer");
    assert_eq!((served(&first), served(&second)), (2, 2), "everything else goes where the members say");

    peers.led_by(&leader, Epoch(u64::MAX), second.at);
    peers.led_by(&leader, Epoch(3), first.at);
    reached().await.expect("an answer");
    assert_eq!((served(&first), served(&second)), (2, 3), "nothing is later than what was made up");
    peers.term_met(Epoch(3));
    peers.led_by(&leader, Epoch(3), first.at);
    reached().await.expect("an answer");
    assert_eq!((served(&first), served(&second)), (3, 3), "until a term is met");

    peers.led_by(&me, Epoch(9), first.at);
    assert!(peers.leader_peer(&me).is_none(), "it is no peer of its own");

    // It is gone, and was perhaps started anew where the members know it.
    first.stop().await;
    let found = async {
        while reached().await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("it is tried there");
    assert_eq!(served(&second), 4);
}
