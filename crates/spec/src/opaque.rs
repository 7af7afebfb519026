//! Models that their runtime finds by itself: type, path and key in the runtime's own terms, written as a location.
//!
//! ```text
//! runtime:PATH?type=TYPE&key=KEY      each part percent-encoded, all but one of the three may be empty
//! ```
//! Nothing is fetched for such a model: the three texts go to the runtime as they are.

use std::{fmt, str::FromStr};

use crate::id::{percent_decode, percent_encode};

/// The scheme of such locations.
pub const SCHEME: &str = "runtime";

/// The most bytes of a location: the settings of a model go in its key, and a manifest is no place for its weights.
pub const MAX: usize = 16 * 1024;

/// A model that its runtime finds by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct OpaqueModel {
    /// The type of the model, as its runtime calls it.
    pub kind: String,
    /// The place of the model in the runtime's own terms, such as a path in its storage.
    pub path: String,
    /// The text that lets the runtime get at it.
    pub key: String,
}

/// A text that is no such location.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidOpaque {
    /// The location has another scheme than [`SCHEME`].
    #[error("the location does not begin with {SCHEME}:")]
    Scheme,
    /// A part of another name.
    #[error("{0:?} is no part of a model that a runtime finds: type and key are")]
    Part(String),
    /// A part that is not UTF-8 once it is decoded.
    #[error("{0} is not UTF-8")]
    Text(&'static str),
    /// Longer than [`MAX`].
    #[error("the location has {0} bytes, of which {MAX} are taken")]
    Long(usize),
}

impl OpaqueModel {
    /// Tests a location for the scheme.
    #[must_use]
    pub fn is_one(uri: &str) -> bool {
        uri.strip_prefix(SCHEME).is_some_and(|rest| rest.starts_with(':'))
    }
}

impl FromStr for OpaqueModel {
    type Err = InvalidOpaque;

    fn from_str(text: &str) -> Result<Self, InvalidOpaque> {
        let rest = text.strip_prefix(SCHEME).and_then(|rest| rest.strip_prefix(':')).ok_or(InvalidOpaque::Scheme)?;
        if text.len() > MAX {
            return Err(InvalidOpaque::Long(text.len()));
        }
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let read = |text: &str, name| percent_decode(text).map(String::from).ok_or(InvalidOpaque::Text(name));
        let mut model = Self { path: read(path, "the path")?, ..Self::default() };
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("type", value)) => model.kind = read(value, "the type")?,
                Some(("key", value)) => model.key = read(value, "the key")?,
                _ => return Err(InvalidOpaque::Part(part.chars().take(64).collect())),
            }
        }
        Ok(model)
    }
}

impl fmt::Display for OpaqueModel {
    /// The location, which [`FromStr`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}:")?;
        for (n, segment) in self.path.split('/').enumerate() {
            write!(f, "{}{}", if n == 0 { "" } else { "/" }, percent_encode(segment))?;
        }
        let parts = [("type", &self.kind), ("key", &self.key)];
        for (n, (name, value)) in parts.into_iter().filter(|(_, value)| !value.is_empty()).enumerate() {
            write!(f, "{}{name}={}", if n == 0 { '?' } else { '&' }, percent_encode(value))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (kind, path, key, written) in [
            (
                "mt:sklearn:0",
                "a b/c",
                "{\"bucket\":\"x\"}",
                "runtime:a%20b/c?type=mt%3Asklearn%3A0&key=%7B%22bucket%22%3A%22x%22%7D",
            ),
            ("T", "", "", "runtime:?type=T"),
            ("", "s3://b/é?x#y", "k&=", "runtime:s3%3A//b/%C3%A9%3Fx%23y?key=k%26%3D"),
            ("", "", "", "runtime:"),
        ] {
            let model = OpaqueModel { kind: kind.to_owned(), path: path.to_owned(), key: key.to_owned() };
            assert_eq!(model.to_string(), written);
            assert_eq!(written.parse(), Ok(model));
        }
    }

    #[test]
    fn other_texts_say_what_is_wrong() {
        for (text, problem) in [
            ("s3://b/c".to_owned(), "begin with runtime:"),
            ("runtime:x?kind=y".to_owned(), "kind=y"),
            ("runtime:%ff".to_owned(), "UTF-8"),
            (format!("runtime:{}", "x".repeat(MAX)), "bytes"),
        ] {
            let error = text.parse::<OpaqueModel>().expect_err("refused").to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
