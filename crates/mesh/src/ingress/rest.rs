//! The REST face of the Open Inference Protocol.

pub(super) mod document;
mod field;
mod index;
pub(super) mod infer;
mod openapi;
pub(super) mod plain;

use std::{
    net::IpAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use berth_peer::port::discard;
use berth_spec::{Class, InferError, NameKey};
use berth_wire::{
    access::{Action, Asker, Resource as At},
    guard::Guard,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::{
    body::{
        read::{self, Pace},
        reply::{ReplyBody, counted, described, empty, json, passed_on},
        upload::Upload,
    },
    config::{FunctionHook, FunctionSender},
    deployment::LoadedReplica,
    forward::{
        admitted::Call,
        context::Purpose,
        describe::DescriptionSource,
        run::{Codec, run},
        runner::Runner as _,
    },
    ingress::{
        DEPLOYMENT, SERVER,
        access::asker,
        error_response::{ErrorResponse, Reply},
        path::{Operation, Page, Resource, function_in, split_namespace},
        rest::{infer::Inference, plain::PlainInference},
        settings,
        trail::Change,
    },
    local::Model,
    metrics::Protocol,
    oip::{
        self,
        content::Coding,
        describe::{
            ModelConfig, ModelMetadata, ModelReady, ModelStatistics, ModelStats, RepositoryParameters, ServerMetadata,
        },
    },
    repository,
    stack::Stack,
    statistics,
    sticky::Caller,
};

/// The longest that the caller waits, in whole milliseconds; instead of the deployment's `timeout`.
static TIMEOUT_HEADER: HeaderName = HeaderName::from_static("berth-timeout-ms");

/// The most bytes of a body that only says what to load or list.
const SMALL_BODY: usize = 64 << 10;

/// True if a path may be one of a load or unload. Few paths are this long.
fn is_change(path: &str) -> bool {
    path.ends_with("/load") || path.ends_with("/unload")
}

/// Answers REST requests: the Open Inference Protocol, KServe's first protocol, models' own paths, and pages.
pub(super) struct Rest {
    stack: Arc<Stack>,
    version: Arc<str>,
    guard: Guard,
    functions: Arc<OnceLock<FunctionHook>>,
    description: openapi::Description,
}

impl Rest {
    pub(super) fn new(
        stack: Arc<Stack>,
        version: Arc<str>,
        guard: Guard,
        functions: Arc<OnceLock<FunctionHook>>,
    ) -> Self {
        let description = openapi::Description::new(&version);
        Self { stack, version, guard, functions, description }
    }

    pub(super) fn stack(&self) -> &Arc<Stack> {
        &self.stack
    }

    pub(super) async fn answer(&self, request: Request<Incoming>, from: Option<IpAddr>) -> Response<ReplyBody> {
        let (mut head, body) = request.into_parts();
        if is_change(head.uri.path()) {
            head.extensions.insert(super::arrival(from));
        }
        let head = Arc::new(head);
        let (namespace, path) = split_namespace(head.uri.path());
        // A deployment's own path goes before one of KServe's first protocol.
        let own = path.starts_with("/v1/") && self.stack.routes.at(path.strip_suffix('/').unwrap_or(path)).is_some();
        let Some(resource) = Resource::of(path).filter(|_| !own) else {
            return Box::pin(self.elsewhere(&head, body)).await;
        };
        let namespace = namespace.unwrap_or_else(|| super::namespace(&head.headers));
        let resource = match self.allowed(&head, resource) {
            Ok(resource) => resource,
            Err(error) => {
                Box::pin(discard(&head.headers, body)).await;
                return error.into_response();
            }
        };
        let mut body = Some(body);
        let reply = match &resource {
            Resource::Model { model, version, operation: Operation::Infer } => {
                let model = NameKey { namespace, name: model };
                let codec = |head, coding| Inference { head, coding };
                ask(&self.stack, &head, &mut body, model, version.as_deref(), codec).await
            }
            Resource::Model { model, version, operation } if operation.runs() => {
                let model = NameKey { namespace, name: model };
                let form = plain::Form::of(*operation).ok_or_else(ErrorResponse::no_such_path);
                match form {
                    Ok(form) => {
                        let codec = |head, coding| PlainInference { head, coding, form };
                        Box::pin(ask(&self.stack, &head, &mut body, model, version.as_deref(), codec)).await
                    }
                    Err(error) => Err(error),
                }
            }
            other => {
                let described = Box::pin(self.describe(&head, &mut body, namespace, other)).await;
                described.map(|answer| counted(answer, &self.stack.memory))
            }
        };
        match reply {
            Ok(response) => response,
            Err(error) => {
                if let Some(body) = body.filter(|body| !body.is_end_stream()) {
                    Box::pin(discard(&head.headers, body)).await;
                }
                error.into_response()
            }
        }
    }

    /// At a path that is none of the protocol's: perhaps a model's own.
    async fn elsewhere(&self, head: &Arc<Parts>, body: Incoming) -> Response<ReplyBody> {
        match Page::of(&head.method, head.uri.path()) {
            Some(Page::Root) => return json(StatusCode::OK, Bytes::from_static(b"{\"status\":\"alive\"}")),
            Some(Page::Metrics) => {
                if let Some(metrics) = self.metrics().await {
                    return metrics;
                }
            }
            Some(Page::Openapi) => return self.description.document(),
            Some(Page::Docs) => return self.description.page(),
            None => {}
        }
        let mut body = Some(body);
        let function = self.functions.get().zip(function_in(head.uri.path()));
        let reply = match self.short_enough(head) {
            Ok(()) if let Some((hook, function)) = function => {
                let answered = self.function(hook, function, head, &mut body).await;
                answered.unwrap_or_else(ErrorResponse::into_response)
            }
            Ok(()) => document::answer(&self.stack, head, &mut body).await,
            Err(error) => error.into_response(),
        };
        if let Some(body) = body.filter(|body| !reply.status().is_success() && !body.is_end_stream()) {
            Box::pin(discard(&head.headers, body)).await;
        }
        reply
    }

    /// Metrics of the process; `None`: they are not here.
    async fn metrics(&self) -> Option<Response<ReplyBody>> {
        let hook = Arc::clone(self.stack.features.metrics.as_ref()?.get()?);
        // Many deployments take a while to write.
        let metrics = tokio::task::spawn_blocking(move || hook()).await.ok()?;
        let mut response = counted(json(StatusCode::OK, metrics), &self.stack.memory);
        let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        Some(response)
    }

    /// At the path of a function. Its caller is counted like that of a model, until the answer has been read.
    async fn function(
        &self,
        hook: &FunctionHook,
        function: NameKey<'_>,
        head: &Parts,
        body: &mut Option<Incoming>,
    ) -> Reply {
        self.guard.check(&head.uri, &head.headers)?;
        self.stack
            .may_call(&head.headers, &head.extensions, function)
            .map_err(|denied| ErrorResponse::denied(&denied))?;
        let asker = head.extensions.get();
        let metered = self.stack.meter(asker, None, Some(&head.headers), Instant::now())?;
        let permit = self.stack.admission.enter()?.metered(metered);
        let limits = &self.stack.limits;
        let Some(incoming) = body else { return Err(ErrorResponse::no_such_path()) };
        let pace = Pace { pause: limits.body_idle, deadline: Instant::now() + limits.deadline };
        let whole = read::read(incoming, limits.body, pace, &self.stack.memory).await?;
        let mut request = Request::new(whole);
        (*request.method_mut(), *request.uri_mut()) = (head.method.clone(), head.uri.clone());
        *request.headers_mut() = head.headers.clone();
        let answer = hook(FunctionSender::Client, request).await;
        Ok(passed_on(answer, permit, Instant::now() + limits.deadline, &self.stack.memory))
    }

    fn short_enough(&self, head: &Parts) -> Result<(), ErrorResponse> {
        let limit = self.stack.limits.uri;
        let long = head.uri.path_and_query().is_some_and(|uri| uri.as_str().len() > limit);
        if long { Err(ErrorResponse::uri_too_long(limit)) } else { Ok(()) }
    }

    fn allowed<'a>(&self, head: &Parts, resource: Resource<'a>) -> Result<Resource<'a>, ErrorResponse> {
        self.short_enough(head)?;
        if matches!(resource, Resource::Model { operation: Operation::Call, .. }) {
            return Err(ErrorResponse::no_such_path());
        }
        resource.allows(&head.method).map_err(ErrorResponse::wrong_verb)?;
        if resource.changes(&head.method) {
            self.guard.check(&head.uri, &head.headers)?;
        }
        Ok(resource)
    }

    /// Everything but inference.
    async fn describe(
        &self,
        head: &Parts,
        body: &mut Option<Incoming>,
        namespace: &str,
        resource: &Resource<'_>,
    ) -> Reply {
        let headers = &head.headers;
        match resource {
            Resource::Live => Ok(json(StatusCode::OK, Bytes::from_static(b"{\"live\":true}"))),
            Resource::Ready => self.ready(),
            Resource::Server => {
                let extensions = &settings::extensions(&self.stack);
                Ok(described(&ServerMetadata { name: SERVER, version: &self.version, extensions }))
            }
            Resource::List => self.list(namespace, &asker(&self.stack.access, &head.extensions)),
            Resource::Model { model, version, operation } => {
                self.model(head, NameKey { namespace, name: model }, version.as_deref(), *operation).await
            }
            Resource::AllStatistics => {
                Ok(statistics(&statistics::here(&self.stack, namespace, &asker(&self.stack.access, &head.extensions))))
            }
            Resource::Index => {
                let body = self.small(body).await?;
                let ready_only = oip::describe::index_ready_only(&body)?;
                self.stack.told()?;
                let entries = repository::entries(&self.stack, namespace, &asker(&self.stack.access, &head.extensions));
                Ok(index::index(entries, ready_only))
            }
            Resource::Load(model) => {
                let model = NameKey { namespace, name: model };
                self.stack.may(&head.headers, &head.extensions, Action::LoadModels, model)?;
                let change = Change::begin(&self.stack, headers, &head.extensions, "load", model)?;
                let done = self.load(headers, body, model).await;
                change.end(&done).await;
                done.map(|()| empty())
            }
            Resource::Unload(model) => {
                let model = NameKey { namespace, name: model };
                self.stack.may(&head.headers, &head.extensions, Action::LoadModels, model)?;
                let change = Change::begin(&self.stack, headers, &head.extensions, "unload", model)?;
                let done = self.unload(headers, body, model).await;
                change.end(&done).await;
                done.map(|()| empty())
            }
            Resource::Log
            | Resource::Traces(_)
            | Resource::Regions(_)
            | Resource::Register(_)
            | Resource::Unregister(_) => self.settings(head, body, resource).await,
            Resource::Unsupported(what) => {
                let message = format!("{what} is not supported; GET /v2 lists the extensions that are");
                Err(ErrorResponse::new(Class::Unsupported, "unsupported", message))
            }
        }
    }

    /// Settings of the server, and shared memory.
    async fn settings(&self, head: &Parts, body: &mut Option<Incoming>, resource: &Resource<'_>) -> Reply {
        use oip::describe::settings as forms;
        let (stack, asker) = (&*self.stack, asker(&self.stack.access, &head.extensions));
        let body = self.small(body).await?;
        let regions = || settings::regions(stack, &asker, &head.extensions);
        match resource {
            Resource::Log if head.method == Method::POST => {
                let changed = settings::write_log(stack, &asker, |now| forms::change_log(now, &body))?;
                Ok(described(&forms::log_json(changed)))
            }
            Resource::Log => Ok(described(&forms::log_json(settings::read_log(stack)?))),
            Resource::Traces(model) if head.method == Method::POST => {
                let changes = forms::trace_changes(&body)?;
                if model.is_some() && !changes.is_empty() {
                    return Err(settings::of_model());
                }
                let changed = settings::write_traces(stack, &asker, |now| forms::change_trace(now, changes))?;
                Ok(described(&forms::trace_json(changed)))
            }
            Resource::Traces(_) => Ok(described(&forms::trace_json(settings::read_traces(stack)))),
            Resource::Regions(name) => Ok(described(&regions()?.status(name.as_deref())?)),
            Resource::Register(name) => {
                regions()?.register(oip::Region::from_json(name, &body)?)?;
                Ok(empty())
            }
            Resource::Unregister(name) => {
                regions()?.unregister(name.as_deref());
                Ok(empty())
            }
            _ => Err(ErrorResponse::no_such_path()),
        }
    }

    async fn load(
        &self,
        headers: &HeaderMap,
        body: &mut Option<Incoming>,
        model: NameKey<'_>,
    ) -> Result<(), ErrorResponse> {
        let parameters = RepositoryParameters::from_json(&self.small(body).await?)?;
        Ok(repository::load(&self.stack, model, parameters, timeout(headers)?).await?)
    }

    async fn unload(
        &self,
        headers: &HeaderMap,
        body: &mut Option<Incoming>,
        model: NameKey<'_>,
    ) -> Result<(), ErrorResponse> {
        RepositoryParameters::from_json(&self.small(body).await?)?;
        Ok(repository::unload(&self.stack, model, timeout(headers)?).await?)
    }

    async fn small(&self, body: &mut Option<Incoming>) -> Result<Bytes, InferError> {
        let Some(body) = body else { return Ok(Bytes::new()) };
        let limits = &self.stack.limits;
        let pace = Pace { pause: limits.body_idle, deadline: Instant::now() + limits.body_idle };
        read::read(body, SMALL_BODY.min(limits.body), pace, &self.stack.memory).await
    }

    fn ready(&self) -> Reply {
        if self.stack.ready() {
            return Ok(json(StatusCode::OK, Bytes::from_static(b"{\"ready\":true}")));
        }
        let readiness = self.stack.routes.readiness();
        let message = if self.stack.admission.is_closed() {
            "the server is stopping".to_owned()
        } else if !self.stack.access.is_told() {
            "the server is starting: it has not been told yet which tokens there are".to_owned()
        } else if readiness.planned && self.stack.access.is_required() {
            // Strangers may ask.
            format!("{} of {} deployments that should be resident are ready", readiness.ready, readiness.expected)
        } else if readiness.planned {
            let missing: Vec<_> = readiness.missing.iter().map(|name| name.as_str()).collect();
            format!(
                "{} of {} deployments that should be resident are ready; missing: {}",
                readiness.ready,
                readiness.expected,
                missing.join(", ")
            )
        } else {
            "the server is starting: nothing has been planned yet".to_owned()
        };
        let body = serde_json::json!({ "ready": false, "error": message });
        Ok(json(StatusCode::SERVICE_UNAVAILABLE, body.to_string()))
    }

    async fn model(&self, head: &Parts, model: NameKey<'_>, version: Option<&str>, operation: Operation) -> Reply {
        self.stack.may(&head.headers, &head.extensions, Action::ReadModels, model)?;
        match operation {
            Operation::Ready => {
                let ready = self.stack.is_ready(model, version)?;
                let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
                let mut response = described(&ModelReady { name: model.name, ready });
                *response.status_mut() = status;
                Ok(response)
            }
            Operation::Statistics => {
                let loaded = statistics::of(&self.stack, model, version, &head.headers).await?;
                Ok(statistics(&loaded))
            }
            // Whatever runs the model was answered before.
            _ => {
                let ask = || (self.stack.head(head).into_get(), Bytes::new());
                let wait = timeout(&head.headers)?;
                match self.stack.describe(model, version, wait, ask).await? {
                    DescriptionSource::Local { model: loaded } => {
                        Ok(describe(operation, model.name, self.stack.versions(model), loaded.as_ref()))
                    }
                    DescriptionSource::Remote(answer) => Ok(answer.into_reply((), Instant::now())),
                }
            }
        }
    }

    fn list(&self, namespace: &str, asker: &Asker) -> Reply {
        self.stack.told()?;
        let (entries, aliases) = (self.stack.routes.all_in(namespace), self.stack.routes.aliases_in(namespace));
        let deployments = entries.iter().map(|entry| &entry.name);
        let all = deployments.chain(aliases.iter().map(|alias| &alias.name));
        let known = all.filter(|name| asker.may(Action::ReadModels, At::Model(name.key())).is_ok());
        let mut names: Vec<_> = known.map(|name| name.name()).collect();
        names.sort_unstable();
        Ok(described(&serde_json::json!({ "models": names })))
    }
}

