//! The layers that one inference passes, from the bottom (nearest to the model) to the top (nearest to the client).
//!
//! ```text
//!  head ─▶ find ─▶ admit ─▶ full? ─▶ ready? ─▶ here: [ingress reads and decodes the body] ─▶ lease ─▶ model ─▶ account
//!                                    ▲  │  └──▶ there: the body goes as it comes ─▶ another node's replica ──▶ account
//!                                    │ park          │
//!                                    └──┴── moved ◀──┘  nothing was run: to the next endpoint (`forward`)
//! ```
//!
//! * **account** is outermost, so that every end is counted, a client that went away included: it is the drop of
//!   [`AdmittedRequest`].
//! * **find** comes before everything that costs: unknown names are answered from the route table alone.
//! * **admit** bounds all requests together, with shares for callers and models that have few (`fair`), and refuses at shutdown; then it counts the request against the limits of its model
//!   and its principal, where they have some (`quota`), before it counts as demand: what is refused loads no model.
//! * **full?** sheds before the body is read what the deployment's own bound would shed after it, and, while more comes than the
//!   model answers, what would wait too long (`overload`).
//! * **ready?** parks before the body is read: a request that waits holds a few hundred bytes, not its tensors.
//! * **lease** comes after the body: a slow sender never keeps a replica from draining. A lease that is refused because
//!   the replica drains sends the request back to the route, and to parking: it is not an error.
//! * **there** runs under the same bounds as here; the endpoint that runs it asks no routes and counts no demand.
//! * **model** runs under the deadline. Dropping it is how a cancelled request is taken out of the model's queue.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_audit::AuditLog;
use berth_spec::{
    DeploymentName, InferError, NameKey,
    id::{DEFAULT_NAMESPACE, MAX_NAMESPACE},
    inference::Shed,
    routes::{OnMiss, Stickiness},
};
use berth_wire::access::{Access, Action, Asker, Denied, Resource};
use http::{Extensions, HeaderMap};
use tokio::time::Instant;

use crate::{
    accounts::{Accounts, Key},
    admission::Admission,
    body::{memory::RequestMemory, upload::Bounds},
    calls::Calls,
    config::{Features, Limits, PropagateHook},
    controls::TraceControl,
    data_plane::CurrentDataPlane,
    demand::DemandTracker,
    deployment::DeploymentState,
    endpoint::forwarding::Forwarding,
    metrics::Totals,
    parking::{Parking, refusal},
    payload::Payloads,
    quota::metered::{LimitedModel, MeteredRequest},
    resolved::NoLease,
    routes::Routes,
    routes::alias::ResolvedAlias,
    shared_memory::Regions,
    sticky::Caller,
    trail,
};

/// When to try again while no controller has said what there is: a controller takes about that long to plan.
const RETRY_UNTOLD: Duration = Duration::from_secs(1);

/// Everything that an inference passes through.
pub(crate) struct Stack {
    pub(crate) routes: Arc<Routes>,
    pub(crate) parking: Parking,
    pub(crate) demand: Arc<DemandTracker>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) totals: Arc<Totals>,
    pub(crate) limits: Limits,
    /// Budget of the bodies and tensors of all requests.
    pub(crate) memory: Arc<RequestMemory>,
    /// The way to other nodes; `None`: there are none.
    pub(crate) forwarding: Option<Arc<Forwarding>>,
    /// True once the gateway is going to stop: it is no more ready, while new requests are still taken.
    pub(crate) leaving: AtomicBool,
    /// The methods of models that may be called; `None`: all.
    pub(crate) data_plane: Option<CurrentDataPlane>,
    /// Counts of calls by method; `None`: they are not wanted.
    pub(crate) calls: Option<Arc<Calls>>,
    /// Payload processors; `None`: there are none.
    pub(crate) payloads: Option<Arc<Payloads>>,
    /// Tokens, and if one is needed.
    pub(crate) access: Arc<Access>,
    /// Accounts of principals that have limits.
    pub(crate) accounts: Accounts,
    /// The log that refusals and loads by clients are recorded in.
    pub(crate) audit: AuditLog,
    /// Further parts of the port for clients.
    pub(crate) features: Features,
    /// Registered shared memory; `None`: it is off.
    pub(crate) regions: Option<Arc<Regions>>,
    /// Choice of the requests that are traced; `None`: traces go nowhere.
    pub(crate) traces: Option<TraceControl>,
}

