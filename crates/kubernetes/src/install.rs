//! The objects that run a fleet in a cluster: a StatefulSet of one node, its address, and the rights that its source uses.

use serde_json::{Value, json};

use crate::kind::rules;

/// The port of inference.
const PORT: u16 = 8080;

/// The user of the image.
const USER: u32 = 65_532;

/// Time for requests in flight at the end of a pod, in seconds; a pod gets twice that.
const DRAIN: u32 = 30;

/// Choices of whoever installs a fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetSettings {
    /// The name of the fleet and of all its objects.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The image of Berth.
    pub image: String,
    /// The only namespace whose objects it follows; `None`: all.
    pub follow: Option<String>,
    /// Labels that these must have.
    pub selector: Option<String>,
    /// Memory of the pod, as in a pod: models take it up.
    pub memory: String,
    /// The size of the volume for the store and for fetched models.
    pub storage: String,
    /// A Secret whose entries are its environment: credentials of buckets.
    pub credentials: Option<String>,
    /// The address of models; `None`: that of the Service.
    pub url: Option<String>,
    /// `NAMESPACE/NAME` of a Gateway that gets a route for each `InferenceService`.
    pub gateway: Option<String>,
}

impl FleetSettings {
    fn metadata(&self) -> Value {
        json!({ "name": self.name, "namespace": self.namespace, "labels": self.labels() })
    }

    fn labels(&self) -> Value {
        json!({ "app.kubernetes.io/name": "berth-fleet", "app.kubernetes.io/instance": self.name })
    }
}

/// The objects, in the order in which they are applied.
#[must_use]
pub fn fleet_objects(settings: &FleetSettings) -> Vec<Value> {
    let mut objects = vec![json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": settings.metadata() })];
    objects.extend(rights(settings));
    objects.push(service(settings));
    objects.push(stateful_set(settings));
    let routed = settings.follow.as_deref().filter(|_| settings.gateway.is_some());
    objects.extend(routed.map(|namespace| grant(settings, namespace)));
    objects
}

fn rights(settings: &FleetSettings) -> [Value; 2] {
    const API: &str = "rbac.authorization.k8s.io";
    let name = settings.name.as_str();
    let subjects = json!([{ "kind": "ServiceAccount", "name": name, "namespace": settings.namespace }]);
    let (kind, metadata) = match &settings.follow {
        Some(namespace) => ("Role", json!({ "name": name, "namespace": namespace, "labels": settings.labels() })),
        None => ("ClusterRole", json!({ "name": name, "labels": settings.labels() })),
    };
    let role = json!({ "apiGroup": API, "kind": kind, "name": name });
    let version = format!("{API}/v1");
    [
        json!({ "apiVersion": version, "kind": kind, "metadata": metadata, "rules": rules(settings.gateway.is_some()) }),
        json!({ "apiVersion": version, "kind": format!("{kind}Binding"), "metadata": metadata, "roleRef": role, "subjects": subjects }),
    ]
}

fn service(settings: &FleetSettings) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": settings.metadata(),
        "spec": {
            "selector": settings.labels(),
            "ports": [{ "name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP" }],
        },
    })
}

/// Lets routes of a namespace lead to the fleet. It cannot say "of all namespaces".
fn grant(settings: &FleetSettings, namespace: &str) -> Value {
    let from = json!([{ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": namespace }]);
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1beta1",
        "kind": "ReferenceGrant",
        "metadata": settings.metadata(),
        "spec": { "from": from, "to": [{ "group": "", "kind": "Service", "name": settings.name }] },
    })
}

fn stateful_set(settings: &FleetSettings) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": settings.metadata(),
        "spec": {
            "serviceName": settings.name,
            // A node alone keeps its state by itself: two of them would be two fleets.
            "replicas": 1,
            "selector": { "matchLabels": settings.labels() },
            "template": { "metadata": { "labels": settings.labels() }, "spec": pod(settings) },
            "volumeClaimTemplates": [{
                "metadata": { "name": "data" },
                "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": settings.storage } } },
            }],
        },
    })
}

fn pod(settings: &FleetSettings) -> Value {
    let probe = |path: &str| json!({ "httpGet": { "path": path, "port": "http" } });
    let place = settings.follow.as_ref().map_or("kubernetes".to_owned(), |name| format!("kubernetes={name}"));
    let (name, namespace) = (&settings.name, &settings.namespace);
    let url = settings.url.clone().unwrap_or_else(|| format!("http://{name}.{namespace}.svc:{PORT}"));
    let mut environment = vec![
        json!({ "name": "BERTH_SOURCE", "value": place }),
        json!({ "name": "BERTH_KUBERNETES_URL", "value": url }),
        json!({ "name": "BERTH_DATA", "value": "/data" }),
        json!({ "name": "BERTH_HTTP_ADDR", "value": format!("0.0.0.0:{PORT}") }),
        json!({ "name": "BERTH_INSECURE", "value": "true" }),
        json!({ "name": "BERTH_DRAIN_TIMEOUT", "value": format!("{DRAIN}s") }),
    ];
    if let Some(selector) = &settings.selector {
        environment.push(json!({ "name": "BERTH_KUBERNETES_SELECTOR", "value": selector }));
    }
    if let Some(gateway) = &settings.gateway {
        environment.push(json!({ "name": "BERTH_KUBERNETES_GATEWAY", "value": gateway }));
        environment.push(json!({ "name": "BERTH_KUBERNETES_SERVICE", "value": format!("{namespace}/{name}:{PORT}") }));
    }
    let mut container = json!({
        "name": "berth",
        "image": settings.image,
        "command": ["berth"],
        "args": ["up"],
        "env": environment,
        "ports": [{ "name": "http", "containerPort": PORT, "protocol": "TCP" }],
        "livenessProbe": probe("/v2/health/live"),
        "readinessProbe": probe("/v2/health/ready"),
        "resources": { "requests": { "memory": settings.memory }, "limits": { "memory": settings.memory } },
        "volumeMounts": [{ "name": "data", "mountPath": "/data" }, { "name": "tmp", "mountPath": "/tmp" }],
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] },
            "readOnlyRootFilesystem": true,
        },
    });
    if let Some(secret) = &settings.credentials {
        container["envFrom"] = json!([{ "secretRef": { "name": secret } }]);
    }
    json!({
        "serviceAccountName": settings.name,
        "terminationGracePeriodSeconds": 2 * DRAIN,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": USER,
            "fsGroup": USER,
            "seccompProfile": { "type": "RuntimeDefault" },
        },
        "containers": [container],
        "volumes": [{ "name": "tmp", "emptyDir": {} }],
    })
}
