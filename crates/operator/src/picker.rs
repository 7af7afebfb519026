//! The endpoint picker of a pool: tells a Gateway which pod takes a request (`berth operator picker`, docs/kubernetes.md).
//!
//! ```text
//!  Gateway ── one stream per request (ext_proc) ──▶ service ──▶ session: parts of the request → answers
//!                                                                  │ choose, release
//!  API server ──watch──▶ follow ──▶ pods ──── ready addresses ──▶ balance: endpoints + in flight → choice
//! ```
//! A Gateway does not say for which pool it asks, so each pool has a picker of its own, in its namespace. Bodies are not kept: a chunk goes back in the
//! message that answers it, and counts against a sum until then (`part_memory`). A stream holds one number, which is released when the response or the
//! stream ends, whichever comes first.
//!
//! Protocol: `docs/proposals/004-endpoint-picker-protocol` of github.com/kubernetes-sigs/gateway-api-inference-extension.

mod balance;
mod follow;
mod metrics;
mod part_memory;
mod pods;
mod service;
mod session;

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    num::NonZeroU32,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use self::metrics::PickerMetrics;
pub use self::{
    balance::{Balance, Choice},
    follow::{Members, follow},
    pods::Pods,
    service::PickerServer,
};

/// A pool whose endpoints are picked. Clones are of the same one.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    balance: Mutex<Balance>,
    is_known: AtomicBool,
    metrics: PickerMetrics,
}

/// A request that gets no endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    NoneReady,
    Busy,
}

/// A request's place at an endpoint. Counts until it is dropped.
#[derive(Debug)]
struct Permit {
    pool: Pool,
    endpoint: SocketAddr,
}

impl Pool {
    /// A pool whose endpoints take `most` requests at once, as far as this picker has sent them; `None`: any number.
    #[must_use]
    pub fn new(most: Option<NonZeroU32>) -> Self {
        let balance = Mutex::new(Balance::new(most));
        Self(Arc::new(Shared { balance, is_known: AtomicBool::new(false), metrics: PickerMetrics::default() }))
    }

    /// The endpoints that are ready: all of them.
    pub fn set_ready(&self, ready: &BTreeSet<SocketAddr>) {
        self.balance().set_ready(ready);
        self.0.metrics.ready(ready.len());
        self.0.is_known.store(true, Relaxed);
    }

    /// True once the endpoints are known.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.0.is_known.load(Relaxed)
    }

    /// The metrics, in Prometheus' text form.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.0.metrics.text()
    }

    fn balance(&self) -> MutexGuard<'_, Balance> {
        self.0.balance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn choose(&self, subset: Option<&BTreeSet<SocketAddr>>) -> Result<Permit, Refusal> {
        let choice = self.balance().choose(subset);
        self.0.metrics.chose(choice);
        match choice {
            Choice::Endpoint(endpoint) => Ok(Permit { pool: self.clone(), endpoint }),
            Choice::NoneReady => Err(Refusal::NoneReady),
            Choice::Busy => Err(Refusal::Busy),
        }
    }

    fn watch_failed(&self) {
        self.0.metrics.watch_failed();
    }
}

impl Permit {
    /// Another endpoint serves the request.
    fn move_to(&mut self, endpoint: SocketAddr) {
        self.endpoint = self.pool.balance().moved(self.endpoint, endpoint);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.pool.balance().release(self.endpoint);
        self.pool.0.metrics.released();
    }
}
