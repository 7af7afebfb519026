//! Steps 2, 3 and 6 for one file each: pure, so that a file that has not changed is not looked at again.

use std::{collections::BTreeMap, sync::Arc};

use berth_git::{Protocols, Remote, Rev};
use berth_spec::manifest::{
    endpoint_path,
    node::{Node, Position},
};
use serde_json::{Value, json};

use crate::{
    DeploymentManifest, SecretFile, WorkerConfig,
    card::is_inside,
    document::{Document, whole},
    problem::{Problem, Severity, Step},
    schema::{self, Finding, SchemaKind},
};

/// Result of looking at one file: its value, or its problems.
#[derive(Debug)]
pub(crate) struct Parsed<T> {
    pub(crate) problems: Vec<Problem>,
    pub(crate) value: Option<Arc<T>>,
    file: String,
    text: Arc<str>,
    /// Positions and texts of fields that later steps may report.
    places: BTreeMap<&'static str, (Position, String)>,
}

/// Fields that later steps may report.
const PLACES: [&str; 17] = [
    "/id",
    "/model_card_ref/repository",
    "/model_card_ref/path",
    "/model_card_ref/ref",
    "/deployment_config/region",
    "/deployment_config/replicas",
    "/deployment_config/worker_selector",
    "/deployment_config/endpoint",
    "/endpoint",
    "/berth",
    "/berth/minReplicas",
    "/berth/regions",
    "/berth/idleAfter",
    "/berth/rollout",
    "/worker_id",
    "/labels",
    "/secrets",
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

    /// Result of a file with problems, which has no value.
    pub(crate) fn invalid(file: &str, text: &str, problems: Vec<Problem>) -> Self {
        Self { problems, ..Self::empty(file, text) }
    }

    /// Result of a file without problems of its own.
    pub(crate) fn valid(file: &str, text: &str, value: T) -> Self {
        Self { value: Some(Arc::new(value)), ..Self::empty(file, text) }
    }

    /// Path of the file, from the registry's root.
    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// Result for a file whose content cannot be read as text.
    pub(crate) fn unreadable(file: &str, problem: Problem) -> Self {
        Self::empty(file, "").with_problem(problem)
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

    /// JSON pointer of the endpoint in a manifest.
    pub(crate) fn endpoint_pointer(&self) -> &'static str {
        let at_the_top = self.places.get("/endpoint").is_some_and(|(_, path)| !path.is_empty());
        if at_the_top { "/endpoint" } else { "/deployment_config/endpoint" }
    }
}

/// Reads, checks against the schema and makes typed, what one document may be.
fn read<T>(
    file: &str,
    text: &str,
    step: Step,
    kind: SchemaKind,
    typed: impl FnOnce(Value) -> Result<T, (String, String)>,
) -> (Parsed<T>, Option<Document>) {
    let mut parsed = Parsed::empty(file, text);
    let document = match Document::read(text, file, step) {
        Ok(Some(document)) => document,
        Ok(None) => {
            // Not as good as removed: a file that was emptied by accident would take its models with it.
            let problem = Problem::new(step, "empty", file, "the file declares nothing");
            return (parsed.with_problem(problem.remedy("fill it in, or remove it")), None);
        }
        Err(problem) => return (parsed.with_problem(*problem), None),
    };
    parsed.note_places(&document);
    let findings = schema::check(kind, schema::NEWEST, &document, step, file, text).unwrap_or_default();
    parsed.problems.extend(findings.into_iter().map(as_reference));
    // An unpinned reference is a matter of the next step; the rest of the manifest can be read all the same.
    if !parsed.problems.iter().any(|problem| problem.is_error() && problem.step == step) {
        match typed(document.json.clone()) {
            Ok(value) => parsed.value = Some(Arc::new(value)),
            Err((pointer, message)) => {
                let (place, path) = document.place(&pointer);
                parsed.problems.push(Problem::new(step, "schema", file, message).at(place, &path, text));
            }
        }
    }
    (parsed, Some(document))
}

/// Reports a malformed reference. The schema finds it, but it has an outcome of its own.
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

/// Fields of the registry's document for what Berth does not do yet: a canary that is not understood would be a full
/// rollout.
const LATER: [&str; 10] = [
    "deployment_strategy",
    "canary_percentage",
    "canary_duration",
    "ab_test",
    "variants",
    "traffic_split",
    "auto_scaling",
    "min_replicas",
    "max_replicas",
    "target_requests_per_second",
];

fn is_of_later(problem: &Problem) -> bool {
    let name = problem.path.strip_prefix("deployment_config.").unwrap_or(&problem.path);
    problem.rule == "unknown-field" && LATER.contains(&name)
}

fn refuse_later(problem: &mut Problem) {
    let name = problem.path.rsplit('.').next().unwrap_or_default();
    problem.message = format!("{name} is not supported, and the version would be rolled out without it");
    problem.remedy = "remove it: every replica gets the version, one after the other".to_owned();
    problem.rule = "unsupported-field";
    problem.severity = Severity::Error;
}

