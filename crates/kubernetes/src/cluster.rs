//! The connection to a cluster, and whether a kind of objects is installed there.

use std::time::Duration;

use kube::{
    Client, Error,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
    runtime::watcher,
};

use crate::{KubernetesConfig, kind::Kind, objects::WatchUpdate};

/// Limit for one request that is no watch. An API server that is well answers in milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Longest silence of a connection: longer than that of a watch, which the API server ends after 290 s.
const SILENCE: Duration = Duration::from_mins(6);

/// Connects to what `config` names.
///
/// # Errors
/// The reason and the remedy, in a sentence.
pub(crate) async fn connect(config: &KubernetesConfig) -> Result<Client, String> {
    let remedy = "set KUBECONFIG or --kubernetes-context, or run in a pod with a service account";
    let failed = |error: &dyn std::fmt::Display| format!("no cluster: {error}; {remedy}");
    let mut found = match &config.context {
        None => kube::Config::infer().await.map_err(|e| failed(&e))?,
        Some(context) => {
            let file = Kubeconfig::read().map_err(|e| failed(&e))?;
            let options = KubeConfigOptions { context: Some(context.clone()), ..KubeConfigOptions::default() };
            kube::Config::from_custom_kubeconfig(file, &options).await.map_err(|e| failed(&e))?
        }
    };
    // A list on a connection that has gone without a word would be waited for without an end.
    (found.read_timeout, found.reset_reader_on_write) = (Some(SILENCE), true);
    Client::try_from(found).map_err(|e| failed(&e))
}

/// The meaning of a watch that broke.
pub(crate) async fn broke(client: &Client, kind: Kind, namespace: Option<&str>, error: watcher::Error) -> WatchUpdate {
    let unknown = matches!(
        &error,
        watcher::Error::InitialListFailed(Error::Api(refusal)) | watcher::Error::WatchStartFailed(Error::Api(refusal))
            if refusal.code == 404
    );
    if unknown && is_absent(client, kind, namespace).await {
        return WatchUpdate::Absent;
    }
    if matches!(&error, watcher::Error::WatchError(refusal) if refusal.code == 410) {
        // The watch began too long ago: it lists anew by itself.
        return WatchUpdate::Event(watcher::Event::Init);
    }
    WatchUpdate::Failing(match error {
        watcher::Error::InitialListFailed(Error::Api(refusal)) if refusal.code == 403 => {
            format!("{} cannot be read: {}; docs/kubernetes.md lists the rights", kind.name(), refusal.message)
        }
        error => format!("{} cannot be read: {error}", kind.name()),
    })
}

/// True if the custom resource is not installed. An API server that begins knows no custom resources either, until it is ready: only
/// what it does not know then counts, else all models would go with each of its starts.
async fn is_absent(client: &Client, kind: Kind, namespace: Option<&str>) -> bool {
    let ask = async {
        let request = http::Request::get("/readyz").body(Vec::new()).ok()?;
        client.request_text(request).await.ok()?;
        Some(kind.api(client, namespace).list(&ListParams::default().limit(1)).await)
    };
    let listed = tokio::time::timeout(PATIENCE, ask).await.ok().flatten();
    matches!(listed, Some(Err(Error::Api(refusal))) if refusal.code == 404)
}
