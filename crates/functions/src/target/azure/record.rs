//! Records of the apps that a function was deployed to, or began to be: what has to be removed once it goes.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    controller::{Served, Task},
    deployment::{file_stem, key_of_stem},
    driver::now,
    status::{ArtifactStatus, Revision},
    target::revision,
};

/// An app of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) group: String,
    pub(super) app: String,
    /// Settings of the spec that were made: its variables, and those for its limits.
    pub(super) env: Vec<String>,
    /// The version that serves there. `None` until one has answered, and in records of earlier versions of Berth: the next look
    /// at the app fills it in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<Version>,
}

/// A version that serves in an app.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Version {
    pub(super) endpoint: String,
    pub(super) artifact: ArtifactStatus,
    /// Its spec as somebody wrote it.
    pub(super) revision: Revision,
}

impl Version {
    /// The version of a task, which answers at `endpoint`. It serves since `earlier` does, where that is the same.
    pub(super) fn of(task: &Task, artifact: &ArtifactStatus, endpoint: &str, earlier: Option<&Self>) -> Self {
        let same = earlier.filter(|one| one.artifact == *artifact && one.revision.spec.0 == task.text);
        let since = same.map_or_else(|| now().to_string(), |one| one.revision.deployed.clone());
        let revision = revision(task, artifact, since);
        Self { endpoint: endpoint.to_owned(), artifact: artifact.clone(), revision }
    }
}

impl From<Version> for Served {
    fn from(Version { endpoint, artifact, revision }: Version) -> Self {
        Self { endpoint: Some(endpoint), artifact: Some(artifact), revision: Some(revision) }
    }
}

/// The records, a file for each function.
#[derive(Debug)]
pub(super) struct Records(PathBuf);

impl Records {
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        fs_err::create_dir_all(root)?;
        Ok(Self(root.to_owned()))
    }

    fn path(&self, function: &str) -> PathBuf {
        self.0.join(format!("{}.json", file_stem(function)))
    }

    /// The apps of a function; several where it moves and has not arrived.
    pub(super) fn read(&self, function: &str) -> Vec<Record> {
        let read = fs_err::read(self.path(function)).ok();
        read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    pub(super) fn write(&self, function: &str, apps: &[Record]) -> io::Result<()> {
        let half = self.0.join(format!(".{}.new", file_stem(function)));
        fs_err::write(&half, serde_json::to_vec(apps).map_err(io::Error::other)?)?;
        fs_err::rename(half, self.path(function))
    }

    pub(super) fn forget(&self, function: &str) -> io::Result<()> {
        match fs_err::remove_file(self.path(function)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Functions that are deployed.
    pub(super) fn all(&self) -> Vec<String> {
        let names = fs_err::read_dir(&self.0).into_iter().flatten().flatten();
        names.filter_map(|entry| Some(key_of_stem(entry.file_name().to_str()?.strip_suffix(".json")?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::status::SpecText;

    #[test]
    fn a_record_tells_the_spec_and_those_of_earlier_versions_are_read() {
        let home = tempfile::tempdir().expect("a folder");
        let records = Records::open(home.path()).expect("records");
        let earlier = json!([{"group": "rg", "app": "words-prod", "env": ["LEVEL"]}]);
        fs_err::write(home.path().join("words.json"), earlier.to_string()).expect("written");
        let (group, app, env) = ("rg".to_owned(), "words-prod".to_owned(), vec!["LEVEL".to_owned()]);
        let record = Record { group, app, env, version: None };
        assert_eq!(records.read("words"), std::slice::from_ref(&record));
        let revision = Revision {
            generation: 3,
            deployed: "2026-01-01T00:00:00.000Z".to_owned(),
            artifact: "sha256:1".to_owned(),
            spec: SpecText(json!({"type": "python"}).to_string().into()),
        };
        let artifact = ArtifactStatus { digest: "sha256:1".to_owned(), size: 7 };
        let endpoint = "https://words-prod.azurewebsites.net/api/words".to_owned();
        let record = Record { version: Some(Version { endpoint, artifact, revision }), ..record };
        records.write("words", std::slice::from_ref(&record)).expect("written");
        assert_eq!(records.read("words"), std::slice::from_ref(&record));
        // Another namespace has records of its own.
        assert!(records.read("team/words").is_empty());
        records.write("team/words", std::slice::from_ref(&record)).expect("written");
        let mut all = records.all();
        all.sort();
        assert_eq!(all, ["team/words", "words"]);
        records.forget("team/words").expect("forgotten");
        assert_eq!((records.all(), records.read("words")), (vec!["words".to_owned()], vec![record]));
    }
}
