//! The six steps, in order, on a commit or a folder.
//!
//! ```text
//! 1 structure ──▶ 2 manifests ──▶ 3 references ──▶ 4 cards ──▶ 5 compatibility      6 workers ──▶ Report
//!     │ wrong: nothing else          (a manifest goes on only as long as nothing is wrong with it)
//!     ▼ is looked at
//! ```
//! Everything of one step is collected, so that one report says all there is to mend. The outcome is that of the first
//! step that found an error.

mod local;

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use berth_git::{CommitInfo, GitError, Oid, Protocols, Stop};
use berth_spec::{card::SCHEMA_VERSIONS, manifest::ManifestAlias};
use time::OffsetDateTime;

use crate::{
    Counts, DeploymentManifest, Desired, DesiredDeployment, Report, SecretFile, Settings, WorkerConfig,
    card::CardRules,
    cards,
    compatibility::{self, Fleet},
    hub,
    layout::{self, Layout},
    matrix::Matrix,
    parse::Parsed,
    problem::{Problem, Step},
    remotes::Remotes,
    settings::SETTINGS_FILE,
    signature,
    tree::{Files, Tree},
};

/// Path of an optional replacement of the matrix.
pub const MATRIX_FILE: &str = "compatibility-matrix.yaml";

/// The trailer of a commit that may remove the last deployment.
pub const ALLOW_EMPTY: &str = "Berth-Allow-Empty";

/// Input of a validation.
#[derive(Debug, Clone, Copy)]
pub struct Pass<'a> {
    /// The commit or folder.
    pub tree: &'a Tree,
    /// The commit that was accepted before: its keys vouch for the new ones, and it says whether there was something to
    /// remove.
    pub previous: Option<&'a Oid>,
    /// Time in seconds since 1970.
    pub now: i64,
    /// Permits removing the last deployment, whatever the commit says.
    pub allow_empty: bool,
    /// Deadline and cancellation.
    pub stop: &'a Stop,
}

/// Validates commits, and remembers what it has seen.
#[derive(Debug)]
pub struct Validator {
    remotes: Option<Remotes>,
    protocols: Protocols,
    memory: Mutex<ValidationCache>,
}

/// Results of earlier validations, reused for unchanged files.
#[derive(Debug, Default)]
struct ValidationCache {
    files: local::FileCache,
    cards: cards::CardCache,
    /// Rules under which the cards were checked.
    card_rules: Option<(Matrix, String)>,
}

impl Validator {
    /// With cards read from their repositories.
    #[must_use]
    pub fn new(remotes: Remotes) -> Self {
        Self { protocols: remotes.protocols(), remotes: Some(remotes), memory: Mutex::default() }
    }

    /// Without looking at cards: steps 1, 2, 3 and 6.
    #[must_use]
    pub fn offline(protocols: Protocols) -> Self {
        Self { remotes: None, protocols, memory: Mutex::default() }
    }

    /// Validates. One pass at a time.
    ///
    /// # Errors
    /// If the tree cannot be read; everything that is wrong with it is in the report.
    pub fn validate(&self, pass: &Pass<'_>) -> Result<Report, GitError> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let commit = match pass.tree {
            Tree::Commit { repository, commit } => Some(repository.commit(commit, pass.stop)?),
            Tree::Folder(_) => None,
        };
        let mut report = ValidationRun { validator: self, pass, memory: &mut memory }.run(commit.as_ref())?;
        report.commit = commit;
        if let Some(remotes) = &self.remotes
            && let Err(error) = remotes.settle(report.is_accepted())
        {
            return Err(GitError {
                category: berth_git::Category::Disk,
                doing: "remember where tags are".to_owned(),
                remote: String::new(),
                detail: error.to_string(),
            });
        }
        blame(&mut report, pass)?;
        Ok(report)
    }
}

struct ValidationRun<'a> {
    validator: &'a Validator,
    pass: &'a Pass<'a>,
    memory: &'a mut ValidationCache,
}

