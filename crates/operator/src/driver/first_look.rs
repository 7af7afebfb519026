//! The look at the kinds that an operator cannot work without, before it leads.

use std::time::Duration;

use kube::{Client, Error, api::ListParams};
use tokio::time;
use tokio_util::sync::CancellationToken;

use super::{Config, RunError, answered, kind::Kind};

/// Time between two looks at objects that cannot be listed yet: an API server takes about as long to trust a new certificate, without
/// which it converts none.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Returns true when all of these kinds can be read; false if it is told to stop first.
pub(super) async fn first_look(
    client: &Client,
    config: &Config,
    shutdown: &CancellationToken,
) -> Result<bool, RunError> {
    let (mut told, namespace) = (false, config.namespace.as_deref());
    let kinds = Kind::of_cluster(&config.installation).into_iter().filter(|kind| !kind.is_of_pools());
    for kind in kinds {
        let (api, one) = (kind.api(client, namespace), ListParams::default().limit(1));
        loop {
            let listed = tokio::select! {
                () = shutdown.cancelled() => return Ok(false),
                listed = answered(api.list(&one)) => listed,
            };
            match listed {
                Ok(_) => break,
                Err(Error::Api(refusal)) if refusal.code == 404 && kind.is_own() => {
                    return Err(RunError::NoDefinitions);
                }
                Err(Error::Api(refusal)) if refusal.code == 403 => return Err(RunError::Forbidden(refusal.message)),
                Err(Error::Api(refusal)) if refusal.code == 429 || refusal.code >= 500 => {
                    if !std::mem::replace(&mut told, true) {
                        let (kind, error) = (kind.name(), refusal.message);
                        let why = "tried again: the API server is busy, or cannot convert their version yet";
                        tracing::warn!(event = "objects_unread", kind, error, "{why}");
                    }
                    tokio::select! {
                        () = shutdown.cancelled() => return Ok(false),
                        () = time::sleep(RETRY_INTERVAL) => {}
                    }
                }
                Err(Error::Api(refusal)) => return Err(RunError::Refused(refusal.message)),
                Err(error) => return Err(RunError::Refused(error.to_string())),
            }
        }
    }
    Ok(true)
}
