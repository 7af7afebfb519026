//! The name of a deployment: a namespace, and a name in it.
//!
//! One text says both, the *written form*: `iris` is `iris` in the namespace `default`, everything else is
//! `NAMESPACE/NAME`. It stands in messages, stored keys, JSON and between nodes. In memory a name is one shared text with
//! the namespace always in front, so that names sort by namespace and comparing them costs one comparison of bytes.

use std::{
    borrow::Cow,
    fmt,
    hash::{Hash, Hasher},
    str::FromStr,
    sync::Arc,
};

use equivalent::Equivalent;
use serde::{Deserialize, Serialize};

use super::coded;

/// The longest name of a deployment, in characters: the longest that Kubernetes gives an object.
pub const MAX_NAME: usize = 253;

/// The longest namespace, in bytes: a DNS label, as in Kubernetes.
pub const MAX_NAMESPACE: usize = 63;

/// The namespace of those who name none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// The reason that a string is not a name, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// The name is empty.
    #[error("a name must not be empty: give at least one character")]
    Empty,
    /// The name has more characters than [`MAX_NAME`].
    #[error("a name has at most {MAX_NAME} characters, this one has {0}: shorten it")]
    TooLong(usize),
    /// A character that cannot be seen, or changes the order of those around it.
    #[error("{0:?} is not allowed in a name: remove this invisible character")]
    Invisible(char),
    /// White space at the beginning or the end.
    #[error("a name must not begin or end with white space, here {0:?}: remove it")]
    WhiteSpace(char),
    /// `.` or `..`, which paths give another meaning.
    #[error("{0:?} is not a name, because paths give it another meaning: choose another name")]
    Dots(String),
    /// The namespace is empty.
    #[error("a namespace must not be empty: write NAMESPACE/NAME, or NAME for the namespace {DEFAULT_NAMESPACE:?}")]
    NoNamespace,
    /// The namespace is longer than [`MAX_NAMESPACE`].
    #[error("a namespace has at most {MAX_NAMESPACE} characters, this one has {0}: shorten it")]
    NamespaceTooLong(usize),
    /// A character that a namespace cannot have.
    #[error(
        "{0:?} is not allowed in a namespace: use lower-case letters, digits and '-', and begin and end with a letter or digit"
    )]
    NamespaceCharacter(char),
}

/// A namespace: names are unique in it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Namespace(Cow<'static, str>);

impl Namespace {
    /// The namespace of those who name none.
    pub const DEFAULT: Self = Self(Cow::Borrowed(DEFAULT_NAMESPACE));

    /// Checks the form: a DNS label.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        check_namespace(text)?;
        Ok(if text == DEFAULT_NAMESPACE { Self::DEFAULT } else { Self(Cow::Owned(text.to_owned())) })
    }

    /// The namespace as text, without a slash.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl TryFrom<String> for Namespace {
    type Error = InvalidName;
    fn try_from(text: String) -> Result<Self, InvalidName> {
        Self::new(&text)
    }
}

impl FromStr for Namespace {
    type Err = InvalidName;
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        Self::new(text)
    }
}

