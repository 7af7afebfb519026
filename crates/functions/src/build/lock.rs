//! The lock that a build came to where its code has none: added to the code, it has the next build get the same packages.

use std::path::Path;

use serde_json::Value;
use url::Url;

use super::{BuildError, packages};
use crate::deployment::path_of;

/// The largest lock: one of npm has a few hundred bytes for each package.
const MAX_LOCK_BYTES: u64 = 16 << 20;

/// The exact versions of all packages of a build, in the form of its package manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lock {
    /// Name of its file in the code.
    pub(super) name: &'static str,
    pub(super) text: String,
}

impl Lock {
    /// The note of a build without a lock.
    pub(super) fn note(why: &str, function: &str) -> String {
        format!(
            "{why}: another build may get newer packages. `GET /v1{}/lock` gives a lock of these.",
            path_of(function)
        )
    }

    /// The lock that `npm install` has left in the code; `None` where the settings of the code want none.
    pub(super) fn of_node(code: &Path) -> Option<Self> {
        let (name, path) = ("package-lock.json", code.join("package-lock.json"));
        let found = fs_err::symlink_metadata(&path).ok()?;
        if !found.is_file() || found.len() > MAX_LOCK_BYTES {
            return None;
        }
        fs_err::read_to_string(path).ok().map(|text| Self { name, text })
    }

    /// The lock of the packages below `folder`, as uv or pip has installed them: each by its version, or by the address that it was
    /// asked for.
    pub(super) fn of_python(folder: &Path, code: &Path) -> Result<Self, BuildError> {
        let mut lines = Vec::new();
        for entry in fs_err::read_dir(folder).into_iter().flatten().flatten() {
            let info = entry.path();
            if !entry.file_name().to_string_lossy().ends_with(".dist-info") {
                continue;
            }
            let Some((name, version)) = packages::name_and_version(&info)? else { continue };
            lines.push(address(&info, &name, code).unwrap_or_else(|| format!("{name}=={version}")));
        }
        lines.sort();
        Ok(Self { name: "requirements.lock", text: lines.iter().map(|line| format!("{line}\n")).collect() })
    }
}

/// The line of a package that was asked for by its address (PEP 610).
fn address(info: &Path, name: &str, code: &Path) -> Option<String> {
    let about: Value = serde_json::from_slice(&fs_err::read(info.join("direct_url.json")).ok()?).ok()?;
    let mut url = Url::parse(about.get("url")?.as_str()?).ok()?;
    if url.scheme() == "file" {
        // The folder of the build is gone afterwards.
        let path = url.to_file_path().ok()?;
        return Some(format!("./{}", path.strip_prefix(code).ok()?.display()));
    }
    // A lock is read by more people than the code.
    url.set_query(None);
    let clean = url.set_username("").and_then(|()| url.set_password(None));
    clean.ok().map(|()| format!("{name} @ {url}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(folder: &Path, name: &str, version: &str, url: Option<&str>) {
        let info = folder.join(format!("{name}-{version}.dist-info"));
        fs_err::create_dir_all(&info).expect("made");
        fs_err::write(info.join("METADATA"), format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\n"))
            .expect("written");
        if let Some(url) = url {
            let about = serde_json::json!({"url": url, "archive_info": {}});
            fs_err::write(info.join("direct_url.json"), about.to_string()).expect("written");
        }
    }

    #[test]
    fn the_lock_of_python_names_what_was_installed() {
        let code = tempfile::tempdir().expect("a folder");
        let folder = code.path().join("packages");
        package(&folder, "six", "1.16.0", None);
        package(&folder, "flask", "3.0.0", Some("https://me:secret@example.org/flask-3.0.0-py3-none-any.whl"));
        let own = code.path().join("wheels/own-1.0-py3-none-any.whl");
        package(&folder, "own", "1.0", Some(&format!("file://{}", own.display())));
        package(&folder, "other", "2.0", Some("file:///srv/other-2.0-py3-none-any.whl"));
        let lock = Lock::of_python(&folder, code.path()).expect("a lock");
        let lines = "./wheels/own-1.0-py3-none-any.whl\nflask @ https://example.org/flask-3.0.0-py3-none-any.whl\nother==2.0\nsix==1.16.0\n";
        assert_eq!((lock.name, lock.text.as_str()), ("requirements.lock", lines));
        assert_eq!(Lock::of_python(&code.path().join("none"), code.path()).expect("a lock").text, "");
    }

    #[test]
    fn the_lock_of_npm_is_a_file_of_the_code() {
        let code = tempfile::tempdir().expect("a folder");
        assert_eq!(Lock::of_node(code.path()), None, "package-lock=false");
        fs_err::write(code.path().join("package-lock.json"), "{}").expect("written");
        assert_eq!(Lock::of_node(code.path()).map(|lock| lock.text), Some("{}".to_owned()));
        fs_err::rename(code.path().join("package-lock.json"), code.path().join("else.json")).expect("moved");
        fs_err::os::unix::fs::symlink(code.path().join("else.json"), code.path().join("package-lock.json"))
            .expect("a link");
        assert_eq!(Lock::of_node(code.path()), None, "links are not followed");
    }
}
