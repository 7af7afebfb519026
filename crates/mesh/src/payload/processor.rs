//! One payload processor: where payloads go, and which.

use std::{fmt, str::FromStr};

use reqwest::Url;

/// A payload processor, from a URI: `logger://*?MODEL#METHOD` or `http://HOST/PATH?MODEL#METHOD`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Processor {
    pub(super) to: Destination,
    /// The id of a model or of an alias; `None`: all.
    model: Option<String>,
    /// The name of a method, or only its last part; `None`: all.
    method: Option<String>,
}

/// The place that a processor's URI names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Destination {
    Log,
    Http(Url),
}

/// The error of a URI that names no processor, with the schemes that there are.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{uri:?} names no payload processor: {why}")]
pub struct NoProcessor {
    uri: String,
    why: String,
}

impl FromStr for Processor {
    type Err = NoProcessor;

    fn from_str(uri: &str) -> Result<Self, NoProcessor> {
        let wrong = |why: &str| NoProcessor { uri: without_user(uri), why: why.to_owned() };
        let (rest, fragment) = uri.split_once('#').map_or((uri, None), |(rest, method)| (rest, Some(method)));
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        // `?MODEL?METHOD` is written, too.
        let (model, second) = query.split_once('?').map_or((query, None), |(model, method)| (model, Some(method)));
        let filter = |text: &str| {
            let text = text.strip_prefix('/').unwrap_or(text);
            Some(text.to_owned()).filter(|text| !text.is_empty() && text != "*")
        };
        let to = match place.split_once("://").map(|(scheme, _)| scheme) {
            Some("logger") => Destination::Log,
            Some("http" | "https") => {
                let mut url: Url = place.parse().map_err(|error| wrong(&format!("it is no URL: {error}")))?;
                // Where ModelMesh sends its filter along, services may route by it.
                url.set_query(Some(query).filter(|query| !query.is_empty()));
                Destination::Http(url)
            }
            _ => return Err(wrong("it begins with logger://, http:// or https://")),
        };
        Ok(Self { to, model: filter(model), method: fragment.or(second).and_then(filter) })
    }
}

impl fmt::Display for Processor {
    /// The kind, and of a service its host: nothing that could be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.to {
            Destination::Log => f.write_str("logger"),
            Destination::Http(url) => {
                write!(f, "{}://{}", url.scheme(), url.host_str().unwrap_or_default())?;
                url.port().map_or(Ok(()), |port| write!(f, ":{port}"))
            }
        }
    }
}

impl Processor {
    /// True if it asks for payloads of this model, by this alias, of this method.
    pub(super) fn wants(&self, model: &str, alias: Option<&str>, method: &str) -> bool {
        let is_model = |wanted: &str| wanted == model || alias == Some(wanted);
        let is_method = |wanted: &str| wanted == method || method.rsplit('/').next() == Some(wanted);
        self.model.as_deref().is_none_or(is_model) && self.method.as_deref().is_none_or(is_method)
    }
}

/// A URI without what may be a password.
fn without_user(uri: &str) -> String {
    match uri.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.split_once('@')?.1))) {
        Some((scheme, rest)) => format!("{scheme}://{rest}"),
        None => uri.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_written_as_modelmesh_writes_them() {
        for (uri, shown, model, method) in [
            ("logger://*", "logger", None, None),
            ("logger:///*?pytorch1234#predict", "logger", Some("pytorch1234"), Some("predict")),
            ("logger://*?pytorch1234?predict", "logger", Some("pytorch1234"), Some("predict")),
            ("logger://*?*#a.B/c", "logger", None, Some("a.B/c")),
            ("http://10.10.10.1:8080/consumer/kserve/v2", "http://10.10.10.1:8080", None, None),
            ("https://user:secret@sink/v2?/mine", "https://sink", Some("mine"), None),
        ] {
            let read: Processor = uri.parse().expect(uri);
            assert_eq!(read.to_string(), shown);
            assert_eq!((read.model.as_deref(), read.method.as_deref()), (model, method), "{uri}");
        }
        for uri in ["", "kafka://x", "http://", "logger"] {
            assert!(uri.parse::<Processor>().is_err(), "{uri}");
        }
        let told = "ftp://me:secret@host".parse::<Processor>().expect_err("no processor").to_string();
        assert!(!told.contains("secret"), "{told}");
    }

    #[test]
    fn filters_are_by_model_or_alias_and_by_method_or_its_last_part() {
        let wants = |uri: &str, model, alias, method| {
            uri.parse::<Processor>().is_ok_and(|read| read.wants(model, alias, method))
        };
        assert!(wants("logger://*", "a", None, "x.Y/z"));
        assert!(wants("logger://*?a#z", "a", None, "x.Y/z") && wants("logger://*?a#x.Y/z", "a", None, "x.Y/z"));
        assert!(wants("logger://*?v", "a", Some("v"), "x.Y/z"));
        assert!(!wants("logger://*?v", "a", None, "x.Y/z") && !wants("logger://*#y", "a", None, "x.Y/z"));
        assert!(wants("logger://*#infer", "a", None, "v2/models/a/infer"));
    }
}
