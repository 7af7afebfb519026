//! Standing for election, on a thread of its own: no plan and no request, however large, makes a leader late with its lease.
//!
//! ```text
//! Connecting ──etcd answers──▶ Standing ──resign──▶ Over
//!     └── it does not: tried again for ever; meanwhile the node follows
//! ```

use std::{
    io,
    thread::{self, JoinHandle},
    time::Duration,
};

use berth_control::{
    leadership::{CandidateInfo, Election, Leadership, Policy},
    store::etcd::{EtcdConfig, EtcdStore, Timeouts},
};
use berth_peer::Peers;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

/// Pause before etcd is tried again at the start: the two are often started together.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Limit for the first attempt, so that a wrong address is reported while people still look.
const TELL_AFTER: Duration = Duration::from_secs(2);

/// An election that runs on its own thread.
pub(super) struct ElectionHandle {
    resign: CancellationToken,
    thread: Option<JoinHandle<()>>,
    over: oneshot::Receiver<()>,
}

impl ElectionHandle {
    /// Stands for election. The leadership says who leads, and the store is there once etcd has answered. `peers` are told where
    /// the one is who leads.
    pub(super) fn start(
        config: EtcdConfig,
        me: CandidateInfo,
        peers: Peers,
    ) -> io::Result<(watch::Receiver<Leadership>, Self)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (leadership, leadership_rx) = watch::channel(Leadership::Following { leader: None });
        let (resign, (ended, over)) = (CancellationToken::new(), oneshot::channel());
        let resigning = resign.clone();
        let run = move || {
            runtime.block_on(stand(config, me, peers, leadership, resigning));
            // Nobody waits where the process is leaving at once.
            let _ = ended.send(());
        };
        let thread = thread::Builder::new().name("berth-election".to_owned()).spawn(run)?;
        Ok((leadership_rx, Self { resign, thread: Some(thread), over }))
    }

    /// Hands over, if this node leads, and stands no more.
    pub(super) async fn resign(mut self) {
        self.resign.cancel();
        let over = self.over.await;
        if let Some(thread) = self.thread.take().filter(|_| over.is_ok()) {
            // It has said that it is done: this takes no time.
            let _ = thread.join();
        }
    }
}

async fn stand(
    config: EtcdConfig,
    me: CandidateInfo,
    peers: Peers,
    leadership: watch::Sender<Leadership>,
    resign: CancellationToken,
) {
    let Some(store) = resign.run_until_cancelled(connect(config, store_unreachable)).await else { return };
    let (mut leadership_rx, election) = Election::start(&store, me, Policy::default());
    let (mut found, mut news) = (election.found(), true);
    loop {
        // Before the leadership names it: whoever goes there goes to the right process.
        if let Some(leader) = &*found.borrow_and_update()
            && let Ok(at) = leader.peer.parse()
        {
            peers.led_by(&leader.name, leader.epoch, at);
        }
        if news {
            leadership.send_replace(leadership_rx.borrow_and_update().clone());
        }
        tokio::select! {
            changed = leadership_rx.changed() => {
                if changed.is_err() {
                    return;
                }
                news = true;
            }
            changed = found.changed() => {
                if changed.is_err() {
                    return;
                }
                news = false;
            }
            () = resign.cancelled() => break,
        }
    }
    leadership.send_replace(Leadership::Following { leader: None });
    election.resign().await;
}

/// A connection to etcd, as soon as there is one. `tell` hears of trouble, of the same once.
pub(super) async fn connect(config: EtcdConfig, tell: impl Fn(&str)) -> EtcdStore {
    let mut told = None;
    let mut patience = Timeouts { whole: TELL_AFTER, ..config.patience };
    loop {
        match EtcdStore::connect(EtcdConfig { patience, ..config.clone() }).await {
            Ok(store) => return store.with_patience(config.patience),
            Err(error) => {
                let text = error.to_string();
                if told.as_ref() != Some(&text) {
                    tell(&text);
                    told = Some(text);
                }
                patience = config.patience;
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

fn store_unreachable(error: &str) {
    tracing::error!(event = "store_unreachable", error, "loaded models keep serving; retrying");
}
