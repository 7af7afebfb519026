//! Version 1: a Deployment and a Service. Frozen: a change here restarts pods that nobody touched. Copy it to a version of
//! its own instead.

use serde_json::{Map, Value, json};

use super::{Error, Identity, MANAGED_BY, RECORD, Record, SELECTOR};
use crate::api::{
    GROUP, ModelDeployment,
    model_deployment::{Container, Parameters, Port},
};

/// The volume with fetched parameters.
const VOLUME: &str = "berth-parameters";

/// The folder in which init containers see it.
const FETCHED: &str = "/parameters";

/// The user of init containers: nobody's on any node.
pub(super) const NOBODY: u32 = 65532;

pub(super) fn render(model: &ModelDeployment, record: &Record) -> Result<Vec<Value>, Error> {
    let identity = Identity::of(model)?;
    Ok(vec![deployment(model, &identity, record), service(model, &identity)])
}

pub(super) fn metadata(identity: &Identity) -> Value {
    json!({
        "name": identity.name,
        "namespace": identity.namespace,
        "labels": { MANAGED_BY.0: MANAGED_BY.1, "app.kubernetes.io/name": identity.name, SELECTOR: identity.name },
        "annotations": {},
        "ownerReferences": [{
            // The version of the operator that shipped these rules; it names the same object.
            "apiVersion": format!("{GROUP}/v1alpha1"),
            "kind": "ModelDeployment",
            "name": identity.name,
            "uid": identity.uid,
            "controller": true,
            "blockOwnerDeletion": true,
        }],
    })
}

fn deployment(model: &ModelDeployment, identity: &Identity, record: &Record) -> Value {
    let mut metadata = metadata(identity);
    metadata["annotations"][RECORD] = json!(serde_json::to_string(record).unwrap_or_default());
    let mut spec = json!({
        "selector": { "matchLabels": { SELECTOR: identity.name } },
        // A new pod answers before an old one ends.
        "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 0, "maxSurge": "25%" } },
        "template": template(model, identity, record),
    });
    if let Some(replicas) = model.spec.replicas {
        spec["replicas"] = json!(replicas);
    }
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec })
}

fn template(model: &ModelDeployment, identity: &Identity, record: &Record) -> Value {
    let wanted = &model.spec;
    let mut labels: Map<String, Value> =
        wanted.pod.labels.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    labels.insert(MANAGED_BY.0.to_owned(), json!(MANAGED_BY.1));
    labels.insert("app.kubernetes.io/name".to_owned(), json!(identity.name));
    labels.insert(SELECTOR.to_owned(), json!(identity.name));
    let mut metadata = json!({ "labels": labels });
    if !wanted.pod.annotations.is_empty() {
        metadata["annotations"] = json!(wanted.pod.annotations);
    }
    json!({ "metadata": metadata, "spec": pod(model, identity, record) })
}

fn pod(model: &ModelDeployment, identity: &Identity, record: &Record) -> Value {
    let wanted = &model.spec;
    let mut pod = json!({
        "containers": [container(&wanted.container, &wanted.parameters)],
        "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } },
        // Over nodes where there are several; never a reason not to start.
        "topologySpreadConstraints": [{
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": { "matchLabels": { SELECTOR: identity.name } },
        }],
    });
    let mut set = |field: &str, value: Value| pod[field] = value;
    if !wanted.parameters.is_empty() {
        set("initContainers", wanted.parameters.iter().map(|part| fetch(part, &record.image)).collect());
        set("volumes", json!([{ "name": VOLUME, "emptyDir": {} }]));
    }
    if let Some(account) = &wanted.pod.service_account_name {
        set("serviceAccountName", json!(account));
    }
    if let Some(seconds) = wanted.pod.termination_grace_period_seconds {
        set("terminationGracePeriodSeconds", json!(seconds));
    }
    if !wanted.pod.image_pull_secrets.is_empty() {
        set("imagePullSecrets", json!(wanted.pod.image_pull_secrets));
    }
    if !wanted.pod.node_selector.is_empty() {
        set("nodeSelector", json!(wanted.pod.node_selector));
    }
    if !wanted.pod.tolerations.is_empty() {
        set("tolerations", json!(wanted.pod.tolerations));
    }
    pod
}

/// The user's container: as written, with the parameters mounted.
fn container(wanted: &Container, parameters: &[Parameters]) -> Value {
    let port = |port: &Port| json!({ "name": port.name, "containerPort": port.port, "protocol": "TCP" });
    let mut container = json!({
        "name": "model",
        "image": wanted.image,
        "ports": wanted.ports.iter().map(port).collect::<Vec<_>>(),
    });
    let optional = [
        ("imagePullPolicy", wanted.image_pull_policy.as_ref().map(|policy| json!(policy))),
        ("command", some(&wanted.command)),
        ("args", some(&wanted.args)),
        ("env", some(&wanted.env)),
        ("envFrom", some(&wanted.env_from)),
        ("resources", wanted.resources.clone()),
        ("readinessProbe", wanted.readiness_probe.clone()),
        ("livenessProbe", wanted.liveness_probe.clone()),
        ("startupProbe", wanted.startup_probe.clone()),
        ("securityContext", wanted.security_context.clone()),
    ];
    for (field, value) in optional {
        if let Some(value) = value {
            container[field] = value;
        }
    }
    if !parameters.is_empty() {
        let mount = |part: &Parameters| json!({ "name": VOLUME, "mountPath": part.mount_path, "subPath": part.name, "readOnly": true });
        container["volumeMounts"] = parameters.iter().map(mount).collect();
    }
    container
}

/// An init container that fetches parameters, checks them and resumes what broke off.
fn fetch(part: &Parameters, image: &str) -> Value {
    let mut args = vec!["fetch".to_owned(), part.uri.clone(), "--to".to_owned(), format!("{FETCHED}/{}", part.name)];
    if let Some(digest) = &part.sha256 {
        args.extend(["--sha256".to_owned(), digest.clone()]);
    }
    let mut container = json!({
        "name": format!("fetch-{}", part.name),
        "image": image,
        "command": ["berth"],
        "args": args,
        "volumeMounts": [{ "name": VOLUME, "mountPath": FETCHED }],
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] },
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": true,
            "runAsUser": NOBODY,
        },
    });
    if let Some(secret) = &part.credentials_secret {
        container["envFrom"] = json!([{ "secretRef": { "name": secret } }]);
    }
    container
}

/// The list, if anything is in it.
fn some<T: serde::Serialize>(list: &[T]) -> Option<Value> {
    (!list.is_empty()).then(|| json!(list))
}

fn service(model: &ModelDeployment, identity: &Identity) -> Value {
    let ports: Vec<Value> = model.spec.container.ports.iter().map(|port| {
        json!({ "name": port.name, "port": port.service_port.unwrap_or(port.port), "targetPort": port.name, "protocol": "TCP" })
    }).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(identity),
        "spec": { "selector": { SELECTOR: identity.name }, "ports": ports },
    })
}
