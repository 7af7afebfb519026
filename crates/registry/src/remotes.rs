//! Model repositories: each is asked for its tags once per pass, and a card is read once per commit, ever.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use berth_git::{Category, Credentials, Git, GitError, History, Mirror, Oid, Protocols, Remote, RemoteRefs, Rev, Stop};

use crate::{document::MAX_FILE_BYTES, ledger::Ledger};

/// Repositories queried at once. Limits the number of git processes and connections.
const AT_ONCE: usize = 8;

/// Limit for one repository in one validation. Allows for large repositories over slow links.
const PATIENCE: Duration = Duration::from_secs(60);

/// Gives the credentials for a repository.
pub type CredentialsFor = dyn Fn(&Remote) -> Credentials + Send + Sync;

/// The repositories that model cards come from.
pub struct Remotes {
    git: Arc<Git>,
    protocols: Protocols,
    credentials: Box<CredentialsFor>,
    ledger: Ledger,
    mirrors: Mutex<BTreeMap<String, Arc<Mirror>>>,
}

impl fmt::Debug for Remotes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remotes").field("ledger", &self.ledger).finish_non_exhaustive()
    }
}

/// Request for a commit of a repository, and optionally a file of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileRequest {
    pub(crate) repository: String,
    pub(crate) reference: String,
    pub(crate) path: Option<String>,
}

/// Commit and file that were found.
#[derive(Debug, Clone)]
pub(crate) struct FetchedFile {
    pub(crate) commit: Oid,
    /// The file, if one was wanted.
    pub(crate) text: Option<Arc<str>>,
    /// Error because of which the result comes from memory; `None` if the repository answered.
    pub(crate) unasked: Option<GitError>,
}

/// Reason why nothing was found.
#[derive(Debug, Clone)]
pub(crate) enum LookupError {
    Git(GitError),
    /// The tag is not where it was when it was first seen, which is remembered in a file.
    Moved {
        before: Oid,
        now: Oid,
        memory: PathBuf,
    },
}

impl From<GitError> for LookupError {
    fn from(error: GitError) -> Self {
        Self::Git(error)
    }
}

/// Results of one pass, by request.
pub(crate) type Answers = BTreeMap<FileRequest, Result<FetchedFile, LookupError>>;

/// The tags of repositories as they were asked for in one pass.
#[derive(Debug, Default)]
pub(crate) struct TagCache(Mutex<BTreeMap<String, Result<Arc<RemoteRefs>, GitError>>>);

impl Remotes {
    /// With copies, cards and the memory of tags in `folder`.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub fn open(
        git: Arc<Git>,
        folder: &Path,
        protocols: Protocols,
        credentials: Box<CredentialsFor>,
    ) -> io::Result<Self> {
        let ledger = Ledger::open(folder)?;
        Ok(Self { git, protocols, credentials, ledger, mirrors: Mutex::default() })
    }

    /// Protocols allowed for repositories.
    #[must_use]
    pub const fn protocols(&self) -> Protocols {
        self.protocols
    }

    /// Finds all of `wanted`, several repositories at once.
    pub(crate) fn find(&self, wanted: &BTreeSet<FileRequest>, asked: &TagCache, stop: &Stop) -> Answers {
        let mut by_repository: BTreeMap<&str, Vec<&FileRequest>> = BTreeMap::new();
        for one in wanted {
            by_repository.entry(&one.repository).or_default().push(one);
        }
        let queue = Mutex::new(by_repository.into_iter());
        let answers = Mutex::new(Answers::new());
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || {
            while let Some((repository, wanted)) = next() {
                let found = self.of_repository(repository, &wanted, asked, &stop.at_most(PATIENCE));
                answers.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
            }
        };
        thread::scope(|scope| {
            for _ in 1..AT_ONCE.min(wanted.len()) {
                scope.spawn(work);
            }
            work();
        });
        answers.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a pass: what was learnt is written; where tags are counts only if the commit was accepted.
    pub(crate) fn settle(&self, accepted: bool) -> io::Result<()> {
        self.ledger.settle(accepted)
    }

    fn of_repository(&self, repository: &str, wanted: &[&FileRequest], asked: &TagCache, stop: &Stop) -> Answers {
        let remote = match Remote::parse(repository, self.protocols) {
            Ok(remote) => remote,
            Err(error) => return wanted.iter().map(|one| ((*one).clone(), Err(error.clone().into()))).collect(),
        };
        let credentials = (self.credentials)(&remote);
        let visit = Visit { remotes: self, repository, remote: &remote, credentials, asked, stop };
        visit.fetch_new_tags(wanted);
        let mut broken: Option<GitError> = None;
        let mut answers = Answers::new();
        for one in wanted {
            // A host that does not answer is not waited for once per card.
            let found = visit.find(one, broken.as_ref());
            if let Err(LookupError::Git(error)) = &found
                && matches!(
                    error.category,
                    Category::Network | Category::TimedOut | Category::Auth | Category::Certificate
                )
            {
                broken = Some(error.clone());
            }
            answers.insert((*one).clone(), found);
        }
        answers
    }

    fn mirror(&self, repository: &str, remote: &Remote, stop: &Stop) -> Result<Arc<Mirror>, GitError> {
        let known = || self.mirrors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mirror) = known().get(repository) {
            return Ok(Arc::clone(mirror));
        }
        // Each repository is visited by one thread at a time.
        let folder = self.ledger.mirror_folder(repository);
        let mirror = Arc::new(Mirror::open(Arc::clone(&self.git), &folder, remote.clone(), stop)?);
        known().insert(repository.to_owned(), Arc::clone(&mirror));
        Ok(mirror)
    }
}

