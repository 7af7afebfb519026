//! The kinds of objects that are watched.

use kube::core::{ApiResource, DynamicObject, GroupVersionKind, TypeMeta};
use kube::{Api, Client};
use serde_json::Value;

use crate::{
    api::{GROUP, VERSION},
    render::{EXECUTOR, Installation},
};

/// A kind of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    CLOps,
    Model,
    Deployment,
    Service,
    ConfigMap,
    Budget,
    /// Of `autoscaling/v2`.
    Autoscaler,
    /// Of `autoscaling/v2beta2`, in clusters before 1.23.
    OlderAutoscaler,
}

impl Kind {
    pub(super) const ALL: [Self; 8] = [
        Self::CLOps,
        Self::Model,
        Self::Deployment,
        Self::Service,
        Self::ConfigMap,
        Self::Budget,
        Self::Autoscaler,
        Self::OlderAutoscaler,
    ];

    /// The kinds that a cluster has.
    pub(super) fn of_cluster(installation: &Installation) -> Vec<Self> {
        let is_there = |kind: &Self| match kind {
            Self::Budget => installation.disruption_budgets,
            Self::Autoscaler => installation.stable_autoscalers,
            Self::OlderAutoscaler => !installation.stable_autoscalers,
            _ => true,
        };
        Self::ALL.into_iter().filter(is_there).collect()
    }

    /// True for what people write; the others are derived, and watched by their label.
    pub(super) fn is_written(self) -> bool {
        matches!(self, Self::CLOps | Self::Model)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::CLOps => "CLOpsDeployment",
            Self::Model => "ModelDeployment",
            Self::Deployment => "Deployment",
            Self::Service => "Service",
            Self::ConfigMap => "ConfigMap",
            Self::Budget => "PodDisruptionBudget",
            Self::Autoscaler | Self::OlderAutoscaler => "HorizontalPodAutoscaler",
        }
    }

    /// The kind of an object that says its type.
    pub(super) fn of(object: &Value) -> Option<Self> {
        let is_it = |kind: &Self| object["kind"] == kind.name() && object["apiVersion"] == kind.resource().api_version;
        Self::ALL.into_iter().find(is_it)
    }

    fn resource(self) -> ApiResource {
        let (group, version, plural) = match self {
            Self::CLOps => (GROUP, VERSION, "clopsdeployments"),
            Self::Model => (GROUP, VERSION, "modeldeployments"),
            Self::Deployment => ("apps", "v1", "deployments"),
            Self::Service => ("", "v1", "services"),
            Self::ConfigMap => ("", "v1", "configmaps"),
            Self::Budget => ("policy", "v1", "poddisruptionbudgets"),
            Self::Autoscaler => ("autoscaling", "v2", "horizontalpodautoscalers"),
            Self::OlderAutoscaler => ("autoscaling", "v2beta2", "horizontalpodautoscalers"),
        };
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, self.name()), plural)
    }

    pub(super) fn type_meta(self) -> TypeMeta {
        let ApiResource { api_version, kind, .. } = self.resource();
        TypeMeta { api_version, kind }
    }

    /// The objects of a namespace, or of all.
    pub(super) fn api(self, client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &self.resource()),
            None => Api::all_with(client.clone(), &self.resource()),
        }
    }
}

/// One object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) kind: Kind,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Key {
    pub(super) fn of(kind: Kind, object: &Value) -> Self {
        let field = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
        Self { kind, namespace: field("namespace"), name: field("name") }
    }

    /// The same name, of another kind.
    pub(super) fn sibling(&self, kind: Kind) -> Self {
        Self { kind, ..self.clone() }
    }

    /// The objects whose decisions look at this one: itself, where people write it, and its owner.
    pub(super) fn concerned(&self) -> Vec<Self> {
        match self.kind {
            Kind::CLOps => vec![self.clone()],
            Kind::Model => vec![self.clone(), self.sibling(Kind::CLOps)],
            Kind::Deployment | Kind::Service | Kind::Budget | Kind::Autoscaler | Kind::OlderAutoscaler => {
                vec![self.sibling(Kind::Model)]
            }
            Kind::ConfigMap => {
                let model = self.name.rsplit_once(EXECUTOR).map(|(name, _)| name.to_owned());
                model.map(|name| Self { name, ..self.sibling(Kind::Model) }).into_iter().collect()
            }
        }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind.name(), self.namespace, self.name)
    }
}
