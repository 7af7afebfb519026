//! The counts of calls, of all models together or of each: histograms by labels, which go with their model.
//!
//! The families of `prometheus_client` can only be asked for one set of labels at a time: all that name a model could not be found there.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use berth_spec::DeploymentName;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder},
    metrics::{
        MetricType,
        histogram::{Histogram, exponential_buckets},
    },
};

use super::IsKnown;
use crate::swept_map::SweptMap;

/// The label that holds the alias by which a call came.
pub(super) const ALIAS_LABEL: &str = "vModelId";

/// ModelMesh's bounds for times, in milliseconds.
const TIME_BUCKETS_MILLIS: [f64; 19] =
    [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 75.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 10e3, 20e3, 60e3, 120e3, 300e3];

/// Names and values of the labels of one histogram, in the order in which they are told.
pub(super) type Labels = Vec<(&'static str, String)>;

/// A histogram of each series.
type Pick = fn(&Series) -> &Histograms;

/// The families, with the histograms that each tells.
const FAMILIES: [(&str, &str, Pick); 5] = [
    ("modelmesh_api_request_milliseconds", "External inference request time.", |series| &series.api),
    ("modelmesh_invoke_model_milliseconds", "Internal model server inference request time.", |series| &series.model),
    ("modelmesh_request_size_bytes", "Inference request payload size.", |series| &series.request),
    ("modelmesh_response_size_bytes", "Inference response payload size.", |series| &series.response),
    ("modelmesh_cache_miss_milliseconds", "Cache miss delay.", |series| &series.misses),
];

/// Histograms of one family by their labels. A lock, as each histogram has one too: a map that is read without one takes 16 KiB and more while
/// it is empty, five times for each model.
#[derive(Debug)]
pub(super) struct Histograms {
    by_labels: RwLock<HashMap<Labels, Histogram>>,
    make: fn() -> Histogram,
}

impl Histograms {
    fn new(make: fn() -> Histogram) -> Self {
        Self { by_labels: RwLock::default(), make }
    }

    /// Makes the histogram of these labels, so that it is told before anything is in it.
    pub(super) fn begin(&self, labels: &[(&'static str, String)]) {
        self.write().entry(labels.to_vec()).or_insert_with(self.make);
    }

    /// Adds a value to the histogram of these labels, which is made if it is not there.
    pub(super) fn observe(&self, labels: &[(&'static str, String)], value: f64) {
        if let Some(histogram) = self.read().get(labels) {
            histogram.observe(value);
            return;
        }
        self.write().entry(labels.to_vec()).or_insert_with(self.make).observe(value);
    }

    fn forget_alias(&self, alias: &str) {
        self.write().retain(|labels, _| !labels.iter().any(|(name, value)| *name == ALIAS_LABEL && value == alias));
    }

    fn encode(&self, family: &mut MetricEncoder<'_>) -> fmt::Result {
        for (labels, histogram) in self.read().iter() {
            histogram.encode(family.encode_family(labels)?)?;
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.read().is_empty()
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<Labels, Histogram>> {
        self.by_labels.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<Labels, Histogram>> {
        self.by_labels.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn millis() -> Histogram {
    Histogram::new(TIME_BUCKETS_MILLIS)
}

fn bytes() -> Histogram {
    Histogram::new(exponential_buckets(128.0, 4.0, 8))
}

/// The counts of one model, or of all.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) api: Histograms,
    pub(super) model: Histograms,
    pub(super) request: Histograms,
    pub(super) response: Histograms,
    pub(super) misses: Histograms,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            api: Histograms::new(millis),
            model: Histograms::new(millis),
            request: Histograms::new(bytes),
            response: Histograms::new(bytes),
            misses: Histograms::new(millis),
        }
    }
}

/// The histograms of each model, and those of all together where labels name none.
pub(super) struct Models {
    /// Those of calls whose model is not told.
    together: Arc<Series>,
    by_name: SweptMap<DeploymentName, Series>,
    is_known: IsKnown,
}

impl fmt::Debug for Models {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("counts of calls")
    }
}

impl Models {
    pub(super) fn new(is_known: IsKnown) -> Self {
        Self { together: Arc::default(), by_name: SweptMap::default(), is_known }
    }

    /// The counts of calls whose model is not told.
    pub(super) fn together(&self) -> &Arc<Series> {
        &self.together
    }

    /// The counts of a model, made where there are none.
    pub(super) fn of(&self, model: &DeploymentName) -> Arc<Series> {
        self.by_name.of(model, Arc::default, |model, _| !(self.is_known)(model))
    }

    pub(super) fn forget(&self, model: &DeploymentName) {
        self.by_name.remove(model);
    }

    pub(super) fn forget_alias(&self, model: &DeploymentName, alias: &DeploymentName) {
        if let Some(series) = self.by_name.get(model) {
            FAMILIES.iter().for_each(|(_, _, pick)| pick(&series).forget_alias(alias.as_str()));
        }
    }

    /// The part that a registry asks.
    pub(super) fn exporter(self: &Arc<Self>) -> Box<dyn Collector> {
        Box::new(SeriesExporter(Arc::clone(self)))
    }
}

/// Tells Prometheus.
#[derive(Debug)]
struct SeriesExporter(Arc<Models>);

impl Collector for SeriesExporter {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut all = self.0.by_name.all();
        all.push(Arc::clone(&self.0.together));
        for (name, help, pick) in FAMILIES {
            if all.iter().all(|series| pick(series).is_empty()) {
                continue;
            }
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
            for series in &all {
                pick(series).encode(&mut family)?;
            }
        }
        Ok(())
    }
}
