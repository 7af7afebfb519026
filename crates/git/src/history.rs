//! History: commits, their authors and the files they change.

use serde::{Deserialize, Serialize};

use crate::{Category, GitError, Oid, Repository, Stop, tree::Mode};

/// Name, address and time of an author or committer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Person {
    /// The name they gave.
    pub name: String,
    /// Address as given, not verified.
    pub email: String,
    /// Seconds since 1970, by their clock.
    pub time: i64,
}

/// Metadata of a commit: all but its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitInfo {
    /// Object id of the commit.
    pub oid: Oid,
    /// The commits it was made from; none for the first one, several for a merge.
    pub parents: Vec<Oid>,
    /// Person who wrote the change, and when.
    pub author: Person,
    /// Person who made the commit, and when: another one after a rebase or a cherry-pick.
    pub committer: Person,
    /// The first line of its message.
    pub subject: String,
    /// The rest of its message.
    pub body: String,
    /// `Key: value` lines at the end of its message, in order.
    pub trailers: Vec<(String, String)>,
}

impl CommitInfo {
    /// The last trailer of that name, whatever its case.
    #[must_use]
    pub fn trailer(&self, name: &str) -> Option<&str> {
        self.trailers.iter().rev().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// A file that differs between two commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Its path; a moved file is one removed and one added.
    pub path: String,
    /// Mode and content before the change; `None` if the file is new.
    pub before: Option<(Mode, Oid)>,
    /// Mode and content after the change; `None` if the file was removed.
    pub after: Option<(Mode, Oid)>,
}

/// Everything [`CommitInfo`] has, each field ended by a zero byte, which no commit can hold.
const FORMAT: &str =
    "--format=%H%x00%P%x00%an%x00%ae%x00%at%x00%cn%x00%ce%x00%ct%x00%s%x00%b%x00%(trailers:only=true,unfold=true)%x00";

/// Number of fields in [`FORMAT`].
const FIELDS: usize = 11;

impl Repository {
    /// Reads the metadata of a commit.
    ///
    /// # Errors
    /// If it is not here.
    pub fn commit(&self, commit: &Oid, stop: &Stop) -> Result<CommitInfo, GitError> {
        let found = self.log_of(&["-1", commit.as_str()], "", stop)?.pop();
        found.ok_or_else(|| GitError::new(Category::RefNotFound, "look up", format!("there is no commit {commit}")))
    }

    /// The commits that `to` has and `from` (if given) has not, newest first, at most `most`.
    ///
    /// # Errors
    /// If one of them is not here.
    pub fn log(&self, from: Option<&Oid>, to: &Oid, most: usize, stop: &Stop) -> Result<Vec<CommitInfo>, GitError> {
        let count = format!("-{most}");
        let mut arguments = vec![count.as_str(), to.as_str()];
        let not = from.filter(|from| !from.is_null()).map(|from| format!("^{from}"));
        arguments.extend(not.as_deref());
        self.log_of(&arguments, "", stop)
    }

    /// The last commit up to `commit` that touched `path`.
    ///
    /// # Errors
    /// If the commit is not here.
    pub fn last_change(&self, commit: &Oid, path: &str, stop: &Stop) -> Result<Option<CommitInfo>, GitError> {
        Ok(self.log_of(&["-1", commit.as_str()], path, stop)?.pop())
    }

    fn log_of(&self, arguments: &[&str], path: &str, stop: &Stop) -> Result<Vec<CommitInfo>, GitError> {
        let mut run = self.run("read the history").args(["log", "--no-show-signature", "--no-decorate", FORMAT]);
        run = run.args(arguments).arg("--");
        if !path.is_empty() {
            run = run.arg(path);
        }
        let text = run.text(stop)?;
        let fields: Vec<&str> = text.split('\0').collect();
        // Git ends every record with a newline, which is then in front of the next one.
        fields.chunks_exact(FIELDS).map(info).collect()
    }

    /// The files that differ between two commits; `from` not given: all files of `to`.
    ///
    /// # Errors
    /// If one of them is not here.
    pub fn changed(&self, from: Option<&Oid>, to: &Oid, stop: &Stop) -> Result<Vec<Change>, GitError> {
        let Some(from) = from else {
            let all = self.list(to, "", stop)?.into_iter();
            return Ok(all.map(|e| Change { path: e.path, before: None, after: Some((e.mode, e.oid)) }).collect());
        };
        let run = self.run("compare commits");
        let run = run.args(["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-ext-diff", "--no-textconv"]);
        let text = run.args(["--full-index", from.as_str(), to.as_str()]).text(stop)?;
        let mut changes = Vec::new();
        let mut parts = text.split('\0');
        while let (Some(head), Some(path)) = (parts.next().filter(|head| !head.is_empty()), parts.next()) {
            changes.push(change(head, path)?);
        }
        Ok(changes)
    }
}

/// `:MODE MODE OID OID STATUS`.
fn change(head: &str, path: &str) -> Result<Change, GitError> {
    let words: Vec<&str> = head.trim_start_matches(':').split(' ').collect();
    let [before, after, old, new, _] = words.as_slice() else {
        return Err(GitError::new(Category::Internal, "compare commits", format!("git wrote {head:?}")));
    };
    let side = |mode: &str, oid: &str| Mode::parse(mode).zip(Oid::parse(oid));
    Ok(Change { path: path.to_owned(), before: side(before, old), after: side(after, new) })
}

fn info(fields: &[&str]) -> Result<CommitInfo, GitError> {
    let odd = || GitError::new(Category::Internal, "read the history", format!("git wrote {:?}", fields.first()));
    let person = |at: usize| Person {
        name: fields[at].to_owned(),
        email: fields[at + 1].to_owned(),
        time: fields[at + 2].parse().unwrap_or(0),
    };
    let trailers = fields[10].lines().filter_map(|line| line.split_once(':'));
    Ok(CommitInfo {
        oid: Oid::parse(fields[0].trim()).ok_or_else(odd)?,
        parents: fields[1].split(' ').filter_map(Oid::parse).collect(),
        author: person(2),
        committer: person(5),
        subject: fields[8].to_owned(),
        body: fields[9].trim_end().to_owned(),
        trailers: trailers.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())).collect(),
    })
}
