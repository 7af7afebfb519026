//! The files of a commit in a folder, byte by byte as they were committed: no filter, no line ends, no `.git`, and
//! nothing that leads out of the folder.

use std::{
    collections::BTreeSet,
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use fs_err as fs;

use crate::{Category, GitError, Mode, Oid, Repository, Stop, TreeEntry};

/// Limits of a checkout, checked before anything is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckoutLimits {
    /// Total size in bytes. Bounds the disk space of one model, with room for data beside its code.
    pub bytes: u64,
    /// Number of files, links included.
    pub files: usize,
}

impl Default for CheckoutLimits {
    fn default() -> Self {
        Self { bytes: 2 << 30, files: 100_000 }
    }
}

/// Counts of a checkout, and what it could not write.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CheckedOut {
    /// Number of files written.
    pub files: usize,
    /// Total size of the files in bytes.
    pub bytes: u64,
    /// Entries whose content is elsewhere.
    pub left_out: Vec<LeftOut>,
}

/// Entry whose content is not in the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeftOut {
    /// Another repository: an empty folder stands there.
    Submodule(String),
    /// A file that is kept elsewhere (LFS): its pointer stands there.
    LfsPointer(String),
}

/// Larger files go straight to disk by a process of their own, so that none is in memory whole. Small ones are many, and a process
/// for each would cost more than its bytes.
const MAX_BUFFERED_BYTES: u64 = 1 << 20;

/// First line of every Git LFS pointer.
const LFS: &[u8] = b"version https://git-lfs.github.com/spec/v1\n";

impl Repository {
    /// Writes the files of `commit` to `folder`, which must not exist yet; it appears when all is written.
    ///
    /// # Errors
    /// `Invalid` for a tree with a path or a link that leads out, `TooLarge` above the limits, `Disk`. Nothing stays
    /// of a checkout that failed.
    pub fn checkout(
        &self,
        commit: &Oid,
        folder: &Path,
        limits: CheckoutLimits,
        stop: &Stop,
    ) -> Result<CheckedOut, GitError> {
        let entries = self.list(commit, "", stop)?;
        check(&entries, limits)?;
        let failed = |error: io::Error| GitError::io(DOING, &error);
        if folder.symlink_metadata().is_ok() {
            return Err(GitError::new(Category::Invalid, DOING, format!("{} exists already", folder.display())));
        }
        let parent = folder.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(parent).map_err(failed)?;
        let half = tempfile::Builder::new().prefix(".checkout-").tempdir_in(parent).map_err(failed)?;
        let done = Writing { repository: self, root: half.path(), stop }.write(&entries)?;
        fs::set_permissions(half.path(), std::fs::Permissions::from_mode(0o755)).map_err(failed)?;
        // A folder that appeared meanwhile is not replaced unless it is empty, which is as good.
        fs::rename(half.path(), folder).map_err(failed)?;
        Ok(done)
    }
}

const DOING: &str = "check out";

/// Refuses what is too much or has a path that is not one inside a folder, before anything is written.
fn check(entries: &[TreeEntry], limits: CheckoutLimits) -> Result<(), GitError> {
    let bytes = entries.iter().fold(0u64, |sum, entry| sum.saturating_add(entry.size));
    if entries.len() > limits.files || bytes > limits.bytes {
        let detail = format!(
            "it has {} files with {bytes} bytes, and {} files with {} bytes are allowed",
            entries.len(),
            limits.files,
            limits.bytes
        );
        return Err(GitError::new(Category::TooLarge, DOING, detail));
    }
    match entries.iter().find(|entry| !is_proper(&entry.path)) {
        Some(entry) => {
            Err(GitError::new(Category::Invalid, DOING, format!("the path {:?} is not allowed", entry.path)))
        }
        None => Ok(()),
    }
}

/// True if a path stays inside the folder and is not part of git's own folder on any file system.
fn is_proper(path: &str) -> bool {
    path.len() <= 4_096
        && !path.contains(['\0', '\u{fffd}'])
        && path.split('/').all(|part| {
            let plain = part.trim_end_matches(['.', ' ']).to_ascii_lowercase();
            !part.is_empty() && part != "." && part != ".." && plain != ".git" && plain != "git~1"
        })
}

struct Writing<'a> {
    repository: &'a Repository,
    root: &'a Path,
    stop: &'a Stop,
}

