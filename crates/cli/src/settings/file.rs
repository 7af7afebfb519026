//! A configuration file: one YAML mapping whose keys are named as the flags are. Here it becomes words for the parser of
//! each flag; what they mean is not known here.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use berth_spec::manifest::{ManifestError, SourceLine, node::Position};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::Spanned;

use crate::failure::Failure;

/// A file that was read: what it says, and where.
#[derive(Debug, Clone)]
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) entries: Vec<FileSetting>,
    lines: Vec<String>,
}

/// One setting of a file.
#[derive(Debug, Clone)]
pub(super) struct FileSetting {
    pub(super) key: String,
    pub(super) key_at: Position,
    pub(super) value_at: Position,
    /// One word, or those of a list or of a mapping (`KEY=VALUE`).
    pub(super) value: SettingValue,
}

/// Value of a setting in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SettingValue {
    One(String),
    Many(Vec<String>),
}

impl SettingValue {
    /// All words of the value.
    pub(super) fn each(&self) -> &[String] {
        match self {
            Self::One(word) => std::slice::from_ref(word),
            Self::Many(words) => words,
        }
    }
}

impl File {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Failure::NotFound`], [`Failure::Failed`]: it cannot be read. [`Failure::Invalid`]: it is not such a mapping.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        Self::parse(path, &fs_err::read_to_string(path)?)
    }

    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, Failure> {
        let mut file =
            Self { path: path.to_owned(), entries: Vec::new(), lines: text.lines().map(str::to_owned).collect() };
        let options = serde_saphyr::options! { with_snippet: false, strict_booleans: true };
        match serde_saphyr::from_str_with_options::<Option<Entries>>(text, options) {
            Ok(entries) => {
                file.entries = entries.map(|entries| entries.0).unwrap_or_default();
                Ok(file)
            }
            Err(error) => {
                let at = error.location().map(Position::from).unwrap_or_default();
                let message = error.without_snippet().to_string();
                // The library ends its messages with the place, which the error has already.
                let message = message.split(" at line ").next().unwrap_or_default().to_owned();
                let remedy = "write one setting to a line, named as its flag is: `http: 127.0.0.1:8080`";
                Err(file.failure(vec![file.error(at, "", message, remedy)]))
            }
        }
    }

    /// Something that is wrong in it.
    pub(super) fn error(
        &self,
        at: Position,
        path: &str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> ManifestError {
        let line = usize::try_from(at.line).unwrap_or(0).checked_sub(1).and_then(|line| self.lines.get(line));
        ManifestError {
            file: self.path.display().to_string(),
            line: at.line,
            column: at.column,
            path: path.to_owned(),
            message: message.into(),
            remedy: remedy.into(),
            source_line: line.map(|line| SourceLine::around(line, at.column)).unwrap_or_default(),
        }
    }

    /// All that is wrong in it.
    pub(super) fn failure(&self, errors: Vec<ManifestError>) -> Failure {
        let shown: Vec<String> = errors.iter().map(ManifestError::render).collect();
        Failure::Invalid(shown.join("\n\n"))
    }
}

/// The mapping, in the order of the file.
struct Entries(Vec<FileSetting>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Mapping;
        impl<'de> Visitor<'de> for Mapping {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping of settings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Entries, A::Error> {
                let mut entries: Vec<FileSetting> = Vec::new();
                while let Some((key, value)) = fields.next_entry::<Spanned<String>, Spanned<SettingValue>>()? {
                    entries.push(FileSetting {
                        key: key.value,
                        key_at: key.referenced.into(),
                        value_at: value.referenced.into(),
                        value: value.value,
                    });
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Mapping)
    }
}

impl<'de> Deserialize<'de> for SettingValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SettingValueVisitor)
    }
}

struct SettingValueVisitor;

impl<'de> Visitor<'de> for SettingValueVisitor {
    type Value = SettingValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, a list of values, or a mapping of values")
    }

    fn visit_bool<E>(self, v: bool) -> Result<SettingValue, E> {
        Ok(SettingValue::One(v.to_string()))
    }

    fn visit_i64<E>(self, v: i64) -> Result<SettingValue, E> {
        Ok(SettingValue::One(v.to_string()))
    }

    fn visit_u64<E>(self, v: u64) -> Result<SettingValue, E> {
        Ok(SettingValue::One(v.to_string()))
    }

    fn visit_f64<E>(self, v: f64) -> Result<SettingValue, E> {
        Ok(SettingValue::One(v.to_string()))
    }

    fn visit_str<E>(self, v: &str) -> Result<SettingValue, E> {
        Ok(SettingValue::One(v.to_owned()))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<SettingValue, E> {
        Err(E::custom("there is no value: give one, or remove the key"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<SettingValue, A::Error> {
        let mut words = Vec::new();
        while let Some(item) = items.next_element::<Scalar>()? {
            words.push(item.0);
        }
        Ok(SettingValue::Many(words))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<SettingValue, A::Error> {
        let mut words = Vec::new();
        while let Some((key, value)) = fields.next_entry::<String, Scalar>()? {
            words.push(format!("{key}={}", value.0));
        }
        Ok(SettingValue::Many(words))
    }
}

/// A value inside a list or a mapping.
struct Scalar(String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match SettingValue::deserialize(deserializer)? {
            SettingValue::One(word) => Ok(Self(word)),
            SettingValue::Many(_) => {
                Err(serde::de::Error::custom("lists and mappings do not go deeper than one level"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Result<Vec<(String, u32, Vec<String>)>, String> {
        let file = File::parse(Path::new("berth.yaml"), text).map_err(|e| e.to_string())?;
        let entry = |entry: FileSetting| (entry.key, entry.key_at.line, entry.value.each().to_vec());
        Ok(file.entries.into_iter().map(entry).collect())
    }

    #[test]
    fn every_value_becomes_words() {
        let text =
            "# a node\nname: a\nthreads: 4\ninsecure: true\nlabels:\n  pool: production\n  rank: 7\njoin: [b, c:1]\n";
        let own = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let wanted = [
            ("name", 2, own(&["a"])),
            ("threads", 3, own(&["4"])),
            ("insecure", 4, own(&["true"])),
            ("labels", 5, own(&["pool=production", "rank=7"])),
            ("join", 8, own(&["b", "c:1"])),
        ];
        let wanted: Vec<_> = wanted.into_iter().map(|(key, line, words)| (key.to_owned(), line, words)).collect();
        assert_eq!(words(text), Ok(wanted));
        assert_eq!(words("# nothing yet\n"), Ok(vec![]));
        assert_eq!(words(""), Ok(vec![]));
    }

    #[test]
    fn what_is_no_mapping_of_settings_is_refused_with_its_place() {
        for (text, says) in [
            ("- a\n", "berth.yaml:1"),
            ("a: [\n", "berth.yaml:"),
            ("a: 1\nb:\n", "there is no value"),
            ("a: 1\na: 2\n", "berth.yaml:2"),
            ("a: {b: [c]}\n", "deeper than one level"),
        ] {
            let error = words(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
