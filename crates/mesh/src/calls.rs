//! Calls of models by method and status, under ModelMesh's names: for those who have its dashboards. Only where they are asked for.
//!
//! A call is counted when its answer is at its end, whichever node ran it, and once more by the node that ran it. Names of
//! models are labels only where that is asked for: there may be very many. The counts of a model go when it is deleted; on a node that has no
//! routes, some time after its last replica has gone from there.

mod series;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_spec::DeploymentName;
use bytes::Bytes;
use http::{HeaderMap, request::Parts};
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tonic::Code;

use self::series::{ALIAS_LABEL, Labels, Models, Series};
use crate::{
    metrics::Protocol,
    watch::{Length, Watch, code_of, is_grpc, name_of, status},
};

/// The most methods that are told apart: clients choose the names. Others are told together.
const MAX_METHODS: usize = 256;

/// The method of calls beyond those.
const OTHER_METHODS: &str = "other";

/// A gRPC message's flag and length.
const FRAME_PREFIX: usize = 5;

/// The labels of ModelMesh's metrics. Both are off by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settings {
    /// `package.Service/Method` rather than `Method`.
    pub full_names: bool,
    /// Labels `modelId` and `vModelId`.
    pub per_model: bool,
}

/// Tells if a model is declared, or a replica of it is here.
pub(crate) type IsKnown = Box<dyn Fn(&DeploymentName) -> bool + Send + Sync>;

/// ModelMesh's histograms of calls: their time, their size, and the time of runs and misses.
#[derive(Debug)]
pub(crate) struct Calls {
    settings: Settings,
    methods: Mutex<HashSet<String>>,
    models: Arc<Models>,
}

impl Calls {
    /// Counts calls. Those of models that are not known any more are forgotten.
    pub(crate) fn register(settings: Settings, is_known: IsKnown, registry: &mut Registry) -> Arc<Self> {
        let models = Arc::new(Models::new(is_known));
        registry.register_collector(models.exporter());
        if !settings.per_model {
            models.together().misses.begin(&[]);
        }
        Arc::new(Self { settings, methods: Mutex::default(), models })
    }

    /// Forgets the counts of a model that is not declared any more.
    pub(crate) fn forget(&self, model: &DeploymentName) {
        self.models.forget(model);
    }

    /// Forgets the counts of calls that came to a model by an alias.
    pub(crate) fn forget_alias(&self, model: &DeploymentName, alias: &DeploymentName) {
        self.models.forget_alias(model, alias);
    }

    fn series(&self, model: &DeploymentName) -> Arc<Series> {
        if self.settings.per_model { self.models.of(model) } else { Arc::clone(self.models.together()) }
    }

