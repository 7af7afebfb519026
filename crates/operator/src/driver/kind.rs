//! The kinds of objects that are watched.

use kube::core::{ApiResource, DynamicObject, GroupVersionKind, TypeMeta};
use kube::{Api, Client};
use serde_json::Value;

use crate::{
    api::{GROUP, VERSION, async_api},
    render::{EXECUTOR, Installation, OPTIONAL, PICKER},
};

/// A kind of objects that the operator watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    CLOps,
    Model,
    AsyncApi,
    Deployment,
    Service,
    ConfigMap,
    Budget,
    /// Of `autoscaling/v2`.
    Autoscaler,
    /// Of `autoscaling/v2beta2`, in clusters before 1.23.
    OlderAutoscaler,
    /// Of the Gateway API Inference Extension.
    Pool,
    /// Of the Gateway API.
    Route,
    Account,
    RoleBinding,
}

impl Kind {
    pub(super) const ALL: [Self; 13] = [
        Self::CLOps,
        Self::Model,
        Self::AsyncApi,
        Self::Deployment,
        Self::Service,
        Self::ConfigMap,
        Self::Budget,
        Self::Autoscaler,
        Self::OlderAutoscaler,
        Self::Pool,
        Self::Route,
        Self::Account,
        Self::RoleBinding,
    ];

    /// Kinds of objects that an endpoint picker consists of.
    pub(super) const OF_PICKER: [Self; 4] = [Self::Deployment, Self::Service, Self::Account, Self::RoleBinding];

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

    /// True for the custom resources of the operator, all of which are watched; the others are watched by their label.
    pub(super) fn is_own(self) -> bool {
        matches!(self, Self::CLOps | Self::Model | Self::AsyncApi)
    }

    /// True for kinds whose custom resources a cluster may lack, and get later.
    pub(super) fn is_optional(self) -> bool {
        OPTIONAL.contains(&self.name())
    }

    /// True for kinds that pools, their pickers and their routes alone need.
    pub(super) fn is_of_pools(self) -> bool {
        self.is_optional() || matches!(self, Self::Account | Self::RoleBinding)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::CLOps => "CLOpsDeployment",
            Self::Model => "ModelDeployment",
            Self::AsyncApi => async_api::KIND,
            Self::Deployment => "Deployment",
            Self::Service => "Service",
            Self::ConfigMap => "ConfigMap",
            Self::Budget => "PodDisruptionBudget",
            Self::Autoscaler | Self::OlderAutoscaler => "HorizontalPodAutoscaler",
            Self::Pool => "InferencePool",
            Self::Route => "HTTPRoute",
            Self::Account => "ServiceAccount",
            Self::RoleBinding => "RoleBinding",
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
            Self::AsyncApi => (GROUP, VERSION, "asyncapis"),
            Self::Deployment => ("apps", "v1", "deployments"),
            Self::Service => ("", "v1", "services"),
            Self::ConfigMap => ("", "v1", "configmaps"),
            Self::Budget => ("policy", "v1", "poddisruptionbudgets"),
            Self::Autoscaler => ("autoscaling", "v2", "horizontalpodautoscalers"),
            Self::OlderAutoscaler => ("autoscaling", "v2beta2", "horizontalpodautoscalers"),
            Self::Pool => ("inference.networking.k8s.io", "v1", "inferencepools"),
            Self::Route => ("gateway.networking.k8s.io", "v1", "httproutes"),
            Self::Account => ("", "v1", "serviceaccounts"),
            Self::RoleBinding => ("rbac.authorization.k8s.io", "v1", "rolebindings"),
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

    /// A model of the same namespace.
    fn model(&self, name: String) -> Self {
        Self { name, ..self.sibling(Kind::Model) }
    }

    /// The model that an `AsyncAPI` of this name belongs to.
    pub(super) fn model_of_async_api(&self) -> Option<Self> {
        let (model, _) = self.name.split_once('.')?;
        Some(self.model(model.to_owned()))
    }

    /// The objects whose decisions look at this one: itself, where it has decisions, and its owner.
    pub(super) fn dependents(&self) -> Vec<Self> {
        match self.kind {
            Kind::CLOps => vec![self.clone()],
            Kind::Model => vec![self.clone(), self.sibling(Kind::CLOps)],
            Kind::AsyncApi => [self.clone()].into_iter().chain(self.model_of_async_api()).collect(),
            Kind::Budget | Kind::Autoscaler | Kind::OlderAutoscaler | Kind::Pool | Kind::Route => {
                vec![self.sibling(Kind::Model)]
            }
            // Of a model, or of the picker of one.
            Kind::Deployment | Kind::Service | Kind::Account | Kind::RoleBinding => {
                let picked = self.name.strip_suffix(PICKER).map(str::to_owned);
                [self.name.clone()].into_iter().chain(picked).map(|name| self.model(name)).collect()
            }
            Kind::ConfigMap => {
                let model = self.name.rsplit_once(EXECUTOR).map(|(name, _)| name.to_owned());
                model.map(|name| self.model(name)).into_iter().collect()
            }
        }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind.name(), self.namespace, self.name)
    }
}
