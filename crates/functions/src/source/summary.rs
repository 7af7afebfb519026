//! A function, for people, and the state of the source.

use std::{collections::BTreeMap, sync::Arc};

use berth_control::store::Rev;
use berth_spec::{Namespace, Origin, event::Severity, id::DEFAULT_NAMESPACE};
use berth_wire::api::{API_VERSION, FunctionMetadata, FunctionView, Kind};

use crate::{controller::View, deployment::ObjectMeta, status::Status};

/// A function, for people.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Its key: its name in the written form, where it is a name.
    pub name: String,
    /// Its spec as JSON text.
    spec: Arc<str>,
    metadata: ObjectMeta,
    /// Number of the desired state.
    pub generation: i64,
    rev: Rev,
    /// Its status.
    pub status: Arc<Status>,
}

impl Summary {
    /// The summary of a function.
    pub(crate) fn of(view: &View<'_>) -> Self {
        Self {
            name: view.name.to_owned(),
            spec: Arc::clone(view.text),
            metadata: view.metadata.clone(),
            generation: view.generation,
            rev: view.rev,
            status: Arc::clone(view.status),
        }
    }

    /// The source that declared it.
    pub(crate) const fn origin(&self) -> &Origin {
        &self.metadata.origin
    }

    /// The same in the shape of the API.
    pub(crate) fn view(&self) -> FunctionView {
        let status = serde_json::to_value(&*self.status).and_then(serde_json::from_value);
        let (namespace, name) = place_of(&self.name);
        FunctionView {
            api_version: API_VERSION.to_owned(),
            kind: FunctionView::KIND.to_owned(),
            metadata: FunctionMetadata {
                name: name.to_owned(),
                namespace: namespace.to_owned(),
                labels: self.metadata.labels.clone(),
                annotations: self.metadata.annotations.clone(),
                generation: u64::try_from(self.generation).unwrap_or_default(),
                resource_version: self.rev.to_string(),
                origin: self.metadata.owner(),
            },
            // What is no spec was told in the status.
            spec: serde_json::from_str(&self.spec).unwrap_or_default(),
            // Both are the status of an object.
            status: status.unwrap_or_default(),
        }
    }
}

/// The namespace and the name to show for a key. One that is no name of a function is shown in the namespace that it begins with, as
/// its mistake is for those who may read that, and for nobody else. A key that begins with none is shown whole.
fn place_of(key: &str) -> (&str, &str) {
    match key.split_once('/') {
        Some((namespace, name)) if namespace != DEFAULT_NAMESPACE && Namespace::new(namespace).is_ok() => {
            (namespace, name)
        }
        _ => (DEFAULT_NAMESPACE, key),
    }
}

/// Something that happened to a function.
#[derive(Debug)]
pub(crate) struct FunctionEvent {
    pub(crate) severity: Severity,
    /// One word.
    pub(crate) reason: &'static str,
    /// The key of the function.
    pub(crate) function: String,
    /// A sentence that names it.
    pub(crate) message: String,
}

/// State of the source.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Revision of the store up to which everything was taken in.
    pub(crate) rev: Rev,
    /// The reason why nothing new is heard.
    pub(crate) problem: Option<String>,
    /// Functions by phase.
    pub(crate) functions: BTreeMap<&'static str, usize>,
    /// Events since the last report.
    pub(crate) events: Vec<FunctionEvent>,
}

#[cfg(test)]
mod tests {
    use berth_spec::{Event, Time};

    use super::*;

    #[test]
    fn a_key_is_shown_to_those_who_may_read_its_namespace() {
        for (key, namespace, name) in [
            ("words", "default", "words"),
            ("team/words", "team", "words"),
            // A slip in the name of a team's function.
            ("team/two words", "team", "two words"),
            ("team/a/b", "team", "a/b"),
            ("default/words", "default", "default/words"),
            ("Team/words", "default", "Team/words"),
        ] {
            assert_eq!(place_of(key), (namespace, name), "{key}");
            let event = Event {
                at: Time(0),
                severity: Severity::Warning,
                reason: "FunctionNotBuilt",
                message: String::new(),
                deployment: None,
                worker: None,
                function: Some(key.to_owned()),
            };
            assert_eq!(event.namespace(), Some(namespace), "{key}: its events are where it is");
        }
    }
}
