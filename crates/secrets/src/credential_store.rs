//! Credentials of all workers in the controller: one numbered set per worker, and a status without values.
//!
//! ```text
//! files (whole)  ──▶ from_files ─┐
//!                                ├─▶ set(worker): newest, complete; status()
//! Vault (whole)  ──▶ from_vault ─┘
//! ```
//!
//! A file that cannot be decrypted leaves the worker with what it had: a bad commit must not take credentials away.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_spec::{Class, CredentialSet, Generation, Time, WorkerId, credential::Granted};

use crate::{
    document::{Contents, Document},
    open::Keyring,
    status::{Backend, SecretStatus},
    vault::{Declared, SecretRequest, VaultSecrets},
};

/// The credentials of all workers.
#[derive(Debug, Default)]
pub struct CredentialStore {
    workers: BTreeMap<WorkerId, WorkerSecrets>,
    /// Secrets that the files expect from Vault.
    declared: BTreeMap<WorkerId, Declared>,
    /// The keeper of a key did not answer.
    awaits_keys: bool,
}

/// The credentials of one worker: those of its file, those of Vault, and its numbered set.
#[derive(Debug, Default)]
struct WorkerSecrets {
    set: Arc<CredentialSet>,
    files: BTreeMap<String, Granted>,
    vault: BTreeMap<String, Granted>,
    file_status: Vec<SecretStatus>,
    vault_status: Vec<SecretStatus>,
    /// Declared at Vault: told until Vault says more.
    declared: Vec<SecretStatus>,
}

impl CredentialStore {
    /// Replaces all files of secrets: `(path, text)`. Blocks while keys are in use. Returns the workers whose set
    /// changed.
    pub fn from_files(&mut self, files: &[(String, String)], keyring: &Keyring, now: Time) -> Vec<WorkerId> {
        let mut seen = BTreeSet::new();
        let declared_before = std::mem::take(&mut self.declared);
        self.awaits_keys = false;
        self.workers.values_mut().for_each(|held| held.declared.clear());
        for (path, text) in files {
            // Of a file that cannot be read its name says whose it is.
            let (worker, document) = match Contents::parse(text, path) {
                Ok(Contents::Encrypted(document)) => (Some(document.worker.clone()), Ok(document)),
                Ok(Contents::Vault(worker, declared)) => {
                    let stated = declared.wants.iter().map(|(name, want)| awaited(&worker, name, want));
                    self.workers.entry(worker.clone()).or_default().declared = stated.collect();
                    self.declared.insert(worker, declared);
                    continue;
                }
                Err(problems) => {
                    (named(path), Err(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))
                }
            };
            let Some(worker) = worker else { continue };
            seen.insert(worker.clone());
            if let (Err(_), Some(before)) = (&document, declared_before.get(&worker)) {
                // Nor is what Vault gave taken away for it.
                self.declared.insert(worker.clone(), before.clone());
            }
            let held = self.workers.entry(worker.clone()).or_default();
            match document {
                Err(problem) => held.refused(&worker, None, &problem),
                Ok(document) => match keyring.open(&document) {
                    Err(error) => {
                        self.awaits_keys |= matches!(error.class(), Class::Waiting { .. });
                        held.refused(&worker, Some(&document), &error.to_string());
                    }
                    Ok(secrets) => {
                        let stated =
                            secrets.iter().map(|(name, granted)| stated(&worker, name, granted, &document, now));
                        held.file_status = stated.collect();
                        held.files = secrets;
                    }
                },
            }
        }
        for (worker, held) in &mut self.workers {
            if !seen.contains(worker) {
                held.files.clear();
                held.file_status.clear();
            }
        }
        self.renumber(now)
    }

    /// Replaces all secrets from Vault. Returns the workers whose set changed.
    pub fn from_vault(&mut self, found: &VaultSecrets, now: Time) -> Vec<WorkerId> {
        for held in self.workers.values_mut() {
            held.vault.clear();
            held.vault_status.clear();
        }
        for (worker, secrets) in &found.secrets {
            self.workers.entry(worker.clone()).or_default().vault.clone_from(secrets);
        }
        for status in &found.status {
            self.workers.entry(status.worker.clone()).or_default().vault_status.push(status.clone());
        }
        self.renumber(now)
    }

    /// True if a file could not be opened because a key service (HSM or KMS) did not answer. The same files should be
    /// tried again soon.
    #[must_use]
    pub const fn awaits_keys(&self) -> bool {
        self.awaits_keys
    }

    /// Secrets that the files expect from Vault, by worker.
    #[must_use]
    pub fn declared(&self) -> &BTreeMap<WorkerId, Declared> {
        &self.declared
    }

    /// A worker's set; the empty one, numbered 0, if there is none.
    #[must_use]
    pub fn set(&self, worker: &WorkerId) -> Arc<CredentialSet> {
        self.workers.get(worker).map(|held| Arc::clone(&held.set)).unwrap_or_default()
    }

