//! A repository of this machine that is only read here: questions about its objects.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{Category, Git, GitError, Oid, Rev, Stop, program::Run};

/// Folder that holds the objects of a push until its hook accepts them, from the hook's environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantine {
    /// Value of `GIT_OBJECT_DIRECTORY`.
    pub objects: OsString,
    /// Value of `GIT_ALTERNATE_OBJECT_DIRECTORIES`.
    pub alternates: OsString,
}

/// A bare repository, or the `.git` folder of another.
#[derive(Debug, Clone)]
pub struct Repository {
    git: Arc<Git>,
    folder: PathBuf,
    quarantine: Option<Arc<Quarantine>>,
    /// Something in it could not be read.
    doubt: Arc<AtomicBool>,
}

impl Repository {
    /// The repository in `folder`: bare, or with a working tree (which is not looked at).
    ///
    /// # Errors
    /// If there is none.
    pub fn open(git: Arc<Git>, folder: &Path, stop: &Stop) -> Result<Self, GitError> {
        let run = git.run("open the repository").arg("-C").arg(folder);
        let safe = run.config("safe.directory", "*").args(["rev-parse", "--absolute-git-dir"]);
        let found = safe.text(stop).map_err(|e| e.at(&folder.display().to_string()))?;
        Ok(Self::at(git, PathBuf::from(found.trim_end_matches('\n'))))
    }

