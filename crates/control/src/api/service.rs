//! Implementation of the control API. The REST layer converts requests into these calls and the answers, shapes of
//! [`berth_wire::api`], into bytes.

mod audit;
mod dashboard;
mod declare;
mod functions;
mod join_tokens;
mod operate;
mod revocations;
mod sources;
mod tell;
mod tokens;

use std::sync::Arc;

use berth_audit::AuditLog;
use berth_peer::port::AddressLimit;
use berth_spec::{DeploymentName, id::percent_decode};
use berth_wire::{
    access::Access,
    api::{ReadinessView, VersionView},
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub(crate) use dashboard::{MOST_PARTS, Selection, Sort};
pub(crate) use declare::{ALIAS, CheckedDocuments, DEPLOYMENT, Delete, Expect, FUNCTION, Write};
pub(crate) use tell::ListPage;

use super::{
    ApiDependencies, error::ApiError, peer_queries::PeerQueries, query::nearest, recorder::Recorder, top::Sampler,
    watch::WatchPlaces,
};
use crate::{
    Handle,
    handle::{Error, ListRequest},
};

/// Bodies processed at a time; more are refused with a retry. Each may use several times
/// [`berth_wire::api::MAX_BODY`] while it is parsed.
pub(crate) const BODIES: usize = 8;

/// Small bodies read at a time, each of at most 64 KiB. More than people and scripts send at once.
pub(crate) const SMALL_BODIES: usize = 32;

/// Webhooks read at a time, each of at most 1 MiB. Strangers may send them, so they take no place of others; half of them are
/// left to other addresses.
pub(crate) const WEBHOOKS: usize = 32;

/// Operations of the control API, which the handlers of REST call and the dashboard shares. One per term.
pub(crate) struct Service {
    pub(super) handle: Handle,
    /// Recent activity of this node's gateway.
    sampler: Arc<Sampler>,
    recorder: Arc<Recorder>,
    peer_queries: PeerQueries,
    rules: Option<String>,
    metrics: super::MetricsSource,
    trial: Option<super::trial::TrialSource>,
    logs: Option<super::log::LogSource>,
    version: String,
    access: Arc<Access>,
    audit: AuditLog,
    members: super::MembersSource,
    leader: super::LeaderSource,
    issuing: Option<Arc<super::Issuing>>,
    pub(super) bodies: Arc<Semaphore>,
    pub(super) small_bodies: Arc<Semaphore>,
    pub(super) watches: WatchPlaces,
    pub(super) webhooks: Arc<Semaphore>,
    pub(super) webhook_addresses: Arc<AddressLimit>,
    kept: dashboard::CachedAnswers,
    /// Ends watches, which would not end by themselves.
    pub(super) shutdown: CancellationToken,
}

impl Service {
    pub(super) fn new(
        handle: Handle,
        dependencies: ApiDependencies,
        sampler: Arc<Sampler>,
        recorder: Arc<Recorder>,
        peer_queries: PeerQueries,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            handle,
            sampler,
            recorder,
            peer_queries,
            rules: dependencies.rules,
            metrics: dependencies.metrics,
            trial: dependencies.trial,
            logs: dependencies.logs,
            version: dependencies.version,
            access: dependencies.access,
            audit: dependencies.audit,
            members: dependencies.members,
            leader: dependencies.leader,
            issuing: dependencies.issuing,
            bodies: Arc::new(Semaphore::new(BODIES)),
            small_bodies: Arc::new(Semaphore::new(SMALL_BODIES)),
            watches: WatchPlaces::default(),
            webhooks: Arc::new(Semaphore::new(WEBHOOKS)),
            webhook_addresses: AddressLimit::new(WEBHOOKS / 2),
            kept: dashboard::CachedAnswers::default(),
            shutdown,
        }
    }

    /// Every metric, as OpenMetrics text. Encoded beside the runtime: with many models it takes milliseconds.
    pub(crate) async fn metrics(&self) -> Result<String, ApiError> {
        let source = Arc::clone(&self.metrics);
        tokio::task::spawn_blocking(move || source()).await.map_err(|error| {
            tracing::error!(event = "metrics_failed", %error, "encoding the metrics failed");
            ApiError::new(berth_spec::Class::Internal, "encoding the metrics failed: the log says why")
        })
    }

    /// Tokens, and if one is needed.
    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    pub(crate) fn readiness(&self) -> ReadinessView {
        let readiness = self.handle.readiness().borrow().clone();
        ReadinessView {
            ready: readiness.planned && readiness.ready >= readiness.expected && self.access.is_told(),
            planned: readiness.planned,
            expected: readiness.expected,
            available: readiness.ready,
            // Strangers may ask for it.
            missing: match self.access.is_required() {
                true => Vec::new(),
                false => readiness.missing.iter().map(ToString::to_string).collect(),
            },
        }
    }

    pub(crate) fn version(&self) -> VersionView {
        VersionView { version: self.version.clone(), api_version: berth_wire::api::API_VERSION.to_owned() }
    }

    /// The error for the caller: where a name is not known, the name that was probably meant.
    async fn explained(&self, error: Error) -> ApiError {
        // Looking further would make every typing error cost as much as a listing of everything.
        const LOOKED_AT: usize = 500;
        if let Error::NoAlias(name) = &error {
            let request = ListRequest { limit: LOOKED_AT, ..ListRequest::default() };
            let Ok(page) = self.handle.aliases(request).await else { return error.into() };
            return match nearest(name.as_str(), page.items.iter().map(|found| found.alias.name.as_str())) {
                Some(near) => ApiError::not_found(format!("there is no alias {name:?}: did you mean {near:?}?")),
                None => error.into(),
            };
        }
        let Error::NotFound(name) = &error else { return error.into() };
        let request = ListRequest { limit: LOOKED_AT, ..ListRequest::default() };
        let Ok(page) = self.handle.names(request).await else { return error.into() };
        match nearest(name.as_str(), page.items.iter().map(DeploymentName::as_str)) {
            Some(near) => ApiError::not_found(format!("there is no deployment {name:?}: did you mean {near:?}?")),
            None => error.into(),
        }
    }
}

/// A deployment's name in the written form.
pub(crate) fn name(text: &str) -> Result<DeploymentName, ApiError> {
    DeploymentName::new(text)
        .map_err(|error| ApiError::invalid("metadata.name", format!("{text:?} is not a name: {error}"), ""))
}

/// A deployment's name, percent-coded: one of a list with commas.
pub(crate) fn coded_name(text: &str) -> Result<DeploymentName, ApiError> {
    name(&percent_decode(text).unwrap_or_else(|| text.into()))
}
