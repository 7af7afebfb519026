//! The tree of files that every package is made from: laid out as below a prefix such as `/usr`.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};

use super::{Packing, Release, sbom};
use crate::{run::run_quiet, workspace::Workspace};

/// One file of the tree.
pub(super) struct Item {
    /// Below the prefix: `bin/berth`.
    pub(super) path: String,
    pub(super) bytes: Vec<u8>,
    pub(super) executable: bool,
}

/// The files, sorted by path.
pub(super) struct Stage {
    pub(super) items: Vec<Item>,
    /// The binary and the engine as files, for those who look into them.
    pub(super) binary: PathBuf,
    pub(super) engine: PathBuf,
}

/// The place of the binary.
pub(super) const BINARY: &str = "bin/berth";
/// The place of the engine, where the binary looks: `../lib/berth` from its own folder.
pub(super) const ENGINE: &str = "lib/berth/libonnxruntime.so";

impl Stage {
    pub(super) fn new(workspace: &Workspace, release: &Release, binary: &Path, engine: &Path) -> Result<Self> {
        let mut stage = Self { items: Vec::new(), binary: binary.to_owned(), engine: engine.to_owned() };
        stage.add(BINARY, fs_err::read(binary)?, true);
        stage.add(ENGINE, fs_err::read(engine)?, false);
        let license = engine.with_file_name("LICENSE");
        for (path, from) in [
            ("share/doc/berth/LICENSE", workspace.path("LICENSE")),
            ("share/doc/berth/LICENSE.onnxruntime", license),
            ("share/doc/berth/README.md", workspace.path("README.md")),
            ("share/doc/berth/CHANGELOG.md", workspace.path("CHANGELOG.md")),
            ("share/doc/berth/berth.service", workspace.path("packaging/berth.service")),
        ] {
            stage.add(path, fs_err::read(from)?, false);
        }
        for page in fs_err::read_dir(workspace.path("docs/alerts"))? {
            let page = page?;
            let name = page.file_name().to_string_lossy().into_owned();
            stage.add(&format!("share/doc/berth/alerts/{name}"), fs_err::read(page.path())?, false);
        }
        stage.add("share/doc/berth/sbom.cdx.json", sbom::of(workspace, release, engine)?, false);
        stage.add("share/man/man1/berth.1", said_by(binary, &["man"])?, false);
        for (shell, path) in [
            ("bash", "share/bash-completion/completions/berth"),
            ("zsh", "share/zsh/site-functions/_berth"),
            ("fish", "share/fish/vendor_completions.d/berth.fish"),
        ] {
            stage.add(path, said_by(binary, &["completions", shell])?, false);
        }
        stage.items.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(stage)
    }

    fn add(&mut self, path: &str, bytes: Vec<u8>, executable: bool) {
        self.items.push(Item { path: path.to_owned(), bytes, executable });
    }

    /// A tar of items below `prefix`, with extra folders: no times, no owners, in the order given.
    pub(super) fn tar(prefix: &str, items: &[&Item]) -> Result<Vec<u8>> {
        let mut tar = tar::Builder::new(Vec::new());
        for item in items {
            let mut header = tar::Header::new_gnu();
            header.set_size(item.bytes.len() as u64);
            header.set_mode(if item.executable { 0o755 } else { 0o644 });
            header.set_mtime(0);
            header.set_uid(0);
            header.set_gid(0);
            tar.append_data(&mut header, format!("{prefix}{}", item.path), item.bytes.as_slice())?;
        }
        Ok(tar.into_inner()?)
    }
}

fn said_by(binary: &Path, arguments: &[&str]) -> Result<Vec<u8>> {
    let text = run_quiet(Command::new(binary).args(arguments).env("NO_COLOR", "1"))?;
    ensure!(!text.is_empty(), "berth {} says nothing", arguments.join(" "));
    Ok(text.into_bytes())
}

/// The same bytes in gzip, without a time in them.
pub(super) fn gzip(packing: Packing, bytes: Vec<u8>) -> Result<Vec<u8>> {
    let mut child = Command::new("gzip")
        .arg(format!("-n{}", packing.level()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut input = child.stdin.take().context("gzip reads")?;
    let feed = std::thread::spawn(move || std::io::Write::write_all(&mut input, &bytes));
    let mut packed = Vec::new();
    child.stdout.take().context("gzip writes")?.read_to_end(&mut packed)?;
    feed.join().ok().context("gzip was fed")??;
    ensure!(child.wait()?.success(), "gzip failed");
    Ok(packed)
}
