//! Nodes: who is there, how full they are, cordons and drains.

use std::sync::Arc;

use berth_control::api::Leader;
use berth_spec::{ByteSize, Epoch, Health, Member, Roles, WorkerId};
use serde_json::{Value, json};

use super::world::{PATIENCE, World, manifest};

fn member(name: &str, health: Health, roles: Roles) -> (Arc<Member>, Health) {
    let at = |port| format!("10.0.0.1:{port}").parse().expect("an address");
    let member = Member {
        name: id(name),
        incarnation: 3,
        gossip: at(7946),
        peer: at(7947),
        roles,
        labels: [("region".to_owned(), "eu-west-1".to_owned())].into(),
        version: "1.2.3".to_owned(),
        protocol: (1, 1),
    };
    (Arc::new(member), health)
}

fn id(name: &str) -> WorkerId {
    WorkerId::new(name).expect("a name")
}

const DECIDES: Roles = Roles { controller: true, worker: false, gateway: false };

/// Membership, workers and the leader appear in one list.
#[tokio::test]
async fn a_cluster_is_members_and_workers_together() {
    let members = vec![
        member("a", Health::Alive, Roles::ALL),
        member("b", Health::Suspect, DECIDES),
        member("c", Health::Failed, Roles::ALL),
        member("d", Health::Alive, Roles::ALL),
        member("gone", Health::Left, Roles::ALL),
    ];
    let mut world = World::among(members, Some(Leader { name: id("b"), epoch: Some(Epoch(42)) })).await;
    world.worker("a", ByteSize::gib(1)).await;
    world.post("/v1/apply", manifest("iris")).await.ok(200);
    world.until_phase("iris", "Available").await;
    let list = world.get("/v1/nodes").await.ok(200);
    assert_eq!((&list["kind"], &list["status"]), (&json!("NodeList"), &json!({ "leader": "b", "epoch": 42 })));
    let rows: Vec<_> = list["items"].as_array().expect("nodes").iter().map(row).collect();
    let wanted = [
        ("a", "Ready", "Alive", "controller,worker,gateway", false),
        ("b", "Ready", "Suspect", "controller", true),
        ("c", "Lost", "Failed", "controller,worker,gateway", false),
        ("d", "Joining", "Alive", "controller,worker,gateway", false),
    ];
    assert_eq!(rows, wanted.map(|(a, b, c, d, e)| (a.into(), b.into(), c.into(), d.into(), e)), "{list}");
    let a = world.get("/v1/nodes/a").await.ok(200);
    let capacity = &a["status"]["capacity"];
    assert_eq!(capacity["memory"]["total"], 1 << 30, "{a}");
    assert!(capacity["memory"]["used"].as_u64() > Some(0), "{a}");
    assert_eq!(capacity["models"], json!({ "held": 1, "ready": 1 }), "{a}");
    assert_eq!((&a["status"]["address"], &a["spec"]["cordon"]), (&json!("10.0.0.1:7947"), &json!("open")), "{a}");
    assert!(a["status"]["lastSeenAgeMs"].is_u64(), "{a}");
    let some = world.get("/v1/nodes?labelSelector=zone%3Da").await.ok(200);
    assert_eq!(some["items"].as_array().map(Vec::len), Some(1), "only a's worker has that label: {some}");
    let error = world.post("/v1/nodes/b/drain", "").await.refused(409, "Conflict");
    assert!(error["message"].as_str().is_some_and(|message| message.contains("holds no models")), "{error}");
}

fn row(node: &Value) -> (String, String, String, String, bool) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let status = &node["status"];
    let roles: Vec<_> = status["roles"].as_array().expect("roles").iter().map(text).collect();
    let leads = status["leader"].as_bool().unwrap_or_default();
    (text(&node["metadata"]["name"]), text(&status["state"]), text(&status["health"]), roles.join(","), leads)
}

/// Nobody is to count what a lost worker said last.
#[tokio::test]
async fn what_a_lost_worker_held_is_unknown() {
    let mut world = World::start().await;
    let worker = world.worker("a", ByteSize::gib(1)).await;
    world.post("/v1/apply", manifest("iris")).await.ok(200);
    world.until_phase("iris", "Available").await;
    let replica = &world.get("/v1/replicas").await.ok(200)["items"][0]["status"];
    assert_eq!((&replica["state"], replica["readySince"].is_string()), (&json!("Ready"), true), "{replica}");
    worker.abort();
    let deployment = world.until_phase("iris", "Progressing").await;
    let replicas = world.get("/v1/replicas").await.ok(200);
    for replica in [&replicas["items"][0]["status"], &deployment["status"]["replicaDetails"][0]] {
        let told = (&replica["state"], &replica["message"], &replica["readySince"]);
        assert_eq!(told, (&json!("Unknown"), &json!("its worker is lost and last said Ready"), &json!(null)));
    }
    let revision = &world.get("/v1/revisions").await.ok(200)["items"][0]["status"];
    assert_eq!((&revision["replicas"], &revision["ready"]), (&json!(1), &json!(0)), "{revision}");
    let top = &world.get("/v1/top").await.ok(200)["models"][0];
    assert_eq!((&top["ready"], &top["memory"]), (&json!(0), &json!(0)), "{top}");
}

