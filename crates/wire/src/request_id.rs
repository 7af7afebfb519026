//! Request ids: one name for a request in answers, errors, logs, traces, the audit log, and on every node that it comes to.
//!
//! The sender of a request may choose it, in the header `x-request-id` (gRPC: metadata of that name). Else the port that the
//! request comes to makes one.

use std::{
    cell::Cell,
    fmt,
    hash::{BuildHasher as _, Hasher as _, RandomState},
};

use http::{HeaderMap, HeaderName, HeaderValue};

/// The header that holds it, in requests and answers.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The most bytes of an id that is taken from a sender: UUIDs and trace ids fit; longer ones would fill the log.
const MAX_ID_BYTES: usize = 128;

/// Hexadecimal digits of an id that is made here: 64 bits, so that no two in one log are the same.
const DIGITS: usize = 16;

/// Name of a request: visible ASCII.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// Makes sure that a request has exactly one sane id among its headers: its sender's, or one that is made.
    pub fn settle(headers: &mut HeaderMap) -> Self {
        if let Some(id) = Self::of(headers) {
            return id;
        }
        let id = Self::generate();
        headers.insert(REQUEST_ID, id.0.clone());
        id
    }

    /// Id in the headers of a request; `None`: there is none, several, or one that is empty, too long or not visible ASCII.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(REQUEST_ID).iter();
        let value = values.next().filter(|value| is_sane(value.as_bytes()))?;
        values.next().is_none().then(|| Self(value.clone()))
    }

    /// A new one. Unique for as long as anybody looks for it; not a secret.
    #[must_use]
    pub fn generate() -> Self {
        let mut digits = [0; DIGITS];
        let number = next();
        for (at, digit) in digits.iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(number >> (4 * at) & 0xF) as usize];
        }
        let mut value = HeaderValue::from_bytes(&digits).unwrap_or(HeaderValue::from_static("0"));
        // No value comes twice: HTTP/2 shall keep it out of the tables of both sides, where it would push others out.
        value.set_sensitive(true);
        Self(value)
    }

    /// Writes it among the headers of an answer.
    pub fn mark(self, headers: &mut HeaderMap) {
        headers.insert(REQUEST_ID, self.0);
    }

    /// The id as text, for logs and the audit.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Visible ASCII always is a text.
        self.0.to_str().unwrap_or_default()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn is_sane(id: &[u8]) -> bool {
    (1..=MAX_ID_BYTES).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}

/// SplitMix64 (Steele, Lea, Flood 2014) from a seed of each thread: a few instructions, and no thread waits for another.
fn next() -> u64 {
    thread_local!(static STATE: Cell<u64> = Cell::new(RandomState::new().build_hasher().finish()));
    let state = STATE.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
    STATE.set(state);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn headers(ids: &[&[u8]]) -> HeaderMap {
        let values = ids.iter().map(|id| HeaderValue::from_bytes(id).expect("a value"));
        values.map(|value| (REQUEST_ID, value)).collect()
    }

    #[test]
    fn a_sane_id_stays_and_any_other_is_replaced() {
        let longest = [b'x'; MAX_ID_BYTES];
        for sane in [b"a".as_slice(), b"7f3e-\"q\"/\\~", &longest] {
            let mut headers = headers(&[sane]);
            assert_eq!(RequestId::settle(&mut headers).as_str().as_bytes(), sane);
            assert_eq!(headers[REQUEST_ID].as_bytes(), sane);
        }
        let long = [b'x'; MAX_ID_BYTES + 1];
        let wrong: [&[&[u8]]; 6] = [&[], &[b""], &[b"two words"], &[&long], &["é".as_bytes()], &[b"a", b"b"]];
        for ids in wrong {
            let mut headers = headers(ids);
            let id = RequestId::settle(&mut headers);
            assert!(id.as_str().len() == DIGITS && is_sane(id.as_str().as_bytes()), "{ids:?}: {id}");
            assert_eq!(headers.get_all(REQUEST_ID).iter().collect::<Vec<_>>(), [id.as_str()], "{ids:?}");
        }
    }

    #[test]
    fn ids_of_all_threads_differ() {
        let threads: Vec<_> =
            (0..4).map(|_| std::thread::spawn(|| Vec::from_iter((0..10_000).map(|_| RequestId::generate())))).collect();
        let ids = threads.into_iter().flat_map(|thread| thread.join().expect("it ends"));
        assert_eq!(ids.map(|id| id.to_string()).collect::<HashSet<_>>().len(), 40_000);
    }
}
