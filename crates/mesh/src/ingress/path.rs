//! Paths of the REST face: a split and a match cost less than any router, and there are few of them. They are written once: what reads
//! a path here, and the test of every route and role (`tests/attack`), are made from the same lines.

use std::borrow::Cow;

use berth_spec::{NameKey, id::DEFAULT_NAMESPACE};
use http::Method;

use crate::config::FUNCTIONS;

/// The resource of the Open Inference Protocol that a path below `/v2` or `/v1` names.
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
    /// Choice of the requests that are traced; by the name of a model the same.
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

/// The part of a model's path after its name and version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Metadata,
    Ready,
    Infer,
    /// An inference of KServe's first protocol.
    Predict,
    /// An inference of Triton's generate extension, answered with one JSON object.
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

/// A page of the server beside the protocols, to be read. Models answer to POST at paths of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Page {
    /// KServe's first protocol asks here if the server is live.
    Root,
    /// Metrics of the process, where they are to be had on this port.
    Metrics,
    /// Description of the REST face for programs.
    Openapi,
    /// Description of the REST face for people, as a page.
    Docs,
}

impl Page {
    /// Every page, to find one by its path.
    pub(super) const ALL: [Self; 4] = [Self::Root, Self::Metrics, Self::Openapi, Self::Docs];

    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Root => "/",
            Self::Metrics => "/metrics",
            Self::Openapi => "/openapi.json",
            Self::Docs => "/docs",
        }
    }

    /// The page that a request asks for.
    pub(super) fn of(method: &Method, path: &str) -> Option<Self> {
        let page = Self::ALL.into_iter().find(|page| page.path() == path)?;
        matches!(*method, Method::GET | Method::HEAD).then_some(page)
    }
}

/// The path of KServe's first protocol.
const V1_MODELS: &str = "/v1/models";

/// Verbs of that protocol, which follow the name of a model behind a colon, and what they ask for; `None`: explanations, which there are not.
const V1_VERBS: [(&str, Option<Operation>); 2] = [("predict", Some(Operation::Predict)), ("explain", None)];

/// Splits `/namespaces/NAMESPACE` off a path of the protocols or of a function. What stands there need not be a namespace.
pub(super) fn split_namespace(path: &str) -> (Option<&str>, &str) {
    let split = path.strip_prefix("/namespaces/").and_then(|rest| rest.split_at_checked(rest.find('/')?));
    match split {
        Some((namespace, rest)) if ["/v2", V1_MODELS, FUNCTIONS].iter().any(|begins| rest.starts_with(begins)) => {
            (Some(namespace), rest)
        }
        _ => (None, path),
    }
}

/// The function that a path is for, by the texts that stand there; `None`: it is of no function. The header that names the namespace of
/// models does not count: a caller of a function may send it along for the models that the function asks.
pub(super) fn function_in(path: &str) -> Option<NameKey<'_>> {
    let (namespace, rest) = split_namespace(path);
    let name = rest.strip_prefix(FUNCTIONS)?.split('/').next().unwrap_or_default();
    Some(NameKey { namespace: namespace.unwrap_or(DEFAULT_NAMESPACE), name })
}

impl<'a> Resource<'a> {
    /// From a path without its query; one slash at the end is as good as none.
    pub(super) fn of(path: &'a str) -> Option<Self> {
        let path = path.strip_suffix('/').unwrap_or(path);
        if let Some(rest) = path.strip_prefix(V1_MODELS) {
            return Self::of_first(rest);
        }
        let mut rest = path.strip_prefix(V2)?.split('/');
        if rest.next() != Some("") {
            return None;
        }
        let mut segments = [""; 6];
        let mut count = 0;
        for segment in rest {
            *segments.get_mut(count)? = segment;
            count += 1;
        }
        Self::of_segments(&segments[..count])
    }

