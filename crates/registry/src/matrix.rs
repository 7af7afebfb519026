//! Compatibility matrix of model card versions.

use std::collections::BTreeMap;

use berth_spec::manifest::closest;
use serde::Deserialize;

use crate::{
    document::Document,
    problem::{Problem, Step},
    schema::MATRIX,
};

/// A version, MAJOR.MINOR.PATCH.
type Version = (u64, u64, u64);

/// The matrix, its rules kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    versions: BTreeMap<Version, Row>,
}

/// Row of the matrix for one version.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    compatible_with: Vec<String>,
    #[serde(default)]
    breaking_changes: Vec<String>,
    #[serde(default, rename = "features_added")]
    _features_added: Vec<String>,
    #[serde(default)]
    deprecated: bool,
    #[serde(default)]
    sunset_date: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MatrixDocument {
    compatibility: BTreeMap<String, Row>,
    #[serde(default, rename = "rules")]
    _rules: Vec<String>,
}

/// Status of a version on a given day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionStatus<'a> {
    /// Supported, without an end.
    Current,
    /// In use until a day, if one is named.
    Deprecated(Option<&'a str>),
    /// Out of use since this day.
    Sunset(&'a str),
    /// The matrix does not name it.
    Unknown,
}

impl Matrix {
    /// The one that this Berth comes with.
    #[must_use]
    pub fn embedded() -> Self {
        Self::read(MATRIX, "compatibility-matrix.yaml").expect("the embedded matrix keeps its own rules")
    }

    /// Reads a matrix and checks that it keeps the rules.
    ///
    /// # Errors
    /// All that breaks one of them.
    pub fn read(text: &str, file: &str) -> Result<Self, Vec<Problem>> {
        let problem = |message: String| Problem::new(Step::Structure, "matrix", file, message);
        let document = Document::read(text, file, Step::Structure).map_err(|found| vec![*found])?;
        let Some(document) = document else {
            return Err(vec![problem("the matrix is empty".to_owned()).remedy("`berth schema matrix` prints one")]);
        };
        let text_of: MatrixDocument = Document::typed(document.json.clone()).map_err(|(pointer, error)| {
            let (place, path) = document.place(&pointer);
            let problem = problem(format!("this is no matrix: {error}")).at(place, &path, text);
            vec![problem.remedy("`berth schema matrix` prints one")]
        })?;
        let at = |version: &str, field: &str, message: String, remedy: &str| {
            let pointer = format!("/compatibility/{version}{field}");
            let (place, path) = document.place(&pointer);
            problem(message).at(place, &path, text).remedy(remedy)
        };
        let mut problems = Vec::new();
        let mut versions = BTreeMap::new();
        for (name, row) in text_of.compatibility {
            match version(&name) {
                Some(parsed) => drop(versions.insert(parsed, (name, row))),
                None => problems.push(at(&name, "", format!("{name:?} is no version"), "write MAJOR.MINOR.PATCH")),
            }
        }
        for (parsed, (name, row)) in &versions {
            for (field, message, remedy) in broken(*parsed, row, versions.keys()) {
                problems.push(at(name, field, format!("{name} {message}"), remedy));
            }
        }
        if problems.is_empty() {
            Ok(Self { versions: versions.into_iter().map(|(version, (_, row))| (version, row)).collect() })
        } else {
            Err(problems)
        }
    }

    /// True if a worker that supports `supported` can load a card of version `card`.
    #[must_use]
    pub fn supports<'a>(&self, supported: impl IntoIterator<Item = &'a str>, card: &str) -> bool {
        supported.into_iter().any(|own| {
            let row = version(own).and_then(|own| self.versions.get(&own));
            own == card || row.is_some_and(|row| row.compatible_with.iter().any(|other| other == card))
        })
    }

    /// Status of a version on the day `today` (`2026-01-31`).
    #[must_use]
    pub fn status(&self, name: &str, today: &str) -> VersionStatus<'_> {
        let Some(row) = version(name).and_then(|parsed| self.covering(parsed)) else { return VersionStatus::Unknown };
        match row.sunset_date.as_deref() {
            // Dates of this form compare as texts.
            Some(day) if day <= today => VersionStatus::Sunset(day),
            Some(day) => VersionStatus::Deprecated(Some(day)),
            None if row.deprecated => VersionStatus::Deprecated(None),
            None => VersionStatus::Current,
        }
    }

    /// The row of a version; an older one that has none stands as the newest that still reads it.
    fn covering(&self, parsed: Version) -> Option<&Row> {
        self.versions.get(&parsed).or_else(|| {
            let name = format!("{}.{}.{}", parsed.0, parsed.1, parsed.2);
            self.versions.values().rev().find(|row| row.compatible_with.contains(&name))
        })
    }

    /// The whole matrix in lines, for messages: `3.1.0 reads 3.0.0, 3.1.0`.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let line = |(version, row): (&Version, &Row)| {
            let end = row.sunset_date.as_ref().map_or_else(String::new, |day| format!(" (until {day})"));
            format!("{}.{}.{} reads {}{end}", version.0, version.1, version.2, row.compatible_with.join(", "))
        };
        self.versions.iter().rev().map(line).collect()
    }

    /// The version of the matrix that `word` was most likely meant to be.
    #[must_use]
    pub fn near(&self, word: &str) -> Option<String> {
        let names: Vec<String> = self.versions.keys().map(|v| format!("{}.{}.{}", v.0, v.1, v.2)).collect();
        closest(word, names.iter().map(String::as_str)).map(str::to_owned)
    }
}

