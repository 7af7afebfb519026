//! JSON Web Tokens (RFC 7519) in the compact form of RFC 7515, as strangers send them. Nothing in one is true until a key of its
//! issuer has verified it.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::Deserialize;
use serde_json::Value;

/// Way of signing. There is no `none`, and nothing with a shared secret: a public key must never pass for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// RSA with PKCS #1 v1.5 padding and SHA-256.
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// EdDSA with Ed25519.
    EdDsa,
}

impl Algorithm {
    /// Reads its name in JOSE headers.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "RS256" => Some(Self::Rs256),
            "ES256" => Some(Self::Es256),
            // The second is its newer name, for this curve alone.
            "EdDSA" | "Ed25519" => Some(Self::EdDsa),
            _ => None,
        }
    }
}

/// Token whose form is right, and nothing else is known.
#[derive(Debug)]
pub struct Jwt<'a> {
    /// Way of signing that its header names.
    pub algorithm: Algorithm,
    /// Key that its header names.
    pub key: Option<String>,
    /// Claims, which nobody has verified yet.
    pub claims: Value,
    pub(super) signed: &'a str,
    pub(super) signature: Vec<u8>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

impl<'a> Jwt<'a> {
    /// Reads what somebody sent.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<Self> {
        let (signed, signature) = text.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        let decoded = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part).ok();
        let header: Header = serde_json::from_slice(&decoded(header)?).ok()?;
        // Extensions that must be understood, and are not (RFC 7515, 4.1.11).
        if header.crit.is_some() {
            return None;
        }
        let claims: Value = serde_json::from_slice(&decoded(payload)?).ok()?;
        let algorithm = Algorithm::of(&header.alg)?;
        claims.is_object().then_some(())?;
        Some(Self { algorithm, key: header.kid, claims, signed, signature: decoded(signature)? })
    }

    /// Issuer that it names, unverified.
    #[must_use]
    pub fn issuer(&self) -> Option<&str> {
        self.claims.get("iss")?.as_str()
    }

    /// True if it is for one of these audiences.
    pub(super) fn is_for(&self, audiences: &[String]) -> bool {
        let ours = |value: &Value| value.as_str().is_some_and(|text| audiences.iter().any(|own| own == text));
        match self.claims.get("aud") {
            Some(Value::Array(values)) => values.iter().any(ours),
            Some(value) => ours(value),
            None => false,
        }
    }

    /// A claim that is a time, in seconds since the Unix epoch. Fractions are cut; `Err`: there is one that is no time.
    pub(super) fn time(&self, claim: &str) -> Result<Option<u64>, ()> {
        match self.claims.get(claim) {
            None => Ok(None),
            Some(value) => match (value.as_u64(), value.as_f64()) {
                (Some(seconds), _) => Ok(Some(seconds)),
                // A time that a float holds exactly enough.
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in the range")]
                (None, Some(seconds)) if (0.0..1e15).contains(&seconds) => Ok(Some(seconds as u64)),
                _ => Err(()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(header: &str, claims: &str) -> String {
        format!("{}.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(header), BASE64_URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn only_forms_that_can_be_verified_are_tokens() {
        let good = token(r#"{"alg":"RS256","kid":"k","typ":"JWT"}"#, r#"{"iss":"i","aud":["a","b"],"exp":1.9e3}"#);
        let jwt = Jwt::parse(&good).expect("a token");
        assert_eq!((jwt.algorithm, jwt.key.as_deref(), jwt.issuer()), (Algorithm::Rs256, Some("k"), Some("i")));
        assert!(jwt.is_for(&["b".to_owned()]) && !jwt.is_for(&["c".to_owned()]));
        assert_eq!((jwt.time("exp"), jwt.time("nbf")), (Ok(Some(1_900)), Ok(None)));
        for header in [
            r#"{"alg":"none"}"#,
            r#"{"alg":"None"}"#,
            r#"{"alg":"HS256"}"#,
            r#"{"alg":"ES256","crit":["exp"]}"#,
            r#"{"alg":"ES256","alg":"none"}"#,
            r#"{"kid":"k"}"#,
            "[]",
            "",
        ] {
            assert!(Jwt::parse(&token(header, "{}")).is_none(), "{header}");
        }
        for text in
            ["", ".", "..", "a.b", "eyJ.eyJ.x", &format!("{good}.x"), &good.replace('.', "=."), &format!("{good}\n")]
        {
            assert!(Jwt::parse(text).is_none(), "{text}");
        }
        assert!(Jwt::parse(&token(r#"{"alg":"RS256"}"#, "[1]")).is_none());
    }

    #[test]
    fn a_time_that_is_none_is_refused() {
        for claims in [r#"{"exp":"1"}"#, r#"{"exp":-1}"#, r#"{"exp":1e300}"#, r#"{"exp":null}"#] {
            let text = token(r#"{"alg":"ES256"}"#, claims);
            assert_eq!(Jwt::parse(&text).expect("a token").time("exp"), Err(()), "{claims}");
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_text_comes_is_a_token_or_none(text in "(eyJhbGciOiJSUzI1NiJ9\\.)?[A-Za-z0-9_.=-]{0,120}") {
            let _read = Jwt::parse(&text);
        }
    }
}
