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
    /// Levels of the log.
    Log,
    /// Which requests are traced; by the name of a model the same.
    Traces(Option<Cow<'a, str>>),
    /// Registered shared memory, or one region of it.
    Regions(Option<Cow<'a, str>>),
    /// One region, to be registered.
    Register(Cow<'a, str>),
    /// Regions, to be forgotten; `None`: all.
    Unregister(Option<Cow<'a, str>>),
    /// In the protocol or its extensions, and not here.
    Unsupported(&'static str),
}

/// An operation on a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Metadata,
    Ready,
    Infer,
    /// An inference of KServe's first protocol.
    Predict,
    /// An inference of the generate extension.
    Generate,
    /// The same, answered with events.
    GenerateStream,
    /// A document of the model's own: between nodes only, where clients say its path.
    Call,
    Config,
    Statistics,
}

impl Operation {
    /// True if it runs the model.
    pub(super) fn runs(self) -> bool {
        match self {
            Self::Infer | Self::Predict | Self::Generate | Self::GenerateStream | Self::Call => true,
            Self::Metadata | Self::Ready | Self::Config | Self::Statistics => false,
        }
    }
}

/// The path of KServe's first protocol.
const FIRST: &str = "/v1/models";

/// Splits `/namespaces/NAMESPACE` off a path of the protocols. What stands there need not be a namespace.
pub(super) fn split_namespace(path: &str) -> (Option<&str>, &str) {
    let split = path.strip_prefix("/namespaces/").and_then(|rest| rest.split_at_checked(rest.find('/')?));
    match split {
        Some((namespace, rest)) if rest.starts_with("/v2") || rest.starts_with(FIRST) => (Some(namespace), rest),
        _ => (None, path),
    }
}

impl<'a> Resource<'a> {
    /// From a path without its query; one slash at the end is as good as none.
    pub(super) fn of(path: &'a str) -> Option<Self> {
        let path = path.strip_suffix('/').unwrap_or(path);
        if let Some(rest) = path.strip_prefix(FIRST) {
            return Self::of_first(rest);
        }
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
            ["logging"] => Self::Log,
            ["trace", "setting"] => Self::Traces(None),
            ["models", model, "trace", "setting"] => Self::Traces(Some(decode(model)?)),
            ["systemsharedmemory", "status"] => Self::Regions(None),
            ["systemsharedmemory", "region", region, "status"] => Self::Regions(Some(decode(region)?)),
            ["systemsharedmemory", "region", region, "register"] => Self::Register(decode(region)?),
            ["systemsharedmemory", "unregister"] => Self::Unregister(None),
            ["systemsharedmemory", "region", region, "unregister"] => Self::Unregister(Some(decode(region)?)),
            ["cudasharedmemory", ..] => Self::Unsupported("shared memory of CUDA"),
            _ => return None,
        })
    }

    /// From a path of KServe's first protocol, without its beginning.
    fn of_first(rest: &'a str) -> Option<Self> {
        let Some(rest) = rest.strip_prefix('/') else { return rest.is_empty().then_some(Self::List) };
        if rest.contains('/') {
            return None;
        }
        match rest.rsplit_once(':') {
            Some((model, "predict")) => Self::model(model, None, Operation::Predict),
            Some((_, "explain")) => Some(Self::Unsupported("explanation of predictions")),
            _ => Self::model(rest, None, Operation::Ready),
        }
    }

    fn verb(model: &'a str, version: Option<&'a str>, verb: &str) -> Option<Self> {
        let operation = match verb {
            "infer" => Operation::Infer,
            "call" => Operation::Call,
            "ready" => Operation::Ready,
            "config" => Operation::Config,
            "stats" => Operation::Statistics,
            "generate" => Operation::Generate,
            "generate_stream" => Operation::GenerateStream,
            // Between nodes only.
            "predict" if model == "-" => Operation::Predict,
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

    /// True if it may change more than a request: not for web pages of other sites.
    pub(super) fn changes(&self, method: &Method) -> bool {
        match self {
            Self::Load(_) | Self::Unload(_) | Self::Register(_) | Self::Unregister(_) => true,
            Self::Log | Self::Traces(_) => *method == Method::POST,
            _ => false,
        }
    }

    /// The verbs that it has.
    pub(super) fn allows(&self, method: &Method) -> Result<(), &'static str> {
        let allowed = match self {
            Self::Model { operation, .. } if operation.runs() => "POST",
            Self::Index | Self::Load(_) | Self::Unload(_) | Self::Register(_) | Self::Unregister(_) => "POST",
            Self::Log | Self::Traces(_) => "GET, HEAD, POST",
            Self::Unsupported(_) => return Ok(()),
            _ => "GET, HEAD",
        };
        match *method {
            Method::POST if allowed.ends_with("POST") => Ok(()),
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
            ("/namespaces/team/v1/models/a:predict", (Some("team"), "/v1/models/a:predict")),
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
            ("/v2/models/iris/generate", model("iris", None, Operation::Generate)),
            ("/v2/models/iris/versions/1/generate_stream", model("iris", Some("1"), Operation::GenerateStream)),
            ("/v2/models/iris/predict", None),
            ("/v1/models", Some(Resource::List)),
            ("/v1/models/", Some(Resource::List)),
            ("/v1/models/iris", model("iris", None, Operation::Ready)),
            ("/v1/models/iris:predict", model("iris", None, Operation::Predict)),
            ("/v1/models/a%3Ab:predict", model("a:b", None, Operation::Predict)),
            ("/v1/models/iris:explain", Some(Resource::Unsupported("explanation of predictions"))),
            ("/v1/models/:predict", None),
            ("/v1/models/a/b:predict", None),
            ("/v1/modelsx", None),
            ("/v2/systemsharedmemory/region/x/register", Some(Resource::Register("x".into()))),
            ("/v2/systemsharedmemory/unregister", Some(Resource::Unregister(None))),
            ("/v2/systemsharedmemory/region/a%2Fb/status", Some(Resource::Regions(Some("a/b".into())))),
            ("/v2/cudasharedmemory/status", Some(Resource::Unsupported("shared memory of CUDA"))),
            ("/v2/logging", Some(Resource::Log)),
            ("/v2/models/iris/trace/setting", Some(Resource::Traces(Some("iris".into())))),
            ("/", None),
            ("", None),
            ("/v2x", None),
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
