//! The endpoints of etcd: which one is asked, when to go on to another, and whether the answers fit together.
//!
//! All who share a cluster ask the same endpoint until it fails; then the next one. When all have failed, one after the
//! other, there is a pause before they are tried again, longer each time. Every answer is checked: it comes from the
//! cluster that the first one came from, and its revision is no lower than one that had been seen before it was asked
//! for. etcd promises both; a member that was restored from a backup or woke up in the past (etcd issue 20418) breaks it.

mod backoff;

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use berth_wire::etcd::{
    CompactionResponse, LeaseGrantResponse, LeaseRevokeResponse, RangeResponse, ResponseHeader, TxnResponse,
};
use tokio::time::Instant;
use tonic::{
    Response, Status,
    service::interceptor::InterceptedService,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};

pub(super) use backoff::Backoff;

use super::{
    EtcdConfig, EtcdTls, Timeouts,
    auth::{CallMetadata, Login},
    error::EtcdError,
    keys,
};
use crate::store::{Rev, StoreError};

/// Interval between HTTP/2 pings. etcd closes connections that ping more often than every 5 s
/// (`--grpc-keepalive-min-time`).
const PING: Duration = Duration::from_secs(10);

/// Limit for the answer to a ping: a member that is busy answers later than usual, and one that hangs is left within
/// seconds.
const PONG: Duration = Duration::from_secs(3);

/// Least time left that is worth an attempt. With less, the earlier error says more than a timeout, and the outcome
/// of a write would be lost.
const WORTH_IT: Duration = Duration::from_millis(100);

/// An endpoint, ready for a request.
pub(super) type EtcdChannel = InterceptedService<Channel, CallMetadata>;

/// Permission to repeat a request that may have been received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Safe to repeat: a read, or idempotent.
    Always,
    /// Only if it was not sent: a write.
    Unsent,
}

/// An answer that says what it knows.
pub(super) trait EtcdReply {
    /// Header of the response.
    fn header(&self) -> Option<&ResponseHeader>;
    /// Its revision is the store's at a moment between question and answer, rather than one member's.
    const ORDERED: bool;
}

macro_rules! answers {
    ($($name:ty: $ordered:literal),*) => {$(
        impl EtcdReply for $name {
            fn header(&self) -> Option<&ResponseHeader> {
                self.header.as_ref()
            }
            const ORDERED: bool = $ordered;
        }
    )*};
}

answers!(
    RangeResponse: true,
    TxnResponse: true,
    CompactionResponse: false,
    LeaseGrantResponse: false,
    LeaseRevokeResponse: false
);

/// The endpoints, and what has been seen of the cluster behind them.
pub(super) struct Cluster {
    members: Vec<Member>,
    /// The one that is asked.
    current: AtomicUsize,
    /// 0: not known yet.
    id: AtomicU64,
    /// The highest revision seen.
    seen: AtomicU64,
    login: Option<Login>,
}

struct Member {
    address: String,
    channel: Channel,
}

impl Cluster {
    pub(super) fn new(config: &EtcdConfig) -> Result<Self, StoreError> {
        let member = |address: &String| {
            let channel = channel(address, config)
                .map_err(|error| StoreError::Failed(format!("cannot use the endpoint {address} of etcd: {error}")))?;
            Ok(Member { address: address.clone(), channel })
        };
        let members: Vec<Member> = config.endpoints.iter().map(member).collect::<Result<_, StoreError>>()?;
        if members.is_empty() {
            return Err(StoreError::Failed("no endpoint of etcd is given: name one with --store".to_owned()));
        }
        Ok(Self {
            members,
            current: AtomicUsize::new(0),
            id: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            login: config.credentials.clone().map(Login::new),
        })
    }

    /// All endpoints, for people.
    pub(super) fn addresses(&self) -> String {
        self.members.iter().map(|member| member.address.as_str()).collect::<Vec<_>>().join(",")
    }

    /// The highest revision seen: whatever is asked from now on knows at least this.
    pub(super) fn seen(&self) -> Rev {
        Rev(self.seen.load(Ordering::Acquire))
    }

    /// A revision was seen in a watch.
    pub(super) fn saw(&self, rev: Rev) {
        self.seen.fetch_max(rev.0, Ordering::AcqRel);
    }

    /// Position of the endpoint to ask: the same until it fails.
    pub(super) fn pick(&self) -> usize {
        self.current.load(Ordering::Relaxed) % self.members.len()
    }

    /// The number of configured endpoints.
    pub(super) fn members(&self) -> usize {
        self.members.len()
    }

    /// Address of the endpoint at a position of the configuration, `HOST:PORT`.
    pub(super) fn address(&self, member: usize) -> &str {
        &self.members[member].address
    }