    /// Begins to count a call of a client. It is counted at the end of its answer, or as cancelled when dropped before.
    pub(crate) fn begin(
        &self,
        model: &DeploymentName,
        alias: Option<&DeploymentName>,
        head: &Parts,
        started: Instant,
    ) -> CountedCall {
        CountedCall {
            // Taken now: a call that outlives its model does not make its counts again.
            series: self.series(model),
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

    /// Begins to time a run on a model of this node; [`ran`](Self::ran) counts it.
    pub(crate) fn begin_run(&self, model: &DeploymentName) -> Run {
        // Taken now: a run that outlives its model does not make its counts again.
        Run { series: self.series(model), began: Instant::now() }
    }

    /// Counts a run on a model of this node, at its end.
    pub(crate) fn ran(&self, run: &Run, model: &DeploymentName, path: &str, protocol: Protocol, code: Code) {
        let labelled = self.settings.per_model.then_some((model.as_str(), ""));
        let labels = labels(&self.method(path, protocol == Protocol::Grpc), code, labelled);
        run.series.model.observe(&labels, run.began.elapsed().as_secs_f64() * 1e3);
    }

    /// Counts a request that found its model not loaded.
    pub(crate) fn missed(&self, model: &DeploymentName, waited: Duration) {
        let mut labels = Labels::new();
        if self.settings.per_model {
            labels = vec![("modelId", model.to_string()), (ALIAS_LABEL, String::new())];
        }
        self.series(model).misses.observe(&labels, waited.as_secs_f64() * 1e3);
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
        if known.len() >= MAX_METHODS {
            return OTHER_METHODS.to_owned();
        }
        known.insert(name.to_owned());
        name.to_owned()
    }
}

fn labels(method: &str, code: Code, model: Option<(&str, &str)>) -> Labels {
    let mut labels = vec![("method", method.to_owned()), ("code", name_of(code).to_owned())];
    if let Some((model, alias)) = model {
        labels.extend([("modelId", model.to_owned()), (ALIAS_LABEL, alias.to_owned())]);
    }
    labels
}

/// A run on a model of this node: its beginning, and where it is counted.
#[derive(Debug)]
pub(crate) struct Run {
    series: Arc<Series>,
    began: Instant,
}

/// A call of a client that is under way, with its labels and sizes so far.
#[derive(Debug)]
pub(crate) struct CountedCall {
    series: Arc<Series>,
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

impl CountedCall {
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
        let payload = |bytes: usize| if self.framed { bytes.saturating_sub(FRAME_PREFIX) } else { bytes };
        self.series.api.observe(&labels, self.started.elapsed().as_secs_f64() * 1e3);
        self.series.request.observe(&labels, payload(self.received.now()) as f64);
        if code == Code::Ok {
            self.series.response.observe(&labels, payload(self.sent) as f64);
        }
    }
}

impl Watch for CountedCall {
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

impl Drop for CountedCall {
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
        count(&Calls::register(settings, Box::new(|_| false), &mut registry));
        let mut text = String::new();
        encode(&mut text, &registry).expect("text");
        text
    }

    fn name(text: &str) -> DeploymentName {
        text.parse().expect("a name")
    }

    #[test]
    fn counts_of_a_model_go_with_it_also_while_a_call_and_its_run_are_in_flight() {
        let text = told(Settings { per_model: true, ..Settings::default() }, |calls| {
            let (head, ()) = http::Request::post("/a.B/c").body(()).expect("a head").into_parts();
            let [gone, stays, alias] = ["gone", "stays", "an-alias"].map(name);
            for model in [&gone, &stays] {
                calls.begin(model, Some(&alias), &head, Instant::now()).end();
                calls.begin(model, None, &head, Instant::now()).end();
                calls.ran(&calls.begin_run(model), model, "/a.B/c", Protocol::Grpc, Code::Ok);
                calls.missed(model, Duration::ZERO);
            }
            let (in_flight, run) = (calls.begin(&gone, None, &head, Instant::now()), calls.begin_run(&gone));
            calls.forget(&gone);
            calls.ran(&run, &gone, "/a.B/c", Protocol::Grpc, Code::Ok);
            drop(in_flight);
            calls.forget_alias(&stays, &alias);
        });
        assert!(text.contains(r#"modelmesh_cache_miss_milliseconds_count{modelId="stays",vModelId=""} 1"#), "{text}");
        for family in ["modelmesh_api_request_milliseconds", "modelmesh_invoke_model_milliseconds"] {
            let line = format!(r#"{family}_count{{method="c",code="OK",modelId="stays",vModelId=""}} 1"#);
            assert!(text.contains(&line), "{line}\n{text}");
        }
        assert!(!text.contains("gone") && !text.contains("an-alias"), "{text}");
    }

    #[test]
    fn models_that_nobody_knows_do_not_pile_up() {
        let text = told(Settings { per_model: true, ..Settings::default() }, |calls| {
            for n in 0..1_000 {
                let model = name(&format!("m{n}"));
                calls.ran(&calls.begin_run(&model), &model, "/a.B/c", Protocol::Grpc, Code::Ok);
            }
        });
        let models = text.matches("modelmesh_invoke_model_milliseconds_count{").count();
        assert!(models <= crate::swept_map::SWEEP_THRESHOLD, "{models}");
    }

    #[test]
    fn calls_are_told_as_modelmeshs_own_test_reads_them() {
        let per_model = Settings { per_model: true, ..Settings::default() };
        let text = told(per_model, |calls| {
            let head =
                http::Request::post("/mmesh.ExamplePredictor/predict").header("content-type", "application/grpc");
            let (head, ()) = head.body(()).expect("a head").into_parts();
            let model = name("myModel");
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
            for n in 0..MAX_METHODS + 9 {
                calls.ran(&calls.begin_run(&name("m")), &name("m"), &format!("/a.B/c{n}"), Protocol::Grpc, Code::Ok);
            }
        });
        assert!(text.contains(r#"modelmesh_invoke_model_milliseconds_count{method="a.B/c0",code="OK"} 1"#), "{text}");
        assert!(text.contains(r#"modelmesh_invoke_model_milliseconds_count{method="other",code="OK"} 9"#), "{text}");
    }
}
