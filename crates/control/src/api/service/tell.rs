//! Telling: deployments, the fleet, events, explanations, figures. All of it is asked of the controller, nothing is kept.

use std::{collections::BTreeMap, time::Duration};

use berth_spec::{Cordon, DeploymentName, Namespace, Time, WorkerId};
use berth_wire::api::{
    API_VERSION, AliasView, DeploymentView, EventView, ExplainView, List, ListMetadata, LogView, Memory, ModelTop,
    ReplicaView, RevisionView, RolloutHistory, Timestamp, TopView, WorkerView,
};

use super::{Service, operate::nobody};
use crate::{
    api::{
        error::ApiError,
        log::{self, Cursor, LogQuery},
        selector::LabelSelector,
        top::{by_use, together},
        view,
    },
    events::EventFilter,
    handle::{self, DeploymentPage, ListRequest},
};

/// Most items in one page. Bounds the time that a request occupies the driver.
pub(crate) const MAX_PAGE: usize = 500;

/// Recent activity of all gateways.
#[derive(Debug)]
pub(super) struct Activity {
    pub(super) at: Time,
    /// Period of the rates; zero for the first sample.
    pub(super) window: Duration,
    /// Number of gateways included.
    pub(super) gateways: u32,
    /// Nodes that did not answer in time.
    pub(super) missing: Vec<WorkerId>,
    /// By name, without phases.
    pub(super) models: BTreeMap<String, ModelTop>,
}

/// Page of a list.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListPage {
    pub(crate) namespace: Option<Namespace>,
    pub(crate) selector: LabelSelector,
    pub(crate) limit: Option<usize>,
    /// Continuation of the previous page.
    pub(crate) after: Option<DeploymentName>,
}

impl ListPage {
    /// As it stands in a request; empty texts mean: not given.
    pub(crate) fn of(selector: &str, limit: Option<usize>, after: &str) -> Result<Self, ApiError> {
        let after = match after {
            "" => None,
            after => Some(DeploymentName::new(after).map_err(|_| {
                let message = format!("{after:?} is not a place to continue from");
                ApiError::invalid("continue", message, "send metadata.continue of the page before")
            })?),
        };
        Ok(Self { namespace: None, selector: selector.parse()?, limit: limit.map(|limit| limit.min(MAX_PAGE)), after })
    }

    /// Requirements for lists whose items have no labels: the controller must be able to check them all.
    pub(crate) fn equalities_only(self) -> Result<Self, ApiError> {
        if self.selector.only_equalities() {
            return Ok(self);
        }
        let message = "this list is selected by key=value alone";
        Err(ApiError::invalid("labelSelector", message, "list deployments for !=, key and !key"))
    }

    fn request(&self) -> ListRequest {
        ListRequest {
            namespace: self.namespace.clone(),
            labels: self.selector.equalities(),
            after: self.after.clone(),
            limit: self.limit.unwrap_or(MAX_PAGE),
        }
    }
}

impl Service {
    pub(crate) async fn get(&self, name: &DeploymentName) -> Result<DeploymentView, ApiError> {
        match self.handle.get(name).await {
            Ok(found) => Ok(view::deployment(&found)),
            Err(error) => Err(self.explained(error).await),
        }
    }

    /// The generations of a deployment that were replaced.
    pub(crate) async fn history(&self, name: &DeploymentName) -> Result<RolloutHistory, ApiError> {
        match self.handle.history(name).await {
            Ok(past) => Ok(view::history(name, past)),
            Err(error) => Err(self.explained(error).await),
        }
    }

