//! The source: follows the objects of an etcd, or of Berth's own store, while this node leads.
//!
//! ```text
//! Connecting ──etcd answers──▶ Following ──pause──▶ Paused: what is deployed serves on
//!     ▲                           │  ▲                │
//!     └──── sync, a new term ─────┘  └────resume──────┘
//! ```

use std::{sync::Arc, time::Duration};

use berth_control::{
    handle::Error,
    source::{Context, Request, Requests, Source, SourceState},
    store::{
        Store,
        etcd::{ConfigError, EtcdConfig, EtcdStore},
    },
};
use berth_spec::Origin;
use futures::{FutureExt as _, future::BoxFuture};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{FunctionEvent, Host, Report};
use crate::{driver::Driver, objects::Objects};

/// Prefix of the objects.
pub const DEFAULT_PREFIX: &str = "/models/deployments";

/// Pause before etcd is tried again: a member that restarts is back within seconds.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Reads `http://HOST:PORT;HOST:PORT/PREFIX` (`https` with TLS) as an address of etcd.
///
/// # Errors
/// The form, where the text has another one.
pub fn address(text: &str) -> Result<EtcdConfig, ConfigError> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let scheme = match scheme {
        "http" | "etcd" => "etcd",
        "https" | "etcds" => "etcds",
        _ => return Err(ConfigError::Scheme(text.to_owned())),
    };
    // Some write the scheme before each address.
    let rest = rest.replace(";http://", ";").replace(";https://", ";");
    let (hosts, prefix) = rest.split_once('/').unwrap_or((&rest, ""));
    let hosts: Vec<&str> = hosts.split([';', ',']).collect();
    let prefix = if prefix.trim_matches('/').is_empty() { DEFAULT_PREFIX } else { prefix };
    EtcdConfig::parse(&format!("{scheme}://{}/{}", hosts.join(","), prefix.trim_matches('/')))
}

/// A source of functions: objects that it builds and runs.
pub struct FunctionSource {
    store: SpecStore,
    host: Arc<Host>,
}

/// The place of objects.
#[derive(Clone)]
enum SpecStore {
    Etcd(Box<EtcdConfig>),
    /// Berth's own store.
    Own,
}

impl FunctionSource {
    /// Follows the objects below the prefix of `config`; `host` builds and runs them.
    #[must_use]
    pub fn etcd(config: EtcdConfig, host: Arc<Host>) -> Self {
        Self { store: SpecStore::Etcd(Box::new(config)), host }
    }

    /// Follows the objects in Berth's own store.
    #[must_use]
    pub fn own(host: Arc<Host>) -> Self {
        Self { store: SpecStore::Own, host }
    }
}

impl Source for FunctionSource {
    fn kind(&self) -> &'static str {
        match self.store {
            SpecStore::Etcd(_) => "etcd",
            SpecStore::Own => "functions",
        }
    }

    fn origin(&self) -> Origin {
        let id = match &self.store {
            SpecStore::Etcd(config) => format!("{}{}/", config.endpoints.join(","), config.prefix),
            SpecStore::Own => "own".to_owned(),
        };
        Origin::new(self.kind(), &id)
    }

    fn run(self: Arc<Self>, context: Context, requests: Requests) -> BoxFuture<'static, Result<(), Error>> {
        async move {
            self.attend(context, requests).await;
            Ok(())
        }
        .boxed()
    }
}

