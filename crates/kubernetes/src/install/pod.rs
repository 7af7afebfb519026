//! The pod of a fleet's node.

use serde_json::{Value, json};

use super::{ClusterSettings, DRAIN, FleetSettings, PORT, USER};

/// The folder where a Secret with storages is mounted.
const STORAGES: &str = "/var/run/secrets/berth/storages";

pub(super) fn pod(settings: &FleetSettings, cluster: Option<&ClusterSettings>) -> Value {
    let probe = |path: &str| json!({ "httpGet": { "path": path, "port": "http" } });
    let data = json!({ "name": "data", "mountPath": "/data" });
    let all = volumes(settings).into_iter().chain(cluster.into_iter().flat_map(ClusterSettings::volumes));
    let (mut contents, mut mounts): (Vec<Value>, Vec<Value>) = all.map(|volume| (volume.content, volume.mount)).unzip();
    mounts.insert(0, data);
    contents.extend(cluster.map(ClusterSettings::authority));
    let mut variables = cluster.map(|cluster| cluster.environment(settings)).unwrap_or_default();
    variables.extend(environment(settings));
    let mut ports = vec![json!({ "name": "http", "containerPort": PORT, "protocol": "TCP" })];
    ports.extend(cluster.into_iter().flat_map(|_| ClusterSettings::ports()));
    let mut container = json!({
        "name": "berth",
        "image": settings.image,
        "command": ["berth"],
        "args": [if cluster.is_some() { "node" } else { "up" }],
        "env": variables,
        "ports": ports,
        "livenessProbe": probe("/v2/health/live"),
        "readinessProbe": probe("/v2/health/ready"),
        "resources": { "requests": { "memory": settings.memory }, "limits": { "memory": settings.memory } },
        "volumeMounts": mounts,
        "securityContext": restricted(),
    });
    if let Some(secret) = &settings.credentials {
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
    if cluster.is_some() {
        pod["initContainers"] = json!([ClusterSettings::init(settings)]);
        // Models move before the requests in flight end.
        pod["terminationGracePeriodSeconds"] = json!(4 * DRAIN);
        pod["topologySpreadConstraints"] = json!([{
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": { "matchLabels": settings.labels() },
        }]);
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

fn environment(settings: &FleetSettings) -> Vec<Value> {
    let place = settings.follow.as_ref().map_or("kubernetes".to_owned(), |name| format!("kubernetes={name}"));
    let (name, namespace) = (&settings.name, &settings.namespace);
    let url = settings.url.clone().unwrap_or_else(|| format!("http://{name}.{namespace}.svc:{PORT}"));
    let gateway = settings.gateway.clone();
    let service = gateway.as_ref().map(|_| format!("{namespace}/{name}:{PORT}"));
    let all = [
        ("BERTH_SOURCE", Some(place)),
        ("BERTH_KUBERNETES_URL", Some(url)),
        ("BERTH_DATA", Some("/data".to_owned())),
        ("BERTH_HTTP_ADDR", Some(format!("0.0.0.0:{PORT}"))),
        ("BERTH_INSECURE", Some("true".to_owned())),
        ("BERTH_DRAIN_TIMEOUT", Some(format!("{DRAIN}s"))),
        ("BERTH_KUBERNETES_SELECTOR", settings.selector.clone()),
        ("BERTH_KUBERNETES_GATEWAY", gateway),
        ("BERTH_KUBERNETES_SERVICE", service),
        ("BERTH_HTTP_METRICS", settings.service_monitor.then(|| "true".to_owned())),
        ("BERTH_STORAGE_CONFIG", settings.storage_config.as_ref().map(|_| STORAGES.to_owned())),
    ];
    all.into_iter().filter_map(|(name, value)| Some(json!({ "name": name, "value": value? }))).collect()
}

/// A volume of the pod, and its place in the container that runs models.
pub(super) struct Volume {
    pub(super) content: Value,
    pub(super) mount: Value,
}

/// Volumes beside that of the node's data.
fn volumes(settings: &FleetSettings) -> Vec<Volume> {
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
    [scratch].into_iter().chain(storages).chain(claims).collect()
}
