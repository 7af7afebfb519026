//! Step 4 for one card: its text against the schema of its version, and what a schema cannot say.

use std::{collections::BTreeSet, sync::Arc};

use berth_git::{Protocols, Remote, Rev};
use berth_spec::{
    ModelCard,
    card::{
        SCHEMA_VERSIONS, StorageType,
        package::{Pin, normal_name},
    },
};
use serde_json::Value;

use crate::{
    document::{Document, whole},
    matrix::{Matrix, VersionStatus},
    parse::local_remedy,
    problem::{Outcome, Problem, Severity, Step},
    schema::{self, SchemaKind},
};

/// Result of checking one card.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedCard {
    /// All that is wrong with it, in reading order.
    pub problems: Vec<Problem>,
    /// The card, if nothing is wrong but for warnings.
    pub card: Option<Arc<ModelCard>>,
}

/// Context for checking a card, beside its schema.
#[derive(Debug, Clone, Copy)]
pub struct CardRules<'a> {
    /// Versions that are in use.
    pub matrix: &'a Matrix,
    /// The day, as `2026-01-31`.
    pub today: &'a str,
    /// Protocols allowed for code repositories.
    pub protocols: Protocols,
}

/// Checks the text of a model card; `file` is what problems call it.
#[must_use]
pub fn check_card(text: &str, file: &str, rules: &CardRules<'_>) -> CheckedCard {
    let fail = |problem: Problem| CheckedCard { problems: vec![problem], card: None };
    let document = match Document::read(text, file, Step::Cards) {
        Ok(Some(document)) => document,
        Ok(None) => {
            let problem = Problem::new(Step::Cards, "empty", file, "the card is empty");
            return fail(problem.remedy("`berth card new` writes one to begin with"));
        }
        Err(problem) => return fail(*problem),
    };
    let reading = Reading { text, file, document: &document, rules };
    let mut problems = Vec::new();
    match document.json.get("schemaVersion").and_then(Value::as_str) {
        Some(version) if !SCHEMA_VERSIONS.contains(&version) => return fail(reading.no_schema(version)),
        Some(version) => problems.extend(reading.version_problem(version)),
        // The schema says that it is missing, or no text.
        None => {}
    }
    let version = document.json.get("schemaVersion").and_then(Value::as_str).unwrap_or(schema::NEWEST);
    let findings = schema::check(SchemaKind::ModelCard, version, &document, Step::Cards, file, text);
    problems.extend(findings.into_iter().flatten().map(|finding| finding.problem));
    let mut card = None;
    if problems.iter().all(|problem| problem.severity == Severity::Warning) {
        match typed(&document) {
            Ok(read) => {
                problems.extend(reading.meaning(&read));
                card = Some(Arc::new(read));
            }
            Err((pointer, message)) => problems.push(reading.problem("schema", &pointer, message, "")),
        }
    }
    problems.sort_by_key(|problem| (problem.line, problem.column));
    let card = card.filter(|_| !problems.iter().any(Problem::is_error));
    CheckedCard { problems, card }
}

/// The card's own whole numbers may be written with a point; what its functions and schemas are given stays as it is.
fn typed(document: &Document) -> Result<ModelCard, (String, String)> {
    let mut json = document.json.clone();
    for pointer in ["/artifacts/size_bytes", "/interface/batch_size", "/resources/gpu"] {
        json.pointer_mut(pointer).into_iter().for_each(whole);
    }
    Document::typed(json)
}

struct Reading<'a> {
    text: &'a str,
    file: &'a str,
    document: &'a Document,
    rules: &'a CardRules<'a>,
}

