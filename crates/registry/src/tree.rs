//! Files under validation: a commit of a repository, or a folder.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use berth_git::{Category, GitError, Mode, Oid, Repository, Stop};
use fs_err as fs;
use sha2::{Digest as _, Sha256};

use crate::{
    document::MAX_FILE_BYTES,
    layout::TOP_LEVEL_FOLDERS,
    problem::{Problem, Step},
};

/// Location of a registry.
#[derive(Debug, Clone)]
pub enum Tree {
    /// A folder, with what is not committed yet.
    Folder(PathBuf),
    /// One commit of a bare or checked-out repository.
    Commit {
        /// The repository that has the commit.
        repository: Repository,
        /// Object id of the commit.
        commit: Oid,
    },
}

/// Most files in a registry. Tens of thousands of deployments with their history fit; a wrong folder is left early.
const MOST_FILES: usize = 200_000;

/// Most bytes read in total. Bounds memory.
const MOST_BYTES: u64 = 512 << 20;

/// File whose content has not been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) mode: Mode,
    pub(crate) size: u64,
    /// The name of its content; equal content has equal names.
    pub(crate) content: String,
}

/// Files that validation looks at, by path, and contents that it has read.
#[derive(Debug)]
pub(crate) struct Files {
    /// In order of their paths.
    pub(crate) all: Vec<File>,
    /// Folders that hold no file that matters; Git knows none that hold none.
    pub(crate) empty_folders: Vec<String>,
    /// Contents that are here already.
    read: Contents,
}

/// Contents by object id.
pub(crate) type Contents = BTreeMap<String, Vec<u8>>;

impl File {
    /// Its text, or why it is none.
    pub(crate) fn text<'a>(&self, contents: &'a Contents, step: Step) -> Result<&'a str, Box<Problem>> {
        let problem = |rule, message: String, remedy: &str| {
            Box::new(Problem::new(step, rule, &self.path, message).remedy(remedy))
        };
        if self.size > MAX_FILE_BYTES as u64 {
            let message = format!("the file has {} bytes, and {MAX_FILE_BYTES} are allowed", self.size);
            return Err(problem("too-large", message, "keep data out of the registry"));
        }
        let bytes = contents.get(&self.content).map(Vec::as_slice).unwrap_or_default();
        std::str::from_utf8(bytes).map_err(|error| {
            let line = bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count() + 1;
            problem("not-text", format!("line {line} holds bytes that are not UTF-8"), "save the file as UTF-8")
        })
    }
}

impl Tree {
    /// The commit; `None` for a folder.
    #[must_use]
    pub const fn commit(&self) -> Option<&Oid> {
        match self {
            Self::Folder(_) => None,
            Self::Commit { commit, .. } => Some(commit),
        }
    }

    pub(crate) fn files(&self, stop: &Stop) -> Result<Files, GitError> {
        let files = match self {
            Self::Folder(root) => walk(root)?,
            Self::Commit { repository, commit } => {
                let of = |entry: berth_git::TreeEntry| File {
                    path: entry.path,
                    mode: entry.mode,
                    size: entry.size,
                    content: entry.oid.to_string(),
                };
                let all: Vec<File> = repository.list(commit, "", stop)?.into_iter().map(of).collect();
                Files { all, empty_folders: Vec::new(), read: BTreeMap::new() }
            }
        };
        if files.all.len() > MOST_FILES {
            return Err(too_large(format!("it has {} files, and {MOST_FILES} are allowed", files.all.len())));
        }
        Ok(files)
    }

