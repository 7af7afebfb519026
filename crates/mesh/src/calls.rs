//! Calls of models by method and status, under ModelMesh's names: for those who have its dashboards. Only where they are asked for.
//!
//! A call is counted when its answer is at its end, whichever node ran it, and once more by the node that ran it. Names of
//! models are labels only where that is asked for: there may be very many.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_spec::DeploymentName;
use bytes::Bytes;
use http::{HeaderMap, request::Parts};
use prometheus_client::{
    metrics::{
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use tokio::time::Instant;
use tonic::Code;

use crate::watch::{Length, Watch, code_of, is_grpc, name_of, status};

/// The most methods that are told apart: clients choose the names. Others are told together.
const METHODS: usize = 256;

/// The method of calls beyond those.
const OTHER: &str = "other";

/// A gRPC message's flag and length.
const PREFIX: usize = 5;

/// ModelMesh's bounds for times, in milliseconds.
const MILLIS: [f64; 19] =
    [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 75.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 10e3, 20e3, 60e3, 120e3, 300e3];

/// The form of the labels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settings {
    /// `package.Service/Method` rather than `Method`.
    pub full_names: bool,
    /// Labels `modelId` and `vModelId`.
    pub per_model: bool,
}

type Labels = Vec<(&'static str, String)>;
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

/// Counts of all calls.
#[derive(Debug)]
pub(crate) struct Calls {
    settings: Settings,
    methods: Mutex<HashSet<String>>,
    api: Histograms,
    model: Histograms,
    request: Histograms,
    response: Histograms,
    misses: Histograms,
}

fn millis() -> Histogram {
    Histogram::new(MILLIS)
}

fn bytes() -> Histogram {
    Histogram::new(exponential_buckets(128.0, 4.0, 8))
}

impl Calls {
    pub(crate) fn register(settings: Settings, registry: &mut Registry) -> Arc<Self> {
        let calls = Self {
            settings,
            methods: Mutex::default(),
            api: Histograms::new_with_constructor(millis),
            model: Histograms::new_with_constructor(millis),
            request: Histograms::new_with_constructor(bytes),
            response: Histograms::new_with_constructor(bytes),
            misses: Histograms::new_with_constructor(millis),
        };
        for (name, help, family) in [
            ("modelmesh_api_request_milliseconds", "External inference request time", &calls.api),
            ("modelmesh_invoke_model_milliseconds", "Internal model server inference request time", &calls.model),
            ("modelmesh_request_size_bytes", "Inference request payload size", &calls.request),
            ("modelmesh_response_size_bytes", "Inference response payload size", &calls.response),
            ("modelmesh_cache_miss_milliseconds", "Cache miss delay", &calls.misses),
        ] {
            registry.register(name, help, family.clone());
        }
        if !settings.per_model {
            drop(calls.misses.get_or_create(&Labels::new()));
        }
        Arc::new(calls)
    }

    /// Begins to count a call.
    pub(crate) fn begin(
        self: &Arc<Self>,
        model: &DeploymentName,
        alias: Option<&DeploymentName>,
        head: &Parts,
        started: Instant,
    ) -> Call {
        Call {
            calls: Arc::clone(self),
            method: self.method(head.uri.path(), is_grpc(&head.headers)),
            model: self.settings.per_model.then(|| (model.clone(), alias.cloned())),
            framed: is_grpc(&head.headers),
            started,
            received: Length::Known(0),
            sent: 0,
            code: None,
            counted: false,
        }
    }

    /// Counts a run on a model of this node.
    pub(crate) fn ran(&self, model: &str, (path, grpc): (&str, bool), code: Code, took: Duration) {
        let model = self.settings.per_model.then_some((model, ""));
        let labels = labels(&self.method(path, grpc), code, model);
        self.model.get_or_create(&labels).observe(took.as_secs_f64() * 1e3);
    }

    /// Counts a request that found its model not loaded.
    pub(crate) fn missed(&self, model: &DeploymentName, waited: Duration) {
        let mut labels = Labels::new();
        if self.settings.per_model {
            labels = vec![("modelId", model.to_string()), ("vModelId", String::new())];
        }
        self.misses.get_or_create(&labels).observe(waited.as_secs_f64() * 1e3);
    }

    /// The method as a label.
    fn method(&self, path: &str, grpc: bool) -> String {
        let path = path.trim_start_matches('/');
        // Paths of REST name models.
        let name = if grpc && self.settings.full_names { path } else { path.rsplit('/').next().unwrap_or(path) };
        let mut known = self.methods.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(name) {
            return name.to_owned();
        }
        if known.len() >= METHODS {
            return OTHER.to_owned();
        }
        known.insert(name.to_owned());
        name.to_owned()
    }
}

fn labels(method: &str, code: Code, model: Option<(&str, &str)>) -> Labels {
    let mut labels = vec![("method", method.to_owned()), ("code", name_of(code).to_owned())];
    if let Some((model, alias)) = model {
        labels.extend([("modelId", model.to_owned()), ("vModelId", alias.to_owned())]);
    }
    labels
}

/// One call.
#[derive(Debug)]
pub(crate) struct Call {
    calls: Arc<Calls>,
    method: String,
    /// The model, where labels name it.
    model: Option<(DeploymentName, Option<DeploymentName>)>,
    /// Its messages have frames, which are not counted.
    framed: bool,
    started: Instant,
    received: Length,
    sent: usize,
    code: Option<Code>,
    counted: bool,
}

impl Call {
    /// Takes the length of the request's body.
    pub(crate) fn receives(&mut self, length: Length) {
        self.received = length;
    }

    fn count(&mut self, code: Code) {
        if std::mem::replace(&mut self.counted, true) {
            return;
        }
        let model =
            self.model.as_ref().map(|(model, alias)| (model.as_str(), alias.as_ref().map_or("", |a| a.as_str())));
        let labels = labels(&self.method, code, model);
        let payload = |bytes: usize| if self.framed { bytes.saturating_sub(PREFIX) } else { bytes };
        self.calls.api.get_or_create(&labels).observe(self.started.elapsed().as_secs_f64() * 1e3);
        self.calls.request.get_or_create(&labels).observe(payload(self.received.now()) as f64);
        if code == Code::Ok {
            self.calls.response.get_or_create(&labels).observe(payload(self.sent) as f64);
        }
    }
}

impl Watch for Call {
    fn head(&mut self, head: &http::response::Parts) {
        self.code = if is_grpc(&head.headers) { status(&head.headers) } else { Some(code_of(head.status)) };
    }

    fn piece(&mut self, piece: &Bytes) {
        self.sent += piece.len();
    }

    fn trailers(&mut self, trailers: &HeaderMap) {
        self.code = status(trailers).or(self.code);
    }

    fn failed(&mut self, code: Code) {
        self.count(code);
    }

    fn end(&mut self) {
        self.count(self.code.unwrap_or(Code::Ok));
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.count(Code::Cancelled);
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    fn told(settings: Settings, count: impl FnOnce(&Arc<Calls>)) -> String {
        let mut registry = Registry::default();
        count(&Calls::register(settings, &mut registry));
        let mut text = String::new();
        encode(&mut text, &registry).expect("text");
        text
    }

    #[test]
    fn calls_are_told_as_modelmeshs_own_test_reads_them() {
        let per_model = Settings { per_model: true, ..Settings::default() };
        let text = told(per_model, |calls| {
            let head =
                http::Request::post("/mmesh.ExamplePredictor/predict").header("content-type", "application/grpc");
            let (head, ()) = head.body(()).expect("a head").into_parts();
            let model: DeploymentName = "myModel".parse().expect("a name");
            let mut call = calls.begin(&model, None, &head, Instant::now());
            call.receives(Length::Known(25));
            call.piece(&Bytes::from_static(&[0; 15]));
            call.end();
            drop(calls.begin(&model, None, &head, Instant::now()));
        });
        for line in [
            r#"modelmesh_api_request_milliseconds_bucket{le="2000.0",method="predict",code="OK",modelId="myModel",vModelId=""} 1"#,
            r#"modelmesh_request_size_bytes_sum{method="predict",code="OK",modelId="myModel",vModelId=""} 20.0"#,
            r#"modelmesh_response_size_bytes_sum{method="predict",code="OK",modelId="myModel",vModelId=""} 10.0"#,
            r#"modelmesh_api_request_milliseconds_count{method="predict",code="CANCELLED",modelId="myModel",vModelId=""} 1"#,
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn clients_cannot_make_labels_without_end() {
        let text = told(Settings { full_names: true, ..Settings::default() }, |calls| {
            for n in 0..METHODS + 9 {
                calls.ran("m", (&format!("/a.B/c{n}"), true), Code::Ok, Duration::ZERO);
            }
        });
        assert!(text.contains(r#"modelmesh_invoke_model_milliseconds_count{method="a.B/c0",code="OK"} 1"#), "{text}");
        assert!(text.contains(r#"modelmesh_invoke_model_milliseconds_count{method="other",code="OK"} 9"#), "{text}");
    }
}
