//! The kinds of manifests: one raw struct each, one enum over all of them.

use std::collections::{BTreeMap, btree_map::Entry};

use super::{
    MOST_ERRORS, ManifestDeployment, ManifestError, ManifestFunction, ParseContext, Reader, as_written, check,
    in_namespace, is_serving_runtime, list,
    node::{Node, Position},
    raw::RawAlias,
    resolve,
    scalar::Problem,
    schema::alias_json_schema,
};
use crate::{DeploymentName, routes::Stickiness};

/// The kinds that a manifest may have, the usual one first.
pub(super) const KINDS: [&str; 3] = ["ModelDeployment", "Alias", "Function"];

/// Things whose names are unique among each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NameScope {
    /// Deployments and aliases: clients ask for both by name.
    Model,
    /// Functions.
    Function,
}

/// A manifest of any kind that passed every check.
#[derive(Debug, Clone, PartialEq)]
pub enum Manifest {
    /// A model and how it is served.
    Deployment(Box<ManifestDeployment>),
    /// A name for other deployments.
    Alias(Box<ManifestAlias>),
    /// Code that is built and run beside models.
    Function(Box<ManifestFunction>),
}

/// A manifest of an alias that passed every check.
#[derive(Debug, Clone, PartialEq)]
pub struct ManifestAlias {
    /// `metadata.name` in `metadata.namespace`.
    pub name: DeploymentName,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// `metadata.resourceVersion`: the change is only wanted if the stored one still has it.
    pub resource_version: Option<String>,
    /// Deployments of the same namespace with their weights.
    pub targets: Vec<(DeploymentName, u32)>,
    /// The rule by which requests keep to one target.
    pub sticky: Stickiness,
    /// The manifest as the user wrote it, without what the server adds.
    pub raw: serde_json::Value,
}

impl Manifest {
    /// The name; unique within its [`Manifest::key`].
    #[must_use]
    pub fn name(&self) -> &DeploymentName {
        match self {
            Self::Deployment(deployment) => &deployment.name,
            Self::Alias(alias) => &alias.name,
            Self::Function(function) => &function.name,
        }
    }

    /// The name, and what it is unique among.
    #[must_use]
    pub fn key(&self) -> (NameScope, &DeploymentName) {
        let space = match self {
            Self::Deployment(_) | Self::Alias(_) => NameScope::Model,
            Self::Function(_) => NameScope::Function,
        };
        (space, self.name())
    }

    /// The word in the manifest's `kind`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Deployment(_) => "ModelDeployment",
            Self::Alias(_) => "Alias",
            Self::Function(_) => "Function",
        }
    }

    /// The manifest as the user wrote it.
    #[must_use]
    pub const fn raw(&self) -> &serde_json::Value {
        match self {
            Self::Deployment(deployment) => &deployment.raw,
            Self::Alias(alias) => &alias.raw,
            Self::Function(function) => &function.raw,
        }
    }

    /// The folder that a relative location of it starts from, if it has one.
    #[must_use]
    pub fn base(&self) -> Option<&str> {
        match self {
            Self::Deployment(deployment) => deployment.base.as_deref(),
            Self::Alias(_) => None,
            Self::Function(function) => function.base.as_deref(),
        }
    }

    /// `metadata.resourceVersion`.
    #[must_use]
    pub fn resource_version(&self) -> Option<&str> {
        match self {
            Self::Deployment(deployment) => deployment.resource_version.as_deref(),
            Self::Alias(alias) => alias.resource_version.as_deref(),
            Self::Function(function) => function.resource_version.as_deref(),
        }
    }
}

/// Reads all documents of a YAML or JSON text, of any kind; empty ones are skipped, lists are read item by item.
///
/// # Errors
/// The errors in all documents, in reading order, 100 at most and one that says so. A syntax error ends the reading.
pub fn parse_all(text: &str, context: &ParseContext) -> Result<Vec<Manifest>, Vec<ManifestError>> {
    Reader::new(text, context).documents(|reader, node| reader.manifest(node).map(Some), Manifest::key)
}

/// The same, with the `ServingRuntime`s of KServe apart, as they were written. They are for workers, and no manifests.
///
/// # Errors
/// As [`parse_all`].
pub fn parse_beside_runtimes(
    text: &str,
    context: &ParseContext,
) -> Result<(Vec<Manifest>, Vec<serde_json::Value>), Vec<ManifestError>> {
    let mut runtimes = Vec::new();
    let manifests = Reader::new(text, context).documents(
        |reader, node| {
            if is_serving_runtime(node) {
                runtimes.push(node.to_json());
                return Ok(None);
            }
            reader.manifest(node).map(Some)
        },
        Manifest::key,
    )?;
    Ok((manifests, runtimes))
}