    /// From a path of KServe's first protocol, without its beginning.
    fn of_first(rest: &'a str) -> Option<Self> {
        let Some(rest) = rest.strip_prefix('/') else { return rest.is_empty().then_some(Self::List) };
        if rest.contains('/') {
            return None;
        }
        let verb = rest.rsplit_once(':').and_then(|(model, verb)| {
            let known = V1_VERBS.iter().find(|(known, _)| *known == verb)?;
            Some((model, known.1))
        });
        match verb {
            Some((model, Some(operation))) => Self::model(model, None, operation),
            Some((_, None)) => Some(Self::Unsupported("explanation of predictions")),
            None => Self::model(rest, None, Operation::Ready),
        }
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

    /// Checks the method; `Err`: the methods that it has, for the header `Allow`.
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

/// The path of the second protocol.
const V2: &str = "/v2";

/// Reads the segments below [`V2`], and lists their patterns for the test of every route and role.
macro_rules! paths {
    ($($segments:tt => $resource:expr,)*) => {
        impl<'a> Resource<'a> {
            fn of_segments(segments: &[&'a str]) -> Option<Self> {
                Some(match *segments {
                    $($segments => $resource,)*
                    _ => return None,
                })
            }
        }

        #[cfg(test)]
        const PATTERNS: &[&str] = &[$(pattern!($segments)),*];
    };
}

/// Segments as a path: `/models/{model}`.
#[cfg(test)]
macro_rules! pattern {
    ([$($segment:tt),*]) => { concat!("" $(, "/", segment!($segment))*) };
}

#[cfg(test)]
macro_rules! segment {
    (..) => {
        "{rest}"
    };
    ($text:literal) => {
        $text
    };
    ($name:ident) => {
        concat!("{", stringify!($name), "}")
    };
}

paths! {
    ["models", model, "infer"] => Self::model(model, None, Operation::Infer)?,
    ["models", model, "versions", version, "infer"] => Self::model(model, Some(version), Operation::Infer)?,
    [] => Self::Server,
    ["health", "live"] => Self::Live,
    ["health", "ready"] => Self::Ready,
    ["models"] => Self::List,
    ["models", "stats"] => Self::AllStatistics,
    ["models", model] => Self::model(model, None, Operation::Metadata)?,
    ["models", model, "versions", version] => Self::model(model, Some(version), Operation::Metadata)?,
    ["models", model, "ready"] => Self::model(model, None, Operation::Ready)?,
    ["models", model, "versions", version, "ready"] => Self::model(model, Some(version), Operation::Ready)?,
    ["models", model, "config"] => Self::model(model, None, Operation::Config)?,
    ["models", model, "versions", version, "config"] => Self::model(model, Some(version), Operation::Config)?,
    ["models", model, "stats"] => Self::model(model, None, Operation::Statistics)?,
    ["models", model, "versions", version, "stats"] => Self::model(model, Some(version), Operation::Statistics)?,
    ["models", model, "generate"] => Self::model(model, None, Operation::Generate)?,
    ["models", model, "versions", version, "generate"] => Self::model(model, Some(version), Operation::Generate)?,
    ["models", model, "generate_stream"] => Self::model(model, None, Operation::GenerateStream)?,
    ["models", model, "versions", version, "generate_stream"] => {
        Self::model(model, Some(version), Operation::GenerateStream)?
    },
    // These two between nodes only.
    ["models", model, "call"] => Self::model(model, None, Operation::Call)?,
    ["models", model, "versions", version, "call"] => Self::model(model, Some(version), Operation::Call)?,
    ["models", "-", "predict"] => Self::model("-", None, Operation::Predict)?,
    ["models", "-", "versions", version, "predict"] => Self::model("-", Some(version), Operation::Predict)?,
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
}

/// Every path of the REST face, with `{…}` for names, also within a namespace, and the one of a model's own.
#[cfg(test)]
pub(super) fn patterns() -> Vec<String> {
    let second = PATTERNS.iter().map(|path| format!("{V2}{path}"));
    let verbs = V1_VERBS.iter().map(|(verb, _)| format!("{V1_MODELS}/{{model}}:{verb}"));
    let first = [V1_MODELS.to_owned(), format!("{V1_MODELS}/{{model}}")].into_iter().chain(verbs);
    let functions = [format!("{FUNCTIONS}{{name}}"), format!("{FUNCTIONS}{{name}}/{{rest}}")];
    let inside: Vec<_> = second.chain(first).chain(functions).collect();
    let within = inside.iter().map(|path| format!("/namespaces/{{namespace}}{path}")).collect::<Vec<_>>();
    let pages = Page::ALL.into_iter().map(|page| page.path().to_owned());
    inside.into_iter().chain(within).chain(pages).chain(["/v1/a-models-own-path".to_owned()]).collect()
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
            ("/namespaces/team/functions/words/x", (Some("team"), "/functions/words/x")),
            ("/v2/models/namespaces", (None, "/v2/models/namespaces")),
        ] {
            assert_eq!(split_namespace(path), split, "{path}");
        }
    }

    #[test]
    fn a_function_is_in_the_namespace_of_its_path() {
        let function = |namespace, name| Some(NameKey { namespace, name });
        for (path, found) in [
            ("/functions/words", function("default", "words")),
            ("/functions/words/more", function("default", "words")),
            ("/namespaces/team/functions/words", function("team", "words")),
            ("/namespaces/default/functions/words/more", function("default", "words")),
            ("/functions/team%2Fwords", function("default", "team%2Fwords")),
            ("/functions/", function("default", "")),
            ("/functions", None),
            ("/namespaces/team/functions", None),
            ("/namespaces/team/v2/functions/words", None),
            ("/v2/models/functions", None),
        ] {
            assert_eq!(function_in(path), found, "{path}");
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
