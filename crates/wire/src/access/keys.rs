//! Public keys of an issuer, as it publishes them (JSON Web Key Set, RFC 7517).

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::Deserialize;
use serde_json::Value;

use super::{
    jwt::{Algorithm, Jwt},
    sha256,
};

/// Most keys of one issuer: large providers have about ten.
const MAX_KEYS: usize = 100;

/// Keys that signatures are verified with. Those of other kinds and uses are left out.
#[derive(Debug)]
pub struct KeySet {
    keys: Vec<Key>,
    digest: [u8; 32],
}

#[derive(Debug)]
struct Key {
    id: Option<String>,
    public: PublicKey,
}

/// Key of one way of signing: a token cannot choose another.
#[derive(Debug)]
enum PublicKey {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// Reason for not trusting a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unverified {
    /// No key here is of its name.
    NoSuchKey,
    /// The signature is not by that key, or it is not said by which.
    Forged,
}

#[derive(Deserialize)]
struct RawSet {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct RawKey {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    /// Reads what an issuer publishes.
    ///
    /// # Errors
    /// For people: the text is no such set, or no key in it is of use.
    pub fn parse(json: &[u8]) -> Result<Self, String> {
        let set: RawSet = serde_json::from_slice(json).map_err(|error| format!("this is no set of keys: {error}"))?;
        if set.keys.len() > MAX_KEYS {
            return Err(format!("the set has {} keys, more than {MAX_KEYS}", set.keys.len()));
        }
        let raw = set.keys.into_iter().filter_map(|key| serde_json::from_value::<RawKey>(key).ok());
        let keys: Vec<Key> = raw.filter_map(Key::of).collect();
        if keys.is_empty() {
            return Err("no key in the set is for RS256, ES256 or EdDSA".to_owned());
        }
        Ok(Self { keys, digest: sha256(json) })
    }

    /// Number of keys that signatures can be verified with.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// True if there is none, which [`KeySet::parse`] refuses.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// True if both were read from the same text.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.digest == other.digest
    }

    /// Verifies the signature of a token by the key that it names. One that names none must leave no choice.
    pub(super) fn verify(&self, jwt: &Jwt<'_>) -> Result<(), Unverified> {
        let mut named = self.keys.iter().filter(|key| jwt.key.is_none() || key.id == jwt.key).peekable();
        if jwt.key.is_some() && named.peek().is_none() {
            return Err(Unverified::NoSuchKey);
        }
        let mut fitting = named.filter(|key| key.public.algorithm() == jwt.algorithm);
        match (fitting.next(), fitting.next()) {
            (Some(key), None) => key.public.verify(jwt).map_err(|()| Unverified::Forged),
            // The name of a key with the algorithm of another.
            _ => Err(Unverified::Forged),
        }
    }
}

impl Key {
    fn of(raw: RawKey) -> Option<Self> {
        let decoded = |part: &Option<String>| BASE64_URL_SAFE_NO_PAD.decode(part.as_ref()?).ok();
        if raw.usage.as_deref().is_some_and(|usage| usage != "sig") {
            return None;
        }
        let public = match (raw.kty.as_str(), raw.crv.as_deref()) {
            ("RSA", _) => PublicKey::Rsa { modulus: decoded(&raw.n)?, exponent: decoded(&raw.e)? },
            ("EC", Some("P-256")) => {
                let (x, y) = (decoded(&raw.x)?, decoded(&raw.y)?);
                // An uncompressed point (SEC 1, 2.3.3).
                (x.len() == 32 && y.len() == 32).then(|| PublicKey::P256([&[4][..], &x, &y].concat()))?
            }
            ("OKP", Some("Ed25519")) => PublicKey::Ed25519(decoded(&raw.x).filter(|x| x.len() == 32)?),
            _ => return None,
        };
        let other = raw.alg.as_deref().is_some_and(|alg| Algorithm::of(alg) != Some(public.algorithm()));
        (!other).then_some(Self { id: raw.kid, public })
    }
}

impl PublicKey {
    const fn algorithm(&self) -> Algorithm {
        match self {
            Self::Rsa { .. } => Algorithm::Rs256,
            Self::P256(_) => Algorithm::Es256,
            Self::Ed25519(_) => Algorithm::EdDsa,
        }
    }

    fn verify(&self, jwt: &Jwt<'_>) -> Result<(), ()> {
        let (message, signature) = (jwt.signed.as_bytes(), &jwt.signature);
        let verified = match self {
            Self::Rsa { modulus, exponent } => {
                let key = RsaPublicKeyComponents { n: modulus, e: exponent };
                key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            Self::P256(point) => UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature),
            Self::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature),
        };
        verified.map_err(|_| ())
    }
}
