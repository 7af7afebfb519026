//! The dashboard's questions: lists that are searched and sorted here, and the memory of every worker by model.
//!
//! ```text
//! every deployment ──walk, a page at a time──▶ Table ──select──▶ numbers of the rows ──▶ those rows as they are now
//! every gateway ─────activity────────────────────┘
//! ```
//! However many people look, the walk is made once per [`cache::Cached::get`], and less often the longer it takes. A page costs one
//! pass over the rows of the table ([`firsts`]): no sort of all, no copy of all, and texts for the rows of the page alone.

mod cache;
mod firsts;
mod history;
mod memory;
mod news;
mod table;
mod trial;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use berth_spec::{DeploymentName, Origin, Time, WorkerId};
use berth_wire::api::{
    API_VERSION, Kind, List, ModelPage, ModelRow, ModelTop, Pulse, StuckDeployments, Timestamp, WorkerMemory,
};
use tokio::sync::Semaphore;

pub(crate) use memory::MOST_PARTS;
pub(crate) use table::{Selection, Sort};

use super::{Service, tell::Activity};
use crate::{
    api::{error::ApiError, peer_queries::MOST_MODELS, view},
    handle::{KnownDeployment, ListRequest, WorkerView},
};
use cache::Cached;
use table::{Row, Table, select};

/// Age up to which figures of gateways are shown again. Pages refresh every two seconds.
const ACTIVITY_FOR: Duration = Duration::from_secs(1);

/// Age up to which the table is used again. A new model is listed after this at the latest.
const TABLE_FOR: Duration = Duration::from_secs(2);

/// Age up to which workers and their memory are shown again, also where the controller answers at once. Each chart of a page is a
/// question of its own.
const WORKERS_FOR: Duration = Duration::from_secs(1);

/// Answers that are kept between questions.
pub(super) struct CachedAnswers {
    workers: Cached<Vec<WorkerView>>,
    memory: Cached<Vec<WorkerMemory>>,
    table: Cached<Table>,
    activity: Cached<Activity>,
    pulse: Cached<Pulse>,
    /// Places of those who watch.
    readers: Arc<Semaphore>,
    /// Places of models that are being tried.
    trials: Arc<Semaphore>,
}

impl Default for CachedAnswers {
    fn default() -> Self {
        let readers = Arc::new(Semaphore::new(news::READERS));
        let trials = Arc::new(Semaphore::new(trial::TRIALS));
        Self {
            workers: Cached::default(),
            memory: Cached::default(),
            table: Cached::default(),
            activity: Cached::default(),
            pulse: Cached::default(),
            readers,
            trials,
        }
    }
}

impl Service {
    /// One page of the models that match.
    pub(crate) async fn model_page(&self, selection: Selection) -> Result<ModelPage, ApiError> {
        let activity = self.recent_activity().await?;
        let table = self.kept.table.get(TABLE_FOR, || self.walk()).await?;
        let (rows, figures, offset) = (Arc::clone(&table), Arc::clone(&activity), selection.offset);
        // A hundred thousand names take milliseconds, which other requests should not wait for.
        let selected = tokio::task::spawn_blocking(move || select(&rows.rows, &figures.models, &selection)).await;
        let selected = selected.map_err(|error| {
            tracing::error!(event = "selection_failed", %error, "selecting models for the dashboard failed");
            ApiError::new(berth_spec::Class::Internal, "selecting models failed: the log says why")
        })?;
        let mut items = Vec::with_capacity(selected.page.len());
        for number in selected.page {
            let Some(row) = table.rows.get(number) else { continue };
            // Deleted meanwhile: the next table leaves it out.
            let Some(known) = self.handle.known(&row.deployment.name).await? else { continue };
            items.push(shown(&known, &activity.models));
        }
        let counts = Counts {
            total: table.rows.len(),
            matching: selected.matching,
            offset,
            phases: selected.phases.into_iter().map(|(phase, count)| (phase.as_str().to_owned(), count)).collect(),
        };
        Ok(page(&activity, table.at, counts, items))
    }

    /// Deployments of an owner that do not get on, by the table: however many ask, a question costs one pass.
    pub(super) async fn stuck_of(&self, owner: &Origin) -> Result<StuckDeployments, ApiError> {
        let table = self.kept.table.get(TABLE_FOR, || self.walk()).await?;
        Ok(table.stuck_of(owner))
    }

