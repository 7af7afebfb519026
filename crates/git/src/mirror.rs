//! Bare copy of a remote repository: reads, fetches what is missing, and pushes.
//!
//! A mirror is a cache. Leftovers of a crash are removed when it is opened. Damage is repaired by rebuilding, also
//! when it is found later: once an object could not be read, all are checked before the next call to the remote.

mod folder;

use std::{
    fs::File,
    io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use fs_err as fs;

use self::folder::{Format, clear, init, lock, sweep};
use crate::{Category, Credentials, Git, GitError, Oid, Remote, Repository, Rev, Stop};

/// Amount of history to fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum History {
    /// The commit and its files alone: enough to read and to check out.
    Tip,
    /// All commits that lead to it: for logs, comparisons and pushes.
    Full,
}

/// One ref of a remote repository, as `git ls-remote` lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteRef {
    /// `refs/heads/main`, `HEAD`.
    pub name: String,
    /// The object it names: for an annotated tag the tag itself.
    pub oid: Oid,
    /// Commit that an annotated tag points to.
    pub peeled: Option<Oid>,
}

impl RemoteRef {
    /// The object that the ref leads to in the end: a commit, but for very odd tags.
    #[must_use]
    pub fn target(&self) -> &Oid {
        self.peeled.as_ref().unwrap_or(&self.oid)
    }
}

/// The refs of a remote repository at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteRefs {
    /// In the order of their names.
    pub refs: Vec<RemoteRef>,
}

impl RemoteRefs {
    /// The ref of this full name: `refs/heads/main`, `HEAD`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&RemoteRef> {
        self.refs.iter().find(|found| found.name == name)
    }

    /// The commit that a tag leads to.
    #[must_use]
    pub fn tag(&self, name: &str) -> Option<&Oid> {
        self.get(&format!("refs/tags/{name}")).map(RemoteRef::target)
    }

    /// The tip of a branch by its short name: `main`.
    #[must_use]
    pub fn branch(&self, name: &str) -> Option<&Oid> {
        self.get(&format!("refs/heads/{name}")).map(RemoteRef::target)
    }

    fn parse(text: &str) -> Self {
        let mut refs: Vec<RemoteRef> = Vec::new();
        for (oid, name) in text.lines().filter_map(|line| line.split_once('\t')) {
            let Some(oid) = Oid::parse(oid) else { continue };
            match (name.strip_suffix("^{}"), refs.last_mut()) {
                (Some(tag), Some(last)) if last.name == tag => last.peeled = Some(oid),
                (Some(_), _) => {}
                (None, _) => refs.push(RemoteRef { name: name.to_owned(), oid, peeled: None }),
            }
        }
        Self { refs }
    }
}

/// A bare copy of a remote repository.
#[derive(Debug)]
pub struct Mirror {
    repository: Repository,
    remote: Remote,
    /// Bytes that it may take on disk.
    most: u64,
    /// One fetch or push at a time.
    busy: Mutex<()>,
    /// Held as long as this lives: no other process sweeps or writes here.
    _lock: File,
}

/// Largest mirror on disk in bytes, packed. Allows for repositories with a history of data, and bounds a hostile one.
const MAX_MIRROR_BYTES: u64 = 8 << 30;

impl Mirror {
    /// Opens the copy in `folder`, or makes an empty one; waits while another process has it.
    ///
    /// # Errors
    /// If the folder cannot be used, or another process does not let go of it in time.
    pub fn open(git: Arc<Git>, folder: &Path, remote: Remote, stop: &Stop) -> Result<Self, GitError> {
        let failed = |error: io::Error| GitError::io("open the copy of", &error).at(&remote.shown());
        fs::create_dir_all(folder).map_err(failed)?;
        let folder = fs::canonicalize(folder).map_err(failed)?;
        let lock = lock(&folder, stop).map_err(|e| e.at(&remote.shown()))?;
        let repository = Repository::at(git, folder.clone());
        let whole = ["HEAD", "config", "objects", "refs"].iter().all(|part| folder.join(part).exists());
        if whole && repository.run("open the copy of").args(["rev-parse", "--git-dir"]).ok(stop).is_ok() {
            sweep(&folder);
        } else {
            clear(&folder).map_err(failed)?;
            init(repository.git(), &folder, Format::Sha1, stop).map_err(|e| e.at(&remote.shown()))?;
        }
        Ok(Self { repository, remote, most: MAX_MIRROR_BYTES, busy: Mutex::new(()), _lock: lock })
    }