impl Stack {
    /// Refuses a model that the sender of a request may not do this with, just as one that nobody declared.
    pub(crate) fn may(
        &self,
        headers: &HeaderMap,
        extensions: &Extensions,
        action: Action,
        model: NameKey<'_>,
    ) -> Result<(), InferError> {
        let asker = extensions.get().cloned().unwrap_or_else(|| self.access.stranger());
        asker.may(action, Resource::Model(model)).map_err(|_| {
            let resource = trail::resource("Model", model);
            trail::out_of_reach(&self.audit, &asker, Some(headers), Some(extensions), action, resource);
            self.unknown(model)
        })
    }

    /// Refuses the sender of a request whose role does not hold in the namespace of a function, be there one of that name or not.
    pub(crate) fn may_call(
        &self,
        headers: &HeaderMap,
        extensions: &Extensions,
        function: NameKey<'_>,
    ) -> Result<(), Denied> {
        let asker = extensions.get().cloned().unwrap_or_else(|| self.access.stranger());
        asker.may(Action::Infer, Resource::Namespace(function.namespace)).inspect_err(|_| {
            let resource = trail::resource("Function", function);
            trail::out_of_reach(&self.audit, &asker, Some(headers), Some(extensions), Action::Infer, resource);
        })
    }

    /// Counts a request against the limits of its principal and of its model; `None`: there are none.
    pub(crate) fn meter(
        &self,
        asker: Option<&Asker>,
        model: Option<LimitedModel<'_>>,
        headers: Option<&HeaderMap>,
        now: Instant,
    ) -> Result<Option<Arc<MeteredRequest>>, InferError> {
        MeteredRequest::enter(&self.accounts, &self.totals, asker, model, headers, now)
    }

    /// The deployment for a request: the one of this name, or the choice of the alias of this name. Takes whatever a client
    /// sent.
    pub(crate) fn choose(
        &self,
        model: NameKey<'_>,
        version: Option<&str>,
        caller: &Caller<'_>,
    ) -> Result<(Arc<DeploymentState>, Option<ResolvedAlias>), InferError> {
        if let Some(entry) = self.routes.find(model) {
            return Ok((entry, None));
        }
        let alias = self.routes.alias(model).ok_or_else(|| self.unknown(model))?;
        let key = caller.key(&alias.targets().sticky);
        alias.choose(key, version, &self.routes).map(|(entry, via)| (entry, Some(via)))
    }

    /// The deployment that a description is about: of an alias the one with that version, or with the largest share.
    pub(crate) fn find_to_describe(
        &self,
        model: NameKey<'_>,
        version: Option<&str>,
    ) -> Result<(Arc<DeploymentState>, Option<ResolvedAlias>), InferError> {
        if let Some(entry) = self.routes.find(model) {
            return Ok((entry, None));
        }
        let alias = self.routes.alias(model).ok_or_else(|| self.unknown(model))?;
        let found = match version {
            Some(_) => alias.choose(None, version, &self.routes),
            None => alias.main(&self.routes),
        };
        found.map(|(entry, via)| (entry, Some(via)))
    }

    /// Versions that clients reach by a name: of an alias those of all its targets, the one with the largest share first.
    pub(crate) fn versions(&self, model: NameKey<'_>) -> Vec<Arc<str>> {
        let entries = match (self.routes.find(model), self.routes.alias(model)) {
            (Some(entry), _) => vec![entry],
            (None, Some(alias)) => self.known(alias.targets().existing()),
            (None, None) => Vec::new(),
        };
        let mut versions: Vec<Arc<str>> = Vec::new();
        for entry in entries {
            for target in entry.route().targets.iter() {
                if !versions.contains(&target.version) {
                    versions.push(Arc::clone(&target.version));
                }
            }
        }
        versions
    }

    fn known(&self, names: Vec<DeploymentName>) -> Vec<Arc<DeploymentState>> {
        names.iter().filter_map(|name| self.routes.find(name.key())).collect()
    }

    /// The deployments behind a name: the one of this name, or those that the alias of this name leads to. With a version, those
    /// of them that have it; if none has, all.
    pub(crate) fn behind(
        &self,
        model: NameKey<'_>,
        version: Option<&str>,
    ) -> Result<Vec<Arc<DeploymentState>>, InferError> {
        if let Some(entry) = self.routes.find(model) {
            return Ok(vec![entry]);
        }
        let alias = self.routes.alias(model).ok_or_else(|| self.unknown(model))?;
        let mut existing = self.known(alias.targets().existing());
        if existing.iter().any(|entry| entry.knows(version).is_ok()) {
            existing.retain(|entry| entry.knows(version).is_ok());
        }
        if existing.is_empty() { Err(alias.leads_nowhere()) } else { Ok(existing) }
    }

