//! Tokens: `berth_ID_SECRET`. The server keeps a hash; the secret is shown once.
//!
//! A secret has 256 random bits, so that one round of SHA-256 is enough: there is nothing to guess that a slow hash would
//! make slower. The fixed prefix lets scanners of repositories and logs find tokens.

use std::fmt;

use aws_lc_rs::{digest, rand};
use berth_spec::UseLimits;
use serde::{Deserialize, Serialize};

use super::{Grant, Principal};

/// First word of every token.
const PREFIX: &str = "berth_";

/// Characters of an id: 50 bits, so that no two tokens of a cluster have the same.
const ID: usize = 10;

/// Characters of the secret part: 256 bits and a little.
const SECRET: usize = 52;

/// Letters of ids and secrets, five bits each: they survive double clicks, shells and people who read them out.
const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// A token as its owner holds it. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Makes a new one.
    ///
    /// # Panics
    /// If the system has no random numbers: nothing is safe then.
    #[must_use]
    pub fn generate() -> Self {
        let mut bytes = [0; ID + SECRET];
        rand::fill(&mut bytes).expect("the system gives random numbers");
        let letters: String = bytes.iter().map(|byte| char::from(LETTERS[usize::from(byte & 31)])).collect();
        Self(format!("{PREFIX}{}_{}", &letters[..ID], &letters[ID..]))
    }

    /// Reads what somebody sent.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        id_of(text).map(|_| Self(text.to_owned()))
    }

    /// Public part, which names the token.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.0[PREFIX.len()..PREFIX.len() + ID]
    }

    /// The whole token, for its owner.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The part that the server keeps.
    #[must_use]
    pub fn hash(&self) -> String {
        sha256(self.0.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({PREFIX}{}_…)", self.id())
    }
}

/// SHA-256 of some bytes.
#[must_use]
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    out
}

/// The id in a token of the right form.
pub(super) fn id_of(text: &str) -> Option<&str> {
    let rest = text.strip_prefix(PREFIX).filter(|rest| rest.len() == ID + 1 + SECRET && rest.is_ascii())?;
    let (id, secret) = rest.split_at(ID);
    // By ranges: to look each up among the letters costs seven times as much as the rest, for every request.
    let plain = |part: &str| part.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7'));
    (plain(id) && plain(secret.strip_prefix('_')?)).then_some(id)
}

/// A token as the server keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenRecord {
    /// Public part of the token.
    pub id: String,
    /// SHA-256 of the token, in hexadecimal digits.
    pub hash: String,
    /// The role and where it holds.
    #[serde(flatten)]
    pub grant: Grant,
    /// Purpose, in the words of its creator.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Name of the principal that made it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub created_by: String,
    /// Creation, in seconds since the Unix epoch.
    pub created: u64,
    /// End of its validity, in seconds since the Unix epoch; `None`: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
    /// Limits of its holder; `None`: those for everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<UseLimits>,
}

impl TokenRecord {
    /// The principal that a request with this token has: its grant and its limits.
    #[must_use]
    pub fn principal(&self) -> Principal {
        let holder = Principal::of(&format!("token:{}", self.id), vec![self.grant.clone()]);
        Principal { expires: self.expires, limits: self.limits, ..holder }
    }

    /// True if it is valid at this second.
    #[must_use]
    pub fn is_valid(&self, now: u64) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_recognized_and_never_shown_by_accident() {
        let secret = Secret::generate();
        assert_eq!(Secret::parse(secret.reveal()), Some(secret.clone()));
        assert_eq!(id_of(secret.reveal()), Some(secret.id()));
        assert_eq!((secret.reveal().len(), secret.hash().len()), (PREFIX.len() + ID + 1 + SECRET, 64));
        assert!(!format!("{secret:?}").contains(&secret.reveal()[PREFIX.len() + ID + 1..]));
        assert_ne!(secret, Secret::generate());
    }

    #[test]
    fn what_is_no_token_is_none() {
        let good = Secret::generate().reveal().to_owned();
        for bad in
            ["", "berth_", "berth_abc", &good[1..], &format!("{good}x"), &good.to_uppercase(), &good.replace('_', "-")]
        {
            assert_eq!(Secret::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn letters_of_tokens_are_those_that_are_made() {
        let good = Secret::generate().reveal().to_owned();
        for byte in 0..=127_u8 {
            let text = format!("{}{}", &good[..good.len() - 1], char::from(byte));
            assert_eq!(id_of(&text).is_some(), LETTERS.contains(&byte), "{byte}");
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_text_comes_is_a_token_or_none(text in "(berth_)?\\PC{0,80}") {
            let _read = Secret::parse(&text);
        }
    }
}
