//! Emergency stops: what a commit disables is disabled at once, while model cards, its own or those of a commit before it,
//! are still being read, and also where they cannot be had or are wrong. Only the registry's own files and the signature
//! have to be valid; all else of the commit waits until the whole of it is.
//!
//! ```text
//! a commit is being validated ──a second──▶ poll the tip, read its own files ──▶ ids that want no replica ──▶ the driver
//!          ▲                                                                  │
//!          └────────── at each poll and webhook, as long as that lasts ───────┘
//! ```
//! A stop holds until a commit comes into force that says otherwise, for the next leader too.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use berth_git::{CommitInfo, Oid};
use tokio::sync::{mpsc, watch};

use super::{progress::StoredStop, reader::RegistryReader};

/// The time that a validation may last before the tip is read for what it disables. Most validations are over by then,
/// so that the tip is read once.
const PATIENCE: Duration = Duration::from_secs(1);

/// The deployments that a commit disables which is not in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EmergencyStop {
    pub(crate) commit: Oid,
    /// The commit that was being validated when this one was found; `None`: none, or it is not known.
    pub(crate) behind: Option<Oid>,
    pub(crate) ids: BTreeSet<String>,
}

impl EmergencyStop {
    /// Reads the stored form.
    pub(crate) fn restored(stored: &StoredStop) -> Option<Self> {
        Some(Self { commit: Oid::parse(&stored.commit)?, behind: None, ids: stored.ids.iter().cloned().collect() })
    }

    /// Makes the stored form.
    pub(crate) fn stored(&self) -> StoredStop {
        StoredStop { commit: self.commit.to_string(), ids: self.ids.iter().cloned().collect() }
    }

    /// True if the stop is newer than `commit`, whose validation has ended: then what that one says of the same deployments
    /// is out of date.
    pub(crate) fn outlives(&self, commit: &Oid) -> bool {
        self.commit != *commit && self.behind.as_ref() == Some(commit)
    }
}

/// The commit that the driver is validating.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Validating {
    /// The commit that is being validated.
    pub(crate) checking: Option<Oid>,
    /// The last good one.
    pub(crate) applied: Option<Oid>,
    /// Counts webhooks and requests of people.
    pub(crate) heard: u64,
}

/// The deployments that the newest commit disables.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HeadReport {
    pub(crate) info: Box<CommitInfo>,
    /// The commit that was being validated.
    pub(crate) behind: Oid,
    /// The deployments that it wants without a replica.
    pub(crate) idle: Vec<String>,
}

/// Reads newer commits while one is being validated.
pub(crate) struct Watcher {
    pub(crate) reader: Arc<RegistryReader>,
    /// The interval between reads.
    pub(crate) interval: Duration,
    pub(crate) validating: watch::Receiver<Validating>,
    pub(crate) found: mpsc::Sender<HeadReport>,
}

impl Watcher {
    /// Until the driver has ended.
    pub(crate) async fn run(mut self) {
        while let Ok(validating) = self.validating.wait_for(|now| now.checking.is_some()).await.map(|now| now.clone()) {
            let (mut pause, mut heard) = (PATIENCE, validating.heard);
            let mut last: Option<Oid> = None;
            while self.is_due(pause, &validating, heard).await {
                // What is said from here on may not be in the answer.
                heard = self.validating.borrow().heard;
                let (reader, seen, applied) = (Arc::clone(&self.reader), last.clone(), validating.applied.clone());
                let look = move || reader.read_head(seen.as_ref(), applied.as_ref());
                match tokio::task::spawn_blocking(look).await {
                    Ok(Ok(Some(report))) => {
                        last = report.commit.as_ref().map(|info| info.oid.clone());
                        if let (Some(info), Some(idle), Some(behind)) =
                            (report.commit, report.idle, validating.checking.clone())
                            && self.found.send(HeadReport { info: Box::new(info), behind, idle }).await.is_err()
                        {
                            return;
                        }
                    }
                    Ok(Ok(None)) => {}
                    // The validation will say so.
                    Ok(Err(fault)) => tracing::debug!(event = "registry_head_not_read", problem = fault.message),
                    Err(error) => tracing::error!(event = "source_part_broke", %error, "please report it"),
                }
                pause = self.interval;
            }
            // What was said last holds beyond the end of who said it.
            if self.validating.has_changed().is_err() {
                return;
            }
        }
    }

    /// Waits for `pause`, or a word; false once that validation is over.
    async fn is_due(&mut self, pause: Duration, validating: &Validating, heard: u64) -> bool {
        let since = |now: &Validating| now.checking != validating.checking || now.heard != heard;
        let word = tokio::time::timeout(pause, self.validating.wait_for(since)).await;
        if matches!(word, Ok(Err(_))) {
            return false;
        }
        drop(word);
        if self.validating.borrow().checking == validating.checking && self.validating.borrow().heard != heard {
            // Webhooks may come by the hundred.
            tokio::time::sleep(PATIENCE).await;
        }
        self.validating.borrow().checking == validating.checking
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_outlives_only_the_commit_before_it() {
        let oid = |digit: &str| Oid::parse(&digit.repeat(40)).expect("forty digits");
        let stop = |commit: &str, behind: Option<&str>| EmergencyStop {
            commit: oid(commit),
            behind: behind.map(oid),
            ids: BTreeSet::from(["one".to_owned()]),
        };
        assert!(stop("b", Some("a")).outlives(&oid("a")), "found while a was validated");
        assert!(!stop("b", Some("a")).outlives(&oid("b")), "it has its own say now");
        assert!(!stop("b", Some("a")).outlives(&oid("c")), "c came later");
        assert!(!stop("a", Some("a")).outlives(&oid("a")));
        assert!(!stop("b", None).outlives(&oid("a")), "remembered from before");
        let back = EmergencyStop::restored(&stop("b", Some("a")).stored()).expect("it reads");
        assert_eq!(back, stop("b", None));
    }
}