impl ValidationRun<'_> {
    fn run(&mut self, commit: Option<&CommitInfo>) -> Result<Report, GitError> {
        let offline = self.validator.remotes.is_none();
        let stop = self.pass.stop;
        let files = self.pass.tree.files(stop)?;
        let (layout, mut problems) = layout::sort(&files);
        let (settings, matrix) = self.rules(&files, &mut problems)?;
        let mut signer = None;
        if let (Tree::Commit { repository, commit }, Some(settings)) = (self.pass.tree, &settings) {
            let checked = signature::check(repository, commit, self.pass.previous, settings, stop)?;
            problems.extend(checked.problems);
            signer = checked.signer;
        }
        problems.extend(self.emptied(&layout, settings.as_ref(), commit)?);
        let (Some(settings), Some(matrix), false) = (settings, matrix, problems.iter().any(Problem::is_error)) else {
            let counts =
                Counts { manifests: layout.manifests.len(), workers: layout.workers.len(), ..Counts::default() };
            return Ok(Report { signer, ..Report::new(problems, counts, offline) });
        };
        let reader = local::Reader { tree: self.pass.tree, files: &files, stop };
        let mut local = reader.all(&layout, &mut self.memory.files, self.validator.protocols)?;
        problems.append(&mut local.problems);
        let idle = (!problems.iter().any(Problem::is_error)).then(|| local.idle());
        let today = day(self.pass.now);
        let deployments = match &self.validator.remotes {
            Some(remotes) => {
                if self.memory.card_rules.as_ref().is_none_or(|(old, day)| *old != matrix || *day != today) {
                    self.memory.cards.clear();
                    self.memory.card_rules = Some((matrix.clone(), today.clone()));
                }
                let rules = CardRules { matrix: &matrix, today: &today, protocols: self.validator.protocols };
                let found = cards::find(remotes, &local.manifests, &mut self.memory.cards, &rules, stop);
                local.counts.cards = self.memory.cards.len();
                local.counts.parsed += found.parsed;
                problems.extend(found.problems);
                found.deployments
            }
            None => Vec::new(),
        };
        let workers: Vec<&WorkerConfig> =
            local.workers.iter().filter_map(|worker| Some(&worker.value.as_deref()?.config)).collect();
        let is_partial = workers.len() < local.workers.len();
        let fleet = Fleet { workers: &workers, is_partial, declared: settings.workers, matrix: &matrix };
        for (deployment, parsed) in &deployments {
            let at = |pointer: &str, rule, message| parsed.problem(compatibility::STEP, pointer, rule, message);
            problems.extend(fleet.check(&deployment.manifest, &deployment.card, at));
            problems.extend(unservable(deployment, parsed));
        }
        let workers = workers.into_iter().map(|worker| reading(worker, &matrix)).collect();
        let mut report = Report { signer, idle, ..Report::new(problems, local.counts, offline) };
        if report.is_accepted() && !offline {
            let deployments = deployments.into_iter().map(|(deployment, _)| deployment).collect();
            let desired = desired(commit, deployments, local.aliases, workers, local.secrets, settings);
            let mut functions = local.functions;
            functions.sort_by(|a, b| a.name.cmp(&b.name));
            report.desired = Some(Desired { signer: report.signer.clone(), functions, ..desired });
        }
        Ok(report)
    }

    /// `registry.yaml` and the matrix; `None` where they are wrong.
    fn rules(
        &self,
        files: &Files,
        problems: &mut Vec<Problem>,
    ) -> Result<(Option<Settings>, Option<Matrix>), GitError> {
        let (tree, stop) = (self.pass.tree, self.pass.stop);
        let mut keep = |found: Vec<Problem>| problems.extend(found);
        let settings = match tree.read_one(files, SETTINGS_FILE, stop)? {
            Ok(Some(text)) => Settings::read(&text).map_err(&mut keep).ok(),
            Ok(None) => Some(Settings::default()),
            Err(problem) => Err(vec![*problem]).map_err(&mut keep).ok(),
        };
        let matrix = match tree.read_one(files, MATRIX_FILE, stop)? {
            Ok(Some(text)) => Matrix::read(&text, MATRIX_FILE).map_err(&mut keep).ok(),
            Ok(None) => Some(Matrix::embedded()),
            Err(problem) => Err(vec![*problem]).map_err(&mut keep).ok(),
        };
        Ok((settings, matrix))
    }

    /// A commit that removes all there was is more often an accident than a wish.
    fn emptied(
        &self,
        layout: &Layout<'_>,
        settings: Option<&Settings>,
        commit: Option<&CommitInfo>,
    ) -> Result<Option<Problem>, GitError> {
        let allowed = self.pass.allow_empty
            || settings.is_some_and(|settings| settings.allow_empty)
            || commit
                .and_then(|commit| commit.trailer(ALLOW_EMPTY))
                .is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let (Some(previous), Tree::Commit { repository, .. }) = (self.pass.previous, self.pass.tree) else {
            return Ok(None);
        };
        if allowed || !layout.manifests.is_empty() {
            return Ok(None);
        }
        let before = repository.list(previous, "models", self.pass.stop)?;
        let count = before.iter().filter(|entry| entry.path.ends_with(".yaml") || entry.path.ends_with(".yml")).count();
        let message = format!("the commit removes all {count} deployments");
        let remedy = format!("if that is meant, end the commit's message with the line `{ALLOW_EMPTY}: true`");
        Ok((count > 0).then(|| Problem::new(Step::Structure, "emptied", "models", message).remedy(remedy)))
    }
}