    /// The path of the field that requests of this name keep together by, where the name is an alias that says so.
    pub(crate) fn sticky_field(&self, model: NameKey<'_>) -> Option<String> {
        if !self.routes.any_sticky_field() {
            return None; // nearly always
        }
        match &self.routes.alias(model)?.targets().sticky {
            Stickiness::Field(path) => Some(path.clone()),
            Stickiness::None | Stickiness::Header(_) | Stickiness::Client => None,
        }
    }

    /// The error for an undeclared name; while no controller has answered, the error that it may be declared.
    pub(crate) fn unknown(&self, model: NameKey<'_>) -> InferError {
        if let Err(untold) = self.told() {
            return untold;
        }
        let shown: String = model.name.chars().take(berth_spec::id::MAX_NAME).collect();
        let inside: String = match model.namespace {
            DEFAULT_NAMESPACE => String::new(),
            other => format!(" in namespace {:?}", other.chars().take(MAX_NAMESPACE).collect::<String>()),
        };
        // It begins as Triton's message does: clients look for these words.
        InferError::NotFound(format!(
            "Request for unknown model: {shown:?} is not found{inside}: no deployment or alias of that name is declared"
        ))
    }

    /// Refuses while nobody has said which deployments there are: a name that is not known may well be declared.
    pub(crate) fn told(&self) -> Result<(), InferError> {
        if !self.routes.never_told() {
            return Ok(());
        }
        let message = "this gateway has not been told yet which models there are; try again";
        Err(InferError::shed(Shed::Unavailable, message, RETRY_UNTOLD))
    }

    /// True if a request for this model and version would be answered at once. An alias is ready while one of its
    /// deployments is.
    pub(crate) fn is_ready(&self, model: NameKey<'_>, version: Option<&str>) -> Result<bool, InferError> {
        let mut refused = None;
        for entry in self.behind(model, version)? {
            match self.answers_at_once(&entry, version) {
                Ok(true) => return Ok(true),
                answered => refused = refused.or(answered.err()),
            }
        }
        refused.map_or(Ok(false), Err)
    }

    fn answers_at_once(&self, entry: &DeploymentState, version: Option<&str>) -> Result<bool, InferError> {
        match entry.would_lease(version, &self.parking.replicas) {
            Ok(()) => Ok(!self.is_stopping()),
            Err(no @ (NoLease::Gone | NoLease::NoSuchVersion)) => Err(refusal(entry, version, no)),
            Err(_) => Ok(!self.is_stopping() && (entry.route().is_elsewhere(version) || self.wakes(entry))),
        }
    }

    /// True if an on-demand deployment counts as ready because a request would load it.
    fn wakes(&self, entry: &DeploymentState) -> bool {
        let route = entry.route();
        self.features.on_demand_ready && route.terms.on_demand && matches!(route.terms.on_miss, OnMiss::Park)
    }

    /// The hook that continues traces elsewhere.
    pub(crate) fn propagate(&self) -> Option<&PropagateHook> {
        self.forwarding.as_ref()?.propagate.as_ref()
    }

    /// The bounds of the bodies of requests whose key is not known.
    pub(crate) fn bounds(&self) -> Bounds {
        self.bounds_in(&self.memory)
    }

    /// The bounds of a request's body, which counts against the memory of this key.
    pub(crate) fn bounds_for(&self, key: &Key) -> Bounds {
        self.bounds_in(key.memory(&self.memory))
    }

    fn bounds_in(&self, memory: &Arc<RequestMemory>) -> Bounds {
        Bounds::new(&self.limits, self.forwarding.as_ref().map(|forwarding| &forwarding.room), memory)
    }

    /// The memory for the body of a request to this name, before it was let in.
    pub(crate) fn memory_for(&self, model: NameKey<'_>, asker: Option<&Asker>) -> Arc<RequestMemory> {
        match self.routes.find(model) {
            Some(entry) => Arc::clone(entry.hot().keys.of(asker, &self.accounts).memory(&self.memory)),
            None => Arc::clone(&self.memory),
        }
    }

    /// True once the gateway stops, or is going to.
    pub(crate) fn is_stopping(&self) -> bool {
        self.leaving.load(Relaxed) || self.admission.is_closed()
    }

    /// True if everything that should be resident answers, tokens are known where one is needed, and the gateway is not stopping.
    pub(crate) fn ready(&self) -> bool {
        let readiness = self.routes.readiness();
        readiness.planned && readiness.ready == readiness.expected && self.access.is_told() && !self.is_stopping()
    }
}
