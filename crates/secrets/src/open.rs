//! Decrypts files with the available private keys.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use aws_lc_rs::digest::{SHA256, digest};
use berth_spec::{
    Class, Secret,
    credential::{Credential, Granted},
};
use zeroize::Zeroizing;

use crate::{
    data_key::DataKey,
    document::{Document, SecretEntry, WrappedKey},
    envelope::{DataId, KeyId, Sealed},
    keys::{Decrypt, KeyError},
};

/// Unwrapped data keys kept in memory, about 1 KiB each, so that a change does not ask the HSM again for every
/// worker.
const MOST_KEPT: usize = 8192;

/// Pause after a key service did not answer. Its last error stands meanwhile, so that a thousand files do not each
/// wait for the timeout.
const LEFT_ALONE: Duration = Duration::from_secs(10);

/// Reason why a file cannot be decrypted. Names places, never values.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// None of our keys is a recipient.
    #[error(
        "the data key {data} is wrapped for {for_ids}, and the keys at hand are {held}: have it wrapped for one of these \
         with `berth secrets rotate`"
    )]
    NoKey {
        /// Data key that is missing.
        data: DataId,
        /// Ids of the keys that it is wrapped for, as a list in words.
        for_ids: String,
        /// Keys that are available.
        held: String,
    },
    /// The key service refused, or is unavailable.
    #[error("{0}")]
    Key(#[from] KeyError),
    /// A value does not open.
    #[error(
        "{secret}.{field} cannot be decrypted: it was changed, or comes from another worker, secret, field, or from beside other \
         plain fields; encrypt it again, or take the file back from an older commit"
    )]
    Value {
        /// Name of the secret in the file.
        secret: String,
        /// Name of the field that does not open.
        field: String,
    },
    /// The seal does not hold.
    #[error(
        "the seal does not hold: something in the file was added, dropped or changed by hand; change files with \
         `berth secrets edit` or `encrypt --into`, or take it back from an older commit"
    )]
    Seal,
    /// The decrypted fields are not a valid secret.
    #[error("the secret {secret} cannot be used: {reason}")]
    Fields {
        /// Name of the secret in the file.
        secret: String,
        /// Problem with the fields.
        reason: String,
    },
}

impl OpenError {
    /// Class of the error, which decides what to do next.
    #[must_use]
    pub const fn class(&self) -> Class {
        match self {
            Self::Key(error) => error.class(),
            Self::NoKey { .. } => Class::Stalled,
            Self::Value { .. } | Self::Seal | Self::Fields { .. } => Class::Invalid,
        }
    }
}

/// The private keys at hand. What they unwrapped is kept: an answer of a key takes milliseconds, of an HSM more.
#[derive(Debug, Default)]
pub struct Keyring {
    keys: Vec<TrackedKey>,
    unwrapped: Mutex<BTreeMap<[u8; 32], Arc<DataKey>>>,
}

/// A key, and since when its keeper is silent.
#[derive(Debug)]
struct TrackedKey {
    key: Box<dyn Decrypt>,
    silent: Mutex<Option<(Instant, KeyError)>>,
}

impl TrackedKey {
    fn unwrap(&self, wrapped: &WrappedKey) -> Result<DataKey, KeyError> {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((since, error)) = &*silent
            && since.elapsed() < LEFT_ALONE
        {
            return Err(error.clone());
        }
        let unwrapped = self.key.unwrap(&wrapped.id, &wrapped.wrapped);
        *silent = unwrapped.as_ref().err().filter(|error| error.silent).map(|error| (Instant::now(), error.clone()));
        let wrong = || KeyError::refused(self.key.name(), "what it unwrapped is no data key");
        DataKey::of(&unwrapped?).map_err(|_| wrong())
    }
}

impl Keyring {
    /// With these keys; the first that a file is wrapped for is asked first.
    #[must_use]
    pub fn new(keys: Vec<Box<dyn Decrypt>>) -> Self {
        let keys = keys.into_iter().map(|key| TrackedKey { key, silent: Mutex::default() });
        Self { keys: keys.collect(), unwrapped: Mutex::default() }
    }

    /// The ids of the keys, where their keepers say them.
    #[must_use]
    pub fn ids(&self) -> Vec<KeyId> {
        self.keys.iter().filter_map(|keeper| keeper.key.id().cloned()).collect()
    }

    /// Decrypts all secrets of a file, or none: a file is right as a whole.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn open(&self, document: &Document) -> Result<BTreeMap<String, Granted>, OpenError> {
        self.verify(document)?;
        document
            .secrets
            .iter()
            .map(|entry| {
                let fields = entry.fields(|field, sealed| self.value(document, entry, field, sealed))?;
                let (credential, scope) = Credential::build(entry.kind, fields).map_err(|wrong| {
                    let reason = wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                    OpenError::Fields { secret: entry.name.clone(), reason }
                })?;
                Ok((entry.name.clone(), Granted { credential, scope, expires: None }))
            })
            .collect()
    }

    /// Verifies the seal of a file.
    pub(crate) fn verify(&self, document: &Document) -> Result<(), OpenError> {
        let key = self.data_key(document, document.seal.data)?;
        key.open(&document.seal, &document.sealed_text()).map(drop).map_err(|_| OpenError::Seal)
    }

    /// Decrypts the value of one field.
    pub(crate) fn value(
        &self,
        document: &Document,
        entry: &SecretEntry,
        field: &str,
        sealed: &Sealed,
    ) -> Result<Secret, OpenError> {
        let key = self.data_key(document, sealed.data)?;
        let wrong = || OpenError::Value { secret: entry.name.clone(), field: field.to_owned() };
        let mut bytes = key.open(sealed, &entry.bound_to(&document.worker, field)).map_err(|_| wrong())?;
        let text = String::from_utf8(std::mem::take(&mut *bytes)).map_err(|_| wrong())?;
        Ok(Zeroizing::new(text).into())
    }

    /// Unwraps a data key by whichever of our keys it is for.
    pub(crate) fn data_key(&self, document: &Document, data: DataId) -> Result<Arc<DataKey>, OpenError> {
        let wrapped: Vec<_> = document.keys.iter().filter(|key| key.data == data).collect();
        let mut refused = None;
        for (keeper, wrapped) in self.keys.iter().flat_map(|key| wrapped.iter().map(move |wrapped| (key, *wrapped))) {
            if keeper.key.id().is_some_and(|id| *id != wrapped.id) {
                continue;
            }
            let mut name = [0; 32];
            name.copy_from_slice(digest(&SHA256, &wrapped.wrapped).as_ref());
            if let Some(kept) = self.unwrapped.lock().unwrap_or_else(PoisonError::into_inner).get(&name) {
                return Ok(Arc::clone(kept));
            }
            match keeper.unwrap(wrapped) {
                Ok(unwrapped) => return Ok(self.keep(name, unwrapped)),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) => Err(error.into()),
            None => {
                let list = |ids: Vec<String>| if ids.is_empty() { "none".to_owned() } else { ids.join(", ") };
                let for_ids = list(wrapped.iter().map(|key| key.id.to_string()).collect());
                let held = list(
                    self.keys
                        .iter()
                        .map(|TrackedKey { key, .. }| key.id().map_or_else(|| key.name(), KeyId::to_string))
                        .collect(),
                );
                Err(OpenError::NoKey { data, for_ids, held })
            }
        }
    }

    fn keep(&self, name: [u8; 32], key: DataKey) -> Arc<DataKey> {
        let key = Arc::new(key);
        let mut kept = self.unwrapped.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MOST_KEPT {
            kept.clear();
        }
        kept.insert(name, Arc::clone(&key));
        key
    }
}
