//! Follows the objects of the store: all of them at one revision, then every change after it.
//!
//! ```text
//! list (pages of one revision) ──▶ watch from revision + 1 ──▶ changes
//!   ▲                                   │ compacted, or broken
//!   └───────────────────────────────────┘  the controller compares: nothing is lost, and nothing is done twice
//! ```

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use berth_control::store::{Change, MAX_PAGE, Page, Rev, StoreError};
use futures::StreamExt as _;
use tokio::sync::mpsc;

use crate::{controller::Event, deployment::Declared, objects::Objects};

/// Pause after an error: long enough for a store that is away.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Pause between two looks whether the store answers: an outage is told within some seconds.
const POLL_INTERVAL: Duration = Duration::from_secs(4);

/// The longest that a store takes to answer a look. Together with the pause, people hear of its end within ten seconds.
const PATIENCE: Duration = Duration::from_secs(4);

/// An update from the store.
#[derive(Debug)]
pub(crate) enum StoreUpdate {
    /// Something for the controller, as of a revision.
    Event(Event, Rev),
    /// The store does not answer.
    Unavailable(String),
    /// The store answers.
    Available,
}

/// Follows until nobody takes the news any more.
pub(crate) async fn follow(objects: Objects, news: mpsc::Sender<StoreUpdate>) {
    let failing = AtomicBool::new(false);
    tokio::select! {
        () = rounds(&objects, &news, &failing) => {}
        () = look(&objects, &news, &failing) => {}
    }
}

/// Asks the store now and then: a watch that breaks is opened again in silence, however long that takes. While `failing`, the rounds
/// tell the trouble: a store may answer a look and refuse the rest.
async fn look(objects: &Objects, news: &mpsc::Sender<StoreUpdate>, failing: &AtomicBool) {
    let mut away = false;
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        if failing.load(Ordering::Relaxed) {
            away = false;
            continue;
        }
        let one = Page { limit: 1, ..Page::default() };
        let told = match tokio::time::timeout(PATIENCE, objects.store.list(objects.prefix(), one)).await {
            Ok(Ok(_)) => StoreUpdate::Available,
            Ok(Err(error)) => StoreUpdate::Unavailable(error.to_string()),
            Err(_) => StoreUpdate::Unavailable(format!("the store has not answered for {} s", PATIENCE.as_secs())),
        };
        if let StoreUpdate::Unavailable(error) = &told
            && !away
        {
            tracing::warn!(event = "functions_store_away", error, "functions go on serving; retrying");
        }
        away = matches!(told, StoreUpdate::Unavailable(_));
        // The rounds may have failed meanwhile.
        if failing.load(Ordering::Relaxed) {
            continue;
        }
        if news.send(told).await.is_err() {
            return;
        }
    }
}

async fn rounds(objects: &Objects, news: &mpsc::Sender<StoreUpdate>, failing: &AtomicBool) {
    loop {
        match round(objects, news, failing).await {
            Ok(()) => return,
            Err(StoreError::Compacted { oldest }) => {
                tracing::info!(
                    event = "functions_relist",
                    oldest = oldest.0,
                    "the history is compacted: listing again"
                );
            }
            Err(error) => {
                tracing::warn!(event = "functions_store_away", %error, "functions go on serving; retrying");
                failing.store(true, Ordering::Relaxed);
                if news.send(StoreUpdate::Unavailable(error.to_string())).await.is_err() {
                    return;
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}

/// One listing and the watch after it. Ends well when nobody listens.
async fn round(objects: &Objects, news: &mpsc::Sender<StoreUpdate>, failing: &AtomicBool) -> Result<(), StoreError> {
    let (mut found, mut page) = (Vec::new(), Page { limit: MAX_PAGE, ..Page::default() });
    let at = loop {
        let listing = objects.store.list(objects.prefix(), page.clone()).await?;
        let at = if page.at == Rev::NONE { listing.at } else { page.at };
        page.after = listing.entries.last().map(|entry| entry.key.clone());
        page.at = at;
        for entry in listing.entries {
            let key = objects.name_of(&entry.key);
            found.push((key.to_owned(), Declared::read(key, &entry.value, entry.modified)));
        }
        if !listing.more {
            break at;
        }
    };
    if news.send(StoreUpdate::Event(Event::Listed(found), at)).await.is_err() {
        return Ok(());
    }
    let mut watch = objects.store.watch(objects.prefix(), at.next()).await?;
    failing.store(false, Ordering::Relaxed);
    if news.send(StoreUpdate::Available).await.is_err() {
        return Ok(());
    }
    while let Some(commit) = watch.next().await {
        let commit = commit?;
        for change in commit.changes {
            let event = match change {
                Change::Put(entry) => {
                    let key = objects.name_of(&entry.key);
                    Event::Put(key.to_owned(), Box::new(Declared::read(key, &entry.value, entry.modified)))
                }
                Change::Deleted { key } => Event::Deleted(objects.name_of(&key).to_owned()),
            };
            if news.send(StoreUpdate::Event(event, commit.rev)).await.is_err() {
                return Ok(());
            }
        }
    }
    Err(StoreError::Closed)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_control::store::{Entry, Listing, Outcome, Store, Txn, Watch, memory::MemoryStore};
    use futures::future::BoxFuture;
    use tokio::task::JoinSet;

    use super::*;

    /// A store that answers a look, and refuses the listing of all until it is mended.
    #[derive(Default)]
    struct Partial {
        store: MemoryStore,
        mended: AtomicBool,
    }

    impl Store for Partial {
        fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
            self.store.get(key)
        }

        fn list<'a>(&'a self, prefix: &'a str, page: Page) -> BoxFuture<'a, Result<Listing, StoreError>> {
            if page.limit == 1 || self.mended.load(Ordering::Relaxed) {
                return self.store.list(prefix, page);
            }
            Box::pin(async { Err(StoreError::Closed) })
        }

        fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<Outcome, StoreError>> {
            self.store.commit(txn)
        }

        fn watch<'a>(&'a self, prefix: &'a str, from: Rev) -> BoxFuture<'a, Result<Watch, StoreError>> {
            self.store.watch(prefix, from)
        }

        fn rev(&self) -> BoxFuture<'_, Result<Rev, StoreError>> {
            self.store.rev()
        }

        fn compact(&self, before: Rev) -> BoxFuture<'_, Result<(), StoreError>> {
            self.store.compact(before)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_does_not_hide_a_listing_that_fails() {
        let store = Arc::new(Partial::default());
        let (news, mut heard) = mpsc::channel(64);
        let mut following = JoinSet::new();
        following.spawn(follow(Objects::all_of(Arc::<Partial>::clone(&store)), news));
        let end = tokio::time::Instant::now() + POLL_INTERVAL * 5;
        while let Ok(told) = tokio::time::timeout_at(end, heard.recv()).await {
            assert!(matches!(told, Some(StoreUpdate::Unavailable(_))), "{told:?}");
        }
        store.mended.store(true, Ordering::Relaxed);
        let mut told = Vec::new();
        while !matches!(told.last(), Some(StoreUpdate::Available)) {
            told.push(heard.recv().await.expect("news"));
        }
        let is_over = matches!(told.as_slice(), [.., StoreUpdate::Event(Event::Listed(_), _), StoreUpdate::Available]);
        assert!(is_over, "{told:?}");
        following.shutdown().await;
    }
}
