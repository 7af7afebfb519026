//! Locations of artifacts: which schemes, in which form, and never with a credential inside.

use url::Url;

use super::{scalar::Problem, suggest::closest};
use crate::opaque::{self, OpaqueModel};

/// The schemes that an artifact store exists for, and that of models which their runtimes find by themselves.
const SCHEMES: [&str; 9] = ["file", "http", "https", "s3", "gs", "az", STORAGE, VOLUME, opaque::SCHEME];

/// The scheme of paths in a storage that the worker knows by name: `storage://KEY/PATH?bucket=BUCKET`.
pub(crate) const STORAGE: &str = "storage";

/// The scheme of paths in a volume that is mounted where the worker runs: `pvc://NAME/PATH`.
pub(crate) const VOLUME: &str = "pvc";

/// Query parameters that are credentials: signed links of S3, Google and Azure, and plain tokens.
const SECRETS: [&str; 9] = [
    "x-amz-signature",
    "x-amz-security-token",
    "x-goog-signature",
    "awsaccesskeyid",
    "signature",
    "sig",
    "token",
    "access_token",
    "api_key",
];

/// Checks the form of an artifact's location.
pub(crate) fn check(text: &str) -> Result<(), Problem> {
    let Some((scheme, rest)) = text.split_once(':') else {
        let remedy = format!("for a file beside the manifest write file:{text}");
        return Err(Problem::new(format!("{text:?} has no scheme"), remedy));
    };
    if !SCHEMES.contains(&scheme) {
        let remedy = match closest(scheme, SCHEMES) {
            Some(near) => format!("did you mean {near}:{rest}?"),
            None => format!("use one of {}", SCHEMES.join(", ")),
        };
        return Err(Problem::new(format!("artifacts cannot be fetched over {scheme:?}"), remedy));
    }
    if text.chars().any(|c| c.is_control() || c == '\\') {
        return Err(Problem::new("a location has no control characters or backslashes", "percent-encode them"));
    }
    match scheme {
        "file" => check_file(rest),
        opaque::SCHEME => check_opaque(text),
        _ => check_remote(text, scheme),
    }
}

fn check_opaque(text: &str) -> Result<(), Problem> {
    let wrong = |error: opaque::InvalidOpaque| {
        Problem::new(error.to_string(), "write runtime:PATH?type=TYPE&key=KEY, each part percent-encoded")
    };
    text.parse::<OpaqueModel>().map(drop).map_err(wrong)
}

fn check_file(rest: &str) -> Result<(), Problem> {
    let path = match rest.strip_prefix("//") {
        Some(after) => match after.find('/') {
            Some(0) => after,
            Some(slash) if &after[..slash] == "localhost" => &after[slash..],
            _ => {
                let remedy = format!("write file:///{after} for an absolute path, file:{after} for a relative one");
                return Err(Problem::new("a file: location has no host", remedy));
            }
        },
        None => rest,
    };
    if path.is_empty() || path.ends_with('/') {
        return Err(Problem::new("the location names no file", "write for example file:iris.onnx"));
    }
    if path.contains(['?', '#']) {
        return Err(Problem::new("a file: location has no '?' or '#'", "percent-encode them as %3F and %23"));
    }
    // `..` may lead out of the manifest's folder: whoever may declare may also write an absolute location, and what
    // leaves this module is absolute. A hidden '/' would only mislead readers.
    if path.to_ascii_lowercase().contains("%2f") {
        return Err(Problem::new("a file: location has no '/' in a name", "write %2F as /"));
    }
    Ok(())
}

fn check_remote(text: &str, scheme: &str) -> Result<(), Problem> {
    let url = Url::parse(text).map_err(|e| {
        Problem::new(format!("the location cannot be read: {e}"), format!("write {scheme}://HOST/PATH"))
    })?;
    if !text[scheme.len()..].starts_with("://") || url.host_str().is_none_or(str::is_empty) {
        let what = match scheme {
            "http" | "https" => "HOST",
            STORAGE | VOLUME => "NAME",
            _ => "BUCKET",
        };
        return Err(Problem::new(
            format!("the location names no {}", what.to_lowercase()),
            format!("write {scheme}://{what}/PATH"),
        ));
    }
    if url.path().trim_matches('/').is_empty() {
        return Err(Problem::new(
            "the location names no object",
            format!("write the path of the artifact after {text}"),
        ));
    }
    let secret = url.query_pairs().any(|(key, _)| SECRETS.contains(&key.to_ascii_lowercase().as_str()));
    if secret || !url.username().is_empty() || url.password().is_some() {
        let remedy = "leave it out: credentials come from the environment of the worker (AWS_*, GOOGLE_*, AZURE_*)";
        return Err(Problem::new("the location carries a credential", remedy));
    }
    Ok(())
}

