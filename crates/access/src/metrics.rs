//! Metrics of the access file and of issuers.

use std::sync::{Arc, atomic::AtomicI64};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct IssuerLabel {
    issuer: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct FetchLabels {
    issuer: Arc<str>,
    result: &'static str,
}

/// Metrics of a process that has an access file.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    usable: Gauge<i64, AtomicI64>,
    keys: Family<IssuerLabel, Gauge<i64, AtomicI64>>,
    fetches: Family<FetchLabels, Counter>,
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self { usable: Gauge::default(), keys: Family::default(), fetches: Family::default() };
        metrics.usable.set(1);
        registry.register(
            "berth_access_file_usable",
            "1 if the access file as it is now is in use, 0 if it has errors and the one before it is",
            metrics.usable.clone(),
        );
        registry.register(
            "berth_oidc_keys",
            "Keys of an issuer of tokens that are known; 0: its tokens are refused",
            metrics.keys.clone(),
        );
        registry.register("berth_oidc_fetches", "Attempts to fetch the keys of an issuer", metrics.fetches.clone());
        metrics
    }

    pub(crate) fn usable(&self, usable: bool) {
        self.usable.set(usable.into());
    }

    pub(crate) fn keys(&self, issuer: &str, keys: usize) {
        let label = IssuerLabel { issuer: issuer.into() };
        self.keys.get_or_create(&label).set(i64::try_from(keys).unwrap_or(i64::MAX));
    }

    pub(crate) fn fetched(&self, issuer: &str, ok: bool) {
        let result = if ok { "ok" } else { "failed" };
        self.fetches.get_or_create(&FetchLabels { issuer: issuer.into(), result }).inc();
    }
}
