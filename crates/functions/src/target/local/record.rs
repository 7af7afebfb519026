//! The record of a deployed version, beside its files: what runs after a restart before etcd has answered.

use std::{collections::BTreeMap, io, path::Path};

use serde::{Deserialize, Serialize};

use crate::{build::Manifest, deployment::Limits, status::ArtifactStatus};

const FILE: &str = "record.json";

/// A deployed version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) manifest: Manifest,
    pub(super) artifact: ArtifactStatus,
    pub(super) env: BTreeMap<String, String>,
    pub(super) limits: Limits,
}

impl Record {
    pub(super) fn read(folder: &Path) -> Option<Self> {
        let text = std::fs::File::open(folder.join(FILE)).ok()?;
        serde_json::from_reader(io::BufReader::new(text)).ok()
    }

    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        let half = folder.join("record.new");
        fs_err::write(&half, serde_json::to_vec(self).map_err(io::Error::other)?)?;
        fs_err::rename(half, folder.join(FILE))
    }
}
