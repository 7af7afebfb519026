//! `kind: Function`: its place among manifests. What its spec means is said by `berth-functions`, which also reads it from etcd.

use std::{collections::BTreeMap, path::Path};

use serde_json::Value;
use url::Url;

use super::{
    ManifestError, Reader, as_written, check, in_namespace, node::Node, raw::RawFunction, resolve, scalar::Problem,
    schema::function_json_schema, uri,
};
use crate::{DeploymentName, id::percent_decode};

/// A manifest of a function that passed every check of its form.
#[derive(Debug, Clone, PartialEq)]
pub struct ManifestFunction {
    /// `metadata.name` in `metadata.namespace`.
    pub name: DeploymentName,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// `metadata.resourceVersion`: the change is only wanted if the stored one still has it.
    pub resource_version: Option<String>,
    /// `spec` with an absolute `sourceUri`.
    pub spec: Value,
    /// The manifest as the user wrote it, without what the server adds.
    pub raw: Value,
    /// The folder that a relative `sourceUri` starts from, if it has one.
    pub base: Option<String>,
}

impl Reader<'_> {
    pub(super) fn function(&self, node: &Node) -> Result<ManifestFunction, Vec<ManifestError>> {
        self.findings(check::check(node, &self.lines, function_json_schema()))?;
        let raw = node.to_json();
        let document: RawFunction = serde::Deserialize::deserialize(&raw).map_err(|error: serde_json::Error| {
            vec![self.error(node.at, "", Problem::new(error.to_string(), "see `berth schema function`"))]
        })?;
        let metadata = &document.metadata;
        let wrong = |path: &str, problem: Problem| vec![self.error(node.place_of(path), path, problem)];
        let namespace = metadata.namespace.as_ref().map_or(&self.context.namespace, |given| &given.0);
        let name = metadata.name.0.moved_to(namespace);
        let base = metadata.base_uri.clone().or_else(|| self.context.base.clone());
        let is_relative = uri::is_relative(&document.spec.source_uri);
        let base = base.filter(|_| is_relative);
        let mut spec = raw.get("spec").cloned().unwrap_or_default();
        if is_relative {
            let place = absolute(&document.spec.source_uri, base.as_deref());
            spec["sourceUri"] = place.map_err(|problem| wrong("spec.sourceUri", problem))?.into();
        }
        Ok(ManifestFunction {
            raw: in_namespace(as_written(raw), name.namespace()),
            name,
            labels: resolve::labels(&metadata.labels),
            annotations: metadata.annotations.clone(),
            resource_version: metadata.resource_version.clone(),
            spec,
            base,
        })
    }
}

/// A relative `file:` location, from the folder `base`. Paths are written without percent-encoding.
fn absolute(text: &str, base: Option<&str>) -> Result<String, Problem> {
    let path = text.strip_prefix("file:").unwrap_or(text);
    let folder = base.and_then(|base| Url::parse(base).ok()).filter(|base| base.scheme() == "file");
    let folder = folder.and_then(|folder| Some(percent_decode(folder.path())?.into_owned()));
    let folder = folder.ok_or_else(|| {
        let message = "a relative file: location, and it is not known what it is relative to";
        Problem::new(message, "write its absolute path: file:/…")
    })?;
    Ok(format!("file:{}", Path::new(&folder).join(path.trim_start_matches("./")).display()))
}

#[cfg(test)]
mod tests {
    use super::super::{Manifest, ParseContext, parse_all};
    use super::*;

    const FUNCTION: &str = "apiVersion: berth.dev/v1\nkind: Function\nmetadata: {name: words}\nspec:\n  type: python\n  \
                            sourceUri: file:words\n  entrypoint: handler.predict\n  target: {platform: local}\n";

    fn read(text: &str) -> Result<ManifestFunction, Vec<String>> {
        let base = Some("file:///srv/my%20code/".to_owned());
        let context = ParseContext { file: "f.yaml".to_owned(), base, ..ParseContext::default() };
        let read = parse_all(text, &context);
        match read.map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())?.remove(0) {
            Manifest::Function(function) => Ok(*function),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_relative_place_starts_at_the_manifest() {
        let function = read(FUNCTION).expect("right");
        assert_eq!(function.spec["sourceUri"], "file:/srv/my code/words");
        assert_eq!(function.raw["spec"]["sourceUri"], "file:words", "the text stays");
        assert_eq!(function.base.as_deref(), Some("file:///srv/my%20code/"));
        let fixed = read(&FUNCTION.replace("file:words", "s3://a/b.zip")).expect("right");
        assert_eq!((fixed.spec["sourceUri"].as_str(), fixed.base), (Some("s3://a/b.zip"), None));
    }

    #[test]
    fn a_function_is_in_its_namespace_else_in_that_of_the_request() {
        let team = crate::Namespace::new("team").expect("a namespace");
        let named = FUNCTION.replace("{name: words}", "{name: words, namespace: shop}");
        for (text, context, written) in [
            (FUNCTION, crate::Namespace::DEFAULT, "words"),
            (FUNCTION, team.clone(), "team/words"),
            (&*named, team, "shop/words"),
        ] {
            let context =
                ParseContext { base: Some("file:///a/".to_owned()), namespace: context, ..ParseContext::default() };
            let read = parse_all(text, &context);
            let Ok([Manifest::Function(function)]) = read.as_deref() else { panic!("{written}: {read:?}") };
            assert_eq!(function.name.as_str(), written);
            let namespace = function.raw["metadata"].get("namespace").and_then(Value::as_str);
            assert_eq!(namespace, Some(function.name.namespace()).filter(|namespace| *namespace != "default"));
        }
    }

    #[test]
    fn a_function_and_a_model_may_share_a_name() {
        let model = "---\napiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata: {name: words}\n\
                     spec: {model: {format: onnx, uri: 's3://models/a.onnx'}}\n";
        let text = format!("{FUNCTION}{model}");
        assert_eq!(
            parse_all(&text, &ParseContext { base: Some("file:///a/".to_owned()), ..ParseContext::default() })
                .expect("right")
                .len(),
            2
        );
    }

    #[test]
    fn mistakes_are_told_at_their_place() {
        for (from, to, said) in [
            ("entrypoint: handler.predict", "entrypiont: handler.predict", "did you mean \"entrypoint\"?"),
            ("type: python", "type: pyton", "python"),
            ("platform: local", "platform: local, timeout: 3", "timeout"),
            ("{name: words}", "{name: words, namespace: Team}", "is not allowed in a namespace"),
            ("target: {platform: local}", "limits: {concurrency: 0}\n  target: {platform: local}", "0 is too low"),
        ] {
            let errors = read(&FUNCTION.replace(from, to)).expect_err(to);
            assert!(errors.iter().any(|error| error.contains(said)), "{to}: {errors:#?}");
        }
    }
}
