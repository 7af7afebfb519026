//! Declaring, previewing and deleting. All documents of a request are checked, against the manifest's rules and against
//! what is stored, before the first is taken.

use std::collections::{BTreeMap, BTreeSet};

use berth_spec::{
    Class, DeploymentName, Namespace, Origin,
    manifest::{self, Manifest, ManifestAlias, ManifestDeployment, ManifestError, ManifestFunction, ParseContext},
};
use berth_wire::{
    access::{Access, Action, Asker, Denied, Resource},
    api::{API_VERSION, Applied, ApplyResult, ErrorDetail, PlanView, Validated},
};
use futures::future::BoxFuture;

use super::Service;
use crate::{
    api::{error::ApiError, trail::Notes, view},
    functions::ApplyFunction,
    handle::{ApplyAlias, ApplyMode, ApplyRequest, DeleteAlias, DeleteRequest, Error, Ownership, PreviewRequest},
    source::WorkerSettings,
    store::{Rev, StoreError},
};

/// The kind of deployments.
pub(crate) const DEPLOYMENT: &str = "ModelDeployment";
/// The kind of aliases.
pub(crate) const ALIAS: &str = "Alias";
/// The kind of functions.
pub(crate) const FUNCTION: &str = "Function";

/// Documents that passed the manifest's checks.
#[derive(Debug)]
pub(crate) struct CheckedDocuments(Vec<Manifest>);

/// Options of a write.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    pub(crate) mode: ApplyMode,
    pub(crate) ownership: Ownership,
}

/// The stored version on which a write depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Any version.
    Anything,
    /// This one; nothing, where it is [`Rev::NONE`]. From `If-Match` or `If-None-Match`.
    Version(Rev),
}

/// Options of a delete.
#[derive(Debug, Clone)]
pub(crate) struct Delete {
    pub(crate) write: Write,
    pub(crate) expect: Expect,
}

impl Write {
    /// The same, with a note if nothing is to be changed.
    pub(crate) fn noted(self, notes: &Notes) -> Self {
        if self.mode == ApplyMode::DryRun {
            notes.dry_run();
        }
        self
    }
}

impl Expect {
    pub(super) fn rev(self) -> Option<Rev> {
        match self {
            Self::Anything => None,
            Self::Version(rev) => Some(rev),
        }
    }

    /// A version that came in a header is a precondition, and its failure has a status of its own.
    pub(super) fn refused(self, error: Error) -> ApiError {
        match (&error, self) {
            (Error::Stale { .. }, Self::Version(_)) => ApiError::precondition_failed(error.to_string()),
            _ => error.into(),
        }
    }
}

impl CheckedDocuments {
    /// Reads a text of many documents.
    pub(crate) async fn parse(text: String, context: ParseContext) -> Result<Self, ApiError> {
        Self::read(move || manifest::parse_all(&text, &context)).await
    }

    /// Reads a text whose documents belong to `namespace`, if one is given: those that name none are in it, and one that
    /// names another is refused.
    pub(crate) async fn inside(
        namespace: Option<Namespace>,
        text: String,
        context: ParseContext,
    ) -> Result<Self, ApiError> {
        let Some(namespace) = namespace else { return Self::parse(text, context).await };
        let read = Self::parse(text, ParseContext { namespace: namespace.clone(), ..context }).await?;
        let elsewhere = |document: &&Manifest| document.name().namespace() != namespace.as_str();
        match read.0.iter().find(elsewhere) {
            None => Ok(read),
            Some(other) => {
                let message = format!("{} is in another namespace than {namespace}", other.name());
                let remedy = "leave metadata.namespace out, or give the same namespace with the request";
                Err(ApiError::invalid("metadata.namespace", message, remedy))
            }
        }
    }

