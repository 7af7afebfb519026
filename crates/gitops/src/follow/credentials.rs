//! Hands over the credentials of workers: from files and Vault to the controller, again where a key service did not answer.

use std::{collections::BTreeSet, time::Duration};

use berth_control::{handle::Error, source::SourceBreaker};
use berth_secrets::vault;
use berth_spec::{Epoch, WorkerId, event::Severity, worker::BreakerState};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::{Completion, Driver, HAND_OVER_AGAIN, secret_cache::OpenedSecrets};
use crate::GitConfig;

/// The pause before a key service that did not answer is asked again; it doubles up to a minute. Workers are without their
/// credentials so long.
const KEYS_AGAIN: Duration = Duration::from_secs(15);

/// The longest pause before that: a key service that is back is used within a minute.
const KEYS_AGAIN_AT_MOST: Duration = Duration::from_secs(60);

/// Starts the Vault client, if there is a Vault.
pub(crate) fn vault(
    config: &GitConfig,
    epoch: Epoch,
    ended: &CancellationToken,
    parts: &mut JoinSet<()>,
) -> Option<vault::Handle> {
    let settings = config.vault.clone()?;
    let (addr, namespace) = (settings.addr.clone(), settings.namespace.clone());
    let http = match vault::Http::new(settings) {
        Ok(http) => http,
        Err(problem) => {
            tracing::error!(event = "vault_off", problem);
            return None;
        }
    };
    let (handle, task) = vault::build(vault::Vault::new(addr, namespace, epoch.0 ^ rand::random::<u64>()), http);
    let (ended, others_follow) = (ended.clone().cancelled_owned(), epoch != Epoch(0));
    parts.spawn(task.run(async move {
        ended.await;
        if others_follow {
            std::future::pending::<()>().await;
        }
    }));
    Some(handle)
}

/// A key service that does not answer.
#[derive(Debug, Default)]
pub(crate) struct Awaiting {
    /// Attempts in a row.
    times: u32,
    /// Another attempt is due.
    due: bool,
    /// One is under way.
    pub(crate) asking: bool,
}

impl Driver {
    /// Hands credentials over; where that fails, again a little later.
    pub(crate) async fn hand_over(&mut self, opened: OpenedSecrets, work: &mut JoinSet<Completion>) {
        match self.give(&opened).await {
            Ok(()) => self.ask_keys_again(work),
            Err(error) => {
                tracing::warn!(event = "credentials_not_handed_over", %error, "it is tried again");
                work.spawn(async move {
                    tokio::time::sleep(HAND_OVER_AGAIN).await;
                    Completion::Unhanded(opened)
                });
            }
        }
    }

    /// Asks a key service again that did not answer: workers are without what it opens until it does.
    pub(crate) fn ask_keys_again(&mut self, work: &mut JoinSet<Completion>) {
        let Awaiting { times, due, asking } = &mut self.awaiting;
        if !*due || *asking {
            return;
        }
        let pause = KEYS_AGAIN.saturating_mul(1 << (*times).min(8)).min(KEYS_AGAIN_AT_MOST);
        (*times, *asking) = (times.saturating_add(1), true);
        let (secrets, context) = (self.secrets.clone(), self.context.clone());
        work.spawn(async move {
            tokio::time::sleep(pause).await;
            match tokio::task::spawn_blocking(move || secrets.again(context.now()))
                .await
                .map_err(JoinError::try_into_panic)
            {
                Ok(opened) => Completion::Keys(opened),
                Err(Ok(panic)) => std::panic::resume_unwind(panic),
                // The process ends.
                Err(Err(_)) => std::future::pending().await,
            }
        });
    }

    /// Hands credentials over, unless newer ones were meanwhile.
    pub(crate) async fn give(&mut self, opened: &OpenedSecrets) -> Result<(), Error> {
        if opened.number < self.handed {
            return Ok(());
        }
        self.context.set_credentials(opened.sets.clone(), opened.secrets.clone()).await?;
        self.handed = opened.number;
        self.awaiting.due = opened.awaits_keys;
        if !opened.awaits_keys {
            self.awaiting.times = 0;
        }
        self.tell_unopened(opened).await;
        Ok(())
    }

    /// Tells once of each file that cannot be opened. What Vault does not give may come by itself.
    async fn tell_unopened(&mut self, opened: &OpenedSecrets) {
        let files = opened.secrets.iter().filter(|secret| secret.backend == "file");
        let broken: BTreeSet<(WorkerId, String)> =
            files.filter_map(|secret| Some((secret.worker.clone(), secret.problem.clone()?))).collect();
        let before = std::mem::replace(&mut self.unopened, broken.clone());
        for (worker, problem) in broken.difference(&before) {
            let message = format!("secrets of {worker} cannot be opened: {problem}");
            let worker = Some(worker.clone());
            self.context.event(Severity::Warning, "SecretsUnreadable", message, None, worker).await;
        }
    }

    /// Shows the breaker of Vault: while Vault is away, one call at a time probes it.
    pub(crate) fn show_vault(&self, found: &vault::VaultSecrets) {
        let Some(settings) = &self.config.vault else { return };
        let name = format!("vault {}", settings.addr.origin().ascii_serialization());
        let breaker = match &found.outage {
            Some(outage) => {
                SourceBreaker { state: BreakerState::Open, failures: outage.failures, retry_at: Some(outage.until) }
            }
            None => SourceBreaker::default(),
        };
        self.config.metrics.breaker(&name, breaker.state);
        self.context.update_status(|status| {
            status.breakers.insert(name, breaker);
        });
    }
}
