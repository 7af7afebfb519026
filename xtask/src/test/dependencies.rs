//! Compiled dependencies, kept outside the checkout: a fresh clone compiles the repository's own crates alone.
//!
//! ```text
//! target/debug of a run from nothing ──keep──▶ ~/.cache/berth/dependencies ──bring──▶ target/debug of the next clone
//! ```
//! They fit where the compiler, the locked versions and the profiles are the same; whatever cargo finds different besides (features, say) it
//! compiles again. Files are copied with their times, by which cargo tells what is newer than what.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use fs_err::File;

use crate::workspace::{Workspace, outside};

/// File with what the kept dependencies were compiled from.
const KEY: &str = "key";

/// Hexadecimal digits behind the name of a unit.
const DIGITS: usize = 16;

/// Units of cargo: libraries, build scripts and what those made. Programs are the repository's own.
pub(crate) struct Dependencies {
    kept: PathBuf,
    target: PathBuf,
    key: String,
    /// True if nothing of the repository but `xtask` was compiled when the run began.
    from_nothing: bool,
}

impl Dependencies {
    /// Brings what was kept, where nothing is compiled yet.
    pub(crate) fn bring(workspace: &Workspace) -> Result<Self> {
        let target = workspace.target("debug");
        let units = units(&target)?;
        let from_nothing = !units.iter().any(|unit| unit.starts_with("berth-"));
        let kept = outside("dependencies")?;
        let dependencies = Self { kept, target, key: key(workspace)?, from_nothing };
        if from_nothing && dependencies.fit() {
            dependencies.copy(&dependencies.kept, &dependencies.target)?;
        }
        Ok(dependencies)
    }

    /// Keeps them for the next clone, after a run that compiled everything.
    pub(crate) fn keep(&self) -> Result<()> {
        if !self.from_nothing || self.fit() {
            return Ok(());
        }
        let made = self.kept.with_extension(std::process::id().to_string());
        self.copy(&self.target, &made)?;
        fs_err::write(made.join(KEY), &self.key)?;
        if self.kept.exists() {
            fs_err::remove_dir_all(&self.kept)?;
        }
        fs_err::rename(made, &self.kept)?;
        Ok(())
    }

    fn fit(&self) -> bool {
        fs_err::read_to_string(self.kept.join(KEY)).is_ok_and(|key| key == self.key)
    }

    fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        let units: BTreeSet<String> = units(from)?.into_iter().filter(|unit| !is_own(unit)).collect();
        let digits: BTreeSet<&str> = units.iter().filter_map(|unit| split(unit)).map(|(_, digits)| digits).collect();
        for folder in [".fingerprint", "build"] {
            for unit in names(&from.join(folder))?.into_iter().filter(|name| units.contains(name)) {
                copy_all(&from.join(folder).join(&unit), &to.join(folder).join(&unit))?;
            }
        }
        for name in names(&from.join("deps"))? {
            // `serde-0123456789abcdef.d`, `libserde-0123456789abcdef.rlib`.
            let stem = name.split_once('.').map_or(name.as_str(), |(stem, _)| stem);
            if split(stem).is_some_and(|(_, own)| digits.contains(own)) {
                copy_all(&from.join("deps").join(&name), &to.join("deps").join(&name))?;
            }
        }
        Ok(())
    }
}

/// The compiler, the versions of packages that are not the repository's, and the profiles.
fn key(workspace: &Workspace) -> Result<String> {
    let compiler = Command::new("rustc").arg("-vV").output().context("rustc")?;
    if !compiler.status.success() {
        bail!("rustc -vV ended with {}", compiler.status);
    }
    let lock = fs_err::read_to_string(workspace.path("Cargo.lock"))?;
    let packages = lock.split("[[package]]").filter(|package| package.contains("\nsource = "));
    let locked = packages.flat_map(|package| package.lines().take_while(|line| !line.starts_with("dependencies")));
    let manifest = fs_err::read_to_string(workspace.path("Cargo.toml"))?;
    let profiles = manifest.find("\n[profile").map_or("", |at| &manifest[at..]);
    let locked: Vec<&str> = locked.collect();
    Ok([&String::from_utf8_lossy(&compiler.stdout), locked.join("\n").as_str(), profiles].join("\n"))
}

/// Names of units: a package and a number.
fn units(target: &Path) -> Result<Vec<String>> {
    names(&target.join(".fingerprint"))
}

fn is_own(unit: &str) -> bool {
    split(unit).is_none_or(|(package, _)| package == "xtask" || package.starts_with("berth-"))
}

/// The package and the digits of `package-0123456789abcdef`.
fn split(unit: &str) -> Option<(&str, &str)> {
    unit.rsplit_once('-').filter(|(_, digits)| digits.len() == DIGITS && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Names in a folder; none where it is missing.
fn names(folder: &Path) -> Result<Vec<String>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let entries = fs_err::read_dir(folder)?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Copies a file or a folder with the times of files.
fn copy_all(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        fs_err::create_dir_all(to)?;
        return names(from)?.into_iter().try_for_each(|name| copy_all(&from.join(&name), &to.join(&name)));
    }
    if let Some(parent) = to.parent() {
        fs_err::create_dir_all(parent)?;
    }
    fs_err::copy(from, to)?;
    let modified = fs_err::metadata(from)?.modified()?;
    // Writable for its owner, whatever the mode of the file: it was just made.
    File::options().append(true).open(to)?.file().set_modified(modified)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_told_from_programs() {
        assert_eq!(split("serde_json-0123456789abcdef"), Some(("serde_json", "0123456789abcdef")));
        assert_eq!(split("libonnxruntime"), None);
        assert!(is_own("berth-cli-0123456789abcdef") && is_own("xtask-0123456789abcdef"));
        assert!(!is_own("tokio-0123456789abcdef"));
    }

    #[test]
    fn what_was_kept_is_brought_as_it_was() {
        let root = std::env::temp_dir().join(format!("xtask-dependencies-{}", std::process::id()));
        let place = |target: &str| Dependencies {
            kept: root.join("kept"),
            target: root.join(target),
            key: "a compiler".to_owned(),
            from_nothing: true,
        };
        let files = [
            ("debug/.fingerprint/tokio-0123456789abcdef/lib-tokio", true),
            ("debug/build/libc-00000000000000aa/out/a.txt", true),
            ("debug/.fingerprint/libc-00000000000000aa/run", true),
            ("debug/deps/libtokio-0123456789abcdef.rlib", true),
            ("debug/deps/tokio-0123456789abcdef.d", true),
            ("debug/deps/libberth_cli-00000000000000bb.rlib", false),
            ("debug/.fingerprint/berth-cli-00000000000000bb/lib", false),
            ("debug/deps/it-00000000000000cc", false),
            ("debug/berth", false),
        ];
        for (file, _) in files {
            fs_err::create_dir_all(root.join(file).parent().expect("a parent")).expect("made");
            fs_err::write(root.join(file), file).expect("written");
        }
        let (made, next) = (place("debug"), place("next"));
        made.keep().expect("kept");
        assert!(made.fit() && !Dependencies { key: "another".to_owned(), ..place("next") }.fit());
        next.copy(&next.kept, &next.target).expect("brought");
        let modified = |path: &Path| fs_err::metadata(path).and_then(|file| file.modified()).ok();
        for (file, is_kept) in files {
            let brought = root.join(file.replacen("debug", "next", 1));
            assert_eq!(brought.exists(), is_kept, "{file}");
            assert!(!is_kept || modified(&brought) == modified(&root.join(file)), "{file}");
        }
        fs_err::remove_dir_all(root).expect("removed");
    }
}
