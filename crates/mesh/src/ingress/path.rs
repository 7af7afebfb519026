//! Paths of the REST face, matched by hand: a split and a match cost less than any router, and there are few of them.

use std::borrow::Cow;

use http::Method;

/// The resource that a path names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Resource<'a> {
    Live,
    Ready,
    Server,
    /// The names of all models: not in the protocol, harmless, and asked for by people.
    List,
    Model {
        model: Cow<'a, str>,
        version: Option<Cow<'a, str>>,
        operation: Operation,
    },
    AllStatistics,
    Index,
    Load(Cow<'a, str>),
    Unload(Cow<'a, str>),
    /// In the protocol or its extensions, and not here.
    Unsupported(&'static str),
}

/// An operation on a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Metadata,
    Ready,
    Infer,
    /// A document of the model's own: between nodes only, where clients say its path.
    Call,
    Config,
    Statistics,
}

/// Splits `/namespaces/NAMESPACE` off a path of the protocol. What stands there need not be a namespace.
pub(super) fn split_namespace(path: &str) -> (Option<&str>, &str) {
    let split = path.strip_prefix("/namespaces/").and_then(|rest| rest.split_at_checked(rest.find('/')?));
    match split {
        Some((namespace, rest)) if rest.starts_with("/v2") => (Some(namespace), rest),
        _ => (None, path),
    }
}

impl<'a> Resource<'a> {
    /// From a path without its query; one slash at the end is as good as none.
    pub(super) fn of(path: &'a str) -> Option<Self> {
        let path = path.strip_suffix('/').unwrap_or(path);
        let mut rest = path.strip_prefix("/v2")?.split('/');
        if rest.next() != Some("") {
            return None;
        }
        let mut segments = [""; 6];
        let mut count = 0;
        for segment in rest {
            *segments.get_mut(count)? = segment;
            count += 1;
        }
        Some(match segments[..count] {
            [] => Self::Server,
            ["health", "live"] => Self::Live,
            ["health", "ready"] => Self::Ready,
            ["models"] => Self::List,
            ["models", "stats"] => Self::AllStatistics,
            ["models", model] => Self::model(model, None, Operation::Metadata)?,
            ["models", model, "versions", version] => Self::model(model, Some(version), Operation::Metadata)?,
            ["models", model, verb] => Self::verb(model, None, verb)?,
            ["models", model, "versions", version, verb] => Self::verb(model, Some(version), verb)?,
            ["repository", "index"] => Self::Index,
            ["repository", "models", model, "load"] => Self::Load(decode(model)?),
            ["repository", "models", model, "unload"] => Self::Unload(decode(model)?),
            ["logging"] => Self::Unsupported("the logging extension"),
            ["trace", "setting"] | ["models", _, "trace", "setting"] => Self::Unsupported("the trace extension"),
            ["systemsharedmemory" | "cudasharedmemory", ..] => Self::Unsupported("shared memory"),
            _ => return None,
        })
    }

    fn verb(model: &'a str, version: Option<&'a str>, verb: &str) -> Option<Self> {
        let operation = match verb {
            "infer" => Operation::Infer,
            "call" => Operation::Call,
            "ready" => Operation::Ready,
            "config" => Operation::Config,
            "stats" => Operation::Statistics,
            "generate" | "generate_stream" => return Some(Self::Unsupported("the generate extension")),
            _ => return None,
        };
        Self::model(model, version, operation)
    }

    fn model(model: &'a str, version: Option<&'a str>, operation: Operation) -> Option<Self> {
        let version = match version {
            Some(version) => Some(decode(version)?),
            None => None,
        };
        Some(Self::Model { model: decode(model)?, version, operation })
    }

    /// True if it changes what is loaded: not for web pages of other sites.
    pub(super) fn changes(&self) -> bool {
        matches!(self, Self::Load(_) | Self::Unload(_))
    }

    /// The verbs that it has.
    pub(super) fn allows(&self, method: &Method) -> Result<(), &'static str> {
        let allowed = match self {
            Self::Model { operation: Operation::Infer | Operation::Call, .. }
            | Self::Index
            | Self::Load(_)
            | Self::Unload(_) => "POST",
            Self::Unsupported(_) => return Ok(()),
            _ => "GET, HEAD",
        };
        match *method {
            Method::POST if allowed == "POST" => Ok(()),
            Method::GET | Method::HEAD if allowed != "POST" => Ok(()),
            _ => Err(allowed),
        }
    }
}

