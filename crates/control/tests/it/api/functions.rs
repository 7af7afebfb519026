//! REST: functions of one name in several namespaces, and the roles that hold there.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use berth_control::{
    functions::{ApplyFunction, DeleteFunction, FunctionHost, FunctionText},
    handle::{Applied, ApplyMode, ApplyOutcome, Error},
    store::Rev,
};
use berth_spec::{DeploymentName, Generation, Origin};
use berth_wire::{
    access::{Access, Grant, Role, Secret, TokenRecord},
    api::{FunctionMetadata, FunctionStatus, FunctionView},
};
use futures::{FutureExt as _, future::BoxFuture};
use serde_json::json;

use super::world::{Answer, World, answer};

/// Functions that are declared, and neither built nor run.
#[derive(Default)]
struct InMemory(Mutex<BTreeMap<DeploymentName, FunctionView>>);

impl InMemory {
    fn change(&self, request: ApplyFunction) -> Applied {
        let (name, mut functions) = (request.manifest.name, self.0.lock().expect("nobody panics"));
        let metadata = FunctionMetadata {
            name: name.name().to_owned(),
            namespace: name.namespace().to_owned(),
            generation: 1,
            ..FunctionMetadata::default()
        };
        let view = FunctionView {
            api_version: "berth.dev/v1".to_owned(),
            kind: "Function".to_owned(),
            metadata,
            spec: request.manifest.spec,
            status: FunctionStatus::default(),
        };
        let is_new = !functions.contains_key(&name);
        if request.mode == ApplyMode::Commit {
            functions.insert(name.clone(), view);
        }
        applied(name, if is_new { ApplyOutcome::Created } else { ApplyOutcome::Configured })
    }
}

fn applied(name: DeploymentName, outcome: ApplyOutcome) -> Applied {
    Applied { name, outcome, generation: Generation(1), rev: Rev(1), warnings: Vec::new(), changes: Vec::new() }
}

impl FunctionHost for InMemory {
    fn list(&self) -> Vec<FunctionView> {
        self.0.lock().expect("nobody panics").values().cloned().collect()
    }

    fn get(&self, name: &DeploymentName) -> Option<FunctionView> {
        self.0.lock().expect("nobody panics").get(name).cloned()
    }

    fn text(&self, name: &DeploymentName, text: FunctionText) -> Option<String> {
        (text == FunctionText::Log).then(|| format!("the log of {name}"))
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), Error>> {
        async { Ok(()) }.boxed()
    }

    fn owned_by(&self, _: &[&Origin]) -> BTreeMap<DeploymentName, Origin> {
        BTreeMap::new()
    }

    fn apply(&self, request: ApplyFunction) -> BoxFuture<'_, Result<Applied, Error>> {
        async move { Ok(self.change(request)) }.boxed()
    }

    fn delete(&self, request: DeleteFunction) -> BoxFuture<'_, Result<Applied, Error>> {
        async move {
            match self.0.lock().expect("nobody panics").remove(&request.name) {
                Some(_) => Ok(applied(request.name, ApplyOutcome::Configured)),
                None => Err(Error::NoFunction(request.name)),
            }
        }
        .boxed()
    }
}

fn manifest(metadata: &str) -> String {
    format!(
        "apiVersion: berth.dev/v1\nkind: Function\nmetadata: {metadata}\nspec: {{type: python, sourceUri: 'file:/a', entrypoint: a.b, \
         target: {{platform: local}}}}\n"
    )
}

#[tokio::test]
async fn a_name_in_two_namespaces_is_two_functions() {
    let world = World::with_functions(Arc::new(InMemory::default()), Arc::default()).await;
    let put = |path: &str, metadata: &str| answer(world.request("PUT", path).body(manifest(metadata)));
    let paths = ["/v1/functions/words", "/v1/namespaces/team/functions/words"];
    for (path, written) in paths.into_iter().zip(["words", "team/words"]) {
        assert_eq!(put(path, "{name: words}").await.ok(201)["name"], written, "{path}");
    }
    for (path, namespace) in paths.into_iter().zip(["default", "team"]) {
        let metadata = world.get(path).await.ok(200)["metadata"].clone();
        assert_eq!((&metadata["name"], &metadata["namespace"]), (&json!("words"), &json!(namespace)));
    }
    assert_eq!(world.get("/v1/namespaces/default/functions/words").await.ok(200)["metadata"]["namespace"], "default");
    assert_eq!(world.get("/v1/namespaces/team/functions/words/log").await.text, "the log of team/words");
    for (path, count) in [
        ("/v1/functions", 2),
        ("/v1/functions?namespace=team", 1),
        ("/v1/namespaces/team/functions", 1),
        ("/v1/namespaces/shop/functions", 0),
    ] {
        assert_eq!(world.get(path).await.ok(200)["items"].as_array().map(Vec::len), Some(count), "{path}");
    }
    // One segment is one name.
    world.get("/v1/functions/team%2Fwords").await.refused(404, "NotFound");
    put(paths[1], "{name: words, namespace: shop}").await.refused(400, "BadRequest");
    let applied = world.post("/v1/apply?namespace=shop", manifest("{name: words}")).await.ok(200);
    assert_eq!(
        (&applied["results"][0]["name"], &applied["results"][0]["outcome"]),
        (&json!("shop/words"), &json!("created"))
    );
    world.post("/v1/apply?namespace=shop", manifest("{name: words, namespace: team}")).await.refused(400, "BadRequest");

    answer(world.request("DELETE", paths[1])).await.ok(200);
    world.get(paths[1]).await.refused(404, "NotFound");
    world.get(paths[0]).await.ok(200);
}

