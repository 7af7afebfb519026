//! A disk that fails, and one that works again.

use std::{
    io,
    path::Path,
    sync::{
        Arc, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use futures::FutureExt as _;
use redb::{Database, Durability, StorageBackend};

use tokio::sync::{oneshot, watch};

use super::{
    EmbeddedStore, failed,
    file::File,
    writer::{Command, commit_group},
    writes::Writes,
};
use crate::store::{Op, Outcome, Rev, Store, StoreError, Txn};

/// A file in memory that survives being closed; it takes no writes while `full`.
#[derive(Debug, Clone, Default)]
struct Disk {
    bytes: Arc<RwLock<Vec<u8>>>,
    /// The bytes as they were when they were last synced.
    synced: Arc<RwLock<Vec<u8>>>,
    full: Arc<AtomicBool>,
}

impl Disk {
    fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::SeqCst);
    }

    fn check(&self) -> io::Result<()> {
        if self.full.load(Ordering::SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn store(&self) -> EmbeddedStore {
        let disk = self.clone();
        let opener = move || Database::builder().create_with_backend(disk.clone()).map_err(failed);
        EmbeddedStore::start(Box::new(opener), Path::new("memory")).expect("it opens")
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.read().expect("not poisoned").len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).expect("small");
        let bytes = self.bytes.read().expect("not poisoned");
        let found = bytes.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check()?;
        self.bytes.write().expect("not poisoned").resize(usize::try_from(len).expect("small"), 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check()?;
        let bytes = self.bytes.read().expect("not poisoned");
        self.synced.write().expect("not poisoned").clone_from(&bytes);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check()?;
        let from = usize::try_from(offset).expect("small");
        self.bytes.write().expect("not poisoned")[from..from + data.len()].copy_from_slice(data);
        Ok(())
    }
}

fn put(key: &str) -> Txn {
    let op = Op::Put { key: key.to_owned(), value: Bytes::from_static(b"x") };
    Txn { compare: Vec::new(), ops: vec![op] }
}

#[tokio::test]
async fn a_full_disk_is_told_to_everyone_and_forgotten_once_there_is_room() {
    let disk = Disk::default();
    let store = disk.store();
    assert_eq!(store.commit(put("/a")).await.expect("it commits"), Outcome::Committed(Rev(1)));
    disk.set_full(true);
    for _ in 0..3 {
        let all = futures::future::join_all((0..20).map(|_| store.commit(put("/b")))).await;
        for answer in all {
            assert!(matches!(answer, Err(StoreError::Failed(_))), "{answer:?}");
        }
    }
    disk.set_full(false);
    let Outcome::Committed(rev) = store.commit(put("/c")).await.expect("there is room again") else {
        panic!("nothing was compared")
    };
    assert!(rev > Rev(1));
    assert!(store.get("/a").await.expect("it reads").is_some());
    assert_eq!(store.get("/c").await.expect("it reads").map(|entry| entry.modified), Some(rev));
    assert_eq!(store.rev().await.expect("it is known"), rev);
}

#[test]
fn what_nobody_waits_for_is_not_written() {
    let disk = Disk::default();
    let opener = move || Database::builder().create_with_backend(disk.clone()).map_err(failed);
    let (file, rev) = File::open(Box::new(opener), Path::new("memory")).expect("it opens");
    let file = Arc::new(file);
    let writes = Writes::new(Arc::clone(&file), watch::Sender::new(rev));
    let ((left, _), (waiting, mut answer)) = (oneshot::channel(), oneshot::channel());
    let mut group = vec![
        Command::Commit { txn: put("/left"), durability: Durability::Immediate, reply: left },
        Command::Commit { txn: put("/waited-for"), durability: Durability::Immediate, reply: waiting },
    ];
    commit_group(&writes, &mut group);
    assert!(matches!(answer.try_recv(), Ok(Ok(Outcome::Committed(Rev(1))))));
    assert!(file.get("/left").expect("it reads").is_none());
}

/// The value stored under a key, after a power cut: whatever was not synced is gone.
async fn after_a_power_cut(disk: &Disk, key: &str) -> Option<Rev> {
    let bytes = disk.synced.read().expect("not poisoned").clone();
    let survivor = Disk { bytes: Arc::new(RwLock::new(bytes)), ..Disk::default() }.store();
    survivor.get(key).await.expect("it reads").map(|entry| entry.modified)
}

#[tokio::test]
async fn a_relaxed_commit_is_seen_at_once_and_durable_with_the_next_flush() {
    let disk = Disk::default();
    let store = disk.store();
    assert_eq!(store.commit(put("/a")).await.expect("it commits"), Outcome::Committed(Rev(1)));
    assert_eq!(store.commit_relaxed(put("/b")).await.expect("it commits"), Outcome::Committed(Rev(2)));
    assert_eq!(store.get("/b").await.expect("it reads").map(|entry| entry.modified), Some(Rev(2)));
    assert_eq!(store.commit(put("/c")).await.expect("it commits"), Outcome::Committed(Rev(3)));
    assert_eq!(after_a_power_cut(&disk, "/b").await, Some(Rev(2)), "the next commit made it durable");
    store.commit_relaxed(put("/d")).await.expect("it commits");
    drop(store);
    assert_eq!(after_a_power_cut(&disk, "/d").await, Some(Rev(4)), "closing made it durable");
}

#[test]
fn a_lost_relaxed_commit_gives_its_rev_to_nobody_else() {
    let disk = Disk::default();
    let opened = disk.clone();
    let opener = move || Database::builder().create_with_backend(opened.clone()).map_err(failed);
    let (file, rev) = File::open(Box::new(opener), Path::new("memory")).expect("it opens");
    let (current, seen) = watch::channel(rev);
    let writes = Writes::new(Arc::new(file), current);
    let commit = |key: &str, durability| {
        let (reply, mut answer) = oneshot::channel();
        let mut group = vec![Command::Commit { txn: put(key), durability, reply }];
        commit_group(&writes, &mut group);
        answer.try_recv().expect("an answer")
    };
    assert_eq!(commit("/a", Durability::Immediate).expect("it commits"), Outcome::Committed(Rev(1)));
    assert_eq!(commit("/lost", Durability::None).expect("it commits"), Outcome::Committed(Rev(2)));
    disk.set_full(true);
    commit("/b", Durability::Immediate).expect_err("the disk is full");
    disk.set_full(false);
    let after = commit("/b", Durability::Immediate).expect("there is room again");
    assert!(matches!(after, Outcome::Committed(rev) if rev > Rev(2)), "{after:?}");
    assert!(*seen.borrow() > Rev(2));
}

#[tokio::test]
async fn a_relaxed_commit_waits_for_no_thread_and_is_flushed_all_the_same() {
    let disk = Disk::default();
    let store = disk.store();
    let committed = store.commit_relaxed(put("/a")).now_or_never().expect("nothing else is written");
    assert_eq!(committed.expect("it commits"), Outcome::Committed(Rev(1)));
    let writes = store.writes.upgrade().expect("the thread lives");
    while writes.unflushed().is_some() {
        tokio::task::yield_now().await;
    }
    assert_eq!(after_a_power_cut(&disk, "/a").await, Some(Rev(1)), "it was flushed");
    disk.set_full(true);
    store.commit(put("/b")).await.expect_err("the disk is full");
    assert!(!store.file.is_open());
    writes.try_relaxed(put("/c")).expect_err("who opens the file again waits for the disk");
}
