//! The replicas that this process holds: the seam between the gateway, which calls them, and the worker, which puts
//! them here when they are ready and drains them before it unloads.
//!
//! ```text
//! worker: insert ──→ Serving ──drain()──→ Draining ──last lease dropped──→ drained (worker unloads)
//! gateway:            acquire() → Lease        acquire() → None
//! ```

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use berth_spec::{DeploymentName, InferError, InferRequest, RevisionId, Signature};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Response, request::Parts};
use papaya::HashMap;
use tokio::sync::Notify;

use crate::exchange;

/// A loaded model that answers requests. One implementation per runtime.
pub trait Model: Send + Sync + 'static {
    /// The inputs and outputs, for metadata and checks; empty where the model does not tell.
    fn signature(&self) -> &Arc<Signature>;

    /// The platform string of the Open Inference Protocol, e.g. `onnx_onnxv1`.
    fn platform(&self) -> &'static str;

    /// Runs one request. `deadline` is the caller's; a request that cannot be started before it fails with
    /// [`InferError::TimedOut`]. Dropping the future cancels the request if it has not been started.
    /// `model_name` and `model_version` of the answer are the gateway's to fill.
    fn infer(
        &self,
        request: InferRequest,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<Vec<berth_spec::Tensor>, InferError>>;

    /// The most requests at once, where the model does not bound them itself: further ones are not given to it.
    fn bound(&self) -> Option<u32> {
        None
    }

    /// True if the model answers JSON documents of its own kind, by [`call`](Self::call).
    fn has_json(&self) -> bool {
        false
    }

    /// Answers one JSON document with another: the model's own interface, as its input and output schema say. A
    /// document that its schema does not take fails with [`InferError::Unprocessable`] before anything is run. As in
    /// [`infer`](Self::infer), `deadline` is the caller's, and dropping the future cancels what was not started.
    fn call(&self, body: Bytes, deadline: Instant) -> BoxFuture<'_, Result<Bytes, InferError>> {
        let _ = (body, deadline);
        let message = "this model takes tensors only: use the Open Inference Protocol (/v2/models/NAME/infer)";
        Box::pin(std::future::ready(Err(InferError::Unsupported(message.to_owned()))))
    }

    /// Answers any request of its own kind: any gRPC method, streams of all four kinds. The [`exchange`](crate::exchange)
    /// module says what may be relied on. A model without one answers UNIMPLEMENTED. Errors are for requests that were not
    /// answered at all; a method's own error is a status in the answer.
    fn exchange(
        &self,
        parts: Parts,
        body: exchange::Body,
    ) -> BoxFuture<'_, Result<Response<exchange::Body>, InferError>> {
        let _ = (parts, body);
        Box::pin(std::future::ready(Ok(exchange::unimplemented())))
    }

    /// True if the model answers the requests of `ModelStreamInfer` by [`exchange`](Self::exchange): each with any
    /// number of `ModelStreamInferResponse`.
    fn streams(&self) -> bool {
        false
    }

    /// True if the model answers a `ModelInfer` as it comes, by [`exchange`](Self::exchange): its request is not read here.
    fn infers_undecoded(&self) -> bool {
        false
    }

    /// The JSON schemas of what [`call`](Self::call) takes and gives, if it has them.
    fn schemas(&self) -> Option<DocumentSchemas<'_>> {
        None
    }

    /// Counts and times since it was loaded, for the statistics extension.
    fn statistics(&self) -> Statistics;

    /// The batching that is in force, for metadata and statistics.
    fn batching(&self) -> Batching;
}

/// JSON schemas of the documents of a model.
#[derive(Debug, Clone, Copy)]
pub struct DocumentSchemas<'a> {
    /// The schema of what [`Model::call`] takes.
    pub input: &'a serde_json::Value,
    /// The schema of what it gives.
    pub output: &'a serde_json::Value,
}

/// The way requests for a model are run together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batching {
    /// The most rows in one run; 1: it is off.
    pub max_rows: u32,
    /// The longest that the first request waits for others.
    pub max_delay: Duration,
}

impl Batching {
    /// Every request is run by itself.
    pub const OFF: Self = Self { max_rows: 1, max_delay: Duration::ZERO };
}

/// A count of things and the time they took together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    /// The number of requests or runs.
    pub count: u64,
    /// Their time together, in nanoseconds.
    pub ns: u64,
}

