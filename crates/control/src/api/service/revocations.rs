//! Revocations of node certificates: made, listed, taken back.

use berth_peer::{
    Identity,
    pki::{Revocation, Revoked},
};
use berth_spec::{Class, Time, WorkerId};
use berth_wire::{
    access::Secret,
    api::{
        API_VERSION, Kind as _, List, Metadata, NewRevocation, RevocationSpec, RevocationStatus, RevocationView,
        Timestamp,
    },
};

use super::Service;
use crate::api::{error::ApiError, tokens::now};

/// The most revocations. All of them are in the memory of every node, and travel whole.
const MAX_REVOCATIONS: usize = 5_000;

/// Longest reason, in bytes: a sentence. Every node holds all of them in memory.
const MAX_REASON_BYTES: usize = 256;

/// The most digits of a serial number: 20 bytes (RFC 5280, section 4.1.2.2).
const DIGITS: usize = 40;

/// Longest validity of a certificate, in seconds: the ten years of a CA.
const MAX_VALIDITY_SECONDS: u64 = 10 * 366 * 24 * 3_600;

impl Service {
    /// Revokes certificates: here at once, on the other nodes within seconds.
    pub(crate) async fn revoke(&self, by: &str, new: NewRevocation) -> Result<RevocationView, ApiError> {
        let identity = self.identity()?;
        let of = revoked(&new.spec)?;
        let all = self.handle.revocations().await?;
        if all.items.len() >= MAX_REVOCATIONS {
            let message =
                format!("there are {MAX_REVOCATIONS} revocations, as many as may be: give the cluster another CA");
            return Err(ApiError::new(Class::Conflict, message));
        }
        let now = now();
        let until = new
            .until
            .map_or(now + MAX_VALIDITY_SECONDS, |until| (until.0.0 / 1_000_000_000).min(now + MAX_VALIDITY_SECONDS));
        if until <= now {
            let message = "the certificate has ended: nobody takes it anyway".to_owned();
            return Err(ApiError::invalid("until", message, "leave it out, or revoke another"));
        }
        let revocation = Revocation {
            id: Secret::generate().id().to_owned(),
            of,
            reason: new.spec.reason,
            by: by.to_owned(),
            at: now,
            until,
        };
        self.handle.add_revocation(revocation.clone()).await?;
        identity.learn_revocations(self.handle.revocations().await?);
        let (id, of, by) = (&revocation.id, &revocation.of, &revocation.by);
        tracing::info!(event = "certificates_revoked", id, ?of, by, "certificates were revoked");
        Ok(view(&revocation))
    }

    /// All revocations, by their time.
    pub(crate) async fn revocations(&self) -> Result<List<RevocationView>, ApiError> {
        self.identity()?;
        let mut all = self.handle.revocations().await?.items;
        all.sort_by(|one, other| (one.at, &one.id).cmp(&(other.at, &other.id)));
        Ok(List::of(all.iter().map(view).collect()))
    }

    /// Takes a revocation back: its certificates are taken again.
    pub(crate) async fn reinstate(&self, by: &str, id: &str) -> Result<RevocationView, ApiError> {
        let identity = self.identity()?;
        let all = self.handle.revocations().await?;
        let Some(revocation) = all.items.iter().find(|revocation| revocation.id == id) else {
            let message = format!("there is no revocation {id:?}: `berth pki revocations` shows them");
            return Err(ApiError::not_found(message));
        };
        self.handle.remove_revocations([id]).await?;
        identity.learn_revocations(self.handle.revocations().await?);
        tracing::info!(event = "certificates_reinstated", id, by, "a revocation was taken back");
        Ok(view(revocation))
    }

    /// This node's certificate. A server that is alone has none.
    fn identity(&self) -> Result<&Identity, ApiError> {
        let peers = self.peer_queries.0.as_ref();
        peers.map(berth_peer::Peers::identity).ok_or_else(|| {
            let message = "this server is alone: there are no nodes with certificates".to_owned();
            ApiError::new(Class::Conflict, message)
        })
    }
}

fn revoked(spec: &RevocationSpec) -> Result<Revoked, ApiError> {
    if spec.reason.len() > MAX_REASON_BYTES || spec.reason.chars().any(char::is_control) {
        let message = format!("the reason may have {MAX_REASON_BYTES} bytes, in one line");
        return Err(ApiError::invalid("spec.reason", message, "shorten it"));
    }
    match (&spec.node, &spec.serial) {
        (Some(node), None) => WorkerId::new(node).map(Revoked::Node).map_err(|error| {
            ApiError::invalid("spec.node", format!("{node:?} is not the name of a node: {error}"), "write its name")
        }),
        (None, Some(serial)) => {
            let digits: String = serial.chars().filter(|char| *char != ':').collect();
            let digits = digits.trim_start_matches('0').to_ascii_lowercase();
            if digits.is_empty() || digits.len() > DIGITS || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                let message = format!("{serial:?} is not a serial number");
                return Err(ApiError::invalid("spec.serial", message, "take it from `berth pki show`"));
            }
            Ok(Revoked::Serial(digits))
        }
        _ => {
            let message = "a revocation is for a node or for a serial number".to_owned();
            Err(ApiError::invalid("spec", message, "write spec.node or spec.serial, one of them"))
        }
    }
}

fn view(revocation: &Revocation) -> RevocationView {
    let at = |seconds: u64| Some(Timestamp(Time(seconds.saturating_mul(1_000_000_000))));
    let (node, serial) = match &revocation.of {
        Revoked::Node(node) => (Some(node.to_string()), None),
        Revoked::Serial(serial) => (None, Some(serial.clone())),
    };
    RevocationView {
        api_version: API_VERSION.to_owned(),
        kind: RevocationView::KIND.to_owned(),
        metadata: Metadata { name: revocation.id.clone(), ..Metadata::default() },
        spec: RevocationSpec { node, serial, reason: revocation.reason.clone() },
        status: RevocationStatus {
            created_by: revocation.by.clone(),
            created_at: at(revocation.at),
            until: at(revocation.until),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_revoked_is_a_node_or_a_serial_number() {
        let spec = |node: Option<&str>, serial: Option<&str>| RevocationSpec {
            node: node.map(str::to_owned),
            serial: serial.map(str::to_owned),
            reason: String::new(),
        };
        let serial = revoked(&spec(None, Some("00:1F:a0"))).expect("a serial number");
        assert_eq!(serial, Revoked::Serial("1fa0".to_owned()));
        assert!(matches!(revoked(&spec(Some("gpu-1"), None)), Ok(Revoked::Node(node)) if node.as_str() == "gpu-1"));
        let long = "1".repeat(41);
        for (node, serial) in [
            (None, None),
            (Some("a"), Some("1")),
            (Some(""), None),
            (None, Some("")),
            (None, Some("xyz")),
            (None, Some(&*long)),
        ] {
            assert!(revoked(&spec(node, serial)).is_err(), "{node:?} {serial:?}");
        }
    }
}