    /// The sets of all workers that have or had one: who lost everything has an empty set with a higher number.
    #[must_use]
    pub fn sets(&self) -> BTreeMap<WorkerId, Arc<CredentialSet>> {
        self.workers.iter().map(|(worker, held)| (worker.clone(), Arc::clone(&held.set))).collect()
    }

    /// Status of all secrets, by worker and name.
    #[must_use]
    pub fn status(&self) -> Vec<SecretStatus> {
        let all = self.workers.values().flat_map(|held| {
            let told = |name: &str| held.vault_status.iter().any(|status| status.name == name);
            let awaited = held.declared.iter().filter(move |status| !told(&status.name));
            held.file_status.iter().chain(&held.vault_status).chain(awaited).cloned().map(|mut status| {
                if held.set.secrets.contains_key(&status.name) {
                    status.generation = held.set.generation;
                }
                status
            })
        });
        let mut all: Vec<SecretStatus> = all.collect();
        all.sort_by(|one, other| (&one.worker, &one.name).cmp(&(&other.worker, &other.name)));
        all
    }

    /// Gives changed sets new numbers, and forgets workers that have nothing any more and never had.
    fn renumber(&mut self, now: Time) -> Vec<WorkerId> {
        let mut changed = Vec::new();
        for (worker, held) in &mut self.workers {
            // Of two of one name the file's counts: it was committed for this very worker.
            let mut secrets = held.vault.clone();
            secrets.extend(held.files.clone());
            if secrets != held.set.secrets {
                // The clock's milliseconds: greater than what the controller before this one gave, and than our last.
                let generation = Generation(now.as_millis().max(held.set.generation.0 + 1));
                held.set = Arc::new(CredentialSet { generation, secrets });
                changed.push(worker.clone());
            }
        }
        self.workers.retain(|_, held| {
            let told = [&held.file_status, &held.vault_status, &held.declared].iter().any(|told| !told.is_empty());
            held.set.generation != Generation(0) || told
        });
        changed
    }
}

impl WorkerSecrets {
    /// Keeps what there is, and says why nothing newer came.
    fn refused(&mut self, worker: &WorkerId, document: Option<&Document>, problem: &str) {
        let known: BTreeMap<String, SecretStatus> =
            self.file_status.drain(..).map(|status| (status.name.clone(), status)).collect();
        let mut names: BTreeSet<String> = self.files.keys().cloned().collect();
        names.extend(document.into_iter().flat_map(|document| &document.secrets).map(|entry| entry.name.clone()));
        if names.is_empty() {
            names.insert("-".to_owned());
        }
        let stated = names.into_iter().map(|name| SecretStatus {
            problem: Some(problem.to_owned()),
            ..known.get(&name).cloned().unwrap_or_else(|| SecretStatus {
                worker: worker.clone(),
                kind: document
                    .and_then(|document| document.secrets.iter().find(|entry| entry.name == name))
                    .map(|entry| entry.kind),
                name,
                backend: Backend::File,
                held_by: document.map(recipients).unwrap_or_default(),
                generation: Generation(0),
                renewed: None,
                expires: None,
                problem: None,
            })
        });
        self.file_status = stated.collect();
    }
}

fn stated(worker: &WorkerId, name: &str, granted: &Granted, document: &Document, now: Time) -> SecretStatus {
    SecretStatus {
        worker: worker.clone(),
        name: name.to_owned(),
        kind: Some(granted.credential.kind()),
        backend: Backend::File,
        held_by: recipients(document),
        generation: Generation(0),
        renewed: Some(now),
        expires: None,
        problem: None,
    }
}

/// Status of a secret in Vault before Vault has answered.
fn awaited(worker: &WorkerId, name: &str, want: &SecretRequest) -> SecretStatus {
    SecretStatus {
        worker: worker.clone(),
        name: name.to_owned(),
        kind: Some(want.kind),
        backend: Backend::Vault,
        held_by: want.path.clone(),
        generation: Generation(0),
        renewed: None,
        expires: None,
        problem: Some("nothing has come from Vault yet: does this controller have a Vault?".to_owned()),
    }
}

/// For whom a file is wrapped.
fn recipients(document: &Document) -> String {
    let ids: BTreeSet<&str> = document.keys.iter().map(|key| key.id.as_str()).collect();
    ids.into_iter().collect::<Vec<_>>().join(",")
}

/// The worker whose name is in the path `workers/secrets/WORKER-secrets.yaml`; `None`: another path.
fn named(path: &str) -> Option<WorkerId> {
    let stem = std::path::Path::new(path).file_stem()?.to_str()?;
    WorkerId::new(stem.strip_suffix("-secrets")?).ok()
}