    /// The same with another bound for what it takes on disk, in bytes.
    #[must_use]
    pub fn at_most(self, bytes: u64) -> Self {
        Self { most: bytes, ..self }
    }

    /// The local repository, for reading what was fetched.
    #[must_use]
    pub const fn repository(&self) -> &Repository {
        &self.repository
    }

    /// The remote that is mirrored, without credentials.
    #[must_use]
    pub const fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Asks for the refs that match one of `patterns` (as git-ls-remote has them; none: all), in one call.
    ///
    /// # Errors
    /// By category: the remote cannot be reached, does not let us in, or is not there.
    pub fn ls_remote(&self, patterns: &[&str], credentials: &Credentials, stop: &Stop) -> Result<RemoteRefs, GitError> {
        if self.repository.is_doubted() {
            let _one = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
            self.heal(stop)?;
        }
        ls_remote(self.repository.git(), &self.remote, patterns, credentials, stop)
    }

    /// Fetches what is missing of `revs`. A commit that is already here costs no call. Where the remote does not hand
    /// out single commits, or only their first digits are known, all branches and tags are fetched.
    ///
    /// # Errors
    /// `RefNotFound` if one of them is not there (nothing may be fetched then), and by category.
    pub fn fetch(
        &self,
        revs: &[Rev],
        history: History,
        credentials: &Credentials,
        stop: &Stop,
    ) -> Result<(), GitError> {
        let _one = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        self.heal(stop)?;
        let (mut wanted, mut commits) = (Vec::new(), Vec::new());
        for rev in revs {
            if !rev.is_safe() {
                let detail = format!("{rev} is no proper name");
                return Err(GitError::new(Category::Invalid, "fetch from", detail).at(&self.remote.shown()));
            }
            match (rev.ref_name(), rev) {
                (Some(name), _) => wanted.push(format!("+{name}:{name}")),
                (None, Rev::Commit(digits)) if !self.has(rev, history, stop)? => commits.push(digits.as_str()),
                (None, _) => {}
            }
        }
        let (whole, partial): (Vec<&str>, Vec<&str>) = commits.into_iter().partition(|d| Oid::parse(d).is_some());
        let single: Vec<String> = whole.iter().map(|oid| format!("+{oid}:refs/berth/commits/{oid}")).collect();
        if !wanted.is_empty() {
            self.fetch_specs(&wanted, history, credentials, stop)?;
        }
        if !single.is_empty() {
            match self.fetch_specs(&single, history, credentials, stop) {
                // Servers say this in several ways; all of them mean that it has to come with a branch or a tag.
                Err(e) if matches!(e.category, Category::RefNotFound | Category::Internal | Category::NotFound) => {
                    self.fetch_everything(credentials, stop)?;
                }
                other => other?,
            }
        }
        if !partial.is_empty() {
            self.fetch_everything(credentials, stop)?;
        }
        for digits in whole.into_iter().chain(partial) {
            let rev = Rev::Commit(digits.to_owned());
            self.repository.resolve(&rev, stop).map_err(|e| e.at(&self.remote.shown()))?;
        }
        Ok(())
    }