    /// Reads the manifests of a registry, which may have none.
    pub(crate) async fn of_registry(manifests: &[serde_json::Value], context: ParseContext) -> Result<Self, ApiError> {
        if manifests.is_empty() {
            return Ok(Self(Vec::new()));
        }
        let text: Vec<String> = manifests.iter().map(ToString::to_string).collect();
        let text = text.join("\n---\n");
        // The text is made here: its lines say nothing to anybody.
        let without_line = |error: ManifestError| ManifestError { line: 0, column: 0, ..error };
        Self::read(move || {
            manifest::parse_all(&text, &context).map_err(|errors| errors.into_iter().map(without_line).collect())
        })
        .await
    }

    /// Off the runtime: reading a large body takes a second, in which the controller, which may share the thread, would
    /// plan nothing.
    async fn read(
        read: impl FnOnce() -> Result<Vec<Manifest>, Vec<ManifestError>> + Send + 'static,
    ) -> Result<Self, ApiError> {
        match tokio::task::spawn_blocking(read).await {
            Ok(Ok(documents)) => Self::some(documents),
            Ok(Err(errors)) => Err(ApiError::manifests(errors)),
            Err(error) => {
                tracing::error!(event = "manifests_unread", %error, "reading manifests failed");
                Err(ApiError::new(Class::Internal, "reading the manifests failed: the log says why"))
            }
        }
    }

    fn some(documents: Vec<Manifest>) -> Result<Self, ApiError> {
        if documents.is_empty() {
            let remedy = "send at least one document with kind: ModelDeployment, kind: Alias or kind: Function";
            return Err(ApiError::invalid("body", "there is no document in the request", remedy));
        }
        Ok(Self(documents))
    }

    /// Notes what is to be declared.
    pub(crate) fn note(&self, notes: &Notes) {
        for document in &self.0 {
            notes.about(document.kind(), document.name());
        }
    }