/// Runs a request to a model. `body` is left where nobody has touched it, to be discarded.
async fn ask<C: Codec<Answer = Response<ReplyBody>>>(
    stack: &Stack,
    head: &Arc<Parts>,
    body: &mut Option<Incoming>,
    model: NameKey<'_>,
    version: Option<&str>,
    codec: impl FnOnce(Arc<Parts>, Coding) -> C,
) -> Reply {
    let timeout = timeout(&head.headers)?;
    let mut caller = Caller::of(head);
    if !caller.may_infer(&stack.access, &stack.audit, model) {
        return Err(stack.unknown(model).into());
    }
    let mut whole = None;
    if let Some(path) = stack.sticky_field(model) {
        let (bytes, field) = field::read(stack, head, body, &path).await?;
        (whole, caller.field) = (Some(bytes), field);
    }
    let call = Call { model, version, caller, protocol: Protocol::Rest, timeout, purpose: Purpose::Infer };
    let mut admitted = stack.admit(call)?;
    let coding = infer::coding(&head.headers).map_err(|error| ErrorResponse::wrong_encoding(admitted.failed(error)))?;
    let mut upload = match (whole, body.take()) {
        (Some(whole), _) => Upload::whole(whole, admitted.bounds()),
        (None, Some(incoming)) => Upload::new(incoming, admitted.bounds()),
        (None, None) => return Err(ErrorResponse::from(InferError::Cancelled)),
    };
    let reply = run(&mut admitted, &mut codec(Arc::clone(head), coding), &mut upload).await;
    if reply.is_err() {
        *body = upload.untouched();
    }
    let mut response = reply?;
    if let Some(deployment) = admitted.behind_alias() {
        response.headers_mut().insert(DEPLOYMENT, deployment);
    }
    Ok(response)
}

