//! Steps 2, 3 and 6: every file of the registry for itself, and what files say of each other.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use berth_git::{GitError, Protocols, Stop};
use berth_spec::manifest::{ManifestAlias, ManifestFunction, endpoint_path};

use crate::{
    Counts, DeploymentManifest, SecretFile,
    aliases::{self, AliasFile},
    functions::{self, FunctionFile},
    layout::{Environment, Layout},
    parse::{self, Parsed, SecretsFile, WorkerFile},
    problem::{Problem, Step},
    tree::{File, Files, Tree},
};

/// Parsed files of earlier validations.
#[derive(Debug, Default)]
pub(super) struct FileCache {
    manifests: ParsedByContent<DeploymentManifest>,
    aliases: ParsedByContent<AliasFile>,
    functions: ParsedByContent<FunctionFile>,
    workers: ParsedByContent<WorkerFile>,
    secrets: ParsedByContent<SecretsFile>,
}

/// By file and the name of its content.
type ParsedByContent<T> = HashMap<(String, String), Arc<Parsed<T>>>;

/// Parsed files of this validation.
pub(super) struct Local {
    pub(super) manifests: Vec<(Environment, String, Arc<Parsed<DeploymentManifest>>)>,
    pub(super) aliases: Vec<ManifestAlias>,
    pub(super) functions: Vec<ManifestFunction>,
    pub(super) workers: Vec<Arc<Parsed<WorkerFile>>>,
    pub(super) secrets: Vec<SecretFile>,
    pub(super) problems: Vec<Problem>,
    pub(super) counts: Counts,
}

impl Local {
    /// Ids of the deployments that no replica is wanted of.
    pub(super) fn idle(&self) -> Vec<String> {
        let manifests = self.manifests.iter().filter_map(|(.., parsed)| parsed.value.as_deref());
        manifests.filter(|manifest| manifest.wanted() == 0).map(|manifest| manifest.id.clone()).collect()
    }
}

/// Reads files and looks at those that are new.
pub(super) struct Reader<'a> {
    pub(super) tree: &'a Tree,
    pub(super) files: &'a Files,
    pub(super) stop: &'a Stop,
}

impl Reader<'_> {
    pub(super) fn all(
        &self,
        layout: &Layout<'_>,
        memory: &mut FileCache,
        protocols: Protocols,
    ) -> Result<Local, GitError> {
        let manifest_files: Vec<&File> = layout.manifests.iter().map(|(_, file)| *file).collect();
        let mut parsed = 0;
        let manifests =
            self.look(&manifest_files, &mut memory.manifests, Step::Manifests, &mut parsed, |file, text| {
                parse::manifest(file, text, protocols)
            })?;
        let aliases = self.look(&layout.aliases, &mut memory.aliases, aliases::STEP, &mut parsed, aliases::read)?;
        let functions =
            self.look(&layout.functions, &mut memory.functions, functions::STEP, &mut parsed, functions::read)?;
        let workers = self.look(&layout.workers, &mut memory.workers, Step::Workers, &mut parsed, parse::worker)?;
        let secrets = self.look(&layout.secrets, &mut memory.secrets, Step::Workers, &mut parsed, parse::secrets)?;
        let counts = Counts { manifests: manifests.len(), workers: workers.len(), cards: 0, parsed, omitted: 0 };
        let mut problems: Vec<Problem> = Vec::new();
        problems.extend(manifests.iter().flat_map(|one| one.problems.iter().cloned()));
        problems.extend(aliases.iter().flat_map(|one| one.problems.iter().cloned()));
        problems.extend(aliases::check(&aliases, &manifests));
        problems.extend(functions.iter().flat_map(|one| one.problems.iter().cloned()));
        problems.extend(functions::check(&functions));
        problems.extend(workers.iter().flat_map(|one| one.problems.iter().cloned()));
        problems.extend(secrets.iter().flat_map(|one| one.problems.iter().cloned()));
        problems.extend(doubles(&manifests, Step::Manifests, "/id", |manifest| &manifest.id));
        problems.extend(doubles(&workers, Step::Workers, "/worker_id", |worker| &worker.config.worker_id));
        problems.extend(doubles(&secrets, Step::Workers, "/worker_id", |secrets| &secrets.worker));
        problems.extend(same_endpoint(&manifests));
        problems.extend(of_nobody(&secrets, &workers));
        problems.extend(vault_twice(&secrets, &workers));
        let places = layout.manifests.iter().map(|(environment, file)| (*environment, file.path.clone()));
        let manifests = places.zip(manifests).map(|((environment, path), one)| (environment, path, one)).collect();
        let secrets = secret_files(&secrets, &workers);
        let aliases = aliases.iter().filter_map(|one| Some(one.value.as_deref()?.alias.clone())).collect();
        let functions = functions.iter().filter_map(|one| Some(one.value.as_deref()?.function.clone())).collect();
        Ok(Local { manifests, aliases, functions, workers, secrets, problems, counts })
    }

    fn look<T>(
        &self,
        files: &[&File],
        known: &mut ParsedByContent<T>,
        step: Step,
        parsed: &mut usize,
        parse: impl Fn(&str, &str) -> Parsed<T>,
    ) -> Result<Vec<Arc<Parsed<T>>>, GitError> {
        let key = |file: &File| (file.path.clone(), file.content.clone());
        let new: Vec<&File> = files.iter().copied().filter(|file| !known.contains_key(&key(file))).collect();
        let contents = self.tree.read(self.files, &new, self.stop)?;
        *parsed += new.len();
        let mut current = ParsedByContent::with_capacity(files.len());
        let look = |file: &&File| {
            let one = known.remove(&key(file)).unwrap_or_else(|| {
                Arc::new(match file.text(&contents, step) {
                    Ok(text) => parse(&file.path, text),
                    Err(problem) => Parsed::unreadable(&file.path, *problem),
                })
            });
            current.insert(key(file), Arc::clone(&one));
            one
        };
        let found = files.iter().map(look).collect();
        // What is no longer there is forgotten.
        *known = current;
        Ok(found)
    }
}

