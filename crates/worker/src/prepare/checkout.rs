//! A card's code: the files of its exact commit, checked out once for all models that run them.
//!
//! The commit is what counts. Where the tag that it was found by leads elsewhere by now, the commit is loaded all the
//! same, and the replica's note says so; where the repository does not hand it out any more, the load is refused.

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use berth_git::{
    Category, CheckoutLimits, Credentials, Git, GitError, History, HostKeys, LeftOut, Mirror, Oid, Protocols, Remote,
    Rev, Stop,
};
use berth_spec::{
    CredentialSet, FailureCategory, PinnedCard,
    credential::{Credential, GitAuth, Kind},
};

use super::{
    Miss, Settings,
    content_store::{ContentStore, PinnedFolder},
    dependency_outcomes::{BlockedDependencies, DependencyOutcomes},
};
use crate::{artifacts::checksum, breaker::Dependency, fault::Fault};

/// The time limit of a whole checkout: a repository with data beside its code passes over a slow line.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// Checks code out and keeps it.
#[derive(Debug)]
pub(super) struct Checkouts {
    git: Arc<Git>,
    protocols: Protocols,
    store: ContentStore,
}

/// Code on disk.
#[derive(Debug)]
pub(super) struct Code {
    pub(super) held: PinnedFolder,
    pub(super) notes: Vec<String>,
}

/// The folder of a checkout that holds the files.
pub(super) const FILES: &str = "files";
/// The file with notes on a checkout, line by line.
const NOTES: &str = "notes";

impl Checkouts {
    pub(super) fn new(settings: &Settings, store: ContentStore) -> Self {
        let git = Arc::new(Git::new(settings.environment.iter().cloned()));
        let protocols = Protocols::default();
        let protocols = if settings.local_repositories { protocols.with_local() } else { protocols };
        let protocols = if settings.http_repositories { protocols.with_http() } else { protocols };
        Self { git, protocols, store }
    }

    /// The name of a checkout: the same for the same commit of the same repository.
    pub(super) fn name_of(card: &PinnedCard) -> String {
        checksum::of(format!("{}\n{}", card.card.code.repository, card.code_commit).as_bytes()).to_string()
    }

    /// The code of `card`. Blocks until it is here, or `cancelled`.
    pub(super) fn get(
        &self,
        card: &PinnedCard,
        keys: &CredentialSet,
        blocked: &BlockedDependencies,
        outcomes: &DependencyOutcomes,
        cancelled: Arc<AtomicBool>,
    ) -> Result<Code, Miss> {
        // First: what is not allowed any more is not run either, though it be here.
        let remote = Remote::parse(&card.card.code.repository, self.protocols).map_err(|error| fault(&error, None))?;
        let asking = CheckoutRequest { card, keys, blocked, outcomes };
        let name = Self::name_of(card);
        let held = match self.store.get(&name) {
            Some(held) => held,
            None => self.fetch(&name, &remote, &asking, cancelled)?,
        };
        let notes = fs_err::read_to_string(held.path.join(NOTES)).unwrap_or_default();
        has_folder(&held.path.join(FILES), &card.card.code.path)?;
        Ok(Code { held, notes: notes.lines().map(str::to_owned).collect() })
    }

    fn fetch(
        &self,
        name: &str,
        remote: &Remote,
        asking: &CheckoutRequest<'_>,
        cancelled: Arc<AtomicBool>,
    ) -> Result<PinnedFolder, Miss> {
        let CheckoutRequest { card, keys, blocked, outcomes } = *asking;
        let commit = Oid::parse(&card.code_commit).ok_or_else(|| {
            Fault::new(FailureCategory::Code, format!("{:?} is no commit: deploy the card again", card.code_commit))
        })?;
        if let Some(dependency) = dependency(remote)
            && let Some(until) = blocked.git
        {
            return Err(Miss::HeldOff { dependency, until });
        }
        let (credentials, secret) = credentials(keys, &card.card.code.repository, self.store.root());
        let stop = Stop::within(LIMIT).with_flag(cancelled);
        let job = Job { git: &self.git, remote, commit: &commit, credentials: &credentials, stop: &stop };
        let making = self.store.make(name).map_err(|error| Fault::disk(&error))?;
        let fetched = job.fetch(&making.path, &card.card.code.reference);
        if let Some(dependency) = dependency(remote) {
            match fetched.as_ref().map_err(|error| error.category) {
                Err(Category::Network | Category::TimedOut) => outcomes.failed(dependency),
                Err(Category::Disk | Category::Cancelled | Category::Internal) => {}
                _ => outcomes.answered(dependency),
            }
        }
        if let Err(error) = fetched {
            making.discard();
            return Err(fault(&error, secret.as_deref()).into());
        }
        Ok(making.finish()?)
    }
}

/// A request to a repository: its address, the credentials, and the record of its outcome.
struct CheckoutRequest<'a> {
    card: &'a PinnedCard,
    keys: &'a CredentialSet,
    blocked: &'a BlockedDependencies,
    outcomes: &'a DependencyOutcomes,
}

struct Job<'a> {
    git: &'a Arc<Git>,
    remote: &'a Remote,
    commit: &'a Oid,
    credentials: &'a Credentials,
    stop: &'a Stop,
}

