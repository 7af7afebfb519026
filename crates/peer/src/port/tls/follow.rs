//! Takes up changed files while the port serves.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::{PortTls, files};

/// Interval between checks of the files. Renewed certificates are in use within five seconds.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Time before expiry at which warnings start: half of what is left when tools renew certificates of 90 days.
const WARN_BEFORE: Duration = Duration::from_secs(15 * 24 * 3600);
/// Interval between warnings: whoever reads the log of a day sees one.
const WARN_EVERY: Duration = Duration::from_secs(12 * 3600);

impl PortTls {
    /// Uses the files as they change, for as long as it is polled. A change that is not usable is warned of once, and
    /// the old files stay in use.
    pub async fn follow(self) {
        files::warn_of_readable(&self.settings().key);
        let (mut told, mut warn_at) = (String::new(), Instant::now());
        loop {
            if Instant::now() >= warn_at {
                warn_at += WARN_EVERY;
                self.warn_of_end();
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            let tls = self.clone();
            let Ok(reloaded) = tokio::task::spawn_blocking(move || tls.reload()).await else { continue };
            let certificate = self.settings().certificate.display();
            match reloaded {
                Ok(true) => {
                    told.clear();
                    tracing::info!(event = "tls_renewed", %certificate, "the changed TLS files are in use");
                }
                Ok(false) => told.clear(),
                Err(error) => {
                    let error = error.to_string();
                    if told != error {
                        tracing::warn!(event = "tls_unusable", %error, "the changed TLS files cannot be used; keeping the old ones");
                        told = error;
                    }
                }
            }
        }
    }

    fn warn_of_end(&self) {
        let Some(end) = self.ends() else { return };
        let (certificate, left) = (self.settings().certificate.display(), end.duration_since(SystemTime::now()));
        match left {
            Ok(left) if left >= WARN_BEFORE => {}
            Ok(left) => {
                let hours = left.as_secs() / 3_600;
                tracing::warn!(event = "tls_ends_soon", hours, %certificate, "the TLS certificate ends soon: put a new one in its place");
            }
            Err(_) => {
                tracing::warn!(event = "tls_expired", %certificate, "the TLS certificate expired, and clients refuse it: put a new one in its place");
            }
        }
    }
}