impl FunctionSource {
    async fn attend(&self, context: Context, mut requests: Requests) {
        loop {
            if requests.is_paused() {
                context.update_status(|status| status.state = SourceState::Paused);
                tokio::select! {
                    () = context.shutdown().cancelled() => return,
                    _ = requests.next() => continue,
                }
            }
            let (reports, mut told) = mpsc::channel(16);
            let over = CancellationToken::new();
            let objects = objects(self.store.clone(), context.store(), reports.clone());
            self.host.replicas().attach(context.handle().clone());
            let follow = follow(objects, Arc::clone(&self.host), reports, over.clone());
            let Some(mut following) = self.host.start(follow) else { return };
            loop {
                tokio::select! {
                    () = context.shutdown().cancelled() => {
                        over.cancel();
                        told.close();
                        // It ends its builds, and leaves what is deployed.
                        let _ = (&mut following).await;
                        return;
                    }
                    Some(report) = told.recv() => {
                        show(&context, &report);
                        for FunctionEvent { severity, reason, function, message } in report.events {
                            context.function_event(severity, reason, message, function).await;
                        }
                    }
                    request = requests.next() => match request {
                        Request::Webhook => {}
                        Request::Sync | Request::Pause | Request::Resume => break,
                    },
                }
            }
            over.cancel();
            told.close();
            let _ = following.await;
        }
    }
}

/// The objects of a place, once it answers.
async fn objects(store: SpecStore, own: Arc<dyn Store>, reports: mpsc::Sender<Report>) -> Objects {
    match store {
        SpecStore::Etcd(config) => Objects::all_of(Arc::new(connect(*config, &reports).await)),
        SpecStore::Own => Objects::of_berth(own),
    }
}

/// Follows until `over`.
async fn follow(
    objects: impl Future<Output = Objects>,
    host: Arc<Host>,
    reports: mpsc::Sender<Report>,
    over: CancellationToken,
) {
    let Some(objects) = over.run_until_cancelled(objects).await else { return };
    let replicas = loop {
        match host.replicas().serving().await {
            Ok(replicas) => break replicas,
            Err(error) => tracing::debug!(event = "function_replicas_unknown", %error),
        }
        tokio::select! {
            () = over.cancelled() => return,
            () = tokio::time::sleep(RETRY_PAUSE) => {}
        }
    };
    host.begin();
    Driver::new(objects, host, reports, replicas).run(over).await;
}

async fn connect(config: EtcdConfig, reports: &mpsc::Sender<Report>) -> EtcdStore {
    let mut told = None;
    loop {
        let error = match EtcdStore::connect(config.clone()).await {
            Ok(store) => return store,
            Err(error) => {
                error.to_string().replace("the address given with --store", "the address given with --source")
            }
        };
        if told.as_ref() != Some(&error) {
            tracing::warn!(event = "functions_store_away", error, "functions go on serving; retrying");
            told = Some(error.clone());
        }
        let report = Report { problem: Some(error), ..Report::default() };
        // Nobody listens at the end of a term.
        let _ = reports.send(report).await;
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

fn show(context: &Context, report: &Report) {
    let now = context.now();
    context.update_status(|status| {
        status.problem.clone_from(&report.problem);
        status.state = if report.problem.is_some() { SourceState::Retrying } else { SourceState::Synced };
        if report.problem.is_none() {
            status.revision = Some(report.rev.to_string());
            status.seen = Some(report.rev.to_string());
            status.checked_at = Some(now);
            status.applied_at = Some(now);
            let count = |phase| report.functions.get(phase).copied().unwrap_or_default();
            status.counts.deployments = report.functions.values().sum();
            status.set_detail("succeeded", count("Succeeded").to_string());
            status.set_detail("failed", count("Failed").to_string());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let read = |text: &str| address(text).map(|config| (config.endpoints, config.prefix, config.tls.is_some()));
        let hosts = |hosts: &[&str]| hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>();
        assert_eq!(read("http://h:1"), Ok((hosts(&["h:1"]), DEFAULT_PREFIX.to_owned(), false)));
        assert_eq!(read("https://h;i:2/x/y/"), Ok((hosts(&["h:2379", "i:2"]), "/x/y".to_owned(), true)));
        assert_eq!(read("http://h:1;http://i:2"), Ok((hosts(&["h:1", "i:2"]), DEFAULT_PREFIX.to_owned(), false)));
        assert!(read("ftp://h").is_err() && read("http://").is_err() && read("http://u:p@h").is_err());
    }
}