/// One node alone shows itself as one of a cluster would.
#[tokio::test]
async fn cordon_drain_and_open_again() {
    let mut world = World::start().await;
    world.worker("node-1", ByteSize::gib(1)).await;
    world.post("/v1/apply", manifest("iris")).await.ok(200);
    world.until_phase("iris", "Available").await;
    for (path, cordon, states) in [
        ("/v1/nodes/node-1/cordon", "cordoned", ["Ready"].as_slice()),
        ("/v1/nodes/node-1/drain", "draining", &["Draining", "Drained"]),
        ("/v1/nodes/node-1/uncordon", "open", &["Ready"]),
        ("/v1/nodes/node-1/drain", "draining", &["Draining", "Drained"]),
    ] {
        let node = world.post(path, "").await.ok(200);
        assert_eq!(node["spec"]["cordon"], cordon, "{node}");
        assert!(states.contains(&node["status"]["state"].as_str().expect("a state")), "{node}");
        assert_eq!(node["status"]["drain"].is_object(), cordon == "draining", "{node}");
    }
    let worker = world.post("/v1/workers/node-1/drain", "").await.ok(200);
    assert_eq!(worker["spec"]["cordoned"], true, "the older address says the same: {worker}");
    let error = world.get("/v1/nodes/node-2").await.refused(404, "NotFound");
    assert!(error["message"].as_str().is_some_and(|message| message.contains("did you mean \"node-1\"")), "{error}");
    world.get("/v1/nodes/zebra").await.refused(404, "NotFound");
}

#[tokio::test]
async fn a_drained_node_without_replicas_is_drained_at_once() {
    let mut world = World::start().await;
    world.worker("node-1", ByteSize::gib(1)).await;
    let node = world.post("/v1/nodes/node-1/drain", "").await.ok(200);
    assert_eq!((&node["spec"]["cordon"], &node["status"]["drain"]["left"]), (&json!("draining"), &json!(0)), "{node}");
    let nodes = world.get("/v1/nodes").await.ok(200);
    let states: Vec<_> =
        nodes["items"].as_array().expect("nodes").iter().map(|node| &node["status"]["state"]).collect();
    assert_eq!(states, [&json!("Drained")]);
    world.post("/v1/nodes/node-1/rest", "").await.refused(404, "NotFound");
    world.get("/v1/nodes/node-9").await.refused(404, "NotFound");
}

/// A drain loads replicas elsewhere first; a replica without room stays, and the node shows the reason.
#[tokio::test]
async fn a_drain_moves_what_fits_and_says_what_does_not() {
    let mut world = World::start().await;
    world.worker("big", ByteSize::gib(2)).await;
    let large = manifest("large") + "  resources: {memory: 1GiB}\n";
    world.post("/v1/apply", format!("{}---\n{large}", manifest("iris"))).await.ok(200);
    for name in ["iris", "large"] {
        world.until_phase(name, "Available").await;
    }
    world.worker("small", ByteSize::mib(512)).await;
    world.post("/v1/nodes/big/drain", "").await.ok(200);
    let drained = until(&world, |node| node["status"]["drain"]["left"] == 1).await;
    assert_eq!(drained["status"]["state"], "Draining", "{drained}");
    let blocked = &drained["status"]["drain"]["blocked"][0];
    assert!(blocked["revision"].as_str().is_some_and(|revision| revision.starts_with("large@")), "{drained}");
    assert!(blocked["message"].as_str().is_some_and(|message| message.contains("1GiB")), "{drained}");
    let iris = world.get("/v1/deployments/iris/explain").await.ok(200);
    let verdicts: Vec<_> =
        iris["workers"].as_array().expect("workers").iter().map(|worker| &worker["verdict"]).collect();
    assert_eq!(verdicts, [&json!("Rejected"), &json!("Holds")], "{iris}");
    world.worker("other", ByteSize::gib(4)).await;
    until(&world, |node| node["status"]["state"] == "Drained").await;
}

/// The node `big`, once it is so.
async fn until(world: &World, so: impl Fn(&Value) -> bool) -> Value {
    let asked = async {
        loop {
            let node = world.get("/v1/nodes/big").await.ok(200);
            if so(&node) {
                return node;
            }
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("it comes about in time")
}

/// Of several workers that could hold a model, one is best, and it is said why.
#[tokio::test]
async fn explain_says_which_worker_would_be_chosen() {
    let mut world = World::start().await;
    for (name, memory) in [("a", 1), ("b", 3), ("c", 2)] {
        world.worker(name, ByteSize::gib(memory)).await;
    }
    let on_demand = manifest("iris") + "  replicas: {min: 0}\n";
    world.post("/v1/apply", on_demand).await.ok(200);
    let explained = world.get("/v1/deployments/iris/explain").await.ok(200);
    let workers = explained["workers"].as_array().expect("workers");
    let ranks: Vec<_> = workers.iter().map(|worker| worker["rank"].as_u64()).collect();
    assert_eq!(ranks, [Some(3), Some(1), Some(2)], "{explained}");
    let says = |at: usize, words: &str| {
        assert!(workers[at]["message"].as_str().is_some_and(|message| message.contains(words)), "{words}: {explained}");
    };
    says(1, "best: better than c, it has 3GiB free");
    says(0, "b is better: it has 3GiB free, the other 1GiB");
}

#[tokio::test]
async fn a_loss_of_many_is_told_with_the_list() {
    let world = World::start().await;
    let attach = async |called: &str| {
        let attached = world.handle.attach_worker(crate::fixture::worker(called, 1)).await;
        attached.expect("it is running")
    };
    let ends = [attach("w-1").await, attach("w-2").await];
    let before = world.get("/v1/nodes").await.ok(200);
    assert_eq!(before["status"]["massLoss"], Value::Null);
    drop(ends);
    let lost = async {
        loop {
            let status = world.get("/v1/nodes").await.ok(200)["status"]["massLoss"].clone();
            if status["lost"] == 2 {
                return status;
            }
        }
    };
    let loss = tokio::time::timeout(PATIENCE, lost).await.expect("it comes about");
    assert_eq!(loss["known"], 2);
    let at = |key: &str| loss[key].as_str().expect("a time").to_owned();
    assert!(at("since") < at("until"), "{loss}");
}
