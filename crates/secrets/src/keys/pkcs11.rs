//! A private key in an HSM, through its PKCS#11 module: it decrypts or signs there and never leaves.
//!
//! A module may hang for as long as its HSM does, and cannot be interrupted. Each has a thread of its own, which is waited
//! for only so long.

mod module;
mod signer;

use std::fmt;

use cryptoki::{
    error::{Error, RvError},
    mechanism::{
        Mechanism, MechanismType,
        rsa::{PkcsMgfType, PkcsOaepParams, PkcsOaepSource},
    },
    object::{Attribute, AttributeType, KeyType, ObjectHandle},
    session::Session,
};
use zeroize::Zeroizing;

use self::module::{Access, KeyHandle, absent};
pub use self::signer::HsmSigner;
use super::{Decrypt, KeyEnvironment, KeyError, Pkcs11Uri, PublicKey, oaep};
use crate::envelope::KeyId;

/// A private key in an HSM.
pub struct Hsm {
    key: KeyHandle,
    public: PublicKey,
}

impl Hsm {
    /// Loads the module, logs in and finds the key.
    ///
    /// # Errors
    /// The module, the token, the key or the PIN is not there or not the right one, or the module hangs.
    pub fn open(uri: &Pkcs11Uri, around: &KeyEnvironment) -> Result<Self, KeyError> {
        let (key, public) = KeyHandle::open(uri, KeyType::RSA, around, public)?;
        Ok(Self { key, public })
    }
}

/// The public half of an RSA key.
fn public(access: &Access, session: &Session, key: ObjectHandle) -> Result<PublicKey, KeyError> {
    let parts = session
        .get_attributes(key, &[AttributeType::Modulus, AttributeType::PublicExponent])
        .map_err(|error| absent(&access.uri, &error))?;
    let (mut modulus, mut exponent) = (Vec::new(), Vec::new());
    for part in parts {
        match part {
            Attribute::Modulus(bytes) => modulus = bytes,
            Attribute::PublicExponent(bytes) => exponent = bytes,
            _ => {}
        }
    }
    PublicKey::from_parts(&modulus, &exponent).map_err(|reason| KeyError::refused(access.uri.name(), reason))
}

/// Has the token decrypt; `None` if the bytes are not wrapped for this key.
fn ask(session: &Session, key: ObjectHandle, wrapped: &[u8]) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
    let params = PkcsOaepParams::new(MechanismType::SHA256, PkcsMgfType::MGF1_SHA256, PkcsOaepSource::empty());
    let answer = match session.decrypt(&Mechanism::RsaPkcsOaep(params), key, wrapped) {
        // Many tokens know OAEP with SHA-1 alone, SoftHSM among them: they do the power, the padding is taken off here.
        Err(Error::Pkcs11(
            RvError::ArgumentsBad
            | RvError::MechanismInvalid
            | RvError::MechanismParamInvalid
            | RvError::FunctionNotSupported,
            _,
        )) => session.decrypt(&Mechanism::RsaX509, key, wrapped).map(Zeroizing::new).map(|block| oaep::unpad(&block)),
        other => other.map(Zeroizing::new).map(Some),
    };
    match answer {
        Err(Error::Pkcs11(
            RvError::EncryptedDataInvalid
            | RvError::EncryptedDataLenRange
            | RvError::DataInvalid
            | RvError::DataLenRange,
            _,
        )) => Ok(None),
        other => other,
    }
}

impl Decrypt for Hsm {
    fn id(&self) -> Option<&KeyId> {
        Some(self.public.id())
    }

    fn name(&self) -> String {
        self.key.access.uri.name()
    }

    fn public(&self) -> Option<PublicKey> {
        Some(self.public.clone())
    }

    fn unwrap(&self, _: &KeyId, wrapped: &[u8]) -> Result<Zeroizing<Vec<u8>>, KeyError> {
        let wrong = || KeyError::refused(self.name(), "a data key is not wrapped for it, or was changed");
        self.key
            .ask({
                let wrapped = wrapped.to_vec();
                move |session, key| ask(session, key, &wrapped)
            })?
            .ok_or_else(wrong)
    }
}

impl fmt::Debug for Hsm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hsm")
            .field("key", &self.key.access.uri.name())
            .field("public", &self.public)
            .finish_non_exhaustive()
    }
}