/// The rules that a row breaks: field, message, remedy.
fn broken<'a>(
    own: Version,
    row: &Row,
    all: impl Iterator<Item = &'a Version>,
) -> Vec<(&'static str, String, &'static str)> {
    const FIELD: &str = "/compatible_with";
    let mut found = Vec::new();
    let others: Vec<Option<Version>> = row.compatible_with.iter().map(|name| version(name)).collect();
    for (other, name) in others.iter().zip(&row.compatible_with) {
        match other {
            None => found.push((
                FIELD,
                format!("is compatible with {name:?}, which is no version"),
                "write MAJOR.MINOR.PATCH",
            )),
            Some(other) if other.0 != own.0 => {
                let message = format!("cannot be compatible with {name}: another major version is a breaking change");
                found.push((FIELD, message, "remove it"));
            }
            Some(other) if *other > own => {
                found.push((FIELD, format!("cannot be compatible with {name}, which came later"), "remove it"));
            }
            Some(_) => {}
        }
    }
    if !others.contains(&Some(own)) {
        found.push((FIELD, "is not compatible with itself".to_owned(), "add it to its own list"));
    }
    for earlier in all.filter(|other| other.0 == own.0 && **other < own) {
        if !others.contains(&Some(*earlier)) {
            let message = format!(
                "is not compatible with {}.{}.{}: a minor version keeps what came before",
                earlier.0, earlier.1, earlier.2
            );
            found.push((FIELD, message, "add it, or make this a new major version"));
        } else if !row.breaking_changes.is_empty() {
            let message = "names breaking changes, which only a new major version may have".to_owned();
            found.push(("/breaking_changes", message, "remove them, or make this a new major version"));
        }
    }
    match &row.sunset_date {
        Some(day) if !is_day(day) => {
            found.push((
                "/sunset_date",
                format!("has the sunset date {day:?}, which is no day"),
                "write \"2026-01-31\"",
            ));
        }
        Some(_) if !row.deprecated => {
            found.push(("/sunset_date", "has a sunset date but is not deprecated".to_owned(), "add deprecated: true"));
        }
        _ => {}
    }
    found
}

/// True if the text is a date such as `2026-01-31`.
fn is_day(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts.as_slice() else { return false };
    let number = |part: &str, digits: usize| {
        let plain = part.len() == digits && part.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| part.parse::<u16>().ok()).flatten()
    };
    let (Some(year), Some(month), Some(day)) = (number(year, 4), number(month, 2), number(day, 2)) else {
        return false;
    };
    let month = u8::try_from(month).ok().and_then(|month| time::Month::try_from(month).ok());
    month.is_some_and(|month| u8::try_from(day).is_ok_and(|day| (1..=month.length(i32::from(year))).contains(&day)))
}

