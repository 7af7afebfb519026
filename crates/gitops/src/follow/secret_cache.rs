//! The credentials of workers, from the registry's files and Vault: in memory only.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use berth_control::source::WorkerSecret;
use berth_secrets::{
    CredentialStore, Keyring, SecretStatus,
    vault::{self, VaultSecrets},
};
use berth_spec::{CredentialSet, Time, WorkerId};

/// Opens the files of a registry, and joins what Vault gives.
#[derive(Clone)]
pub(crate) struct SecretCache {
    held: Arc<Mutex<CacheState>>,
    keyring: Arc<Keyring>,
    vault: Option<vault::Handle>,
}

#[derive(Default)]
struct CacheState {
    safe: CredentialStore,
    /// The files that were taken last: path and text.
    files: Vec<(String, String)>,
    /// Counts what was taken out of it.
    taken: u64,
}

/// The credentials of workers, and what people may see of them.
#[derive(Debug)]
pub(crate) struct OpenedSecrets {
    /// Of two, the one with the higher number holds what the other does, or what has taken its place.
    pub(crate) number: u64,
    /// A key service did not answer: [`SecretCache::again`] may get further.
    pub(crate) awaits_keys: bool,
    pub(crate) sets: BTreeMap<WorkerId, Arc<CredentialSet>>,
    pub(crate) secrets: Vec<WorkerSecret>,
}

impl SecretCache {
    pub(crate) fn new(keyring: Arc<Keyring>, vault: Option<vault::Handle>) -> Self {
        Self { held: Arc::default(), keyring, vault }
    }

    /// Opens all secret files of a commit. Blocks while key services are asked.
    pub(crate) fn files(&self, files: Vec<(String, String)>, now: Time) -> OpenedSecrets {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).files = files;
        self.again(now)
    }

    /// Opens the same files once more. Blocks while key services are asked.
    pub(crate) fn again(&self, now: Time) -> OpenedSecrets {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let CacheState { safe, files, .. } = &mut *held;
        safe.from_files(files, &self.keyring, now);
        if let Some(vault) = &self.vault {
            vault.want(held.safe.declared().clone());
        }
        held.take()
    }

    /// Joins all that Vault gave.
    pub(crate) fn found(&self, found: &VaultSecrets, now: Time) -> OpenedSecrets {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.safe.from_vault(found, now);
        held.take()
    }
}

impl CacheState {
    fn take(&mut self) -> OpenedSecrets {
        self.taken += 1;
        let awaits_keys = self.safe.awaits_keys();
        OpenedSecrets {
            number: self.taken,
            awaits_keys,
            sets: self.safe.sets(),
            secrets: self.safe.status().into_iter().map(shown).collect(),
        }
    }
}

/// The status of a secret as every source shows it.
fn shown(secret: SecretStatus) -> WorkerSecret {
    WorkerSecret {
        kind: secret.kind.map(|kind| kind.to_string()).unwrap_or_default(),
        backend: secret.backend.to_string(),
        worker: secret.worker,
        name: secret.name,
        held_by: secret.held_by,
        generation: secret.generation,
        renewed: secret.renewed,
        expires: secret.expires,
        problem: secret.problem,
    }
}