/// A worker with every version of cards that it reads by the matrix: whoever places models compares versions alone.
fn reading(worker: &WorkerConfig, matrix: &Matrix) -> WorkerConfig {
    let own = &worker.supported_schema_versions;
    let listed = |version: &&str| own.iter().any(|own| own == version);
    let reads = |version: &&str| matrix.supports(own.iter().map(String::as_str), version);
    let more = SCHEMA_VERSIONS.into_iter().filter(|version| !listed(version) && reads(version)).map(str::to_owned);
    WorkerConfig { supported_schema_versions: own.iter().cloned().chain(more).collect(), ..worker.clone() }
}

/// Problems that the rest of Berth would have with a deployment.
fn unservable(deployment: &DesiredDeployment, parsed: &Parsed<DeploymentManifest>) -> Vec<Problem> {
    let problem = |(pointer, message, remedy): (String, String, String)| {
        parsed.problem(Step::Manifests, &pointer, "unservable", message).remedy(remedy)
    };
    hub::check(deployment).into_iter().map(problem).collect()
}

fn desired(
    commit: Option<&CommitInfo>,
    mut deployments: Vec<DesiredDeployment>,
    mut aliases: Vec<ManifestAlias>,
    mut workers: Vec<WorkerConfig>,
    secret_files: Vec<SecretFile>,
    settings: Settings,
) -> Desired {
    deployments.sort_by(|a, b| a.id.cmp(&b.id));
    aliases.sort_by(|a, b| a.name.cmp(&b.name));
    workers.sort_by(|a, b| a.worker_id.cmp(&b.worker_id));
    Desired {
        commit: commit.map(|commit| commit.oid.clone()),
        author: commit.map_or_else(String::new, |commit| format!("{} <{}>", commit.author.name, commit.author.email)),
        signer: None,
        time: commit.map_or(0, |commit| commit.committer.time),
        subject: commit.map_or_else(String::new, |commit| commit.subject.clone()),
        deployments,
        aliases,
        functions: Vec::new(),
        workers,
        secret_files,
        settings,
    }
}

/// The day of a time in seconds since 1970, as `2026-01-31`.
#[must_use]
pub fn day(now: i64) -> String {
    OffsetDateTime::from_unix_timestamp(now).map_or_else(|_| String::new(), |time| time.date().to_string())
}

/// Files whose last commit is looked up to name its author. Bounds the time for large reports.
const BLAMED: usize = 32;

/// Says who touched the files that are wrong.
fn blame(report: &mut Report, pass: &Pass<'_>) -> Result<(), GitError> {
    let Tree::Commit { repository, commit } = pass.tree else { return Ok(()) };
    let mut known: BTreeMap<String, Option<CommitInfo>> = BTreeMap::new();
    for problem in report.problems.iter_mut().filter(|problem| problem.commit.is_none()) {
        let file = if problem.manifest.is_empty() { &problem.file } else { &problem.manifest };
        if !known.contains_key(file) {
            if known.len() >= BLAMED || file.is_empty() {
                continue;
            }
            known.insert(file.clone(), repository.last_change(commit, file, pass.stop)?);
        }
        problem.commit = known.get(file).cloned().flatten();
    }
    Ok(())
}
