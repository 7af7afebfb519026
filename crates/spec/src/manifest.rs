//! The file format in which people declare models: `apiVersion: berth.dev/v1`, `kind: ModelDeployment`, in YAML or
//! JSON, many documents to a file.
//!
//! ```text
//! text ──▶ documents with places ──▶ checked against the schema ──▶ raw structs ──▶ Spec
//!          (node)                    (check, schema, scalar, uri)   (raw)           (resolve)
//! ```
//!
//! The structs in `raw` are the single definition: the JSON schema, the checker and `docs/manifest.md` are made
//! from them. What a user wrote is never changed: it is kept beside the [`Spec`] that it became.

mod changes;
mod check;
mod claim;
mod copies;
mod endpoint;
mod error;
mod function;
mod kinds;
mod lines;
mod list;
pub mod node;
pub mod raw;
mod reference;
mod resolve;
mod scalar;
mod schema;
mod suggest;
pub(crate) mod uri;

use std::collections::BTreeMap;

pub use changes::{FieldChange, changes};
pub use endpoint::endpoint_path;
pub use error::{ManifestError, SourceLine};
pub use function::ManifestFunction;
pub use kinds::{Manifest, ManifestAlias, NameScope, parse_all, parse_beside_runtimes};
pub use lines::Lines;
pub use list::is_list;
pub use reference::reference_markdown;
pub use schema::{alias_json_schema, function_json_schema, json_schema};
pub use suggest::closest;

pub use scalar::Problem;
pub(crate) use schema::{field_paths, function_field_paths};

use self::{
    node::{Node, Position},
    raw::RawDeployment,
};
use crate::{
    DeploymentName, Namespace, Spec,
    dialect::{ConversionError, kserve},
    id::DEFAULT_NAMESPACE,
};

/// The place that a manifest came from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParseContext {
    /// The name in errors: a path, or `-` for standard input.
    pub file: String,
    /// The absolute `file:` URI of the folder that relative `file:` URIs start from, with a `/` at its end.
    /// `None`: relative ones are errors.
    pub base: Option<String>,
    /// The namespace of manifests that name none.
    pub namespace: Namespace,
}

/// A manifest that passed every check.
#[derive(Debug, Clone, PartialEq)]
pub struct ManifestDeployment {
    /// `metadata.name` in `metadata.namespace`.
    pub name: DeploymentName,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// `metadata.resourceVersion`: the change is only wanted if the stored one still has it.
    pub resource_version: Option<String>,
    /// `spec`, with defaults applied and the artifact's URI made absolute.
    pub spec: Spec,
    /// `apiVersion`, `kind`, `metadata` and `spec` as the user wrote them; `status` and what the server adds to
    /// `metadata` left out. With the same `base` it parses to the same spec ([`from_value`]).
    pub raw: serde_json::Value,
    /// [`ParseContext::base`], if the spec depends on it: to be kept beside `raw`.
    pub base: Option<String>,
}

/// Reads all documents of a YAML or JSON text, deployments alone ([`parse_all`] takes every kind); empty ones are skipped, lists
/// are read item by item.
///
/// # Errors
/// The errors in all documents, in reading order, 100 at most and one that says so. A syntax error ends the reading.
pub fn parse(text: &str, context: &ParseContext) -> Result<Vec<ManifestDeployment>, Vec<ManifestError>> {
    Reader::new(text, context).documents(
        |reader, node| reader.document(node).map(Some),
        |deployment: &ManifestDeployment| (NameScope::Model, &deployment.name),
    )
}

/// True for a text that can be read as YAML or JSON, whatever its content.
#[must_use]
pub fn is_well_formed(text: &str) -> bool {
    Node::documents(text).is_ok()
}

/// Reads one manifest that is JSON already: what [`ManifestDeployment::raw`] held, or the body of a PUT.
///
/// # Errors
/// As [`parse`]; errors have no place but the path.
pub fn from_value(raw: &serde_json::Value, context: &ParseContext) -> Result<ManifestDeployment, Vec<ManifestError>> {
    Reader::new("", context).document(&Node::of(raw))
}