    /// A page with one model, as it is now. The table is not needed.
    pub(crate) async fn model_alone(&self, name: &DeploymentName) -> Result<ModelPage, ApiError> {
        let activity = self.recent_activity().await?;
        let Some(known) = self.handle.known(name).await? else {
            return Err(self.explained(crate::handle::Error::NotFound(name.clone())).await);
        };
        let row = shown(&known, &activity.models);
        let counts =
            Counts { total: 1, matching: 1, offset: 0, phases: BTreeMap::from([(row.figures.phase.clone(), 1)]) };
        Ok(page(&activity, activity.at, counts, vec![row]))
    }

    /// Memory of every worker, with its `largest` replicas one by one.
    pub(crate) async fn worker_memory(&self, largest: usize) -> Result<List<WorkerMemory>, ApiError> {
        let workers = self.kept.memory.get(WORKERS_FOR, || self.memory_of_all()).await?;
        Ok(List::of(workers.iter().map(|worker| memory::shortened(worker, largest)).collect()))
    }

    async fn memory_of_all(&self) -> Result<Vec<WorkerMemory>, ApiError> {
        let (workers, replicas) = (self.recent_workers().await?, self.handle.replicas().await?);
        Ok(memory::of_all(&workers, &replicas))
    }

    /// Every worker, as it was a second ago at most, or [`Cached`]'s multiple of the time that the controller took to answer.
    async fn recent_workers(&self) -> Result<Arc<Vec<WorkerView>>, ApiError> {
        let ask = || async { self.handle.workers().await.map_err(ApiError::from) };
        self.kept.workers.get(WORKERS_FOR, ask).await
    }

    /// Activity of all models, as old as the workers may be.
    async fn recent_activity(&self) -> Result<Arc<Activity>, ApiError> {
        self.kept.activity.get(ACTIVITY_FOR, || self.activity(MOST_MODELS)).await
    }

    /// Every deployment, walked a page at a time so that the controller is never busy with it for long.
    async fn walk(&self) -> Result<Table, ApiError> {
        let (mut rows, mut after) = (Vec::new(), None);
        loop {
            let page = self.handle.page(ListRequest { after, ..ListRequest::default() }).await?;
            rows.extend(page.items.iter().map(Row::of));
            after = page.next;
            if after.is_none() {
                return Ok(Table { at: self.handle.now(), rows });
            }
        }
    }
}

/// Numbers of rows.
struct Counts {
    total: usize,
    matching: usize,
    offset: usize,
    phases: BTreeMap<String, u64>,
}

fn page(activity: &Activity, table_at: Time, counts: Counts, items: Vec<ModelRow>) -> ModelPage {
    ModelPage {
        api_version: API_VERSION.to_owned(),
        kind: ModelPage::KIND.to_owned(),
        at: Timestamp(activity.at),
        table_at: Timestamp(table_at),
        window_ms: super::tell::millis(activity.window),
        missing: activity.missing.iter().map(WorkerId::to_string).collect(),
        total: counts.total as u64,
        matching: counts.matching as u64,
        offset: counts.offset as u64,
        phases: counts.phases,
        items,
    }
}

/// A model as it is now, with what it did.
fn shown(known: &KnownDeployment, activity: &BTreeMap<String, ModelTop>) -> ModelRow {
    let name = known.deployment.name.to_string();
    let row = Row::of(known);
    let status = known.status.as_ref();
    let figures = activity.get(&name).cloned().unwrap_or_default();
    let message = match status {
        Some(status) if row.wants_a_reason() => {
            let not = status.conditions.iter().find(|it| it.status != berth_spec::status::Truth::True);
            not.map(|condition| condition.message.clone()).unwrap_or_default()
        }
        _ => String::new(),
    };
    ModelRow {
        figures: ModelTop {
            deployment: name,
            phase: view::phase(status).to_owned(),
            ready: row.ready,
            memory: row.memory,
            ..figures
        },
        desired: status.map_or(known.deployment.spec.replicas.min, |status| status.desired),
        format: known.deployment.spec.model.format.to_string(),
        last_used: row.last_used.map(Timestamp),
        message,
    }
}
