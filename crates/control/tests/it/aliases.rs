//! Aliases in the store and in the routes of gateways.

use std::sync::Arc;

use berth_control::{
    handle::{
        ApplyAlias, ApplyMode, ApplyOutcome, DeleteAlias, DeleteRequest, Error, GatewayEnds, ListRequest,
        MissingTargets, Ownership,
    },
    store::{Op, Rev, Txn},
};
use berth_spec::{
    Generation, Origin, RouteChange, WorkerId,
    manifest::{self, Manifest, ManifestAlias, ParseContext},
    routes::{AliasRoute, Stickiness},
    status::Phase,
};
use bytes::Bytes;

use crate::{
    conformance::each,
    fixture::{Running, apply, name, worker},
};

fn alias(called: &str, targets: &str) -> ManifestAlias {
    let text = format!(
        "apiVersion: berth.dev/v1\nkind: Alias\nmetadata: {{name: {called}}}\nspec: {{targets: [{targets}], sticky: client}}\n"
    );
    match manifest::parse_all(&text, &ParseContext::default()).expect("a manifest").remove(0) {
        Manifest::Alias(alias) => *alias,
        Manifest::Deployment(_) | Manifest::Function(_) => panic!("an alias"),
    }
}

fn declare(called: &str, targets: &str) -> ApplyAlias {
    ApplyAlias::new(alias(called, targets), Origin::API)
}

fn delete() -> DeleteAlias {
    let of = DeleteRequest { origin: Origin::API, expect: None, ownership: Ownership::Respect };
    DeleteAlias { mode: ApplyMode::Commit, of }
}

async fn gateway(running: &Running) -> GatewayEnds {
    running.handle.attach_gateway(WorkerId::new("g-1").expect("a name"), None).await.expect("it attaches")
}

/// The next change of routes that is about aliases; each is acknowledged.
async fn told(ends: &mut GatewayEnds) -> RouteChange {
    loop {
        let change = ends.1.recv().await.expect("it goes on");
        ends.0.send(berth_spec::GatewayEvent::Applied(change.seq)).await.expect("it listens");
        if !change.aliases.is_empty() || !change.unset.is_empty() {
            return change;
        }
    }
}

