//! Reads the registry: resolves the branch tip, fetches and validates commits. Blocking.

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::AtomicBool},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use berth_git::{Category, CommitInfo, GitError, History, Mirror, Oid, Repository, Rev, Stop};
use berth_registry::{Desired, Pass, Remotes, Report, Settings, Tree, Validator, settings::SETTINGS_FILE, write_back};
use berth_spec::Time;

use super::verdict::FollowError;
use crate::{GitConfig, refusal};

/// The time limit of a poll of the branch: enough for a slow link, and a host that hangs delays nothing for longer.
const POLL_TIMEOUT: Duration = Duration::from_secs(60);

/// The time limit of fetching and validating a commit: a first pass over many large model repositories ends within it.
const CHECK: Duration = Duration::from_secs(10 * 60);

/// The most bytes of one file that is read outside of validation: people write such files, and they have kilobytes.
const MAX_FILE_BYTES: usize = 1 << 20;

/// The folder of secrets, from the registry's root.
const SECRETS: &str = "workers/secrets";

/// Reads the registry through a mirror and two validators. Blocking.
pub(crate) struct RegistryReader {
    config: Arc<GitConfig>,
    /// True once the term is over: git processes end.
    over: Arc<AtomicBool>,
    mirror: Mutex<Option<Arc<Mirror>>>,
    validator: Mutex<Option<Arc<Validator>>>,
    /// Validates a commit's own files alone, also while the other validator waits for a model's repository.
    offline: Validator,
}

/// The last good commit as far as it is known without validating it again.
#[derive(Debug)]
pub(crate) struct RestoredCommit {
    pub(crate) info: CommitInfo,
    pub(crate) settings: Settings,
    /// Path and text.
    pub(crate) secrets: Vec<(String, String)>,
}

/// Result of fetching and validating one commit.
#[derive(Debug)]
pub(crate) struct Validation {
    /// The failure, where it could not be validated.
    pub(crate) failure: Option<FollowError>,
    pub(crate) info: Option<CommitInfo>,
    pub(crate) report: Option<Report>,
    /// The commit does not follow from the one before: somebody rewrote the history.
    pub(crate) rewritten: bool,
    /// Files that only controllers write, and that somebody else has changed.
    pub(crate) foreign: Vec<String>,
    /// The settings of a commit that is refused, where they are right by themselves.
    pub(crate) settings: Option<Settings>,
    pub(crate) took: Duration,
}

impl Validation {
    fn failed(error: &GitError, began: Instant) -> Self {
        Self {
            failure: Some(fault(error)),
            info: None,
            report: None,
            rewritten: false,
            foreign: Vec::new(),
            settings: None,
            took: began.elapsed(),
        }
    }
}

impl RegistryReader {
    pub(crate) fn new(config: Arc<GitConfig>, over: Arc<AtomicBool>) -> Self {
        let offline = Validator::offline(config.protocols);
        Self { config, over, mirror: Mutex::default(), validator: Mutex::default(), offline }
    }

    /// Ends calls at a deadline, and with the term.
    pub(crate) fn stop(&self, limit: Duration) -> Stop {
        Stop::within(limit).with_flag(Arc::clone(&self.over))
    }