/// Counts and times of one replica, as the statistics extension of the protocol defines them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Statistics {
    /// When the last request came, milliseconds since the Unix epoch.
    pub last_inference_ms: u64,
    /// Rows that were inferred: a request with a batch of n counts n.
    pub inference_count: u64,
    /// Runs of the engine: with batching, fewer than requests.
    pub execution_count: u64,
    /// Requests that succeeded, and their time from queue to answer.
    pub success: Sum,
    /// Requests that failed, and their time.
    pub fail: Sum,
    /// Requests, and their waiting time in the queue.
    pub queue: Sum,
    /// Requests, and the time of putting their inputs together.
    pub compute_input: Sum,
    /// Requests, and the time of the engine's runs that they were in.
    pub compute_infer: Sum,
    /// Requests, and the time of cutting their outputs out of the batch.
    pub compute_output: Sum,
    /// Per batch size: (rows, input, infer, output).
    pub batches: Vec<(u64, Sum, Sum, Sum)>,
    /// Bytes of memory that the model takes.
    pub memory: u64,
}

/// Hears of every replica that becomes callable here or stops to be. Must not block.
pub type ReplicaListener = Arc<dyn Fn(&RevisionId, ReplicaChange) + Send + Sync>;

/// The change that a [`ReplicaListener`] hears of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaChange {
    /// The replica can be called from now on.
    Ready,
    /// The replica takes no more requests: it has begun to drain.
    Gone,
}

/// Every replica that this process can call now.
#[derive(Default)]
pub struct LocalReplicas {
    /// Read by every request, without a lock. Weak: a concurrent map frees what was removed from it some time later,
    /// which would keep models in memory long after they were unloaded.
    by_revision: HashMap<RevisionId, Weak<Replica>>,
    /// Keeps them alive. Touched by loads and unloads only.
    owned: Mutex<BTreeMap<RevisionId, Arc<Replica>>>,
    inserted: Notify,
    emptied: Notify,
    /// Told when routes were changed, which hold replicas as well.
    routes_changed: Notify,
    listener: OnceLock<ReplicaListener>,
}

impl LocalReplicas {
    /// Tells `listener` of every change from now on. The first one stays; one gateway listens.
    pub fn listen(&self, listener: ReplicaListener) {
        // A second one would be a second gateway over the same replicas, which there is not.
        let _ = self.listener.set(listener);
    }

    /// Makes a replica callable; one of the same revision that was there is replaced (and must have been drained).
    pub fn insert(&self, revision: RevisionId, model: Arc<dyn Model>) -> Arc<Replica> {
        let listener = self.listener.get().cloned();
        let replica = Arc::new(Replica {
            revision: revision.clone(),
            model,
            state: AtomicU32::new(0),
            routed: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            idle: Notify::new(),
            listener: listener.clone(),
        });
        let mut owned = self.owned.lock().unwrap_or_else(PoisonError::into_inner);
        let replaced = owned.insert(revision.clone(), Arc::clone(&replica));
        self.by_revision.pin().insert(revision, Arc::downgrade(&replica));
        // Freeing a model takes a while: not under the lock.
        drop(owned);
        drop(replaced);
        self.inserted.notify_one();
        if let Some(listener) = listener {
            listener(replica.revision(), ReplicaChange::Ready);
        }
        replica
    }

    /// The replica of a revision, if it can be called here. Takes no lock.
    #[must_use]
    pub fn get(&self, revision: &RevisionId) -> Option<Arc<Replica>> {
        self.by_revision.pin().get(revision)?.upgrade()
    }

    /// Waits for the next [`insert`](Self::insert); one that came since the last wait counts. For one waiter, the
    /// gateway: a replica that comes back under a route that never changed must wake who is parked for it.
    pub async fn inserted(&self) {
        self.inserted.notified().await;
    }

    /// Forgets a replica; leases that are out stay good. The model is freed with the last `Arc` of the replica.
    pub fn remove(&self, revision: &RevisionId) {
        let mut owned = self.owned.lock().unwrap_or_else(PoisonError::into_inner);
        self.by_revision.pin().remove(revision);
        let removed = owned.remove(revision);
        let empty = owned.is_empty();
        // Freeing a model takes a while: not under the lock.
        drop(owned);
        drop(removed);
        if empty {
            self.emptied.notify_waiters();
        }
    }