/// One repository in one pass.
struct Visit<'a> {
    remotes: &'a Remotes,
    repository: &'a str,
    remote: &'a Remote,
    credentials: Credentials,
    asked: &'a TagCache,
    stop: &'a Stop,
}

impl Visit<'_> {
    fn find(&self, wanted: &FileRequest, broken: Option<&GitError>) -> Result<FetchedFile, LookupError> {
        let Some(rev) = Rev::pinned(&wanted.reference) else {
            let detail = format!("{:?} is neither a version tag nor a commit", wanted.reference);
            return Err(error(Category::Invalid, self.remote, detail).into());
        };
        let (commit, unasked) = match &rev {
            Rev::Tag(tag) => self.tag(tag)?,
            _ => (self.commit(&rev, &wanted.reference, broken)?, None),
        };
        let text = match &wanted.path {
            Some(path) => Some(self.card(&rev, &commit, path, broken)?),
            None => None,
        };
        Ok(FetchedFile { commit, text, unasked })
    }

    /// Fetches all tags with new cards in one call. If that fails, fetches each alone for its own error.
    fn fetch_new_tags(&self, wanted: &[&FileRequest]) {
        let new = wanted.iter().filter_map(|one| {
            let (Some(Rev::Tag(tag)), Some(path)) = (Rev::pinned(&one.reference), &one.path) else { return None };
            let (commit, unasked) = self.tag(&tag).ok()?;
            let is_new = unasked.is_none() && self.remotes.ledger.card(self.repository, &commit, path).is_none();
            is_new.then_some(Rev::Tag(tag))
        });
        let new: Vec<Rev> = new.collect::<BTreeSet<Rev>>().into_iter().collect();
        if new.len() > 1
            && let Ok(mirror) = self.remotes.mirror(self.repository, self.remote, self.stop)
        {
            let _ = mirror.fetch(&new, History::Tip, &self.credentials, self.stop);
        }
    }

    /// Commit of a tag, compared with the commit first seen for it.
    fn tag(&self, tag: &str) -> Result<(Oid, Option<GitError>), LookupError> {
        let before = self.remotes.ledger.tag(self.repository, tag);
        match (self.refs(), before) {
            (Ok(refs), before) => match (refs.tag(tag).cloned(), before) {
                (None, _) => {
                    let detail = format!("there is no tag {tag}");
                    Err(error(Category::RefNotFound, self.remote, detail).into())
                }
                (Some(now), Some(before)) if now != before => {
                    Err(LookupError::Moved { before, now, memory: self.remotes.ledger.file() })
                }
                (Some(now), before) => {
                    if before.is_none() {
                        self.remotes.ledger.meet_tag(self.repository, tag, &now);
                    }
                    Ok((now, None))
                }
            },
            (Err(reason), Some(before)) if reason.category != Category::Cancelled => Ok((before, Some(reason))),
            (Err(reason), _) => Err(reason.into()),
        }
    }

    fn refs(&self) -> Result<Arc<RemoteRefs>, GitError> {
        let asked = || self.asked.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = asked().get(self.repository) {
            return known.clone();
        }
        let mirror = self.remotes.mirror(self.repository, self.remote, self.stop);
        let refs = mirror.and_then(|mirror| mirror.ls_remote(&["refs/tags/*"], &self.credentials, self.stop));
        let refs = refs.map(Arc::new);
        asked().insert(self.repository.to_owned(), refs.clone());
        refs
    }

    /// Resolves a commit by its digits; its existence is checked once.
    fn commit(&self, rev: &Rev, digits: &str, broken: Option<&GitError>) -> Result<Oid, LookupError> {
        if let Some(known) = self.remotes.ledger.abbreviation(self.repository, digits) {
            return Ok(known);
        }
        let mirror = self.fetched(rev, broken)?;
        // Digits of several commits: it is the reference that is wrong.
        let commit = mirror.repository().resolve(rev, self.stop).map_err(|e| match e.category {
            Category::Invalid => GitError { category: Category::RefNotFound, ..e },
            _ => e,
        })?;
        self.remotes.ledger.note_abbreviation(self.repository, digits, &commit);
        Ok(commit)
    }

    fn card(&self, rev: &Rev, commit: &Oid, path: &str, broken: Option<&GitError>) -> Result<Arc<str>, LookupError> {
        let ledger = &self.remotes.ledger;
        if let Some(text) = ledger.card(self.repository, commit, path) {
            return Ok(text.into());
        }
        let mirror = self.remotes.mirror(self.repository, self.remote, self.stop)?;
        let mirror =
            if mirror.repository().has_commit(commit, self.stop)? { mirror } else { self.fetched(rev, broken)? };
        if !mirror.repository().has_commit(commit, self.stop)? {
            let detail = format!("{rev} has moved while it was read");
            return Err(error(Category::Moved, self.remote, detail).into());
        }
        let read = mirror.repository().read(commit, path, MAX_FILE_BYTES, self.stop);
        let bytes = read.map_err(|mut error| {
            error.remote = self.remote.shown();
            error
        })?;
        let text = String::from_utf8(bytes)
            .map_err(|_| error(Category::Invalid, self.remote, format!("{path} is not UTF-8")))?;
        ledger.note_card(self.repository, commit, path, &text);
        Ok(text.into())
    }

    fn fetched(&self, rev: &Rev, broken: Option<&GitError>) -> Result<Arc<Mirror>, LookupError> {
        if let Some(error) = broken {
            return Err(error.clone().into());
        }
        let mirror = self.remotes.mirror(self.repository, self.remote, self.stop)?;
        mirror.fetch(std::slice::from_ref(rev), History::Tip, &self.credentials, self.stop)?;
        Ok(mirror)
    }
}

fn error(category: Category, remote: &Remote, detail: String) -> GitError {
    GitError { category, doing: "read".to_owned(), remote: remote.shown(), detail }
}
