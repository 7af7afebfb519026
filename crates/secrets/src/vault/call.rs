//! Requests to Vault and its replies.

use std::{fmt, time::Duration};

use berth_spec::Secret;
use zeroize::Zeroizing;

/// One request to Vault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Id that matches the reply to the request.
    pub id: u64,
    /// Operation that Vault is asked for, with its path or lease.
    pub ask: VaultRequest,
    /// With this token; logging in needs none.
    pub token: Option<Secret>,
    /// Vault namespace (`X-Vault-Namespace`); `None`: the root one.
    pub namespace: Option<String>,
    /// Worker on whose behalf the call is made: Vault's audit log can record the header `X-Berth-Worker`.
    pub worker: Option<String>,
}

/// Operation that Vault is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VaultRequest {
    /// A token, by AppRole. The driver knows the role and its secret.
    LogIn,
    /// More time for our token.
    RenewToken,
    /// Checks the current token.
    LookUpToken,
    /// The secret at this path below `/v1/`.
    Read(String),
    /// More time for a lease.
    Renew {
        /// Id of the lease, as Vault gave it.
        lease: String,
        /// Requested extension. Vault decides.
        increment: Duration,
    },
    /// The end of a lease.
    Revoke(String),
    /// The end of our token, and of all that was leased with it.
    RevokeToken,
}

/// Reply of Vault: HTTP status and body. The body may contain secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status code.
    pub status: u16,
    /// Response body, wiped when it is dropped.
    pub body: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("status", &self.status).finish_non_exhaustive()
    }
}
