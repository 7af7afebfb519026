//! kill -9 loses no acknowledged write. This binary runs itself as the victim.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use berth_control::store::{Page, Rev, Store, embedded::EmbeddedStore};
use futures::StreamExt;

use crate::fixture::put_all;

/// The folder in which the victim writes; it is only a victim where this is set.
const FOLDER: &str = "BERTH_TEST_CRASH_FOLDER";

/// Acknowledged writes before the victim is killed, life after life.
const LIVES: [usize; 6] = [1, 3, 40, 200, 7, 90];

#[test]
fn killed_at_any_moment_it_has_every_acknowledged_write() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut acknowledged: Vec<String> = Vec::new();
    for (life, writes) in LIVES.into_iter().enumerate() {
        acknowledged.extend(live_and_die(folder.path(), life, writes));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let (rev, lost) = runtime.block_on(async {
            let store = EmbeddedStore::open(folder.path()).expect("it opens after a crash");
            let mut lost = Vec::new();
            for key in &acknowledged {
                if store.get(key).await.expect("a read").is_none() {
                    lost.push(key.clone());
                }
            }
            let rev = store.rev().await.expect("a rev");
            let last = store.watch("/", rev).await.expect("a watch").next().await.expect("open").expect("a commit");
            assert_eq!(last.rev, rev, "the log ends where the entries end");
            let listing = store.list("/", Page { limit: 1, ..Page::default() }).await.expect("a page");
            assert_eq!(listing.at, rev);
            (rev, lost)
        });
        assert_eq!(lost, Vec::<String>::new(), "life {life}");
        assert!(rev >= Rev(acknowledged.len() as u64), "life {life}: {rev} revs");
    }
    assert!(acknowledged.len() >= LIVES.iter().sum());
}

/// Runs the victim until it has acknowledged so many writes, kills it, and gives all that it acknowledged.
fn live_and_die(folder: &Path, life: usize, writes: usize) -> Vec<String> {
    let mut victim = Command::new(std::env::current_exe().expect("this binary"))
        .args(["crash::victim", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .env("BERTH_TEST_CRASH_LIFE", life.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let lines = BufReader::new(victim.stdout.take().expect("a pipe")).lines();
    let mut keys = Vec::new();
    for line in lines {
        let line = line.expect("text");
        let Some((_, key)) = line.split_once("stored ") else { continue };
        keys.push(key.to_owned());
        if keys.len() == writes {
            // SIGKILL; what is in the pipe by then was acknowledged, too, and is read on.
            victim.kill().expect("it dies");
        }
    }
    victim.wait().expect("it is dead");
    keys
}

/// Writes for ever from several tasks, and says after each acknowledgement what was stored.
#[test]
#[ignore = "run by the test above, as another process"]
fn victim() {
    let (Some(folder), Some(life)) = (std::env::var_os(FOLDER), std::env::var_os("BERTH_TEST_CRASH_LIFE")) else {
        return;
    };
    let life = life.to_string_lossy().into_owned();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(Path::new(&folder)).expect("it opens"));
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..8 {
            let (store, life) = (Arc::clone(&store), life.clone());
            writers.spawn(async move {
                for count in 0.. {
                    let key = format!("/{life}/{writer}/{count}");
                    put_all(&*store, &[&key]).await;
                    println!("stored {key}");
                }
            });
        }
        writers.join_next().await;
    });
}
