//! Contents of a commit: entries with their modes and names, and differences between commits.

use crate::{Category, GitError, Oid, Repository, Stop};

/// Type of a tree entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Regular file that is not executable.
    File,
    /// A file that may be executed.
    Executable,
    /// A symbolic link; its content is where it leads.
    Link,
    /// A commit of another repository; its files are not in this one.
    Submodule,
}

impl Mode {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "100644" | "100664" | "100600" => Some(Self::File),
            "100755" => Some(Self::Executable),
            "120000" => Some(Self::Link),
            "160000" => Some(Self::Submodule),
            _ => None,
        }
    }
}

/// One file of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeEntry {
    /// From the root, with `/`. Bytes that are not UTF-8 are replaced; such paths cannot be read by name.
    pub path: String,
    /// Type of the entry.
    pub mode: Mode,
    /// The name of its content: equal content has equal names.
    pub oid: Oid,
    /// Bytes of content; 0 for a submodule.
    pub size: u64,
}

impl Repository {
    /// The files of a commit below `path` (empty: all of them), folders unfolded, in order of their paths.
    ///
    /// # Errors
    /// If the commit is not here. A path that is not there gives an empty list.
    pub fn list(&self, commit: &Oid, path: &str, stop: &Stop) -> Result<Vec<TreeEntry>, GitError> {
        let mut run = self.run("list the files of a commit");
        run = run.args(["ls-tree", "-r", "-l", "-z", "--full-tree", commit.as_str()]);
        if !path.is_empty() {
            run = run.arg("--").arg(path);
        }
        let out = run.ok(stop)?;
        out.split(|&byte| byte == 0).filter(|line| !line.is_empty()).map(entry).collect()
    }

    /// The content of one file, at most `most` bytes.
    ///
    /// # Errors
    /// `PathNotFound`, `TooLarge`, or `Invalid` for what is not a file.
    pub fn read(&self, commit: &Oid, path: &str, most: usize, stop: &Stop) -> Result<Vec<u8>, GitError> {
        let doing = "read a file of a commit";
        let fail = |category, detail: String| Err(GitError::new(category, doing, detail));
        let path = path.trim_start_matches("./");
        if path.starts_with('-') || path.contains('\0') || path.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return fail(Category::Invalid, format!("{path:?} is no path inside a repository"));
        }
        let Some(entry) = self.list(commit, path, stop)?.into_iter().find(|entry| entry.path == path) else {
            return fail(Category::PathNotFound, format!("commit {} has no file {path}", commit.short()));
        };
        match entry.mode {
            Mode::File | Mode::Executable => {}
            Mode::Link => return fail(Category::Invalid, format!("{path} is a symbolic link")),
            Mode::Submodule => return fail(Category::Invalid, format!("{path} is a submodule")),
        }
        if entry.size > most as u64 {
            return fail(Category::TooLarge, format!("{path} has {} bytes, and {most} are allowed", entry.size));
        }
        self.run(doing).args(["cat-file", "blob", entry.oid.as_str()]).most(most).ok(stop)
    }
}

/// `MODE TYPE OID SIZE\tPATH`, the size padded with blanks.
fn entry(line: &[u8]) -> Result<TreeEntry, GitError> {
    let text = String::from_utf8_lossy(line);
    let odd = || GitError::new(Category::Internal, "list the files of a commit", format!("git wrote {text:?}"));
    let (head, path) = text.split_once('\t').ok_or_else(odd)?;
    let mut words = head.split_ascii_whitespace();
    let mode = words.next().and_then(Mode::parse).ok_or_else(odd)?;
    let oid = words.nth(1).and_then(Oid::parse).ok_or_else(odd)?;
    let size = words.next().and_then(|size| size.parse().ok()).unwrap_or(0);
    Ok(TreeEntry { path: path.to_owned(), mode, oid, size })
}
