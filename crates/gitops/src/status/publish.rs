//! Writing to the registry's repository: commits by plumbing on the tip, pushed where nobody else was faster. Blocks.
//!
//! ```text
//! fetch ──▶ tip ── written in a later term? ──▶ Overtaken
//!   ▲        ├── own files are not as they were? ──▶ Touched: read them, and say anew what has to change
//!   │        └──▶ own paths on top ──▶ push, expecting the tip ── moved ──┐
//!   └────────────────────── a pause, a few times ◀───────────────────────┘
//! ```
//! On the branch that is followed nothing but own paths is touched, and no history is ever rewritten. The branch of its own
//! is squashed when it has grown long.

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use berth_git::{Category, Credentials, Draft, GitError, History, Identity, Mirror, Oid, Rev, SigningKey, Stop};
use berth_registry::{
    actual::{ACTUAL_STATE, HISTORY},
    error_file::ERRORS,
    write_back::{BranchContents, Change, WRITER, is_own},
};
use berth_spec::Epoch;

/// The trailer with the term of the leader that wrote.
const TERM: &str = "Berth-Term";

/// The most attempts on a branch that keeps moving: several clusters on one branch all get through, and a busy branch
/// does not hold the thread for long.
const ATTEMPTS: u32 = 6;

/// First pause between them; it doubles, so that all of them take three seconds.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The commits on the branch of its own before it is squashed into one: months of history for people, and a bounded
/// repository.
pub(crate) const MOST_COMMITS: usize = 1_000;

/// The most bytes of a file that is read back: room for the state of a large fleet, while a file that somebody else
/// has put in its place does not fill the memory.
const MAX_FILE_BYTES: usize = 8 << 20;

/// Commits that are searched for the last one of ours: people and other clusters push in between.
const SEARCHED: usize = 50;

/// Writes edits to a branch as commits, replayed where somebody else was faster. Blocking.
#[derive(Clone)]
pub(crate) struct Publisher {
    pub(crate) mirror: Arc<Mirror>,
    pub(crate) branch: String,
    /// True if people write to the branch, too.
    pub(crate) shared: bool,
    pub(crate) credentials: Credentials,
    pub(crate) identity: Identity,
    pub(crate) signing: Option<SigningKey>,
    /// The name of the cluster, for the trailer of its commits.
    pub(crate) writer: String,
    /// 0: this process is alone, and no other can have written in its name.
    pub(crate) epoch: Epoch,
    /// Terms up to this one are of a store that is no more.
    pub(crate) passed: u64,
    /// Commits of the branch before it is squashed; `None`: its host lets nobody do that.
    pub(crate) most_commits: Option<usize>,
}

/// The outcome of a change.
#[derive(Debug)]
pub(crate) enum Written {
    /// The change is the tip.
    Commit {
        tip: Oid,
        /// The reason why the branch could not be squashed, though it has grown long.
        unsquashed: Option<GitError>,
    },
    /// All of it was so already.
    Unchanged,
    /// Our files are not what they were when the change was made: nothing was written.
    Touched {
        /// The author; `None`: a controller of this cluster.
        by: Option<String>,
        /// Our files that differ; none: the branch was removed, or its history rewritten.
        paths: Vec<String>,
    },
    /// A leader of this later term has written.
    Overtaken(u64),
}

impl Publisher {
    /// Reads the files of controllers on the branch, and its tip.
    pub(crate) fn read(&self, stop: &Stop) -> Result<(BranchContents, Option<Oid>), GitError> {
        let Some(tip) = self.tip(stop)? else { return Ok((BranchContents::default(), None)) };
        let repository = self.mirror.repository();
        let mut found = BranchContents::default();
        for entry in repository.list(&tip, "transactions", stop)? {
            if entry.path == ACTUAL_STATE {
                found.state = Some(self.text(&tip, &entry.path, stop)?);
            } else if entry.path.starts_with(HISTORY) && entry.path.ends_with(".yaml") {
                found.history.push(entry.path);
            }
        }
        for entry in repository.list(&tip, "errors", stop)? {
            if entry.path.starts_with(ERRORS) && entry.path.ends_with(".yaml") {
                let text = self.text(&tip, &entry.path, stop)?;
                found.errors.push((entry.path, text));
            }
        }
        Ok((found, Some(tip)))
    }

