//! Tokens of an issuer whose keys are made here.

use aws_lc_rs::{
    rand::SystemRandom,
    rsa::KeySize,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
    },
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::*;
use crate::access::{Claim, ClaimRule, Grant, Role, sha256};

const NOW: u64 = 1_000_000;

enum Signer {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

fn b64(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

impl Signer {
    fn jwk(&self, id: &str) -> Value {
        match self {
            Self::Rsa(pair) => {
                // PKCS #1: the modulus of 2048 bits behind the heads of a sequence and an integer, then the usual exponent.
                let modulus = &pair.public_key().as_ref()[9..9 + 256];
                json!({"kty": "RSA", "kid": id, "use": "sig", "n": b64(modulus), "e": "AQAB"})
            }
            Self::P256(pair) => {
                let point = pair.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "kid": id, "x": b64(&point[1..33]), "y": b64(&point[33..])})
            }
            Self::Ed(pair) => json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "x": b64(pair.public_key().as_ref())}),
        }
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", b64(header.to_string()), b64(claims.to_string()));
        let random = SystemRandom::new();
        let signature = match self {
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut signature).expect("it signs");
                signature
            }
            Self::P256(pair) => pair.sign(&random, signed.as_bytes()).expect("it signs").as_ref().to_vec(),
            Self::Ed(pair) => pair.sign(signed.as_bytes()).as_ref().to_vec(),
        };
        format!("{signed}.{}", b64(signature))
    }
}

