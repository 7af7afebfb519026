//! Formats of models: open names with an optional version, and what a runtime says that it takes.

use std::{borrow::Cow, fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Remedy where a machine lacks the engine of ONNX models, in the words of every part that finds it missing.
pub const ONNX_ENGINE_REMEDY: &str = "install a package of Berth, which holds the engine, or `pip install onnxruntime` and \
                                      name its folder site-packages/onnxruntime by --onnxruntime or ORT_DYLIB_PATH";

/// The format of a model: `onnx`, `sklearn:1`. Any lower-case word is a format; a worker runs those that one of its
/// runtimes takes.
#[derive(Clone)]
pub struct ModelFormat(Text);

/// The canonical text. Well-known formats, which nearly all deployments have, take no memory of their own.
#[derive(Clone)]
enum Text {
    Known(&'static str),
    Other(Arc<str>),
}

/// A text that names no format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The name is not a lower-case word.
    #[error(
        "{0:?} is not the name of a format: use 1 to 63 lower-case letters, digits, `-`, `_` and `.`, a letter or digit first"
    )]
    Name(String),
    /// The version has other characters.
    #[error(
        "{0:?} is not the version of a format: use 1 to 63 letters, digits, `-`, `_`, `.` and `+`, a letter or digit first"
    )]
    Version(String),
}

impl ModelFormat {
    /// An ONNX graph, run by the built-in engine.
    pub const ONNX: Self = Self(Text::Known("onnx"));
    /// A model card: Python code, an environment of its own, and weights, run in a process of its own.
    pub const PYTHON: Self = Self(Text::Known("python"));

    /// The most characters of a name, and of a version: as many as a label of DNS or Kubernetes holds, so that a
    /// format fits into both.
    pub const MAX: usize = 63;

    /// The format of this name and version.
    ///
    /// # Errors
    /// [`FormatError`]: the name is not a lower-case word, or the version has other characters.
    pub fn new(name: &str, version: Option<&str>) -> Result<Self, FormatError> {
        if !is_word(name, |c| c.is_ascii_lowercase() || c.is_ascii_digit(), "-_.") {
            return Err(FormatError::Name(name.to_owned()));
        }
        let Some(version) = version else {
            let known = [Self::ONNX, Self::PYTHON].into_iter().find(|known| known.as_str() == name);
            return Ok(known.unwrap_or_else(|| Self(Text::Other(name.into()))));
        };
        if !is_word(version, |c| c.is_ascii_alphanumeric(), "-_.+") {
            return Err(FormatError::Version(version.to_owned()));
        }
        Ok(Self(Text::Other(format!("{name}:{version}").into())))
    }

    /// The canonical text: `NAME` or `NAME:VERSION`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Known(text) => text,
            Text::Other(text) => text,
        }
    }

    /// The name without the version.
    #[must_use]
    pub fn name(&self) -> &str {
        self.as_str().split_once(':').map_or(self.as_str(), |(name, _)| name)
    }

    /// The version; `None`: any will do.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.as_str().split_once(':').map(|(_, version)| version)
    }

    /// A model card, whatever its version.
    #[must_use]
    pub fn is_python(&self) -> bool {
        self.name() == Self::PYTHON.as_str()
    }
}

fn is_word(text: &str, plain: impl Fn(char) -> bool, also: &str) -> bool {
    text.len() <= ModelFormat::MAX && text.starts_with(&plain) && text.chars().all(|c| plain(c) || also.contains(c))
}

impl FromStr for ModelFormat {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        match text.split_once(':') {
            Some((name, version)) => Self::new(name, Some(version)),
            None => Self::new(text, None),
        }
    }
}

impl PartialEq for ModelFormat {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for ModelFormat {}

impl PartialOrd for ModelFormat {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ModelFormat {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl std::hash::Hash for ModelFormat {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Debug for ModelFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for ModelFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for ModelFormat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ModelFormat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<'de, str>::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A format that a runtime takes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FormatSupport {
    /// The format's name, or [`ANY`](Self::ANY).
    pub name: String,
    /// The versions that it takes; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<String>,
}

impl FormatSupport {
    /// The name that stands for every format: of runtimes that say only when a model is loaded whether they take it.
    pub const ANY: &str = "*";

    /// Takes any version of `format`.
    #[must_use]
    pub fn any(format: &ModelFormat) -> Self {
        Self { name: format.name().to_owned(), versions: Vec::new() }
    }

    /// Tests a format. One without a version is taken by every runtime that takes its name.
    #[must_use]
    pub fn takes(&self, format: &ModelFormat) -> bool {
        let version = |version| self.versions.is_empty() || self.versions.iter().any(|taken| taken == version);
        self.name == Self::ANY || self.name == format.name() && format.version().is_none_or(version)
    }
}

impl fmt::Display for FormatSupport {
    /// `onnx`, or `sklearn:0,1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.versions.is_empty() { Ok(()) } else { write!(f, ":{}", self.versions.join(",")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_words_with_versions() {
        for (text, name, version) in [
            ("onnx", "onnx", None),
            ("python", "python", None),
            ("sklearn:1", "sklearn", Some("1")),
            ("a.b-c_d:1.2+cu12", "a.b-c_d", Some("1.2+cu12")),
        ] {
            let format: ModelFormat = text.parse().expect(text);
            assert_eq!((format.name(), format.version(), format.to_string().as_str()), (name, version, text));
            let stored = serde_json::to_string(&format).expect("JSON");
            assert_eq!(serde_json::from_str::<ModelFormat>(&stored).expect(text), format);
        }
        assert_eq!(serde_json::from_str::<ModelFormat>("\"onnx\"").expect("as stored by 07a8eff"), ModelFormat::ONNX);
        for text in ["", "ONNX", "a b", ":1", "onnx:", "onnx:a b", "onnx:1:2", "é", "-a", &"x".repeat(64)] {
            assert!(text.parse::<ModelFormat>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_runtime_takes_the_versions_that_it_names() {
        let sklearn = FormatSupport { name: "sklearn".to_owned(), versions: vec!["0".to_owned(), "1".to_owned()] };
        for (format, takes) in
            [("sklearn", true), ("sklearn:1", true), ("sklearn:2", false), ("onnx", false), ("sklearn2", false)]
        {
            assert_eq!(sklearn.takes(&format.parse().expect(format)), takes, "{format}");
        }
        let any = FormatSupport::any(&ModelFormat::ONNX);
        assert!(any.takes(&"onnx:1.17".parse().expect("a format")) && any.takes(&ModelFormat::ONNX));
        assert_eq!((any.to_string(), sklearn.to_string()), ("onnx".to_owned(), "sklearn:0,1".to_owned()));
    }
}
