//! Verifies the packages of an environment: each lists its files with their digests (`RECORD`).
//!
//! What the installer fetched is kept unpacked, and environments share its files. One that was damaged there, by a crash, a
//! bad disk, or a model that writes into its packages, would be in every environment from then on: the installer does not
//! look.

use std::{
    io,
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use berth_spec::Digest;
use tokio_util::sync::CancellationToken;

use crate::artifacts::checksum;

/// The packages of an environment of which a file is missing or is another one. Reads all of them, until `cancel`.
pub(super) fn damaged(environment: &Path, cancel: &CancellationToken) -> io::Result<Vec<String>> {
    let mut damaged = Vec::new();
    for packages in libraries(environment)? {
        for entry in fs_err::read_dir(&packages)? {
            let entry = entry?;
            let folder = entry.file_name().to_string_lossy().into_owned();
            let Some(name) = folder.strip_suffix(".dist-info").and_then(|name| name.rsplit_once('-')) else { continue };
            if !is_whole(&packages, &entry.path(), cancel)? {
                damaged.push(name.0.to_owned());
            }
        }
    }
    Ok(damaged)
}

/// `lib/python3.11/site-packages`, whatever the version.
fn libraries(environment: &Path) -> io::Result<Vec<PathBuf>> {
    let versions = fs_err::read_dir(environment.join("lib"));
    let versions = match versions {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        versions => versions?,
    };
    let packages = versions.map(|entry| entry.map(|entry| entry.path().join("site-packages")));
    packages.filter(|path| path.as_ref().map_or(true, |path| path.is_dir())).collect()
}

fn is_whole(packages: &Path, about: &Path, cancel: &CancellationToken) -> io::Result<bool> {
    let Ok(record) = fs_err::read_to_string(about.join("RECORD")) else { return Ok(false) };
    for (path, digest) in record.lines().filter_map(listed) {
        // Programs lie elsewhere, and the installer writes into them which interpreter they are for.
        let path = Path::new(&path);
        if path.is_absolute() || path.starts_with("..") {
            continue;
        }
        match checksum::of_file(&packages.join(path), cancel) {
            Ok(found) if found == digest => {}
            Err(error) if cancel.is_cancelled() => return Err(error),
            Ok(_) | Err(_) => return Ok(false),
        }
    }
    Ok(!record.is_empty())
}

/// `path,sha256=DIGEST,size`, the path in quotes where it has commas; lines without such a digest say nothing.
fn listed(line: &str) -> Option<(String, Digest)> {
    let (rest, _size) = line.rsplit_once(',')?;
    let (path, digest) = rest.rsplit_once(',')?;
    let digest = URL_SAFE_NO_PAD.decode(digest.strip_prefix("sha256=")?).ok()?;
    let path = match path.strip_prefix('"').and_then(|path| path.strip_suffix('"')) {
        Some(quoted) => quoted.replace("\"\"", "\""),
        None => path.to_owned(),
    };
    Some((path, Digest(digest.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_with_a_file_that_is_another_one_is_found() {
        let environment = tempfile::tempdir().expect("a folder");
        let packages = environment.path().join("lib/python3.11/site-packages");
        let write = |path: &str, text: &str| {
            let path = packages.join(path);
            fs_err::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs_err::write(path, text).expect("written");
        };
        let line = |path: &str, text: &str| {
            format!("{path},sha256={},{}\n", URL_SAFE_NO_PAD.encode(checksum::of(text.as_bytes()).0), text.len())
        };
        let damaged = || damaged(environment.path(), &CancellationToken::new()).expect("read");
        assert!(damaged().is_empty(), "an environment without packages");
        for name in ["fine", "torn", "gone"] {
            write(&format!("{name}/a,b.py"), "text");
            let quoted = line(&format!("\"{name}/a,b.py\""), "text");
            let record = format!("{quoted}../../../bin/{name},sha256=AAAA,1\n{name}-1.0.dist-info/RECORD,,\n");
            write(&format!("{name}-1.0.dist-info/RECORD"), &record);
        }
        assert!(damaged().is_empty());
        write("torn/a,b.py", "");
        fs_err::remove_file(packages.join("gone/a,b.py")).expect("removed");
        write("silent-2.0.dist-info/METADATA", "");
        let mut found = damaged();
        found.sort();
        assert_eq!(found, ["gone", "silent", "torn"]);
    }
}