fn version(text: &str) -> Option<Version> {
    let mut parts = text.split('.').map(|part| {
        let plain = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| part.parse::<u64>().ok()).flatten()
    });
    let found = (parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_matrix_keeps_its_rules() {
        let matrix = Matrix::embedded();
        assert!(matrix.supports(["3.1.0"], "3.0.0") && !matrix.supports(["3.0.0"], "3.1.0"));
        assert!(matrix.supports(["2.2.0"], "2.0.0") && !matrix.supports(["2.2.0"], "3.0.0"));
        assert_eq!(matrix.status("3.0.0", "2026-11-22"), VersionStatus::Current);
        assert_eq!(matrix.status("2.1.0", "2025-12-31"), VersionStatus::Deprecated(Some("2026-01-01")));
        assert_eq!(matrix.status("2.2.0", "2026-01-01"), VersionStatus::Sunset("2026-01-01"));
        assert_eq!(matrix.status("9.0.0", "2026-01-01"), VersionStatus::Unknown);
    }

    #[test]
    fn a_matrix_may_have_its_rules_in_words() {
        let text = "compatibility:\n  \"3.0.0\":\n    compatible_with: [\"3.0.0\"]\n    breaking_changes: []\n  \"3.1.0\":\n    \
                    compatible_with: [\"3.0.0\", \"3.1.0\"]\n    features_added: [Added gpu_type field]\n  \"2.2.0\":\n    \
                    compatible_with: [\"2.0.0\", \"2.1.0\", \"2.2.0\"]\n    breaking_changes: [Removed inline code support]\n    \
                    deprecated: true\n    sunset_date: \"2026-01-01\"\nrules:\n  - Major version bumps are ALWAYS breaking\n";
        assert_eq!(Matrix::read(text, "m.yaml").map(|matrix| matrix.lines()), Ok(Matrix::embedded().lines()));
    }

    #[test]
    fn a_matrix_that_breaks_a_rule_is_refused() {
        for (rows, part) in [
            ("\"3.0.0\": {compatible_with: [\"3.0.0\", \"2.2.0\"]}", "another major version"),
            ("\"3.0.0\": {compatible_with: [\"3.0.0\", \"3.1.0\"]}", "came later"),
            ("\"3.0.0\": {compatible_with: []}", "not compatible with itself"),
            (
                "\"3.0.0\": {compatible_with: [\"3.0.0\"]}\n  \"3.1.0\": {compatible_with: [\"3.1.0\"]}",
                "keeps what came before",
            ),
            (
                "\"3.0.0\": {compatible_with: [\"3.0.0\"]}\n  \"3.1.0\": {compatible_with: [\"3.0.0\", \"3.1.0\"], breaking_changes: [x]}",
                "only a new major version",
            ),
            ("\"3.0\": {compatible_with: []}", "no version"),
            ("\"3.0.0\": {compatible_with: [\"3.0.0\"], deprecated: true, sunset_date: soon}", "no day"),
            ("\"3.0.0\": {compatible_with: [\"3.0.0\"], deprecated: true, sunset_date: \"2026-02-30\"}", "no day"),
            ("\"3.0.0\": {compatible_with: [\"3.0.0\"], sunset_date: \"2026-01-01\"}", "not deprecated"),
            ("\"3.0.0\": {compatible_with: [\"3.0.0\"], sunset_dat: \"2026-01-01\"}", "unknown field `sunset_dat`"),
            ("\"3.0.0\": {}", "no matrix"),
        ] {
            let problems = Matrix::read(&format!("compatibility:\n  {rows}\n"), "m.yaml").expect_err(part);
            assert!(problems.iter().any(|problem| problem.message.contains(part)), "{part}: {problems:?}");
        }
    }
}