    /// Makes a bare repository whose first branch is `branch`; a folder that is one already stays as it is.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn create(git: Arc<Git>, folder: &Path, branch: &str, stop: &Stop) -> Result<Self, GitError> {
        if !Rev::Branch(branch.to_owned()).is_safe() {
            return Err(GitError::new(
                Category::Invalid,
                "make a repository",
                format!("{branch:?} is no name of a branch"),
            ));
        }
        let run = git.run("make a repository").args(["init", "--quiet", "--bare", "--template="]);
        run.arg(format!("--initial-branch={branch}")).arg("--").arg(folder).ok(stop)?;
        Self::open(git, folder, stop)
    }

    /// Sets a value of the repository's own configuration.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn configure(&self, name: &str, value: &str, stop: &Stop) -> Result<(), GitError> {
        self.run("configure the repository").args(["config", "--local", name, value]).ok(stop).map(drop)
    }

    /// The commit that `HEAD` is at; `None` before the first one.
    ///
    /// # Errors
    /// If git cannot be asked.
    pub fn head(&self, stop: &Stop) -> Result<Option<Oid>, GitError> {
        self.commit_of("HEAD", stop)
    }

    /// Opens the repository with this git folder without checking it.
    pub(crate) fn at(git: Arc<Git>, folder: PathBuf) -> Self {
        Self { git, folder, quarantine: None, doubt: Arc::default() }
    }

    /// True if the files of the repository seem damaged.
    pub(crate) fn is_doubted(&self) -> bool {
        self.doubt.load(Ordering::Relaxed)
    }

    /// Clears the suspicion of damage after a check or a rebuild.
    pub(crate) fn trust(&self) {
        self.doubt.store(false, Ordering::Relaxed);
    }

    /// An object is not here that something here leads to.
    pub(crate) fn doubt(&self) {
        self.doubt.store(true, Ordering::Relaxed);
    }

    /// The same, seeing what a push brings while its hook runs.
    #[must_use]
    pub fn in_quarantine(self, quarantine: Quarantine) -> Self {
        Self { quarantine: Some(Arc::new(quarantine)), ..self }
    }

    /// Path of the bare repository, or of the `.git` folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A run on this repository, which sees the quarantine of a push if there is one.
    pub(crate) fn run(&self, doing: &'static str) -> Run<'_> {
        let run = self.git.run(doing).repository(&self.folder).doubt(&self.doubt);
        match &self.quarantine {
            Some(quarantine) => run
                .env("GIT_OBJECT_DIRECTORY", quarantine.objects.clone())
                .env("GIT_ALTERNATE_OBJECT_DIRECTORIES", quarantine.alternates.clone()),
            None => run,
        }
    }

    pub(crate) const fn git(&self) -> &Arc<Git> {
        &self.git
    }

    /// The commit that `rev` leads to; a tag is followed through.
    ///
    /// # Errors
    /// `RefNotFound` if it is not here; `Invalid` if it is no proper name, or an abbreviation of several commits.
    pub fn resolve(&self, rev: &Rev, stop: &Stop) -> Result<Oid, GitError> {
        if !rev.is_safe() {
            return Err(GitError::new(Category::Invalid, "resolve", format!("{rev} is no proper name")));
        }
        let missing = || GitError::new(Category::RefNotFound, "resolve", format!("there is no {rev}"));
        let digits = match rev.ref_name() {
            Some(name) => return self.commit_of(&name, stop)?.ok_or_else(missing),
            None => rev_digits(rev),
        };
        // Not by name: a branch may be called like the digits of a commit.
        let option = format!("--disambiguate={digits}");
        let found = self.run("resolve").args(["rev-parse", &option]).text(stop)?;
        let mut commits = Vec::new();
        for oid in found.lines().filter_map(Oid::parse).take(MOST_CANDIDATES) {
            if self.kind_of(&oid, stop)?.as_deref() == Some("commit") {
                commits.push(oid);
            }
        }
        match commits.len() {
            0 => Err(missing()),
            1 => commits.pop().ok_or_else(missing),
            several => {
                let detail = format!("{digits} begins the names of {several} commits: write more digits");
                Err(GitError::new(Category::Invalid, "resolve", detail))
            }
        }
    }

    /// The commit that a person means by a name of git's own (gitrevisions(7)): `HEAD~1`, `origin/main`, a branch, a tag,
    /// digits; `None` if it means none. Not for names that come from elsewhere.
    ///
    /// # Errors
    /// If git cannot be asked.
    pub fn named(&self, name: &str, stop: &Stop) -> Result<Option<Oid>, GitError> {
        self.commit_of(name, stop)
    }

    /// The commit that a full ref name leads to.
    fn commit_of(&self, name: &str, stop: &Stop) -> Result<Option<Oid>, GitError> {
        let peeled = format!("{name}^{{commit}}");
        let run = self.run("resolve").args(["rev-parse", "--verify", "--quiet", "--end-of-options", &peeled]);
        let finished = run.finish(stop)?;
        let text = String::from_utf8_lossy(&finished.out);
        Ok(text.lines().find_map(Oid::parse).filter(|_| finished.status.success()))
    }

    /// The commit that an object leads to: itself, or what an annotated tag is on.
    ///
    /// # Errors
    /// `RefNotFound` if it is not here, or leads to no commit.
    pub fn peel(&self, oid: &Oid, stop: &Stop) -> Result<Oid, GitError> {
        let missing = || GitError::new(Category::RefNotFound, "resolve", format!("{oid} leads to no commit"));
        self.commit_of(oid.as_str(), stop)?.ok_or_else(missing)
    }

    /// The tip of a branch; `None` if it is not here.
    ///
    /// # Errors
    /// If git cannot be asked.
    pub fn tip(&self, branch: &str, stop: &Stop) -> Result<Option<Oid>, GitError> {
        let rev = Rev::Branch(branch.to_owned());
        if !rev.is_safe() {
            return Err(GitError::new(Category::Invalid, "resolve", format!("{branch:?} is no name of a branch")));
        }
        self.commit_of(&format!("refs/heads/{branch}"), stop)
    }

    /// True if the commit is present.
    ///
    /// # Errors
    /// If git cannot be asked.
    pub fn has_commit(&self, commit: &Oid, stop: &Stop) -> Result<bool, GitError> {
        Ok(self.kind_of(commit, stop)?.as_deref() == Some("commit"))
    }

    /// `commit`, `tree`, `blob` or `tag`; `None` if it is not here.
    fn kind_of(&self, oid: &Oid, stop: &Stop) -> Result<Option<String>, GitError> {
        let finished = self.run("look up").args(["cat-file", "-t", oid.as_str()]).finish(stop)?;
        let kind = String::from_utf8_lossy(&finished.out).trim().to_owned();
        Ok(finished.status.success().then_some(kind))
    }

    /// True if `old` is `new` or an ancestor of it: the branch can move from one to the other without losing commits.
    ///
    /// # Errors
    /// If one of them is not here.
    pub fn is_ancestor(&self, old: &Oid, new: &Oid, stop: &Stop) -> Result<bool, GitError> {
        let finished = self
            .run("compare commits")
            .args(["merge-base", "--is-ancestor", old.as_str(), new.as_str()])
            .finish(stop)?;
        match finished.status.code() {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            _ => Err(crate::program::failed("compare commits", &finished)),
        }
    }
}

/// Candidates for an abbreviation that are looked at. More are ambiguous anyway.
const MOST_CANDIDATES: usize = 16;

fn rev_digits(rev: &Rev) -> &str {
    match rev {
        Rev::Commit(text) | Rev::Tag(text) | Rev::Branch(text) => text,
    }
}
