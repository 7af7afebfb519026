//! The archive, with the script that installs it.

use std::path::PathBuf;

use anyhow::Result;

use super::{
    Release, elf,
    stage::{Item, Stage, gzip},
};
use crate::workspace::Workspace;

pub(super) fn make(workspace: &Workspace, release: &Release, stage: &Stage) -> Result<PathBuf> {
    let name = format!("berth-{}-linux-{}", release.version, release.machine);
    let glibc = format!("2.{}", elf::glibc(&[&stage.binary, &stage.engine])?);
    let script = fs_err::read_to_string(workspace.path("packaging/install.sh"))?.replace("@GLIBC@", &glibc);
    let installer = Item { path: "install.sh".to_owned(), bytes: script.clone().into_bytes(), executable: true };
    let items: Vec<&Item> = stage.items.iter().chain([&installer]).collect();
    let file = release.out.join(format!("{name}.tar.gz"));
    fs_err::write(&file, gzip(release.packing, Stage::tar(&format!("{name}/"), &items)?)?)?;
    // Beside the archive as well: it fetches and checks the archive before anything of it is run.
    let beside = release.out.join("install.sh");
    fs_err::write(&beside, script)?;
    fs_err::set_permissions(&beside, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(file)
}
