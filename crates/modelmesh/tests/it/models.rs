//! Models: registered, loaded, removed.

use berth_wire::mmesh::{ModelInfo, RegisterModelRequest, UnregisterModelRequest, model_status_info::ModelStatus};
use tonic::{Code, Request};

use crate::test_cluster::{TestCluster, attributes, registering, setting};

fn unregistering(id: &str) -> UnregisterModelRequest {
    UnregisterModelRequest { model_id: id.to_owned() }
}

/// A model whose runtime died stayed where it was, and its callers were told that it had failed, though another runtime ran.
#[tokio::test]
async fn a_load_goes_elsewhere_where_a_runtime_cannot_be_reached() {
    let mut cluster = TestCluster::new(2).await;
    cluster.loaded("a", "AWAY").await;
    let copies = cluster.status("a").await.model_copy_infos;
    assert_eq!(copies.iter().filter(|copy| copy.copy_status() == ModelStatus::Loaded).count(), 1, "{copies:?}");
}

#[tokio::test]
async fn a_model_is_registered_loaded_told_and_removed() {
    let mut cluster = TestCluster::new(1).await;
    assert_eq!(cluster.status("myModel").await.status(), ModelStatus::NotFound);
    assert_eq!(cluster.register("myModel", "p").await.expect("registered").status(), ModelStatus::NotLoaded);
    assert_eq!(cluster.register("myModel", "p").await.expect("the same again").status(), ModelStatus::NotLoaded);
    let told = cluster.ensure("myModel", true).await.expect("loaded");
    let [copy] = told.model_copy_infos.as_slice() else { panic!("{told:?}") };
    assert_eq!((told.status(), copy.copy_status()), (ModelStatus::Loaded, ModelStatus::Loaded));
    assert_eq!((copy.location.as_str(), copy.time), ("w-0", 5));
    assert_eq!(cluster.register("myModel", "p").await.expect("the same again").status(), ModelStatus::Loaded);

    let other = cluster.register("myModel", "q").await.expect_err("other attributes");
    assert_eq!(other.code(), Code::AlreadyExists, "{other}");
    cluster.client.unregister_model(unregistering("myModel")).await.expect("removed");
    cluster.client.unregister_model(unregistering("myModel")).await.expect("it is gone, which is no error");
    assert_eq!(cluster.status("myModel").await.status(), ModelStatus::NotFound);
    cluster.loaded("myModel", "q").await;
}

/// A model was removed in the moment in which a virtual model began to lead to it.
#[tokio::test]
async fn a_model_is_removed_or_led_to_and_never_both() {
    let mut cluster = TestCluster::new(1).await;
    for round in 0..8 {
        let id = format!("m{round}");
        cluster.register(&id, "p").await.expect("registered");
        let (mut one, mut other) = (cluster.client.clone(), cluster.client.clone());
        let set = setting(&format!("v{round}"), &id);
        match tokio::join!(one.unregister_model(unregistering(&id)), other.set_v_model(set)) {
            (Ok(_), Err(refused)) => assert_eq!(refused.code(), Code::NotFound, "{refused}"),
            (Err(refused), Ok(_)) => assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}"),
            both => panic!("{both:?}"),
        }
    }
}

#[tokio::test]
async fn a_load_that_fails_is_told_with_its_reason() {
    let mut cluster = TestCluster::new(1).await;
    let request = RegisterModelRequest { load_now: true, sync: true, ..registering("bad", "FAIL_no such bucket") };
    let told = cluster.client.register_model(request).await.expect("registered").into_inner();
    assert_eq!(
        (told.status(), told.errors.as_slice()),
        (ModelStatus::LoadingFailed, &["no such bucket".to_owned()][..])
    );
    assert_eq!(cluster.status("bad").await.status(), ModelStatus::LoadingFailed);
    let told = cluster.ensure("bad", true).await.expect("told");
    assert_eq!(told.status(), ModelStatus::LoadingFailed, "{told:?}");
}