    /// Waits until no route holds a replica that was removed; one with requests in flight is not waited for. The caller's `Arc` is
    /// then the last one, and the model is freed where that is dropped: to free one takes a while, and may wait for a load.
    pub async fn released(&self, replica: &Arc<Replica>) {
        loop {
            // Counts changes from here on, so nothing is missed between these two.
            let changed = self.routes_changed.notified();
            if Arc::strong_count(replica) == 1 || replica.in_flight() > 0 {
                return;
            }
            changed.await;
        }
    }

    /// Notes that routes were changed.
    pub(crate) fn routes_changed(&self) {
        self.routes_changed.notify_waiters();
    }

    /// True if a replica of this deployment is here.
    pub(crate) fn holds(&self, deployment: &DeploymentName) -> bool {
        let owned = self.owned.lock().unwrap_or_else(PoisonError::into_inner);
        let first = RevisionId::with_hash(deployment.clone(), [0; 6]);
        owned.range(first..).next().is_some_and(|(revision, _)| revision.deployment() == deployment)
    }

    /// The number of replicas that can be called.
    #[must_use]
    pub fn len(&self) -> usize {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// True if there is no replica.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until there is none.
    pub async fn emptied(&self) {
        loop {
            // Counts what happens from here on, so nothing is missed between these two.
            let emptied = self.emptied.notified();
            if self.is_empty() {
                return;
            }
            emptied.await;
        }
    }
}

/// The high bit of [`Replica::state`]: no new leases.
const DRAINING: u32 = 1 << 31;

/// One replica: a model and the count of requests in it.
pub struct Replica {
    revision: RevisionId,
    model: Arc<dyn Model>,
    /// Requests in flight, and [`DRAINING`]. One word, so that a lease is either counted or refused.
    state: AtomicU32,
    /// Leases that were given for requests. Beside `state`: the same cache line is written anyway.
    requests: AtomicU64,
    /// A route has named it: from now on it serves as long as one does.
    routed: AtomicBool,
    idle: Notify,
    listener: Option<ReplicaListener>,
}

impl Replica {
    /// The revision that it is a replica of.
    #[must_use]
    pub fn revision(&self) -> &RevisionId {
        &self.revision
    }

    /// Notes that a route names it.
    pub(crate) fn set_routed(&self) {
        self.routed.store(true, Ordering::Relaxed);
    }

    /// True if a route has named it. One that was never named has just been loaded, and the controller is about to say so; one that is
    /// no longer named is being unloaded.
    pub(crate) fn was_routed(&self) -> bool {
        self.routed.load(Ordering::Relaxed)
    }

    /// The model, for what needs no lease: metadata and statistics.
    #[must_use]
    pub fn model(&self) -> &Arc<dyn Model> {
        &self.model
    }

    /// The number of leases that are out.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.state.load(Ordering::Relaxed) & !DRAINING
    }

    /// Requests that it was given since it became callable.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// The model's bound on requests at once, where there are more.
    pub(crate) fn overfull(&self) -> Option<u32> {
        self.model.bound().filter(|most| self.in_flight() > *most)
    }

    /// No new leases are given.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.state.load(Ordering::Relaxed) & DRAINING != 0
    }

    /// The right to run one request; `None` once draining has begun: go by the route again.
    #[must_use]
    pub fn acquire(self: &Arc<Self>) -> Option<Lease> {
        let before = self.state.fetch_add(1, Ordering::AcqRel);
        let lease = Lease { replica: Arc::clone(self) };
        if before & DRAINING != 0 {
            return None;
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        Some(lease)
    }

    /// Refuses new leases from now on. Idempotent.
    pub fn begin_drain(&self) {
        let before = self.state.fetch_or(DRAINING, Ordering::AcqRel);
        self.idle.notify_waiters();
        if let Some(listener) = self.listener.as_ref().filter(|_| before & DRAINING == 0) {
            listener(&self.revision, ReplicaChange::Gone);
        }
    }

    /// Waits until no lease is out. Meaningful after [`begin_drain`](Self::begin_drain).
    pub async fn drained(&self) {
        loop {
            // `Notified` counts `notify_waiters` calls from its creation on, so nothing is missed between these two.
            let idle = self.idle.notified();
            if self.in_flight() == 0 {
                return;
            }
            idle.await;
        }
    }
}

/// The right to run one request on a replica; the replica is not unloaded while it is out.
pub struct Lease {
    replica: Arc<Replica>,
}

impl Lease {
    /// The model to run it on.
    #[must_use]
    pub fn model(&self) -> &Arc<dyn Model> {
        &self.replica.model
    }