/// Steps 2 and 3 for one manifest.
pub(crate) fn manifest(file: &str, text: &str, protocols: Protocols) -> Parsed<DeploymentManifest> {
    let (mut parsed, _) = read(file, text, Step::Manifests, SchemaKind::Deployment, crate::manifest::read);
    parsed.problems.iter_mut().filter(|problem| is_of_later(problem)).for_each(refuse_later);
    let Some(manifest) = parsed.value.clone() else { return parsed };
    let mut found = Vec::new();
    let mut problem = |step, pointer, rule, message: String, remedy: &str| {
        found.push(parsed.problem(step, pointer, rule, message).remedy(remedy));
    };
    let card = &manifest.model_card_ref;
    if let Err(error) = Remote::parse(&card.repository, protocols) {
        let remedy = local_remedy(&card.repository, protocols);
        problem(Step::Manifests, "/model_card_ref/repository", "repository", error.detail, remedy);
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
    if !manifest.berth.regions.is_empty() && config.worker_selector.contains_key("region") {
        let message = "berth.regions names the regions, and worker_selector has one, too".to_owned();
        problem(Step::Manifests, "/berth/regions", "region", message, "remove region from worker_selector");
    }
    if let Some(endpoint) = &config.endpoint
        && let Err((message, remedy)) = endpoint_path(endpoint)
    {
        problem(Step::Manifests, parsed.endpoint_pointer(), "endpoint", message, &remedy);
    }
    let name = stem(file);
    if name != manifest.id {
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

/// Remedy where repositories on this machine are not allowed.
pub(crate) fn local_remedy(repository: &str, protocols: Protocols) -> &'static str {
    let is_local = Remote::parse(repository, protocols.with_local()).is_ok();
    if is_local {
        "where everybody who writes manifests may read this machine, give --local-repositories: to this command, to \
         `berth registry hook install`, and to the nodes that follow the registry"
    } else {
        ""
    }
}

/// A file of `workers/`: its configuration, and references to Vault.
#[derive(Debug)]
pub(crate) struct WorkerFile {
    pub(crate) config: WorkerConfig,
    /// References to Vault, in the form of a file of secrets.
    pub(crate) vault: Option<Arc<str>>,
}

/// Step 6 for one worker configuration.
pub(crate) fn worker(file: &str, text: &str) -> Parsed<WorkerFile> {
    let of = |mut json: Value| {
        let vault = json.as_object_mut().and_then(|fields| fields.remove("secrets"));
        whole(&mut json);
        let config: WorkerConfig = Document::typed(json)?;
        let vault = vault.map(|secrets| json!({"worker_id": config.worker_id, "secrets": secrets}).to_string().into());
        Ok(WorkerFile { config, vault })
    };
    let (mut parsed, document) = read(file, text, Step::Workers, SchemaKind::WorkerConfig, of);
    if let Some(document) = document {
        let found = vault_problems(&document, file);
        if !found.is_empty() {
            parsed.value = None;
            // What is said of the field may show it.
            parsed.problems.retain(|problem| !problem.path.starts_with("secrets"));
            parsed.problems.extend(found);
        }
    }
    if let Some(worker) = parsed.value.clone() {
        let (name, id) = (stem(file), &worker.config.worker_id);
        if name != id {
            let message = format!("the file is called {name}, but the worker {id}");
            let problem = parsed.problem(Step::Workers, "/worker_id", "file-name", message);
            parsed.problems.push(problem.remedy("give both the same name").warning());
        }
    }
    parsed
}

/// References to Vault of an accepted worker configuration, in the form of a file of secrets.
#[must_use]
pub fn vault_of_worker(file: &str, text: &str) -> Option<SecretFile> {
    let worker = worker(file, text).value?;
    let text = worker.vault.clone()?;
    Some(SecretFile { worker: worker.config.worker_id.clone(), path: file.to_owned(), text })
}

/// Problems of the `secrets` in a worker configuration, which may only refer to Vault. Never quotes the line, which
/// may hold a secret.
fn vault_problems(document: &Document, file: &str) -> Vec<Problem> {
    let Some(secrets) = document.node.get("secrets") else { return Vec::new() };
    let at = |place, path: &str, message: &str, remedy: &str| {
        Problem::new(Step::Workers, "secrets", file, message).at(place, path, "").remedy(remedy)
    };
    if secrets.get("backend").and_then(Node::text) != Some("vault") {
        let message = "a worker configuration holds no secrets: it may only say where Vault has them (backend: vault)";
        let remedy = "move them to workers/secrets with `berth secrets encrypt`, and revoke what was in plain text";
        return vec![at(document.place("/secrets").0, "secrets", message, remedy)];
    }
    let found = berth_secrets::vault::Declared::parse(secrets, file, "secrets").err().unwrap_or_default();
    let place = |line, column| Position { line, column };
    found.iter().map(|one| at(place(one.line, one.column), &one.path, &one.message, &one.remedy)).collect()
}

/// A file of `workers/secrets`: for which worker it is, still encrypted.
#[derive(Debug)]
pub(crate) struct SecretsFile {
    pub(crate) worker: String,
    /// True if the file only refers to Vault.
    pub(crate) is_vault: bool,
}

/// Step 6 for the secrets of one worker.
pub(crate) fn secrets(file: &str, text: &str) -> Parsed<SecretsFile> {
    let mut parsed = Parsed::empty(file, text);
    for found in berth_secrets::check(text, file) {
        let problem = Problem::new(Step::Workers, "secrets", file, found.message);
        let place = Position { line: found.line, column: found.column };
        // Never with its line: it may hold the secret.
        parsed.problems.push(problem.at(place, &found.path, "").remedy(found.remedy));
    }
    if parsed.problems.is_empty()
        && let Ok(Some(document)) = Document::read(text, file, Step::Workers)
    {
        parsed.note_places(&document);
        let worker = document.json.get("worker_id").and_then(Value::as_str);
        let is_vault = document.json.pointer("/secrets/backend").and_then(Value::as_str) == Some("vault");
        parsed.value = worker.map(|worker| Arc::new(SecretsFile { worker: worker.to_owned(), is_vault }));
    }
    parsed
}

/// The name of a file without folder and ending.
fn stem(file: &str) -> &str {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.strip_suffix(".yaml").or_else(|| name.strip_suffix(".yml")).unwrap_or(name)
}
