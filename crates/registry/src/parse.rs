//! Steps 2, 3 and 6 for one file each: pure, so that a file that has not changed is not looked at again.

use std::{collections::BTreeMap, sync::Arc};

use berth_git::{Protocols, Remote, Rev};
use berth_spec::manifest::node::Place;
use serde::de::DeserializeOwned;

use crate::{
    DeploymentManifest, WorkerConfig,
    card::is_inside,
    document::Document,
    problem::{Problem, Step},
    schema::{self, Finding, SchemaKind},
};

/// A file that was looked at.
#[derive(Debug)]
pub(crate) struct Parsed<T> {
    pub(crate) problems: Vec<Problem>,
    pub(crate) value: Option<Arc<T>>,
    file: String,
    text: Arc<str>,
    /// Where later steps may have something to say.
    places: BTreeMap<&'static str, (Place, String)>,
}

/// What later steps may have something to say about.
const PLACES: [&str; 10] = [
    "/id",
    "/model_card_ref/repository",
    "/model_card_ref/path",
    "/model_card_ref/ref",
    "/deployment_config/region",
    "/deployment_config/replicas",
    "/deployment_config/worker_selector",
    "/deployment_config/endpoint",
    "/worker_id",
    "/labels",
];

impl<T> Parsed<T> {
    fn empty(file: &str, text: &str) -> Self {
        let (file, text) = (file.to_owned(), text.into());
        Self { problems: Vec::new(), value: None, file, text, places: BTreeMap::new() }
    }

    /// The file and its text.
    pub(crate) fn source(&self) -> (&str, Arc<str>) {
        (&self.file, Arc::clone(&self.text))
    }

    fn with_problem(mut self, problem: Problem) -> Self {
        self.problems.push(problem);
        self
    }

    fn note_places(&mut self, document: &Document) {
        self.places = PLACES.into_iter().map(|pointer| (pointer, document.place(pointer))).collect();
    }

    /// A problem of a later step, at one of the places that were noted.
    pub(crate) fn problem(&self, step: Step, pointer: &str, rule: &'static str, message: String) -> Problem {
        let problem = Problem::new(step, rule, &self.file, message);
        match self.places.get(pointer) {
            Some((place, path)) => problem.at(*place, path, &self.text),
            None => problem,
        }
    }
}

/// Reads, checks against the schema and makes typed, what one document may be.
fn read<T>(
    (file, text): (&str, &str),
    step: Step,
    kind: SchemaKind,
    typed: impl FnOnce(serde_json::Value) -> Result<T, (String, String)>,
) -> (Parsed<T>, Option<Document>) {
    let mut parsed = Parsed::empty(file, text);
    let document = match Document::read(text, file, step) {
        Ok(Some(document)) => document,
        Ok(None) => {
            let problem = Problem::new(step, "empty", file, "the file declares nothing").warning();
            return (parsed.with_problem(problem.remedy("remove it, or fill it in")), None);
        }
        Err(problem) => return (parsed.with_problem(*problem), None),
    };
    parsed.note_places(&document);
    let findings = schema::check(kind, schema::NEWEST, &document, (step, file, text)).unwrap_or_default();
    parsed.problems.extend(findings.into_iter().map(as_reference));
    // An unpinned reference is a matter of the next step; the rest of the manifest can be read all the same.
    if !parsed.problems.iter().any(|problem| problem.is_error() && problem.step == step) {
        match typed(document.json.clone()) {
            Ok(value) => parsed.value = Some(Arc::new(value)),
            Err((field, message)) => {
                let (place, path) = document.place(&format!("/{field}"));
                parsed.problems.push(Problem::new(step, "schema", file, message).at(place, &path, text));
            }
        }
    }
    (parsed, Some(document))
}

/// That a reference has the wrong form is found by the schema, but is an outcome of its own.
fn as_reference(finding: Finding) -> Problem {
    let Finding { pointer, is_pattern, mut problem } = finding;
    if is_pattern && pointer == "/model_card_ref/ref" && problem.step == Step::Manifests {
        problem.step = Step::References;
        problem.outcome = Step::References.outcome();
        problem.rule = "unpinned";
        problem.message = problem.message.split(" does not have").next().unwrap_or_default().to_owned();
        problem.message.push_str(" is not pinned: a branch moves, and with it what runs");
        problem.remedy = "write a tag v1.2.3 or a commit of 7 to 40 digits".to_owned();
    }
    problem
}