impl From<Namespace> for String {
    fn from(namespace: Namespace) -> Self {
        namespace.0.into_owned()
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a deployment, namespace included: also the model name that clients send.
///
/// Sorted by the text `NAMESPACE/NAME`: names of one namespace are together, and a prefix of the stored keys.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeploymentName(Arc<str>);

impl DeploymentName {
    /// Reads the written form: `NAME` in the default namespace, or `NAMESPACE/NAME`.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        let (namespace, name) = text.split_once('/').unwrap_or((DEFAULT_NAMESPACE, text));
        check_namespace(namespace)?;
        Self::checked(namespace, name)
    }

    /// The whole of `name`, slashes included, in a namespace.
    pub fn within(namespace: &Namespace, name: &str) -> Result<Self, InvalidName> {
        Self::checked(namespace.as_str(), name)
    }

    /// The same name in another namespace.
    #[must_use]
    pub fn moved_to(&self, namespace: &Namespace) -> Self {
        Self(format!("{namespace}/{}", self.name()).into())
    }

    fn checked(namespace: &str, name: &str) -> Result<Self, InvalidName> {
        check_name(name)?;
        Ok(Self(format!("{namespace}/{name}").into()))
    }

    /// The written form: what [`new`](Self::new) reads.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self.parts() {
            (DEFAULT_NAMESPACE, name) if !name.contains('/') => name,
            _ => &self.0,
        }
    }

    /// The namespace, also where the written form leaves it out.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.parts().0
    }

    /// The name in its namespace: what clients send as the model's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.parts().1
    }

    /// The id by which model servers and ModelMesh's users know a model: the name alone in `default`, else the written form. Two
    /// models may have the same.
    #[must_use]
    pub fn model_id(&self) -> &str {
        match self.parts() {
            (DEFAULT_NAMESPACE, name) => name,
            _ => &self.0,
        }
    }

    /// Both, to look up in a map without making a name.
    #[must_use]
    pub fn key(&self) -> NameKey<'_> {
        let (namespace, name) = self.parts();
        NameKey { namespace, name }
    }

    /// The namespace as a type of its own.
    #[must_use]
    pub fn to_namespace(&self) -> Namespace {
        match self.namespace() {
            DEFAULT_NAMESPACE => Namespace::DEFAULT,
            other => Namespace(Cow::Owned(other.to_owned())),
        }
    }

    /// The written form as one segment of a URL, or the value of a header.
    #[must_use]
    pub fn coded(&self) -> Cow<'_, str> {
        coded::percent_encode(self.as_str())
    }

    /// A file name for it: the same for the same name, different for different ones, at most 64 bytes long. Names that
    /// are short, lower case and in the default namespace are themselves.
    #[must_use]
    pub fn file_name(&self) -> String {
        coded::file_name(self.as_str())
    }

    /// A bound that sorts before every name of a namespace and after those of the one before it. Not a name.
    #[must_use]
    pub fn before_all_of(namespace: &Namespace) -> Self {
        Self(format!("{namespace}/").into())
    }

    fn parts(&self) -> (&str, &str) {
        self.0.split_once('/').unwrap_or((DEFAULT_NAMESPACE, &self.0))
    }
}

/// A namespace and a name that need not be valid, to look up in a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NameKey<'a> {
    /// The namespace, never left out.
    pub namespace: &'a str,
    /// The name in the namespace.
    pub name: &'a str,
}

impl<'a> NameKey<'a> {
    /// A key for a name in the namespace `default`.
    #[must_use]
    pub const fn in_default(name: &'a str) -> Self {
        Self { namespace: DEFAULT_NAMESPACE, name }
    }
}

impl Equivalent<DeploymentName> for NameKey<'_> {
    fn equivalent(&self, name: &DeploymentName) -> bool {
        *self == name.key()
    }
}

/// The hash of its [`NameKey`], so that maps can be asked by one.
impl Hash for DeploymentName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

fn check_namespace(text: &str) -> Result<(), InvalidName> {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let (Some(first), Some(last)) = (text.chars().next(), text.chars().last()) else {
        return Err(InvalidName::NoNamespace);
    };
    if let Some(c) = text.chars().find(|&c| !edge(c) && c != '-') {
        return Err(InvalidName::NamespaceCharacter(c));
    }
    if let Some(c) = [first, last].into_iter().find(|&c| !edge(c)) {
        return Err(InvalidName::NamespaceCharacter(c));
    }
    if text.len() > MAX_NAMESPACE {
        return Err(InvalidName::NamespaceTooLong(text.len()));
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), InvalidName> {
    let (Some(first), Some(last)) = (name.chars().next(), name.chars().last()) else {
        return Err(InvalidName::Empty);
    };
    if let Some(c) = name.chars().find(|&c| is_invisible(c)) {
        return Err(InvalidName::Invisible(c));
    }
    if let Some(c) = [first, last].into_iter().find(|c| c.is_whitespace()) {
        return Err(InvalidName::WhiteSpace(c));
    }
    if matches!(name, "." | "..") {
        return Err(InvalidName::Dots(name.to_owned()));
    }
    match name.chars().count() {
        count if count > MAX_NAME => Err(InvalidName::TooLong(count)),
        _ => Ok(()),
    }
}

/// Control characters, line separators, and the marks that turn the direction of a line around: a log or a table that
/// shows one shows something else than what is there.
fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

impl TryFrom<String> for DeploymentName {
    type Error = InvalidName;
    fn try_from(text: String) -> Result<Self, InvalidName> {
        Self::new(&text)
    }
}

impl FromStr for DeploymentName {
    type Err = InvalidName;
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        Self::new(text)
    }
}

impl From<DeploymentName> for String {
    fn from(name: DeploymentName) -> Self {
        name.as_str().to_owned()
    }
}

impl fmt::Display for DeploymentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for DeploymentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
