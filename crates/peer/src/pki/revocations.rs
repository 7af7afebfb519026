//! Certificates that no node takes any more, though their time has not ended.
//!
//! ```text
//! a person revokes ─▶ the store ─▶ the leader ─▶ every node ─▶ RevocationList ─┬▶ handshakes are refused
//!                                                                              └▶ connections that are open are cut
//! ```

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use arc_swap::ArcSwap;
use berth_spec::WorkerId;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{NodeCertificate, certifies};

/// Certificates that a revocation is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Revoked {
    /// Every certificate that is good for this node and valid from an earlier time than the revocation's.
    Node(WorkerId),
    /// The certificate with this serial number: lower-case hexadecimal digits without leading zeros.
    Serial(String),
}

/// A revocation. Times are seconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Revocation {
    /// Name of the revocation.
    pub id: String,
    /// Certificates that it is about.
    pub of: Revoked,
    /// Reason, in the words of whoever revoked.
    #[serde(default)]
    pub reason: String,
    /// Name of the principal that revoked.
    #[serde(default)]
    pub by: String,
    /// Time of the revocation.
    pub at: u64,
    /// Time at which the last of those certificates has ended anyway, and the revocation goes.
    pub until: u64,
}

impl Revocation {
    /// True if it is about this certificate.
    #[must_use]
    pub fn covers(&self, certificate: &NodeCertificate) -> bool {
        match &self.of {
            Revoked::Node(node) => certifies(&certificate.name, node) && certificate.from < self.at,
            Revoked::Serial(serial) => *serial == certificate.serial,
        }
    }
}

/// All revocations that hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocations {
    /// Revision of the store at which they were read; a later one replaces them.
    pub revision: u64,
    /// The revocations, in the store's order.
    pub items: Vec<Revocation>,
}

impl Revocations {
    /// The first revocation that covers this certificate; `None`: it holds.
    #[must_use]
    pub fn of(&self, certificate: &NodeCertificate) -> Option<&Revocation> {
        self.items.iter().find(|revocation| revocation.covers(certificate))
    }

    /// Earliest beginning of validity, in seconds since the Unix epoch, of a certificate with this name that no
    /// revocation covers.
    #[must_use]
    pub fn earliest(&self, node: &WorkerId) -> u64 {
        let about = |revocation: &&Revocation| matches!(&revocation.of, Revoked::Node(name) if certifies(node, name));
        self.items.iter().filter(about).map(|revocation| revocation.at).max().unwrap_or_default()
    }
}

/// The end of a node's own certificate before its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnRevocation {
    /// By a revocation that this node knows.
    Known(Revocation),
    /// By this controller, which refuses the certificate as a revoked one.
    Told(WorkerId),
}

/// The revocations that this process knows, and the connections that they can end.
#[derive(Debug)]
pub(crate) struct RevocationList {
    known: ArcSwap<Revocations>,
    /// Serial number of this node's certificate that a controller has refused as revoked, and that controller.
    told: Mutex<Option<(String, WorkerId)>>,
    open: Mutex<Open>,
    changed: watch::Sender<()>,
}

/// Connections with other nodes, by a number of this process.
#[derive(Debug, Default)]
struct Open {
    last: u64,
    connections: HashMap<u64, (Arc<NodeCertificate>, CancellationToken)>,
}

impl Default for RevocationList {
    fn default() -> Self {
        Self {
            known: ArcSwap::default(),
            told: Mutex::default(),
            open: Mutex::default(),
            changed: watch::Sender::new(()),
        }
    }
}

impl RevocationList {
    pub(crate) fn known(&self) -> Arc<Revocations> {
        self.known.load_full()
    }

    /// True if the certificate is revoked.
    pub(crate) fn covers(&self, certificate: &NodeCertificate) -> bool {
        self.known.load().of(certificate).is_some()
    }

    /// Uses these revocations from now on and cuts the connections that they are about.
    pub(crate) fn learn(&self, revocations: Revocations) {
        if *self.known.load_full() == revocations {
            return;
        }
        self.known.store(Arc::new(revocations));
        let known = self.known.load();
        for (certificate, cut) in self.open().connections.values() {
            if let Some(revocation) = known.of(certificate).filter(|_| !cut.is_cancelled()) {
                let (node, serial, id) = (&certificate.name, &certificate.serial, &revocation.id);
                tracing::warn!(event = "revoked_connection_cut", %node, serial, revocation = id, "a connection was cut: the certificate of its other end is revoked");
                cut.cancel();
            }
        }
        self.changed.send_replace(());
    }