    /// The recent log of a model, over all nodes.
    pub(crate) async fn log(
        &self,
        deployment: &DeploymentName,
        after: &str,
        limit: usize,
    ) -> Result<LogView, ApiError> {
        if self.handle.known(deployment).await?.is_none() {
            return Err(self.explained(handle::Error::NotFound(deployment.clone())).await);
        }
        let cursor = Cursor::read(after);
        let query = LogQuery { deployment: deployment.clone(), after: 0, limit };
        let (mut logs, missing) = self.peer_queries.logs(&query, &cursor).await;
        if let Some(source) = &self.logs {
            let mut own = source(&query);
            let read = cursor.of(&own.node);
            own.lines.retain(|line| line.number > read);
            logs.push(own);
        }
        Ok(log::together(logs, cursor, missing, limit))
    }

    /// A page may hold fewer than asked for, where the selector says more than `key=value`.
    pub(crate) async fn list(&self, page: &ListPage) -> Result<List<DeploymentView>, ApiError> {
        let mut found = self.handle.list(page.request()).await?;
        found.items.retain(|item| page.selector.matches(&item.deployment.labels));
        Ok(list(&found, view::deployment))
    }

    pub(crate) async fn revisions(&self, page: &ListPage) -> Result<List<RevisionView>, ApiError> {
        Ok(list(&self.handle.revisions(page.request()).await?, view::revision))
    }

    pub(crate) async fn aliases(&self, page: &ListPage) -> Result<List<AliasView>, ApiError> {
        let mut found = self.handle.aliases(page.request()).await?;
        found.items.retain(|item| page.selector.matches(&item.alias.labels));
        Ok(list(&found, view::alias))
    }

    pub(crate) async fn alias(&self, name: &DeploymentName) -> Result<AliasView, ApiError> {
        match self.handle.alias(name).await {
            Ok(found) => Ok(view::alias(&found)),
            Err(error) => Err(self.explained(error).await),
        }
    }

    pub(crate) async fn workers(&self) -> Result<List<WorkerView>, ApiError> {
        let (workers, replicas) = (self.handle.workers().await?, self.handle.replicas().await?);
        let mut here: BTreeMap<&WorkerId, Vec<String>> = BTreeMap::new();
        for replica in &replicas {
            here.entry(&replica.worker).or_default().push(replica.revision.to_string());
        }
        let of = |worker: &handle::WorkerView| view::worker(worker, here.remove(&worker.info.id).unwrap_or_default());
        Ok(List::of(workers.iter().map(of).collect()))
    }

    pub(crate) async fn worker(&self, id: &str) -> Result<WorkerView, ApiError> {
        let workers = self.workers().await?;
        let (found, peer_queries): (Vec<WorkerView>, Vec<WorkerView>) =
            workers.items.into_iter().partition(|worker| worker.metadata.name == id);
        let known = peer_queries.iter().map(|worker| worker.metadata.name.as_str());
        found.into_iter().next().ok_or_else(|| nobody("worker", id, known))
    }

    /// Keeps new replicas off a worker, or lets them in again.
    pub(crate) async fn cordon(&self, id: &str, cordon: Cordon) -> Result<WorkerView, ApiError> {
        let worker = self.worker(id).await?;
        let Ok(id) = berth_spec::WorkerId::new(&worker.metadata.name) else { return Ok(worker) };
        self.handle.cordon(&id, cordon).await?;
        self.worker(id.as_str()).await
    }

    /// Every replica, or those of one namespace or deployment.
    pub(crate) async fn replicas(
        &self,
        namespace: Option<&Namespace>,
        of: Option<&DeploymentName>,
    ) -> Result<List<ReplicaView>, ApiError> {
        let mut replicas = self.handle.replicas().await?;
        replicas.retain(|replica| {
            let name = replica.revision.deployment();
            of.is_none_or(|of| name == of) && namespace.is_none_or(|of| name.namespace() == of.as_str())
        });
        Ok(List::of(replicas.iter().map(view::replica).collect()))
    }

    /// Recent events, oldest first; the version of the list is the number of the last event there is.
    pub(crate) async fn events(&self, filter: EventFilter) -> Result<List<EventView>, ApiError> {
        let page = self.handle.events(filter).await?;
        let events = page.events.iter().map(|(number, event)| view::event(*number, event)).collect();
        let metadata = ListMetadata { resource_version: page.last.to_string(), continue_: None };
        Ok(List::page(events, metadata))
    }

