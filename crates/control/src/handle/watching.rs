//! Watching deployments: what is there, then what changes, in status or spec.
//!
//! The driver announces which deployments have changed; the watch asks for their state when it gets to them, so a slow
//! watch sees the latest and skips what lies between. A watch from a resource version first replays the changes of
//! specs since then out of the store's history.

use std::{collections::BTreeMap, pin::Pin};

use berth_spec::{DeploymentName, Namespace};
use futures::{Stream, StreamExt, stream};
use tokio::sync::broadcast;

use super::{DeploymentView, Error, Handle, ListRequest};
use crate::{
    driver::{ChangeKind, DeploymentChanges},
    store::{Change, Rev, layout},
};

/// Start and filter of a watch of deployments. By default all of them, beginning with what there is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WatchRequest {
    /// Changes after this resource version; `None`: everything there is first, as added.
    pub from: Option<Rev>,
    /// Limits the watch to this namespace.
    pub namespace: Option<Namespace>,
    /// Limits the watch to this deployment.
    pub name: Option<DeploymentName>,
    /// Only deployments with these labels.
    pub labels: BTreeMap<String, String>,
}

/// Event of a watch.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchEvent {
    /// Created, or present when the watch began.
    Added(DeploymentView),
    /// Its spec, labels or status changed.
    Modified(DeploymentView),
    /// Removed from the store: its replicas are gone.
    Deleted {
        /// Name that it had, with its namespace.
        name: DeploymentName,
        /// The resource version at which the controller knew.
        rev: Rev,
    },
    /// All that was there has been told; from here on come changes.
    Bookmark(Rev),
}

/// Changes as they come. It ends after an error; [`Error::Lagged`] and `Compacted` mean: list again.
pub type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchEvent, Error>> + Send>>;

impl Handle {
    /// Watches deployments.
    ///
    /// # Errors
    /// [`Error::Store`] with `Compacted` when `from` is too long ago; [`Error::Stopped`].
    pub async fn watch(&self, request: WatchRequest) -> Result<WatchStream, Error> {
        // Subscribed first: what happens while the present is read comes afterwards, perhaps twice, never not at all.
        let live = self.deployment_changes.upgrade().ok_or(Error::Stopped)?.subscribe();
        let (first, more) = match request.from {
            Some(from) => {
                let (latest, rev) = self.since(from).await?;
                let mut events = self.views(&request, latest).await?;
                events.push(WatchEvent::Bookmark(rev));
                (events, None)
            }
            // The first page at once, so that a control plane that does not answer is told before the stream begins.
            None => self.present(&request, Present::default()).await?,
        };
        let present = stream::unfold((self.clone(), request.clone(), more), |(handle, request, more)| async move {
            let page = handle.present(&request, more?).await;
            let (events, more) = match page {
                Ok((events, more)) => (events.into_iter().map(Ok).collect(), more),
                Err(error) => (vec![Err(error)], None),
            };
            Some((stream::iter(events), (handle, request, more)))
        });
        let watching = Watching { handle: self.clone(), request, live, ended: false };
        let changes = stream::unfold(watching, |mut watching| async move {
            let events = watching.next().await?;
            Some((stream::iter(events), watching))
        });
        let all = stream::iter(first.into_iter().map(Ok)).chain(present.flatten()).chain(changes.flatten());
        Ok(Box::pin(all.scan(false, |failed, event| {
            let told = (!*failed).then_some(event);
            *failed |= matches!(told, Some(Err(_)));
            std::future::ready(told)
        })))
    }

    /// A page of what there is, and from where to go on; after the last one comes the bookmark. Read as it is taken: all
    /// of a large fleet at once would be gigabytes.
    async fn present(
        &self,
        request: &WatchRequest,
        from: Present,
    ) -> Result<(Vec<WatchEvent>, Option<Present>), Error> {
        let mut latest = LatestChanges::new();
        let (next, rev) = if let Some(name) = &request.name {
            let rev = *self.seen.borrow();
            latest.extend(self.known(name).await?.is_some().then(|| (name.clone(), ChangeKind::Added)));
            (None, rev)
        } else {
            let list = ListRequest {
                namespace: request.namespace.clone(),
                labels: request.labels.clone(),
                after: from.after,
                ..ListRequest::default()
            };
            let page = self.names(list).await?;
            latest.extend(page.items.into_iter().map(|name| (name, ChangeKind::Added)));
            (page.next, from.rev.unwrap_or(page.rev))
        };
        let mut events = self.views(request, latest).await?;
        if next.is_none() {
            events.push(WatchEvent::Bookmark(rev));
        }
        Ok((events, next.map(|after| Present { after: Some(after), rev: Some(rev) })))
    }

