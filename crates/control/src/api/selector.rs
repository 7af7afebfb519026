//! Label selectors: `app=shop,tier!=test,gpu,!legacy`, as Kubernetes' equality-based ones.

use std::{collections::BTreeMap, str::FromStr};

use super::error::ApiError;

/// Requirements on labels; all must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LabelSelector(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    Equals(String, String),
    Differs(String, String),
    Exists(String),
    Absent(String),
}

/// Most requirements in one selector. Bounds the cost of filtering a page.
const MAX_REQUIREMENTS: usize = 64;

impl LabelSelector {
    /// Requirements that the controller can filter: labels with one value.
    pub(crate) fn equalities(&self) -> BTreeMap<String, String> {
        let equality = |requirement: &Requirement| match requirement {
            Requirement::Equals(key, value) => Some((key.clone(), value.clone())),
            _ => None,
        };
        self.0.iter().filter_map(equality).collect()
    }

    /// True if [`equalities`](Self::equalities) covers all requirements.
    pub(crate) fn only_equalities(&self) -> bool {
        self.equalities().len() == self.0.len()
    }

    /// True if `labels` meet all requirements.
    pub(crate) fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::Equals(key, value) => labels.get(key) == Some(value),
            Requirement::Differs(key, value) => labels.get(key) != Some(value),
            Requirement::Exists(key) => labels.contains_key(key),
            Requirement::Absent(key) => !labels.contains_key(key),
        })
    }
}

impl FromStr for LabelSelector {
    type Err = ApiError;

    fn from_str(text: &str) -> Result<Self, ApiError> {
        let parts: Vec<&str> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
        if parts.len() > MAX_REQUIREMENTS {
            let message =
                format!("a label selector has at most {MAX_REQUIREMENTS} parts, this one has {}", parts.len());
            return Err(ApiError::invalid("labelSelector", message, "ask for fewer, or filter the answer"));
        }
        parts.into_iter().map(requirement).collect::<Result<_, _>>().map(Self)
    }
}

fn requirement(part: &str) -> Result<Requirement, ApiError> {
    let own = |text: &str| text.trim().to_owned();
    let requirement = if let Some((key, value)) = part.split_once("!=") {
        Requirement::Differs(own(key), own(value))
    } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        Requirement::Equals(own(key), own(value))
    } else if let Some(key) = part.strip_prefix('!') {
        Requirement::Absent(own(key))
    } else {
        Requirement::Exists(own(part))
    };
    let (Requirement::Equals(key, _)
    | Requirement::Differs(key, _)
    | Requirement::Exists(key)
    | Requirement::Absent(key)) = &requirement;
    if key.is_empty() || key.contains(|c: char| c.is_whitespace() || "=!<>()".contains(c)) {
        return Err(ApiError::invalid(
            "labelSelector",
            format!("{part:?} is not a part of a label selector"),
            "write key=value, key!=value, key or !key, joined by commas",
        ));
    }
    Ok(requirement)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects() {
        let labels: BTreeMap<String, String> =
            [("app", "shop"), ("tier", "gold")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        for (selector, expected) in [
            ("", true),
            ("app=shop", true),
            ("app==shop , tier", true),
            ("app=shop,tier!=gold", false),
            ("missing!=x,!missing", true),
            ("!app", false),
            ("missing", false),
        ] {
            let selector: LabelSelector = selector.parse().expect(selector);
            assert_eq!(selector.matches(&labels), expected, "{selector:?}");
        }
    }

    #[test]
    fn refuses() {
        for bad in ["=x", "!", "a in (b)", "a>1", "a=b=c!", &"a,".repeat(65)] {
            let parsed = bad.parse::<LabelSelector>();
            assert_eq!(parsed.is_err(), bad != "a=b=c!", "{bad}: {parsed:?}");
        }
    }
}
