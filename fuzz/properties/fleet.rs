//! Properties that hold for any bytes that a node sends on the streams between the nodes and the leader.

use berth_spec::{AssignmentChange, InventoryChange, RouteChange, WorkerId};
use berth_wire::fleet::{Assembly, InParts, MESSAGE, Reporter, demands_of, demands_to, outcomes_of, v1};
use prost::Message as _;

/// One byte says whose word it is, the rest is the word. What is understood can be said again, in parts that others take.
pub(crate) fn fleet(data: &[u8]) {
    let Some((kind, word)) = data.split_first() else { return };
    match kind % 4 {
        0 => worker(word),
        1 => order(word),
        2 => gateway(word),
        _ => routes(word),
    }
}

fn worker(data: &[u8]) {
    match v1::WorkerWord::decode(data).ok().and_then(|word| word.word) {
        Some(v1::worker_word::Word::Hello(hello)) => {
            let _ = hello.worker_info();
        }
        Some(v1::worker_word::Word::Inventory(part)) => {
            let reporter = || Reporter { worker: WorkerId::new("w-1").expect("a name"), incarnation: 7 };
            again::<InventoryChange>(part, reporter);
        }
        None => {}
    }
}

fn order(data: &[u8]) {
    if let Ok(v1::WorkerOrder { order: Some(v1::worker_order::Order::Assignment(part)) }) =
        v1::WorkerOrder::decode(data)
    {
        again::<AssignmentChange>(part, || ());
    }
}

fn gateway(data: &[u8]) {
    match v1::GatewayWord::decode(data).ok().and_then(|word| word.word) {
        Some(v1::gateway_word::Word::Demands(demands)) => {
            let demands = demands_of(demands);
            let back: Vec<_> = demands_to(&demands).flat_map(demands_of).collect();
            assert_eq!(back, demands);
        }
        Some(v1::gateway_word::Word::Outcomes(outcomes)) => drop(outcomes_of(outcomes)),
        _ => {}
    }
}

fn routes(data: &[u8]) {
    if let Ok(v1::RouteOrder { order: Some(v1::route_order::Order::Routes(part)) }) = v1::RouteOrder::decode(data) {
        again::<RouteChange>(part, || ());
    }
}

/// Takes one part, and says again what it understood.
fn again<C: InParts>(part: C::Part, context: impl Fn() -> C::Context) {
    let mut assembly = Assembly::<C>::new(context());
    let Ok(Some(change)) = assembly.push(part) else { return };
    let mut assembly = Assembly::<C>::new(context());
    let mut ended = false;
    for part in change.in_parts() {
        assert!(part.encoded_len() <= MESSAGE);
        ended = assembly.push(part).expect("parts come in order").is_some();
    }
    assert!(ended, "the last part says so");
    assert_eq!(assembly.left_out(), 0, "what was understood is understood again");
}
