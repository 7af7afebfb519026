//! The credentials of workers on their way from the registry and Vault to the controller: in memory only.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use berth_secrets::{
    CredentialStore, Keyring,
    vault::{self, VaultSecrets},
};
use berth_spec::{CredentialSet, Time, WorkerId};

/// Files and what Vault gives, together.
#[derive(Clone)]
pub(super) struct Safekeeping {
    held: Arc<Mutex<Held>>,
    keyring: Arc<Keyring>,
    vault: Option<vault::Handle>,
}

#[derive(Default)]
struct Held {
    safe: CredentialStore,
    /// The files that were taken last: path and text.
    files: Vec<(String, String)>,
    /// Counts what was taken out of it.
    taken: u64,
}

/// What workers are to be given, and what people may see of it.
#[derive(Debug)]
pub(super) struct Kept {
    /// Of two, the one with the higher number holds what the other does, or what has taken its place.
    pub(super) number: u64,
    /// The keeper of a key did not answer: [`Safekeeping::again`] may get further.
    pub(super) awaits_keys: bool,
    pub(super) sets: BTreeMap<WorkerId, Arc<CredentialSet>>,
    pub(super) status: crate::source::Secrets,
}

impl Safekeeping {
    pub(super) fn new(keyring: Arc<Keyring>, vault: Option<vault::Handle>) -> Self {
        Self { held: Arc::default(), keyring, vault }
    }

    /// All secret files of a commit. Blocks while keys are asked.
    pub(super) fn files(&self, files: Vec<(String, String)>, now: Time) -> Kept {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).files = files;
        self.again(now)
    }

    /// The same files once more. Blocks while keys are asked.
    pub(super) fn again(&self, now: Time) -> Kept {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let Held { safe, files, .. } = &mut *held;
        safe.from_files(files, &self.keyring, now);
        if let Some(vault) = &self.vault {
            vault.want(held.safe.declared().clone());
        }
        held.take()
    }

    /// All that Vault gave.
    pub(super) fn found(&self, found: &VaultSecrets, now: Time) -> Kept {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.safe.from_vault(found, now);
        held.take()
    }
}

impl Held {
    fn take(&mut self) -> Kept {
        self.taken += 1;
        let awaits_keys = self.safe.awaits_keys();
        Kept { number: self.taken, awaits_keys, sets: self.safe.sets(), status: self.safe.status() }
    }
}