    /// Writes a change. `known`: the tip that it was made for.
    pub(crate) fn write(
        &self,
        change: &Change,
        known: Option<&Oid>,
        now: i64,
        stop: &Stop,
    ) -> Result<Written, GitError> {
        let mut pause = FIRST_PAUSE;
        for left in (0..ATTEMPTS).rev() {
            let tip = self.tip(stop)?;
            if let Some(term) = self.later_term(tip.as_ref(), stop)? {
                return Ok(Written::Overtaken(term));
            }
            if let Some(touched) = self.touched(known, tip.as_ref(), stop)? {
                return Ok(touched);
            }
            let draft = self.draft(change, now);
            let repository = self.mirror.repository();
            let Some(commit) = repository.build(&draft, tip.as_ref(), stop)? else { return Ok(Written::Unchanged) };
            match self.mirror.push(&self.branch, tip.as_ref(), &commit, &self.credentials, stop) {
                Ok(()) => return self.squashed(commit, draft, stop),
                Err(error) if error.category == Category::Moved && left > 0 && !stop.is_reached() => {
                    // Writers of one branch do not collide for ever: each waits another while.
                    let spread = u64::from(rand::random::<u8>()) * pause.as_millis() as u64 / 255;
                    std::thread::sleep(pause + Duration::from_millis(spread));
                    pause *= 2;
                }
                Err(error) => return Err(error),
            }
        }
        Err(GitError {
            category: Category::Moved,
            doing: "write the actual state to".to_owned(),
            remote: self.mirror.remote().shown(),
            detail: format!("{} moved {ATTEMPTS} times", self.branch),
        })
    }

    fn tip(&self, stop: &Stop) -> Result<Option<Oid>, GitError> {
        let rev = Rev::Branch(self.branch.clone());
        match self.mirror.fetch(std::slice::from_ref(&rev), History::Full, &self.credentials, stop) {
            Ok(()) => self.mirror.repository().tip(&self.branch, stop),
            Err(error) if error.category == Category::RefNotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn text(&self, tip: &Oid, path: &str, stop: &Stop) -> Result<String, GitError> {
        let bytes = self.mirror.repository().read(tip, path, MAX_FILE_BYTES, stop)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The later term in which a leader of this cluster has written.
    fn later_term(&self, tip: Option<&Oid>, stop: &Stop) -> Result<Option<u64>, GitError> {
        let (Some(tip), true) = (tip, self.epoch != Epoch(0)) else { return Ok(None) };
        let log = self.mirror.repository().log(None, tip, SEARCHED, stop)?;
        let ours = log.iter().find(|info| info.trailer(WRITER) == Some(&self.writer));
        let term = ours.and_then(|info| info.trailer(TERM)?.parse::<u64>().ok());
        Ok(term.filter(|term| *term > self.epoch.0.max(self.passed)))
    }

    /// Finds out if our files at `tip` differ from those at `known`, which the change was made for. Other files may
    /// differ.
    fn touched(&self, known: Option<&Oid>, tip: Option<&Oid>, stop: &Stop) -> Result<Option<Written>, GitError> {
        if known == tip {
            return Ok(None);
        }
        let repository = self.mirror.repository();
        let gone = || Some(Written::Touched { by: Some("somebody".to_owned()), paths: Vec::new() });
        let Some(tip) = tip else { return Ok(gone()) };
        if let Some(known) = known
            && (!repository.has_commit(known, stop)? || !repository.is_ancestor(known, tip, stop)?)
        {
            return Ok(gone());
        }
        let changed = repository.changed(known, tip, stop)?.into_iter().map(|change| change.path);
        let paths: Vec<String> = changed.filter(|path| is_own(path)).collect();
        if paths.is_empty() {
            return Ok(None);
        }
        let log = repository.log(known, tip, SEARCHED, stop)?;
        let other = log.iter().find(|info| info.trailer(WRITER) != Some(&self.writer) && info.parents.len() < 2);
        Ok(Some(Written::Touched { by: other.map(|info| info.author.name.clone()), paths }))
    }

    fn draft(&self, change: &Change, now: i64) -> Draft {
        let mut trailers = change.trailers.clone();
        trailers.push((WRITER.to_owned(), self.writer.clone()));
        trailers.push((TERM.to_owned(), self.epoch.0.to_string()));
        Draft {
            edits: change.edits.clone(),
            author: self.identity.clone(),
            time: now,
            message: change.message.clone(),
            trailers,
            signing: self.signing.clone(),
        }
    }

    /// The branch as one commit, if it has grown long. Its files stay.
    fn squashed(&self, tip: Oid, draft: Draft, stop: &Stop) -> Result<Written, GitError> {
        let written = |tip, unsquashed| Ok(Written::Commit { tip, unsquashed });
        let repository = self.mirror.repository();
        let Some(most) = self.most_commits.filter(|_| !self.shared) else { return written(tip, None) };
        if repository.log(None, &tip, most + 1, stop)?.len() <= most {
            return written(tip, None);
        }
        let draft = Draft { edits: Vec::new(), message: format!("state: what {most} commits came to"), ..draft };
        let root = repository.uproot(&draft, &tip, stop)?;
        match self.mirror.push(&self.branch, Some(&tip), &root, &self.credentials, stop) {
            Ok(()) => written(root, None),
            // Somebody was faster, or the host lets nobody rewrite: it stays as it is.
            Err(error) => written(tip, Some(error)),
        }
    }
}
