//! The container image: an OCI archive of one layer, made without a container engine. Holds the binary, the engine, uv, the
//! libraries that they need and certificates of authorities; runs as a user of its own, with a read-only root.
//!
//! `podman load -i berth-V-oci.tar` or `skopeo copy oci-archive:berth-V-oci.tar …` takes it. Form: the OCI image format 1.1.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::json;

use super::{
    Release, elf, sha256,
    stage::{Item, Stage, gzip},
};
use crate::{python, workspace::Workspace};

/// The user and group that Berth runs as: what images of the field call `nonroot`.
const USER: u32 = 65_532;

/// Certificates of authorities on Debian and its kin.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

pub(super) fn make(workspace: &Workspace, release: &Release, stage: &Stage) -> Result<PathBuf> {
    let layer = layer(workspace, stage)?;
    let (diff, packed) = (sha256(&layer), gzip(release.packing, layer)?);
    let architecture = if release.machine == "aarch64" { "arm64" } else { "amd64" };
    let config = serde_json::to_vec(&json!({
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "Env": ["PATH=/usr/bin", "BERTH_DATA=/var/lib/berth", "HOME=/var/lib/berth"],
            "Entrypoint": ["/usr/bin/berth"],
            "Cmd": ["up"],
            "Volumes": {"/var/lib/berth": {}},
            "WorkingDir": "/var/lib/berth",
            "ExposedPorts": {"8080/tcp": {}, "8081/tcp": {}},
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "berth",
                "org.opencontainers.image.version": release.version,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{diff}")]},
        "history": [{"created_by": "cargo xtask dist image"}],
    }))?;
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &packed)],
    }))?;
    let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    entry["annotations"] = json!({"org.opencontainers.image.ref.name": format!("berth:{}", release.version)});
    let index = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry],
    }))?;
    let blob = |bytes: Vec<u8>| Item { path: format!("blobs/sha256/{}", sha256(&bytes)), bytes, executable: false };
    let plain = |path: &str, bytes: Vec<u8>| Item { path: path.to_owned(), bytes, executable: false };
    let items = [
        plain("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
        plain("index.json", index),
        blob(manifest),
        blob(config),
        blob(packed),
    ];
    let file = release.out.join(format!("berth-{}-oci.tar", release.version));
    fs_err::write(&file, Stage::tar("", &items.iter().collect::<Vec<_>>())?)?;
    Ok(file)
}

fn descriptor(kind: &str, bytes: &[u8]) -> serde_json::Value {
    json!({"mediaType": kind, "digest": format!("sha256:{}", sha256(bytes)), "size": bytes.len()})
}

/// The root of the file system, as a tar.
fn layer(workspace: &Workspace, stage: &Stage) -> Result<Vec<u8>> {
    let uv = python::uv(workspace)?;
    let mut tar = tar::Builder::new(Vec::new());
    for (path, mode, owner) in [
        ("etc/", 0o755, 0),
        ("usr/", 0o755, 0),
        ("usr/bin/", 0o755, 0),
        ("tmp/", 0o1777, 0),
        ("var/", 0o755, 0),
        ("var/lib/", 0o755, 0),
        ("var/lib/berth/", 0o700, USER),
    ] {
        let mut header = header(mode, owner, 0);
        header.set_entry_type(tar::EntryType::Directory);
        tar.append_data(&mut header, path, std::io::empty())?;
    }
    let mut put = |path: &str, bytes: &[u8], mode: u32| -> Result<()> {
        Ok(tar.append_data(&mut header(mode, 0, bytes.len()), path, bytes)?)
    };
    put("etc/passwd", format!("berth:x:{USER}:{USER}::/var/lib/berth:/nonexistent\n").as_bytes(), 0o644)?;
    put("etc/group", format!("berth:x:{USER}:\n").as_bytes(), 0o644)?;
    put("etc/nsswitch.conf", b"hosts: files dns\n", 0o644)?;
    let authorities =
        fs_err::read(AUTHORITIES).context("the image takes certificates of authorities from this machine")?;
    put(AUTHORITIES.trim_start_matches('/'), &authorities, 0o644)?;
    for item in &stage.items {
        put(&format!("usr/{}", item.path), &item.bytes, if item.executable { 0o755 } else { 0o644 })?;
    }
    put("usr/bin/uv", &fs_err::read(&uv)?, 0o755)?;
    for library in needed(stage, &uv)? {
        let path = library.to_string_lossy().trim_start_matches('/').to_owned();
        put(&path, &fs_err::read(&library)?, 0o755)?;
    }
    Ok(tar.into_inner()?)
}

/// The shared libraries, with those that glibc opens by name when a host name is resolved.
fn needed(stage: &Stage, uv: &Path) -> Result<Vec<PathBuf>> {
    let mut libraries = elf::libraries(&[&stage.binary, &stage.engine, uv])?;
    let libc = libraries.iter().find(|path| path.ends_with("libc.so.6")).context("berth uses glibc")?;
    let folder = libc.parent().context("a library lies in a folder")?.to_owned();
    let by_name = ["libnss_dns.so.2", "libnss_files.so.2", "libresolv.so.2"].map(|name| folder.join(name));
    libraries.extend(by_name.into_iter().filter(|path| path.exists()));
    Ok(libraries.into_iter().collect())
}

fn header(mode: u32, owner: u32, size: usize) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_uid(u64::from(owner));
    header.set_gid(u64::from(owner));
    header.set_size(size as u64);
    header.set_mtime(0);
    header
}
