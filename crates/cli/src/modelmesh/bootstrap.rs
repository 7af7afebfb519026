//! The store as the meeting place of a service's instances: the authority that vouches for them, and their addresses.
//!
//! ```text
//! authority   created by the first instance, if it is not there         (CA, its key, the key of gossip)
//! nodes/…     where each instance gossips, for as long as it lives       (a lease)
//! ```
//! The key of the authority lies in the store as it is: whoever can read these keys can join the cluster. Protect them as
//! the cluster itself, by a user of etcd and TLS; ModelMesh's own instances trusted whoever reached their port.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use berth_control::store::{
    Compare, Op, Outcome, Page, Rev, Store as _, Txn,
    etcd::{EtcdConfig, EtcdStore, Lease},
};
use berth_peer::pki::{Authority, CA, CA_KEY, GOSSIP_KEY};
use berth_spec::WorkerId;
use fs_err as fs;
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;

/// The key of the authority.
const AUTHORITY: &str = "authority";
/// The keys of instances begin so.
const NODES: &str = "nodes/";

/// The life of an instance's key after its last word: long enough for a busy machine, short enough that few dead instances
/// are looked for.
const LIFE: Duration = Duration::from_secs(30);

/// The pause between words: two may be lost within the life of a key.
const WORD: Duration = Duration::from_secs(8);

/// The time that the store has for its first answer: an instance without one ends while somebody still looks.
const FIRST_ANSWER: Duration = Duration::from_secs(3);

/// The time in which the store hears that an instance goes; later the key ends by itself.
pub(super) const FAREWELL: Duration = Duration::from_secs(1);

/// An instance's way into its cluster.
pub(super) struct Bootstrap {
    store: EtcdStore,
}

impl Bootstrap {
    /// Connects. A store that does not answer is an error at once: nothing can be served without it.
    pub(super) async fn connect(config: EtcdConfig) -> Result<Self, Failure> {
        let endpoints = config.endpoints.join(",");
        let silent = |error: String| Failure::Failed(format!("the store at {endpoints} does not answer: {error}"));
        match tokio::time::timeout(FIRST_ANSWER, EtcdStore::connect(config)).await {
            Ok(Ok(store)) => Ok(Self { store }),
            Ok(Err(error)) => Err(silent(error.to_string())),
            Err(_) => Err(silent(format!("nothing within {} s", FIRST_ANSWER.as_secs()))),
        }
    }

    /// Puts the cluster's authority into `folder`, and issues this instance's certificate. Gives its folder.
    pub(super) async fn certificate(&self, folder: &Path, name: &WorkerId) -> Result<PathBuf, Failure> {
        let files = match self.authority().await? {
            Some(files) => files,
            None => {
                let own = folder.join("own");
                Authority::create(&own)
                    .map_err(|error| Failure::doing("cannot make a certificate authority", error))?;
                self.offer(&own).await?
            }
        };
        let pki = folder.join("pki");
        fs::create_dir_all(&pki)?;
        for file in [CA, CA_KEY, GOSSIP_KEY] {
            let text =
                files.get(file).ok_or_else(|| Failure::Failed(format!("the store's authority has no {file}")))?;
            fs::write(pki.join(file), text)?;
        }
        let authority =
            Authority::open(&pki).map_err(|error| Failure::doing("the store's authority is unusable", error))?;
        authority.issue(name, &[]).map_err(|error| Failure::doing("cannot issue a certificate", error))
    }

    async fn authority(&self) -> Result<Option<BTreeMap<String, String>>, Failure> {
        let entry = self.store.get(AUTHORITY).await.map_err(|error| Failure::doing("cannot read the store", error))?;
        let read = |entry: berth_control::store::Entry| {
            serde_json::from_slice(&entry.value)
                .map_err(|error| Failure::doing("the store's authority is unreadable", error))
        };
        entry.map(read).transpose()
    }

    /// Offers an authority to the cluster; gives the one that it has.
    async fn offer(&self, own: &Path) -> Result<BTreeMap<String, String>, Failure> {
        let mut files = BTreeMap::new();
        for file in [CA, CA_KEY, GOSSIP_KEY] {
            files.insert(file.to_owned(), fs::read_to_string(own.join(file))?);
        }
        let value = serde_json::to_vec(&files).map_err(|error| Failure::doing("cannot write an authority", error))?;
        let txn = Txn {
            compare: vec![Compare::Created { key: AUTHORITY.to_owned(), rev: Rev::NONE }],
            ops: vec![Op::Put { key: AUTHORITY.to_owned(), value: value.into() }],
        };
        match self.store.commit(txn).await {
            Ok(Outcome::Committed { .. }) => Ok(files),
            // Another one was faster, or the answer was lost: what is there now counts.
            _ => self.authority().await?.ok_or_else(|| Failure::Failed("the store keeps no authority".to_owned())),
        }
    }

    /// Tells where this instance gossips, then reads where the others do.
    pub(super) async fn meet(
        &self,
        name: &WorkerId,
        gossip: SocketAddr,
    ) -> Result<(Lease, String, Vec<SocketAddr>), Failure> {
        let wrong = |error| Failure::doing("cannot tell the store of this instance", error);
        let lease = self.store.grant(LIFE).await.map_err(wrong)?;
        let key = format!("{NODES}{name}/{}", lease.id);
        self.store.claim(&key, gossip.to_string().into(), lease.id).await.map_err(wrong)?;
        let listing = self.store.list(NODES, Page { after: None, limit: 0, at: Rev::NONE }).await.map_err(wrong)?;
        let others = listing.entries.iter().filter(|entry| entry.key != key);
        let at = others.filter_map(|entry| str::from_utf8(&entry.value).ok()?.parse().ok()).collect();
        Ok((lease, key, at))
    }

    /// Keeps the instance's key, on a thread of its own, until `over`. What is given ends when the key is gone, so that the next instance
    /// looks for none that went.
    pub(super) fn stay(
        config: EtcdConfig,
        mut lease: Lease,
        key: String,
        gossip: SocketAddr,
        over: CancellationToken,
    ) -> Result<mpsc::Receiver<()>, Failure> {
        let (gone, word) = mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let keep = async move {
            let store = loop {
                match EtcdStore::connect(config.clone()).await {
                    Ok(store) => break store,
                    Err(error) => tracing::warn!(event = "store_unreachable", %error),
                }
                if over.run_until_cancelled(tokio::time::sleep(WORD)).await.is_none() {
                    return;
                }
            };
            while over.run_until_cancelled(tokio::time::sleep(WORD)).await.is_some() {
                match store.keep_alive(lease.id).await {
                    Ok(Some(_)) => {}
                    Ok(None) => {
                        // The store has forgotten it: it comes back under a new lease.
                        let Ok(again) = store.grant(LIFE).await else { continue };
                        lease = again;
                        let told = store.claim(&key, gossip.to_string().into(), lease.id).await;
                        tracing::warn!(event = "instance_told_again", key, ok = told.is_ok());
                    }
                    Err(error) => tracing::warn!(event = "store_unreachable", %error),
                }
            }
            let _ = store.revoke(lease.id).await;
            drop(gone);
        };
        thread::Builder::new().name("modelmesh-store".to_owned()).spawn(move || runtime.block_on(keep))?;
        Ok(word)
    }
}
