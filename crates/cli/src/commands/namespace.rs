//! Namespaces on the command line: `-n`, `-A`, `BERTH_NAMESPACE`, and names as people write them.

use berth_spec::{DeploymentName, Namespace};
use clap::Args;

use super::resource::Resource;
use crate::failure::Failure;

/// The namespace of the things that a command names.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct NamespaceArgs {
    /// Namespace of the deployments, aliases and functions [default: that of the context, else default]; without it, NAME may be NAMESPACE/NAME
    #[arg(short = 'n', long, value_name = "NAMESPACE", env = "BERTH_NAMESPACE", add = super::completing::namespaces())]
    pub(crate) namespace: Option<Namespace>,
}

impl NamespaceArgs {
    /// Reads a deployment's name: with a namespace the whole name, without one the written form.
    pub(crate) fn name(&self, text: &str) -> Result<DeploymentName, Failure> {
        self.name_of(Resource::Deployments, text)
    }

    /// The same of a thing of a kind that has addresses in namespaces.
    pub(crate) fn name_of(&self, resource: Resource, text: &str) -> Result<DeploymentName, Failure> {
        let name = match &self.namespace {
            Some(namespace) => DeploymentName::within(namespace, text),
            None => DeploymentName::new(text),
        };
        let kind = if resource == Resource::Functions { "function" } else { "deployment" };
        name.map_err(|error| Failure::Usage(format!("{text:?} is not the name of a {kind}: {error}")))
    }

    /// The same for names of things of some kind; those of things that are in no namespace stay as they are.
    pub(crate) fn written(&self, resource: Resource, text: &str) -> Result<String, Failure> {
        match resource.is_addressed_by_namespace() {
            true => self.name_of(resource, text).map(|name| name.to_string()),
            false => Ok(text.to_owned()),
        }
    }

    /// The parameter of a request whose documents belong to the namespace.
    pub(crate) fn query(&self) -> Vec<(&'static str, String)> {
        self.namespace.iter().map(|namespace| ("namespace", namespace.to_string())).collect()
    }
}

/// The segments of a deployment's address.
pub(crate) fn path_of(name: &DeploymentName) -> Vec<&str> {
    path_in(Resource::Deployments, name)
}

/// The segments of the address of a thing in a namespace.
pub(crate) fn path_in(resource: Resource, name: &DeploymentName) -> Vec<&str> {
    match name.namespace() {
        berth_spec::id::DEFAULT_NAMESPACE => vec![resource.plural(), name.name()],
        namespace => vec!["namespaces", namespace, resource.plural(), name.name()],
    }
}

/// The segments of the address of a list: that of a namespace, where the API has one for this kind.
pub(crate) fn list_in(resource: Resource, namespace: Option<&Namespace>) -> Vec<&str> {
    match namespace.filter(|_| resource.is_listed_by_namespace()) {
        Some(namespace) => vec!["namespaces", namespace.as_str(), resource.plural()],
        None => vec![resource.plural()],
    }
}

/// The segments of the address of the events about deployments and functions of a namespace, which a role limited to it opens.
pub(crate) fn events_in(namespace: &Namespace) -> Vec<&str> {
    vec!["namespaces", namespace.as_str(), Resource::Events.plural()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_makes_the_argument_the_whole_name() {
        let team = NamespaceArgs { namespace: Namespace::new("team").ok() };
        let none = NamespaceArgs::default();
        for (args, text, written) in [
            (&none, "iris", "iris"),
            (&none, "team/iris", "team/iris"),
            (&team, "iris", "team/iris"),
            (&team, "a/b", "team/a/b"),
        ] {
            assert_eq!(args.name(text).expect("a name").to_string(), written);
        }
        let name = team.name("a/b").expect("a name");
        assert_eq!(path_of(&name), ["namespaces", "team", "deployments", "a/b"]);
        assert_eq!(path_of(&none.name("iris").expect("a name")), ["deployments", "iris"]);
        let inside = team.namespace.as_ref();
        assert_eq!(list_in(Resource::Deployments, inside), ["namespaces", "team", "deployments"]);
        assert_eq!(list_in(Resource::Aliases, Some(&Namespace::DEFAULT)), ["namespaces", "default", "aliases"]);
        assert_eq!(list_in(Resource::Deployments, None), ["deployments"]);
        assert_eq!(list_in(Resource::Functions, inside), ["namespaces", "team", "functions"]);
        assert_eq!(team.written(Resource::Functions, "words").expect("a name"), "team/words");
        assert_eq!(team.written(Resource::Nodes, "a").expect("a name"), "a", "nodes are in no namespace");
        let words = team.name_of(Resource::Functions, "words").expect("a name");
        assert_eq!(path_in(Resource::Functions, &words), ["namespaces", "team", "functions", "words"]);
        assert_eq!(list_in(Resource::Replicas, inside), ["namespaces", "team", "replicas"]);
        assert_eq!(list_in(Resource::Events, inside), ["events"], "with those of the whole system");
        assert_eq!(inside.map(events_in), Some(vec!["namespaces", "team", "events"]));
        let error = none.name("Team/iris").expect_err("no namespace").to_string();
        assert!(error.contains("lower-case"), "{error}");
    }
}