fn signers() -> [(&'static str, Signer); 3] {
    [
        ("RS256", Signer::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).expect("a key"))),
        ("ES256", Signer::P256(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key"))),
        ("EdDSA", Signer::Ed(Ed25519KeyPair::generate().expect("a key"))),
    ]
}

fn rules() -> IssuerRules {
    let rule = |claim: &str, pattern: &str, role| ClaimRule {
        claims: vec![(Claim(claim.to_owned()), pattern.to_owned())],
        grant: Grant::everywhere(role),
    };
    IssuerRules {
        url: "https://login.example.org".to_owned(),
        prefix: "oidc".to_owned(),
        audiences: vec!["berth".to_owned()],
        principal: Claim("sub".to_owned()),
        roles: vec![rule("groups", "ml", Role::Caller), rule("groups", "ops", Role::Operator)],
    }
}

fn issuer(keys: &[Value]) -> Issuer {
    let issuer = Issuer::new(rules(), None);
    assert!(issuer.learn(set(keys)));
    issuer
}

fn set(keys: &[Value]) -> KeySet {
    KeySet::parse(json!({"keys": keys}).to_string().as_bytes()).expect("keys")
}

fn claims(with: Value) -> Value {
    let mut claims = json!({
        "iss": "https://login.example.org", "aud": "berth", "sub": "ada", "exp": NOW + 600, "nbf": NOW - 5, "groups": ["ml"],
    });
    let (Value::Object(all), Value::Object(with)) = (&mut claims, with) else { unreachable!("objects") };
    all.extend(with);
    claims
}

fn held(issuer: &Issuer, token: &str, now: u64) -> Result<Arc<Principal>, Unauthenticated> {
    let digest = sha256(token.as_bytes());
    match issuer.known(&digest, now) {
        Some(principal) => Ok(principal),
        None => issuer.holder(&Jwt::parse(token).ok_or(Unauthenticated::Unknown)?, digest, now),
    }
}

#[test]
fn tokens_of_every_kind_of_key_are_verified_once() {
    let signers = signers();
    let jwks: Vec<Value> = signers.iter().map(|(alg, signer)| signer.jwk(alg)).collect();
    let issuer = issuer(&jwks);
    for (alg, signer) in &signers {
        let token = signer.token(&json!({"alg": alg, "kid": alg}), &claims(json!({})));
        let first = held(&issuer, &token, NOW).unwrap_or_else(|error| panic!("{alg}: {error}"));
        assert_eq!((&*first.name, first.grants.len(), first.expires), ("oidc:ada", 1, Some(NOW + 600)));
        assert!(Arc::ptr_eq(&first, &held(&issuer, &token, NOW + 659).expect("kept")));
        assert_eq!(held(&issuer, &token, NOW + 660), Err(Unauthenticated::Expired));
        let forged = format!("{}AAAA", &token[..token.len() - 4]);
        assert_eq!(held(&issuer, &forged, NOW), Err(Unauthenticated::Unknown), "{alg}");
    }
}

#[test]
fn a_key_serves_one_way_of_signing() {
    let [(_, rsa), (_, p256), _] = signers();
    let issuer = issuer(&[rsa.jwk("r"), p256.jwk("p")]);
    for header in [
        // The name of one key with the algorithm of another, and a public key as a shared secret.
        json!({"alg": "ES256", "kid": "r"}),
        json!({"alg": "RS256", "kid": "p"}),
        json!({"alg": "HS256", "kid": "r"}),
        json!({"alg": "none", "kid": "r"}),
    ] {
        let token = p256.token(&header, &claims(json!({})));
        assert!(held(&issuer, &token, NOW).is_err(), "{header}");
    }
    let nameless = p256.token(&json!({"alg": "ES256"}), &claims(json!({})));
    assert!(held(&issuer, &nameless, NOW).is_ok(), "one key fits");
    let encrypting = json!({"keys": [{"kty": "EC", "crv": "P-256", "use": "enc", "x": "", "y": ""}]});
    assert!(KeySet::parse(encrypting.to_string().as_bytes()).is_err());
}

#[test]
fn what_is_wrong_with_a_verified_token_is_said() {
    let [_, (_, signer), _] = signers();
    let issuer = issuer(&[signer.jwk("k")]);
    for (with, refused) in [
        (json!({"aud": "other"}), Unauthenticated::Audience),
        (json!({"aud": ["other"]}), Unauthenticated::Audience),
        (json!({"aud": null}), Unauthenticated::Audience),
        (json!({"exp": NOW - 60}), Unauthenticated::Expired),
        (json!({"exp": null}), Unauthenticated::Timeless),
        (json!({"exp": "never"}), Unauthenticated::Timeless),
        (json!({"nbf": NOW + 61}), Unauthenticated::Early),
        (json!({"sub": ""}), Unauthenticated::Nameless),
        (json!({"sub": 7}), Unauthenticated::Nameless),
        (json!({"sub": "a\nb"}), Unauthenticated::Nameless),
    ] {
        let token = signer.token(&json!({"alg": "ES256", "kid": "k"}), &claims(with.clone()));
        assert_eq!(held(&issuer, &token, NOW), Err(refused), "{with}");
    }
    for with in [json!({"aud": ["x", "berth"]}), json!({"exp": NOW - 59}), json!({"nbf": NOW + 60})] {
        let token = signer.token(&json!({"alg": "ES256", "kid": "k"}), &claims(with.clone()));
        assert!(held(&issuer, &token, NOW).is_ok(), "{with}");
    }
    let other = signer.token(&json!({"alg": "ES256", "kid": "k"}), &claims(json!({"groups": []})));
    assert_eq!(held(&issuer, &other, NOW).map(|principal| principal.grants.len()), Ok(0), "known, without a role");
}

#[test]
fn keys_that_are_not_known_are_sought_once_in_a_while() {
    let [_, (_, old), _] = signers();
    let new = Signer::P256(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key"));
    let token = |signer: &Signer, id: &str| signer.token(&json!({"alg": "ES256", "kid": id}), &claims(json!({})));
    let fresh = Issuer::new(rules(), None);
    assert_eq!(held(&fresh, &token(&old, "old"), NOW), Err(Unauthenticated::IssuerUntold), "never open");
    let issuer = issuer(&[old.jwk("old")]);
    assert!(held(&issuer, &token(&old, "old"), NOW).is_ok());
    let unknown = token(&new, "new");
    for (at, refused) in [
        (0, Unauthenticated::IssuerUntold),
        (1, Unauthenticated::IssuerUntold),
        (2, Unauthenticated::Unknown),
        (9, Unauthenticated::Unknown),
        (10, Unauthenticated::IssuerUntold),
    ] {
        assert_eq!(held(&issuer, &unknown, NOW + at), Err(refused), "after {at} s");
    }
    assert!(!issuer.learn(set(&[old.jwk("old")])), "the same keys");
    assert!(issuer.learn(set(&[new.jwk("new")])));
    assert!(held(&issuer, &unknown, NOW).is_ok());
    assert!(held(&issuer, &token(&old, "old"), NOW).is_err(), "its key is gone");
    let again = Issuer::new(rules(), Some(&issuer));
    assert!(held(&again, &unknown, NOW).is_ok(), "keys outlive a change of the rules");
}