impl ManifestAlias {
    /// Reads an alias that is JSON already: what the store holds.
    ///
    /// # Errors
    /// As [`parse_all`]; errors have no place but the path.
    pub fn from_value(raw: &serde_json::Value, context: &ParseContext) -> Result<Self, Vec<ManifestError>> {
        Reader::new("", context).alias(&Node::of(raw))
    }
}

impl Reader<'_> {
    /// Every document of the text, read by `read`, which may leave some out; no two may have the same name.
    pub(super) fn documents<T>(
        &self,
        mut read: impl FnMut(&Self, &Node) -> Result<Option<T>, Vec<ManifestError>>,
        key: impl Fn(&T) -> (NameScope, &DeploymentName),
    ) -> Result<Vec<T>, Vec<ManifestError>> {
        let documents = Node::documents(self.lines.text()).map_err(|e| vec![self.syntax_error(&e)])?;
        let items = list::items(&documents).map_err(|too_many| vec![self.error(too_many.at, "", too_many.problem)])?;
        let (mut found, mut errors) = (Vec::with_capacity(items.len()), Vec::new());
        let mut firsts: BTreeMap<(NameScope, DeploymentName), &list::Item<'_>> = BTreeMap::new();
        for item in &items {
            if errors.len() > MOST_ERRORS {
                break;
            }
            match read(self, item.node) {
                Ok(None) => {}
                Ok(Some(manifest)) => {
                    let (space, name) = key(&manifest);
                    match firsts.entry((space, name.clone())) {
                        Entry::Occupied(first) => errors.push(self.declared_twice(name, first.get(), item)),
                        Entry::Vacant(vacant) => _ = vacant.insert(item),
                    }
                    found.push(manifest);
                }
                Err(more) => errors.extend(more.into_iter().map(|error| item.error(error))),
            }
        }
        if errors.len() > MOST_ERRORS {
            errors.truncate(MOST_ERRORS);
            let more = Problem::new(format!("and more, after the first {MOST_ERRORS}"), "");
            errors.push(self.error(Position::default(), "", more));
        }
        if errors.is_empty() { Ok(found) } else { Err(errors) }
    }

    fn declared_twice(&self, name: &DeploymentName, first: &list::Item<'_>, second: &list::Item<'_>) -> ManifestError {
        let message = format!("{name} is declared twice, first {}", first.place());
        let problem = Problem::new(message, "give one of them another name");
        self.error(second.node.place_of("metadata.name"), &second.path("metadata.name"), problem)
    }

    /// A document of any kind.
    fn manifest(&self, node: &Node) -> Result<Manifest, Vec<ManifestError>> {
        match node.get("kind").and_then(Node::text) {
            Some("Alias") => self.alias(node).map(|alias| Manifest::Alias(Box::new(alias))),
            Some("Function") => self.function(node).map(|function| Manifest::Function(Box::new(function))),
            _ => self.document(node).map(|deployment| Manifest::Deployment(Box::new(deployment))),
        }
    }

    fn alias(&self, node: &Node) -> Result<ManifestAlias, Vec<ManifestError>> {
        self.findings(check::check(node, &self.lines, alias_json_schema()))?;
        let raw = node.to_json();
        let document: RawAlias = serde::Deserialize::deserialize(&raw).map_err(|error: serde_json::Error| {
            vec![self.error(node.at, "", Problem::new(error.to_string(), "see `berth schema alias`"))]
        })?;
        let metadata = &document.metadata;
        let namespace = metadata.namespace.as_ref().map_or(&self.context.namespace, |given| &given.0);
        let name = metadata.name.0.moved_to(namespace);
        let (targets, sticky) = resolve::alias(&document, &name).map_err(|problems| {
            let error = |(path, problem): (&'static str, Problem)| self.error(node.place_of(path), path, problem);
            problems.into_iter().take(MOST_ERRORS + 1).map(error).collect::<Vec<_>>()
        })?;
        Ok(ManifestAlias {
            raw: in_namespace(as_written(raw), name.namespace()),
            name,
            labels: resolve::labels(&metadata.labels),
            annotations: metadata.annotations.clone(),
            resource_version: metadata.resource_version.clone(),
            targets,
            sticky,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALIAS: &str = "apiVersion: berth.dev/v1\nkind: Alias\nmetadata: {name: iris, namespace: team}\nspec:\n  \
                         targets:\n  - {deployment: iris-v1, weight: 90}\n  - deployment: iris/v2\n";

    fn read(text: &str) -> Result<Vec<Manifest>, Vec<String>> {
        let context = ParseContext { file: "a.yaml".to_owned(), ..ParseContext::default() };
        parse_all(text, &context).map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    fn alias(more: &str) -> Result<ManifestAlias, Vec<String>> {
        let mut found = read(&format!("{ALIAS}{more}"))?;
        match found.remove(0) {
            Manifest::Alias(alias) => Ok(*alias),
            other => panic!("{other:?} is an alias"),
        }
    }

    #[test]
    fn an_alias_names_deployments_of_its_namespace() {
        let alias = alias("").expect("right");
        assert_eq!(alias.name.as_str(), "team/iris");
        let targets: Vec<_> = alias.targets.iter().map(|(name, weight)| (name.as_str(), *weight)).collect();
        assert_eq!(targets, [("team/iris-v1", 90), ("team/iris/v2", 1)]);
        assert_eq!(alias.sticky, Stickiness::None);
        let again = ManifestAlias::from_value(&alias.raw, &ParseContext::default()).expect("still right");
        assert_eq!(again, alias);
    }

    #[test]
    fn requests_keep_to_a_target_by_one_property() {
        let sticky = |text: &str| alias(&format!("  sticky: {text}\n")).map(|alias| alias.sticky);
        assert_eq!(sticky("client"), Ok(Stickiness::Client));
        assert_eq!(sticky("{header: X-User}"), Ok(Stickiness::Header("x-user".to_owned())));
        assert_eq!(sticky("{bodyField: parameters.user}"), Ok(Stickiness::Field("parameters.user".to_owned())));
        for (bad, said) in [
            ("{header: a, bodyField: b}", "write header or bodyField, one of them"),
            ("{}", "write header or bodyField, one of them"),
            ("{header: 'a b'}", "is not the name of a header"),
            ("{bodyField: a..b}", "is not the path of a field"),
            ("cookie", "write client"),
            ("{heder: a}", "did you mean \"header\"?"),
        ] {
            let errors = sticky(bad).expect_err(bad);
            assert!(errors.iter().any(|error| error.contains(said)), "{bad}: {errors:#?}");
        }
    }

    #[test]
    fn wrong_targets_are_told_at_their_place() {
        for (from, to, said) in [
            ("iris/v2", "iris", "team/iris leads to itself"),
            ("iris/v2", "iris-v1", "team/iris-v1 is named twice"),
            ("weight: 90", "weight: 9000000", "9000000 is too high; give 0 to 1000000"),
            ("targets:", "target:", "did you mean \"targets\"?"),
        ] {
            let errors = read(&ALIAS.replace(from, to)).expect_err(to);
            assert!(errors.iter().any(|error| error.contains(said)), "{to}: {errors:#?}");
        }
        let none =
            ALIAS.replace("weight: 90", "weight: 0").replace("deployment: iris/v2", "{deployment: b, weight: 0}");
        let errors = read(&none).expect_err("nobody answers");
        assert!(errors[0].contains("no target has a weight above 0"), "{errors:#?}");
    }

    #[test]
    fn kinds_share_a_name_space_and_a_file() {
        let model = "---\napiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata: {name: NAME, namespace: team}\n\
                     spec: {model: {format: onnx, uri: 's3://models/a.onnx'}}\n";
        let both = read(&format!("{ALIAS}{}", model.replace("NAME", "other"))).expect("right");
        assert_eq!(both.iter().map(Manifest::kind).collect::<Vec<_>>(), ["Alias", "ModelDeployment"]);
        let same = read(&format!("{ALIAS}{}", model.replace("NAME", "iris"))).expect_err("one name");
        assert!(same[0].contains("team/iris is declared twice, first in line 1"), "{same:#?}");
        let unknown = read(&ALIAS.replace("kind: Alias", "kind: Gadget")).expect_err("no such kind");
        assert!(unknown[0].contains("write kind: ModelDeployment or kind: Alias or kind: Function"), "{unknown:#?}");
    }

    const SERVING_RUNTIME: &str = "---\napiVersion: serving.kserve.io/v1alpha1\nkind: ServingRuntime\nmetadata: {name: r}\nspec: {multiModel: true}\n";

    #[test]
    fn a_runtime_is_for_workers_and_its_error_says_what_to_type() {
        let own = ALIAS.replace("kind: Alias", "kind: Runtime");
        for (text, remedy) in [
            (SERVING_RUNTIME, "up --runtime a.yaml, or berth node --runtime a.yaml; `berth convert -f a.yaml`"),
            (&*own, "up --runtime a.yaml, or berth node --runtime a.yaml"),
        ] {
            let errors = read(text).expect_err("it is for workers");
            assert!(errors.len() == 1 && errors[0].contains(remedy), "{errors:#?}");
        }
    }

    #[test]
    fn runtimes_are_taken_apart_where_they_are_asked_for() {
        let (context, text) = (ParseContext::default(), format!("{SERVING_RUNTIME}---\n{ALIAS}"));
        let (manifests, runtimes) = parse_beside_runtimes(&text, &context).expect("right");
        assert_eq!(manifests.iter().map(Manifest::kind).collect::<Vec<_>>(), ["Alias"]);
        assert_eq!(runtimes.len(), 1);
        assert_eq!(runtimes[0]["metadata"]["name"], "r");
        assert!(parse_beside_runtimes(&text.replace("targets", "target"), &context).is_err(), "errors stay errors");
    }
}
