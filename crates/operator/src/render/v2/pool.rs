//! The pool of a model, the route to it, and the endpoint picker that a Gateway asks. Field names: `inference.networking.k8s.io/v1` (Gateway API
//! Inference Extension), `gateway.networking.k8s.io/v1`.

use serde_json::{Value, json};

use super::super::{
    MANAGED_BY, PICKER, PICKER_OF, PICKER_ROLE,
    picker::{LISTEN, PickerWorkload},
};
use super::{Error, Identity, Record, SELECTOR, executor::Executor, v1};
use crate::api::{InferencePool, ModelDeployment};

/// The groups of pools and of routes.
const POOLS: &str = "inference.networking.k8s.io";
const ROUTES: &str = "gateway.networking.k8s.io";

/// The pool, and the route to it where a Gateway is named.
pub(super) fn render(wanted: &InferencePool, model: &ModelDeployment, identity: &Identity) -> Vec<Value> {
    let pool = json!({
        "apiVersion": format!("{POOLS}/v1"),
        "kind": "InferencePool",
        "metadata": v1::metadata(identity),
        "spec": {
            "selector": { "matchLabels": { SELECTOR: identity.name } },
            "targetPorts": [{ "number": port(wanted, model) }],
            "endpointPickerRef": {
                "kind": "Service",
                "name": picker_name(identity),
                "port": { "number": LISTEN },
                "failureMode": wanted.failure_mode.as_deref().unwrap_or("FailOpen"),
            },
        },
    });
    let route = wanted.gateway().map(|(namespace, gateway)| route(wanted, namespace, gateway, identity));
    [pool].into_iter().chain(route).collect()
}

fn route(wanted: &InferencePool, namespace: &str, gateway: &str, identity: &Identity) -> Value {
    let backend = json!({ "group": POOLS, "kind": "InferencePool", "name": identity.name });
    let mut spec = json!({
        "parentRefs": [{ "namespace": namespace, "name": gateway }],
        "rules": [{
            "matches": [{ "path": { "type": "PathPrefix", "value": "/" } }],
            "backendRefs": [backend],
        }],
    });
    if !wanted.hostnames.is_empty() {
        spec["hostnames"] = json!(wanted.hostnames);
    }
    json!({
        "apiVersion": format!("{ROUTES}/v1"),
        "kind": "HTTPRoute",
        "metadata": v1::metadata(identity),
        "spec": spec,
    })
}

/// The number that pods answer at: that of the executor, else the container's own.
fn port(wanted: &InferencePool, model: &ModelDeployment) -> Option<u16> {
    let name = wanted.port.as_deref()?;
    let own = model.spec.container.ports.iter().find(|port| port.name == name)?;
    let before = Executor::of(model).and_then(|executor| executor.listens_at(name));
    Some(before.unwrap_or(own.port))
}

fn picker_name(identity: &Identity) -> String {
    format!("{}{PICKER}", identity.name)
}

/// The picker, with the account that it runs as and the rights of that, in the order in which they are applied.
pub(in super::super) fn picker(model: &ModelDeployment, record: &Record, pool: &str) -> Result<Vec<Value>, Error> {
    let identity = Identity::of(model)?;
    let Some(wanted) = &model.spec.inference_pool else { return Ok(Vec::new()) };
    let mut metadata = v1::metadata(&identity);
    let name = picker_name(&identity);
    metadata["name"] = json!(name);
    // By this one no Service and no pool finds its pods.
    metadata["labels"] = json!({
        MANAGED_BY.0: MANAGED_BY.1,
        "app.kubernetes.io/name": name,
        PICKER_OF: identity.name,
    });
    let owner = &mut metadata["ownerReferences"][0];
    owner["apiVersion"] = json!(format!("{POOLS}/v1"));
    owner["kind"] = json!("InferencePool");
    owner["uid"] = json!(pool);
    // The operator may delete a pool without a right to its finalizers.
    owner["blockOwnerDeletion"] = json!(false);
    let rights = "rbac.authorization.k8s.io";
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": false });
    let binding = json!({
        "apiVersion": format!("{rights}/v1"),
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": { "apiGroup": rights, "kind": "ClusterRole", "name": PICKER_ROLE },
        "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": identity.namespace }],
    });
    let workload = PickerWorkload {
        metadata,
        pool: identity.name.clone(),
        namespace: identity.namespace.clone(),
        image: record.image.clone(),
        selector: format!("{SELECTOR}={}", identity.name),
        port: port(wanted, model).unwrap_or_default(),
        most: wanted.max_in_flight,
    };
    Ok([account, binding].into_iter().chain(workload.objects()).collect())
}
