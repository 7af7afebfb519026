//! A file of secrets, as it is written: what is encrypted stays so. Reading it needs no key.
//!
//! ```yaml
//! worker_id: worker-us-east-1a
//! secrets:
//!   s3_access:
//!     type: s3_credentials
//!     access_key_id: ENC[AES256,d1,…]
//!     secret_access_key: ENC[AES256,d1,…]
//!     region: us-east-1
//! keys:
//!   - data: d1
//!     id: 3f2a9c41d07b1234        # whose public key wrapped it
//!     created: 2026-11-22T00:30:00Z
//!     wrapped: BASE64             # RSA-OAEP, SHA-256
//! seal: ENC[AES256,d1,…]          # nobody without the data key can change anything above
//! ```

mod read;

use std::collections::BTreeMap;

use aws_lc_rs::digest::{self, SHA256};
use berth_spec::{
    WorkerId,
    credential::{FieldValue, Fields, Kind},
};

pub(crate) use self::read::{is_name, unknown};
use crate::{
    envelope::{DataId, KeyId, Sealed},
    problem::Problem,
    vault::Declared,
};

/// Largest file in bytes. Holds dozens of service accounts and bounds what a hostile commit costs.
pub(crate) const MAX_FILE: usize = 4 << 20;

/// Most secrets of one worker. Bounds the lookup by URL, and suffices for workers shared by many teams.
pub(crate) const MAX_SECRETS: usize = 256;

/// Most wrapped keys of a file. Each may cost one call to an HSM when the file is opened.
pub(crate) const MAX_KEYS: usize = 64;

/// A file of secrets, as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The comment at the top of the file, line by line.
    pub head: Vec<String>,
    /// Comments elsewhere: how many lines a rewritten file would lose.
    pub other_comments: usize,
    /// Worker that the secrets belong to.
    pub worker: WorkerId,
    /// The secrets in the order of the file.
    pub secrets: Vec<SecretEntry>,
    /// The data keys, each wrapped for one or several recipients.
    pub keys: Vec<WrappedKey>,
    /// Covers all of the above but `head` and `keys`.
    pub seal: Sealed,
}

/// One secret with its encrypted fields as they are in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretEntry {
    /// Name by which workers and people know the secret, unique in the file.
    pub name: String,
    /// Type of the secret.
    pub kind: Kind,
    /// Its fields in the order of the file, without `type`.
    pub fields: Vec<(String, Stored)>,
}

/// A field, as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    /// Encrypted value.
    Sealed(Sealed),
    /// In the clear: for everybody to see.
    Plain(String),
    /// A list, in the clear, such as `hosts`.
    List(Vec<String>),
}

/// A data key, wrapped for one recipient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrappedKey {
    /// Data key that is wrapped.
    pub data: DataId,
    /// Recipient's key.
    pub id: KeyId,
    /// Creation time: RFC 3339, UTC.
    pub created: String,
    /// The data key under the recipient's public key: RSA-OAEP with SHA-256.
    pub wrapped: Vec<u8>,
}

/// All that is wrong with a file of secrets, as far as one can see without a private key: its form, fields, and
/// above all secrets that are not encrypted. Also knows the form of a file that refers to Vault.
#[must_use]
pub fn check(text: &str, file: &str) -> Vec<Problem> {
    read::contents(text, file).err().unwrap_or_default()
}

/// Content of a file of secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Contents {
    /// Secrets encrypted in the file.
    Encrypted(Document),
    /// References to secrets in Vault.
    Vault(WorkerId, Declared),
}

impl Contents {
    /// Reads a file.
    ///
    /// # Errors
    /// As [`check`].
    pub fn parse(text: &str, file: &str) -> Result<Self, Vec<Problem>> {
        read::contents(text, file)
    }
}

impl Document {
    /// Reads a file of encrypted secrets.
    ///
    /// # Errors
    /// As [`check`]; also where the file refers to Vault and so has nothing encrypted.
    pub fn parse(text: &str, file: &str) -> Result<Self, Vec<Problem>> {
        read::document(text, file)
    }

