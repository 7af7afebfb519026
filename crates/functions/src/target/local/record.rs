//! The record of a deployed version, beside its files: what runs after a restart before etcd has answered.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    io,
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use berth_spec::{Namespace, Time, id::DEFAULT_NAMESPACE, network::Destination};
use serde::{Deserialize, Serialize};

use crate::{
    build::Manifest,
    deployment::Limits,
    status::{ArtifactStatus, Revision},
};

const FILE: &str = "record.json";

/// A deployed version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    /// The namespace of the function; records of earlier versions of Berth are of the default one.
    #[serde(default)]
    pub(super) namespace: Namespace,
    pub(super) manifest: Manifest,
    pub(super) artifact: ArtifactStatus,
    pub(super) env: BTreeMap<String, String>,
    /// Hosts that it reaches.
    #[serde(default)]
    pub(super) hosts: Vec<Destination>,
    pub(super) limits: Limits,
    /// Its spec as somebody wrote it; `None` in records of earlier versions of Berth.
    #[serde(default)]
    pub(super) revision: Option<Revision>,
}

impl Record {
    /// The key of the function.
    pub(super) fn key(&self) -> Cow<'_, str> {
        match self.namespace.as_str() {
            DEFAULT_NAMESPACE => self.manifest.name.as_str().into(),
            namespace => format!("{namespace}/{}", self.manifest.name).into(),
        }
    }

    pub(super) fn read(folder: &Path) -> Option<Self> {
        let text = std::fs::File::open(folder.join(FILE)).ok()?;
        serde_json::from_reader(io::BufReader::new(text)).ok()
    }

    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        let half = folder.join("record.new");
        fs_err::write(&half, serde_json::to_vec(self).map_err(io::Error::other)?)?;
        fs_err::rename(half, folder.join(FILE))
    }

    /// The time at which the record in a folder was written: its version began to serve then.
    pub(super) fn since(folder: &Path) -> Option<Time> {
        let written = folder.join(FILE).metadata().and_then(|found| found.modified()).ok()?;
        Some(Time::ZERO + written.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{deployment::Declared, status::SpecText};

    #[test]
    fn a_record_tells_the_spec_and_those_of_earlier_versions_are_read() {
        let object = json!({
            "apiVersion": "v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "words"},
            "spec": {"type": "python", "sourceUri": "file:/code/a.zip", "entrypoint": "handler.predict",
                     "target": {"platform": "local"}},
        });
        let declared = Declared::read("words", object.to_string().as_bytes(), berth_control::store::Rev(1));
        let spec = declared.spec.expect("a right spec");
        let revision = Revision {
            generation: 3,
            deployed: "2026-01-01T00:00:00.000Z".to_owned(),
            artifact: "sha256:1".to_owned(),
            spec: SpecText(declared.text),
        };
        let record = Record {
            namespace: Namespace::DEFAULT,
            manifest: Manifest::of(&spec),
            artifact: ArtifactStatus { digest: "sha256:1".to_owned(), size: 7 },
            env: spec.env.clone(),
            hosts: spec.hosts.clone(),
            limits: spec.limits.clone(),
            revision: Some(revision),
        };
        let folder = tempfile::tempdir().expect("a folder");
        record.write(folder.path()).expect("written");
        assert_eq!(Record::read(folder.path()), Some(record.clone()));
        assert!(Record::since(folder.path()).is_some_and(|since| since > Time::ZERO && since <= crate::driver::now()));
        let mut earlier: Value = serde_json::to_value(&record).expect("JSON");
        let fields = earlier.as_object_mut().expect("an object");
        fields.retain(|field, _| !["revision", "namespace", "hosts"].contains(&field.as_str()));
        fs_err::write(folder.path().join(FILE), earlier.to_string()).expect("written");
        let earlier = Record::read(folder.path()).expect("it is read");
        assert_eq!(earlier.key(), "words", "it is where it was");
        assert_eq!(earlier, Record { revision: None, ..record.clone() });
        let of_team = Record { namespace: Namespace::new("team").expect("a namespace"), ..record };
        of_team.write(folder.path()).expect("written");
        assert_eq!(Record::read(folder.path()).expect("it is read").key(), "team/words");
    }
}