#[tokio::test]
async fn a_model_that_nobody_can_hold_is_told_so() {
    let mut cluster = TestCluster::new(0).await;
    cluster.register("m", "p").await.expect("registered");
    let told = cluster.ensure("m", true).await.expect("told");
    assert_eq!(told.status(), ModelStatus::LoadingFailed);
    assert!(told.errors[0].contains("worker"), "{told:?}");
}

#[tokio::test]
async fn calls_return_before_a_load_ends_unless_they_are_synchronous() {
    let mut cluster = TestCluster::new(1).await;
    cluster.register("m", "SLOW").await.expect("registered");
    let first = cluster.ensure("m", false).await.expect("begun").status();
    assert_eq!(first, ModelStatus::Loading);
    let mut client = cluster.client.clone();
    let waiting = tokio::task::spawn(async move {
        let request =
            berth_wire::mmesh::EnsureLoadedRequest { model_id: "m".to_owned(), last_used_time: 0, sync: true };
        client.ensure_loaded(request).await.map(|told| told.into_inner().status())
    });
    while cluster.status("m").await.status() != ModelStatus::Loading {
        tokio::task::yield_now().await;
    }
    assert!(!waiting.is_finished());
    cluster.open();
    assert_eq!(waiting.await.expect("it ran").expect("told"), ModelStatus::Loaded);
}

#[tokio::test]
async fn wrong_requests_have_precise_codes() {
    let mut cluster = TestCluster::new(1).await;
    let wrong = |id: &str, info: Option<ModelInfo>| RegisterModelRequest {
        model_id: id.to_owned(),
        model_info: info,
        ..RegisterModelRequest::default()
    };
    for request in [
        wrong("", Some(attributes("p"))),
        wrong("m", None),
        wrong("m", Some(ModelInfo::default())),
        wrong(&"x".repeat(254), Some(attributes("p"))),
        wrong("m", Some(attributes(&"x".repeat(20_000)))),
    ] {
        let error = cluster.client.register_model(request.clone()).await.expect_err("wrong");
        assert_eq!(error.code(), Code::InvalidArgument, "{request:?}: {error}");
    }
    assert_eq!(cluster.ensure("none", false).await.expect_err("nothing").code(), Code::NotFound);
    let mut elsewhere = Request::new(registering("m", "p"));
    elsewhere.metadata_mut().insert("berth-namespace", "Not One".parse().expect("text"));
    assert_eq!(cluster.client.register_model(elsewhere).await.expect_err("wrong").code(), Code::InvalidArgument);
}

#[tokio::test]
async fn namespaces_have_models_of_their_own_and_ids_are_free() {
    let mut cluster = TestCluster::new(1).await;
    let id = "My Model/1 ü";
    for (namespace, path) in [("default", "p"), ("team", "q")] {
        let mut request = Request::new(registering(id, path));
        request.metadata_mut().insert("berth-namespace", namespace.parse().expect("text"));
        cluster.client.register_model(request).await.expect("registered");
    }
    let names: Vec<String> = cluster
        .handle
        .list(Default::default())
        .await
        .expect("listed")
        .items
        .iter()
        .map(|item| item.deployment.name.to_string())
        .collect();
    assert_eq!(names, ["default/My Model/1 ü", "team/My Model/1 ü"]);
}

#[tokio::test]
async fn many_callers_register_the_same_model_once() {
    let mut cluster = TestCluster::new(2).await;
    let calls = (0..8).map(|_| {
        let mut client = cluster.client.clone();
        let request = RegisterModelRequest { load_now: true, sync: true, ..registering("m", "p") };
        async move { client.register_model(request).await.map(|told| told.into_inner().status()) }
    });
    for told in futures::future::join_all(calls).await {
        assert_eq!(told.expect("registered"), ModelStatus::Loaded);
    }
    assert_eq!(cluster.status("m").await.model_copy_infos.len(), 1);
    // Of two with other attributes one is refused.
    let two = ["a", "b"].map(|path| {
        let mut client = cluster.client.clone();
        async move { client.register_model(registering("n", path)).await.map_err(|error| error.code()) }
    });
    let two = futures::future::join_all(two).await;
    let refused: Vec<_> = two.into_iter().filter_map(Result::err).collect();
    assert_eq!(refused, [Code::AlreadyExists]);
}
