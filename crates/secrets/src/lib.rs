//! Credentials of workers: encrypted files in a registry, or Vault.
//!
//! ```text
//! workers/secrets/WORKER-secrets.yaml ─▶ document ─▶ open ◀── keys: file, PKCS#11, a plug-in   (the controller alone)
//!                                          │ check           │
//!                                          ▼                 ▼
//!                                       problems        per worker: Granted by name ─▶ Safe ─▶ CredentialSet, SecretStatus
//!                                                            ▲
//! secrets: {backend: vault, …}  ─▶ vault: brain ◀─▶ driver ◀─▶ HTTP
//! ```
//!
//! Everything here but [`vault::Task`] blocks, and does little: a file is read, a key is asked. Call it from a thread that may
//! block. What a worker is sent is [`berth_spec::CredentialSet`]; what people may see is [`SecretStatus`], which has no
//! value in it. Values are never logged, and no error quotes one.

mod problem;

mod data_key;
mod document;
mod encode;
mod envelope;
mod open;
mod seal;

pub mod keys;

mod credential_store;
mod status;

pub mod vault;

pub use self::{
    credential_store::CredentialStore,
    document::{Contents, Document, SecretEntry, Stored, WrappedKey, check},
    envelope::{DataId, InvalidEnvelope, KeyId, Sealed},
    open::{Keyring, OpenError},
    problem::Problem,
    seal::{Plain, PlainEntry, SealError, encrypt, plain_of, reseal, rewrap},
    status::{Backend, SecretStatus},
};
