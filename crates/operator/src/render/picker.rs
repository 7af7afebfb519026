//! Objects that run an endpoint picker: a Deployment of one pod and its Service, for pools of models and of fleets.

use serde_json::{Value, json};

use super::PICKER_OF;

/// The port that Gateways ask a picker at: that of the Gateway API Inference Extension.
pub const LISTEN: u16 = 9_002;

/// The port of its probes and metrics.
pub const METRICS: u16 = 9_090;

/// The user of the image.
const USER: u32 = 65_532;

/// Time for requests under way when a picker ends, in seconds. New ones go to the next picker, which is ready then.
const GRACE: u32 = 60;

/// An endpoint picker as it runs in a cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct PickerWorkload {
    /// The metadata of its objects; their name is that of its service account.
    pub metadata: Value,
    /// The pool that it picks for.
    pub pool: String,
    /// The namespace of the picker and of its pool.
    pub namespace: String,
    /// The image of Berth, whose `berth operator picker` runs in the pod.
    pub image: String,
    /// The labels of the pool's pods, as `kubectl -l` takes them.
    pub selector: String,
    /// The port at which those pods take requests.
    pub port: u16,
    /// The most requests of one pod at once; `None`: any number.
    pub most: Option<u32>,
}

impl PickerWorkload {
    /// The Deployment and the Service.
    #[must_use]
    pub fn objects(&self) -> Vec<Value> {
        let labels = json!({ PICKER_OF: self.pool });
        let deployment = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": self.metadata,
            "spec": {
                // One knows of all requests; a second one would know of its own alone. The next is ready before this one ends.
                "replicas": 1,
                "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 1 } },
                "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": self.pod() },
            },
        });
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self.metadata,
            "spec": {
                "selector": labels,
                "ports": [{
                    "name": "grpc",
                    "port": LISTEN,
                    "targetPort": "grpc",
                    "protocol": "TCP",
                    "appProtocol": "kubernetes.io/h2c",
                }],
            },
        });
        vec![deployment, service]
    }

    fn pod(&self) -> Value {
        json!({
            "serviceAccountName": self.metadata["name"],
            // The account itself gives none to whoever else runs as it.
            "automountServiceAccountToken": true,
            "terminationGracePeriodSeconds": GRACE,
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": USER,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [self.container()],
        })
    }

    fn container(&self) -> Value {
        let probe = |path: &str| json!({ "httpGet": { "path": path, "port": "metrics" }, "periodSeconds": 5 });
        let mut args = vec!["operator".to_owned(), "picker".to_owned()];
        let mut say = |flag: &str, value: String| args.extend([flag.to_owned(), value]);
        say("--namespace", self.namespace.clone());
        say("--selector", self.selector.clone());
        say("--port", self.port.to_string());
        say("--listen", format!("0.0.0.0:{LISTEN}"));
        say("--metrics-listen", format!("0.0.0.0:{METRICS}"));
        if let Some(most) = self.most {
            say("--max-in-flight", most.to_string());
        }
        json!({
            "name": "picker",
            "image": self.image,
            "command": ["berth"],
            "args": args,
            "ports": [
                { "name": "grpc", "containerPort": LISTEN, "protocol": "TCP" },
                { "name": "metrics", "containerPort": METRICS, "protocol": "TCP" },
            ],
            "livenessProbe": probe("/livez"),
            "readinessProbe": probe("/readyz"),
            "resources": { "requests": { "cpu": "50m", "memory": "32Mi" }, "limits": { "memory": "256Mi" } },
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "capabilities": { "drop": ["ALL"] },
                "readOnlyRootFilesystem": true,
            },
        })
    }
}
