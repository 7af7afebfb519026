//! Facts about binaries.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::run::run_quiet;

/// The minor version of glibc 2 that these files need: the highest that their symbols name.
pub(super) fn glibc(files: &[&Path]) -> Result<u32> {
    let named = run_quiet(Command::new("grep").args(["-haoE", r"GLIBC_2\.[0-9]+"]).args(files))?;
    let minor = |name: &str| name.trim_start_matches("GLIBC_2.").parse().ok();
    named.lines().filter_map(minor).max().context("the binary names no version of glibc")
}

/// The shared libraries that these files need on this machine, the loader included, by their paths.
pub(super) fn libraries(files: &[&Path]) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for file in files {
        let listed = run_quiet(Command::new("ldd").arg(file))?;
        let paths = listed.lines().filter_map(|line| {
            let path = line.split_once("=>").map_or(line, |(_, path)| path).split_whitespace().next()?;
            path.starts_with('/').then(|| PathBuf::from(path))
        });
        found.extend(paths);
    }
    Ok(found)
}
