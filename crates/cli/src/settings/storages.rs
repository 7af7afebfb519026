//! Storages that models name: `--storage-config`, `--volumes`.

use std::path::PathBuf;

use berth_worker::artifacts::StorageSettings;
use clap::Args;

/// Storages that models name.
#[derive(Debug, Default, Args)]
pub(crate) struct StorageArgs {
    /// Secret storage-config of ModelMesh and KServe, for models at storage://KEY/PATH: its manifest, or a folder with a file per
    /// entry; read again for each fetch (docs/runtimes.md)
    #[arg(long, value_name = "PATH", env = "BERTH_STORAGE_CONFIG")]
    storage_config: Option<PathBuf>,
    /// Folder in which volumes are mounted by their names, for models at pvc://NAME/PATH
    #[arg(long, value_name = "DIR", env = "BERTH_VOLUMES", default_value = berth_worker::artifacts::VOLUMES)]
    volumes: PathBuf,
}

impl StorageArgs {
    pub(crate) fn settings(&self) -> StorageSettings {
        StorageSettings { config: self.storage_config.clone(), volumes: self.volumes.clone() }
    }
}