    /// Changes in the store after `from`.
    async fn since(&self, from: Rev) -> Result<(LatestChanges, Rev), Error> {
        let until = *self.seen.borrow();
        let mut latest = LatestChanges::new();
        if from >= until {
            return Ok((latest, until));
        }
        // Of all keys: so that the last rev is met even if it is about something else.
        let mut commits = self.store.watch("/", from.next()).await?;
        while let Some(commit) = commits.next().await {
            let commit = commit?;
            for change in &commit.changes {
                let Some(name) = layout::name_in(change.key(), layout::DEPLOYMENTS) else { continue };
                let kind = match change {
                    Change::Deleted { .. } => ChangeKind::Deleted,
                    Change::Put(entry) if entry.created > from => ChangeKind::Added,
                    Change::Put(_) => ChangeKind::Modified,
                };
                latest.insert(name, kind);
            }
            if commit.rev >= until {
                break;
            }
        }
        Ok((latest, until))
    }

    async fn views(&self, request: &WatchRequest, latest: LatestChanges) -> Result<Vec<WatchEvent>, Error> {
        let mut events = Vec::with_capacity(latest.len());
        for (name, kind) in latest {
            let other = request.namespace.as_ref().is_some_and(|wanted| wanted.as_str() != name.namespace());
            if other || request.name.as_ref().is_some_and(|wanted| *wanted != name) {
                continue;
            }
            let view = match self.known(&name).await? {
                Some(known) if kind != ChangeKind::Deleted => self.with_manifest(known).await?,
                _ => None,
            };
            let wanted = |view: &DeploymentView| {
                request.labels.iter().all(|(key, value)| view.deployment.labels.get(key) == Some(value))
            };
            match view {
                None => events.push(WatchEvent::Deleted { name, rev: *self.seen.borrow() }),
                Some(view) if !wanted(&view) => {}
                Some(view) if kind == ChangeKind::Added => events.push(WatchEvent::Added(view)),
                Some(view) => events.push(WatchEvent::Modified(view)),
            }
        }
        Ok(events)
    }
}

/// Changed deployments, each with its last change.
type LatestChanges = BTreeMap<DeploymentName, ChangeKind>;

/// Progress of listing the present deployments.
#[derive(Debug, Default)]
struct Present {
    after: Option<DeploymentName>,
    /// Revision of the first page: later changes are sent again.
    rev: Option<Rev>,
}

struct Watching {
    handle: Handle,
    request: WatchRequest,
    live: broadcast::Receiver<DeploymentChanges>,
    ended: bool,
}

impl Watching {
    /// The next events, all that wait at once; `None`: the control plane has stopped or an error was told.
    async fn next(&mut self) -> Option<Vec<Result<WatchEvent, Error>>> {
        if self.ended {
            return None;
        }
        let mut latest = LatestChanges::new();
        let mut next = self.live.recv().await.map_err(|error| match error {
            broadcast::error::RecvError::Lagged(_) => Some(Error::Lagged),
            broadcast::error::RecvError::Closed => None,
        });
        loop {
            match next {
                Ok(changes) => {
                    for (name, kind) in changes.iter() {
                        // New, then changed before anybody looked: new.
                        let kept = latest.entry(name.clone()).or_insert(*kind);
                        if !(*kept == ChangeKind::Added && *kind == ChangeKind::Modified) {
                            *kept = *kind;
                        }
                    }
                }
                Err(error) => {
                    self.ended = true;
                    return error.map(|error| vec![Err(error)]);
                }
            }
            next = match self.live.try_recv() {
                Ok(changes) => Ok(changes),
                Err(broadcast::error::TryRecvError::Lagged(_)) => Err(Some(Error::Lagged)),
                // What was taken so far is told; a closed channel is met again by the next call.
                Err(_) => break,
            };
        }
        match self.handle.views(&self.request, latest).await {
            Ok(events) => Some(events.into_iter().map(Ok).collect()),
            Err(error) => {
                self.ended = true;
                Some(vec![Err(error)])
            }
        }
    }
}
