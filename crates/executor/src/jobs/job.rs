//! The nouns of asynchronous serving: jobs, their requests and answers, where they stand.

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde::{Deserialize, Serialize};

/// Form of stored requests and answers: the first byte of each. Executors of two versions may share a queue.
const FORM: u8 = 1;

/// Name of a job. 128 random bits: who knows it may ask for the answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct JobId(Box<str>);

impl JobId {
    pub(crate) fn generate() -> Self {
        Self(format!("{:032x}", rand::random::<u128>()).into())
    }

    /// Reads an id; `None`: it can be none.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digit = |c: u8| matches!(c, b'0'..=b'9' | b'a'..=b'f');
        (text.len() == 32 && text.bytes().all(digit)).then(|| Self(text.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The order in which jobs run. A job of a lower priority runs when none of a higher one waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub(crate) enum Priority {
    High,
    #[default]
    Normal,
    Low,
}

impl Priority {
    pub(crate) const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|priority| priority.as_str() == text)
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }
}

/// A request that waits for its turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredRequest {
    method: String,
    /// Path and query.
    target: String,
    headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

/// An answer of the model server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    status: u16,
    headers: Vec<(String, Vec<u8>)>,
    /// Shared by all who ask for it.
    #[serde(with = "shared")]
    pub(crate) body: Bytes,
}

/// Bytes in the form that a `Vec<u8>` has: a length, and so many of them.
mod shared {
    use bytes::Bytes;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        Vec::<u8>::deserialize(deserializer).map(Bytes::from)
    }
}

/// Bytes of headers, as they are in memory.
fn weight(headers: &[(String, Vec<u8>)]) -> u64 {
    const ENTRY: usize = size_of::<(String, Vec<u8>)>();
    headers.iter().map(|(name, value)| (name.len() + value.len() + ENTRY) as u64).sum()
}

impl Answer {
    /// Bytes in memory, about.
    pub(crate) fn bytes(&self) -> u64 {
        self.body.len() as u64 + weight(&self.headers)
    }
}

impl StoredRequest {
    /// Bytes in memory, about.
    pub(crate) fn bytes(&self) -> u64 {
        (self.target.len() + self.body.len()) as u64 + weight(&self.headers)
    }

    pub(crate) fn new(head: &http::request::Parts, body: Vec<u8>) -> Self {
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        Self { method: head.method.to_string(), target, headers: stored(&head.headers), body }
    }

    /// The request, as it came.
    pub(crate) fn head(&self) -> Option<http::request::Parts> {
        let method = Method::from_bytes(self.method.as_bytes()).ok()?;
        let mut head = http::Request::builder().method(method).uri(&self.target).body(()).ok()?.into_parts().0;
        head.headers = headers(&self.headers);
        Some(head)
    }

    /// Two requests with one idempotency key are the same if these bytes are.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        use sha2::{Digest as _, Sha256};
        let mut hash = Sha256::new();
        for part in [self.method.as_bytes(), self.target.as_bytes()] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.update(&self.body);
        hash.finalize().into()
    }
}

impl Answer {
    pub(crate) fn new(status: StatusCode, headers: &HeaderMap, body: Bytes) -> Self {
        Self { status: status.as_u16(), headers: stored(headers), body }
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::OK)
    }

    pub(crate) fn headers(&self) -> HeaderMap {
        headers(&self.headers)
    }
}

/// A noun that is stored as bytes.
pub(crate) trait Stored: Serialize + for<'de> Deserialize<'de> {
    fn to_bytes(&self) -> Vec<u8> {
        // Writing into memory cannot fail for these types: their lengths are known.
        postcard::to_extend(self, vec![FORM]).unwrap_or_default()
    }

    /// Reads it; `None`: a newer version has written it, or it is damaged.
    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let (form, rest) = bytes.split_first()?;
        (*form == FORM).then(|| postcard::from_bytes(rest).ok())?
    }
}

impl Stored for StoredRequest {}
impl Stored for Answer {}

fn stored(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    headers.iter().map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect()
}

fn headers(stored: &[(String, Vec<u8>)]) -> HeaderMap {
    let pair = |(name, value): &(String, Vec<u8>)| {
        Some((HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_bytes(value).ok()?))
    };
    stored.iter().filter_map(pair).collect()
}

/// A job's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Queued,
    Running,
    /// The model server answered.
    Done,
    /// A dead letter: the model server did not answer, as often as it was asked.
    Dead,
    /// Ended by a client.
    Cancelled,
}

impl State {
    pub(crate) const fn is_end(self) -> bool {
        matches!(self, Self::Done | Self::Dead | Self::Cancelled)
    }
}

/// Standing of a job, as clients are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) state: State,
    /// Times that its request was taken from the queue.
    pub(crate) attempts: u32,
    /// The reason why the last attempt did not end it.
    pub(crate) error: Option<String>,
    pub(crate) callback: Option<CallbackState>,
}

/// The state of an answer's delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CallbackState {
    /// The job has not ended, or the receiver has not taken it yet.
    Pending,
    Delivered,
    /// The receiver refused it, as often as it was asked.
    Failed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_random_and_nothing_else_is_one() {
        let id = JobId::generate();
        assert_ne!(id, JobId::generate());
        assert_eq!(JobId::parse(id.as_str()), Some(id));
        for text in ["", "x", "../../../../../../../../../../etc/", &"g".repeat(32), &"A".repeat(32), &"a".repeat(33)] {
            assert_eq!(JobId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_stored_comes_back() {
        let request =
            http::Request::post("/predict?x=1").header("content-type", "text/plain").body(()).expect("a request");
        let stored = StoredRequest::new(&request.into_parts().0, b"hello".to_vec());
        let again = StoredRequest::of_bytes(&stored.to_bytes()).expect("it was one");
        assert_eq!(again, stored);
        let head = again.head().expect("it was a request");
        assert_eq!((head.method, head.uri.to_string()), (Method::POST, "/predict?x=1".to_owned()));
        assert_eq!(head.headers["content-type"], "text/plain");
        for broken in [&b""[..], &[FORM], &[FORM, 255, 255], &[FORM + 1, 0, 0, 0, 0]] {
            assert_eq!(StoredRequest::of_bytes(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn answers_have_the_form_of_before() {
        /// As executors stored it that did not share bodies.
        #[derive(Serialize, Deserialize)]
        struct Before {
            status: u16,
            headers: Vec<(String, Vec<u8>)>,
            body: Vec<u8>,
        }
        let (headers, body) = (vec![("a".to_owned(), b"b".to_vec())], vec![0, 1, 127, 128, 255]);
        let answer = Answer { status: 200, headers: headers.clone(), body: body.clone().into() };
        let before = Before { status: 200, headers, body };
        let stored = postcard::to_extend(&before, vec![FORM]).expect("stored");
        assert_eq!(answer.to_bytes(), stored);
        assert_eq!(Answer::of_bytes(&stored), Some(answer));
    }

    #[test]
    fn fingerprints_tell_requests_apart() {
        let of = |method: &str, target: &str, body: &[u8]| {
            let head = http::Request::builder().method(method).uri(target).body(()).expect("a request").into_parts().0;
            StoredRequest::new(&head, body.to_vec()).fingerprint()
        };
        assert_eq!(of("POST", "/a", b"x"), of("POST", "/a", b"x"));
        for other in [of("PUT", "/a", b"x"), of("POST", "/ab", b""), of("POST", "/a", b"y"), of("POST", "/a?b", b"x")] {
            assert_ne!(of("POST", "/a", b"x"), other);
        }
    }
}
