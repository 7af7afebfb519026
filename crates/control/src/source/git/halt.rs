//! What a commit disables is disabled at once: while model cards, its own or those of a commit before it, are still being
//! read, and also where they cannot be had or are wrong. All that has to be right is the registry's own files and the
//! signature; all else of the commit waits until it passes.
//!
//! ```text
//! a commit is being validated ──a second──▶ where is the branch? its own files ──▶ ids that want no replica ──▶ the driver
//!          ▲                                                                  │
//!          └────────── at each poll and webhook, as long as that lasts ───────┘
//! ```
//! It holds until a commit comes into force that says otherwise, for the next leader too.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use berth_git::{CommitInfo, Oid};
use tokio::sync::{mpsc, watch};

use super::eyes::Eyes;
use crate::store::source::StoredHalt;

/// How long a validation may last before the branch is asked for what is disabled. Halved, more commits are read twice;
/// doubled, an emergency that meets a slow validation lasts that much longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is disabled by a commit that is not in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Halt {
    pub(super) commit: Oid,
    /// The commit that was being validated when this one was found; `None`: none, or it is not known.
    pub(super) behind: Option<Oid>,
    pub(super) ids: BTreeSet<String>,
}

impl Halt {
    /// What the store remembers.
    pub(super) fn restored(stored: &StoredHalt) -> Option<Self> {
        Some(Self { commit: Oid::parse(&stored.commit)?, behind: None, ids: stored.ids.iter().cloned().collect() })
    }

    pub(super) fn stored(&self) -> StoredHalt {
        StoredHalt { commit: self.commit.to_string(), ids: self.ids.iter().cloned().collect() }
    }

    /// Whether it is newer than `commit`, whose validation has ended: then what that one says of the same deployments is out
    /// of date.
    pub(super) fn outlives(&self, commit: &Oid) -> bool {
        self.commit != *commit && self.behind.as_ref() == Some(commit)
    }
}

/// What the driver is at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Attention {
    /// The commit that is being validated.
    pub(super) checking: Option<Oid>,
    /// The last good one.
    pub(super) applied: Option<Oid>,
    /// How often somebody said that there is something new.
    pub(super) heard: u64,
}

/// What the newest commit disables.
#[derive(Debug)]
pub(super) struct Glance {
    pub(super) info: CommitInfo,
    /// What was being validated.
    pub(super) behind: Oid,
    /// What it wants no replica of.
    pub(super) idle: Vec<String>,
}

/// Looks at newer commits while one is being validated.
pub(super) struct Lookout {
    pub(super) eyes: Arc<Eyes>,
    /// How often.
    pub(super) interval: Duration,
    pub(super) attention: watch::Receiver<Attention>,
    pub(super) found: mpsc::Sender<Glance>,
}

impl Lookout {
    /// Until the driver has ended.
    pub(super) async fn run(mut self) {
        while let Ok(attention) = self.attention.wait_for(|now| now.checking.is_some()).await.map(|now| now.clone()) {
            let (mut pause, mut heard) = (PATIENCE, attention.heard);
            let mut last: Option<Oid> = None;
            while self.is_due(pause, &attention, heard).await {
                // What is said from here on may not be in the answer.
                heard = self.attention.borrow().heard;
                let (eyes, seen, applied) = (Arc::clone(&self.eyes), last.clone(), attention.applied.clone());
                let look = move || eyes.glance(seen.as_ref(), applied.as_ref());
                match tokio::task::spawn_blocking(look).await {
                    Ok(Ok(Some(report))) => {
                        last = report.commit.as_ref().map(|info| info.oid.clone());
                        if let (Some(info), Some(idle), Some(behind)) =
                            (report.commit, report.idle, attention.checking.clone())
                            && self.found.send(Glance { info, behind, idle }).await.is_err()
                        {
                            return;
                        }
                    }
                    Ok(Ok(None)) => {}
                    // The validation will say so.
                    Ok(Err(fault)) => tracing::debug!(event = "registry_not_glanced_at", problem = fault.message),
                    Err(error) => tracing::error!(event = "source_part_broke", %error, "please report it"),
                }
                pause = self.interval;
            }
            // What was said last holds beyond the end of who said it.
            if self.attention.has_changed().is_err() {
                return;
            }
        }
    }

    /// Waits for `pause`, or a word; false once that validation is over.
    async fn is_due(&mut self, pause: Duration, attention: &Attention, heard: u64) -> bool {
        let since = |now: &Attention| now.checking != attention.checking || now.heard != heard;
        let word = tokio::time::timeout(pause, self.attention.wait_for(since)).await;
        if matches!(word, Ok(Err(_))) {
            return false;
        }
        drop(word);
        if self.attention.borrow().checking == attention.checking && self.attention.borrow().heard != heard {
            // Webhooks may come by the hundred.
            tokio::time::sleep(PATIENCE).await;
        }
        self.attention.borrow().checking == attention.checking
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_outlives_only_the_commit_before_it() {
        let oid = |digit: &str| Oid::parse(&digit.repeat(40)).expect("forty digits");
        let halt = |commit: &str, behind: Option<&str>| Halt {
            commit: oid(commit),
            behind: behind.map(oid),
            ids: BTreeSet::from(["one".to_owned()]),
        };
        assert!(halt("b", Some("a")).outlives(&oid("a")), "found while a was validated");
        assert!(!halt("b", Some("a")).outlives(&oid("b")), "it has its own say now");
        assert!(!halt("b", Some("a")).outlives(&oid("c")), "c came later");
        assert!(!halt("a", Some("a")).outlives(&oid("a")));
        assert!(!halt("b", None).outlives(&oid("a")), "remembered from before");
        let back = Halt::restored(&halt("b", Some("a")).stored()).expect("it reads");
        assert_eq!(back, halt("b", None));
    }
}
