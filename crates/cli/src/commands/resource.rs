//! Resource kinds, with all their names.

use std::str::FromStr;

use berth_spec::{DeploymentName, Namespace, manifest::closest};
use clap::Args;

use crate::{client::Client, failure::Failure};

/// A kind of thing that the API lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource {
    Deployments,
    Nodes,
    Workers,
    Replicas,
    Revisions,
    Aliases,
    Events,
    Sources,
    Secrets,
    Functions,
}

impl Resource {
    /// Every kind with its names; the first is the one in addresses.
    const NAMES: [(Self, &[&str]); 10] = [
        (Self::Deployments, &["deployments", "deployment", "deploy", "modeldeployments", "modeldeployment"]),
        (Self::Nodes, &["nodes", "node", "no"]),
        (Self::Workers, &["workers", "worker"]),
        (Self::Replicas, &["replicas", "replica"]),
        (Self::Revisions, &["revisions", "revision", "rev"]),
        (Self::Aliases, &["aliases", "alias"]),
        (Self::Events, &["events", "event", "ev"]),
        (Self::Sources, &["sources", "source"]),
        (Self::Secrets, &["secrets", "secret"]),
        (Self::Functions, &["functions", "function", "fn"]),
    ];

    /// The name in addresses.
    pub(crate) fn plural(self) -> &'static str {
        self.names()[0]
    }

    /// Singular name.
    pub(crate) fn singular(self) -> &'static str {
        self.names()[1]
    }

    /// The names in addresses of all kinds.
    pub(crate) fn plurals() -> impl Iterator<Item = &'static str> {
        Self::NAMES.iter().map(|(_, names)| names[0])
    }

    /// Things of this kind are in a namespace.
    pub(crate) fn has_namespace(self) -> bool {
        matches!(self, Self::Deployments | Self::Replicas | Self::Revisions | Self::Aliases | Self::Events)
    }

    /// The kind of a document as commands write it: `deployment` for `ModelDeployment`.
    pub(crate) fn of_document(kind: &str) -> String {
        kind.parse::<Self>().map_or_else(|_| kind.to_lowercase(), |resource| resource.singular().to_owned())
    }

    fn names(self) -> &'static [&'static str] {
        Self::NAMES.iter().find(|(resource, _)| *resource == self).map_or(&["", ""], |(_, names)| names)
    }
}

impl FromStr for Resource {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.to_lowercase();
        let found = Self::NAMES.iter().find(|(_, names)| names.contains(&lower.as_str()));
        found.map(|(resource, _)| *resource).ok_or_else(|| match closest(text, Self::plurals()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("there are {}", Self::plurals().collect::<Vec<_>>().join(", ")),
        })
    }
}

/// One thing, written `deployment iris` or `deployment/iris`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Target {
    /// Resource kind, or KIND/NAME
    #[arg(value_name = "KIND", add = super::completing::targets())]
    pub(crate) kind: String,
    /// Resource names
    #[arg(value_name = "NAME", add = super::completing::deployments())]
    pub(crate) names: Vec<String>,
}

impl Target {
    /// The kind and the names that were given, each name once; no name means all.
    pub(crate) fn parse(&self) -> Result<(Resource, Vec<String>), Failure> {
        let (kind, first) = match self.kind.split_once('/') {
            Some((kind, name)) => (kind, Some(name.to_owned())),
            None => (self.kind.as_str(), None),
        };
        let resource: Resource =
            kind.parse().map_err(|hint| Failure::Usage(format!("unknown resource kind {kind:?}: {hint}")))?;
        let mut names: Vec<String> = first.into_iter().collect();
        for name in &self.names {
            let name = match name.split_once('/') {
                Some((other, name)) if other.parse() == Ok(resource) => name,
                _ => name,
            };
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        Ok((resource, names))
    }
}

/// The failure for a name that does not exist, with the name that was most likely meant.
pub(crate) async fn not_found(client: &Client, resource: Resource, name: &str) -> Failure {
    let known = names(client, resource).await.unwrap_or_default();
    let hint = match closest(name, known.iter().map(String::as_str)) {
        Some(near) => format!("did you mean {near:?}?"),
        None if known.is_empty() => format!("there are no {} yet", resource.plural()),
        None => format!("`berth get {}` lists them", resource.plural()),
    };
    Failure::NotFound(format!("there is no {} {name:?}: {hint}", resource.singular()))
}

/// The names of all things of a kind: for suggestions, so the first page is enough.
pub(super) async fn names(client: &Client, resource: Resource) -> Result<Vec<String>, Failure> {
    let list: serde_json::Value = client.get(&[resource.plural()]).await?;
    let items = list.get("items").and_then(serde_json::Value::as_array).cloned().unwrap_or_default();
    let text = |item: &serde_json::Value, field: &str| item.pointer(field).and_then(|n| n.as_str().map(str::to_owned));
    let name = |item: &serde_json::Value| {
        let name = text(item, "/metadata/name")?;
        match text(item, "/metadata/namespace").map(|namespace| Namespace::new(&namespace)) {
            Some(Ok(namespace)) => DeploymentName::within(&namespace, &name).ok().map(|name| name.to_string()),
            _ => Some(name),
        }
    };
    Ok(items.iter().filter_map(name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_many_names_and_wrong_ones_get_a_hint() {
        for (kind, names, wanted) in [
            ("deployment/iris", &[][..], Ok((Resource::Deployments, vec!["iris".to_owned()]))),
            (
                "Deployments",
                &["a", "a", "deployment/b"],
                Ok((Resource::Deployments, vec!["a".to_owned(), "b".to_owned()])),
            ),
            ("events", &[], Ok((Resource::Events, vec![]))),
            ("deploymints", &[], Err("did you mean deployments?")),
            ("zebras", &[], Err("there are deployments, nodes, workers")),
        ] {
            let target = Target { kind: kind.to_owned(), names: names.iter().map(|&n| n.to_owned()).collect() };
            match (target.parse(), wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted),
                (Err(failure), Err(hint)) => assert!(failure.to_string().contains(hint), "{failure}"),
                (found, wanted) => panic!("{kind}: {found:?}, not {wanted:?}"),
            }
        }
    }
}
