//! A private key in an HSM that signs: ECDSA on the curve P-256.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use cryptoki::{
    mechanism::Mechanism,
    object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle},
    session::Session,
};

use super::module::{Access, KeyHandle, absent};
use crate::keys::{KeyEnvironment, KeyError, Pkcs11Uri};

/// The curve P-256 as `CKA_EC_PARAMS` names it: its object identifier, in DER (RFC 5480, section 2.1.1.1).
const P256: [u8; 10] = [0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];

/// Length of a point: 4, x and y (SEC 1, section 2.3.3).
const POINT: usize = 65;

/// Length of `r` and of `s`.
const SCALAR: usize = 32;

/// A signing key in an HSM.
pub struct HsmSigner {
    key: KeyHandle,
    public: Vec<u8>,
}

impl HsmSigner {
    /// Loads the module, logs in and finds the key and its public half.
    ///
    /// # Errors
    /// The module, the token, the key or the PIN is not there or not the right one, the key is of another curve, or the module hangs.
    pub fn open(uri: &Pkcs11Uri, around: &KeyEnvironment) -> Result<Self, KeyError> {
        let (key, public) = KeyHandle::open(uri, KeyType::EC, around, public)?;
        Ok(Self { key, public })
    }

    /// The public key: an uncompressed point.
    #[must_use]
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// Signs the SHA-256 of `message`: `r` and `s` in DER (RFC 5480's `Ecdsa-Sig-Value`). Blocks for as long as the HSM takes, at most
    /// some 20 seconds.
    ///
    /// # Errors
    /// The HSM does not answer, or refuses.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let hash = digest(&SHA256, message);
        let signed = self.key.ask(move |session, key| session.sign(&Mechanism::Ecdsa, key, hash.as_ref()))?;
        der(&signed).ok_or_else(|| {
            let reason =
                format!("the HSM gives a signature of {} bytes where {} are expected", signed.len(), 2 * SCALAR);
            KeyError::refused(self.key.access.uri.name(), reason)
        })
    }
}

impl fmt::Debug for HsmSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HsmSigner").field("key", &self.key.access.uri.name()).finish_non_exhaustive()
    }
}

/// The public half, which tokens keep in an object of its own with the same id.
fn public(access: &Access, session: &Session, key: ObjectHandle) -> Result<Vec<u8>, KeyError> {
    let uri = &access.uri;
    let unread = |error| absent(uri, &error);
    let mut of_pair = vec![Attribute::Class(ObjectClass::PUBLIC_KEY), Attribute::KeyType(KeyType::EC)];
    for attribute in session.get_attributes(key, &[AttributeType::Id, AttributeType::EcParams]).map_err(unread)? {
        match attribute {
            Attribute::Id(id) => of_pair.push(Attribute::Id(id)),
            Attribute::EcParams(curve) if curve != P256 => {
                let reason =
                    "it is of another curve: make one with `pkcs11-tool --keypairgen --key-type EC:prime256v1`";
                return Err(KeyError::refused(uri.name(), reason));
            }
            _ => {}
        }
    }
    let found = session.find_objects(&of_pair).map_err(unread)?;
    let [public] = found.as_slice() else {
        let reason = format!("the token has {} public keys with its id: one is needed", found.len());
        return Err(KeyError::refused(uri.name(), reason));
    };
    let parts = session.get_attributes(*public, &[AttributeType::EcPoint]).map_err(unread)?;
    let told = parts.into_iter().find_map(|part| if let Attribute::EcPoint(point) = part { Some(point) } else { None });
    let told = told.unwrap_or_default();
    // An octet string in DER, as PKCS#11 says, or the bare point, as some tokens have it.
    let point = if told.len() == POINT { &*told } else { told.strip_prefix(&[0x04, 0x41]).unwrap_or_default() };
    if point.len() == POINT && point[0] == 4 {
        return Ok(point.to_vec());
    }
    Err(KeyError::refused(uri.name(), "its public point has a form that is not known"))
}

/// `r` and `s` one after the other, as tokens give them, in DER.
fn der(signed: &[u8]) -> Option<Vec<u8>> {
    if signed.len() != 2 * SCALAR {
        return None;
    }
    let (r, s) = signed.split_at(SCALAR);
    let both = [integer(r), integer(s)].concat();
    Some([&[0x30, u8::try_from(both.len()).ok()?][..], &both].concat())
}

/// A positive number in DER: as short as can be, its first bit 0.
fn integer(bytes: &[u8]) -> Vec<u8> {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count().min(bytes.len() - 1);
    let short = &bytes[zeros..];
    let sign: &[u8] = if short[0] >= 0x80 { &[0] } else { &[] };
    let length = u8::try_from(sign.len() + short.len()).expect("a number of 32 bytes is short");
    [&[0x02, length][..], sign, short].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_in_the_shortest_form() {
        let signed = |r: &[u8], s: &[u8]| {
            let wide = |short: &[u8]| [vec![0; SCALAR - short.len()], short.to_vec()].concat();
            der(&[wide(r), wide(s)].concat()).expect("64 bytes")
        };
        assert_eq!(signed(&[1], &[0x7f]), [0x30, 6, 2, 1, 1, 2, 1, 0x7f]);
        assert_eq!(signed(&[0x80], &[1, 2]), [0x30, 8, 2, 2, 0, 0x80, 2, 2, 1, 2]);
        assert_eq!(signed(&[0xff; 32], &[0xff; 32]).len(), 2 + 2 * (2 + 33));
        assert_eq!(der(&[1; 63]), None);
    }
}
