//! `cargo xtask dist`: everything that is shipped, made from one tree of files.
//!
//! ```text
//! cargo build ──▶ stage/ ──▶ berth-V-linux-M.tar.gz   archive, with install.sh
//!                   │    ├──▶ berth-V-py3-none-….whl   `pip install`
//!                   │    ├──▶ berth_V_A.deb            Debian package with a service
//!                   │    └──▶ berth-V-oci.tar          container image
//!                   └ bin/berth, lib/berth/libonnxruntime.so, share/…
//! ```
//! The same input gives the same bytes: archives have no times, no owners and an order of their own.

mod archive;
mod deb;
mod elf;
mod image;
mod sbom;
mod stage;
mod wheel;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};

use self::stage::Stage;
use crate::{
    pgo::{self, Profile},
    run::{run, run_quiet, step},
    setup,
    test::build,
    toolchain::Toolchain,
    workspace::Workspace,
};

/// Packages to make, and their folder.
#[derive(Args, Default)]
pub(crate) struct Options {
    /// Packages [default: all]
    #[arg(value_enum)]
    packages: Vec<Package>,
    /// Folder for the results [default: target/dist].
    #[arg(long)]
    out: Option<PathBuf>,
    /// Package the binary of the test profile, which is there already: to test the packages, not to ship them.
    #[arg(long)]
    debug: bool,
    /// Build without the recorded profile of `cargo xtask pgo`: the binary is slower.
    #[arg(long)]
    without_profile: bool,
    /// The binary is built already.
    #[arg(skip)]
    built: bool,
}

impl Options {
    /// Every package, of the binary that the tests have built.
    pub(crate) fn for_tests(out: PathBuf) -> Self {
        Self { out: Some(out), debug: true, built: true, ..Self::default() }
    }
}

/// One form of the same files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Package {
    /// The stripped binary, and its symbols beside it
    Binary,
    /// A .tar.gz with install.sh
    Archive,
    /// A Python wheel
    Wheel,
    /// A Debian package
    Deb,
    /// A container image, as an OCI archive
    Image,
}

/// The facts about this build that all packages name.
pub(crate) struct Release {
    pub(crate) version: &'static str,
    /// As `uname -m` says it: `x86_64`.
    pub(crate) machine: &'static str,
    pub(crate) out: PathBuf,
    pub(crate) packing: Packing,
}

/// The effort of compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    /// For what is shipped: as the tools do it by default.
    Small,
    /// For tests: a third of the time, a seventh more bytes.
    Fast,
}

impl Packing {
    /// The level of deflate.
    pub(crate) fn level(self) -> u8 {
        match self {
            Self::Small => 6,
            Self::Fast => 1,
        }
    }
}

pub(crate) fn make(workspace: &Workspace, options: &Options) -> Result<()> {
    let out = options.out.clone().unwrap_or_else(|| workspace.target("dist"));
    fs_err::create_dir_all(&out)?;
    let packing = if options.debug { Packing::Fast } else { Packing::Small };
    let release = Release { version: env!("CARGO_PKG_VERSION"), machine: std::env::consts::ARCH, out, packing };
    let binary = binary(workspace, options, &release)?;
    let wants = |package| options.packages.is_empty() || options.packages.contains(&package);
    let mut made = Vec::new();
    if options.packages.iter().any(|package| *package != Package::Binary) || options.packages.is_empty() {
        step("packing");
        let engine = setup::engine_and_models(workspace)?.engine;
        let stage = Stage::new(workspace, &release, &binary, &engine)?;
        if wants(Package::Archive) {
            made.push(archive::make(workspace, &release, &stage)?);
        }
        if wants(Package::Wheel) {
            made.push(wheel::make(workspace, &release, &stage)?);
        }
        if wants(Package::Deb) {
            made.push(deb::make(workspace, &release, &stage)?);
        }
        if wants(Package::Image) {
            made.push(image::make(workspace, &release, &stage)?);
        }
    }
    for file in &made {
        checksum(file)?;
    }
    made.push(binary);
    for file in &made {
        println!("{} {:.1} MB", file.display(), fs_err::metadata(file)?.len() as f64 / 1e6);
    }
    Ok(())
}

/// The stripped binary, with its symbols in a file beside it.
fn binary(workspace: &Workspace, options: &Options, release: &Release) -> Result<PathBuf> {
    let built = workspace.target(if options.debug { "debug" } else { "release-lto" }).join("berth");
    if options.built {
        // Nothing to do.
    } else if options.debug {
        step("building with the profile of the tests");
        run(build(workspace).arg("--locked"))?;
    } else {
        let profile = if options.without_profile { None } else { Some(Profile::installed(workspace)?) };
        step("building for release");
        run(pgo::release_build(workspace, profile.as_ref())?.args(pgo::SHIPPED).args(["--bin", "berth"]))?;
        if let Some(profile) = profile {
            profile.check(&built)?;
        }
    }
    let (symbols, stripped) = (release.out.join("berth.debug"), release.out.join("berth"));
    let objcopy = Toolchain::installed(workspace)?.tools.join("rust-objcopy");
    run_quiet(std::process::Command::new(&objcopy).arg("--only-keep-debug").args([&built, &symbols]))?;
    // Debuggers, perf and backtraces of Rust find the symbols by the link, in the folder of the binary.
    let link = format!("--add-gnu-debuglink={}", symbols.display());
    run_quiet(std::process::Command::new(&objcopy).args(["--strip-all", &link]).args([&built, &stripped]))?;
    Ok(stripped)
}

/// Writes `FILE.sha256`, in the form that `sha256sum --check` reads.
fn checksum(file: &Path) -> Result<()> {
    let name = file.file_name().context("a package is a file")?.to_string_lossy().into_owned();
    let digest = sha256(&fs_err::read(file)?);
    fs_err::write(format!("{}.sha256", file.display()), format!("{digest}  {name}\n"))?;
    Ok(())
}

/// The SHA-256 of some bytes, in hex digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    use sha2::{Digest as _, Sha256};
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