    /// The copy of the registry. What went wrong once is tried anew the next time.
    pub(crate) fn mirror(&self, stop: &Stop) -> Result<Arc<Mirror>, GitError> {
        let mut mirror = self.mirror.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mirror) = &*mirror {
            return Ok(Arc::clone(mirror));
        }
        let folder = self.config.folder.join("registry");
        let opened = Mirror::open(Arc::clone(&self.config.git), &folder, self.config.remote.clone(), stop)?;
        Ok(Arc::clone(mirror.insert(Arc::new(opened))))
    }

    /// Resolves the tip of the branch, with one request.
    pub(crate) fn poll_tip(&self) -> Result<Oid, FollowError> {
        let stop = self.stop(POLL_TIMEOUT);
        let mirror = self.mirror(&stop).map_err(|error| fault(&error))?;
        let name = format!("refs/heads/{}", self.config.branch);
        let credentials = self.config.credentials_for(&self.config.remote);
        let refs = mirror.ls_remote(&[&name], &credentials, &stop).map_err(|error| fault(&error))?;
        refs.branch(&self.config.branch).cloned().ok_or_else(|| FollowError {
            message: format!(
                "{} has no branch {}: push it, or name another one with --source git=URL#BRANCH",
                self.config.remote, self.config.branch
            ),
            passing: false,
        })
    }

    /// Reads the settings and secrets of a commit that was good.
    pub(crate) fn restore(&self, commit: &Oid) -> Result<RestoredCommit, FollowError> {
        let stop = self.stop(POLL_TIMEOUT);
        self.read_good(commit, &stop).map_err(|error| FollowError {
            message: format!("the last good commit {} cannot be read again: {error}", commit.short()),
            passing: error.is_transient(),
        })
    }

    fn read_good(&self, commit: &Oid, stop: &Stop) -> Result<RestoredCommit, GitError> {
        let mirror = self.mirror(stop)?;
        let credentials = self.config.credentials_for(&self.config.remote);
        mirror.fetch(&[Rev::Commit(commit.to_string())], History::Full, &credentials, stop)?;
        let repository = mirror.repository();
        let text = |path: &str| {
            let bytes = repository.read(commit, path, MAX_FILE_BYTES, stop)?;
            Ok::<_, GitError>(String::from_utf8_lossy(&bytes).into_owned())
        };
        let settings = match text(SETTINGS_FILE) {
            // It was good once; what this version does not take any more is told when the commit is validated.
            Ok(text) => Settings::read(&text).unwrap_or_default(),
            Err(error) if error.category == Category::PathNotFound => Settings::default(),
            Err(error) => return Err(error),
        };
        let files = repository.list(commit, SECRETS, stop)?;
        let is_yaml = |file: &berth_git::TreeEntry| file.path.ends_with(".yaml") || file.path.ends_with(".yml");
        let files = files.into_iter().filter(is_yaml);
        let mut secrets: Vec<(String, String)> =
            files.map(|file| Ok((file.path.clone(), text(&file.path)?))).collect::<Result<_, GitError>>()?;
        // A worker's configuration may say what Vault has for it.
        let workers = repository.list(commit, "workers", stop)?.into_iter().filter(is_yaml);
        for file in workers.filter(|file| !file.path.starts_with(SECRETS)) {
            let vault = berth_registry::vault_of_worker(&file.path, &text(&file.path)?);
            secrets.extend(vault.map(|file| (file.path, file.text.to_string())));
        }
        Ok(RestoredCommit { info: repository.commit(commit, stop)?, settings, secrets })
    }

    /// Fetches and validates a commit. `base`: the last one that was understood; `applied`: the last good one.
    pub(crate) fn validate_commit(&self, commit: &Oid, base: Option<&Oid>, applied: Option<&Oid>) -> Validation {
        let began = Instant::now();
        let mut checked = self
            .fetch_and_validate(commit, base, applied, began)
            .unwrap_or_else(|error| Validation::failed(&error, began));
        checked.took = began.elapsed();
        checked
    }

    fn fetch_and_validate(
        &self,
        commit: &Oid,
        base: Option<&Oid>,
        applied: Option<&Oid>,
        began: Instant,
    ) -> Result<Validation, GitError> {
        let stop = self.stop(CHECK);
        let mirror = self.mirror(&stop)?;
        let credentials = self.config.credentials_for(&self.config.remote);
        mirror.fetch(&[Rev::Branch(self.config.branch.clone())], History::Full, &credentials, &stop)?;
        let repository = mirror.repository();
        if !repository.has_commit(commit, &stop)? {
            // The branch went elsewhere in between; the next look will find that.
            mirror.fetch(&[Rev::Commit(commit.to_string())], History::Full, &credentials, &stop)?;
        }
        let here = |oid: Option<&Oid>| match oid {
            Some(oid) if repository.has_commit(oid, &stop)? => Ok::<_, GitError>(Some(oid.clone())),
            _ => Ok(None),
        };
        let (known, previous) = (here(base)?, here(applied)?);
        let info = repository.commit(commit, &stop)?;
        let mut checked = Validation {
            failure: None,
            info: Some(info),
            report: None,
            // Also when the old commit is nowhere any more.
            rewritten: match (base, &known) {
                (Some(_), Some(known)) => !repository.is_ancestor(known, commit, &stop)?,
                (Some(_), None) => true,
                (None, _) => false,
            },
            foreign: Vec::new(),
            settings: None,
            took: began.elapsed(),
        };
        if let Some(known) = &known {
            let changed = repository.changed(Some(known), commit, &stop)?;
            checked.foreign = foreign(&mirror, known, commit, &changed, &stop)?;
            if changed.iter().all(|change| write_back::is_own(&change.path)) && known != commit {
                return Ok(checked);
            }
        }
        if let Some(info) = &checked.info {
            let at = Time(u64::try_from(info.committer.time).unwrap_or_default().saturating_mul(1_000_000_000));
            tracing::info!(event = "registry_commit_detected", commit_sha = %commit, author = refusal::author(info), timestamp = %at);
        }
        tracing::info!(event = "registry_validation_started", commit_sha = %commit);
        let report = self.validate(&mirror, commit, previous.as_ref(), &stop)?;
        if !report.is_accepted() {
            checked.settings = settings_of(repository, commit, &stop);
        }
        checked.report = Some(report);
        Ok(checked)
    }

    /// Validates the own files of the newest commit, if it is not `seen`.
    pub(crate) fn read_head(&self, seen: Option<&Oid>, applied: Option<&Oid>) -> Result<Option<Report>, FollowError> {
        let tip = self.poll_tip()?;
        if seen == Some(&tip) {
            return Ok(None);
        }
        let stop = self.stop(POLL_TIMEOUT);
        let read = |error: GitError| fault(&error);
        let mirror = self.mirror(&stop).map_err(read)?;
        let credentials = self.config.credentials_for(&self.config.remote);
        mirror.fetch(&[Rev::Commit(tip.to_string())], History::Full, &credentials, &stop).map_err(read)?;
        pass(&self.offline, &mirror, &tip, applied, &stop).map(Some).map_err(read)
    }

    /// Validates the last good commit again; it has been restored.
    pub(crate) fn revalidate(&self, commit: &Oid) -> Result<(CommitInfo, Desired), FollowError> {
        let stop = self.stop(CHECK);
        let read = |error: GitError| fault(&error);
        let mirror = self.mirror(&stop).map_err(read)?;
        // Its signatures were checked by the keys of the commit before, which may be others than its own by now.
        let report = self.validate(&mirror, commit, Some(commit), &stop).map_err(read)?;
        let info = mirror.repository().commit(commit, &stop).map_err(read)?;
        let signer = berth_registry::signer(mirror.repository(), commit, &stop).map_err(read)?;
        let passing = report.is_transient();
        let first = report.errors().next().map(ToString::to_string).unwrap_or_default();
        let desired = if report.is_accepted() { report.desired } else { None };
        desired.map(|desired| (info, Desired { signer, ..desired })).ok_or_else(|| FollowError {
            message: format!("the last good commit {} does not pass any more: {first}", commit.short()),
            passing,
        })
    }

    fn validate(&self, mirror: &Mirror, commit: &Oid, previous: Option<&Oid>, stop: &Stop) -> Result<Report, GitError> {
        pass(&*self.validator()?, mirror, commit, previous, stop)
    }

    /// The validator; it remembers what it has seen from pass to pass.
    fn validator(&self) -> Result<Arc<Validator>, GitError> {
        let mut validator = self.validator.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(validator) = &*validator {
            return Ok(Arc::clone(validator));
        }
        let config = Arc::clone(&self.config);
        let credentials = Box::new(move |remote: &berth_git::Remote| config.credentials_for(remote));
        let folder = self.config.folder.join("cards");
        let remotes = Remotes::open(Arc::clone(&self.config.git), &folder, self.config.protocols, credentials);
        let remotes = remotes.map_err(|error| GitError {
            category: Category::Disk,
            doing: "open the memory of model cards".to_owned(),
            remote: String::new(),
            detail: error.to_string(),
        })?;
        Ok(Arc::clone(validator.insert(Arc::new(Validator::new(remotes)))))
    }
}