/// The problem of a folder that locations are to start from, if it has one.
pub(crate) fn wrong_base(text: &str) -> Option<Problem> {
    let is_folder = |url: Url| url.scheme() == "file" && url.host_str().is_none() && url.path().ends_with('/');
    let right = text.starts_with("file:///") && Url::parse(text).is_ok_and(is_folder);
    (!right).then(|| Problem::new(format!("{text:?} is not a folder"), "write file:///PATH/ with a slash at its end"))
}

/// Makes a checked location absolute.
pub(crate) fn resolve(text: &str, base: Option<&str>) -> Result<String, Problem> {
    let Some(path) = text.strip_prefix("file:") else { return Ok(text.to_owned()) };
    let parsed = if let Some(rooted) = path.strip_prefix("//") {
        Url::parse(&format!("file://{}", rooted.strip_prefix("localhost").unwrap_or(rooted)))
    } else if path.starts_with('/') {
        Url::parse(&format!("file://{path}"))
    } else {
        let Some(base) = base.and_then(|base| Url::parse(base).ok()).filter(|base| base.scheme() == "file") else {
            return Err(Problem::new(
                "a relative file: location, and it is not known what it is relative to",
                "write its absolute path: file:///…",
            ));
        };
        base.join(&format!("./{path}"))
    };
    parsed.map(String::from).map_err(|e| {
        Problem::new(format!("the location cannot be read: {e}"), "write file:PATH or file:///ABSOLUTE/PATH")
    })
}

/// True for a location that starts from the manifest's folder.
pub(crate) fn is_relative(text: &str) -> bool {
    text.strip_prefix("file:").is_some_and(|path| !path.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations() {
        let base = Some("file:///srv/my%20models/");
        for (text, absolute) in [
            ("file:iris.onnx", "file:///srv/my%20models/iris.onnx"),
            ("file:./a b/iris.onnx", "file:///srv/my%20models/a%20b/iris.onnx"),
            ("file:../other/iris.onnx", "file:///srv/other/iris.onnx"),
            ("file:c:x.onnx", "file:///srv/my%20models/c:x.onnx"),
            ("file:/data/iris.onnx", "file:///data/iris.onnx"),
            ("file:///data/iris.onnx", "file:///data/iris.onnx"),
            ("file://localhost/data/iris.onnx", "file:///data/iris.onnx"),
            ("s3://bucket/a/b.onnx", "s3://bucket/a/b.onnx"),
            ("storage://local_MinIO/a/b?bucket=b", "storage://local_MinIO/a/b?bucket=b"),
            ("pvc://claim/a/b", "pvc://claim/a/b"),
            ("runtime:models/a%20b?type=mt%3Aonnx&key=%7B%7D", "runtime:models/a%20b?type=mt%3Aonnx&key=%7B%7D"),
            ("https://example.org:8443/m.onnx?version=3", "https://example.org:8443/m.onnx?version=3"),
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
            assert_eq!(resolve(text, base).as_deref(), Ok(absolute), "{text}");
        }
        assert!(resolve("file:iris.onnx", None).is_err());
    }

    #[test]
    fn wrong_locations_say_what_to_write() {
        for (text, remedy) in [
            ("iris.onnx", "file:iris.onnx"),
            ("htps://example.org/m", "did you mean https://example.org/m?"),
            ("ftp://example.org/m", "use one of"),
            ("file://iris.onnx", "file:iris.onnx"),
            ("file:", "file:iris.onnx"),
            ("file:a%2fb", "as /"),
            ("file:a?b", "%3F"),
            ("runtime:models?kind=x", "type=TYPE"),
            ("s3://bucket", "path of the artifact"),
            ("s3:bucket/key", "s3://BUCKET/PATH"),
            ("storage:models/m", "storage://NAME/PATH"),
            ("https:///m.onnx/", "path of the artifact"),
            ("https://user:secret@example.org/m", "environment"),
            ("https://example.org/m?X-Amz-Signature=abc", "environment"),
        ] {
            let problem = check(text).expect_err(text);
            assert!(problem.remedy.contains(remedy), "{text}: {problem}");
            assert!(!problem.message.contains("secret"), "{problem}");
        }
    }
}