    /// Checks that somebody may declare every one of them.
    pub(crate) fn allowed(&self, asker: &Asker, access: &Access) -> Result<(), ApiError> {
        let refused = |denied: Denied| ApiError::forbidden(denied.to_string());
        for document in &self.0 {
            let name = document.name().key();
            let code_refused = |denied: Denied| ApiError::forbidden(of_code(document, &denied));
            if let Manifest::Function(_) = document {
                asker.may(Action::Declare, Resource::Namespace(name.namespace)).map_err(refused)?;
                if !access.allows_inline_cards() {
                    // Code of strangers on the machine of the controller: a right in one namespace is none to that.
                    asker.may(Action::DeclareCode, Resource::Server).map_err(code_refused)?;
                }
                continue;
            }
            asker.may(Action::Declare, Resource::Model(name)).map_err(refused)?;
            match document {
                Manifest::Deployment(manifest)
                    if manifest.spec.model.card.is_some() && !access.allows_inline_cards() =>
                {
                    asker.may(Action::DeclareCode, Resource::Model(name)).map_err(code_refused)?;
                }
                Manifest::Deployment(_) | Manifest::Function(_) => {}
                // Whoever may ask the alias reaches its targets.
                Manifest::Alias(manifest) => {
                    for (target, _) in &manifest.targets {
                        asker.may(Action::Declare, Resource::Model(target.key())).map_err(refused)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn requests(self, write: &Write) -> Requests {
        let place =
            |(at, document): (usize, &Manifest)| ((is_function(document.kind()), document.name().to_string()), at);
        let order = self.0.iter().enumerate().map(place).collect();
        let mut requests = Requests { order, deployments: Vec::new(), aliases: Vec::new(), functions: Vec::new() };
        for document in self.0 {
            match document {
                Manifest::Deployment(manifest) => {
                    requests.deployments.push(write.deployment(*manifest, Expect::Anything));
                }
                Manifest::Alias(manifest) => requests.aliases.push(write.alias(*manifest, Expect::Anything)),
                Manifest::Function(manifest) => requests.functions.push(write.function(*manifest, Expect::Anything)),
            }
        }
        requests
    }
}

/// Documents to apply. Deployments come first, so that aliases find their targets.
#[derive(Clone)]
struct Requests {
    /// The places of the documents in the request, by name; functions have names of their own.
    order: BTreeMap<(bool, String), usize>,
    deployments: Vec<ApplyRequest>,
    aliases: Vec<ApplyAlias>,
    functions: Vec<ApplyFunction>,
}

fn is_function(kind: &str) -> bool {
    kind == FUNCTION
}

impl Requests {
    fn len(&self) -> usize {
        self.deployments.len() + self.aliases.len() + self.functions.len()
    }

    fn rehearsal(&self) -> Self {
        let mut rehearsal = self.clone();
        rehearsal.deployments.iter_mut().for_each(|request| request.mode = ApplyMode::DryRun);
        rehearsal.aliases.iter_mut().for_each(|request| request.mode = ApplyMode::DryRun);
        rehearsal.functions.iter_mut().for_each(|request| request.mode = ApplyMode::DryRun);
        rehearsal
    }
}

impl Write {
    fn deployment(&self, manifest: ManifestDeployment, expect: Expect) -> ApplyRequest {
        let (mode, ownership) = (self.mode, self.ownership);
        ApplyRequest { expect: expect.rev(), mode, ownership, ..ApplyRequest::new(manifest, Origin::API) }
    }

    fn alias(&self, manifest: ManifestAlias, expect: Expect) -> ApplyAlias {
        let (mode, ownership) = (self.mode, self.ownership);
        ApplyAlias { expect: expect.rev(), mode, ownership, ..ApplyAlias::new(manifest, Origin::API) }
    }

    fn function(&self, manifest: ManifestFunction, expect: Expect) -> ApplyFunction {
        let (mode, ownership) = (self.mode, self.ownership);
        ApplyFunction { manifest, origin: Origin::API, expect: expect.rev(), mode, ownership }
    }
}

impl Service {
    /// Declares all documents, or none if one is refused. If a later transaction fails (another writer, a failed
    /// store), earlier ones stay, and the error lists them.
    pub(crate) async fn apply(&self, documents: CheckedDocuments, write: Write) -> Result<Applied, ApiError> {
        let requests = documents.requests(&write);
        if requests.len() > 1 && write.mode == ApplyMode::Commit {
            self.apply_each(requests.rehearsal()).await?;
        }
        let results = self.apply_each(requests).await?;
        Ok(Applied {
            api_version: API_VERSION.to_owned(),
            kind: "ApplyResult".to_owned(),
            dry_run: write.mode == ApplyMode::DryRun,
            results,
        })
    }

    /// Declares the one document of a PUT, which must be of this kind and about `name`.
    pub(crate) async fn put(
        &self,
        kind: &str,
        name: &DeploymentName,
        mut documents: CheckedDocuments,
        write: Write,
        expect: Expect,
    ) -> Result<ApplyResult, ApiError> {
        let count = documents.0.len();
        let found = documents.0[0].name();
        if count > 1 {
            let message = format!("a PUT takes one document, this one has {count}");
            return Err(ApiError::invalid("body", message, "use POST /v1/apply for many"));
        }
        if documents.0[0].kind() != kind {
            let message = format!("the path is for kind: {kind}, the document has kind: {}", documents.0[0].kind());
            return Err(ApiError::invalid("kind", message, "use POST /v1/apply, which takes every kind"));
        }
        if found != name {
            let message = format!("the path names {name:?}, the document {found:?}");
            return Err(ApiError::invalid("metadata.name", message, "make them the same"));
        }
        let Some(document) = documents.0.pop() else { return Err(ApiError::manifests(Vec::new())) };
        let applied = match document {
            Manifest::Deployment(manifest) => self.handle.apply(write.deployment(*manifest, expect)).await,
            Manifest::Alias(manifest) => self.handle.apply_alias(&write.alias(*manifest, expect)).await,
            Manifest::Function(manifest) => self.apply_function(write.function(*manifest, expect)).await,
        };
        Ok(view::applied(kind, applied.map_err(|error| expect.refused(error))?))
    }

    /// Previews applying the documents and deleting those of `deleted` that exist, with other settings of workers if
    /// some are given.
    pub(crate) async fn plan(
        &self,
        documents: CheckedDocuments,
        deleted: Vec<DeploymentName>,
        workers: Option<WorkerSettings>,
    ) -> Result<PlanView, ApiError> {
        // Whoever owns it: nothing is changed, and who may change it is told.
        let write = Write { mode: ApplyMode::DryRun, ownership: Ownership::Warn };
        let requests = documents.requests(&write);
        let results = self.apply_each(requests.clone()).await?;
        let applied = requests.deployments.into_iter().map(|request| PreviewRequest::Apply(Box::new(request)));
        let deleted = deleted.into_iter().map(PreviewRequest::Delete);
        let changes = applied.chain(deleted).chain(workers.map(PreviewRequest::Workers)).collect();
        let preview = self.handle.preview(changes).await?;
        Ok(view::plan(&preview, results))
    }

    /// Says that documents passed the checks.
    pub(crate) fn validated(&self, documents: &CheckedDocuments) -> Validated {
        Validated {
            api_version: API_VERSION.to_owned(),
            kind: "Validated".to_owned(),
            documents: documents.0.iter().map(|document| document.name().to_string()).collect(),
        }
    }

    /// Asks for a deployment to go.
    pub(crate) async fn delete(&self, name: &DeploymentName, delete: Delete) -> Result<ApplyResult, ApiError> {
        let found = match self.handle.get(name).await {
            Ok(found) => Some(found),
            // What cannot be read can still be deleted.
            Err(Error::Store(StoreError::Corrupt { .. })) => None,
            Err(error) => return Err(self.explained(error).await),
        };
        let generation = found.as_ref().map_or(0, |found| found.deployment.generation.0);
        if delete.write.mode == ApplyMode::DryRun {
            let Some(found) = found else {
                return Ok(view::deleted(DEPLOYMENT, name.as_str(), generation, String::new()));
            };
            let owner = &found.deployment.origin;
            if delete.write.ownership == Ownership::Respect && *owner != Origin::API {
                return Err(Error::Owned { name: name.clone(), owner: owner.clone(), by: Origin::API }.into());
            }
            if let Some(expected) = delete.expect.rev().filter(|expected| *expected != found.rev) {
                let stale = Error::Stale { name: name.clone(), expected, found: found.rev };
                return Err(delete.expect.refused(stale));
            }
            return Ok(view::deleted(DEPLOYMENT, name.as_str(), generation, found.rev.to_string()));
        }
        let request =
            DeleteRequest { origin: Origin::API, expect: delete.expect.rev(), ownership: delete.write.ownership };
        let deleted = self.handle.delete(name, request).await.map_err(|error| delete.expect.refused(error))?;
        Ok(view::deleted(DEPLOYMENT, name.as_str(), generation, deleted.rev.to_string()))
    }

    /// Deletes an alias. Its targets stay.
    pub(crate) async fn delete_alias(&self, name: &DeploymentName, delete: Delete) -> Result<ApplyResult, ApiError> {
        let request = DeleteAlias {
            mode: delete.write.mode,
            of: DeleteRequest { origin: Origin::API, expect: delete.expect.rev(), ownership: delete.write.ownership },
        };
        let deleted = self.handle.delete_alias(name, request).await.map_err(|error| delete.expect.refused(error))?;
        Ok(view::deleted(ALIAS, name.as_str(), deleted.generation.0, deleted.rev.to_string()))
    }

    /// Applies each; one answer for all of them.
    async fn apply_each(&self, requests: Requests) -> Result<Vec<ApplyResult>, ApiError> {
        let Requests { order, deployments, aliases, functions } = requests;
        let names: Vec<DeploymentName> = deployments.iter().map(|request| request.manifest.name.clone()).collect();
        let modes = deployments.iter().map(|request| request.mode).chain(aliases.iter().map(|request| request.mode));
        let modes = modes.chain(functions.iter().map(|request| request.mode));
        let mode = modes.min_by_key(|mode| *mode == ApplyMode::DryRun).unwrap_or(ApplyMode::DryRun);
        let (mut applied, mut refused) = (Vec::with_capacity(names.len() + aliases.len()), Vec::new());
        let applying: BoxFuture<'_, _> = Box::pin(self.handle.apply_all(deployments));
        let mut declared = BTreeSet::new();
        for (name, result) in names.into_iter().zip(applying.await) {
            match result {
                Ok(result) => {
                    applied.push(view::applied(DEPLOYMENT, result));
                    declared.insert(name);
                }
                Err(error) => refused.push((name, error)),
            }
        }
        for request in &aliases {
            match self.handle.apply_alias_beside(request, &declared).await {
                Ok(result) => applied.push(view::applied(ALIAS, result)),
                Err(error) => refused.push((request.manifest.name.clone(), error)),
            }
        }
        for request in functions {
            let name = request.manifest.name.clone();
            match self.apply_function(request).await {
                Ok(result) => applied.push(view::applied(FUNCTION, result)),
                Err(error) => refused.push((name, error)),
            }
        }
        applied.sort_by_key(|result| order.get(&(is_function(&result.kind), result.name.clone())));
        one_answer(applied, &refused, mode)
    }

    async fn apply_function(&self, request: ApplyFunction) -> Result<crate::handle::Applied, Error> {
        self.function_host()?.apply(request).await
    }
}

/// The refusal of a document that brings code, with the reason and the ways that there are.
fn of_code(document: &Manifest, denied: &Denied) -> String {
    let name = document.name();
    match document {
        Manifest::Function(_) => {
            format!(
                "function {name} brings code to run: {denied}. Ask an admin to declare it, or put it into a Git registry"
            )
        }
        Manifest::Deployment(manifest) if manifest.spec.model.card.as_ref().is_some_and(|card| card.is_built_in()) => {
            format!(
                "{name} has an environment in its manifest (spec.model.environment): its packages and its artifact are code to run: \
                 {denied}. Ask an admin to declare it, or put the manifest into a folder or repository that the server follows"
            )
        }
        Manifest::Deployment(_) | Manifest::Alias(_) => format!(
            "{name} has a model card in its manifest (spec.model.card), which brings code to run: {denied}. Ask an admin to declare it, \
             or put the card into a Git registry"
        ),
    }
}

/// All results, or the first error with what became of each.
fn one_answer(
    applied: Vec<ApplyResult>,
    refused: &[(DeploymentName, Error)],
    mode: ApplyMode,
) -> Result<Vec<ApplyResult>, ApiError> {
    let Some((_, first)) = refused.first() else { return Ok(applied) };
    let error = ApiError::from(first.clone());
    if applied.is_empty() && refused.len() == 1 {
        return Err(error);
    }
    let refusals = refused.iter().map(|(name, error)| refusal(name, error));
    let stay = applied.iter().filter(|_| mode == ApplyMode::Commit).map(stays);
    Err(error.with(refusals.chain(stay).collect()))
}

/// Describes the part that was applied before an error.
fn stays(applied: &ApplyResult) -> ErrorDetail {
    ErrorDetail {
        path: applied.name.clone(),
        message: format!("was applied all the same, at resource version {}", applied.resource_version),
        remedy: "apply everything again: existing documents stay unchanged".to_owned(),
        ..ErrorDetail::default()
    }
}

fn refusal(name: &DeploymentName, error: &Error) -> ErrorDetail {
    let remedy = match error.class() {
        Class::Waiting { .. } => "try again",
        _ => "",
    };
    ErrorDetail {
        path: name.to_string(),
        message: error.to_string(),
        remedy: remedy.to_owned(),
        ..ErrorDetail::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_applied_before_an_error_is_listed_unless_it_was_a_rehearsal() {
        let name = |name| DeploymentName::new(name).expect("a name");
        for (mode, details) in [(ApplyMode::Commit, 2), (ApplyMode::DryRun, 1)] {
            let applied = vec![view::deleted(DEPLOYMENT, "wine", 1, "7".to_owned())];
            let refused = [(name("iris"), Error::Contended(name("iris")))];
            let error = one_answer(applied, &refused, mode).expect_err("one was refused");
            let text = format!("{error:?}");
            assert_eq!(text.matches("ErrorDetail {").count(), details, "{text}");
            assert_eq!(text.contains("was applied all the same"), mode == ApplyMode::Commit, "{text}");
        }
    }
}
