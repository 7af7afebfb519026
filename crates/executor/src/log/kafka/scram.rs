//! SCRAM (RFC 5802, RFC 7677): proves a password that it does not send, and has the broker prove it too.

use std::num::NonZeroU32;

use aws_lc_rs::{
    constant_time::verify_slices_are_equal,
    digest::{self, digest},
    hmac, pbkdf2,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};

use super::super::settings::Mechanism;

/// Most rounds that a broker may ask for. It sets the number before it has proved anything.
const MOST_ROUNDS: u32 = 1 << 20;

/// One conversation.
pub(super) struct Scram {
    hash: &'static digest::Algorithm,
    mac: hmac::Algorithm,
    derive: pbkdf2::Algorithm,
    password: String,
    nonce: String,
    /// The first message without its beginning.
    bare: String,
    /// Proof that is expected of the broker.
    expected: Vec<u8>,
}

impl Scram {
    /// `None`: the mechanism is another one.
    pub(super) fn new(mechanism: Mechanism, user: &str, password: &str) -> Option<Self> {
        Self::with_nonce(mechanism, user, password, format!("{:032x}", rand::random::<u128>()))
    }

    fn with_nonce(mechanism: Mechanism, user: &str, password: &str, nonce: String) -> Option<Self> {
        let (hash, mac, derive) = match mechanism {
            Mechanism::Plain => return None,
            Mechanism::ScramSha256 => (&digest::SHA256, hmac::HMAC_SHA256, pbkdf2::PBKDF2_HMAC_SHA256),
            Mechanism::ScramSha512 => (&digest::SHA512, hmac::HMAC_SHA512, pbkdf2::PBKDF2_HMAC_SHA512),
        };
        let bare = format!("n={},r={nonce}", user.replace('=', "=3D").replace(',', "=2C"));
        Some(Self { hash, mac, derive, password: password.to_owned(), nonce, bare, expected: Vec::new() })
    }

    pub(super) fn first(&self) -> String {
        format!("n,,{}", self.bare)
    }

    /// The proof, for what the broker has answered to the first message.
    pub(super) fn answer(&mut self, challenge: &[u8]) -> Result<String, String> {
        let challenge = std::str::from_utf8(challenge).map_err(|error| error.to_string())?;
        let field = |name: &str| challenge.split(',').find_map(|field| field.strip_prefix(name));
        let salt = field("s=").and_then(|salt| BASE64_STANDARD.decode(salt).ok());
        let rounds = field("i=").and_then(|rounds| rounds.parse::<NonZeroU32>().ok());
        let nonce = field("r=").filter(|nonce| nonce.starts_with(&self.nonce));
        let (Some(salt), Some(rounds), Some(nonce)) =
            (salt, rounds.filter(|rounds| rounds.get() <= MOST_ROUNDS), nonce)
        else {
            return Err("the broker's challenge cannot be used".to_owned());
        };
        let mut salted = vec![0; self.hash.output_len];
        pbkdf2::derive(self.derive, rounds, &salt, self.password.as_bytes(), &mut salted);
        let sign = |key: &[u8], text: &[u8]| hmac::sign(&hmac::Key::new(self.mac, key), text).as_ref().to_vec();
        let last = format!("c=biws,r={nonce}");
        let all = format!("{},{challenge},{last}", self.bare);
        let key = sign(&salted, b"Client Key");
        let signature = sign(digest(self.hash, &key).as_ref(), all.as_bytes());
        let proof: Vec<u8> = key.iter().zip(&signature).map(|(key, signature)| key ^ signature).collect();
        self.expected = sign(&sign(&salted, b"Server Key"), all.as_bytes());
        Ok(format!("{last},p={}", BASE64_STANDARD.encode(proof)))
    }

    /// Checks the proof of the broker.
    pub(super) fn verify(&self, last: &[u8]) -> Result<(), String> {
        let proof = std::str::from_utf8(last).ok().and_then(|last| last.split(',').next()?.strip_prefix("v="));
        let proof = proof.and_then(|proof| BASE64_STANDARD.decode(proof).ok()).unwrap_or_default();
        verify_slices_are_equal(&proof, &self.expected)
            .map_err(|_| "the broker does not know the password: it may be another one".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_standard() {
        // RFC 7677, section 3.
        let nonce = "rOprNGfwEbeRWgbNEkqO".to_owned();
        let mut scram = Scram::with_nonce(Mechanism::ScramSha256, "user", "pencil", nonce).expect("SCRAM");
        assert_eq!(scram.first(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let challenge = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
        assert_eq!(
            scram.answer(challenge.as_bytes()).as_deref(),
            Ok(
                "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
            )
        );
        assert_eq!(scram.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="), Ok(()));
        assert!(scram.verify(b"v=AAAA").is_err() && scram.verify(b"e=other-error").is_err());
        for wrong in [
            "r=other,s=AA==,i=1",
            "r=rOprNGfwEbeRWgbNEkqOx,s=AA==,i=0",
            "r=rOprNGfwEbeRWgbNEkqOx,s=AA==,i=99999999",
            "",
        ] {
            assert!(scram.answer(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