    pub(crate) async fn explain(&self, name: &DeploymentName) -> Result<ExplainView, ApiError> {
        let explanation = match self.handle.explain(name).await {
            Ok(explanation) => explanation,
            Err(error) => return Err(self.explained(error).await),
        };
        let status = self.handle.get(name).await.ok().and_then(|found| found.status);
        Ok(view::explanation(&explanation, status.as_ref()))
    }

    /// The `limit` busiest models of all gateways, and the memory of all workers.
    pub(crate) async fn top(&self, limit: usize) -> Result<TopView, ApiError> {
        let Activity { at, window, gateways, missing, models } = self.activity(limit).await?;
        let mut models: Vec<ModelTop> = models.into_values().collect();
        models.sort_by(by_use);
        models.truncate(limit);
        for model in &mut models {
            let Ok(name) = DeploymentName::new(&model.deployment) else { continue };
            let status = self.handle.get(&name).await.ok().and_then(|found| found.status);
            model.phase = view::phase(status.as_ref()).to_owned();
        }
        let workers = self.handle.workers().await?;
        // What one worker claims beyond its memory takes nothing from the others.
        let memory = workers.iter().fold(Memory::default(), |sum, worker| {
            let own = view::memory(worker.info.memory, worker.claimed, worker.overhead);
            Memory {
                total: sum.total + own.total,
                used: sum.used + own.used,
                overhead: sum.overhead + own.overhead,
                free: sum.free + own.free,
            }
        });
        Ok(TopView {
            api_version: API_VERSION.to_owned(),
            kind: "Top".to_owned(),
            at: Timestamp(at),
            window_ms: millis(window),
            gateways,
            missing: missing.iter().map(ToString::to_string).collect(),
            memory,
            models,
        })
    }

    /// Use of the `limit` busiest models over all gateways, and memory of all models that hold some.
    pub(super) async fn activity(&self, limit: usize) -> Result<Activity, ApiError> {
        let at = (self.handle.clock)();
        let (mut tops, missing) = self.peer_queries.tops(limit).await;
        if self.has_gateway() {
            tops.push(self.sampler.look(at, limit));
        }
        let gateways = u32::try_from(tops.len()).unwrap_or(u32::MAX);
        let (window, figures) = together(tops);
        let models = joined(figures, &self.handle.replicas().await?);
        Ok(Activity { at, window, gateways, missing, models })
    }

    /// True if this leader also serves clients, which a single node does.
    fn has_gateway(&self) -> bool {
        let leader = (self.leader)().map(|leader| leader.name);
        let me = (self.members)().into_iter().find(|(member, _)| leader.as_ref() == Some(&member.name));
        me.is_none_or(|(member, _)| member.roles.gateway)
    }
}

/// Use and memory together.
fn joined(mut models: BTreeMap<String, ModelTop>, replicas: &[handle::ReplicaView]) -> BTreeMap<String, ModelTop> {
    for replica in replicas {
        let deployment = replica.revision.deployment().to_string();
        let model = models.entry(deployment.clone()).or_insert_with(|| ModelTop { deployment, ..ModelTop::default() });
        if replica.lost {
            continue;
        }
        model.memory += view::held_memory(replica);
        model.ready += u32::from(replica.residency.as_ref().is_some_and(berth_spec::Residency::is_ready));
    }
    models
}

fn list<Item, Shown: berth_wire::api::Kind>(page: &DeploymentPage<Item>, show: fn(&Item) -> Shown) -> List<Shown> {
    let metadata =
        ListMetadata { resource_version: page.rev.to_string(), continue_: page.next.as_ref().map(ToString::to_string) };
    List::page(page.items.iter().map(show).collect(), metadata)
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
