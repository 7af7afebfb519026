//! The path at which a gateway serves a model's own JSON.

use url::Url;

use super::scalar::Problem;

/// Paths that the gateway has uses of its own for.
const TAKEN: [&str; 4] = ["/v2", "/health", "/metrics", "/berth"];

/// The longest path, in bytes: more than anybody types, and short enough for tables and logs.
const MAX: usize = 512;

/// The path at which gateways answer for an `endpoint`.
///
/// # Errors
/// The reason that they cannot, and the remedy.
pub fn endpoint_path(text: &str) -> Result<String, (String, String)> {
    path(text).map_err(|Problem { message, remedy }| (message, remedy))
}

/// The path of `text`: a path, or an http(s) URL that has one.
///
/// # Errors
/// No path, a path that is not plain, or one that the gateway uses for something else.
pub(super) fn path(text: &str) -> Result<String, Problem> {
    let remedy = "write for example https://api.example.com/v1/sentiment, or /v1/sentiment";
    let path = if text.starts_with('/') {
        text.to_owned()
    } else {
        let url = Url::parse(text).map_err(|error| Problem::new(format!("{text:?} is no URL: {error}"), remedy))?;
        if !matches!(url.scheme(), "http" | "https") || url.query().is_some() || url.fragment().is_some() {
            return Err(Problem::new(format!("{text:?} is not the address of an HTTP endpoint"), remedy));
        }
        url.path().to_owned()
    };
    let path = path.trim_end_matches('/');
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.' | '~');
    if path.is_empty() || path.len() > MAX || !path.chars().all(plain) || path.contains("//") || path.contains("/.") {
        let problem = format!("{text:?} has no path of plain words that the gateway could answer at");
        return Err(Problem::new(problem, remedy));
    }
    let within = |taken: &str| path.strip_prefix(taken).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    match TAKEN.into_iter().find(|taken| within(taken)) {
        Some(taken) => Err(Problem::new(format!("the gateway itself answers below {taken}"), "choose another path")),
        None => Ok(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        for (text, wanted) in [
            ("https://api.acme.com/v1/sentiment", Some("/v1/sentiment")),
            ("/v1/sentiment/", Some("/v1/sentiment")),
            ("/v2x", Some("/v2x")),
            ("https://api.acme.com", None),
            ("https://api.acme.com/v2/models/x", None),
            ("/v2", None),
            ("/a/../b", None),
            ("/a//b", None),
            ("/a b", None),
            ("ftp://x/y", None),
            ("http://x/y?q=1", None),
            ("", None),
            ("v1/x", None),
        ] {
            assert_eq!(path(text).ok().as_deref(), wanted, "{text}");
        }
    }
}