/// A manifest with every default in its place. `None` for one that does not pass the checks.
#[must_use]
pub fn with_defaults(written: &serde_json::Value) -> Option<serde_json::Value> {
    RawDeployment::read(written).ok().map(|document| document.with_defaults())
}

impl RawDeployment {
    /// The name; `namespace` is that of manifests that name none.
    #[must_use]
    pub fn name(&self, namespace: &Namespace) -> DeploymentName {
        let namespace = self.metadata.namespace.as_ref().map_or(namespace, |given| &given.0);
        self.metadata.name.0.clone().moved_to(namespace)
    }

    /// `metadata.labels` as plain texts.
    #[must_use]
    pub fn labels(&self) -> BTreeMap<String, String> {
        resolve::labels(&self.metadata.labels)
    }

    /// The spec, with defaults applied. `base` is where relative locations start ([`ParseContext::base`]).
    ///
    /// # Errors
    /// The rules that it breaks, in one line.
    pub fn resolve(&self, base: Option<&str>) -> Result<Spec, String> {
        resolve::resolve(self, base).map_err(|problems| {
            problems.iter().map(|(path, problem)| format!("{path}: {problem}")).collect::<Vec<_>>().join("; ")
        })
    }
}

impl ManifestDeployment {
    /// Checks a manifest that a dialect was converted to.
    ///
    /// # Errors
    /// As [`parse`]; errors have no place but the path.
    pub fn of(document: RawDeployment, context: &ParseContext) -> Result<Self, Vec<ManifestError>> {
        let raw = document.written();
        Reader::new("", context).resolved(document, raw, |_| Position::default())
    }

    /// Converts an object of KServe or ModelMesh to the hub version, and checks that.
    ///
    /// # Errors
    /// As [`parse`]; errors have no place but the path.
    pub fn of_kserve(object: &kserve::Object, context: &ParseContext) -> Result<Self, Vec<ManifestError>> {
        Reader::new("", context).converted(object, Position::default(), |_| Position::default())
    }
}

/// Reads a length of time as manifests write it: `500ms`, `30s`, `10m`, `1h30m`, `2d`.
///
/// # Errors
/// The text to write instead.
pub fn parse_duration(text: &str) -> Result<std::time::Duration, String> {
    scalar::Span::read(text).map(|span| span.0).map_err(|problem| problem.remedy)
}

struct Reader<'a> {
    lines: Lines<'a>,
    context: &'a ParseContext,
}

/// Errors that are told of one text: nobody reads more at once, and a hostile text may have millions.
const MOST_ERRORS: usize = 100;

impl<'a> Reader<'a> {
    const fn new(text: &'a str, context: &'a ParseContext) -> Self {
        Self { lines: Lines::of(text), context }
    }

    fn document(&self, node: &Node) -> Result<ManifestDeployment, Vec<ManifestError>> {
        if node.get("apiVersion").and_then(Node::text).is_some_and(|version| version.starts_with(kserve::GROUP)) {
            return self.of_kserve(node);
        }
        let foreign = self.foreign(node);
        self.findings(foreign.map_or_else(|| check::check(node, &self.lines, json_schema()), |found| vec![found]))?;
        let raw = node.to_json();
        let document = RawDeployment::read(&raw)
            .map_err(|error| vec![self.error(node.at, "", Problem::new(error, "see `berth schema manifest`"))])?;
        self.resolved(document, as_written(raw), |path| node.place_of(path))
    }

