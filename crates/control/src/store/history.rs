//! The live end of a watch, shared by the implementations: a watch pulls commits out of the history by rev, and sleeps
//! on the current rev when it has them all. Nothing is pushed, so a slow watch holds no queue and cannot miss a commit;
//! it can only fall behind what compaction has left.

use std::sync::Arc;

use futures::{StreamExt, future::BoxFuture, stream};
use tokio::sync::watch;

use super::{Change, Commit, Rev, StoreError, Watch};

/// Commits that a watch takes at once: few reads when it catches up, and little in memory for each watch.
pub(super) const CHUNK: usize = 128;

/// Access to earlier commits by revision.
pub(super) trait CommitHistory: Send + Sync + 'static {
    /// At most [`CHUNK`] commits from `from` on, without a gap; [`StoreError::Compacted`] where some are gone.
    fn read(self: Arc<Self>, from: Rev) -> BoxFuture<'static, Result<Vec<Commit>, StoreError>>;
}

struct Cursor<H> {
    history: Arc<H>,
    current: watch::Receiver<Rev>,
    prefix: String,
    next: Rev,
    ended: bool,
}

/// The stream of commits that touch `prefix`, from `from` on. It ends with [`StoreError::Closed`] when the sender of
/// `current` is gone.
pub(super) fn follow<H: CommitHistory>(
    history: Arc<H>,
    current: watch::Receiver<Rev>,
    prefix: &str,
    from: Rev,
) -> Watch {
    let cursor = Cursor { history, current, prefix: prefix.to_owned(), next: Rev(from.0.max(1)), ended: false };
    stream::unfold(cursor, |mut cursor| async move {
        let chunk = cursor.advance().await?;
        Some((stream::iter(chunk), cursor))
    })
    .flatten()
    .boxed()
}

impl<H: CommitHistory> Cursor<H> {
    async fn advance(&mut self) -> Option<Vec<Result<Commit, StoreError>>> {
        if self.ended {
            return None;
        }
        let next = self.next;
        if self.current.wait_for(|rev| *rev >= next).await.is_err() {
            self.ended = true;
            return Some(vec![Err(StoreError::Closed)]);
        }
        match Arc::clone(&self.history).read(self.next).await {
            Ok(commits) => {
                self.next = commits.last().map_or(self.next, |last| last.rev.next());
                Some(commits.into_iter().filter_map(|commit| self.matching(commit)).map(Ok).collect())
            }
            Err(error) => {
                self.ended = true;
                Some(vec![Err(error)])
            }
        }
    }

    fn matching(&self, mut commit: Commit) -> Option<Commit> {
        commit.changes.retain(|change: &Change| change.key().starts_with(&self.prefix));
        (!commit.changes.is_empty()).then_some(commit)
    }
}
