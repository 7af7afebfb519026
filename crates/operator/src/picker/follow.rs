//! Follows the pods of a pool.

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt,
        watcher::{self, watcher},
    },
};

use super::{Pods, Pool};

/// The pods that belong to a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members {
    /// The one namespace that all of them are in.
    pub namespace: String,
    /// Their labels, as `kubectl -l` takes them.
    pub selector: String,
    /// The port that they take requests at.
    pub port: u16,
}

/// Tells `pool` of its pods, for as long as it is polled. While the API server is away, those that were there last are picked.
pub async fn follow(client: Client, members: &Members, pool: &Pool) {
    let api: Api<Pod> = Api::namespaced(client, &members.namespace);
    let config = watcher::Config::default().labels(&members.selector);
    let mut events = watcher(api, config).default_backoff().boxed();
    let mut pods = Pods::default();
    let mut told = None;
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => pods.on(event),
            Err(error) => {
                pool.watch_failed();
                tracing::warn!(event = "watch_broke", kind = "Pod", %error, "tried again; the pods that were ready last are picked");
            }
        }
        let ready = pods.ready(members.port);
        if let Some(ready) = ready.filter(|ready| told.as_ref() != Some(ready)) {
            tracing::info!(event = "pods_ready", pods = ready.len());
            pool.set_ready(&ready);
            told = Some(ready);
        }
    }
    // A watch goes on for ever.
    std::future::pending().await
}
