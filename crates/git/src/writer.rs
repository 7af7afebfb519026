//! Commits made without a working tree: edits on top of a tip, signed if wanted, pushed where nobody else was faster.
//!
//! ```text
//! tip + edits ──▶ blobs ──▶ index in a temporary file ──▶ tree ──▶ commit ──▶ push, expecting the tip
//!      ▲                                                                          │ Moved
//!      └───────────────────────── fetch ◀────────────────────────────────────────┘
//! ```
//! Replaying puts the same edits on the new tip: the last writer of a path wins, so paths need one writer each.

use std::{path::PathBuf, thread, time::Duration};

use fs_err as fs;

use crate::{
    Category, Credentials, GitError, History, Mirror, Oid, Repository, Rev, Stop,
    auth::{private_folder, write_private},
};

/// One file that is to be, or not to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// Path from the root, with `/`.
    pub path: String,
    /// Content; `None` removes the file if it exists.
    pub content: Option<Vec<u8>>,
}

/// Name and address in a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Name for people: `Berth`.
    pub name: String,
    /// Email address; it need not exist.
    pub email: String,
}

/// Key that signs commits, in one of git's two formats.
#[derive(Clone)]
pub enum SigningKey {
    /// The text of an ssh private key without a passphrase.
    Ssh(String),
    /// A GPG key that needs no prompt, in this `GNUPGHOME`.
    Gpg {
        /// GnuPG home folder.
        home: PathBuf,
        /// Key id or fingerprint.
        key: String,
    },
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ssh(_) => f.write_str("Ssh(…)"),
            Self::Gpg { key, .. } => write!(f, "Gpg({key})"),
        }
    }
}

/// A commit to be made.
#[derive(Debug, Clone)]
pub struct Draft {
    /// Changes to files.
    pub edits: Vec<Edit>,
    /// Author and committer, who are the same.
    pub author: Identity,
    /// Time in seconds since 1970.
    pub time: i64,
    /// First line, empty line, more.
    pub message: String,
    /// `Key: value` lines at its end.
    pub trailers: Vec<(String, String)>,
    /// Signing key, if commits are signed.
    pub signing: Option<SigningKey>,
}

/// Outcome of pushing a [`Draft`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pushed {
    /// Everything was so already: there is no new commit. With the tip, if there is one.
    Unchanged(Option<Oid>),
    /// New tip of the branch.
    Commit(Oid),
}

/// First pause before another push; doubles with each attempt, so that writers of one branch spread out.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

const DOING: &str = "make a commit";

impl Repository {
    /// Makes a commit on top of `onto` (`None`: the first one of a branch); `None` if it would change nothing. No ref
    /// is touched.
    ///
    /// # Errors
    /// `Invalid` for paths or names that git does not take.
    pub fn build(&self, draft: &Draft, onto: Option<&Oid>, stop: &Stop) -> Result<Option<Oid>, GitError> {
        check(draft)?;
        let failed = |error: std::io::Error| GitError::io(DOING, &error);
        let folder = private_folder().map_err(failed)?;
        let index = folder.path().join("index");
        let start = match onto {
            Some(onto) => self.run(DOING).args(["read-tree", onto.as_str()]),
            None => self.run(DOING).args(["read-tree", "--empty"]),
        };
        start.env("GIT_INDEX_FILE", &index).ok(stop)?;
        let mut lines = Vec::new();
        let blobs = self.write_blobs(draft, folder.path(), stop)?;
        for (edit, blob) in draft.edits.iter().zip(blobs) {
            let line = match blob {
                Some(oid) => format!("100644 {oid}\t{}\0", edit.path),
                None => format!("0 {}\t{}\0", "0".repeat(onto.map_or(40, |onto| onto.as_str().len())), edit.path),
            };
            lines.extend_from_slice(line.as_bytes());
        }
        let update = self.run(DOING).args(["update-index", "-z", "--index-info"]).env("GIT_INDEX_FILE", &index);
        update.input(lines).ok(stop)?;
        let tree = self.run(DOING).arg("write-tree").env("GIT_INDEX_FILE", &index).text(stop)?;
        let tree = Oid::parse(tree.trim()).ok_or_else(|| GitError::new(Category::Internal, DOING, tree.clone()))?;
        if self.tree_of(onto, stop)?.is_some_and(|before| before == tree) {
            return Ok(None);
        }
        self.commit_tree(draft, onto, &tree, stop).map(Some)
    }

    /// Makes a commit without a parent that holds the files of `tip` as they are; the draft's edits are not looked at. No
    /// ref is touched.
    ///
    /// # Errors
    /// If `tip` is not here.
    pub fn uproot(&self, draft: &Draft, tip: &Oid, stop: &Stop) -> Result<Oid, GitError> {
        check(draft)?;
        let tree = self.tree_of(Some(tip), stop)?;
        let tree = tree.ok_or_else(|| GitError::new(Category::Internal, DOING, format!("{tip} has no tree")))?;
        self.commit_tree(draft, None, &tree, stop)
    }

