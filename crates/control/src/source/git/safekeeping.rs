//! The credentials of workers on their way from the registry and Vault to the controller: in memory only.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use berth_secrets::{
    Keyring, Safe,
    vault::{self, Declared, Found},
};
use berth_spec::{CredentialSet, Time, WorkerId, manifest::node::Node};

/// Files and what Vault gives, together.
#[derive(Clone)]
pub(super) struct Safekeeping {
    safe: Arc<Mutex<Safe>>,
    keyring: Arc<Keyring>,
    vault: Option<vault::Handle>,
}

/// What workers are to be given, and what people may see of it.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) sets: BTreeMap<WorkerId, Arc<CredentialSet>>,
    pub(super) status: crate::source::Secrets,
}

impl Safekeeping {
    pub(super) fn new(keyring: Arc<Keyring>, vault: Option<vault::Handle>) -> Self {
        Self { safe: Arc::default(), keyring, vault }
    }

    /// All secret files of a commit. Blocks while keys are asked.
    pub(super) fn files(&self, files: &[(String, String)], now: Time) -> Kept {
        if let Some(vault) = &self.vault {
            vault.want(declared(files));
        }
        let mut safe = self.safe.lock().unwrap_or_else(PoisonError::into_inner);
        safe.from_files(files, &self.keyring, now);
        kept(&safe)
    }

    /// All that Vault gave.
    pub(super) fn found(&self, found: &Found, now: Time) -> Kept {
        let mut safe = self.safe.lock().unwrap_or_else(PoisonError::into_inner);
        safe.from_vault(found, now);
        kept(&safe)
    }
}

fn kept(safe: &Safe) -> Kept {
    Kept { sets: safe.sets(), status: safe.status() }
}

/// What files refer to Vault for, by worker. What is wrong with a file was found by validation.
fn declared(files: &[(String, String)]) -> BTreeMap<WorkerId, Declared> {
    let of = |(path, text): &(String, String)| {
        let root = Node::documents(text).ok()?.into_iter().next()?;
        let worker = WorkerId::new(root.get("worker_id")?.text()?).ok()?;
        let secrets = root.get("secrets")?;
        secrets.get("backend")?.text()?;
        Some((worker, Declared::parse(secrets, path, "secrets").ok()?))
    };
    files.iter().filter_map(of).collect()
}
