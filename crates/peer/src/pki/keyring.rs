//! The keys that seal gossip: the first seals, all open, so that one can replace another without a gap.

use std::{fmt, path::Path};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    digest::{SHA256, digest},
    rand,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::PkiError;

/// Bytes of a key: those of the cipher.
const KEY: usize = 32;

/// Bytes that say which key sealed.
const KEY_ID: usize = 4;

/// The form of sealed datagrams; a later form has another number. Form 1 had no sender.
const FORM: u8 = 2;

/// Bytes of the sender and its number.
const SEAL: usize = 16;

/// Bytes that the tag covers beside the content: what is not secret, and must not be changed.
const OPEN: usize = 1 + KEY_ID + SEAL;

const HEAD: usize = OPEN + NONCE_LEN;

/// Bytes added by sealing: format, key id, sender and number, nonce and a tag of 16 bytes.
pub(crate) const OVERHEAD: usize = HEAD + 16;

/// Reason why a datagram cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OpenError {
    /// Too short, or of another form.
    #[error("not a sealed datagram")]
    Form,
    /// None of our keys sealed it.
    #[error("sealed with a key that is not in gossip.key")]
    Key,
    /// Tampered with, or sealed by a sender without the key.
    #[error("does not open with the key that it names")]
    Forged,
}

/// The mark of one sealed datagram: no two have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seal {
    /// Drawn by a process when it starts.
    pub(crate) sender: u64,
    /// Of its datagrams: one more for each.
    pub(crate) number: u64,
}

/// The keys of gossip.key.
pub struct Keyring {
    keys: Vec<([u8; KEY_ID], LessSafeKey)>,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring").field("keys", &self.keys.len()).finish_non_exhaustive()
    }
}

impl Keyring {
    /// The text of a gossip.key with one new key.
    #[must_use]
    pub fn generate_text() -> String {
        let mut key = [0; KEY];
        rand::fill(&mut key).expect("the system gives random bytes");
        format!("{}\n", STANDARD.encode(key))
    }

    /// Reads keys: one per line, base64 of 32 bytes; empty lines and those after `#` do not count.
    ///
    /// # Errors
    /// A line is no key, or there is none; `file` is named in the error, the line's content is not.
    pub fn parse(text: &str, file: &Path) -> Result<Self, PkiError> {
        let mut keys = Vec::new();
        for (number, line) in text.lines().map(str::trim).enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = || PkiError::unusable(file, format!("line {} is not base64 of {KEY} bytes", number + 1));
            let bytes = STANDARD.decode(line).map_err(|_| wrong())?;
            if bytes.len() != KEY {
                return Err(wrong());
            }
            let mut id = [0; KEY_ID];
            id.copy_from_slice(&digest(&SHA256, &bytes).as_ref()[..KEY_ID]);
            keys.push((id, LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| wrong())?)));
        }
        if keys.is_empty() {
            return Err(PkiError::unusable(file, "holds no key: copy gossip.key from the CA's folder"));
        }
        Ok(Self { keys })
    }

    /// True if nodes with these keys and nodes with those of before open what the others seal.
    pub(super) fn joins(&self, before: &Self) -> bool {
        let opens = |ring: &Self, first: Option<&([u8; KEY_ID], LessSafeKey)>| {
            first.is_some_and(|(first, _)| ring.keys.iter().any(|(id, _)| id == first))
        };
        opens(self, before.keys.first()) && opens(before, self.keys.first())
    }

    /// Seals `plain` into `out`, which is cleared first. Nonces are random: after about 2³² datagrams per key (months
    /// of a large cluster) a repetition becomes conceivable; put a new key first before that.
    pub(crate) fn seal(&self, plain: &[u8], seal: Seal, out: &mut Vec<u8>) {
        let (id, key) = &self.keys[0];
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).expect("the system gives random bytes");
        out.clear();
        out.push(FORM);
        out.extend_from_slice(id);
        out.extend_from_slice(&seal.sender.to_le_bytes());
        out.extend_from_slice(&seal.number.to_le_bytes());
        out.extend_from_slice(&nonce);
        out.extend_from_slice(plain);
        let (head, body) = out.split_at_mut(HEAD);
        let aad = Aad::from(&head[..OPEN]);
        let tag = key
            .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), aad, body)
            .expect("a datagram is far shorter than what AES-GCM seals");
        out.extend_from_slice(tag.as_ref());
    }

    /// Opens a sealed datagram in its place. One that was heard before opens again: the caller looks at the seal.
    ///
    /// # Errors
    /// It is not one of ours.
    pub(crate) fn open<'a>(&self, sealed: &'a mut [u8]) -> Result<(&'a [u8], Seal), OpenError> {
        if sealed.len() < OVERHEAD || sealed[0] != FORM {
            return Err(OpenError::Form);
        }
        let (head, body) = sealed.split_at_mut(HEAD);
        let (_, key) = self.keys.iter().find(|(id, _)| id[..] == head[1..=KEY_ID]).ok_or(OpenError::Key)?;
        let (open, nonce) = head.split_at(OPEN);
        let nonce = <[u8; NONCE_LEN]>::try_from(nonce).map_err(|_| OpenError::Form)?;
        let number = |at: usize| open[at..at + 8].try_into().map(u64::from_le_bytes).map_err(|_| OpenError::Form);
        let seal = Seal { sender: number(1 + KEY_ID)?, number: number(1 + KEY_ID + 8)? };
        let unsealed = key.open_in_place(Nonce::assume_unique_for_key(nonce), Aad::from(open), body);
        Ok((unsealed.map_err(|_| OpenError::Forged)?, seal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(text: &str) -> Keyring {
        Keyring::parse(text, Path::new("gossip.key")).expect("keys")
    }

    #[test]
    fn what_is_sealed_opens_with_any_key_of_the_ring_and_no_other() {
        let (old, new) = (Keyring::generate_text(), Keyring::generate_text());
        let mut sealed = Vec::new();
        let seal = Seal { sender: 3, number: 7 };
        ring(&old).seal(b"alive", seal, &mut sealed);
        assert_eq!(sealed.len(), 5 + OVERHEAD);
        let mut copy = sealed.clone();
        let both = ring(&format!("# in rotation\n{new}\n{old}"));
        assert_eq!(both.open(&mut copy).expect("it opens"), (&b"alive"[..], seal));
        assert_eq!(ring(&new).open(&mut sealed.clone()).map(|_| ()), Err(OpenError::Key));
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(ring(&old).open(&mut changed).is_err(), "byte {at}");
        }
        assert_eq!(ring(&old).open(&mut []).map(|_| ()), Err(OpenError::Form));
    }

    #[test]
    fn a_key_replaces_another_step_by_step() {
        let (old, new) = (Keyring::generate_text(), Keyring::generate_text());
        let (first, second) = (format!("{old}{new}"), format!("{new}{old}"));
        for (before, after, joins) in [
            (&old, &old, true),
            (&old, &first, true),
            (&first, &second, true),
            (&second, &new, true),
            (&old, &new, false),
            (&old, &second, false),
            (&first, &new, false),
        ] {
            assert_eq!(ring(after).joins(&ring(before)), joins);
        }
    }

    #[test]
    fn a_key_file_says_what_is_wrong_and_not_the_key() {
        for (text, says) in [("", "holds no key"), ("c2hvcnQ=", "line 1"), ("\n?", "line 2")] {
            let error = Keyring::parse(text, Path::new("gossip.key")).expect_err("wrong").to_string();
            assert!(error.contains(says) && error.contains("gossip.key") && !error.contains("c2hv"), "{error}");
        }
    }
}