    /// The names of the contents, all written by one process.
    fn write_blobs(&self, draft: &Draft, folder: &std::path::Path, stop: &Stop) -> Result<Vec<Option<Oid>>, GitError> {
        let failed = |error: std::io::Error| GitError::io(DOING, &error);
        let mut paths = String::new();
        for (n, content) in draft.edits.iter().map(|edit| &edit.content).enumerate() {
            if let Some(content) = content {
                let file = folder.join(format!("blob-{n}"));
                fs::write(&file, content).map_err(failed)?;
                paths.push_str(&format!("{}\n", file.display()));
            }
        }
        let run = self.run(DOING).args(["hash-object", "-w", "--no-filters", "--stdin-paths"]);
        let text = run.input(paths.into_bytes()).text(stop)?;
        let mut oids = text.lines().filter_map(Oid::parse);
        Ok(draft.edits.iter().map(|edit| edit.content.as_ref().and_then(|_| oids.next())).collect())
    }

    fn tree_of(&self, commit: Option<&Oid>, stop: &Stop) -> Result<Option<Oid>, GitError> {
        let Some(commit) = commit else { return Ok(None) };
        let text = self.run(DOING).args(["rev-parse", "--verify", &format!("{commit}^{{tree}}")]).text(stop)?;
        Ok(Oid::parse(text.trim()))
    }

    fn commit_tree(&self, draft: &Draft, onto: Option<&Oid>, tree: &Oid, stop: &Stop) -> Result<Oid, GitError> {
        let mut message = draft.message.trim_end().to_owned();
        message.push('\n');
        for (n, (key, value)) in draft.trailers.iter().enumerate() {
            message.push_str(&format!("{}{key}: {value}\n", if n == 0 { "\n" } else { "" }));
        }
        let date = format!("@{} +0000", draft.time);
        let mut run = self.run(DOING).args(["commit-tree", tree.as_str(), "-F", "-"]);
        for who in ["AUTHOR", "COMMITTER"] {
            run = run.env(format!("GIT_{who}_NAME"), draft.author.name.clone());
            run = run.env(format!("GIT_{who}_EMAIL"), draft.author.email.clone());
            run = run.env(format!("GIT_{who}_DATE"), date.clone());
        }
        if let Some(onto) = onto {
            run = run.args(["-p", onto.as_str()]);
        }
        let folder = private_folder().map_err(|error| GitError::io(DOING, &error))?;
        run = match &draft.signing {
            None => run,
            Some(SigningKey::Ssh(text)) => {
                let key = folder.path().join("key");
                write_private(&key, text).map_err(|error| GitError::io("keep the signing key", &error))?;
                run.config("gpg.format", "ssh").arg(format!("-S{}", key.display()))
            }
            Some(SigningKey::Gpg { home, key }) => {
                run.env("GNUPGHOME", home).config("gpg.format", "openpgp").arg(format!("-S{key}"))
            }
        };
        let text = run.input(message.into_bytes()).text(stop)?;
        Oid::parse(text.trim()).ok_or_else(|| GitError::new(Category::Internal, DOING, text))
    }
}

impl Mirror {
    /// Puts `draft` on top of a branch of the remote, as often as somebody else was faster, but at most `attempts`
    /// times. The branch is fetched first.
    ///
    /// # Errors
    /// `Moved` if others were faster every time, `Refused` if the remote does not take it, and by category.
    pub fn publish(
        &self,
        branch: &str,
        draft: &Draft,
        attempts: u32,
        credentials: &Credentials,
        stop: &Stop,
    ) -> Result<Pushed, GitError> {
        let rev = Rev::Branch(branch.to_owned());
        let mut pause = FIRST_PAUSE;
        for left in (0..attempts.max(1)).rev() {
            let tip = match self.fetch(std::slice::from_ref(&rev), History::Full, credentials, stop) {
                Ok(()) => self.repository().tip(branch, stop)?,
                Err(e) if e.category == Category::RefNotFound => None,
                Err(e) => return Err(e),
            };
            let Some(commit) = self.repository().build(draft, tip.as_ref(), stop)? else {
                return Ok(Pushed::Unchanged(tip));
            };
            match self.push(branch, tip.as_ref(), &commit, credentials, stop) {
                Ok(()) => return Ok(Pushed::Commit(commit)),
                Err(e) if e.category == Category::Moved && left > 0 => thread::sleep(pause.min(stop.left())),
                Err(e) => return Err(e),
            }
            pause *= 2;
        }
        Err(GitError::new(Category::Moved, "push to", "others were faster").at(&self.remote().shown()))
    }
}

/// Refuses what would make git write something else than was meant.
fn check(draft: &Draft) -> Result<(), GitError> {
    let refuse = |what: String| Err(GitError::new(Category::Invalid, DOING, what));
    let proper = |path: &str| {
        !path.is_empty()
            && !path.contains('\0')
            && path.split('/').all(|part| !matches!(part, "" | "." | "..") && !part.eq_ignore_ascii_case(".git"))
    };
    if let Some(edit) = draft.edits.iter().find(|edit| !proper(&edit.path)) {
        return refuse(format!("{:?} is no path inside a repository", edit.path));
    }
    let one_line = |text: &str| !text.is_empty() && !text.contains(['\n', '\r', '\0', '<', '>']);
    if !one_line(&draft.author.name) || !one_line(&draft.author.email) {
        return refuse("the author's name and address are one line each, without < and >".to_owned());
    }
    if draft.message.trim().is_empty() || draft.message.contains('\0') {
        return refuse("the message is empty or holds a zero byte".to_owned());
    }
    let key = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    match draft.trailers.iter().find(|(name, value)| !key(name) || value.contains(['\n', '\r', '\0'])) {
        Some((name, _)) => refuse(format!("the trailer {name:?} is not one line `Key: value`")),
        None => Ok(()),
    }
}
