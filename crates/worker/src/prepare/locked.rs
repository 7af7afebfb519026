//! The lock that a card names: found in its code, read, and held against the card's list of packages.

use std::path::{Component, Path, PathBuf};

use berth_spec::{
    FailureCategory,
    card::lock::{LARGEST, Lock},
};

use super::{Settings, uv::Uv};
use crate::fault::Fault;

/// The name of the lock of a project of `uv`, which is no list of requirements.
const PROJECT: &str = "uv.lock";

/// A lock in the code of a card.
#[derive(Debug, Clone, Copy)]
pub(super) struct LockFile<'a> {
    /// The root of the checkout.
    pub(super) code: &'a Path,
    /// The path in it, as the card says.
    pub(super) path: &'a str,
}

impl LockFile<'_> {
    /// The packages of the lock, which has all of `wanted`.
    pub(super) async fn packages(&self, wanted: &[String], uv: &Uv, settings: &Settings) -> Result<Vec<String>, Fault> {
        let file = self.file()?;
        let text = if file.file_name().is_some_and(|name| name == PROJECT) {
            uv.export(settings, file.parent().unwrap_or(self.code)).await?
        } else {
            read(&file).map_err(|error| self.wrong(format!("cannot be read: {error}")))?
        };
        let lock = Lock::read(&text).map_err(|error| self.wrong(error.to_string()))?;
        match lock.stale(wanted) {
            None => Ok(lock.into_packages()),
            Some(how) => {
                let remedy =
                    "write it again (`uv lock`, or `uv pip compile --generate-hashes`) and release a new version";
                Err(self.wrong(format!("is out of date: {how}; {remedy}")))
            }
        }
    }

    /// The file, inside of the code.
    fn file(&self) -> Result<PathBuf, Fault> {
        let path = Path::new(self.path);
        let inside = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        let file = fs_err::canonicalize(self.code.join(path));
        let root = fs_err::canonicalize(self.code).map_err(|error| Fault::disk(&error))?;
        match file {
            Ok(file) if inside && file.starts_with(&root) && file.is_file() => Ok(file),
            _ => Err(self.wrong("is no file of the code's repository: commit it, or correct the path".to_owned())),
        }
    }

    fn wrong(&self, how: String) -> Fault {
        Fault::new(FailureCategory::Dependencies, format!("runtime.dependencies_lock: {} {how}", self.path))
    }
}

fn read(file: &Path) -> Result<String, String> {
    let size = fs_err::metadata(file).map_err(|error| error.to_string())?.len();
    if size > LARGEST as u64 {
        return Err(format!("it has {size} bytes, and {LARGEST} are allowed"));
    }
    fs_err::read_to_string(file).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lock_is_a_file_of_the_code_with_all_that_the_card_wants() {
        let folder = tempfile::tempdir().expect("a folder");
        let code = folder.path().join("code");
        fs_err::create_dir_all(&code).expect("a folder");
        let hash = format!("--hash=sha256:{}", "0".repeat(64));
        fs_err::write(code.join("good.lock"), format!("numpy==2.3.4 {hash}\n")).expect("written");
        fs_err::write(code.join("bare.lock"), "numpy==2.3.4\n").expect("written");
        fs_err::write(folder.path().join("secret"), format!("numpy==2.3.4 {hash}\n")).expect("written");
        std::os::unix::fs::symlink("../secret", code.join("link.lock")).expect("a link");
        let (uv, settings) = (Uv::at(PathBuf::from("/nowhere/uv"), folder.path().to_owned()), Settings::default());
        let wanted = |text: &str| vec![text.to_owned()];
        let at = |path: &'static str| LockFile { code: &code, path };
        let packages = at("good.lock").packages(&wanted("numpy==2.3.4"), &uv, &settings).await;
        assert_eq!(packages, Ok(vec![format!("numpy==2.3.4 {hash}")]));
        for (path, package, part) in [
            ("good.lock", "numpy==2.3.5", "good.lock is out of date: it has numpy 2.3.4"),
            ("bare.lock", "numpy==2.3.4", "bare.lock line 1: numpy==2.3.4 has no hash"),
            ("none.lock", "numpy==2.3.4", "is no file of the code's repository"),
            ("../secret", "numpy==2.3.4", "is no file of the code's repository"),
            ("link.lock", "numpy==2.3.4", "is no file of the code's repository"),
        ] {
            let fault = at(path).packages(&wanted(package), &uv, &settings).await.expect_err(path);
            assert!(fault.message.contains(part), "{fault}");
            assert_eq!(fault.category, FailureCategory::Dependencies);
        }
    }
}
