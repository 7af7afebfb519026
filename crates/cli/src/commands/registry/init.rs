//! `berth registry init`: a registry to begin with.

use std::path::{Path, PathBuf};

use berth_registry::{
    FOLDERS,
    schema::{MATRIX, NEWEST, SchemaKind, schema_text},
};
use clap::Args;
use fs_err as fs;

use crate::{failure::Failure, terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth registry init ./model-registry
  cd model-registry && git init -b main && git add . && git commit -m 'Begin the registry'

Existing files stay unchanged.")]
pub(crate) struct InitArgs {
    /// Folder to create
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Files that are not schemas.
const FILES: [(&str, &str); 8] = [
    ("README.md", include_str!("template/README.md")),
    ("registry.yaml", include_str!("template/registry.yaml")),
    ("models/staging/example.yaml.txt", include_str!("template/example.yaml.txt")),
    ("workers/worker-example.yaml.txt", include_str!("template/worker-example.yaml.txt")),
    (".github/workflows/validate.yaml", include_str!("template/github.yaml")),
    (".gitlab-ci.yml", include_str!("template/gitlab.yaml")),
    ("bitbucket-pipelines.yml", include_str!("template/bitbucket.yaml")),
    (".vscode/settings.json", include_str!("template/vscode.json")),
];

pub(super) fn run(args: &InitArgs) -> Result<(), Failure> {
    let root = &args.folder;
    let mut made = 0;
    for folder in FOLDERS.into_iter().chain(["transactions/history", "workers/secrets"]) {
        made += usize::from(write(root, &format!("{folder}/.gitkeep"), "")?);
    }
    for (file, text) in FILES {
        made += usize::from(write(root, file, text)?);
    }
    let schemas = [
        (SchemaKind::ModelCard, "model-card"),
        (SchemaKind::Deployment, "registry"),
        (SchemaKind::WorkerConfig, "worker-config"),
        (SchemaKind::Settings, "registry-settings"),
    ];
    for (kind, name) in schemas {
        let text = schema_text(kind, NEWEST).unwrap_or_default();
        made += usize::from(write(root, &format!("schema/{name}.schema.yaml"), text)?);
    }
    made += usize::from(write(root, "compatibility-matrix.yaml", MATRIX)?);
    let shown = root.display();
    Ok(terminal::print(&format!(
        "made {made} files in {shown}\n\n\
         next:\n  \
         cd {shown} && git init -b main && git add . && git commit -m 'Begin the registry'\n  \
         berth registry validate .\n  \
         berth registry hook install REPOSITORY.git      on the Git server: no bad push gets in\n"
    ))?)
}

/// Writes a file that is not there yet; whether it did.
fn write(root: &Path, file: &str, text: &str) -> Result<bool, Failure> {
    let path = root.join(file);
    if path.symlink_metadata().is_ok() {
        return Ok(false);
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(&path, text)?;
    Ok(true)
}
