//! The bill of materials: CycloneDX 1.6, from the lock file's crates that are in the binary, and the engine.

use std::{collections::BTreeSet, path::Path, process::Command};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{Release, sha256};
use crate::{run::run_quiet, workspace::Workspace};

pub(super) fn of(workspace: &Workspace, release: &Release, engine: &Path) -> Result<Vec<u8>> {
    let triple = format!("{}-unknown-linux-gnu", release.machine);
    let text = run_quiet(
        Command::new("cargo")
            .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", &triple])
            .current_dir(workspace.root()),
    )?;
    let metadata: Value = serde_json::from_str(&text)?;
    let used = used(&metadata).context("cargo metadata names what berth-cli uses")?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists packages")?;
    let mut components: Vec<Value> = packages.iter().filter(|package| is_in(&used, package)).map(component).collect();
    components.push(json!({
        "type": "library",
        "name": "onnxruntime",
        "purl": "pkg:github/microsoft/onnxruntime",
        "hashes": [{"alg": "SHA-256", "content": sha256(&fs_err::read(engine)?)}],
        "licenses": [{"expression": "MIT"}],
    }));
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "berth", "version": release.version}},
        "components": components,
    });
    Ok(serde_json::to_vec_pretty(&bill)?)
}

/// The ids of the packages that the binary is made of: normal dependencies, from `berth-cli` on.
fn used(metadata: &Value) -> Option<BTreeSet<String>> {
    let nodes = metadata["resolve"]["nodes"].as_array()?;
    let of_id = |id: &str| nodes.iter().find(|node| node["id"] == id);
    let packages = metadata["packages"].as_array()?;
    let start = packages.iter().find(|package| package["name"] == "berth-cli")?["id"].as_str()?;
    let (mut found, mut open) = (BTreeSet::new(), vec![start.to_owned()]);
    while let Some(id) = open.pop() {
        let Some(node) = of_id(&id).filter(|_| found.insert(id.clone())) else { continue };
        for dependency in node["deps"].as_array()? {
            let normal = dependency["dep_kinds"].as_array()?.iter().any(|kind| kind["kind"].is_null());
            if let Some(id) = dependency["pkg"].as_str().filter(|_| normal) {
                open.push(id.to_owned());
            }
        }
    }
    Some(found)
}

fn is_in(used: &BTreeSet<String>, package: &Value) -> bool {
    package["id"].as_str().is_some_and(|id| used.contains(id))
}

fn component(package: &Value) -> Value {
    let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
    let (name, version) = (text("name"), text("version"));
    json!({
        "type": "library",
        "name": name,
        "version": version,
        "purl": format!("pkg:cargo/{name}@{version}"),
        "licenses": [{"expression": text("license").replace('/', " OR ")}],
    })
}