/// A token for a role in some namespaces and for some models; empty: all.
fn token(role: Role, namespaces: &[&str], models: &[&str]) -> (TokenRecord, Secret) {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let secret = Secret::generate();
    let record = TokenRecord {
        id: secret.id().to_owned(),
        hash: secret.hash(),
        grant: Grant { role, namespaces: owned(namespaces), models: owned(models) },
        description: String::new(),
        created_by: String::new(),
        created: 1,
        expires: None,
        limits: None,
    };
    (record, secret)
}

#[tokio::test]
async fn a_role_of_a_namespace_holds_for_its_functions() {
    let (tokens, secrets): (Vec<_>, Vec<_>) = [
        token(Role::Admin, &[], &[]),
        token(Role::Viewer, &["team"], &[]),
        token(Role::Deployer, &["team"], &[]),
        token(Role::Viewer, &["team"], &["words"]),
        token(Role::Admin, &["team"], &[]),
    ]
    .into_iter()
    .unzip();
    let access = Arc::new(Access::required());
    let world = World::with_functions(Arc::new(InMemory::default()), Arc::clone(&access)).await;
    for token in tokens {
        world.handle.add_token(token).await.expect("stored");
    }
    access.learn(&world.handle.tokens().await.expect("stored"));
    let [admin, viewer, deployer, of_models, of_team] = secrets.as_slice() else { panic!("five tokens") };
    let ask = async |secret: &Secret, method: &str, path: &str, body: String| -> Answer {
        answer(world.request(method, path).bearer_auth(secret.reveal()).body(body)).await
    };
    let none = String::new;
    for path in ["/v1/functions/words", "/v1/namespaces/team/functions/words", "/v1/namespaces/shop/functions/words"] {
        ask(admin, "PUT", path, manifest("{name: words}")).await.ok(201);
    }
    for (path, status) in [
        ("/v1/namespaces/team/functions", 200),
        ("/v1/namespaces/team/functions/words", 200),
        ("/v1/namespaces/team/functions/words/log", 200),
        ("/v1/namespaces/team/functions/never", 404),
        ("/v1/namespaces/shop/functions", 403),
        ("/v1/namespaces/shop/functions/words", 403),
        ("/v1/functions/words", 403),
        ("/v1/functions", 403),
    ] {
        assert_eq!(ask(viewer, "GET", path, none()).await.status, status, "{path}");
    }
    let refusal =
        async |path: &str| ask(viewer, "GET", path, none()).await.refused(403, "Forbidden")["message"].clone();
    let (forbidden, unknown) =
        (refusal("/v1/namespaces/shop/functions/words").await, refusal("/v1/namespaces/shop/functions/never").await);
    assert_eq!(forbidden, unknown, "what is forbidden looks as what is unknown");
    let (words, of_shop) = ("/v1/namespaces/team/functions/words", "/v1/namespaces/shop/functions/words");
    assert_eq!(ask(of_models, "GET", words, none()).await.status, 403, "a role for models is none for functions");
    assert_eq!(ask(viewer, "DELETE", words, none()).await.status, 403);
    assert_eq!(ask(deployer, "DELETE", of_shop, none()).await.status, 403);
    // Code runs beside the controller, whatever its namespace is.
    for secret in [deployer, of_team] {
        let refused = ask(secret, "PUT", words, manifest("{name: words}")).await.refused(403, "Forbidden");
        assert!(refused["message"].as_str().is_some_and(|text| text.contains("brings code to run")), "{refused}");
    }
    ask(deployer, "DELETE", words, none()).await.ok(200);
    ask(admin, "GET", of_shop, none()).await.ok(200);
}
