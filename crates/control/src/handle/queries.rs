//! Reading deployments: the driver says what it knows, the store adds the manifest as the user wrote it.

use std::{collections::BTreeMap, sync::Arc};

use berth_plan::preview::{Change, Preview};
use berth_spec::{Deployment, DeploymentName, Origin, RevisionId, Time, WorkerId};
use futures::{StreamExt, TryStreamExt, stream};

use super::{
    Cordon, DriverRequest, Error, Handle,
    view::{DeploymentPage, DeploymentView, KnownDeployment, ListRequest, RevisionView, Scan},
};
use crate::{
    source::WorkerSettings,
    store::{
        Op, Rev, Txn,
        layout::{self, StoredDeployment},
    },
};

/// The most deployments in one page: that of Kubernetes' clients, which ask for 500 at a time.
pub(super) const MAX_PAGE: usize = 500;

/// Manifests that are read from the store at once. More does not help: they are reads of one file.
pub(super) const READS: usize = 16;

/// Something that might be changed: what would follow from it?
#[derive(Debug, Clone)]
pub enum PreviewRequest {
    /// Declaring or changing a deployment.
    Apply(Box<super::ApplyRequest>),
    /// Deleting this deployment.
    Delete(DeploymentName),
    /// Settings of workers in place of those in force.
    Workers(WorkerSettings),
}

impl Handle {
    /// One deployment.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Store`].
    pub async fn get(&self, name: &DeploymentName) -> Result<DeploymentView, Error> {
        let entry = self.store.get(&layout::deployment_key(name)).await?;
        let entry = entry.ok_or_else(|| Error::NotFound(name.clone()))?;
        let known = self.ask(|reply| DriverRequest::Status { name: name.clone(), reply }).await?;
        let stored = StoredDeployment::read(&entry)?;
        let status = known.as_ref().and_then(|known| known.status.clone());
        let deployment = match known.filter(|known| known.rev == entry.modified) {
            Some(known) => known.deployment,
            None => StoredDeployment::read_deployment(&entry)?,
        };
        Ok(DeploymentView { deployment, manifest: stored.manifest, base: stored.base, rev: entry.modified, status })
    }

    /// Deployments by name, a page at a time.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Stopped`], [`Error::Busy`].
    pub async fn list(&self, request: ListRequest) -> Result<DeploymentPage, Error> {
        let page = self.page(request).await?;
        let items: Vec<Option<DeploymentView>> =
            stream::iter(page.items).map(|known| self.with_manifest(known)).buffered(READS).try_collect().await?;
        Ok(DeploymentPage { items: items.into_iter().flatten().collect(), next: page.next, rev: page.rev })
    }

    /// The revisions of deployments: those wanted, and those with replicas.
    ///
    /// # Errors
    /// [`Error::Stopped`], [`Error::Busy`].
    pub async fn revisions(&self, request: ListRequest) -> Result<DeploymentPage<RevisionView>, Error> {
        let page = self.page(request).await?;
        let items = page.items.iter().flat_map(revisions_of).collect();
        Ok(DeploymentPage { items, next: page.next, rev: page.rev })
    }

    /// Previews the changes: loads, evictions, memory before and after. Changes nothing.
    ///
    /// # Errors
    /// What applying would say; [`Error::Stopped`], [`Error::Busy`].
    pub async fn preview(&self, requests: Vec<PreviewRequest>) -> Result<Preview, Error> {
        let mut changes = Vec::with_capacity(requests.len());
        for request in requests {
            changes.push(match request {
                PreviewRequest::Apply(request) => Change::Apply(self.would_be(*request).await?),
                PreviewRequest::Delete(name) => Change::Delete(name),
                PreviewRequest::Workers(WorkerSettings { terms, unknown }) => {
                    let terms = terms.into_iter().map(|(worker, terms)| (worker, Arc::new(terms))).collect();
                    Change::Workers { terms, unknown }
                }
            });
        }
        self.ask(|reply| DriverRequest::Preview { changes, reply }).await
    }

    /// A page of what the driver knows; labels are matched a bounded number of deployments at a time.
    ///
    /// # Errors
    /// [`Error::Stopped`], [`Error::Busy`].
    pub async fn page(&self, request: ListRequest) -> Result<DeploymentPage<KnownDeployment>, Error> {
        let limit = if request.limit == 0 { MAX_PAGE } else { request.limit.min(MAX_PAGE) };
        let mut page = DeploymentPage { items: Vec::new(), next: request.after, rev: Rev::NONE };
        loop {
            let scan = Scan {
                namespace: request.namespace.clone(),
                labels: request.labels.clone(),
                after: page.next.take(),
                limit: limit - page.items.len(),
            };
            let scanned = self.ask(|reply| DriverRequest::Scan { scan, reply }).await?;
            if page.rev == Rev::NONE {
                page.rev = scanned.rev;
            }
            page.items.extend(scanned.found);
            page.next = scanned.next;
            if page.next.is_none() || page.items.len() >= limit {
                return Ok(page);
            }
        }
    }