    /// Moves to the next endpoint after a failure, unless another caller has done so.
    pub(super) fn leave(&self, member: usize) {
        let next = (member + 1) % self.members.len();
        let _moved = self.current.compare_exchange(member, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The token was refused.
    pub(super) fn forget_token(&self) {
        if let Some(login) = &self.login {
            login.forget();
        }
    }

    /// True if another token can be obtained.
    pub(super) fn has_login(&self) -> bool {
        self.login.is_some()
    }

    /// Asks one endpoint once.
    pub(super) async fn attempt<T, F, A>(&self, member: usize, wait: Duration, ask: F) -> Result<T, EtcdError>
    where
        F: FnOnce(EtcdChannel) -> A,
        A: Future<Output = Result<T, Status>>,
    {
        let Member { address, channel } = &self.members[member];
        let exchange = async {
            let token = match &self.login {
                Some(login) => Some(login.token(channel.clone(), address).await?),
                None => None,
            };
            let line = InterceptedService::new(channel.clone(), CallMetadata(token));
            ask(line).await.map_err(|status| EtcdError::of(&status, address))
        };
        match tokio::time::timeout(wait, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(EtcdError::Lost(format!("no answer from {address} within {} ms", wait.as_millis()))),
        }
    }

    /// Asks, and asks the next endpoint where one fails, as long as `patience` and `repeat` allow.
    pub(super) async fn call<T, F, A>(&self, patience: Timeouts, repeat: Repeat, ask: F) -> Result<T, EtcdError>
    where
        T: EtcdReply,
        F: Fn(EtcdChannel) -> A,
        A: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = Instant::now() + patience.whole;
        let mut backoff = Backoff::default();
        let mut tokens = 0;
        loop {
            let member = self.pick();
            let floor = self.seen();
            let wait = patience.answer.min(deadline.saturating_duration_since(Instant::now()));
            let answer = self.attempt(member, wait, &ask).await.map(Response::into_inner);
            let fault = match answer.and_then(|answer| self.check(&answer, floor, member).map(|()| answer)) {
                Ok(answer) => return Ok(answer),
                Err(fault) => fault,
            };
            match &fault {
                // Every endpoint may have to be told once that the token is old.
                EtcdError::Token(_) if self.has_login() && tokens <= self.members.len() => {
                    tokens += 1;
                    self.forget_token();
                    continue;
                }
                EtcdError::NotSent(_) | EtcdError::Behind(_) => self.leave(member),
                EtcdError::Lost(_) => {
                    self.leave(member);
                    if repeat == Repeat::Unsent {
                        return Err(fault);
                    }
                }
                _ => return Err(fault),
            }
            let pause = backoff.failed(self.members.len());
            if Instant::now() + pause + WORTH_IT >= deadline {
                return Err(fault);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Checks that an answer is of the cluster that others were of, and not of its past.
    fn check<T: EtcdReply>(&self, answer: &T, floor: Rev, member: usize) -> Result<(), EtcdError> {
        answer.header().map_or(Ok(()), |header| {
            self.same(header, member)?;
            let rev = keys::rev(header.revision);
            if T::ORDERED {
                if rev < floor {
                    return Err(EtcdError::Behind(format!(
                        "it answered as of revision {rev} after {floor} had been seen"
                    )));
                }
                self.saw(rev);
            }
            Ok(())
        })
    }

    /// Checks that an answer is of the same cluster.
    pub(super) fn same(&self, header: &ResponseHeader, member: usize) -> Result<(), EtcdError> {
        let known = self.id.compare_exchange(0, header.cluster_id, Ordering::AcqRel, Ordering::Acquire);
        match known {
            Err(known) if known != header.cluster_id => Err(EtcdError::Final(StoreError::Replaced {
                endpoint: self.members[member].address.clone(),
                reason: format!("it belongs to cluster {:x}, not to {known:x}", header.cluster_id),
            })),
            _ => Ok(()),
        }
    }
}

/// A connection that is made when it is first used, and made again when it breaks.
fn channel(address: &str, config: &EtcdConfig) -> Result<Channel, tonic::transport::Error> {
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))?
        .connect_timeout(config.patience.connect)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PONG);
    if let Some(tls) = &config.tls {
        endpoint = endpoint.tls_config(client_tls(tls))?;
    }
    Ok(endpoint.connect_lazy())
}

fn client_tls(tls: &EtcdTls) -> ClientTlsConfig {
    let mut config = match &tls.authorities {
        Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    if let Some((certificate, key)) = &tls.identity {
        config = config.identity(Identity::from_pem(certificate, key));
    }
    match &tls.server_name {
        Some(name) => config.domain_name(name),
        None => config,
    }
}
