//! The lines of one peer: picked in turn, dialled on demand, replaced when they close.
//!
//! ```text
//! empty ──picked──→ dialling ──→ open ──closed──→ empty
//!   ↑                  │ failed
//!   └──── resting ←────┘   nobody dials until the pause is over; it doubles with each failure
//! ```
//!
//! Picking an open line takes no lock. While there is one, nobody waits for another to be dialled. What runs on an event
//! loop has a line there; all others share some.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use berth_spec::Member;
use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use tokio::{sync::oneshot, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    dial::{DialError, Dialer},
    line::PeerLine,
};
use crate::loops;

/// Connections for event loops, one each; with more loops, some share one. Enough for most machines without a surplus
/// of pings.
const OF_LOOPS: usize = 8;

/// A dial that several wait for.
type Dialling = Shared<BoxFuture<'static, Result<Arc<PeerLine>, DialError>>>;

/// The lines of one peer, dialled when they are needed.
pub(super) struct LinePool(Arc<Inner>);

struct Inner {
    member: Arc<Member>,
    dialer: Arc<Dialer>,
    /// The first are shared, the last [`OF_LOOPS`] belong to event loops.
    slots: Box<[PoolSlot]>,
    shared: usize,
    next: AtomicUsize,
    resting: Mutex<Resting>,
    /// Ends all connections.
    cut: Mutex<CancellationToken>,
}

#[derive(Default)]
struct PoolSlot {
    line: ArcSwapOption<PeerLine>,
    /// Taken only where there is no open line; never held over an await.
    dialling: Mutex<Option<Dialling>>,
}

/// Back-off after failed dials.
#[derive(Default)]
struct Resting {
    failed: u32,
    until: Option<(Instant, DialError)>,
}

impl LinePool {
    pub(super) fn new(member: Arc<Member>, dialer: Arc<Dialer>) -> Self {
        let shared = dialer.policy.lines.max(1);
        let slots = (0..shared + OF_LOOPS).map(|_| PoolSlot::default()).collect();
        let cut = Mutex::new(dialer.ends.child_token());
        let (next, resting) = (AtomicUsize::new(0), Mutex::default());
        Self(Arc::new(Inner { member, dialer, slots, shared, next, resting, cut }))
    }

    /// An open line: that of this event loop, elsewhere the next in turn. Waits only where there is none at all.
    pub(super) async fn pick(&self) -> Result<Arc<PeerLine>, DialError> {
        let (slots, shared) = (&self.0.slots, self.0.shared);
        let first = match loops::here() {
            Some(here) => shared + here % OF_LOOPS,
            None => self.0.next.fetch_add(1, Relaxed) % shared,
        };
        if let Some(line) = slots[first].open() {
            return Ok(line);
        }
        let dialling = self.dial(first);
        match (1..slots.len()).find_map(|further| slots[(first + further) % slots.len()].open()) {
            Some(line) => Ok(line),
            None => dialling?.await,
        }
    }

    /// Joins the dial of a slot, or begins it.
    fn dial(&self, index: usize) -> Result<Dialling, DialError> {
        let slot = &self.0.slots[index];
        let mut dialling = lock(&slot.dialling);
        if let Some(dialling) = &*dialling {
            return Ok(dialling.clone());
        }
        if let Some(line) = slot.open() {
            return Ok(futures::future::ready(Ok(line)).boxed().shared());
        }
        if let Some((until, error)) = &lock(&self.0.resting).until
            && Instant::now() < *until
        {
            return Err(error.clone());
        }
        let (done, result) = oneshot::channel();
        let inner = Arc::clone(&self.0);
        self.0.dialer.tasks.spawn(async move {
            // Nobody may wait any more; the line is there for the next.
            let _ = done.send(inner.make(index).await);
        });
        let stopped = || Err(DialError::new("this node is stopping"));
        let begun = result.map(move |made| made.unwrap_or_else(|_| stopped())).boxed().shared();
        *dialling = Some(begun.clone());
        Ok(begun)
    }

    /// True if dialling fails and there is no connection.
    pub(super) fn failing(&self) -> bool {
        lock(&self.0.resting).failed > 0 && !self.0.slots.iter().any(|slot| slot.open().is_some())
    }

    /// Connect time of the youngest connection.
    pub(super) fn rtt(&self) -> Option<Duration> {
        self.0.slots.iter().filter_map(|slot| slot.open()).map(|line| line.connected_in).min()
    }

    /// Cuts all lines: the peer is gone. It may come back; then they are dialled anew.
    pub(super) fn cut(&self) {
        let fresh = self.0.dialer.ends.child_token();
        std::mem::replace(&mut *lock(&self.0.cut), fresh).cancel();
    }

    /// The peer is back: it may be dialled at once.
    pub(super) fn wake(&self) {
        lock(&self.0.resting).until = None;
    }
}

impl Inner {
    async fn make(&self, index: usize) -> Result<Arc<PeerLine>, DialError> {
        let cut = lock(&self.cut).clone();
        // Boxed: a handshake's state is large, and lines are few.
        let dialling = Box::pin(self.dialer.dial(&self.member, cut.clone()));
        let made = match cut.run_until_cancelled(dialling).await {
            Some(made) => {
                self.learn(made.as_ref().err());
                made.map(Arc::new)
            }
            None => Err(DialError::new("membership says that the peer is gone")),
        };
        let slot = &self.slots[index];
        if let Ok(line) = &made {
            slot.line.store(Some(Arc::clone(line)));
        }
        // After the line is there: who comes now finds either.
        lock(&slot.dialling).take();
        made
    }

    fn learn(&self, error: Option<&DialError>) {
        let mut resting = lock(&self.resting);
        let peer = &self.member.name;
        let Some(error) = error else {
            if std::mem::take(&mut *resting).failed > 0 {
                tracing::info!(event = "peer_reached", %peer, "lines to a peer can be made again");
            }
            return;
        };
        if resting.failed == 0 {
            tracing::warn!(event = "peer_unreachable", %peer, %error, "no line to a peer");
        }
        let policy = &self.dialer.policy;
        let doubled = policy.pause.saturating_mul(1 << resting.failed.min(16)).min(policy.pause_max);
        // Between three quarters and all of it, so that nodes that lost the same peer do not return together.
        let pause = doubled.mul_f64(0.75 + 0.25 * rand::random::<f64>());
        resting.failed = resting.failed.saturating_add(1);
        resting.until = Some((Instant::now() + pause, error.clone()));
    }
}

impl PoolSlot {
    fn open(&self) -> Option<Arc<PeerLine>> {
        self.line.load().as_ref().filter(|line| line.is_open()).cloned()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