    /// An object of KServe or ModelMesh, kept as the hub version that it becomes.
    fn of_kserve(&self, node: &Node) -> Result<ManifestDeployment, Vec<ManifestError>> {
        let kind = node.get("kind").and_then(Node::text).unwrap_or_default();
        if !kserve::KINDS.contains(&kind) {
            let problem = if is_serving_runtime(node) {
                self.for_workers(kind)
            } else {
                let message = format!("{kind:?} is not a kind of KServe that Berth reads");
                Problem::new(message, format!("it reads {}", kserve::KINDS.join(", ")))
            };
            return Err(vec![self.error(node.place_of("kind"), "kind", problem)]);
        }
        let object: kserve::Object = serde_json::from_value(node.to_json())
            .map_err(|error| vec![self.error(node.at, "spec", Problem::new(error.to_string(), kserve::REMEDY))])?;
        self.converted(&object, node.at, |path| node.place_of(path))
    }

    /// The problem of a model server where manifests are read: a worker is given it at its start.
    fn for_workers(&self, kind: &str) -> Problem {
        let is_file = |file: &&str| [".yaml", ".yml", ".json"].iter().any(|ending| file.ends_with(ending));
        let file = Some(self.context.file.as_str()).filter(is_file).unwrap_or("FILE");
        let shows = match kind {
            "Runtime" => String::new(),
            _ => format!("; `berth convert -f {file}` prints the Runtime that it is there"),
        };
        let remedy =
            format!("start a worker with it: berth up --runtime {file}, or berth node --runtime {file}{shows}");
        Problem::new(format!("a {kind} is a model server of workers, and is not declared"), remedy)
    }

    /// The hub version of an object that begins at `at`.
    fn converted(
        &self,
        object: &kserve::Object,
        at: Position,
        place_of: impl Fn(&str) -> Position,
    ) -> Result<ManifestDeployment, Vec<ManifestError>> {
        let document = kserve::convert(object).map_err(|errors| {
            let place = |error: ConversionError| {
                let ConversionError { path, message, remedy } = error;
                self.error(place_of(&path), &path, Problem::new(message, remedy))
            };
            errors.into_iter().take(MOST_ERRORS + 1).map(place).collect::<Vec<_>>()
        })?;
        let raw = document.written();
        self.resolved(document, raw, |_| at)
    }

    /// The findings as errors, if there are any.
    fn findings(&self, mut findings: Vec<check::Finding>) -> Result<(), Vec<ManifestError>> {
        if findings.is_empty() {
            return Ok(());
        }
        findings.sort_by_key(|finding| finding.at);
        Err(findings.into_iter().map(|found| self.error(found.at, &found.path, found.problem)).collect())
    }