    /// The replica that is leased.
    #[must_use]
    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }

    /// Ends the lease and gives the model to be described. A description counts as no request of the replica.
    #[must_use]
    pub fn to_describe(self) -> Arc<dyn Model> {
        self.replica.requests.fetch_sub(1, Ordering::Relaxed);
        Arc::clone(&self.replica.model)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let before = self.replica.state.fetch_sub(1, Ordering::AcqRel);
        if before == DRAINING | 1 {
            self.replica.idle.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, future::BoxFuture};

    use super::*;

    struct Nothing(Arc<Signature>);

    impl Model for Nothing {
        fn signature(&self) -> &Arc<Signature> {
            &self.0
        }
        fn platform(&self) -> &'static str {
            "nothing"
        }
        fn infer(&self, _: InferRequest, _: Instant) -> BoxFuture<'_, Result<Vec<berth_spec::Tensor>, InferError>> {
            Box::pin(std::future::ready(Ok(Vec::new())))
        }
        fn statistics(&self) -> Statistics {
            Statistics::default()
        }
        fn batching(&self) -> Batching {
            Batching::OFF
        }
    }

    #[test]
    fn what_is_let_in_is_counted_and_what_is_refused_is_not() {
        let replicas = LocalReplicas::default();
        let revision = RevisionId::of(berth_spec::DeploymentName::new("iris").expect("a name"), b"1");
        let replica = replicas.insert(revision, Arc::new(Nothing(Arc::default())));
        let leases: Vec<_> = (0..3).map(|_| replica.acquire().expect("a lease")).collect();
        replica.begin_drain();
        assert!(replica.acquire().is_none());
        drop(leases);
        assert_eq!((replica.requests(), replica.in_flight()), (3, 0));
    }

    #[test]
    fn a_replica_that_left_is_released_once_no_route_holds_it() {
        let replicas = LocalReplicas::default();
        let revision = RevisionId::of(berth_spec::DeploymentName::new("iris").expect("a name"), b"1");
        let replica = replicas.insert(revision.clone(), Arc::new(Nothing(Arc::default())));
        let in_a_route = Arc::clone(&replica);
        replicas.remove(&revision);
        let mut released = Box::pin(replicas.released(&replica));
        assert!((&mut released).now_or_never().is_none());
        replicas.routes_changed();
        assert!((&mut released).now_or_never().is_none(), "another route changed");
        drop(in_a_route);
        replicas.routes_changed();
        assert!((&mut released).now_or_never().is_some());
    }

    #[test]
    fn a_description_counts_as_no_request() {
        let replicas = LocalReplicas::default();
        let revision = RevisionId::of(berth_spec::DeploymentName::new("iris").expect("a name"), b"1");
        let replica = replicas.insert(revision, Arc::new(Nothing(Arc::default())));
        let model = replica.acquire().expect("a lease").to_describe();
        assert_eq!((model.platform(), replica.requests(), replica.in_flight()), ("nothing", 0, 0));
    }

    #[test]
    fn a_deployment_is_here_while_one_of_its_revisions_is() {
        let (replicas, name) = (LocalReplicas::default(), |text: &str| DeploymentName::new(text).expect("a name"));
        let revision = RevisionId::of(name("iris"), b"1");
        replicas.insert(revision.clone(), Arc::new(Nothing(Arc::default())));
        assert_eq!(["iris", "iri", "iris2"].map(|text| replicas.holds(&name(text))), [true, false, false]);
        replicas.remove(&revision);
        assert!(!replicas.holds(&name("iris")));
    }

    #[test]
    fn every_change_is_told_once() {
        let (replicas, told) = (LocalReplicas::default(), Arc::new(Mutex::new(Vec::new())));
        let into = Arc::clone(&told);
        replicas.listen(Arc::new(move |revision, change| {
            into.lock().expect("no panic").push((revision.clone(), change));
        }));
        let revision = RevisionId::of(berth_spec::DeploymentName::new("iris").expect("a name"), b"1");
        let replica = replicas.insert(revision.clone(), Arc::new(Nothing(Arc::default())));
        replica.begin_drain();
        replica.begin_drain();
        replicas.remove(&revision);
        let expected = [(revision.clone(), ReplicaChange::Ready), (revision, ReplicaChange::Gone)];
        assert_eq!(*told.lock().expect("no panic"), expected);
    }
}
