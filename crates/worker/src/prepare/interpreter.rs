//! Finds the Python that a card runs on: an interpreter of this machine with exactly its MAJOR.MINOR.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use berth_spec::FailureCategory;

use super::{Settings, program::Program};
use crate::fault::Fault;

/// The time limit for an interpreter to print its version: enough for a cold disk.
const LIMIT: Duration = Duration::from_secs(30);

/// Prints the version, of an interpreter that can make environments.
const ASK: &str = "import sys, venv; print('%d.%d' % sys.version_info[:2])";

/// The versions `3.N` that [`all`] looks for.
const MINORS: std::ops::RangeInclusive<u32> = 8..=16;

/// The folder in which the operating system keeps its own.
const SYSTEM: &str = "/usr/bin";

/// Finds interpreters, and remembers them while they are where they were.
#[derive(Debug, Default)]
pub(super) struct Interpreters {
    found: Mutex<BTreeMap<(String, bool), PathBuf>>,
}

impl Interpreters {
    /// The interpreter that was found before, while it is where it was.
    pub(super) fn known(&self, version: &str, of_system: bool) -> Option<PathBuf> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.get(&(version.to_owned(), of_system)).cloned().filter(|path| path.exists())
    }

    /// The interpreter of `version`; `of_system`: the operating system's, whose libraries are to be seen. `managed`: one
    /// that `uv` knows of.
    pub(super) async fn find(
        &self,
        version: &str,
        of_system: bool,
        settings: &Settings,
        managed: Option<PathBuf>,
    ) -> Result<PathBuf, Fault> {
        if !is_version(version) {
            let message = format!("runtime.python_version {version:?} is no MAJOR.MINOR: write e.g. \"3.11\"");
            return Err(Fault::new(FailureCategory::Dependencies, message));
        }
        if let Some(path) = self.known(version, of_system) {
            return Ok(path);
        }
        let key = (version.to_owned(), of_system);
        let candidates = match of_system {
            true => vec![Path::new(SYSTEM).join(format!("python{version}")), Path::new(SYSTEM).join("python3")],
            false => candidates(version, settings, managed),
        };
        for candidate in candidates.into_iter().filter(|path| path.exists()) {
            if says(&candidate, settings).await.as_deref() == Some(version) {
                self.found.lock().unwrap_or_else(PoisonError::into_inner).insert(key, candidate.clone());
                return Ok(candidate);
            }
        }
        let message = match of_system {
            true => format!(
                "the card lists Python libraries of the operating system (python3-…), and this worker's own Python is \
                 not {version}: take them from runtime.dependencies, or the version that the system has"
            ),
            false => format!(
                "this worker has no Python {version}: install it (a package python{version}, `uv python install \
                 {version}` or pyenv), or change runtime.python_version of the card, spec.model.environment.python of a \
                 model without one"
            ),
        };
        Err(Fault::new(FailureCategory::Dependencies, message))
    }
}

/// The versions of Python on this machine, each with its interpreter, the oldest first.
pub(super) async fn all(settings: &Settings) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for version in MINORS.map(|minor| format!("3.{minor}")) {
        let mut all = of_uv(&version, settings);
        all.extend(candidates(&version, settings, None));
        for candidate in all.into_iter().filter(|path| path.exists()) {
            if says(&candidate, settings).await.as_deref() == Some(&*version) {
                found.push((version, candidate));
                break;
            }
        }
    }
    found
}

/// The interpreters that `uv python install` has put where it puts them.
fn of_uv(version: &str, settings: &Settings) -> Vec<PathBuf> {
    let Some(home) = settings.variable("HOME") else { return Vec::new() };
    let begins = format!("cpython-{version}.");
    let entries = fs_err::read_dir(Path::new(home).join(".local/share/uv/python")).into_iter().flatten().flatten();
    let of_version = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&begins));
    of_version.map(|entry| entry.path().join("bin").join(format!("python{version}"))).collect()
}

/// `MAJOR.MINOR`, and nothing that could be a path.
fn is_version(text: &str) -> bool {
    let digits = |part: &str| (1..=3).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    text.split_once('.').is_some_and(|(major, minor)| digits(major) && digits(minor))
}

