//! One controller per term of leadership, built when the term begins and gone when it ends.
//!
//! ```text
//! Standby ──Leadership::Leading──▶ Deciding (restores, settles, plans)
//!    ▲  ▲                             │ leadership is lost, or the store says Deposed: nothing is sent any more
//!    │  └─────────────────────────────┘
//!    │                                │ the store cannot be read at the start
//!    └─────────── a pause ────────────┘ and again, as long as the term lasts
//! ```
//! A standby holds nothing of what is declared: reading 100,000 deployments takes less time than noticing that the leader
//! is dead, and memory for them on each controller would be paid for all the time.

use std::{sync::Arc, time::Duration};

use berth_spec::Epoch;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::LeadershipView;
use crate::{
    Config, Ended, Metrics, build_with,
    leadership::{Fence, Leadership},
    store::{Store, StoreError, fenced::Fenced},
};

/// Pause after a start that failed because the store was unavailable. Short, because the term runs meanwhile.
const RESTART_PAUSE: Duration = Duration::from_millis(500);

/// Runs a controller whenever this node leads.
pub struct LeaderLoop {
    config: Config,
    store: Arc<dyn Store>,
    metrics: Metrics,
    leadership: watch::Receiver<Leadership>,
    view: watch::Sender<LeadershipView>,
}

impl LeaderLoop {
    /// `leadership` says when this node leads; `store` is the one of all terms. It begins to work when [`LeaderLoop::run`] is awaited.
    #[must_use]
    pub fn new(
        config: Config,
        store: Arc<dyn Store>,
        metrics: Metrics,
        leadership: watch::Receiver<Leadership>,
    ) -> (Self, watch::Receiver<LeadershipView>) {
        let (view, views) = watch::channel(following(&leadership.borrow()));
        (Self { config, store, metrics, leadership, view }, views)
    }

    /// Decides while this node leads, until `shutdown`. A plan on its way to the store is stored before it returns.
    pub async fn run(mut self, shutdown: CancellationToken) {
        loop {
            let leadership = self.leadership.borrow_and_update().clone();
            match leadership {
                Leadership::Following { .. } => {
                    self.view.send_replace(following(&leadership));
                    tokio::select! {
                        changed = self.leadership.changed() => if changed.is_err() {
                            // Who elects has ended: nothing will change until the end.
                            shutdown.cancelled().await;
                        },
                        () = shutdown.cancelled() => {}
                    }
                }
                Leadership::Leading { epoch, fence } => self.term(epoch, fence, &shutdown).await,
            }
            if shutdown.is_cancelled() {
                self.view.send_replace(LeadershipView::Following { leader: None });
                return;
            }
        }
    }

    /// One term, from its beginning to its end.
    async fn term(&mut self, epoch: Epoch, fence: Fence, shutdown: &CancellationToken) {
        loop {
            tracing::info!(event = "term_began", %epoch);
            match self.decide(epoch, fence.clone(), shutdown).await {
                Ok(Ended::Stopped) => break,
                // The election will notice as well; until then nobody is told that this node leads.
                Ok(Ended::Deposed) => {
                    self.until_over(epoch, None, shutdown).await;
                    break;
                }
                Err(error) => {
                    tracing::error!(event = "term_failed", %error, %epoch, "the controller cannot start: trying again");
                    if self.until_over(epoch, Some(RESTART_PAUSE), shutdown).await {
                        break;
                    }
                }
            }
        }
        tracing::info!(event = "term_ended", %epoch);
    }

    async fn decide(&mut self, epoch: Epoch, fence: Fence, shutdown: &CancellationToken) -> Result<Ended, StoreError> {
        let store: Arc<dyn Store> = Arc::new(Fenced::new(Arc::clone(&self.store), fence));
        let (control, handle) = build_with(self.config.clone(), store, self.metrics.clone());
        self.view.send_replace(LeadershipView::Leading { handle, epoch });
        let over = shutdown.child_token();
        let deciding = control.run(over.clone());
        tokio::pin!(deciding);
        let ended = tokio::select! {
            ended = &mut deciding => Some(ended),
            () = until_not(&mut self.leadership, epoch) => None,
        };
        // Before anything else: whoever asks is not to be sent to a controller that is at its end.
        self.view.send_replace(LeadershipView::Following { leader: None });
        match ended {
            Some(ended) => ended,
            None => {
                over.cancel();
                deciding.await
            }
        }
    }

    /// Waits until the term is over, or for `most`; says whether it is.
    async fn until_over(&mut self, epoch: Epoch, most: Option<Duration>, shutdown: &CancellationToken) -> bool {
        self.view.send_replace(LeadershipView::Following { leader: None });
        let pause = async {
            match most {
                Some(most) => tokio::time::sleep(most).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = until_not(&mut self.leadership, epoch) => true,
            () = shutdown.cancelled() => true,
            () = pause => false,
        }
    }
}

/// Waits until this node does not lead in this term. Never returns once the election has ended, because the fence
/// ends the term.
async fn until_not(leadership: &mut watch::Receiver<Leadership>, epoch: Epoch) {
    let leads = |leadership: &Leadership| matches!(leadership, Leadership::Leading { epoch: now, .. } if *now == epoch);
    if leadership.wait_for(|leadership| !leads(leadership)).await.is_err() {
        std::future::pending().await
    }
}

fn following(leadership: &Leadership) -> LeadershipView {
    match leadership {
        Leadership::Following { leader } => LeadershipView::Following { leader: leader.clone() },
        Leadership::Leading { .. } => LeadershipView::Following { leader: None },
    }
}
