//! Errors of etcd endpoints, and their consequences.

use std::error::Error as _;

use tonic::{Code, Status};

use crate::store::StoreError;

/// Reason why there is no answer, which decides what to do next.
#[derive(Debug, Clone)]
pub(super) enum EtcdError {
    /// Not sent: safe to send elsewhere.
    NotSent(String),
    /// Possibly received: a write may have been committed.
    Lost(String),
    /// The answer is older than one that was given before.
    Behind(String),
    /// The token is not valid any more: another one is to be had for the password.
    Token(String),
    /// The revision that was asked for is forgotten.
    Compacted,
    /// The requested revision does not exist yet.
    Future,
    /// The answer is larger than we take: ask for less.
    TooMuch,
    /// There is no such lease.
    NoLease,
    /// Nothing helps but a person.
    Final(StoreError),
}

impl EtcdError {
    /// Interprets a gRPC status of `endpoint`, or one created on the way there.
    pub(super) fn of(status: &Status, endpoint: &str) -> Self {
        let text = status.message();
        let has = |part: &str| text.contains(part);
        match status.code() {
            Code::OutOfRange if has("compacted") => Self::Compacted,
            Code::OutOfRange if has("future revision") => Self::Future,
            Code::OutOfRange if has("message length too large") => Self::TooMuch,
            Code::NotFound if has("lease not found") => Self::NoLease,
            Code::ResourceExhausted if has("space exceeded") => {
                Self::Final(StoreError::Full { endpoint: endpoint.to_owned() })
            }
            Code::Unauthenticated => Self::Token(text.to_owned()),
            Code::InvalidArgument if has("revision of auth store is old") => Self::Token(text.to_owned()),
            Code::InvalidArgument | Code::FailedPrecondition | Code::PermissionDenied | Code::Unimplemented => {
                Self::Final(StoreError::Refused {
                    endpoint: endpoint.to_owned(),
                    reason: text.to_owned(),
                    remedy: remedy(text),
                })
            }
            Code::DataLoss => Self::Final(StoreError::Failed(format!("etcd at {endpoint} says: {text}"))),
            _ if never_connected(status) => Self::NotSent(chain(status)),
            _ => Self::Lost(chain(status)),
        }
    }

    /// Reason for which the server ended a watch.
    pub(super) fn of_cancel(reason: &str, endpoint: &str) -> Self {
        if reason.contains("permission denied") {
            Self::of(&Status::permission_denied(reason), endpoint)
        } else if reason.contains("auth token") || reason.contains("auth store is old") {
            Self::Token(reason.to_owned())
        } else {
            Self::Lost(format!("the watch was cancelled: {reason}"))
        }
    }

    /// Final error for users of the store. `endpoints` are those that were tried.
    pub(super) fn into_error(self, endpoints: &str) -> StoreError {
        match self {
            Self::NotSent(reason) | Self::Lost(reason) => {
                StoreError::Unreachable { endpoints: endpoints.to_owned(), reason }
            }
            Self::Behind(reason) => StoreError::Replaced { endpoint: endpoints.to_owned(), reason },
            Self::Token(reason) => {
                let remedy = remedy(&reason);
                StoreError::Refused { endpoint: endpoints.to_owned(), reason, remedy }
            }
            Self::Final(error) => error,
            Self::Compacted => StoreError::Failed("a revision is compacted that was just read".to_owned()),
            Self::Future => StoreError::Failed("a revision is ahead of the store's".to_owned()),
            Self::TooMuch => StoreError::Failed("one entry alone is larger than an answer may be".to_owned()),
            Self::NoLease => StoreError::Failed("the lease is gone".to_owned()),
        }
    }
}

/// Remedy for a refusal, by its message.
fn remedy(text: &str) -> &'static str {
    const REMEDIES: [(&str, &str); 8] = [
        ("user name is empty", "its authentication is on: give a user and a password"),
        ("authentication failed", "check the user and the password"),
        ("authentication is not enabled", "leave the user out, or turn its authentication on (etcdctl auth enable)"),
        ("auth token", "its authentication is on: give a user and a password"),
        (
            "permission denied",
            "give the user a role that reads and writes the prefix (etcdctl role grant-permission --prefix=true ROLE readwrite PREFIX)",
        ),
        ("too large", "start etcd with --max-request-bytes of at least 1572864"),
        ("too many operations", "start etcd with --max-txn-ops of at least 128"),
        ("unknown service", "it is no etcd, or one without the v3 API: 3.4 and later will do"),
    ];
    REMEDIES.iter().find(|(part, _)| text.contains(part)).map_or("see its log", |(_, remedy)| remedy)
}

/// The connection could not be made, so that nothing was sent on it.
fn never_connected(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The message and its causes, each once: the first is often only "transport error".
fn chain(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut cause = status.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(fault: &EtcdError) -> &'static str {
        match fault {
            EtcdError::NotSent(_) => "not sent",
            EtcdError::Lost(_) => "lost",
            EtcdError::Behind(_) => "behind",
            EtcdError::Token(_) => "token",
            EtcdError::Compacted => "compacted",
            EtcdError::Future => "future",
            EtcdError::TooMuch => "too much",
            EtcdError::NoLease => "no lease",
            EtcdError::Final(StoreError::Full { .. }) => "full",
            EtcdError::Final(StoreError::Refused { .. }) => "refused",
            EtcdError::Final(_) => "final",
        }
    }

    #[test]
    fn what_etcd_says_and_what_it_means() {
        let unreached = || {
            let mut status = Status::unavailable("transport error");
            status.set_source(std::sync::Arc::new(tonic::ConnectError("connection refused".into())));
            status
        };
        for (status, wanted) in [
            (Status::out_of_range("etcdserver: mvcc: required revision has been compacted"), "compacted"),
            (Status::out_of_range("etcdserver: mvcc: required revision is a future revision"), "future"),
            (Status::resource_exhausted("etcdserver: mvcc: database space exceeded"), "full"),
            (Status::resource_exhausted("etcdserver: too many requests"), "lost"),
            (Status::unauthenticated("etcdserver: invalid auth token"), "token"),
            (Status::invalid_argument("etcdserver: revision of auth store is old"), "token"),
            (Status::invalid_argument("etcdserver: user name is empty"), "refused"),
            (Status::permission_denied("etcdserver: permission denied"), "refused"),
            (Status::unavailable("etcdserver: no leader"), "lost"),
            (Status::unavailable("etcdserver: request timed out"), "lost"),
            (Status::not_found("etcdserver: requested lease not found"), "no lease"),
            (Status::data_loss("etcdserver: corrupt cluster"), "final"),
            (unreached(), "not sent"),
        ] {
            assert_eq!(kind(&EtcdError::of(&status, "a:1")), wanted, "{status:?}");
        }
    }

    #[test]
    fn errors_name_the_endpoint_and_the_remedy() {
        let told = |status: &Status| EtcdError::of(status, "a:1").into_error("a:1,b:2").to_string();
        let full = told(&Status::resource_exhausted("etcdserver: mvcc: database space exceeded"));
        assert!(full.contains("a:1") && full.contains("defrag"), "{full}");
        let denied = told(&Status::permission_denied("etcdserver: permission denied"));
        assert!(denied.contains("a:1") && denied.contains("grant-permission"), "{denied}");
        let gone = told(&Status::unavailable("etcdserver: no leader"));
        assert!(gone.contains("a:1,b:2") && gone.contains("no leader") && gone.contains("--store"), "{gone}");
    }
}