    /// Applies defaults and the rules that concern more than one field.
    fn resolved(
        &self,
        document: RawDeployment,
        raw: serde_json::Value,
        place: impl Fn(&str) -> Position,
    ) -> Result<ManifestDeployment, Vec<ManifestError>> {
        let own = document.metadata.base_uri.clone();
        if let Some(problem) = own.as_deref().and_then(uri::wrong_base) {
            return Err(vec![self.error(place("metadata.baseUri"), "metadata.baseUri", problem)]);
        }
        let base = own.or_else(|| self.context.base.clone());
        let spec = resolve::resolve(&document, base.as_deref()).map_err(|problems| {
            let error = |(path, problem): (&'static str, Problem)| self.error(place(path), path, problem);
            problems.into_iter().take(MOST_ERRORS + 1).map(error).collect::<Vec<_>>()
        })?;
        let name = document.name(&self.context.namespace);
        Ok(ManifestDeployment {
            labels: document.labels(),
            annotations: document.metadata.annotations,
            resource_version: document.metadata.resource_version,
            spec,
            raw: in_namespace(raw, name.namespace()),
            name,
            base: document
                .spec
                .model
                .uri
                .as_ref()
                .is_some_and(|uri| uri::is_relative(&uri.0))
                .then_some(base)
                .flatten(),
        })
    }

    /// A document that is something else is told so, and nothing else about it.
    fn foreign(&self, node: &Node) -> Option<check::Finding> {
        if is_manifest(node) {
            return self.other_kind(node);
        }
        let remedy = "write apiVersion: berth.dev/v1, kind: ModelDeployment, metadata and spec; `berth schema manifest` \
                      shows every field";
        let problem = Problem::new("this is not a manifest: it has none of a manifest's fields", remedy);
        Some(check::Finding { at: node.at, path: String::new(), problem })
    }

    /// A document of another kind or version.
    fn other_kind(&self, node: &Node) -> Option<check::Finding> {
        let other = |field: &str, article: &str, known: &[&str]| {
            let given = node.get(field)?.text()?;
            (!known.contains(&given)).then(|| {
                let each: Vec<String> = known.iter().map(|word| format!("{field}: {word}")).collect();
                let remedy = match closest(given, known.iter().copied()) {
                    Some(near) => format!("did you mean {near}?"),
                    None => format!("write {}", each.join(" or ")),
                };
                let problem = Problem::new(format!("{given:?} is not {article} {field} that Berth knows"), remedy);
                check::Finding { at: node.place_of(field), path: field.to_owned(), problem }
            })
        };
        let runtime = || {
            let is_one = node.get("kind").and_then(Node::text) == Some("Runtime");
            is_one.then(|| check::Finding {
                at: node.place_of("kind"),
                path: "kind".to_owned(),
                problem: self.for_workers("Runtime"),
            })
        };
        other("apiVersion", "an", &["berth.dev/v1"]).or_else(runtime).or_else(|| other("kind", "a", &kinds::KINDS))
    }

    fn syntax_error(&self, error: &serde_saphyr::Error) -> ManifestError {
        let at = error.location().map(Position::from).unwrap_or_default();
        let message = error.without_snippet().to_string();
        // The library ends its messages with the place, which the error has already.
        let message = message.split(" at line ").next().unwrap_or_default();
        // And a hint for programs that use it.
        let message = message.split(", set DuplicateKeyPolicy").next().unwrap_or_default().to_owned();
        self.error(at, "", Problem::new(message, "mend the YAML or JSON here; nothing after it was read"))
    }

    fn error(&self, at: Position, path: &str, Problem { message, remedy }: Problem) -> ManifestError {
        let source_line = self.lines.line(at.line).map(|line| SourceLine::around(line, at.column)).unwrap_or_default();
        ManifestError {
            file: self.context.file.clone(),
            line: at.line,
            column: at.column,
            path: path.to_owned(),
            message,
            remedy,
            source_line,
        }
    }
}

/// True for a document that has at least one field of a manifest, even a misspelt one.
fn is_manifest(node: &Node) -> bool {
    const FIELDS: [&str; 4] = ["apiVersion", "kind", "metadata", "spec"];
    node.names().any(|name| closest(name, FIELDS).is_some())
}

/// True for a model server of KServe.
fn is_serving_runtime(node: &Node) -> bool {
    let said = |field: &str| node.get(field).and_then(Node::text);
    said("apiVersion").is_some_and(|version| version.starts_with(kserve::GROUP))
        && said("kind").is_some_and(|kind| kserve::serving_runtime::KINDS.contains(&kind))
}

/// Without what the server adds.
fn as_written(mut raw: serde_json::Value) -> serde_json::Value {
    if let Some(document) = raw.as_object_mut() {
        document.remove("status");
        if let Some(metadata) = document.get_mut("metadata").and_then(serde_json::Value::as_object_mut) {
            for added in ["baseUri", "resourceVersion", "generation", "creationTimestamp", "origin", "deleting"] {
                metadata.remove(added);
            }
        }
    }
    raw
}

/// With the namespace if it is not the default one, wherever it was given: a manifest says for itself where it belongs.
fn in_namespace(mut raw: serde_json::Value, namespace: &str) -> serde_json::Value {
    if let Some(metadata) = raw.get_mut("metadata").and_then(serde_json::Value::as_object_mut) {
        if namespace == DEFAULT_NAMESPACE {
            metadata.remove("namespace");
        } else {
            metadata.insert("namespace".to_owned(), namespace.into());
        }
    }
    raw
}

#[cfg(test)]
mod tests;
