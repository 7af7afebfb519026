//! Forgets jobs some time after their end, and what killed executors left half stored.
//!
//! A stream is in the order of time, so the sweep goes from its oldest message to the first one that is young, a few at a time. Each
//! executor sweeps; what one has removed the others do not find.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::{
    super::{job::JobId, queue::Kind},
    api::{JetStreamError, StoredMessage},
    store::{Store, now},
};

/// Pause between two looks: what has expired may stay so long, and an empty look is cheap.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Messages of one look: a few requests to the server for each.
const MAX_MESSAGES: usize = 200;

/// Age at which a job that waits nowhere was left by a killed executor, and is not being handed in.
const LEFT: Duration = Duration::from_secs(60);

/// Position of a sweep in the stream of jobs.
pub(super) struct Sweep {
    store: Store,
    keep: Duration,
    next: u64,
}

impl Sweep {
    pub(super) const fn new(store: Store, keep: Duration) -> Self {
        Self { store, keep, next: 0 }
    }

    pub(super) async fn run(mut self) {
        let mut ticks = interval(SWEEP_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.look(now()).await {
                tracing::debug!(?error, "old jobs were not forgotten: trying again");
            }
        }
    }

    /// Looks at the next messages.
    pub(super) async fn look(&mut self, now: u64) -> Result<(), JetStreamError> {
        for _ in 0..MAX_MESSAGES {
            let kept = self.store.api.next_kept(&self.store.jobs(), self.next).await?;
            let age = match &kept {
                Some(kept) => self.judge(kept, now).await?,
                None => Age::Young,
            };
            self.next = match (kept, age) {
                (Some(kept), Age::Any) => kept.sequence + 1,
                // All that is old was looked at.
                _ => {
                    self.next = 0;
                    return Ok(());
                }
            };
        }
        Ok(())
    }

    /// Removes what belongs to a job that ended long ago, or to none.
    async fn judge(&self, kept: &StoredMessage, now: u64) -> Result<Age, JetStreamError> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let store = &self.store;
        let rest = kept.subject.strip_prefix(&store.name).unwrap_or_default();
        let mut words = rest.split('.').skip(1);
        let word = words.next();
        let id = match word {
            Some("key") => std::str::from_utf8(kept.data.get(..32).unwrap_or_default()).ok().and_then(JobId::parse),
            Some("dead") => words.nth(1).and_then(JobId::parse),
            _ => words.next().and_then(JobId::parse),
        };
        let Some(id) = id else { return Ok(Age::Any) };
        let expired = match store.read(&id).await? {
            // The record comes first and goes last.
            None => true,
            Some((record, number)) if record.state.is_end() => {
                let expired = record.ended.saturating_add(millis(self.keep)) <= now;
                if !expired && number == kept.sequence {
                    return Ok(Age::Young);
                }
                expired
            }
            Some((record, _)) => {
                record.came.saturating_add(millis(LEFT)) <= now
                    && !store.is_enqueued(Kind::Run, record.priority.as_str(), &id).await?
            }
        };
        match word {
            _ if !expired => {}
            Some("j") => store.forget(&id).await?,
            _ => store.api.delete(&store.jobs(), kept.sequence).await?,
        }
        Ok(Age::Any)
    }
}

/// Age of a message.
#[derive(PartialEq, Eq)]
enum Age {
    /// The record of a job that ended lately: what comes after it is younger.
    Young,
    Any,
}
