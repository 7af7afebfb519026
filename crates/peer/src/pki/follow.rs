//! Takes up changed files while the node runs.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Identity;

/// Interval between checks of the four files. Renewed certificates are in use within five seconds.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Time before expiry at which warnings start, or the last quarter of a shorter life. Leaves three weeks to renew, and spares
/// certificates that are renewed at two thirds of their life.
const WARN_BEFORE: Duration = Duration::from_secs(21 * 24 * 3600);
/// Interval between warnings: whoever reads the log of a day sees one.
const WARN_EVERY: Duration = Duration::from_secs(12 * 3600);

impl Identity {
    /// Uses the files as they change, until `shutdown`. A change that is not usable is warned of once, and the old
    /// files stay in use.
    pub async fn follow(&self, shutdown: &CancellationToken) {
        let (mut told, mut warn_at) = (String::new(), Instant::now());
        while shutdown.run_until_cancelled(tokio::time::sleep(POLL_INTERVAL)).await.is_some() {
            if Instant::now() >= warn_at {
                warn_at += WARN_EVERY;
                self.warn();
            }
            let identity = self.clone();
            let Ok(reloaded) = tokio::task::spawn_blocking(move || identity.reload()).await else { continue };
            match reloaded {
                Ok(true) => {
                    tracing::info!(event = "certificates_renewed", folder = %self.folder().display(), "new certificates are in use")
                }
                Ok(false) => told.clear(),
                Err(error) => {
                    let error = error.to_string();
                    if told != error {
                        tracing::warn!(event = "certificates_unusable", %error, "the changed certificates are invalid; keeping the old ones");
                        told = error;
                    }
                }
            }
        }
    }

    fn warn(&self) {
        let Some(left) = self.ends().map(|end| end.duration_since(SystemTime::now()).unwrap_or_default()) else {
            return;
        };
        if left < WARN_BEFORE.min(self.certificate().life() / 4) {
            let (hours, folder) = (left.as_secs() / 3_600, self.folder().display());
            tracing::warn!(event = "certificate_ends_soon", hours, %folder, "this node's certificate ends soon: make another with `berth pki issue`, or start a controller with --authority");
        }
    }
}
