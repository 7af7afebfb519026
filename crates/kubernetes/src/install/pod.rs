//! The pod of a fleet's node.

use serde_json::{Value, json};

use super::{ClusterSettings, DRAIN, FleetSettings, PORT, USER, cluster};

/// The folder where a Secret with storages is mounted.
const STORAGES: &str = "/var/run/secrets/berth/storages";

/// Memory of a controller: it holds no models, and 100,000 deployments take less than half of it.
const CONTROLLER_MEMORY: &str = "1Gi";

/// Role of a pod in its fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PodRole<'a> {
    /// The only one.
    Alone,
    /// One of those that run models.
    Node(&'a ClusterSettings),
    /// One of those that decide.
    Controller(&'a ClusterSettings),
}

impl<'a> PodRole<'a> {
    fn cluster(self) -> Option<&'a ClusterSettings> {
        match self {
            Self::Alone => None,
            Self::Node(cluster) | Self::Controller(cluster) => Some(cluster),
        }
    }

    fn labels(self, settings: &FleetSettings) -> Value {
        match self {
            Self::Alone | Self::Node(_) => settings.labels(),
            Self::Controller(_) => cluster::controllers(settings).labels(),
        }
    }

    const fn decides(self) -> bool {
        !matches!(self, Self::Node(_))
    }

    const fn runs_models(self) -> bool {
        !matches!(self, Self::Controller(_))
    }
}

/// The pod of a fleet with these settings; `role` says which.
pub(super) fn pod(settings: &FleetSettings, role: PodRole<'_>) -> Value {
    let probe = |path: &str| json!({ "httpGet": { "path": path, "port": "http" } });
    let data = json!({ "name": "data", "mountPath": "/data" });
    let of_cluster = role.cluster().map(|cluster| cluster.volumes(role)).unwrap_or_default();
    let all = volumes(settings, role).into_iter().chain(of_cluster);
    let (contents, mut mounts): (Vec<Value>, Vec<Value>) = all.map(|volume| (volume.content, volume.mount)).unzip();
    mounts.insert(0, data);
    let mut variables = role.cluster().map(|cluster| cluster.environment(settings, role)).unwrap_or_default();
    variables.extend(environment(settings, role));
    let mut ports = vec![json!({ "name": "http", "containerPort": PORT, "protocol": "TCP" })];
    ports.extend(role.cluster().into_iter().flat_map(|_| ClusterSettings::ports()));
    let memory = if role.runs_models() { settings.memory.as_str() } else { CONTROLLER_MEMORY };
    let command = if role == PodRole::Alone { "up" } else { "node" };
    let mut container = json!({
        "name": "berth",
        "image": settings.image,
        "command": ["berth"],
        "args": [command],
        "env": variables,
        "ports": ports,
        "livenessProbe": probe("/v2/health/live"),
        "readinessProbe": probe("/v2/health/ready"),
        "resources": { "requests": { "memory": memory }, "limits": { "memory": memory } },
        "volumeMounts": mounts,
        "securityContext": restricted(),
    });
    if let Some(secret) = settings.credentials.as_ref().filter(|_| role.runs_models()) {
        container["envFrom"] = json!([{ "secretRef": { "name": secret } }]);
    }
    let mut pod = json!({
        "serviceAccountName": settings.name,
        "terminationGracePeriodSeconds": 2 * DRAIN,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": USER,
            "fsGroup": USER,
            "seccompProfile": { "type": "RuntimeDefault" },
        },
        "containers": [container],
        "volumes": contents,
    });
    if role != PodRole::Alone {
        // Models move before the requests in flight end.
        pod["terminationGracePeriodSeconds"] = json!(4 * DRAIN);
        pod["topologySpreadConstraints"] = json!([{
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": { "matchLabels": role.labels(settings) },
        }]);
        cluster::complete(settings, role, &mut pod);
    }
    pod
}

/// The privileges of a container: none.
pub(super) fn restricted() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "capabilities": { "drop": ["ALL"] },
        "readOnlyRootFilesystem": true,
    })
}

/// Settings of the server. The source belongs to those who decide, storages to those who run models.
fn environment(settings: &FleetSettings, role: PodRole<'_>) -> Vec<Value> {
    let source = settings.follow.as_ref().map_or("kubernetes".to_owned(), |name| format!("kubernetes={name}"));
    let (name, namespace) = (&settings.name, &settings.namespace);
    let url = settings.url.clone().unwrap_or_else(|| format!("http://{name}.{namespace}.svc:{PORT}"));
    let gateway = settings.gateway.clone();
    let service = gateway.as_ref().map(|_| format!("{namespace}/{name}:{PORT}"));
    let decided = |value: String| Some(value).filter(|_| role.decides());
    let storages = settings.storage_config.as_ref().filter(|_| role.runs_models());
    let all = [
        ("BERTH_SOURCE", decided(source)),
        ("BERTH_KUBERNETES_URL", decided(url)),
        ("BERTH_DATA", Some("/data".to_owned())),
        ("BERTH_HTTP_ADDR", Some(format!("0.0.0.0:{PORT}"))),
        ("BERTH_INSECURE", Some("true".to_owned())),
        ("BERTH_DRAIN_TIMEOUT", Some(format!("{DRAIN}s"))),
        ("BERTH_KUBERNETES_SELECTOR", settings.selector.clone().and_then(decided)),
        ("BERTH_KUBERNETES_GATEWAY", gateway.and_then(decided)),
        ("BERTH_KUBERNETES_SERVICE", service.and_then(decided)),
        ("BERTH_HTTP_METRICS", settings.service_monitor.then(|| "true".to_owned())),
        ("BERTH_STORAGE_CONFIG", storages.map(|_| STORAGES.to_owned())),
    ];
    all.into_iter().filter_map(|(name, value)| Some(json!({ "name": name, "value": value? }))).collect()
}

/// A volume of the pod, and its place in the container that runs models.
pub(super) struct Volume {
    pub(super) content: Value,
    pub(super) mount: Value,
}

/// Volumes beside that of the node's data.
fn volumes(settings: &FleetSettings, role: PodRole<'_>) -> Vec<Volume> {
    let scratch = Volume {
        content: json!({ "name": "tmp", "emptyDir": {} }),
        mount: json!({ "name": "tmp", "mountPath": "/tmp" }),
    };
    let storages = settings.storage_config.iter().map(|secret| Volume {
        content: json!({ "name": "storages", "secret": { "secretName": secret } }),
        mount: json!({ "name": "storages", "mountPath": STORAGES, "readOnly": true }),
    });
    let claims = settings.volumes.iter().enumerate().map(|(at, claim)| {
        let name = format!("claim-{at}");
        Volume {
            content: json!({ "name": name, "persistentVolumeClaim": { "claimName": claim, "readOnly": true } }),
            // The worker's own place of `pvc://`.
            mount: json!({ "name": name, "mountPath": format!("/pvc_mounts/{claim}"), "readOnly": true }),
        }
    });
    let of_models = storages.chain(claims).filter(|_| role.runs_models());
    [scratch].into_iter().chain(of_models).collect()
}
