//! Unloading: the runtime is told again until it has let go of the model.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use tokio::time::sleep;

use super::Process;

/// The pauses between attempts to unload: doubled up to the second one.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// A model that is being loaded: unloaded again unless it stays.
pub(super) struct Entered {
    process: Arc<Process>,
    id: Option<String>,
}

impl Entered {
    pub(super) fn new(process: Arc<Process>, id: String) -> Self {
        Self { process, id: Some(id) }
    }

    pub(super) fn stays(mut self) {
        self.id = None;
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            drop(self.process.leave(&id));
        }
    }
}

impl Process {
    /// Has the runtime unload a model, as often as it takes. The channel closes when that is done, or has failed once.
    pub(super) fn leave(self: &Arc<Self>, id: &str) -> mpsc::Receiver<()> {
        let (done, word) = mpsc::channel();
        let (process, id, again) = (Arc::clone(self), id.to_owned(), self.room.leave(id));
        if self.alone {
            self.handle().spawn(async move {
                process.end_with(&id).await;
                process.room.gone(&id);
                drop(done);
            });
            return word;
        }
        self.handle().spawn(async move {
            let (mut pause, longest) = RETRY_PAUSES;
            let mut done = Some(done);
            while let Err(status) = process.control.unload(&id).await {
                process.metrics.failed_unloads.inc();
                if done.is_some() {
                    process.metrics.stuck.inc();
                }
                tracing::warn!(
                    event = "runtime_unload_failed",
                    runtime = process.name,
                    model_id = id,
                    code = ?status.code(),
                    reason = status.message(),
                    again_in_s = pause.as_secs(),
                );
                done = None;
                if again.run_until_cancelled(sleep(pause)).await.is_none() {
                    break;
                }
                pause = (2 * pause).min(longest);
            }
            process.room.gone(&id);
            drop(done);
        });
        word
    }
}