/// The answer about a replica.
pub(super) fn describe<V: AsRef<str>>(
    operation: Operation,
    model: &str,
    versions: Vec<V>,
    loaded: &dyn Model,
) -> Response<ReplyBody> {
    if operation == Operation::Config {
        return described(&ModelConfig::new(model, loaded.platform(), loaded.signature(), loaded.batching()));
    }
    let versions = versions.iter().map(AsRef::as_ref).collect();
    described(&ModelMetadata::new(model, versions, loaded.platform(), loaded.signature()))
}

fn statistics(loaded: &[LoadedReplica]) -> Response<ReplyBody> {
    let stats = loaded.iter().map(|loaded| ModelStats::new(loaded.name.name(), &loaded.version, &loaded.statistics));
    described(&ModelStatistics { model_stats: stats.collect() })
}

/// The longest that the caller waits, as its head says.
pub(super) fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, InferError> {
    let Some(value) = headers.get(&TIMEOUT_HEADER) else { return Ok(None) };
    let millis = value.to_str().ok().and_then(|text| text.trim().parse().ok()).filter(|millis| *millis > 0);
    millis.map(|millis| Some(Duration::from_millis(millis))).ok_or_else(|| {
        InferError::Invalid(format!(
            "header {} must be a number of milliseconds above 0, not {value:?}",
            TIMEOUT_HEADER.as_str()
        ))
    })
}
