//! The gRPC face: `berth.control.v1.Control` and reflection. What is done is in `service`.

use std::{pin::Pin, sync::Arc};

use axum::Router;
use berth_spec::{Cordon, manifest::ParseContext};
use berth_wire::{
    DESCRIPTORS,
    api::{MAX_BODY, WatchEvent},
    control::{
        spec::manifest,
        v1::{self, control_server, watch_event::Type},
    },
};
use futures::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use super::{
    body::{context_of, permit},
    error::ApiError,
    selector::LabelSelector,
    service::{Declared, Delete, Expect, Page, Service, Write, name},
    watch::{Watch, version},
};
use crate::{
    events::EventFilter,
    handle::{ApplyMode, Ownership},
};

/// Events in one answer unless asked otherwise; the same as a page of deployments.
const EVENTS: u32 = 500;

/// The gRPC routes.
pub(super) fn router(service: Arc<Service>) -> Router {
    let control = control_server::ControlServer::new(Control(service)).max_decoding_message_size(MAX_BODY);
    let mut router = Router::new().route_service(&methods_of(control_server::SERVICE_NAME), control);
    let reflection = tonic_reflection::server::Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS);
    match reflection.build_v1() {
        Ok(reflection) => {
            router = router.route_service(&methods_of("grpc.reflection.v1.ServerReflection"), reflection);
        }
        Err(error) => {
            tracing::error!(event = "reflection_off", %error, "reflection is off: the built-in descriptors cannot be read")
        }
    }
    router
}

fn methods_of(service: &str) -> String {
    format!("/{service}/{{method}}")
}

/// The service as tonic calls it.
struct Control(Arc<Service>);

/// Documents of a request: as text, or typed.
async fn declared(
    manifests: String,
    deployments: &[v1::Deployment],
    context: ParseContext,
) -> Result<Declared, ApiError> {
    match (manifests.is_empty(), deployments) {
        (false, []) => Declared::parse(manifests, context).await,
        (true, deployments) => Declared::of(deployments.iter().map(manifest).collect(), context).await,
        (false, _) => {
            let message = "the request has both manifests and deployments";
            Err(ApiError::invalid("deployments", message, "send one of them"))
        }
    }
}

fn write(dry_run: bool, force: bool) -> Write {
    Write {
        mode: if dry_run { ApplyMode::DryRun } else { ApplyMode::Commit },
        ownership: if force { Ownership::TakeOver } else { Ownership::Respect },
    }
}

/// Protobuf's 0 for "not given".
fn given(limit: u32) -> Option<usize> {
    (limit > 0).then_some(limit as usize)
}

fn message(event: WatchEvent) -> Result<v1::WatchEvent, Status> {
    let of = |r#type: Type, deployment: Box<berth_wire::api::DeploymentView>| v1::WatchEvent {
        r#type: r#type.into(),
        resource_version: deployment.metadata.resource_version.clone(),
        deployment: Some((*deployment).into()),
    };
    match event {
        WatchEvent::Added(deployment) => Ok(of(Type::Added, deployment)),
        WatchEvent::Modified(deployment) => Ok(of(Type::Modified, deployment)),
        WatchEvent::Deleted(deployment) => Ok(of(Type::Deleted, deployment)),
        WatchEvent::Bookmark(bookmark) => Ok(v1::WatchEvent {
            r#type: Type::Bookmark.into(),
            deployment: None,
            resource_version: bookmark.resource_version,
        }),
        // A watch fails because it is too far behind or the controller stops: both mean to begin again.
        WatchEvent::Error(error) => Err(Status::aborted(error.message)),
    }
}