    /// Names alone, a page at a time.
    pub(crate) async fn names(&self, request: ListRequest) -> Result<DeploymentPage<DeploymentName>, Error> {
        let page = self.page(request).await?;
        let items = page.items.into_iter().map(|known| known.deployment.name.clone()).collect();
        Ok(DeploymentPage { items, next: page.next, rev: page.rev })
    }

    /// The names and owners of what these origins declared, a page at a time; what is being deleted is left out.
    ///
    /// # Errors
    /// [`Error::Stopped`], [`Error::Busy`].
    pub(crate) async fn owned_by(
        &self,
        origins: &[&Origin],
        after: Option<DeploymentName>,
    ) -> Result<DeploymentPage<(DeploymentName, Origin)>, Error> {
        let page = self.page(ListRequest { after, ..ListRequest::default() }).await?;
        let is_theirs =
            |known: &KnownDeployment| !known.deployment.deleting && origins.contains(&&known.deployment.origin);
        let owned = page.items.iter().filter(|known| is_theirs(known));
        let items = owned.map(|known| (known.deployment.name.clone(), known.deployment.origin.clone())).collect();
        Ok(DeploymentPage { items, next: page.next, rev: page.rev })
    }

    /// The time by the controller's clock, which tests may set.
    #[must_use]
    pub fn now(&self) -> Time {
        (self.clock)()
    }

    /// One deployment without its manifest: a question to the driver alone, not to the store. `None`: it knows of none.
    ///
    /// # Errors
    /// [`Error::Stopped`], [`Error::Busy`].
    pub async fn known(&self, name: &DeploymentName) -> Result<Option<KnownDeployment>, Error> {
        self.ask(|reply| DriverRequest::Status { name: name.clone(), reply }).await
    }

    /// Adds the manifest; `None` if the deployment has gone meanwhile.
    pub(super) async fn with_manifest(&self, known: KnownDeployment) -> Result<Option<DeploymentView>, Error> {
        let Some(entry) = self.store.get(&layout::deployment_key(&known.deployment.name)).await? else {
            return Ok(None);
        };
        let StoredDeployment { manifest, base, .. } = StoredDeployment::read(&entry)?;
        Ok(Some(DeploymentView { deployment: known.deployment, manifest, base, rev: known.rev, status: known.status }))
    }

    pub(super) async fn write_cordon(&self, worker: &WorkerId, cordon: Cordon) -> Result<(), Error> {
        let key = layout::worker_key(worker);
        let op = match cordon {
            Cordon::Open => Op::Delete { key },
            Cordon::Cordoned | Cordon::Draining => Op::Put { key, value: layout::cordon_bytes(cordon) },
        };
        if let crate::store::Outcome::Committed(rev) =
            self.store.commit(Txn { compare: Vec::new(), ops: vec![op] }).await?
        {
            self.until_seen(rev).await;
        }
        Ok(())
    }
}

fn revisions_of(known: &KnownDeployment) -> Vec<RevisionView> {
    let wanted = wanted_revision(&known.deployment);
    let mut rows: BTreeMap<RevisionId, RevisionView> = BTreeMap::new();
    let blank = |id: &RevisionId| RevisionView {
        id: id.clone(),
        version: None,
        uri: None,
        digest: None,
        wanted: false,
        serving: false,
        replicas: 0,
        ready: 0,
    };
    if let Some(status) = &known.status {
        for id in status.serving.iter() {
            rows.entry(id.clone()).or_insert_with(|| blank(id)).serving = true;
        }
        for replica in &status.replicas {
            let row = rows.entry(replica.revision.clone()).or_insert_with(|| blank(&replica.revision));
            row.replicas += 1;
            let ready = replica.residency.as_ref().is_some_and(berth_spec::Residency::is_ready);
            row.ready += u32::from(ready && !replica.lost);
        }
    }
    let row = rows.entry(wanted.id.clone()).or_insert_with(|| blank(&wanted.id));
    *row = RevisionView { serving: row.serving, replicas: row.replicas, ready: row.ready, ..wanted };
    rows.into_values().collect()
}

fn wanted_revision(deployment: &Deployment) -> RevisionView {
    let revision = deployment.revision();
    RevisionView {
        id: revision.id,
        version: Some(revision.version),
        uri: Some(revision.uri),
        digest: revision.digest,
        wanted: true,
        serving: false,
        replicas: 0,
        ready: 0,
    }
}
