//! Virtual models: targets, owners, transitions, and what goes with them.

use std::sync::Arc;

use berth_control::handle::{ApplyAlias, ApplyMode, ApplyRequest, DeleteAlias, DeleteRequest, Ownership};
use berth_spec::{
    OpaqueModel, Origin,
    manifest::{self, ManifestAlias, ParseContext},
};
use berth_wire::mmesh::{
    DeleteVModelRequest, GetVModelStatusRequest, SetVModelRequest, UnregisterModelRequest,
    model_status_info::ModelStatus, v_model_status_info::VModelStatus,
};
use tonic::Code;

use crate::test_cluster::{TestCluster, attributes, name, setting};

#[tokio::test]
async fn a_virtual_model_is_an_alias() {
    let mut cluster = TestCluster::new(1).await;
    assert_eq!(cluster.vmodel("v").await.status(), VModelStatus::NotFound);
    assert_eq!(cluster.set(setting("v", "a")).await.expect_err("no target").code(), Code::NotFound);
    cluster.register("a", "p").await.expect("registered");
    let only = SetVModelRequest { update_only: true, ..setting("v", "a") };
    assert_eq!(cluster.set(only).await.expect_err("nothing to update").code(), Code::NotFound);
    let told = cluster.set(setting("v", "a")).await.expect("set");
    assert_eq!((told.status(), told.active_model_id.as_str()), (VModelStatus::Defined, "a"));
    assert_eq!(told.active_model_status.expect("told").status(), ModelStatus::NotLoaded);
    let alias = cluster.handle.alias(&name("v")).await.expect("it is there").alias;
    assert_eq!(alias.targets, [(name("a"), 1)]);
    let empty = SetVModelRequest { model_info: Some(Default::default()), ..setting("v", "a") };
    assert_eq!(cluster.set(empty).await.expect("the same as no attributes").active_model_id, "a");

    let unregister = UnregisterModelRequest { model_id: "a".to_owned() };
    let refused = cluster.client.unregister_model(unregister.clone()).await.expect_err("it has a referent");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let delete = DeleteVModelRequest { v_model_id: "v".to_owned(), owner: String::new() };
    cluster.client.delete_v_model(delete.clone()).await.expect("removed");
    cluster.client.delete_v_model(delete).await.expect("it is gone, which is no error");
    cluster.client.unregister_model(unregister).await.expect("removed");
}

#[tokio::test]
async fn a_change_loads_the_target_before_it_switches() {
    let mut cluster = TestCluster::new(1).await;
    cluster.loaded("a", "p").await;
    cluster.set(setting("v", "a")).await.expect("set");
    let to_b = SetVModelRequest { model_info: Some(attributes("SLOW")), ..setting("v", "b") };
    let told = cluster.set(to_b.clone()).await.expect("set");
    assert_eq!(told.status(), VModelStatus::Transitioning, "{told:?}");
    assert_eq!((told.active_model_id.as_str(), told.target_model_id.as_str()), ("a", "b"));
    let again = cluster.set(to_b).await.expect("the same again");
    assert_eq!(again.active_model_id, "a");
    let alias = cluster.handle.alias(&name("v")).await.expect("it is there").alias;
    assert_eq!(alias.targets, [(name("a"), 1), (name("b"), 0)], "people see where it goes");
    cluster.open();
    cluster.settles("v", "b").await;
    assert_eq!(cluster.status("a").await.status(), ModelStatus::Loaded, "nothing needs its room");
    assert_eq!(cluster.handle.get(&name("b")).await.expect("it is there").deployment.spec.replicas.min, 0);
}

#[tokio::test]
async fn a_synchronous_change_returns_when_it_is_done() {
    let mut cluster = TestCluster::new(1).await;
    cluster.loaded("a", "p").await;
    cluster.set(setting("v", "a")).await.expect("set");
    cluster.register("b", "q").await.expect("registered");
    let told = cluster.set(SetVModelRequest { sync: true, ..setting("v", "b") }).await.expect("set");
    assert_eq!((told.status(), told.active_model_id.as_str()), (VModelStatus::Defined, "b"));
    let bad = SetVModelRequest { sync: true, model_info: Some(attributes("FAIL_broken")), ..setting("v", "c") };
    let told = cluster.set(bad).await.expect("set");
    assert_eq!((told.status(), told.active_model_id.as_str()), (VModelStatus::TransitionFailed, "b"));
    assert_eq!(told.target_model_status.expect("told").errors, ["broken"]);
    // The way back is another target.
    let told = cluster.set(SetVModelRequest { sync: true, ..setting("v", "b") }).await.expect("set");
    assert_eq!(told.status(), VModelStatus::Defined);
    assert_eq!(cluster.handle.get(&name("c")).await.expect("it is there").deployment.spec.replicas.min, 0);
}