impl Writing<'_> {
    fn write(&self, entries: &[TreeEntry]) -> Result<CheckedOut, GitError> {
        let mut done = CheckedOut::default();
        let links: BTreeSet<&str> = entries.iter().filter(|e| e.mode == Mode::Link).map(|e| e.path.as_str()).collect();
        let is_small =
            |e: &&TreeEntry| e.mode == Mode::Link || (e.mode != Mode::Submodule && e.size <= MAX_BUFFERED_BYTES);
        let small: Vec<&TreeEntry> = entries.iter().filter(is_small).collect();
        let mut linked = Vec::new();
        // So many files at once that memory stays bounded.
        for some in small.chunks(256) {
            let blobs: Vec<(&Oid, u64)> = some.iter().map(|entry| (&entry.oid, entry.size)).collect();
            let contents = self.repository.read_all(&blobs, u64::MAX, self.stop)?;
            for entry in some {
                let content = contents.get(&entry.oid).map(Vec::as_slice).unwrap_or_default();
                if entry.mode == Mode::Link {
                    linked.push((entry.path.as_str(), String::from_utf8_lossy(content).into_owned()));
                    continue;
                }
                if content.starts_with(LFS) {
                    done.left_out.push(LeftOut::LfsPointer(entry.path.clone()));
                }
                let path = self.place(&entry.path)?;
                fs::write(&path, content).and_then(|()| permit(&path, entry.mode)).map_err(failed)?;
            }
        }
        for entry in entries.iter().filter(|e| !is_small(e)) {
            if entry.mode == Mode::Submodule {
                fs::create_dir_all(self.root.join(&entry.path)).map_err(failed)?;
                done.left_out.push(LeftOut::Submodule(entry.path.clone()));
            } else {
                self.write_large(entry)?;
            }
        }
        // Last: nothing is ever written through a link.
        for (path, target) in linked {
            if !stays_inside(path, &target, &links) {
                let detail = format!("the link {path} leads to {target:?}, out of the repository");
                return Err(GitError::new(Category::Invalid, DOING, detail));
            }
            let place = self.place(path)?;
            fs_err::os::unix::fs::symlink(target, place).map_err(failed)?;
        }
        done.left_out.sort_by_key(|left| match left {
            LeftOut::Submodule(path) | LeftOut::LfsPointer(path) => path.clone(),
        });
        done.files = entries.iter().filter(|e| e.mode != Mode::Submodule).count();
        done.bytes = entries.iter().map(|e| e.size).sum();
        Ok(done)
    }

    fn write_large(&self, entry: &TreeEntry) -> Result<(), GitError> {
        let path = self.place(&entry.path)?;
        let file = fs::File::create_new(&path).map_err(failed)?.into_file();
        let run = self.repository.run(DOING).args(["cat-file", "blob", entry.oid.as_str()]);
        run.into_file(file).ok(self.stop)?;
        permit(&path, entry.mode).map_err(failed)
    }

    /// Target path of an entry; creates its folder.
    fn place(&self, path: &str) -> Result<PathBuf, GitError> {
        let place = self.root.join(path);
        if place.symlink_metadata().is_ok() {
            return Err(GitError::new(Category::Invalid, DOING, format!("the path {path:?} is there twice")));
        }
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        Ok(place)
    }
}

fn failed(error: io::Error) -> GitError {
    GitError::io(DOING, &error)
}

fn permit(path: &Path, mode: Mode) -> io::Result<()> {
    let bits = if mode == Mode::Executable { 0o755 } else { 0o644 };
    fs::set_permissions(path, std::fs::Permissions::from_mode(bits))
}

/// True if a link at `path` stays inside the tree. The way there must not pass another link, whose target could be
/// anywhere.
fn stays_inside(path: &str, target: &str, links: &BTreeSet<&str>) -> bool {
    if target.is_empty() || target.starts_with('/') || target.contains(['\0', '\u{fffd}']) {
        return false;
    }
    let mut at: Vec<&str> = path.split('/').collect();
    at.pop();
    let steps: Vec<&str> = target.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    for (n, step) in steps.iter().enumerate() {
        if n > 0 && links.contains(at.join("/").as_str()) {
            return false;
        }
        if *step == ".." {
            if at.pop().is_none() {
                return false;
            }
        } else {
            at.push(step);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_stay_inside() {
        let links = BTreeSet::from(["a/away", "b"]);
        for (path, target, inside) in [
            ("a/b/c", "../d", true),
            ("a/b/c", "../../x/y", true),
            ("a/b/c", "../../../x", false),
            ("c", "..", false),
            ("c", "/etc/passwd", false),
            ("c", "a/away", true),
            ("c", "a/away/../x", false),
            ("c", "b/x", false),
            ("c", "./a/./x", true),
            ("c", "", false),
        ] {
            assert_eq!(stays_inside(path, target, &links), inside, "{path} -> {target}");
        }
    }

    #[test]
    fn paths_stay_inside() {
        for path in
            ["../x", "a/../b", "/x", "a//b", ".git/config", "a/.GIT/x", "a/.git. /x", "git~1/x", "", "a/\u{fffd}"]
        {
            assert!(!is_proper(path), "{path}");
        }
        for path in ["a", "a/b.c", ".gitignore", "a/..b", "é"] {
            assert!(is_proper(path), "{path}");
        }
    }
}
