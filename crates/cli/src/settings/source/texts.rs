//! Texts of flags about Git sources, read.

use std::path::PathBuf;

use berth_git::{Identity, Protocols, Remote};
use berth_gitops::WriteBackTo;

/// `https://HOST[:PORT]=FILE`.
pub(super) fn host_file(text: &str) -> Result<(String, PathBuf), String> {
    const HOW: &str = "write https://HOST[:PORT]=FILE";
    let (url, file) = text.rsplit_once('=').ok_or(HOW)?;
    let remote = Remote::parse(&format!("{}/x", url.trim_end_matches('/')), Protocols::default().with_http())
        .map_err(|_| HOW)?;
    if file.is_empty() { Err(HOW.to_owned()) } else { Ok((remote.origin(), PathBuf::from(file))) }
}

/// `branch=NAME`, `main` or `off`.
pub(super) fn write_back(text: &str) -> Result<WriteBackTo, String> {
    match (text, text.strip_prefix("branch=")) {
        ("off", _) => Ok(WriteBackTo::Off),
        ("main", _) => Ok(WriteBackTo::Followed),
        (_, Some(branch)) if berth_git::Rev::Branch(branch.to_owned()).is_safe() => {
            Ok(WriteBackTo::Branch(branch.to_owned()))
        }
        _ => Err("write branch=NAME, main or off".to_owned()),
    }
}

/// `NAME <ADDRESS>`.
pub(super) fn author(text: &str) -> Result<Identity, String> {
    let parts = text.strip_suffix('>').and_then(|text| text.split_once('<'));
    match parts.map(|(name, email)| (name.trim(), email.trim())) {
        Some((name, email)) if !name.is_empty() && email.contains('@') => {
            Ok(Identity { name: name.to_owned(), email: email.to_owned() })
        }
        _ => Err("write NAME <ADDRESS>".to_owned()),
    }
}

/// The name of a cluster, as it stands in files and commits.
pub(super) fn cluster_name(text: &str) -> Result<String, String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !text.is_empty() && text.len() <= 63 && text.chars().all(fine) {
        Ok(text.to_owned())
    } else {
        Err("use up to 63 letters, digits, dashes and dots".to_owned())
    }
}
