//! Names with a namespace in the store, and what a Berth without namespaces left there.

use std::sync::Arc;

use berth_control::{
    handle::{DeleteRequest, Ownership},
    store::{Op, Txn},
};
use berth_spec::{DeploymentName, Generation, Origin, status::Phase};
use bytes::Bytes;

use crate::{
    conformance::each,
    fixture::{Running, apply, name, parsed, worker},
};

/// The bytes that 07a8eff wrote for two deployments, and the record of the one that was placed.
const LEFT: [(&str, &str); 3] = [
    (
        "/deployments/iris",
        r#"{"v":1,"manifest":{"apiVersion":"berth.dev/v1","kind":"ModelDeployment","metadata":{"name":"iris"},"spec":{"model":{"format":"onnx","uri":"s3://models/iris.onnx"},"replicas":1}},"generation":3,"created":1700000000000000000}"#,
    ),
    (
        "/deployments/a.b_c-1",
        r#"{"v":1,"manifest":{"apiVersion":"berth.dev/v1","kind":"ModelDeployment","metadata":{"name":"a.b_c-1"},"spec":{"model":{"format":"onnx","uri":"s3://models/a.onnx"},"replicas":{"min":0}}},"generation":1,"created":1700000000000000000}"#,
    ),
    ("/meta/plan", r#"{"v":1,"generation":7}"#),
];

#[tokio::test]
async fn what_was_stored_before_there_were_namespaces_is_in_the_default_one() {
    each(|store, _| async move {
        let ops = LEFT
            .iter()
            .map(|(key, value)| Op::Put { key: (*key).to_owned(), value: Bytes::from_static(value.as_bytes()) });
        store.commit(Txn { compare: vec![], ops: ops.collect() }).await.expect("it commits");
        let mut running = Running::start(Arc::clone(&store));
        running.obedient_worker(worker("w-1", 1)).await;
        let iris = running.until(&name("iris"), Phase::Available).await;
        assert_eq!(iris.deployment.name.key(), berth_spec::NameKey::in_default("iris"));
        assert_eq!(iris.deployment.generation, Generation(3));
        running.handle.get(&name("a.b_c-1")).await.expect("it is there");

        let mut changed = apply("iris", "  replicas: 1\n  priority: 7\n");
        changed.manifest.name = name("iris");
        let applied = running.handle.apply(changed).await.expect("applied");
        assert_eq!(applied.generation, Generation(4), "the same deployment under the same key");
        let request = DeleteRequest { origin: Origin::API, expect: None, ownership: Ownership::Respect };
        running.handle.delete(&name("a.b_c-1"), request).await.expect("deleted");
        assert_eq!(store.get("/deployments/a.b_c-1").await.expect("it reads"), None);
        running.stop().await;
    })
    .await;
}

#[tokio::test]
async fn the_same_name_in_two_namespaces_is_two_deployments_also_after_a_restart() {
    let wild = "a/ b@%/\u{fc}".to_owned() + &"x".repeat(240);
    each(|store, _| {
        let wild = wild.clone();
        async move {
            let mut running = Running::start(Arc::clone(&store));
            running.obedient_worker(worker("w-1", 1)).await;
            let all = [("default", "Iris"), ("team", "Iris"), ("team", &wild), ("default", &wild)];
            let names = all.map(|(namespace, name)| {
                DeploymentName::within(&namespace.parse().expect("a namespace"), name).expect("a name")
            });
            for ((namespace, name), deployment) in all.iter().zip(&names) {
                let manifest = parsed(&format!(
                    "apiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata: {{name: {name:?}, namespace: {namespace}}}\n\
                     spec:\n  model: {{format: onnx, uri: \"s3://models/{namespace}.onnx\"}}\n  replicas: 1\n"
                ));
                assert_eq!(manifest.name, *deployment);
                let request = berth_control::handle::ApplyRequest::new(manifest, Origin::API);
                running.handle.apply(request).await.expect("applied");
            }
            for name in &names {
                running.until(name, Phase::Available).await;
            }
            let request = DeleteRequest { origin: Origin::API, expect: None, ownership: Ownership::Respect };
            running.handle.delete(&names[0], request).await.expect("deleted");
            running.stop().await;

            let mut running = Running::start(Arc::clone(&store));
            running.obedient_worker(worker("w-1", 2)).await;
            for name in &names[1..] {
                let back = running.until(name, Phase::Available).await;
                assert!(back.deployment.spec.model.uri.contains(name.namespace()), "{name}");
            }
            assert!(running.handle.get(&names[0]).await.is_err());
            running.stop().await;
        }
    })
    .await;
}