/// The same name in several files.
fn doubles<T>(all: &[Arc<Parsed<T>>], step: Step, pointer: &str, name: impl Fn(&T) -> &String) -> Vec<Problem> {
    let mut first: BTreeMap<&str, &Arc<Parsed<T>>> = BTreeMap::new();
    let mut found = Vec::new();
    for one in all {
        let Some(value) = one.value.as_deref() else { continue };
        if let Some(other) = first.get(name(value).as_str()) {
            let message = format!("{} is declared in {}, too", name(value), other.source().0);
            found.push(
                one.problem(step, pointer, "duplicate", message).remedy("give one of them another name, or remove it"),
            );
        } else {
            first.insert(name(value).as_str(), one);
        }
    }
    found
}

/// Two deployments of one region at one path: gateways could not tell which of them is meant. Where one of them is
/// switched off it may be about to take over, or was just replaced.
fn same_endpoint(manifests: &[Arc<Parsed<DeploymentManifest>>]) -> Vec<Problem> {
    let mut first: BTreeMap<(String, &str), &Arc<Parsed<DeploymentManifest>>> = BTreeMap::new();
    let mut found = Vec::new();
    for one in manifests {
        let Some(manifest) = one.value.as_deref() else { continue };
        let config = &manifest.deployment_config;
        let Some(path) = config.endpoint.as_deref().and_then(|text| endpoint_path(text).ok()) else { continue };
        let taken = manifest.regions().find_map(|region| Some((region, *first.get(&(path.clone(), region))?)));
        let Some((region, other)) = taken else {
            first.extend(manifest.regions().map(|region| ((path.clone(), region), one)));
            continue;
        };
        let message = format!("{} answers at {path} in {region}, too", other.source().0);
        let problem = one.problem(Step::Manifests, one.endpoint_pointer(), "endpoint-taken", message);
        let problem = problem.remedy("give one of them another path");
        let both_run = manifest.wanted() > 0 && other.value.as_deref().is_some_and(|other| other.wanted() > 0);
        found.push(if both_run { problem } else { problem.warning() });
    }
    found
}

/// Secrets of workers that are not declared.
fn of_nobody(secrets: &[Arc<Parsed<SecretsFile>>], workers: &[Arc<Parsed<WorkerFile>>]) -> Vec<Problem> {
    let known: BTreeSet<&str> =
        workers.iter().filter_map(|one| Some(one.value.as_ref()?.config.worker_id.as_str())).collect();
    let strange = secrets.iter().filter_map(|one| {
        let worker = one.value.as_deref()?.worker.as_str();
        (!known.contains(worker)).then(|| {
            let message = format!("{worker} has secrets, but no configuration in workers/");
            one.problem(Step::Workers, "/worker_id", "unknown-worker", message).warning()
        })
    });
    strange.collect()
}

/// Workers with references to Vault in both the configuration and the file of secrets, of which only one can apply.
fn vault_twice(secrets: &[Arc<Parsed<SecretsFile>>], workers: &[Arc<Parsed<WorkerFile>>]) -> Vec<Problem> {
    let both = workers.iter().filter_map(|one| {
        let worker = one.value.as_deref().filter(|worker| worker.vault.is_some())?;
        let id = &worker.config.worker_id;
        let of_it = |other: &&Arc<Parsed<SecretsFile>>| {
            other.value.as_deref().is_some_and(|secrets| secrets.is_vault && secrets.worker == *id)
        };
        let other = secrets.iter().find(of_it)?;
        let message = format!("{} says what {id} needs from Vault, too", other.source().0);
        Some(one.problem(Step::Workers, "/secrets", "duplicate", message).remedy("keep one of them"))
    });
    both.collect()
}

/// References to credentials, as files of secrets.
fn secret_files(secrets: &[Arc<Parsed<SecretsFile>>], workers: &[Arc<Parsed<WorkerFile>>]) -> Vec<SecretFile> {
    let files = secrets.iter().filter_map(|one| {
        let (path, text) = one.source();
        Some(SecretFile { worker: one.value.as_deref()?.worker.clone(), path: path.to_owned(), text })
    });
    let of_workers = workers.iter().filter_map(|one| {
        let worker = one.value.as_deref()?;
        let text = worker.vault.clone()?;
        Some(SecretFile { worker: worker.config.worker_id.clone(), path: one.source().0.to_owned(), text })
    });
    files.chain(of_workers).collect()
}