    /// Notes that a controller has refused this certificate of this node as a revoked one.
    pub(crate) fn tell(&self, certificate: &NodeCertificate, by: &WorkerId) {
        let told = Some((certificate.serial.clone(), by.clone()));
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = told;
        self.changed.send_replace(());
    }

    /// The controller that has refused this certificate of this node as a revoked one.
    pub(crate) fn told(&self, certificate: &NodeCertificate) -> Option<WorkerId> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.as_ref().filter(|(serial, _)| *serial == certificate.serial).map(|(_, by)| by.clone())
    }

    /// Hears of every change.
    pub(crate) fn changed(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Notes an open connection: `cut` is cancelled when the certificate of its other end is revoked, also if that has
    /// happened since the handshake.
    pub(crate) fn opened(
        self: &Arc<Self>,
        certificate: &Arc<NodeCertificate>,
        cut: &CancellationToken,
    ) -> OpenConnection {
        let number = {
            let mut open = self.open();
            open.last += 1;
            let number = open.last;
            open.connections.insert(number, (Arc::clone(certificate), cut.clone()));
            number
        };
        if self.covers(certificate) {
            cut.cancel();
        }
        OpenConnection { list: Arc::clone(self), number }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that a revocation can end; dropped with it.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    list: Arc<RevocationList>,
    number: u64,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.list.open().connections.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use berth_spec::Roles;

    use super::*;

    fn certificate(name: &str, serial: &str, from: u64) -> Arc<NodeCertificate> {
        let name = WorkerId::new(name).expect("a name");
        let hosts = Vec::new();
        Arc::new(NodeCertificate { name, roles: Roles::ALL, hosts, serial: serial.to_owned(), from, until: 1_000 })
    }

    fn revocation(of: Revoked, at: u64) -> Revocation {
        Revocation { id: "r".to_owned(), of, reason: String::new(), by: String::new(), at, until: 1_000 }
    }

    #[test]
    fn a_name_is_revoked_up_to_a_time_and_a_serial_number_alone() {
        let node = |name: &str| Revoked::Node(WorkerId::new(name).expect("a name"));
        for (of, at, name, serial, from, covered) in [
            (node("a"), 100, "a", "1", 99, true),
            (node("a"), 100, "a", "1", 100, false),
            (node("a"), 100, "node-a", "1", 99, true),
            (node("node-a"), 100, "a", "1", 99, false),
            (node("a"), 100, "b", "1", 99, false),
            (Revoked::Serial("1f".to_owned()), 100, "a", "1f", 500, true),
            (Revoked::Serial("1f".to_owned()), 100, "a", "1e", 5, false),
        ] {
            let revocation = revocation(of, at);
            assert_eq!(revocation.covers(&certificate(name, serial, from)), covered, "{revocation:?} {name} {serial}");
        }
        let all = Revocations { revision: 1, items: vec![revocation(node("a"), 7), revocation(node("a"), 9)] };
        assert_eq!(all.earliest(&WorkerId::new("a").expect("a name")), 9);
        assert_eq!(all.earliest(&WorkerId::new("b").expect("a name")), 0);
    }

    #[test]
    fn what_a_controller_says_is_about_one_certificate() {
        let list = RevocationList::default();
        let by = WorkerId::new("leader").expect("a name");
        list.tell(&certificate("a", "1", 5), &by);
        assert_eq!(list.told(&certificate("a", "1", 5)), Some(by));
        assert_eq!(list.told(&certificate("a", "2", 5)), None, "it has been renewed since");
    }

    #[test]
    fn connections_are_cut_whether_they_open_before_or_after() {
        let list = Arc::new(RevocationList::default());
        let cut = |name: &str| {
            let token = CancellationToken::new();
            (list.opened(&certificate(name, "1", 5), &token), token)
        };
        let ((_a, a), (_b, b)) = (cut("a"), cut("b"));
        let (gone, _) = cut("a");
        drop(gone);
        let of = Revoked::Node(WorkerId::new("a").expect("a name"));
        list.learn(Revocations { revision: 1, items: vec![revocation(of, 10)] });
        assert!(a.is_cancelled() && !b.is_cancelled());
        assert!(cut("a").1.is_cancelled() && !cut("b").1.is_cancelled());
        assert_eq!(list.open().connections.len(), 2);
    }
}
