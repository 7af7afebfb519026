//! Landlock: what the process may open, apart from what the file tree shows, and whom it may signal.
//!
//! It holds also where no file tree of its own can be made. There it must keep the process out of the hidden folders by
//! itself: a rule is for a whole tree, so a readable folder that contains a hidden one is given by its other children.

use std::{
    io,
    path::{Path, PathBuf},
};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, Ruleset, RulesetAttr,
    RulesetCreatedAttr, Scope, path_beneath_rules,
};

use crate::{
    root::{ACCOUNTS, DEVICES, GPU_DEVICES, GPU_READABLE, MEMORY_FILES, NAMES, SYSTEM},
    spec::{Mechanisms, Network, Sandbox},
};

/// The newest interface whose rights are asked for: older kernels hold what they know of it.
const NEWEST: ABI = ABI::V6;

/// Kernel interfaces that libraries read: processors, memory, the process itself.
const KERNEL: [&str; 2] = ["/proc", "/sys/devices/system"];

/// Restricts this process and all that it starts. Returns the version of the interface that is in effect.
pub(crate) fn restrict(sandbox: &Sandbox, mechanisms: Mechanisms) -> io::Result<u32> {
    build(sandbox, mechanisms).map_err(|error| io::Error::other(format!("Landlock: {error}")))
}

fn build(sandbox: &Sandbox, mechanisms: Mechanisms) -> Result<u32, landlock::RulesetError> {
    let mut rules =
        Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(AccessFs::from_all(NEWEST))?;
    if sandbox.network == Network::None && !mechanisms.network {
        // No rule allows anything: TCP is closed where there is no network namespace.
        rules = rules.handle_access(AccessNet::from_all(NEWEST))?;
    }
    rules = rules.scope(Scope::from_all(NEWEST))?;
    let hidden: &[PathBuf] = if mechanisms.files { &[] } else { &sandbox.hidden };
    let read = AccessFs::from_read(NEWEST);
    let all = AccessFs::from_all(NEWEST);
    let mut readable: Vec<PathBuf> = SYSTEM.iter().chain(&KERNEL).chain(&ACCOUNTS).map(PathBuf::from).collect();
    if sandbox.network == Network::Machine {
        readable.extend(NAMES.map(PathBuf::from));
    }
    readable.extend(if sandbox.gpus { GPU_READABLE.map(PathBuf::from).to_vec() } else { Vec::new() });
    let own: Vec<&PathBuf> = sandbox.readable.iter().collect();
    let readable: Vec<PathBuf> = readable.iter().flat_map(|path| without(path, hidden)).collect();
    let mut writable: Vec<PathBuf> = DEVICES.iter().chain(&MEMORY_FILES).map(PathBuf::from).collect();
    writable.push(sandbox.folder.clone());
    if sandbox.gpus {
        writable.extend(gpu_devices());
    }
    let created = rules
        .create()?
        .add_rules(path_beneath_rules(readable, read))?
        .add_rules(path_beneath_rules(own, read))?
        .add_rules(path_beneath_rules(writable, all))?;
    let status = created.restrict_self()?;
    Ok(match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => effective_abi as u32,
        _ => 0,
    })
}

/// Paths in `/dev` that begin like those of [`GPU_DEVICES`].
pub(crate) fn gpu_devices() -> impl Iterator<Item = PathBuf> {
    let entries = fs_err::read_dir("/dev").into_iter().flatten().flatten();
    entries
        .filter(|entry| {
            let name = entry.file_name();
            GPU_DEVICES.iter().any(|start| name.to_string_lossy().starts_with(start))
        })
        .map(|entry| entry.path())
}

/// `folder` if nothing in it is hidden, else the entries in it that are not, at any depth.
fn without(folder: &Path, hidden: &[PathBuf]) -> Vec<PathBuf> {
    if hidden.iter().any(|hidden| folder.starts_with(hidden)) {
        return Vec::new();
    }
    if !hidden.iter().any(|hidden| hidden.starts_with(folder)) {
        return vec![folder.to_owned()];
    }
    let entries = fs_err::read_dir(folder).into_iter().flatten().flatten();
    entries.flat_map(|entry| without(&entry.path(), hidden)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_folder_is_left_out_of_the_readable_one_around_it() {
        let root = tempfile::tempdir().expect("a folder");
        let at = |path: &str| root.path().join(path);
        for folder in ["a/data/models", "a/other", "b"] {
            fs_err::create_dir_all(at(folder)).expect("made");
        }
        let hidden = [at("a/data")];
        let mut found = without(root.path(), &hidden);
        found.sort();
        assert_eq!(found, [at("a/other"), at("b")]);
        assert_eq!(without(&at("b"), &hidden), [at("b")]);
        assert!(without(&at("a/data/models"), &hidden).is_empty());
    }
}
