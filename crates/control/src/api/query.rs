//! Query parameters, read strictly: what is not known is an error with a suggestion, so that a typing error in
//! `?dryRun=true` never applies for real.

use std::collections::BTreeMap;

use url::form_urlencoded;

use super::error::ApiError;

/// The parameters of one request.
#[derive(Debug, Default)]
pub(crate) struct Query(BTreeMap<String, String>);

impl Query {
    /// Reads `raw`, the part after the question mark; only `known` names, each at most once.
    pub(crate) fn parse(raw: Option<&str>, known: &[&str]) -> Result<Self, ApiError> {
        let mut values = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(raw.unwrap_or_default().as_bytes()) {
            if !known.contains(&name.as_ref()) {
                return Err(unknown(&name, known));
            }
            if values.insert(name.to_string(), value.into_owned()).is_some() {
                let message = format!("the query parameter {name:?} is given twice");
                return Err(ApiError::invalid(&name, message, "give it once"));
            }
        }
        Ok(Self(values))
    }

    /// The value of a parameter; an empty one counts as not given.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// `true` or `false`; `?watch` alone is `true`, absent is `false`.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.0.get(name).map(String::as_str) {
            None | Some("false") => Ok(false),
            Some("true" | "") => Ok(true),
            Some(other) => Err(ApiError::invalid(
                name,
                format!("the query parameter {name} is {other:?}"),
                format!("write {name}=true or {name}=false"),
            )),
        }
    }

    /// The parameter `name` as a number from 1 to `max`; `None` if it is not given. Fails if it is another text.
    pub(crate) fn number(&self, name: &str, max: usize) -> Result<Option<usize>, ApiError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.parse() {
            Ok(number) if (1..=max).contains(&number) => Ok(Some(number)),
            _ => Err(ApiError::invalid(
                name,
                format!("the query parameter {name} is {text:?}"),
                format!("write a number from 1 to {max}"),
            )),
        }
    }
}

fn unknown(name: &str, known: &[&str]) -> ApiError {
    let remedy = match (nearest(name, known.iter().copied()), known) {
        (Some(near), _) => format!("did you mean {near:?}?"),
        (None, []) => "this path takes none".to_owned(),
        (None, known) => format!("this path takes {}", known.join(", ")),
    };
    ApiError::invalid(name, format!("unknown query parameter {name:?}: {remedy}"), remedy)
}

/// Known word that is closest to `word`, as a suggestion.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // 0.75 lets one wrong letter in four pass ("iirs" for "iris"); at 0.9 only endings differ, at 0.6 strangers match.
    const ALIKE: f64 = 0.75;
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(word, candidate), candidate))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[&str] = &["labelSelector", "limit", "continue", "watch"];

    #[test]
    fn values() {
        let query = Query::parse(Some("labelSelector=a%3Db&limit=5&watch"), KNOWN).expect("all are known");
        assert_eq!(query.text("labelSelector"), Some("a=b"));
        assert_eq!(query.number("limit", 10), Ok(Some(5)));
        assert_eq!(query.flag("watch"), Ok(true));
        assert_eq!(query.text("continue"), None);
        assert!(query.number("limit", 4).is_err());
        assert_eq!(Query::parse(None, &[]).expect("empty").flag("watch"), Ok(false));
    }

    #[test]
    fn mistakes_get_a_suggestion() {
        for (raw, says) in [
            ("labelselector=x", "labelSelector"),
            ("wacth=true", "watch"),
            ("zzz=1", "this path takes labelSelector, limit, continue, watch"),
            ("limit=1&limit=2", "twice"),
        ] {
            let error = Query::parse(Some(raw), KNOWN).expect_err(raw).info();
            assert!(error.message.contains(says), "{raw}: {}", error.message);
            assert_eq!(error.code, 400);
        }
        let query = Query::parse(Some("watch=yes&limit=many"), KNOWN).expect("names are known");
        assert!(query.flag("watch").is_err() && query.number("limit", 10).is_err());
    }

    #[test]
    fn nearest_words() {
        let names = ["iris", "resnet", "embedder"];
        assert_eq!(nearest("irsi", names), Some("iris"));
        assert_eq!(nearest("resnet50", names), Some("resnet"));
        assert_eq!(nearest("qqq", names), None);
    }
}
