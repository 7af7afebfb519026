//! The kinds of objects that are followed.

use berth_operator::api::{GROUP, VERSION};
use berth_spec::dialect::kserve;
use kube::{
    Api, Client,
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::{Value, json};

/// A kind of objects. Of two objects that want one name, that of the earlier kind has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Model,
    InferenceService,
    Predictor,
    TrainedModel,
    ServingRuntime,
    ClusterServingRuntime,
    Route,
}

impl Kind {
    pub(crate) const ALL: [Self; 7] = [
        Self::Model,
        Self::InferenceService,
        Self::Predictor,
        Self::TrainedModel,
        Self::ServingRuntime,
        Self::ClusterServingRuntime,
        Self::Route,
    ];

    /// The kinds that a source follows.
    pub(crate) fn followed(with_routes: bool) -> Vec<Self> {
        Self::ALL.into_iter().filter(|kind| with_routes || *kind != Self::Route).collect()
    }

    /// True for objects that declare models.
    pub(crate) fn is_model(self) -> bool {
        !matches!(self, Self::ServingRuntime | Self::ClusterServingRuntime | Self::Route)
    }

    /// True for kinds of KServe and ModelMesh.
    pub(crate) fn is_of_kserve(self) -> bool {
        !matches!(self, Self::Model | Self::Route)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Model => "ModelDeployment",
            Self::InferenceService => "InferenceService",
            Self::Predictor => "Predictor",
            Self::TrainedModel => "TrainedModel",
            Self::ServingRuntime => "ServingRuntime",
            Self::ClusterServingRuntime => "ClusterServingRuntime",
            Self::Route => "HTTPRoute",
        }
    }

    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Model => "modeldeployments",
            Self::InferenceService => "inferenceservices",
            Self::Predictor => "predictors",
            Self::TrainedModel => "trainedmodels",
            Self::ServingRuntime => "servingruntimes",
            Self::ClusterServingRuntime => "clusterservingruntimes",
            Self::Route => "httproutes",
        }
    }

    pub(crate) fn group_version(self) -> (&'static str, &'static str) {
        match self {
            Self::Model => (GROUP, VERSION),
            Self::Route => ("gateway.networking.k8s.io", "v1"),
            Self::InferenceService => (kserve::GROUP.trim_end_matches('/'), "v1beta1"),
            _ => (kserve::GROUP.trim_end_matches('/'), "v1alpha1"),
        }
    }

    /// `apiVersion` of the objects as they are read.
    pub(crate) fn api_version(self) -> String {
        let (group, version) = self.group_version();
        format!("{group}/{version}")
    }

    /// The objects of a namespace, or of all.
    pub(crate) fn api(self, client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
        let (group, version) = self.group_version();
        let gvk = GroupVersionKind::gvk(group, version, self.name());
        let resource = ApiResource::from_gvk_with_plural(&gvk, self.plural());
        match namespace.filter(|_| self != Self::ClusterServingRuntime) {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        }
    }
}

/// The rights that the source uses.
pub(crate) fn rules(with_routes: bool) -> Value {
    let mut rules = Vec::new();
    for of_kserve in [false, true] {
        let kinds: Vec<Kind> =
            Kind::ALL.into_iter().filter(|kind| *kind != Kind::Route && kind.is_of_kserve() == of_kserve).collect();
        let models = kinds.iter().filter(|kind| kind.is_model());
        let group = kinds[0].group_version().0;
        let read: Vec<&str> = kinds.iter().map(|kind| kind.plural()).collect();
        let write: Vec<String> = models.map(|kind| format!("{}/status", kind.plural())).collect();
        rules.push(json!({ "apiGroups": [group], "resources": read, "verbs": ["list", "watch"] }));
        rules.push(json!({ "apiGroups": [group], "resources": write, "verbs": ["patch"] }));
    }
    if with_routes {
        let (group, plural) = (Kind::Route.group_version().0, Kind::Route.plural());
        // A server-side apply of a new object needs create.
        rules.push(
            json!({ "apiGroups": [group], "resources": [plural], "verbs": ["list", "watch", "create", "patch"] }),
        );
    }
    Value::Array(rules)
}
