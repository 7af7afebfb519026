//! The HorizontalPodAutoscaler of a model.

use serde_json::{Value, json};

use super::{Identity, v1};
use crate::api::model_deployment::Autoscaling;

/// The use of processors that is aimed at where nothing else is measured, in percent: room for what arrives until new pods are ready.
const CPU: u32 = 80;

pub(super) fn render(wanted: &Autoscaling, identity: &Identity) -> Value {
    let cpu = wanted.cpu_utilization.or_else(|| wanted.metrics.is_empty().then_some(CPU));
    let target = |percent| json!({ "type": "Utilization", "averageUtilization": percent });
    let cpu =
        cpu.map(|percent| json!({ "type": "Resource", "resource": { "name": "cpu", "target": target(percent) } }));
    let metrics: Vec<Value> = cpu.into_iter().chain(wanted.metrics.iter().cloned()).collect();
    let mut spec = json!({
        "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": identity.name },
        "minReplicas": wanted.min_replicas.unwrap_or(1),
        "maxReplicas": wanted.max_replicas,
        "metrics": metrics,
    });
    if let Some(behavior) = &wanted.behavior {
        spec["behavior"] = behavior.clone();
    }
    json!({
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": v1::metadata(identity),
        "spec": spec,
    })
}
