//! What is asked of Vault, and what came back.

use std::{fmt, time::Duration};

use berth_spec::Secret;
use zeroize::Zeroizing;

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Which, for its answer.
    pub id: u64,
    /// What.
    pub ask: VaultRequest,
    /// With this token; logging in needs none.
    pub token: Option<Secret>,
    /// In this namespace.
    pub namespace: Option<String>,
    /// On whose behalf: Vault's audit log can record the header `X-Berth-Worker`.
    pub worker: Option<String>,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VaultRequest {
    /// A token, by AppRole. The driver knows the role and its secret.
    LogIn,
    /// More time for our token.
    RenewToken,
    /// Whether our token is good.
    LookUpToken,
    /// The secret at this path below `/v1/`.
    Read(String),
    /// More time for a lease.
    Renew {
        /// The lease.
        lease: String,
        /// How much would be nice. Vault decides.
        increment: Duration,
    },
    /// The end of a lease.
    Revoke(String),
    /// The end of our token, and of all that was leased with it.
    RevokeToken,
}

/// What Vault answered: the status of HTTP and the body, which may hold secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("status", &self.status).finish_non_exhaustive()
    }
}