#[tokio::test]
async fn a_new_virtual_model_waits_for_the_load_that_it_asks_for() {
    let mut cluster = TestCluster::new(1).await;
    let began = cluster.handle.now();
    let request = |vmodel: &str, target: &str, path: &str| SetVModelRequest {
        load_now: true,
        sync: true,
        model_info: Some(attributes(path)),
        ..setting(vmodel, target)
    };
    for (vmodel, path, status) in [("v", "p", ModelStatus::Loaded), ("w", "FAIL_broken", ModelStatus::LoadingFailed)] {
        let told = cluster.set(request(vmodel, &format!("{vmodel}-1"), path)).await.expect("set");
        let active = told.active_model_status.clone().expect("told");
        assert_eq!((told.status(), active.status()), (VModelStatus::Defined, status), "{told:?}");
    }
    let view = cluster.handle.get(&name("v-1")).await.expect("it is there");
    let used = view.status.as_ref().and_then(|status| status.last_used).expect("that counts as a use");
    assert!(used < began, "models that are in use stay before it");
}

/// The active model left to make room for its target, which failed: requests went to the target all the same.
#[tokio::test]
async fn the_active_model_stays_the_active_one_though_it_left_for_a_target_that_failed() {
    let mut cluster = TestCluster::new(1).await;
    cluster.loaded("a", "p").await;
    cluster.set(setting("v", "a")).await.expect("set");
    let bad = SetVModelRequest { sync: true, model_info: Some(attributes("FAIL_boo")), ..setting("v", "b") };
    let told = cluster.set(bad.clone()).await.expect("set");
    assert_eq!((told.status(), told.active_model_id.as_str()), (VModelStatus::TransitionFailed, "a"));
    cluster.leaves("a").await;
    let again = cluster.set(bad).await.expect("the same again");
    assert_eq!((again.status(), again.active_model_id.as_str()), (VModelStatus::TransitionFailed, "a"));
    assert_eq!(cluster.ensure("a", true).await.expect("told").status(), ModelStatus::Loaded, "with its next request");
    assert_eq!(cluster.vmodel("v").await.active_model_id, "a");
}

#[tokio::test]
async fn a_target_comes_to_the_scale_of_the_active_model_first() {
    let mut cluster = TestCluster::new(2).await;
    cluster.loaded("a", "p").await;
    let view = cluster.handle.get(&name("a")).await.expect("it is there");
    let mut manifest = view.manifest.clone();
    manifest["spec"]["replicas"]["min"] = 2.into();
    let read = berth_spec::manifest::parse(&manifest.to_string(), &Default::default()).expect("a manifest").remove(0);
    let request = berth_control::handle::ApplyRequest::new(read, berth_spec::Origin::API);
    cluster.handle.apply(request).await.expect("applied");
    let loaded = |told: &berth_wire::mmesh::ModelStatusInfo| {
        told.model_copy_infos.iter().filter(|copy| copy.copy_status() == ModelStatus::Loaded).count()
    };
    while loaded(&cluster.status("a").await) < 2 {
        tokio::task::yield_now().await;
    }
    cluster.set(setting("v", "a")).await.expect("set");
    let told = cluster.set(SetVModelRequest { model_info: Some(attributes("q")), ..setting("v", "b") }).await;
    assert_ne!(told.expect("set").status(), VModelStatus::TransitionFailed);
    cluster.settles("v", "b").await;
    assert_eq!(loaded(&cluster.status("b").await), 2);
}

#[tokio::test]
async fn what_is_not_loaded_and_what_is_forced_switches_at_once() {
    let mut cluster = TestCluster::new(1).await;
    cluster.register("a", "p").await.expect("registered");
    cluster.register("b", "SLOW").await.expect("registered");
    cluster.set(setting("v", "a")).await.expect("set");
    let told = cluster.set(setting("v", "b")).await.expect("set");
    assert_eq!((told.status(), told.active_model_id.as_str()), (VModelStatus::Defined, "b"));
    cluster.loaded("c", "p").await;
    cluster.set(setting("w", "c")).await.expect("set");
    let forced = cluster.set(SetVModelRequest { force: true, ..setting("w", "b") }).await.expect("set");
    assert_eq!((forced.status(), forced.active_model_id.as_str()), (VModelStatus::Defined, "b"));
    let now = SetVModelRequest { load_now: true, ..setting("x", "b") };
    assert_eq!(cluster.set(now).await.expect("set").active_model_id, "b");
    cluster.open();
    assert_eq!(cluster.ensure("b", true).await.expect("told").status(), ModelStatus::Loaded);
}

