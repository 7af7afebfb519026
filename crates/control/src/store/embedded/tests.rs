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
use redb::{Database, StorageBackend};

use tokio::sync::{oneshot, watch};

use super::{
    EmbeddedStore, failed,
    file::File,
    writer::{Command, commit_group},
};
use crate::store::{Op, Outcome, Rev, Store, StoreError, Txn};

/// A file in memory that survives being closed; it takes no writes while `full`.
#[derive(Debug, Clone, Default)]
struct Disk {
    bytes: Arc<RwLock<Vec<u8>>>,
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
        self.check()
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
    let (current, _) = watch::channel(rev);
    let ((left, _), (waiting, mut answer)) = (oneshot::channel(), oneshot::channel());
    let mut group = vec![
        Command::Commit { txn: put("/left"), reply: left },
        Command::Commit { txn: put("/waited-for"), reply: waiting },
    ];
    commit_group(&file, &mut group, &current);
    assert!(matches!(answer.try_recv(), Ok(Ok(Outcome::Committed(Rev(1))))));
    assert!(file.get("/left").expect("it reads").is_none());
}