#[tokio::test]
async fn an_alias_reaches_gateways_at_once_and_outlives_a_restart() {
    each(|store, _| async move {
        let mut running = Running::start(Arc::clone(&store));
        running.obedient_worker(worker("w-1", 1)).await;
        running.handle.apply(apply("v1", "  replicas: 1\n")).await.expect("applied");
        running.until(&name("v1"), Phase::Available).await;
        let mut gate = gateway(&running).await;

        let request = declare("live", "{deployment: v1, weight: 9}, {deployment: v2}, {deployment: off, weight: 0}");
        let (applied, change) = tokio::join!(running.handle.apply_alias(&request), told(&mut gate));
        let applied = applied.expect("applied");
        assert_eq!((applied.outcome, applied.generation), (ApplyOutcome::Created, Generation(1)));
        assert_eq!(applied.warnings.len(), 2, "{:?}", applied.warnings);
        let targets = vec![(name("v1"), 9), (name("v2"), 1)];
        assert_eq!(change.aliases, [AliasRoute { name: name("live"), targets, sticky: Stickiness::Client }]);

        let again = running.handle.apply_alias(&request).await.expect("applied");
        assert_eq!((again.outcome, again.rev), (ApplyOutcome::Unchanged, applied.rev));
        let status = running.handle.alias(&name("live")).await.expect("it is there").targets;
        let shares: Vec<_> = status.iter().map(|target| (target.weight, target.share, target.phase)).collect();
        assert_eq!(shares, [(9, 100, Some(Phase::Available)), (1, 0, None), (0, 0, None)]);
        running.stop().await;

        let running = Running::start(Arc::clone(&store));
        let mut gate = gateway(&running).await;
        let whole = told(&mut gate).await;
        assert_eq!((whole.base, whole.aliases.len()), (None, 1));
        let listed = running.handle.aliases(ListRequest::default()).await.expect("listed").items;
        assert_eq!((listed.len(), &listed[0].alias.name, listed[0].rev), (1, &name("live"), applied.rev));
        let live = name("live");
        let (deleted, change) = tokio::join!(running.handle.delete_alias(&live, delete()), told(&mut gate));
        assert_eq!(deleted.expect("deleted").generation, Generation(1));
        assert_eq!(change.unset, [name("live")]);
        assert!(matches!(running.handle.alias(&name("live")).await, Err(Error::NoAlias(_))));
        running.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_name_is_of_a_deployment_or_of_an_alias() {
    each(|store, _| async move {
        let running = Running::start(Arc::clone(&store));
        let handle = &running.handle;
        handle.apply(apply("iris", "")).await.expect("applied");
        let refused = handle.apply_alias(&declare("iris", "{deployment: v1}")).await.expect_err("a deployment has it");
        assert!(refused.to_string().contains("is the name of a deployment already"), "{refused}");
        handle.apply_alias(&declare("live", "{deployment: iris}")).await.expect("applied");
        let refused = handle.apply(apply("live", "")).await.expect_err("an alias has it");
        assert!(refused.to_string().contains("is the name of an alias already"), "{refused}");
        let batch = handle.apply_all(vec![apply("one", ""), apply("live", ""), apply("two", "")]).await;
        assert_eq!(batch.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);

        // Eight callers at once want each name for both.
        for round in 0..8 {
            let called = format!("name-{round}");
            let deployments = (0..4).map(|_| handle.apply(apply(&called, "")));
            let target = declare(&called, "{deployment: iris}");
            let aliases = (0..4).map(|_| handle.apply_alias(&target));
            let (deployments, aliases) =
                tokio::join!(futures::future::join_all(deployments), futures::future::join_all(aliases));
            let won = (deployments.iter().any(Result::is_ok), aliases.iter().any(Result::is_ok));
            assert!(won.0 != won.1, "{called}: {deployments:?} {aliases:?}");
            let there = (handle.get(&name(&called)).await.is_ok(), handle.alias(&name(&called)).await.is_ok());
            assert_eq!(there, won, "{called}");
        }
        running.stop().await;
    })
    .await;
}

/// A model was deleted since no alias led to it, while one began to.
#[tokio::test]
async fn a_deployment_goes_or_an_alias_leads_to_it_and_never_both() {
    each(|store, _| async move {
        let running = Running::start(Arc::clone(&store));
        let handle = &running.handle;
        let checked =
            |alias: &str, targets: &str| ApplyAlias { missing: MissingTargets::Refuse, ..declare(alias, targets) };
        let request = delete().of;
        for round in 0..8 {
            // In every other round the alias is there and leads elsewhere.
            let (model, alias) = (name(&format!("m{round}")), format!("a{}", round / 2));
            handle.apply(apply(model.as_str(), "")).await.expect("applied");
            let target = checked(&alias, &format!("{{deployment: {}}}", model.as_str()));
            let (led_to, aliased) =
                tokio::join!(handle.delete_unless_led_to(&model, &request), handle.apply_alias(&target));
            let led_to = led_to.expect("decided");
            assert_eq!(led_to.is_empty(), aliased.is_err(), "{round}: {led_to:?} {aliased:?}");
            assert!(led_to.is_empty() || led_to == [name(&alias)], "{led_to:?}");
            if let Err(refused) = aliased {
                assert!(matches!(&refused, Error::NotFound(missing) if *missing == model), "{refused}");
            }
            let there = handle.get(&model).await.is_ok_and(|view| !view.deployment.deleting);
            assert_eq!(there, !led_to.is_empty(), "{round}");
        }
        let absent = handle.apply_alias(&checked("new", "{deployment: none}")).await.expect_err("it has no target");
        assert!(matches!(absent, Error::NotFound(_)), "{absent}");
        running.stop().await;
    })
    .await;
}

#[tokio::test]
async fn owners_and_versions_are_respected() {
    each(|store, _| async move {
        let running = Running::start(Arc::clone(&store));
        let handle = &running.handle;
        let folder = Origin::directory("/models");
        let first = ApplyAlias::new(alias("live", "{deployment: v1}"), folder.clone());
        let rev = handle.apply_alias(&first).await.expect("applied").rev;
        let other = declare("live", "{deployment: v2}");
        let owned = handle.apply_alias(&other).await.expect_err("another source has it");
        assert!(matches!(&owned, Error::Owned { owner, .. } if *owner == folder), "{owned}");
        let same = declare("live", "{deployment: v1}");
        let same = handle.apply_alias(&same).await.expect("what is there is nobody's change");
        assert_eq!((same.outcome, same.rev), (ApplyOutcome::Unchanged, rev));
        assert!(matches!(handle.delete_alias(&name("live"), delete()).await, Err(Error::Owned { .. })));
        let forced = ApplyAlias { ownership: Ownership::TakeOver, expect: Some(rev), ..other.clone() };
        let taken = handle.apply_alias(&forced).await.expect("taken over");
        assert_eq!((taken.outcome, taken.generation), (ApplyOutcome::Configured, Generation(2)));
        let stale = ApplyAlias { expect: Some(rev), ..other };
        assert!(matches!(handle.apply_alias(&stale).await, Err(Error::Stale { .. })));
        let new = ApplyAlias { expect: Some(Rev::NONE), ..declare("new", "{deployment: v1}") };
        handle.apply_alias(&new).await.expect("it is new");
        assert!(matches!(handle.apply_alias(&new).await, Err(Error::Stale { .. })));
        running.stop().await;
    })
    .await;
}

#[tokio::test]
async fn an_alias_that_cannot_be_read_is_skipped_and_can_be_deleted() {
    each(|store, _| async move {
        let value = Bytes::from_static(br#"{"v":1,"manifest":{"kind":"Alias"},"generation":3,"created":1}"#);
        let ops = vec![Op::Put { key: "/aliases/broken".to_owned(), value }];
        store.commit(Txn { compare: vec![], ops }).await.expect("it commits");
        let running = Running::start(Arc::clone(&store));
        assert!(running.handle.aliases(ListRequest::default()).await.expect("listed").items.is_empty());
        assert!(matches!(running.handle.alias(&name("broken")).await, Err(Error::Store(_))));
        running.handle.delete_alias(&name("broken"), delete()).await.expect("deleted");
        running.stop().await;
    })
    .await;
}