/// Steps 2 and 3 for one manifest.
pub(crate) fn manifest(file: &str, text: &str, protocols: Protocols) -> Parsed<DeploymentManifest> {
    let (mut parsed, _) = read((file, text), Step::Manifests, SchemaKind::Deployment, DeploymentManifest::of);
    let Some(manifest) = parsed.value.clone() else { return parsed };
    let mut found = Vec::new();
    let mut problem = |step, pointer, rule, message: String, remedy: &str| {
        found.push(parsed.problem(step, pointer, rule, message).remedy(remedy));
    };
    let card = &manifest.model_card_ref;
    if let Err(error) = Remote::parse(&card.repository, protocols) {
        problem(Step::Manifests, "/model_card_ref/repository", "repository", error.detail, "");
    }
    if !is_inside(&card.path) || card.path.ends_with('/') || card.path.is_empty() {
        let message = format!("{:?} is no file of the repository", card.path);
        problem(Step::Manifests, "/model_card_ref/path", "card-path", message, "write for example model-card.yaml");
    }
    let config = &manifest.deployment_config;
    if let Some(other) = config.worker_selector.get("region").filter(|region| **region != config.region) {
        let message = format!("the region is {}, but worker_selector asks for {other}", config.region);
        let remedy = "name one region; worker_selector.region may be left out";
        problem(Step::Manifests, "/deployment_config/region", "region", message, remedy);
    }
    let name = stem(file);
    let other_name = name != manifest.id;
    if other_name {
        let message = format!("the file is called {name}, but the deployment {}", manifest.id);
        problem(Step::Manifests, "/id", "file-name", message, "give both the same name");
        found.last_mut().into_iter().for_each(|p| *p = p.clone().warning());
    }
    parsed.problems.extend(found);
    // A broken repository or path is not worth a fetch; an unpinned reference neither.
    let unusable = parsed.problems.iter().any(Problem::is_error) || Rev::pinned(&card.reference).is_none();
    if unusable {
        parsed.value = None;
    }
    parsed
}

/// Step 6 for one worker configuration.
pub(crate) fn worker(file: &str, text: &str) -> Parsed<WorkerConfig> {
    let (mut parsed, _) = read((file, text), Step::Workers, SchemaKind::WorkerConfig, typed::<WorkerConfig>);
    if let Some(worker) = &parsed.value {
        let name = stem(file);
        if name != worker.worker_id {
            let message = format!("the file is called {name}, but the worker {}", worker.worker_id);
            let problem = parsed.problem(Step::Workers, "/worker_id", "file-name", message);
            parsed.problems.push(problem.remedy("give both the same name").warning());
        }
    }
    parsed
}

/// Step 6 for the secrets of one worker; the value is the worker's name.
pub(crate) fn secrets(file: &str, text: &str) -> Parsed<String> {
    let mut parsed = Parsed::empty(file, text);
    for found in berth_secrets::check(text, file) {
        let problem = Problem::new(Step::Workers, "secrets", file, found.message);
        let place = Place { line: found.line, column: found.column };
        // Never with its line: it may hold the secret.
        parsed.problems.push(problem.at(place, &found.path, "").remedy(found.remedy));
    }
    if parsed.problems.is_empty()
        && let Ok(Some(document)) = Document::read(text, file, Step::Workers)
    {
        parsed.note_places(&document);
        let worker = document.json.get("worker_id").and_then(serde_json::Value::as_str);
        parsed.value = worker.map(|worker| Arc::new(worker.to_owned()));
    }
    parsed
}

fn typed<T: DeserializeOwned>(json: serde_json::Value) -> Result<T, (String, String)> {
    serde_json::from_value(json).map_err(|error| (String::new(), error.to_string()))
}

/// The name of a file without folder and ending.
fn stem(file: &str) -> &str {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.strip_suffix(".yaml").or_else(|| name.strip_suffix(".yml")).unwrap_or(name)
}
