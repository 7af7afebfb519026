//! A function, for people, and the state of the source.

use std::collections::BTreeMap;

use berth_control::store::Rev;
use berth_wire::api::{API_VERSION, FunctionSpec, FunctionView, Kind, Metadata};
use serde::Serialize;

use crate::{controller::View, deployment::Platform, status::Status};

/// A function, for people.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Its name.
    pub name: String,
    /// `spec.type`; empty where the spec is invalid.
    pub r#type: String,
    /// The place of its code.
    pub source: String,
    /// The platform of its spec.
    pub platform: String,
    /// Number of the desired state.
    pub generation: i64,
    /// Its status.
    pub status: Status,
}

impl Summary {
    /// The summary of a function.
    pub(crate) fn of(view: &View<'_>) -> Self {
        let platform = |platform: &Platform| match platform {
            Platform::Local => "local",
            Platform::Azure(_) => "azure-function",
        };
        Self {
            name: view.name.to_owned(),
            r#type: view.spec.map(|spec| spec.kind.clone()).unwrap_or_default(),
            source: view.spec.map(|spec| spec.source.to_string()).unwrap_or_default(),
            platform: view.spec.map(|spec| platform(&spec.platform).to_owned()).unwrap_or_default(),
            generation: view.generation,
            status: view.status.clone(),
        }
    }

    /// The same in the shape of the API.
    pub(crate) fn view(&self) -> FunctionView {
        let status = serde_json::to_value(&self.status).and_then(serde_json::from_value);
        FunctionView {
            api_version: API_VERSION.to_owned(),
            kind: FunctionView::KIND.to_owned(),
            metadata: Metadata::named(self.name.clone()),
            spec: FunctionSpec {
                r#type: self.r#type.clone(),
                source_uri: self.source.clone(),
                platform: self.platform.clone(),
                generation: self.generation,
            },
            // Both are the status of an object.
            status: status.unwrap_or_default(),
        }
    }
}

/// State of the source.
#[derive(Debug)]
pub(crate) struct Report {
    /// Revision of the store up to which everything was taken in.
    pub(crate) rev: Rev,
    /// The reason why nothing new is heard.
    pub(crate) problem: Option<String>,
    /// Functions by phase.
    pub(crate) functions: BTreeMap<&'static str, usize>,
}