#[tonic::async_trait]
impl control_server::Control for Control {
    async fn apply(&self, request: Request<v1::ApplyRequest>) -> Result<Response<v1::ApplyResponse>, Status> {
        let _permit = permit(&self.0)?;
        let request = request.into_inner();
        let context = context_of("", &request.base_uri)?;
        let documents = declared(request.manifests, &request.deployments, context).await?;
        let applied = self.0.apply(documents, write(request.dry_run, request.force)).await?;
        Ok(Response::new(applied.into()))
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Result<Response<v1::Deployment>, Status> {
        let found = self.0.get(&name(&request.into_inner().name)?).await?;
        Ok(Response::new(found.into()))
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Result<Response<v1::ListResponse>, Status> {
        let request = request.into_inner();
        let page = Page::of(&request.label_selector, given(request.limit), &request.r#continue)?;
        Ok(Response::new(self.0.list(&page).await?.into()))
    }

    async fn delete(&self, request: Request<v1::DeleteRequest>) -> Result<Response<v1::ApplyResult>, Status> {
        let request = request.into_inner();
        let expect = match request.resource_version.as_str() {
            "" => Expect::Anything,
            text => Expect::Version(version("resource_version", text)?),
        };
        let delete = Delete { write: write(request.dry_run, request.force), expect };
        Ok(Response::new(self.0.delete(&name(&request.name)?, delete).await?.into()))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<v1::WatchEvent, Status>> + Send>>;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let request = request.into_inner();
        let watch = Watch::of(&request.label_selector, &request.resource_version)?;
        let events = self.0.watch(watch).await?;
        Ok(Response::new(Box::pin(events.map(message))))
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Result<Response<v1::Explanation>, Status> {
        let explanation = self.0.explain(&name(&request.into_inner().name)?).await?;
        Ok(Response::new(explanation.into()))
    }

    async fn plan(&self, request: Request<v1::PlanRequest>) -> Result<Response<v1::PlanResponse>, Status> {
        let _permit = permit(&self.0)?;
        let request = request.into_inner();
        let context = context_of("", &request.base_uri)?;
        let documents = declared(request.manifests, &request.deployments, context).await?;
        Ok(Response::new(self.0.plan(documents, Vec::new()).await?.into()))
    }

    async fn list_workers(
        &self,
        _: Request<v1::ListWorkersRequest>,
    ) -> Result<Response<v1::ListWorkersResponse>, Status> {
        Ok(Response::new(self.0.workers().await?.into()))
    }

    async fn list_nodes(
        &self,
        request: Request<v1::ListNodesRequest>,
    ) -> Result<Response<v1::ListNodesResponse>, Status> {
        let selector = request.into_inner().label_selector.parse::<LabelSelector>()?;
        Ok(Response::new(self.0.nodes(&selector).await?.into()))
    }

    async fn get_node(&self, request: Request<v1::GetNodeRequest>) -> Result<Response<v1::Node>, Status> {
        Ok(Response::new(self.0.node(&request.into_inner().name).await?.into()))
    }

    async fn set_cordon(&self, request: Request<v1::SetCordonRequest>) -> Result<Response<v1::Node>, Status> {
        let request = request.into_inner();
        let cordon = match request.cordon() {
            v1::set_cordon_request::Cordon::Open => Cordon::Open,
            v1::set_cordon_request::Cordon::Cordoned => Cordon::Cordoned,
            v1::set_cordon_request::Cordon::Draining => Cordon::Draining,
            v1::set_cordon_request::Cordon::Unspecified => {
                let message = "the request does not say which cordon";
                return Err(ApiError::invalid("cordon", message, "send open, cordoned or draining").into());
            }
        };
        Ok(Response::new(self.0.cordon_node(&request.name, cordon).await?.into()))
    }

    async fn list_events(
        &self,
        request: Request<v1::ListEventsRequest>,
    ) -> Result<Response<v1::ListEventsResponse>, Status> {
        let request = request.into_inner();
        let deployment = match request.deployment.as_str() {
            "" => None,
            of => Some(name(of)?),
        };
        let limit = if request.limit == 0 { EVENTS } else { request.limit };
        let filter = EventFilter { deployment, after: 0, limit: limit as usize };
        Ok(Response::new(self.0.events(filter).await?.into()))
    }
}
