//! Takes up changed files while the node runs.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Identity;

/// How often the files are looked at. Halved: more reads of four small files. Doubled: new certificates wait longer.
const LOOK: Duration = Duration::from_secs(5);

impl Identity {
    /// Uses the files as they change, until `shutdown`. A change that is not usable is warned of once, and the old
    /// files stay in use.
    pub async fn follow(&self, shutdown: &CancellationToken) {
        let mut told = String::new();
        while shutdown.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
            let identity = self.clone();
            let Ok(reloaded) = tokio::task::spawn_blocking(move || identity.reload()).await else { continue };
            match reloaded {
                Ok(true) => tracing::info!(folder = %self.folder().display(), "new certificates are in use"),
                Ok(false) => told.clear(),
                Err(error) => {
                    let error = error.to_string();
                    if told != error {
                        tracing::warn!(%error, "certificates changed but cannot be used; the old ones stay");
                        told = error;
                    }
                }
            }
        }
    }
}