impl Reading<'_> {
    fn problem(&self, rule: &'static str, pointer: &str, message: String, remedy: impl Into<String>) -> Problem {
        let (place, path) = self.document.place(pointer);
        Problem::new(Step::Cards, rule, self.file, message).at(place, &path, self.text).remedy(remedy)
    }

    /// A version that this Berth does not read.
    fn no_schema(&self, version: &str) -> Problem {
        let known = SCHEMA_VERSIONS.join(", ");
        let message = match self.rules.matrix.status(version, self.rules.today) {
            VersionStatus::Sunset(day) => format!("schema version {version} is out of use since {day}"),
            _ => format!("schema version {version:?} is not one that Berth reads ({known})"),
        };
        let near = self.rules.matrix.near(version).filter(|near| SCHEMA_VERSIONS.contains(&near.as_str()));
        let remedy =
            near.map_or_else(|| format!("move the card to {}", schema::NEWEST), |near| format!("did you mean {near}?"));
        let remedy = format!("{remedy}; the matrix: {}", self.rules.matrix.lines().join("; "));
        self.problem("schema-version", "/schemaVersion", message, remedy).outcome(Outcome::SchemaIncompatibility)
    }

    fn version_problem(&self, version: &str) -> Option<Problem> {
        let problem = |message: String, remedy: &str| {
            Some(
                self.problem("schema-version", "/schemaVersion", message, remedy)
                    .outcome(Outcome::SchemaIncompatibility),
            )
        };
        match self.rules.matrix.status(version, self.rules.today) {
            VersionStatus::Current => None,
            VersionStatus::Deprecated(Some(day)) => {
                problem(format!("schema version {version} goes out of use on {day}"), "move the card to a newer one")
                    .map(Problem::warning)
            }
            VersionStatus::Deprecated(None) => {
                problem(format!("schema version {version} is deprecated"), "move the card to a newer one")
                    .map(Problem::warning)
            }
            VersionStatus::Sunset(day) => {
                problem(format!("schema version {version} is out of use since {day}"), "move the card to a newer one")
            }
            VersionStatus::Unknown => {
                problem(format!("schema version {version} is not in the compatibility matrix"), "add it there")
            }
        }
    }

    /// Checks rules that the schema cannot express.
    fn meaning(&self, card: &ModelCard) -> Vec<Problem> {
        let mut found = Vec::new();
        found.extend(self.code(card));
        found.extend(self.artifacts(card));
        found.extend(self.names(card));
        for (pointer, given) in [
            ("/interface/input_schema", &card.interface.input_schema),
            ("/interface/output_schema", &card.interface.output_schema),
        ] {
            if let Err(error) = jsonschema::draft202012::new(given) {
                let message = format!("this is no JSON schema: {error}");
                found.push(self.problem(
                    "interface-schema",
                    pointer,
                    message,
                    "write JSON Schema, draft 2020-12, without references to other documents",
                ));
            }
        }
        found.extend(self.runtime(card));
        let mut packages = BTreeSet::new();
        for (n, dependency) in card.runtime.dependencies.iter().enumerate() {
            let name = normal_name(dependency.split(['=', '[']).next().unwrap_or_default());
            if !packages.insert(name.clone()) {
                let message = format!("{name} is named twice");
                found.push(self.problem("dependencies", &format!("/runtime/dependencies/{n}"), message, "keep one"));
            }
        }
        found
    }

    /// The framework's version in both places where it stands, and the lock.
    fn runtime(&self, card: &ModelCard) -> Vec<Problem> {
        let runtime = &card.runtime;
        let mut found = Vec::new();
        let names = runtime.framework.packages();
        let pins = runtime.dependencies.iter().filter_map(|text| Pin::read(text));
        if let Some(pin) = pins.into_iter().find(|pin| names.contains(&pin.normal_name().as_str()))
            && !(Pin { version: &runtime.framework_version, ..pin }).is_met_by(pin.version)
        {
            let message = format!(
                "framework_version is {}, and dependencies install {}=={}",
                runtime.framework_version, pin.name, pin.version
            );
            let remedy = format!("write framework_version: \"{}\"; what dependencies say is installed", pin.version);
            found.push(self.problem("framework-version", "/runtime/framework_version", message, remedy).warning());
        }
        if let Some(lock) = &runtime.dependencies_lock
            && (!is_inside(lock) || lock.ends_with('/'))
        {
            let message = format!("{lock:?} is no file of the code's repository");
            let remedy = "write its path from the root, for example requirements.lock";
            found.push(self.problem("dependencies-lock", "/runtime/dependencies_lock", message, remedy));
        }
        found
    }

    fn code(&self, card: &ModelCard) -> Vec<Problem> {
        let mut found = Vec::new();
        if let Err(error) = Remote::parse(&card.code.repository, self.rules.protocols) {
            let remedy = local_remedy(&card.code.repository, self.rules.protocols);
            found.push(self.problem("repository", "/code/repository", error.detail, remedy));
        }
        if !is_inside(&card.code.path) {
            let message = format!("{:?} leads out of the repository", card.code.path);
            found.push(self.problem(
                "code-path",
                "/code/path",
                message,
                "write a folder of the repository, for example src/",
            ));
        }
        let own = format!("v{}", card.metadata.version);
        if let Some(Rev::Tag(tag)) = Rev::pinned(&card.code.reference)
            && tag != own
        {
            let message = format!("the code is tagged {tag}, but this is version {}", card.metadata.version);
            let remedy = format!("tag the code {own}, or pin it to a commit");
            found.push(self.problem("code-version", "/code/ref", message, remedy));
        }
        found
    }

    fn artifacts(&self, card: &ModelCard) -> Vec<Problem> {
        let artifacts = &card.artifacts;
        let (schemes, example): (&[&str], &str) = match artifacts.storage_type {
            StorageType::S3 => (&["s3"], "s3://bucket/model.pt"),
            StorageType::Gcs => (&["gs"], "gs://bucket/model.pt"),
            StorageType::AzureBlob => (&["az", "https"], "az://container/model.pt"),
            StorageType::Http => (&["https", "http"], "https://host/model.pt"),
        };
        let mut found = Vec::new();
        let paths = [
            ("/artifacts/model_path", Some(&artifacts.model_path)),
            ("/artifacts/config_path", artifacts.config_path.as_ref()),
        ];
        for (pointer, path) in paths.into_iter().filter_map(|(pointer, path)| Some((pointer, path?))) {
            let scheme = path.split_once("://").map(|(scheme, _)| scheme);
            match scheme {
                Some("file") => {
                    let message =
                        "a file of this machine is there on workers only if somebody puts it there".to_owned();
                    found.push(self.problem("artifact-path", pointer, message, format!("write {example}")).warning());
                }
                Some(scheme) if schemes.contains(&scheme) => {}
                _ => {
                    let message = format!("{path:?} does not fit the storage type");
                    found.push(self.problem("artifact-path", pointer, message, format!("write {example}")));
                }
            }
        }
        match &artifacts.checksum {
            None => {
                let message = "without a checksum, changed weights go unnoticed".to_owned();
                found.push(
                    self.problem("checksum", "/artifacts", message, "add checksum: the output of sha256sum").warning(),
                );
            }
            Some(text) if artifacts.digest().is_none() => {
                let message = format!("{text:?} is no SHA-256");
                found.push(self.problem(
                    "checksum",
                    "/artifacts/checksum",
                    message,
                    "write the 64 digits that sha256sum prints",
                ));
            }
            Some(_) => {}
        }
        found
    }

    /// Modules and functions must be names that Python knows as such.
    fn names(&self, card: &ModelCard) -> Vec<Problem> {
        // `module:name`, or the module alone.
        let entrypoint = card.code.entrypoint.as_deref().map(|text| text.split_once(':').unwrap_or((text, "load")));
        let modules = [
            ("/preprocessing/module", Some(card.preprocessing.module.as_str())),
            ("/postprocessing/module", Some(card.postprocessing.module.as_str())),
            ("/code/entrypoint", entrypoint.map(|(module, _)| module)),
        ];
        let modules = modules.into_iter().filter_map(|(pointer, name)| Some((pointer, name?)));
        let wrong = modules.filter(|(_, name)| !name.split('.').all(is_identifier)).map(|(pointer, name)| {
            self.problem(
                "module",
                pointer,
                format!("{name:?} is no name of a Python module"),
                "write it with dots: src.preprocessing",
            )
        });
        let functions = [
            ("/preprocessing/function", Some(card.preprocessing.function.as_str())),
            ("/postprocessing/function", Some(card.postprocessing.function.as_str())),
            ("/code/entrypoint", entrypoint.map(|(_, name)| name)),
        ];
        let functions = functions.into_iter().filter_map(|(pointer, name)| Some((pointer, name?)));
        let wrong_functions = functions.filter(|(_, name)| !is_identifier(name)).map(|(pointer, name)| {
            self.problem(
                "function",
                pointer,
                format!("{name:?} is no name of a Python function"),
                "write the name alone, without the module",
            )
        });
        wrong.chain(wrong_functions).collect()
    }
}

/// True if a path stays inside its repository.
pub(crate) fn is_inside(path: &str) -> bool {
    !path.starts_with(['/', '-']) && !path.contains(['\0', '\\']) && !path.split('/').any(|part| part == "..")
}

fn is_identifier(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|c| c.is_alphabetic() || c == '_') && letters.all(|c| c.is_alphanumeric() || c == '_')
}