#[tokio::test]
async fn owners_and_expected_targets_are_checked() {
    let mut cluster = TestCluster::new(1).await;
    for id in ["a", "b", "c"] {
        cluster.register(id, "p").await.expect("registered");
    }
    let of = |owner: &str, target: &str| SetVModelRequest { owner: owner.to_owned(), ..setting("v", target) };
    assert_eq!(cluster.set(of("isvc", "a")).await.expect("set").owner, "isvc");
    let refused = cluster.set(of("ksp", "b")).await.expect_err("another owner");
    assert_eq!(refused.code(), Code::AlreadyExists);
    assert_eq!(refused.message(), "vmodel v already exists with different owner \"isvc\"");
    assert_eq!(cluster.set(of("", "a")).await.expect("any owner").owner, "isvc", "it stays");
    let told = |owner: &str| GetVModelStatusRequest { v_model_id: "v".to_owned(), owner: owner.to_owned() };
    let other = cluster.client.get_v_model_status(told("ksp")).await.expect("told").into_inner();
    assert_eq!(other.status(), VModelStatus::NotFound);
    let delete = DeleteVModelRequest { v_model_id: "v".to_owned(), owner: "ksp".to_owned() };
    cluster.client.delete_v_model(delete).await.expect("silent");
    assert_eq!(cluster.vmodel("v").await.owner, "isvc");

    let expecting = |expected: &str, target: &str| SetVModelRequest {
        expected_target_model_id: expected.to_owned(),
        ..of("isvc", target)
    };
    assert_eq!(cluster.set(expecting("b", "c")).await.expect_err("it is a").code(), Code::FailedPrecondition);
    assert_eq!(cluster.set(expecting("a", "b")).await.expect("set").target_model_id, "b");
    assert_eq!(cluster.set(expecting("a", "b")).await.expect("it is so already").target_model_id, "b");
    let new = SetVModelRequest { expected_target_model_id: "a".to_owned(), ..setting("new", "b") };
    assert_eq!(cluster.set(new).await.expect_err("there is none").code(), Code::FailedPrecondition);
    let the_same = SetVModelRequest { expected_target_model_id: "b".to_owned(), ..setting("new", "b") };
    assert_eq!(cluster.set(the_same).await.expect("absent, or so already").target_model_id, "b");
    let settled = cluster.vmodel("new").await;
    assert_eq!(settled.target_model_status, None, "there is no other target");
    let delete = DeleteVModelRequest { v_model_id: "v".to_owned(), owner: String::new() };
    cluster.client.delete_v_model(delete).await.expect("of any owner");
    assert_eq!(cluster.vmodel("v").await.status(), VModelStatus::NotFound);
    for wrong in [setting("", "a"), setting("v", "")] {
        assert_eq!(cluster.set(wrong).await.expect_err("an id is empty").code(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn a_model_goes_with_the_last_virtual_model_that_leads_to_it() {
    let mut cluster = TestCluster::new(1).await;
    let auto = |vmodel: &str, target: &str| SetVModelRequest {
        auto_delete_target_model: true,
        model_info: Some(attributes("p")),
        ..setting(vmodel, target)
    };
    cluster.set(auto("v", "a")).await.expect("set");
    cluster.set(auto("w", "a")).await.expect("set");
    cluster.set(auto("v", "b")).await.expect("set");
    assert_eq!(cluster.status("a").await.status(), ModelStatus::NotLoaded, "w leads to it");
    cluster.set(auto("w", "b")).await.expect("set");
    assert_eq!(cluster.status("a").await.status(), ModelStatus::NotFound);
    cluster.register("kept", "p").await.expect("registered");
    cluster.set(auto("v", "kept")).await.expect("it was registered by itself");
    for vmodel in ["v", "w"] {
        let delete = DeleteVModelRequest { v_model_id: vmodel.to_owned(), owner: String::new() };
        cluster.client.delete_v_model(delete).await.expect("removed");
    }
    assert_eq!(cluster.status("b").await.status(), ModelStatus::NotFound);
    assert_eq!(cluster.status("kept").await.status(), ModelStatus::NotLoaded);
}

/// A leader that died after a switch, before it had let go of the old model, left that behind for ever; so did an alias that was deleted
/// elsewhere.
#[tokio::test(start_paused = true)]
async fn a_model_that_was_not_let_go_of_goes_later() {
    let mut cluster = TestCluster::new(1).await;
    for (vmodel, target) in [("v", "a"), ("w", "b")] {
        let auto = SetVModelRequest {
            auto_delete_target_model: true,
            model_info: Some(attributes("p")),
            ..setting(vmodel, target)
        };
        cluster.set(auto).await.expect("set");
    }
    let switched = serde_json::json!({
        "apiVersion": "berth.dev/v1", "kind": "Alias", "metadata": {"name": "v"}, "spec": {"targets": [{"deployment": "b"}]},
    });
    let switched = ManifestAlias::from_value(&switched, &ParseContext::default()).expect("a manifest");
    cluster.handle.apply_alias(&ApplyAlias::new(switched, Origin::API)).await.expect("switched");
    let store = cluster.stop().await;
    let mut cluster = TestCluster::over(store, 1).await;
    cluster.goes("a").await;
    assert_eq!(cluster.status("b").await.status(), ModelStatus::NotLoaded, "both lead to it");
    for vmodel in ["v", "w"] {
        let of = DeleteRequest { origin: Origin::API, expect: None, ownership: Ownership::Respect };
        let delete = DeleteAlias { mode: ApplyMode::Commit, of };
        cluster.handle.delete_alias(&name(vmodel), delete).await.expect("deleted");
    }
    cluster.goes("b").await;
}

/// Earlier builds marked such models by an annotation, not by a label: they stayed for ever.
#[tokio::test]
async fn a_model_of_an_earlier_build_goes_with_its_last_virtual_model() {
    let mut cluster = TestCluster::new(1).await;
    let location = OpaqueModel { kind: "mt:example".to_owned(), path: "p".to_owned(), key: "{}".to_owned() };
    let old = serde_json::json!({
        "apiVersion": "berth.dev/v1", "kind": "ModelDeployment",
        "metadata": {"name": "old", "annotations": {"modelmesh.berth.dev/auto-delete": "true"}},
        "spec": {"model": {"format": "example", "uri": location.to_string()}, "replicas": {"min": 0}},
    });
    let old = manifest::parse(&old.to_string(), &ParseContext::default()).expect("a manifest").remove(0);
    cluster.handle.apply(ApplyRequest::new(old, Origin::API)).await.expect("declared");
    cluster.register("next", "p").await.expect("registered");
    cluster.set(setting("v", "old")).await.expect("set");
    cluster.set(setting("v", "next")).await.expect("set");
    assert_eq!(cluster.status("old").await.status(), ModelStatus::NotFound);
    assert_eq!(cluster.status("next").await.status(), ModelStatus::NotLoaded);
}

/// Of many changes that expected the same, one was made; the targets of the others stayed registered for ever.
#[tokio::test]
async fn the_target_of_a_change_that_is_refused_is_not_left_behind() {
    let mut cluster = TestCluster::new(1).await;
    cluster.register("a", "p").await.expect("registered");
    cluster.set(setting("v", "a")).await.expect("set");
    let changing = |vmodel: &str, target: &str| SetVModelRequest {
        auto_delete_target_model: true,
        model_info: Some(attributes("p")),
        ..setting(vmodel, target)
    };
    let refused = cluster.set(changing("a", "b")).await.expect_err("a model has the name");
    assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
    assert_eq!(cluster.status("b").await.status(), ModelStatus::NotFound);
    let calls = (0..8).map(|id| {
        let mut client = cluster.client.clone();
        let change = changing("v", &format!("m{id}"));
        async move { client.set_v_model(SetVModelRequest { expected_target_model_id: "a".to_owned(), ..change }).await }
    });
    let made = futures::future::join_all(calls).await.into_iter().filter(Result::is_ok).count();
    assert_eq!(made, 1);
    let active = cluster.vmodel("v").await.active_model_id;
    for model in (0..8).map(|id| format!("m{id}")) {
        let found = cluster.status(&model).await.status();
        assert_eq!(found == ModelStatus::NotFound, model != active, "{model} {found:?}");
    }
}

#[tokio::test]
async fn a_change_goes_on_after_a_restart() {
    let mut cluster = TestCluster::new(1).await;
    cluster.loaded("a", "p").await;
    cluster.set(setting("v", "a")).await.expect("set");
    let told = cluster.set(SetVModelRequest { model_info: Some(attributes("SLOW")), ..setting("v", "b") }).await;
    assert_eq!(told.expect("set").status(), VModelStatus::Transitioning);
    let store = cluster.stop().await;
    let mut cluster = TestCluster::over(Arc::clone(&store), 1).await;
    cluster.open();
    cluster.settles("v", "b").await;
}

#[tokio::test]
async fn many_callers_set_one_virtual_model() {
    let mut cluster = TestCluster::new(1).await;
    for id in 0..8 {
        cluster.loaded(&format!("m{id}"), "p").await;
    }
    let calls = (0..8).map(|id| {
        let mut client = cluster.client.clone();
        async move { client.set_v_model(setting("v", &format!("m{id}"))).await }
    });
    let told: Vec<_> = futures::future::join_all(calls).await;
    assert!(told.iter().any(Result::is_ok), "{told:?}");
    for refused in told.into_iter().filter_map(Result::err) {
        assert!(matches!(refused.code(), Code::Unavailable | Code::Aborted), "{refused}");
    }
    let told = cluster.vmodel("v").await;
    assert!(told.active_model_id.starts_with('m') && told.status() != VModelStatus::NotFound, "{told:?}");
}
