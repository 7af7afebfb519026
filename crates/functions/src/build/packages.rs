//! The packages that went into an artifact.

use std::path::Path;

use base64::Engine as _;
use serde_json::Value;

use super::BuildError;
use crate::deployment::hex;

/// A package that was installed, as the documents beside an artifact name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Package {
    /// Its address: `pkg:pypi/six@1.16.0`.
    pub(super) purl: String,
    pub(super) name: String,
    pub(super) version: String,
    pub(super) licence: Option<String>,
    /// SHA-512 of the archive that it was installed from, in hexadecimal digits.
    pub(super) sha512: Option<String>,
    /// True if only the build needs it.
    pub(super) builds: bool,
}

/// Packages of a folder that `uv` or pip installed into.
pub(super) fn of_python(folder: &Path) -> Result<Vec<Package>, BuildError> {
    let mut found = Vec::new();
    for entry in fs_err::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().ends_with(".dist-info") {
            continue;
        }
        let text = fs_err::read_to_string(entry.path().join("METADATA"))?;
        let field = |name: &str| field(&text, name);
        let (Some(name), Some(version)) = (field("Name"), field("Version")) else { continue };
        found.push(Package {
            purl: format!("pkg:pypi/{}@{version}", name.to_ascii_lowercase().replace(['_', '.'], "-")),
            name,
            version,
            licence: field("License-Expression").or_else(|| field("License")).map(|text| first_words(&text)),
            sha512: None,
            builds: false,
        });
    }
    found.sort();
    Ok(found)
}

/// Name and version of an installed package, by its `.dist-info`.
pub(super) fn name_and_version(info: &Path) -> Result<Option<(String, String)>, BuildError> {
    let text = fs_err::read_to_string(info.join("METADATA"))?;
    Ok(field(&text, "Name").zip(field(&text, "Version")))
}

/// A field of a package's metadata.
fn field(text: &str, name: &str) -> Option<String> {
    // The description after the first empty line may say anything.
    let head = text.split("\n\n").next().unwrap_or_default();
    let value = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.map(|value| value.trim().to_owned()).filter(|value| !value.is_empty() && value != "UNKNOWN")
}

/// A licence; some packages give its whole text.
fn first_words(text: &str) -> String {
    text.chars().take(100).collect()
}

/// Packages of a lock file of npm, from version 2 of its format on.
pub(super) fn of_node(lock: &str) -> Vec<Package> {
    let lock: Value = serde_json::from_str(lock).unwrap_or_default();
    let packages = lock.get("packages").and_then(Value::as_object).into_iter().flatten();
    let mut found: Vec<Package> = packages.filter_map(|(place, about)| of_entry(place, about)).collect();
    found.sort();
    found.dedup();
    found
}

fn of_entry(place: &str, about: &Value) -> Option<Package> {
    let name = place.rsplit_once("node_modules/").map(|(_, name)| name)?;
    let text = |field: &str| about.get(field).and_then(Value::as_str).map(str::to_owned);
    let (version, coded) = (text("version")?, name.replace('@', "%40"));
    let digest = text("integrity").and_then(|integrity| {
        let coded = integrity.split_whitespace().find_map(|part| part.strip_prefix("sha512-"))?.to_owned();
        Some(hex("", &base64::engine::general_purpose::STANDARD.decode(coded).ok()?))
    });
    Some(Package {
        purl: format!("pkg:npm/{coded}@{version}"),
        name: name.to_owned(),
        version,
        licence: text("license").map(|text| first_words(&text)),
        sha512: digest,
        builds: about.get("dev").and_then(Value::as_bool).unwrap_or(false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_both_languages_are_read() {
        let home = tempfile::tempdir().expect("a folder");
        let info = home.path().join("ruamel.yaml-0.18.6.dist-info");
        fs_err::create_dir(&info).expect("made");
        let text = "Metadata-Version: 2.1\nName: ruamel.yaml\nVersion: 0.18.6\nLicense: MIT\n\nLicense: none\n";
        fs_err::write(info.join("METADATA"), text).expect("written");
        let found = of_python(home.path()).expect("read");
        assert_eq!((found[0].purl.as_str(), found[0].licence.as_deref()), ("pkg:pypi/ruamel-yaml@0.18.6", Some("MIT")));

        let lock = r#"{"lockfileVersion": 3, "packages": {"": {"name": "x"},
            "node_modules/@azure/functions": {"version": "4.16.5", "license": "MIT", "integrity": "sha512-AAEC"},
            "node_modules/rollup/node_modules/fsevents": {"version": "2.3.3", "dev": true}}}"#;
        let found = of_node(lock);
        let shown: Vec<_> = found.iter().map(|one| (one.purl.as_str(), one.sha512.as_deref(), one.builds)).collect();
        assert_eq!(
            shown,
            [("pkg:npm/%40azure/functions@4.16.5", Some("000102"), false), ("pkg:npm/fsevents@2.3.3", None, true)]
        );
        assert!(of_node("no lock").is_empty());
    }
}