fn pass(
    validator: &Validator,
    mirror: &Mirror,
    commit: &Oid,
    previous: Option<&Oid>,
    stop: &Stop,
) -> Result<Report, GitError> {
    let tree = Tree::Commit { repository: mirror.repository().clone(), commit: commit.clone() };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    validator.validate(&Pass { tree: &tree, previous, now, allow_empty: false, stop })
}

/// The settings of a commit, if they are right by themselves.
fn settings_of(repository: &Repository, commit: &Oid, stop: &Stop) -> Option<Settings> {
    let text = repository.read(commit, SETTINGS_FILE, MAX_FILE_BYTES, stop).ok()?;
    Settings::read(std::str::from_utf8(&text).ok()?).ok()
}

/// Files of controllers that commits without a controller's trailer have touched.
fn foreign(
    mirror: &Mirror,
    from: &Oid,
    to: &Oid,
    changed: &[berth_git::Change],
    stop: &Stop,
) -> Result<Vec<String>, GitError> {
    /// Commits that are searched for the one that wrote: enough for a long merge.
    const MOST: usize = 200;
    let own: Vec<&str> =
        changed.iter().map(|change| change.path.as_str()).filter(|path| write_back::is_own(path)).collect();
    if own.is_empty() {
        return Ok(Vec::new());
    }
    let repository = mirror.repository();
    let log = repository.log(Some(from), to, MOST, stop)?;
    let mut found = Vec::new();
    for info in log.iter().filter(|info| info.trailer(write_back::WRITER).is_none() && info.parents.len() < 2) {
        let touched = repository.changed(info.parents.first(), &info.oid, stop)?;
        let touched = touched.into_iter().map(|change| change.path).filter(|path| own.contains(&path.as_str()));
        found.extend(touched.map(|path| format!("{path} was changed by {} in {}", info.author.name, info.oid.short())));
    }
    Ok(found)
}

/// A failure in words, and whether it may pass.
pub(crate) fn fault(error: &GitError) -> FollowError {
    FollowError { message: error.to_string(), passing: error.is_transient() || error.category == Category::Disk }
}