impl Job<'_> {
    /// Puts the files of the commit and what is worth knowing of them into `folder`.
    fn fetch(&self, folder: &Path, reference: &str) -> Result<(), GitError> {
        let copy = folder.join("copy");
        let mirror = Mirror::open(Arc::clone(self.git), &copy, self.remote.clone(), self.stop)?;
        let mut notes = Vec::new();
        if let Some(tag @ Rev::Tag(name)) = &Rev::pinned(reference)
            && let Some(pattern) = tag.ref_name()
        {
            // Git matches from the end: what ends alike is not it, and what an annotated tag leads to has a suffix.
            let peeled = format!("{pattern}^{{}}");
            let refs = self.mirror_refs(&mirror, &[&pattern, &peeled])?;
            match refs.tag(name) {
                Some(now) if now == self.commit => {}
                Some(now) => notes.push(format!(
                    "the {tag} of the code leads to {} now; what was deployed is {}, and that is what runs",
                    now.short(),
                    self.commit.short()
                )),
                None => notes.push(format!("the {tag} of the code is gone; its commit {} runs", self.commit.short())),
            }
        }
        let wanted = [Rev::Commit(self.commit.as_str().to_owned())];
        mirror.fetch(&wanted, History::Tip, self.credentials, self.stop).map_err(|mut error| {
            if error.category == Category::RefNotFound {
                error.detail = format!(
                    "the commit {} of the code, which {reference} led to, is not there any more: somebody moved or \
                     removed it ({})",
                    self.commit, error.detail
                );
            }
            error
        })?;
        let done =
            mirror.repository().checkout(self.commit, &folder.join(FILES), CheckoutLimits::default(), self.stop)?;
        notes.extend(done.left_out.iter().map(|left| match left {
            LeftOut::Submodule(path) => format!("the submodule {path} of the code is not there: it is not fetched"),
            LeftOut::LfsPointer(path) => format!("{path} of the code is a pointer of Git LFS, which is not fetched"),
        }));
        drop(mirror);
        let disk = |error: std::io::Error| GitError {
            category: Category::Disk,
            doing: "keep the checkout".to_owned(),
            remote: self.remote.shown(),
            detail: error.to_string(),
        };
        fs_err::remove_dir_all(&copy).and_then(|()| fs_err::write(folder.join(NOTES), notes.join("\n"))).map_err(disk)
    }

    fn mirror_refs(&self, mirror: &Mirror, patterns: &[&str]) -> Result<berth_git::RemoteRefs, GitError> {
        mirror.ls_remote(patterns, self.credentials, self.stop)
    }
}

/// Checks that `code.path` is a folder of the checkout. Links cannot lead out of it: the checkout has none that do.
fn has_folder(files: &Path, path: &str) -> Result<(), Fault> {
    let inside = Path::new(path)
        .components()
        .all(|part| matches!(part, std::path::Component::Normal(_) | std::path::Component::CurDir));
    let wrong = |why: &str| {
        let message =
            format!("code.path is {path:?}, which {why}: give a folder of the repository, or \".\" for its root");
        Err(Fault::new(FailureCategory::Code, message))
    };
    match inside {
        false => wrong("leads out of the repository"),
        true if !files.join(path).is_dir() => wrong("is no folder of it at that commit"),
        true => Ok(()),
    }
}

/// The dependency that a Git host is; a repository of this machine is none.
pub(super) fn dependency(remote: &Remote) -> Option<Dependency> {
    (!remote.host().is_empty()).then(|| Dependency::git(&remote.origin()))
}

/// The credentials for the repository, and the name and type of their secret.
fn credentials(keys: &CredentialSet, url: &str, folder: &Path) -> (Credentials, Option<String>) {
    let Some((name, granted)) = keys.granted(url, Kind::Git) else { return (Credentials::None, None) };
    let Credential::Git(git) = &granted.credential else { return (Credentials::None, None) };
    let credentials = match &git.auth {
        GitAuth::Token { username, token } => {
            Credentials::Token { username: username.clone().unwrap_or_default(), token: token.expose().to_owned() }
        }
        GitAuth::DeployKey { deploy_key, known_hosts } => Credentials::SshKey {
            key: deploy_key.expose().to_owned(),
            hosts: match known_hosts {
                Some(lines) => HostKeys::Lines(lines.clone()),
                None => HostKeys::FirstMet(folder.join("known_hosts")),
            },
        },
    };
    (credentials, Some(format!("{name} ({})", Kind::Git)))
}

/// Converts an error of git to a failure of a load.
fn fault(error: &GitError, secret: Option<&str>) -> Fault {
    let category = match error.category {
        Category::Network => FailureCategory::Network,
        Category::TimedOut => FailureCategory::Timeout,
        Category::Auth | Category::Certificate => FailureCategory::Auth,
        Category::NotFound | Category::RefNotFound | Category::PathNotFound => FailureCategory::NotFound,
        Category::Disk => FailureCategory::Disk,
        Category::TooLarge | Category::Invalid | Category::Signature => FailureCategory::Code,
        Category::Internal if error.doing.contains("start git") => FailureCategory::Runtime,
        _ => FailureCategory::Internal,
    };
    let about = match (category, secret) {
        (FailureCategory::Auth, Some(secret)) => format!(" (with the secret {secret})"),
        (FailureCategory::Auth, None) => {
            format!(" (this worker has no {} for it)", Kind::Git)
        }
        (FailureCategory::Runtime, _) => ": install git on the worker".to_owned(),
        _ => String::new(),
    };
    Fault::new(category, format!("the model's code: {error}{about}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        let dir = tempfile::tempdir().expect("a folder");
        fs_err::create_dir_all(dir.path().join("src/deep")).expect("made");
        fs_err::write(dir.path().join("file"), "").expect("written");
        for fine in ["src", "src/", "./src/deep", "."] {
            assert_eq!(has_folder(dir.path(), fine), Ok(()), "{fine}");
        }
        for odd in ["..", "src/../..", "/etc", "file", "missing"] {
            assert_eq!(has_folder(dir.path(), odd).expect_err(odd).category, FailureCategory::Code, "{odd}");
        }
    }
}