    /// The data keys that something in the file is encrypted with, and the seal's.
    #[must_use]
    pub fn used(&self) -> Vec<DataId> {
        let mut used: Vec<DataId> =
            self.secrets.iter().flat_map(SecretEntry::sealed).map(|sealed| sealed.data).collect();
        used.push(self.seal.data);
        used.sort_unstable();
        used.dedup();
        used
    }

    /// Everything that the seal covers, as bytes: the worker and all fields.
    pub(crate) fn sealed_text(&self) -> Vec<u8> {
        let mut text = Canonical::new("berth secrets file 1");
        text.part(self.worker.as_str());
        let by_name: BTreeMap<&str, &SecretEntry> =
            self.secrets.iter().map(|entry| (entry.name.as_str(), entry)).collect();
        text.count(by_name.len());
        for (name, entry) in by_name {
            text.part(name);
            text.part(entry.kind.as_str());
            let fields: BTreeMap<&str, &Stored> =
                entry.fields.iter().map(|(name, field)| (name.as_str(), field)).collect();
            text.count(fields.len());
            for (name, stored) in fields {
                text.part(name);
                text.stored(stored);
            }
        }
        text.0
    }
}

impl SecretEntry {
    /// Encrypted fields of the secret.
    pub fn sealed(&self) -> impl Iterator<Item = &Sealed> {
        self.fields.iter().filter_map(|(_, field)| match field {
            Stored::Sealed(sealed) => Some(sealed),
            _ => None,
        })
    }

    /// Associated data of an encrypted field: the worker, the secret, the field, and the hosts that may receive it.
    /// Prevents decryption under another name or with another `registry_url`.
    pub(crate) fn bound_to(&self, worker: &WorkerId, field: &str) -> Vec<u8> {
        let mut text = Canonical::new("berth secret 1");
        text.part(worker.as_str());
        text.part(&self.name);
        text.part(self.kind.as_str());
        text.part(field);
        let plain: BTreeMap<&str, &Stored> = self
            .fields
            .iter()
            .filter(|(_, field)| !matches!(field, Stored::Sealed(_)))
            .map(|(name, field)| (name.as_str(), field))
            .collect();
        let mut beside = Canonical(Vec::new());
        beside.count(plain.len());
        for (name, stored) in plain {
            beside.part(name);
            beside.stored(stored);
        }
        text.bytes(digest::digest(&SHA256, &beside.0).as_ref());
        text.0
    }

    /// The fields in the clear; `opened` gives what the encrypted ones hold.
    pub(crate) fn fields<E>(
        &self,
        mut opened: impl FnMut(&str, &Sealed) -> Result<berth_spec::Secret, E>,
    ) -> Result<Fields, E> {
        self.fields
            .iter()
            .map(|(name, stored)| {
                let value = match stored {
                    Stored::Sealed(sealed) => FieldValue::Text(opened(name, sealed)?),
                    Stored::Plain(text) => FieldValue::Text(berth_spec::Secret::new(text.as_str())),
                    Stored::List(items) => FieldValue::List(items.clone()),
                };
                Ok((name.clone(), value))
            })
            .collect()
    }
}

/// Parts with their lengths before them: no two different things have the same bytes.
struct Canonical(Vec<u8>);

impl Canonical {
    fn new(what: &str) -> Self {
        let mut text = Self(Vec::new());
        text.part(what);
        text
    }

    fn count(&mut self, count: usize) {
        self.0.extend((count as u64).to_be_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.extend(bytes);
    }

    fn part(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn stored(&mut self, stored: &Stored) {
        match stored {
            Stored::Sealed(sealed) => {
                self.part("sealed");
                self.part(&sealed.data.to_string());
                self.bytes(&sealed.bytes);
            }
            Stored::Plain(text) => {
                self.part("plain");
                self.part(text);
            }
            Stored::List(items) => {
                self.part("list");
                self.count(items.len());
                items.iter().for_each(|item| self.part(item));
            }
        }
    }
}
