//! Credentials of workers on their way: from files and Vault to the controller, again where a key's keeper did not answer.

use std::{collections::BTreeSet, time::Duration};

use berth_secrets::{Backend, vault};
use berth_spec::{Epoch, WorkerId, event::Severity, worker::BreakerState};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    super::{GitConfig, safekeeping::Kept},
    BEGIN_AGAIN, Done, Driver,
};
use crate::{handle::Error, source::SourceBreaker};

/// How long after the keeper of a key did not answer it is asked again; it doubles up to a minute. Halved, an HSM that
/// restarts is asked twice as often; doubled, workers are without their credentials for that much longer.
const KEYS_AGAIN: Duration = Duration::from_secs(15);

/// The longest pause before that.
const KEYS_AGAIN_AT_MOST: Duration = Duration::from_secs(60);

/// Begins to ask Vault, if there is one.
pub(super) fn vault(
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

/// The keeper of a key does not answer.
#[derive(Debug, Default)]
pub(super) struct Awaiting {
    /// How often in a row.
    times: u32,
    /// It is to be asked again.
    due: bool,
    /// That is under way.
    pub(super) asking: bool,
}

impl Driver {
    /// Hands credentials over; where that fails, again a little later.
    pub(super) async fn hand_over(&mut self, kept: Kept, work: &mut JoinSet<Done>) {
        match self.keep(&kept).await {
            Ok(()) => self.ask_keys_again(work),
            Err(error) => {
                tracing::warn!(event = "credentials_not_handed_over", %error, "it is tried again");
                work.spawn(async move {
                    tokio::time::sleep(BEGIN_AGAIN).await;
                    Done::Unhanded(kept)
                });
            }
        }
    }

    /// The keeper of a key did not answer: workers are without what it opens until it does.
    pub(super) fn ask_keys_again(&mut self, work: &mut JoinSet<Done>) {
        let Awaiting { times, due, asking } = &mut self.awaiting;
        if !*due || *asking {
            return;
        }
        let pause = KEYS_AGAIN.saturating_mul(1 << (*times).min(8)).min(KEYS_AGAIN_AT_MOST);
        (*times, *asking) = (times.saturating_add(1), true);
        let (safe, handle) = (self.safe.clone(), self.handle.clone());
        work.spawn(async move {
            tokio::time::sleep(pause).await;
            match tokio::task::spawn_blocking(move || safe.again(handle.now())).await.map_err(JoinError::try_into_panic)
            {
                Ok(kept) => Done::Keys(kept),
                Err(Ok(panic)) => std::panic::resume_unwind(panic),
                // The process ends.
                Err(Err(_)) => std::future::pending().await,
            }
        });
    }

    /// Hands credentials over, unless newer ones were meanwhile.
    pub(super) async fn keep(&mut self, kept: &Kept) -> Result<(), Error> {
        if kept.number < self.handed {
            return Ok(());
        }
        self.handle.set_credentials(kept.sets.clone()).await?;
        self.handed = kept.number;
        self.awaiting.due = kept.awaits_keys;
        if !kept.awaits_keys {
            self.awaiting.times = 0;
        }
        self.handle.board.set_secrets(kept.status.clone());
        self.tell_unopened(kept).await;
        Ok(())
    }

    /// Secrets in files that cannot be opened: told once each. What Vault does not give may come by itself.
    async fn tell_unopened(&mut self, kept: &Kept) {
        let files = kept.status.iter().filter(|secret| secret.backend == Backend::File);
        let broken: BTreeSet<(WorkerId, String)> =
            files.filter_map(|secret| Some((secret.worker.clone(), secret.problem.clone()?))).collect();
        let before = std::mem::replace(&mut self.unopened, broken.clone());
        for (worker, problem) in broken.difference(&before) {
            let message = format!("secrets of {worker} cannot be opened: {problem}");
            self.event(Severity::Warning, "SecretsUnreadable", message, Some(worker.clone())).await;
        }
    }

    /// Vault has a breaker of its own: while it is away one call at a time looks whether it is back.
    pub(super) fn show_vault(&self, found: &vault::VaultSecrets) {
        let Some(settings) = &self.config.vault else { return };
        let name = format!("vault {}", settings.addr.origin().ascii_serialization());
        let breaker = match &found.outage {
            Some(outage) => {
                SourceBreaker { state: BreakerState::Open, failures: outage.failures, retry_at: Some(outage.until) }
            }
            None => SourceBreaker::default(),
        };
        self.config.metrics.breaker(&name, breaker.state);
        self.handle.board.update(|view| {
            view.breakers.insert(name, breaker);
        });
    }
}