    /// Rebuilds the mirror if an object could not be read and the files are damaged.
    fn heal(&self, stop: &Stop) -> Result<(), GitError> {
        if !self.repository.is_doubted() {
            return Ok(());
        }
        let check = self.repository.run("check the copy of").args(["fsck", "--no-dangling", "--no-progress"]);
        if !check.finish(stop)?.status.success() {
            self.renew(Format::of(self.repository.folder()), stop)?;
        }
        self.repository.trust();
        Ok(())
    }

    /// Deletes the mirror and creates an empty one.
    fn renew(&self, format: Format, stop: &Stop) -> Result<(), GitError> {
        let folder = self.repository.folder();
        clear(folder).map_err(|error| GitError::io("make a copy anew of", &error).at(&self.remote.shown()))?;
        init(self.repository.git(), folder, format, stop).map_err(|e| e.at(&self.remote.shown()))
    }

    /// True if a commit is present with the required history.
    fn has(&self, rev: &Rev, history: History, stop: &Stop) -> Result<bool, GitError> {
        if history == History::Full && self.is_shallow() {
            return Ok(false);
        }
        match self.repository.resolve(rev, stop) {
            Ok(_) => Ok(true),
            Err(e) if e.category == Category::RefNotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn is_shallow(&self) -> bool {
        self.repository.folder().join("shallow").exists()
    }

    /// Fetches all branches and tags with all their history; what is gone there goes here.
    fn fetch_everything(&self, credentials: &Credentials, stop: &Stop) -> Result<(), GitError> {
        let all = ["+refs/heads/*:refs/heads/*".to_owned(), "+refs/tags/*:refs/tags/*".to_owned()];
        self.fetch_specs(&all, History::Full, credentials, stop)
    }

    fn fetch_specs(
        &self,
        specs: &[String],
        history: History,
        credentials: &Credentials,
        stop: &Stop,
    ) -> Result<(), GitError> {
        match self.fetch_once(specs, history, credentials, stop) {
            // A new copy has names by SHA-1. What little is in it is of no use beside a remote with other names.
            Err(error) if Format::wanted(&error.detail).is_some() => {
                self.renew(Format::wanted(&error.detail).unwrap_or_default(), stop)?;
                self.fetch_once(specs, history, credentials, stop)
            }
            other => other,
        }
    }

    fn fetch_once(
        &self,
        specs: &[String],
        history: History,
        credentials: &Credentials,
        stop: &Stop,
    ) -> Result<(), GitError> {
        let folder = self.repository.folder();
        let run = self.repository.run("fetch from").remote(&self.remote.shown());
        let (run, _held) = credentials.add_to(run, &self.remote)?;
        let mut run = run.args(["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules"]);
        run = match history {
            History::Tip => run.arg("--depth=1"),
            History::Full if self.is_shallow() => run.arg("--unshallow"),
            History::Full => run,
        };
        if specs.iter().any(|spec| spec.contains('*')) {
            run = run.arg("--prune");
        }
        let run = run.within(folder.join("objects/pack"), self.most);
        let fetched = run.args(["--", self.remote.url()]).args(specs).ok(stop);
        let ended = |e: &GitError| matches!(e.category, Category::TimedOut | Category::Cancelled | Category::TooLarge);
        if fetched.as_ref().is_err_and(ended) {
            sweep(folder);
        }
        fetched.map(drop)
    }

    /// Pushes `commit` to a branch that is at `expected` (`None`: that is not there yet), and notes it here.
    ///
    /// # Errors
    /// `Moved` if the branch is elsewhere, `Refused` if the remote does not take it, and by category.
    pub fn push(
        &self,
        branch: &str,
        expected: Option<&Oid>,
        commit: &Oid,
        credentials: &Credentials,
        stop: &Stop,
    ) -> Result<(), GitError> {
        let _one = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = self.remote.shown();
        let rev = Rev::Branch(branch.to_owned());
        let Some(name) = rev.ref_name().filter(|_| rev.is_safe()) else {
            return Err(GitError::new(Category::Invalid, "push to", format!("{branch:?} is no branch")).at(&shown));
        };
        let run = self.repository.run("push to").remote(&shown);
        let (run, _held) = credentials.add_to(run, &self.remote)?;
        let lease = format!("--force-with-lease={name}:{}", expected.map_or("", Oid::as_str));
        let run = run.args(["push", "--porcelain", "--no-verify", "--no-signed", &lease, "--", self.remote.url()]);
        let finished = run.arg(format!("{commit}:{name}")).finish(stop)?;
        if finished.status.success() {
            let noted = self.repository.run("note the pushed branch").args(["update-ref", &name, commit.as_str()]);
            return noted.ok(stop).map(drop);
        }
        Err(refused(&String::from_utf8_lossy(&finished.out), &finished.words)
            .unwrap_or_else(|| crate::program::failed("push to", &finished))
            .at(&shown))
    }
}

/// Asks a remote for its refs without keeping anything of it.
pub(crate) fn ls_remote(
    git: &Git,
    remote: &Remote,
    patterns: &[&str],
    credentials: &Credentials,
    stop: &Stop,
) -> Result<RemoteRefs, GitError> {
    if let Some(odd) = patterns.iter().find(|pattern| pattern.starts_with('-') || pattern.contains('\0')) {
        return Err(GitError::new(Category::Invalid, "ask for the refs of", format!("{odd:?}")).at(&remote.shown()));
    }
    let run = git.run("ask for the refs of").remote(&remote.shown());
    let (run, _held) = credentials.add_to(run, remote)?;
    let text = run.args(["ls-remote", "--quiet", "--", remote.url()]).args(patterns).text(stop)?;
    Ok(RemoteRefs::parse(&text))
}

/// Reads the reason of a refused push from git's porcelain lines: `!\tFROM:TO\t[rejected] (stale info)`.
fn refused(lines: &str, words: &str) -> Option<GitError> {
    const MOVED: [&str; 7] = [
        "stale info",
        "fetch first",
        "non-fast-forward",
        "reference already exists",
        "incorrect old value",
        "failed to update ref",
        "cannot lock ref",
    ];
    let line = lines.lines().find(|line| line.starts_with('!'))?;
    let why = line.rsplit('\t').next().unwrap_or(line);
    let moved = MOVED.iter().any(|phrase| why.contains(phrase) || words.contains(phrase));
    if moved {
        return Some(GitError::new(Category::Moved, "push to", format!("the branch has moved: {why}")));
    }
    let mut error = GitError::said("push to", &format!("{why}\n{words}"));
    error.category = Category::Refused;
    Some(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotated_tags_are_followed() {
        let [a, b, c] = ["a", "b", "c"].map(|digit| digit.repeat(40));
        let text = format!("{a}\tHEAD\n{a}\trefs/heads/main\n{b}\trefs/tags/v1.0.0\n{c}\trefs/tags/v1.0.0^{{}}\n");
        let refs = RemoteRefs::parse(&text);
        assert_eq!(refs.tag("v1.0.0").map(Oid::as_str), Some(c.as_str()));
        assert_eq!(refs.branch("main").map(Oid::as_str), Some(a.as_str()));
        assert_eq!((refs.refs.len(), refs.tag("main"), refs.branch("v1.0.0")), (3, None, None));
    }

    #[test]
    fn a_push_that_came_too_late_is_told_from_one_that_is_not_wanted() {
        let moved = refused("To x\n!\tabc:refs/heads/m\t[rejected] (stale info)\nDone", "").expect("an error");
        assert_eq!(moved.category, Category::Moved);
        let lines = "!\tabc:refs/heads/m\t[remote rejected] (pre-receive hook declined)";
        let hook = refused(lines, "remote: models/x.yaml:1: no").expect("an error");
        assert_eq!(hook.category, Category::Refused);
        assert!(hook.detail.contains("models/x.yaml:1"), "{hook}");
    }
}
