//! The Debian package: the files below `/usr`, settings in `/etc/berth`, and a service that starts when somebody enables it.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail};

use super::{Release, elf, stage::Stage};
use crate::{run::run_quiet, workspace::Workspace};

pub(super) fn make(workspace: &Workspace, release: &Release, stage: &Stage) -> Result<PathBuf> {
    let architecture = match release.machine {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => bail!("Debian's name of {other} is not known here"),
    };
    let root = workspace.target("dist").join("deb");
    if root.exists() {
        fs_err::remove_dir_all(&root)?;
    }
    for item in &stage.items {
        put(&root.join("usr").join(&item.path), &item.bytes, item.executable)?;
    }
    let from = |name: &str| fs_err::read(workspace.path(&format!("packaging/{name}")));
    put(&root.join("usr/lib/systemd/system/berth.service"), &from("berth.service")?, false)?;
    put(&root.join("etc/berth/berth.yaml"), &from("berth.yaml")?, false)?;
    let size = stage.items.iter().map(|item| item.bytes.len()).sum::<usize>() / 1024;
    let glibc = elf::glibc(&[&stage.binary, &stage.engine])?;
    let control = format!(
        "Package: berth\nVersion: {}\nArchitecture: {architecture}\nMaintainer: The Berth authors <berth@example.org>\n\
         Installed-Size: {size}\nDepends: libc6 (>= 2.{glibc}), libgcc-s1, libstdc++6, adduser, ca-certificates\n\
         Recommends: git, python3\nSection: science\nPriority: optional\n\
         Description: server for many machine-learning models\n \
         Berth validates, places, loads, reloads, evicts and drains the models that you declare, and routes\n \
         each inference request to a replica. The ONNX engine is part of this package.\n",
        release.version
    );
    put(&root.join("DEBIAN/control"), control.as_bytes(), false)?;
    put(&root.join("DEBIAN/conffiles"), b"/etc/berth/berth.yaml\n", false)?;
    for script in ["postinst", "prerm", "postrm"] {
        put(&root.join("DEBIAN").join(script), &from(&format!("deb/{script}"))?, true)?;
    }
    let file = release.out.join(format!("berth_{}_{architecture}.deb", release.version));
    // Every dpkg reads gzip, and it is made in a tenth of the time of xz.
    let mut build = Command::new("dpkg-deb");
    build
        .env("SOURCE_DATE_EPOCH", "0")
        .args(["--build", "--root-owner-group", "-Zgzip"])
        .arg(format!("-z{}", release.packing.level()))
        .arg(&root)
        .arg(&file);
    run_quiet(&mut build).context("dpkg-deb, which every Debian has, makes the package")?;
    Ok(file)
}

fn put(path: &std::path::Path, bytes: &[u8], executable: bool) -> Result<()> {
    fs_err::create_dir_all(path.parent().context("a file lies in a folder")?)?;
    fs_err::write(path, bytes)?;
    let mode = if executable { 0o755 } else { 0o644 };
    fs_err::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))?;
    Ok(())
}
