//! The name of a source: what people call it in commands and URLs.

use std::{fmt, str::FromStr, sync::Arc};

/// The longest name, as of a DNS label.
const MAX_NAME_BYTES: usize = 63;

/// The name of a source: 1 to 63 lower-case letters, digits and dashes, with no dash at either end.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceName(Arc<str>);

impl SourceName {
    /// Reads a name.
    ///
    /// # Errors
    /// The rule, where the text breaks it.
    pub fn new(text: &str) -> Result<Self, String> {
        let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        if text.is_empty() || text.len() > MAX_NAME_BYTES || !text.bytes().all(plain) || text.trim_matches('-') != text
        {
            return Err(format!(
                "invalid source name {text:?}: use 1 to {MAX_NAME_BYTES} lower-case letters, digits and dashes"
            ));
        }
        Ok(Self(Arc::from(text)))
    }

    /// Makes a name of the last part of a place: `https://h/ops/Model_Registry.git` becomes `model-registry`. A place
    /// without a letter or digit is called `otherwise`.
    #[must_use]
    pub fn derived(place: &str, otherwise: &str) -> Self {
        let last = place.trim_end_matches('/').rsplit(['/', ':']).next().unwrap_or_default();
        let last = last.strip_suffix(".git").unwrap_or(last).to_ascii_lowercase();
        let plain: String =
            last.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(MAX_NAME_BYTES).collect();
        let plain = plain.trim_matches('-');
        Self(Arc::from(if plain.is_empty() { otherwise } else { plain }))
    }

    /// The name as text: 1 to 63 lower-case letters, digits and hyphens.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SourceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::new(text)
    }
}

impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_labels_and_are_derived_from_places() {
        for good in ["git", "team-a", "7"] {
            assert_eq!(SourceName::new(good).map(|name| name.to_string()), Ok(good.to_owned()));
        }
        for bad in ["", "-a", "a-", "A", "a/b", "a.b", "ä", &"a".repeat(64)] {
            assert!(SourceName::new(bad).is_err(), "{bad}");
        }
        for (place, name) in [
            ("https://git.example.com/ops/Model_Registry.git", "model-registry"),
            ("git@h:r.git", "r"),
            ("/srv/models/", "models"),
            ("/", "git"),
            ("/srv/..", "git"),
        ] {
            assert_eq!(SourceName::derived(place, "git").as_str(), name, "{place}");
        }
    }
}
