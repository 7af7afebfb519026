//! Follows the objects of the store: all of them at one revision, then every change after it.
//!
//! ```text
//! list (pages of one revision) ──▶ watch from revision + 1 ──▶ changes
//!   ▲                                   │ compacted, or broken
//!   └───────────────────────────────────┘  the controller compares: nothing is lost, and nothing is done twice
//! ```

use std::time::Duration;

use berth_control::store::{Change, MAX_PAGE, Page, Rev, StoreError};
use futures::StreamExt as _;
use tokio::sync::mpsc;

use crate::{controller::Event, deployment::Declared, objects::Objects};

/// Pause after an error: long enough for a store that is away.
const AGAIN: Duration = Duration::from_secs(1);

/// Pause between two looks whether the store answers.
const LOOK: Duration = Duration::from_secs(4);

/// The longest that a store takes to answer a look. Together with the pause, people hear of its end within ten seconds.
const PATIENCE: Duration = Duration::from_secs(4);

/// News of the store.
#[derive(Debug)]
pub(crate) enum News {
    /// Something for the controller, as of a revision.
    Event(Event, Rev),
    /// The store does not answer.
    Trouble(String),
    /// The store answers.
    Answers,
}

/// Follows until nobody takes the news any more.
pub(crate) async fn follow(objects: Objects, news: mpsc::Sender<News>) {
    tokio::select! {
        () = rounds(&objects, &news) => {}
        () = look(&objects, &news) => {}
    }
}

/// Asks the store now and then: a watch that breaks is opened again in silence, however long that takes.
async fn look(objects: &Objects, news: &mpsc::Sender<News>) {
    let mut away = false;
    loop {
        tokio::time::sleep(LOOK).await;
        let one = Page { limit: 1, ..Page::default() };
        let told = match tokio::time::timeout(PATIENCE, objects.store.list(objects.prefix(), one)).await {
            Ok(Ok(_)) => News::Answers,
            Ok(Err(error)) => News::Trouble(error.to_string()),
            Err(_) => News::Trouble(format!("the store has not answered for {} s", PATIENCE.as_secs())),
        };
        if let News::Trouble(error) = &told
            && !away
        {
            tracing::warn!(event = "functions_store_away", error, "functions go on serving; retrying");
        }
        away = matches!(told, News::Trouble(_));
        if news.send(told).await.is_err() {
            return;
        }
    }
}

async fn rounds(objects: &Objects, news: &mpsc::Sender<News>) {
    loop {
        match round(objects, news).await {
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
                if news.send(News::Trouble(error.to_string())).await.is_err() {
                    return;
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// One listing and the watch after it. Ends well when nobody listens.
async fn round(objects: &Objects, news: &mpsc::Sender<News>) -> Result<(), StoreError> {
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
    if news.send(News::Event(Event::Listed(found), at)).await.is_err() {
        return Ok(());
    }
    let mut watch = objects.store.watch(objects.prefix(), at.next()).await?;
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
            if news.send(News::Event(event, commit.rev)).await.is_err() {
                return Ok(());
            }
        }
    }
    Err(StoreError::Closed)
}
