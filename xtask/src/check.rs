//! `cargo xtask check`: format, lints and tests of the crates at hand, in the minutes between two edits.

use std::{collections::BTreeSet, path::Path, process::Command};

use anyhow::{Result, bail};
use clap::Args;
use serde_json::Value;

use crate::{
    process::run_within,
    run::{run_quiet, step},
    test::{LIMIT, cargo},
    workspace::Workspace,
};

/// Crates to check.
#[derive(Args)]
pub(crate) struct Options {
    /// Check this crate, by its folder below crates/ or its full name; may be repeated. Without it, the crates that have
    /// changed since main are checked.
    #[arg(short, long = "package", value_name = "CRATE")]
    packages: Vec<String>,
    /// Arguments for cargo test, such as the name of a test.
    #[arg(last = true)]
    rest: Vec<String>,
}

/// A crate of the workspace.
struct Package {
    name: String,
    /// Its folder, relative to the root.
    folder: String,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let all = packages(workspace)?;
    let chosen = if options.packages.is_empty() {
        changed(&all, &changed_files(workspace)?)
    } else {
        options.packages.iter().map(|name| named(&all, name)).collect::<Result<_>>()?
    };
    step("format");
    execute(cargo(workspace).args(["fmt", "--all", "--check"]))?;
    if chosen.is_empty() {
        step("no crate has changed since main");
        return Ok(());
    }
    let names: Vec<&str> = chosen.iter().flat_map(|name| ["--package", name]).collect();
    let shown: Vec<&str> = chosen.iter().copied().collect();
    step(&format!("lints of {}", shown.join(", ")));
    execute(cargo(workspace).args(["clippy", "--quiet", "--all-targets"]).args(&names).args(["--", "-D", "warnings"]))?;
    step("tests");
    let mut tests = cargo(workspace);
    let engine = workspace.cache("onnxruntime/libonnxruntime.so");
    if engine.exists() {
        tests.env("ORT_DYLIB_PATH", engine);
    }
    execute(tests.args(["test", "--quiet"]).args(&names).args(&options.rest))
}

fn execute(command: &mut Command) -> Result<()> {
    run_within(LIMIT, command).1
}

fn packages(workspace: &Workspace) -> Result<Vec<Package>> {
    let about = run_quiet(cargo(workspace).args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let about: Value = serde_json::from_str(&about)?;
    let package = |package: &Value| {
        let folder = Path::new(package["manifest_path"].as_str()?).parent()?.strip_prefix(workspace.root()).ok()?;
        Some(Package { name: package["name"].as_str()?.to_owned(), folder: folder.to_str()?.to_owned() })
    };
    Ok(about["packages"].as_array().into_iter().flatten().filter_map(package).collect())
}

fn named<'a>(all: &'a [Package], name: &str) -> Result<&'a str> {
    let fits = |package: &&Package| package.name == name || package.folder.rsplit('/').next() == Some(name);
    match all.iter().find(fits) {
        Some(package) => Ok(&package.name),
        None => bail!(
            "there is no crate {name}; there are {}",
            all.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ")
        ),
    }
}

/// Files that differ from where this branch left main, committed or not.
fn changed_files(workspace: &Workspace) -> Result<Vec<String>> {
    let git = |arguments: &[&str]| run_quiet(Command::new("git").arg("-C").arg(workspace.root()).args(arguments));
    let base = git(&["merge-base", "HEAD", "main"]).or_else(|_| git(&["merge-base", "HEAD", "origin/main"]));
    let Ok(base) = base else { bail!("git knows no branch main to compare with: name crates with --package") };
    let listed = git(&["diff", "--name-only", base.trim()])? + &git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok(listed.lines().map(str::to_owned).collect())
}

fn changed<'a>(all: &'a [Package], files: &[String]) -> BTreeSet<&'a str> {
    let has = |package: &&Package| files.iter().any(|file| Path::new(file).starts_with(&package.folder));
    all.iter().filter(has).map(|package| package.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace() -> Vec<Package> {
        let package = |name: &str, folder: &str| Package { name: name.into(), folder: folder.into() };
        vec![
            package("berth-plan", "crates/plan"),
            package("berth-planner", "crates/planner"),
            package("xtask", "xtask"),
        ]
    }

    #[test]
    fn a_changed_file_names_its_crate() {
        let files = ["crates/plan/src/lib.rs".to_owned(), "docs/plan.md".to_owned()];
        assert_eq!(changed(&workspace(), &files), BTreeSet::from(["berth-plan"]));
    }

    #[test]
    fn crates_are_named_by_folder_or_in_full() {
        let all = workspace();
        assert_eq!(named(&all, "plan").expect("by folder"), "berth-plan");
        assert_eq!(named(&all, "berth-plan").expect("in full"), "berth-plan");
        let error = named(&all, "plans").expect_err("nothing").to_string();
        assert!(error.contains("there are berth-plan, berth-planner, xtask"), "{error}");
    }
}