/// Percent-decodes one segment; `None` where it is not a segment of UTF-8.
fn decode(segment: &str) -> Option<Cow<'_, str>> {
    if segment.is_empty() {
        return None;
    }
    if !segment.contains('%') {
        return Some(Cow::Borrowed(segment));
    }
    let nibble = |byte: Option<u8>| char::from(byte?).to_digit(16);
    let mut bytes = segment.bytes();
    let mut decoded = Vec::with_capacity(segment.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => u8::try_from(nibble(bytes.next())? * 16 + nibble(bytes.next())?).ok()?,
            byte => byte,
        });
    }
    String::from_utf8(decoded).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model<'a>(model: &'a str, version: Option<&'a str>, operation: Operation) -> Option<Resource<'a>> {
        Some(Resource::Model { model: model.into(), version: version.map(Cow::Borrowed), operation })
    }

    #[test]
    fn a_namespace_stands_before_the_protocol() {
        for (path, split) in [
            ("/namespaces/team/v2/models/iris", (Some("team"), "/v2/models/iris")),
            ("/namespaces/team/v2", (Some("team"), "/v2")),
            ("/namespaces/no%20name/v2", (Some("no%20name"), "/v2")),
            ("/namespaces/team", (None, "/namespaces/team")),
            ("/namespaces/team/v1/sentiment", (None, "/namespaces/team/v1/sentiment")),
            ("/v2/models/namespaces", (None, "/v2/models/namespaces")),
        ] {
            assert_eq!(split_namespace(path), split, "{path}");
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_path_comes_is_read_or_refused(path in "\\PC{0,40}", tail in "(/[a-z0-9%é. ]{0,6}){0,8}") {
            for path in [path.clone(), format!("/v2/models/{path}"), format!("/namespaces/{path}{tail}"), format!("/v2{tail}")] {
                let _read = Resource::of(split_namespace(&path).1);
            }
        }

        #[test]
        fn a_name_is_one_segment(name in "\\PC{1,60}") {
            let path = format!("/namespaces/team/v2/models/{}/infer", berth_spec::id::percent_encode(&name));
            let (namespace, rest) = split_namespace(&path);
            proptest::prop_assert_eq!(namespace, Some("team"));
            proptest::prop_assert_eq!(Resource::of(rest), model(&name, None, Operation::Infer));
        }
    }

    #[test]
    fn paths() {
        for (path, resource) in [
            ("/v2", Some(Resource::Server)),
            ("/v2/", Some(Resource::Server)),
            ("/v2/health/live", Some(Resource::Live)),
            ("/v2/health/ready/", Some(Resource::Ready)),
            ("/v2/models", Some(Resource::List)),
            ("/v2/models/stats", Some(Resource::AllStatistics)),
            ("/v2/models/iris", model("iris", None, Operation::Metadata)),
            ("/v2/models/iris/versions/1", model("iris", Some("1"), Operation::Metadata)),
            ("/v2/models/iris/infer", model("iris", None, Operation::Infer)),
            ("/v2/models/ir%69s%2d1/versions/a%20b/infer", model("iris-1", Some("a b"), Operation::Infer)),
            ("/v2/models/iris/versions/1/ready", model("iris", Some("1"), Operation::Ready)),
            ("/v2/models/iris/call", model("iris", None, Operation::Call)),
            ("/v2/models/iris/config", model("iris", None, Operation::Config)),
            ("/v2/models/iris/stats", model("iris", None, Operation::Statistics)),
            ("/v2/repository/index", Some(Resource::Index)),
            ("/v2/repository/models/iris/load", Some(Resource::Load("iris".into()))),
            ("/v2/repository/models/iris/unload", Some(Resource::Unload("iris".into()))),
            ("/v2/models/iris/generate", Some(Resource::Unsupported("the generate extension"))),
            ("/v2/systemsharedmemory/region/x/register", Some(Resource::Unsupported("shared memory"))),
            ("/", None),
            ("", None),
            ("/v2x", None),
            ("/v1/models", None),
            ("/v2//health", None),
            ("/v2/models//infer", None),
            ("/v2/models/%ff/infer", None),
            ("/v2/models/a%2/infer", None),
            ("/v2/models/a/b/c/d/e/f/g/h/i", None),
        ] {
            assert_eq!(Resource::of(path), resource, "{path}");
        }
    }
}