/// Its candidates, in this order.
fn candidates(version: &str, settings: &Settings, managed: Option<PathBuf>) -> Vec<PathBuf> {
    let name = format!("python{version}");
    let mut found: Vec<PathBuf> = managed.into_iter().collect();
    let path = settings.variable("PATH").unwrap_or_default();
    // A shim of pyenv is a script that asks which version is meant: the interpreters behind it are below.
    let folders = std::env::split_paths(path).filter(|folder| folder.is_absolute() && !folder.ends_with("shims"));
    found.extend(folders.map(|folder| folder.join(&name)));
    let home = settings.variable("HOME").map(|home| Path::new(home).join(".pyenv"));
    let pyenv = settings.variable("PYENV_ROOT").map(PathBuf::from).or(home);
    if let Some(pyenv) = pyenv {
        let mut patches: Vec<(u32, PathBuf)> = fs_err::read_dir(pyenv.join("versions"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let folder = entry.file_name().into_string().ok()?;
                let patch = folder.strip_prefix(version)?.strip_prefix('.')?.parse().ok()?;
                Some((patch, entry.path().join("bin").join(&name)))
            })
            .collect();
        patches.sort_by(|a, b| b.cmp(a));
        found.extend(patches.into_iter().map(|(_, path)| path));
    }
    found.extend(["/usr/local/bin", SYSTEM].map(|folder| Path::new(folder).join(&name)));
    found
}

/// The version that an interpreter says it is.
async fn says(path: &Path, settings: &Settings) -> Option<String> {
    let said = Program::new(path, settings.surroundings(), Path::new("/")).args(["-I", "-c", ASK]).run(LIMIT).await;
    let said = said.ok().filter(|said| said.status.success())?;
    Some(said.out.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that says it is Python of that version. Written by another process: a file that this one has open for
    /// writing while another test starts a program cannot be run.
    fn python(path: &Path, version: &str) {
        fs_err::create_dir_all(path.parent().expect("a folder")).expect("made");
        let script = r##"printf '#!/bin/sh\necho %s\n' "$1" > "$0" && chmod 755 "$0""##;
        let written = std::process::Command::new("/bin/sh").arg("-c").arg(script).arg(path).arg(version).status();
        assert!(written.expect("a shell").success());
    }

    #[tokio::test]
    async fn all_of_them_are_listed() {
        let home = tempfile::tempdir().expect("a folder");
        python(&home.path().join("bin/python3.15"), "3.15");
        python(&home.path().join(".local/share/uv/python/cpython-3.16.2-linux/bin/python3.16"), "3.16");
        let environment = vec![("HOME".into(), home.path().into()), ("PATH".into(), home.path().join("bin").into())];
        let found = all(&Settings { environment, ..Settings::default() }).await;
        let versions: Vec<&str> = found.iter().map(|(version, _)| version.as_str()).collect();
        assert!(versions.ends_with(&["3.15", "3.16"]), "{found:?}");
    }

    #[tokio::test]
    async fn exactly_that_version_and_no_other() {
        let home = tempfile::tempdir().expect("a folder");
        let pyenv = |patch: &str| home.path().join(format!(".pyenv/versions/{patch}/bin/python9.1"));
        for patch in ["9.1.2", "9.1.10", "9.10.1"] {
            python(&pyenv(patch), "9.1");
        }
        python(&home.path().join("bin/python9.1"), "9.2");
        let path = format!("{}:/usr/bin:/bin", home.path().join("bin").display());
        let environment = vec![("HOME".into(), home.path().into()), ("PATH".into(), path.into())];
        let settings = Settings { environment, ..Settings::default() };
        let interpreters = Interpreters::default();
        let found = interpreters.find("9.1", false, &settings, None).await.expect("in pyenv");
        assert_eq!(found, pyenv("9.1.10"), "the newest patch; the one on the path is none");
        fs_err::remove_file(&found).expect("removed");
        assert_eq!(interpreters.find("9.1", false, &settings, None).await.expect("the next"), pyenv("9.1.2"));
        for (version, words) in [("9.3", "install it"), ("../x", "MAJOR.MINOR"), ("9", "MAJOR.MINOR")] {
            let fault = interpreters.find(version, false, &settings, None).await.expect_err("there is none");
            assert!(fault.category == FailureCategory::Dependencies && fault.message.contains(words), "{fault}");
        }
    }
}
