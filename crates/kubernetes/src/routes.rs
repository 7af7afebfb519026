//! Gateway API routes: an `HTTPRoute` for each `InferenceService`, so that clients go on calling the host that is its own. No I/O.
//!
//! The route says which namespace is meant and leads to the Service of the fleet. It belongs to its object and goes with it. Field names:
//! `gateway.networking.k8s.io/v1`.

use berth_operator::{
    compare::holds,
    render::{MANAGED_BY, with_digest},
};
use serde_json::{Value, json};

use crate::{
    install::pool,
    kind::Kind,
    objects::{Content, Key, KindState, Object, Objects},
};

/// The Gateway before a fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gateway {
    /// Namespace and name of the Gateway.
    pub gateway: (String, String),
    /// Namespace, name and port of the fleet's Service.
    pub service: (String, String, u16),
    /// Namespace and name of a pool of the fleet's pods, to which routes lead in place of the Service.
    pub pool: Option<(String, String)>,
}

impl Gateway {
    /// The place that routes lead to.
    fn backend(&self) -> Value {
        match (&self.pool, &self.service) {
            (Some((namespace, name)), _) => {
                json!({ "group": pool::GROUP, "kind": "InferencePool", "namespace": namespace, "name": name })
            }
            (None, (namespace, name, port)) => json!({ "namespace": namespace, "name": name, "port": port }),
        }
    }
}

/// The state of the way to a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ingress {
    Ready,
    /// A word and a sentence.
    Waiting(&'static str, String),
}

/// The address of an object: `{name}` and `{namespace}` in `url` are its own. Without them all objects share it, and the path names the
/// namespace.
pub(crate) fn address(url: &str, key: &Key) -> String {
    if url.contains("{name}") {
        url.replace("{name}", &key.name).replace("{namespace}", &key.namespace)
    } else if key.namespace == "default" {
        url.to_owned()
    } else {
        format!("{url}/namespaces/{}", key.namespace)
    }
}

/// The route of an object whose address is `url`; `None` for kinds without one.
pub(crate) fn route(gateway: &Gateway, url: &str, key: &Key, object: &Object) -> Option<Value> {
    if key.kind != Kind::InferenceService {
        return None;
    }
    let host = address(url, key);
    let host = host.split_once("://").map_or(host.as_str(), |(_, rest)| rest);
    let host = host.split(['/', ':']).next().unwrap_or_default();
    Some(with_digest(json!({
        "apiVersion": Kind::Route.api_version(),
        "kind": Kind::Route.name(),
        "metadata": {
            "name": route_name(&key.name),
            "namespace": key.namespace,
            "labels": { MANAGED_BY.0: MANAGED_BY.1 },
            "annotations": {},
            "ownerReferences": [{
                "apiVersion": key.kind.api_version(),
                "kind": key.kind.name(),
                "name": key.name,
                "uid": object.uid,
                "controller": true,
            }],
        },
        "spec": {
            "parentRefs": [{ "namespace": gateway.gateway.0, "name": gateway.gateway.1 }],
            "hostnames": [host],
            "rules": [{
                "matches": [{ "path": { "type": "PathPrefix", "value": "/" } }],
                "filters": [{
                    "type": "RequestHeaderModifier",
                    "requestHeaderModifier": { "set": [{ "name": "berth-namespace", "value": key.namespace }] },
                }],
                "backendRefs": [gateway.backend()],
            }],
        },
    })))
}

/// The name of a route: KServe's own have that of the object.
fn route_name(name: &str) -> String {
    format!("{name}-berth")
}

/// The object of a route.
pub(crate) fn owner(route: &Key) -> Option<Key> {
    let name = route.name.strip_suffix("-berth")?;
    Some(Key { kind: Kind::InferenceService, namespace: route.namespace.clone(), name: name.to_owned() })
}

/// The route of an object as the API server has it.
fn live<'a>(objects: &'a Objects, key: &Key) -> Option<&'a Value> {
    let key = Key { kind: Kind::Route, namespace: key.namespace.clone(), name: route_name(&key.name) };
    match &objects.get(&key)?.content {
        Content::Route(route) => Some(route),
        _ => None,
    }
}

/// The route to apply, unless it is as it should be.
pub(crate) fn missing(objects: &Objects, key: &Key, wanted: &Value) -> bool {
    !live(objects, key).is_some_and(|live| holds(live, wanted))
}

/// The state of the way to an object that should have a route.
pub(crate) fn ingress(objects: &Objects, key: &Key) -> Ingress {
    let Some(route) = live(objects, key) else {
        let (reason, message) = match objects.known(Kind::Route) {
            KindState::Absent => {
                ("NotInstalled", "the cluster has no custom resource HTTPRoute: install the Gateway API")
            }
            KindState::Failing(problem) => ("RouteUnreadable", problem.as_str()),
            KindState::Unknown | KindState::Listed => ("RouteMissing", "its HTTPRoute is not there yet"),
        };
        return Ingress::Waiting(reason, message.to_owned());
    };
    let parents = route["status"]["parents"].as_array().into_iter().flatten();
    let conditions = parents.flat_map(|parent| parent["conditions"].as_array().into_iter().flatten());
    let mut decisive: Vec<&Value> =
        conditions.filter(|one| one["type"] == "Accepted" || one["type"] == "ResolvedRefs").collect();
    // A refusal of either kind counts before an acceptance.
    decisive.sort_by_key(|one| one["status"] == "True");
    match decisive.first() {
        None => Ingress::Waiting("RoutePending", "no Gateway has accepted its HTTPRoute".to_owned()),
        Some(one) if one["status"] == "True" => Ingress::Ready,
        Some(one) => {
            let message = one["message"].as_str().unwrap_or_default();
            Ingress::Waiting("RouteRefused", format!("its HTTPRoute is refused: {message}"))
        }
    }
}
