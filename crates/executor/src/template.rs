//! Path templates: few names for many paths, so that metrics stay small.
//!
//! `/v1/models/{model}:predict` stands for every path with one segment in place of `{model}`. A placeholder stands for a part of a
//! segment that is not empty; a last segment `{rest...}` stands for all that follows.

use std::fmt;

/// Longest template, in bytes: it is a label of metrics.
const MAX_TEMPLATE_BYTES: usize = 256;

/// A template of paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PathTemplate {
    text: Box<str>,
    segments: Box<[Segment]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Text(Box<str>),
    /// Some text between these two.
    Any(Box<str>, Box<str>),
    /// All segments from here.
    Rest,
}

impl PathTemplate {
    /// Reads a template.
    ///
    /// # Errors
    /// The reason why it is none.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let Some(path) = text.strip_prefix('/') else {
            return Err(format!("the path {text:?} does not begin with a slash"));
        };
        if text.len() > MAX_TEMPLATE_BYTES || text.chars().any(|c| c.is_whitespace() || c.is_control() || c == '?') {
            return Err(format!("the path {text:?} has spaces or a query, or more than {MAX_TEMPLATE_BYTES} bytes"));
        }
        let mut segments = Vec::new();
        let mut rest = path.split('/').peekable();
        while let Some(segment) = rest.next() {
            let read = Segment::parse(segment).ok_or_else(|| {
                format!("the segment {segment:?} of {text:?} has more than one placeholder, or a brace without its other one")
            })?;
            if read == Segment::Rest && rest.peek().is_some() {
                return Err(format!("{segment:?} stands for all that follows: nothing may follow it in {text:?}"));
            }
            segments.push(read);
        }
        Ok(Self { text: text.into(), segments: segments.into() })
    }

    /// True if the template stands for a path.
    pub(crate) fn matches(&self, path: &str) -> bool {
        let Some(path) = path.strip_prefix('/') else { return false };
        let mut parts = path.split('/');
        for segment in &self.segments {
            let fits = match (segment, parts.next()) {
                (Segment::Rest, Some(_)) => return true,
                (Segment::Text(text), Some(part)) => part == &**text,
                (Segment::Any(before, after), Some(part)) => {
                    part.len() > before.len() + after.len() && part.starts_with(&**before) && part.ends_with(&**after)
                }
                (_, None) => false,
            };
            if !fits {
                return false;
            }
        }
        parts.next().is_none()
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

impl Segment {
    fn parse(text: &str) -> Option<Self> {
        let Some((before, rest)) = text.split_once('{') else {
            return (!text.contains('}')).then(|| Self::Text(text.into()));
        };
        let (name, after) = rest.split_once('}')?;
        let plain = |text: &str| !text.contains(['{', '}']);
        match name.strip_suffix("...") {
            Some(name) => {
                (!name.is_empty() && plain(name) && before.is_empty() && after.is_empty()).then_some(Self::Rest)
            }
            None => (!name.is_empty() && [before, name, after].into_iter().all(plain))
                .then(|| Self::Any(before.into(), after.into())),
        }
    }
}

/// True for a path with a segment `.` or `..`, also where dots and slashes are escaped, or parameters follow: servers differ in what they make
/// of them. Others may have escaped slashes.
pub(crate) fn has_dot_segments(path: &str) -> bool {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, after @ ..] = rest {
        let (byte, after) = match rest {
            [b'%', b'2', b'e' | b'E', after @ ..] => (b'.', after),
            [b'%', b'2', b'f' | b'F', after @ ..] | [b'%', b'5', b'c' | b'C', after @ ..] => (b'/', after),
            [b'\\', after @ ..] => (b'/', after),
            _ => (*first, after),
        };
        plain.push(byte);
        rest = after;
    }
    plain.split(|byte| *byte == b'/').any(|segment| {
        let name = segment.split(|byte| *byte == b';').next().unwrap_or_default();
        matches!(name, b"." | b"..")
    })
}

impl fmt::Display for PathTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_stand_for_paths() {
        for (template, fits, others) in [
            ("/", &["/"][..], &["", "/a", "//"][..]),
            ("/predict", &["/predict"], &["/predict/", "/Predict", "predict"]),
            (
                "/v1/models/{model}:predict",
                &["/v1/models/iris:predict"],
                &["/v1/models/:predict", "/v1/models/a/b:predict"],
            ),
            ("/v2/models/{model}/infer", &["/v2/models/a%2Fb/infer"], &["/v2/models//infer", "/v2/models/a/infer/x"]),
            ("/files/{rest...}", &["/files/", "/files/a/b"], &["/files", "/file/a"]),
        ] {
            let template = PathTemplate::parse(template).expect("it is one");
            assert!(fits.iter().all(|path| template.matches(path)), "{template}");
            assert!(!others.iter().any(|path| template.matches(path)), "{template}");
        }
    }

    #[test]
    fn segments_that_lead_elsewhere_are_found_in_each_form() {
        for path in [
            "/static/../predict",
            "/static/..",
            "/static/./a",
            "/..",
            "/static/%2e%2e/predict",
            "/static/.%2E/predict",
            "/static/%2E./predict",
            "/static/%2e",
            "/static/..%2fpredict",
            "/static%2F..%2Fpredict",
            "/static/..%5cpredict",
            "/static/..\\predict",
            "/static/..;a=b/predict",
        ] {
            assert!(has_dot_segments(path), "{path}");
        }
        for path in ["", "*", "/", "/a", "/a..", "/..a", "/...", "/a.b/c", "/a%2", "/%25", "/a%20b", "/.well-known/a"] {
            assert!(!has_dot_segments(path), "{path}");
        }
        assert!(!has_dot_segments("/v2/models/a%2Fb/infer"), "a slash in a name is no segment");
    }

    #[test]
    fn what_is_none_is_told() {
        for (text, part) in [
            ("predict", "does not begin with a slash"),
            ("/a?b=c", "a query"),
            ("/a b", "spaces"),
            ("/{a}{b}", "more than one placeholder"),
            ("/{a", "without its other one"),
            ("/a}", "without its other one"),
            ("/{}", "more than one placeholder"),
            ("/{rest...}/x", "nothing may follow"),
        ] {
            let error = PathTemplate::parse(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
