//! Settings of the audit log.

use std::path::{Path, PathBuf};

use berth_audit::{AuditLog, Settings, Target};
use berth_spec::{ByteSize, WorkerId};
use clap::Args;
use prometheus_client::registry::Registry;

use super::values;
use crate::failure::Failure;

/// File in the data folder.
const FILE: &str = "audit.log";

/// Smallest file: a few records of many resources.
const MIN_FILE_SIZE: ByteSize = ByteSize(64 << 10);

/// Settings of the audit log.
#[derive(Debug, Args)]
#[command(next_help_heading = "Audit log")]
pub(crate) struct AuditArgs {
    /// File for the audit log, JSON lines; - for standard output [default: audit.log in the data folder]
    #[arg(long, value_name = "FILE", env = "BERTH_AUDIT_LOG")]
    audit_log: Option<PathBuf>,
    /// Size at which a new file is begun
    #[arg(long, value_name = "SIZE", env = "BERTH_AUDIT_SIZE", default_value = "16MiB", value_parser = values::size)]
    audit_size: ByteSize,
    /// Earlier files to keep: FILE.1 is the latest
    #[arg(long, value_name = "N", env = "BERTH_AUDIT_KEEP", default_value = "10", value_parser = clap::value_parser!(u32).range(0..=1_000))]
    audit_keep: u32,
    /// Refuse changes while the audit log cannot be written
    #[arg(long, value_name = "BOOL", env = "BERTH_AUDIT_REQUIRED", default_value = "false", default_missing_value = "true",
          num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set, hide_default_value = true, hide_possible_values = true)]
    audit_required: bool,
}

/// Settings of the audit log, validated.
#[derive(Debug, Clone)]
pub(crate) struct AuditSettings(Settings);

impl AuditArgs {
    /// Checks them. `node` is this node's name, `data` its folder.
    pub(super) fn settings(self, node: &WorkerId, data: &Path) -> Result<AuditSettings, Failure> {
        if self.audit_size < MIN_FILE_SIZE {
            return Err(Failure::Usage(format!("--audit-size is {}: give at least {MIN_FILE_SIZE}", self.audit_size)));
        }
        let target = match self.audit_log {
            Some(path) if path.as_os_str() == "-" => Target::Stdout,
            Some(path) => Target::File(path),
            None => Target::File(data.join(FILE)),
        };
        Ok(AuditSettings(Settings {
            node: node.to_string(),
            target,
            size: self.audit_size.0,
            keep: self.audit_keep,
            required: self.audit_required,
        }))
    }
}

impl AuditSettings {
    /// Opens the log.
    pub(crate) fn open(&self, registry: &mut Registry) -> Result<AuditLog, Failure> {
        AuditLog::open(self.0.clone(), registry).map_err(|error| {
            Failure::Failed(format!("the audit log cannot be written: {error}; --audit-log names another file"))
        })
    }
}
