//! Names of objects, and the ways in which people point at a commit.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The full name of an object: 40 (SHA-1) or 64 (SHA-256) lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Oid(String);

impl Oid {
    /// `None` if `text` is not a full name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let full = matches!(text.len(), 40 | 64) && is_hex(text);
        full.then(|| Self(text.to_ascii_lowercase()))
    }

    /// Hexadecimal digits of the id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first eight digits, for people.
    #[must_use]
    pub fn short(&self) -> &str {
        &self.0[..8]
    }

    /// Git's name for "no object": of a ref that did not exist, or does not exist any more.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.0.bytes().all(|digit| digit == b'0')
    }
}

impl fmt::Display for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Oid {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or_else(|| format!("{text:?} is not the full name of a Git object"))
    }
}

impl From<Oid> for String {
    fn from(oid: Oid) -> Self {
        oid.0
    }
}

/// A way to point at a commit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rev {
    /// The commit that a tag leads to.
    Tag(String),
    /// The tip of a branch, by its short name.
    Branch(String),
    /// A commit by its name, or the first seven or more digits of it.
    Commit(String),
}

impl Rev {
    /// Parses the reference that pins a model: a tag `v1.2.3`, or 7 to 40 hexadecimal digits of a commit. `None` for
    /// anything else, branches above all.
    #[must_use]
    pub fn pinned(text: &str) -> Option<Self> {
        let is_version = |rest: &str| {
            let parts: Vec<&str> = rest.split('.').collect();
            parts.len() == 3 && parts.iter().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
        };
        if text.strip_prefix('v').is_some_and(is_version) {
            Some(Self::Tag(text.to_owned()))
        } else if (7..=40).contains(&text.len()) && is_hex(text) && !text.bytes().any(|b| b.is_ascii_uppercase()) {
            Some(Self::Commit(text.to_owned()))
        } else {
            None
        }
    }

    /// The name of the ref, `refs/…`; `None` for a commit.
    #[must_use]
    pub fn ref_name(&self) -> Option<String> {
        match self {
            Self::Tag(name) => Some(format!("refs/tags/{name}")),
            Self::Branch(name) => Some(format!("refs/heads/{name}")),
            Self::Commit(_) => None,
        }
    }

    /// True if the name is safe to pass to git: not an option, and no character that refs cannot contain.
    #[must_use]
    pub fn is_safe(&self) -> bool {
        match self {
            Self::Commit(digits) => (4..=64).contains(&digits.len()) && is_hex(digits),
            Self::Tag(name) | Self::Branch(name) => is_ref_name(name),
        }
    }
}

impl fmt::Display for Rev {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(name) => write!(f, "tag {name}"),
            Self::Branch(name) => write!(f, "branch {name}"),
            Self::Commit(digits) => write!(f, "commit {digits}"),
        }
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The rules of git-check-ref-format for a name below `refs/heads/` or `refs/tags/`, and a bound.
pub(crate) fn is_ref_name(name: &str) -> bool {
    let banned = |c: char| c.is_control() || matches!(c, ' ' | '~' | '^' | ':' | '?' | '*' | '[' | '\\');
    !name.is_empty()
        && name.len() <= 255
        && !name.starts_with(['-', '/'])
        && !name.ends_with(['/', '.'])
        && !name.contains("..")
        && !name.contains("//")
        && !name.contains("@{")
        && name != "@"
        && !name.contains(banned)
        && name.split('/').all(|part| !part.starts_with('.') && !part.ends_with(".lock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_versions_and_commits_pin() {
        for (text, pinned) in [
            ("v1.2.3", Some(Rev::Tag("v1.2.3".to_owned()))),
            ("3f2a9c4", Some(Rev::Commit("3f2a9c4".to_owned()))),
            ("main", None),
            ("v1.2", None),
            ("v1.2.3-rc1", None),
            ("1.2.3", None),
            ("3f2a9c", None),
            ("3F2A9C4", None),
            ("v1.2.", None),
            ("--upload-pack=x", None),
            ("", None),
        ] {
            assert_eq!(Rev::pinned(text), pinned, "{text}");
        }
    }

    #[test]
    fn names_that_git_would_misread_are_not_safe() {
        for name in ["-x", "a..b", "a b", "a:b", "a/", "/a", "a//b", ".a", "a/.b", "a.lock", "a@{1}", "", "a\nb", "@"] {
            assert!(!Rev::Branch(name.to_owned()).is_safe(), "{name}");
        }
        for name in ["main", "actual/berth", "v1.2.3", "@home"] {
            assert!(Rev::Branch(name.to_owned()).is_safe(), "{name}");
        }
    }

    #[test]
    fn object_names_are_whole() {
        assert!(Oid::parse(&"a".repeat(40)).is_some() && Oid::parse(&"A".repeat(64)).is_some());
        assert!(Oid::parse("abc").is_none() && Oid::parse(&"g".repeat(40)).is_none());
        assert!(Oid::parse(&"0".repeat(40)).is_some_and(|oid| oid.is_null()));
    }
}