    /// Reads the contents of `wanted`. Skips files that are too large.
    pub(crate) fn read(&self, files: &Files, wanted: &[&File], stop: &Stop) -> Result<Contents, GitError> {
        let fitting = wanted.iter().filter(|file| file.size <= MAX_FILE_BYTES as u64);
        match self {
            Self::Folder(_) => Ok(fitting
                .filter_map(|file| Some((file.content.clone(), files.read.get(&file.content)?.clone())))
                .collect()),
            Self::Commit { repository, .. } => {
                let names: Vec<(Oid, u64)> =
                    fitting.filter_map(|file| Some((Oid::parse(&file.content)?, file.size))).collect();
                let blobs: Vec<(&Oid, u64)> = names.iter().map(|(oid, size)| (oid, *size)).collect();
                let contents = repository.read_all(&blobs, MOST_BYTES, stop)?;
                Ok(contents.into_iter().map(|(oid, bytes)| (oid.to_string(), bytes)).collect())
            }
        }
    }

    /// Reads one file as text; `None` if it does not exist.
    pub(crate) fn read_one(
        &self,
        files: &Files,
        path: &str,
        stop: &Stop,
    ) -> Result<Result<Option<String>, Box<Problem>>, GitError> {
        let problem = |message: &str| {
            let problem = Problem::new(Step::Structure, "plain-files", path, message);
            Ok(Err(Box::new(problem.remedy("put a plain file there"))))
        };
        let Some(file) = files.all.iter().find(|file| file.path == path) else {
            let inside = format!("{path}/");
            let is_folder = files.all.iter().any(|file| file.path.starts_with(&inside))
                || files.empty_folders.iter().any(|folder| folder == path);
            return if is_folder { problem("this must be a file") } else { Ok(Ok(None)) };
        };
        match file.mode {
            Mode::Link => return problem("a symbolic link is not followed"),
            Mode::Submodule => return problem("a submodule is not followed"),
            Mode::File | Mode::Executable => {}
        }
        let contents = self.read(files, &[file], stop)?;
        Ok(file.text(&contents, Step::Structure).map(|text| Some(text.to_owned())))
    }
}

fn too_large(detail: String) -> GitError {
    GitError { category: Category::TooLarge, doing: "read the registry".to_owned(), remote: String::new(), detail }
}

/// Reads what of a folder a registry is made of, whole: it is small, and may change while it is looked at.
fn walk(root: &Path) -> Result<Files, GitError> {
    let mut files = Files { all: Vec::new(), empty_folders: Vec::new(), read: Contents::new() };
    let mut bytes = 0;
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let failed = |error: std::io::Error| GitError {
            category: if error.kind() == std::io::ErrorKind::NotFound { Category::NotFound } else { Category::Disk },
            doing: "read the registry".to_owned(),
            remote: String::new(),
            detail: error.to_string(),
        };
        let relative = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
        let mut is_empty = true;
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let (path, kind) = (entry.path(), entry.file_type().map_err(failed)?);
            is_empty = false;
            if kind.is_dir() {
                if folder == root && !TOP_LEVEL_FOLDERS.iter().any(|known| path.ends_with(known)) {
                    // What is inside matters to nobody; that it is a folder may.
                    files.empty_folders.push(relative(&path));
                } else if !entry.file_name().to_string_lossy().starts_with('.') {
                    folders.push(path);
                }
                continue;
            }
            let mut file = File { path: relative(&path), mode: Mode::Link, size: 0, content: String::new() };
            if kind.is_file() {
                file.mode = Mode::File;
                file.size = entry.metadata().map_err(failed)?.len();
                let written_back = file.path.starts_with("transactions/") || file.path.starts_with("errors/");
                if file.size <= MAX_FILE_BYTES as u64 && !written_back {
                    let content = fs::read(&path).map_err(failed)?;
                    bytes += content.len() as u64;
                    // It may have grown meanwhile.
                    file.size = content.len() as u64;
                    file.content = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
                    files.read.insert(file.content.clone(), content);
                }
            }
            files.all.push(file);
            if files.all.len() > MOST_FILES || bytes > MOST_BYTES {
                return Err(too_large(format!("{} holds more than a registry may", root.display())));
            }
        }
        if is_empty && folder != root {
            files.empty_folders.push(relative(&folder));
        }
    }
    files.all.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}
