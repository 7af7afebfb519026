//! Models tried from the dashboard: a client of this process's own gateway.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use berth_control::api::trial::{MOST_ANSWER, TRIAL_TIMEOUT, Trial, TrialAnswer, TrialSource};
use berth_wire::access::Access;
use futures::StreamExt;
use reqwest::{Client, Url, header};

use crate::failure::Failure;

/// Trials by the gateway that listens here; `None` where there is none.
pub(super) fn source(
    gateway: Option<SocketAddr>,
    scheme: &str,
    access: &Access,
) -> Result<Option<TrialSource>, Failure> {
    let Some(gateway) = gateway else { return Ok(None) };
    let (client, base) = (crate::client::to_itself()?, base(gateway, scheme)?);
    // The control API has asked who it is that tries, and if he may.
    let authorization = access.is_required().then(|| access.own_authorization());
    Ok(Some(Arc::new(move |trial| Box::pin(send(client.clone(), base.clone(), authorization.clone(), trial)))))
}

/// The address of a gateway for this process; one that listens on all addresses also does on loopback.
fn base(mut gateway: SocketAddr, scheme: &str) -> Result<Url, Failure> {
    match gateway.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => gateway.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => gateway.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    Url::parse(&format!("{scheme}://{gateway}/")).map_err(|error| Failure::doing("the gateway has no address", error))
}

async fn send(
    client: Client,
    mut base: Url,
    authorization: Option<String>,
    trial: Trial,
) -> Result<TrialAnswer, String> {
    let (namespace, name) = (trial.deployment.namespace(), trial.deployment.name());
    if let Ok(mut path) = base.path_segments_mut() {
        path.pop_if_empty().extend(["namespaces", namespace, "v2", "models", name]);
        if trial.request.is_some() {
            path.push("infer");
        }
    }
    let request = match trial.request {
        None => client.get(base),
        Some(body) => client.post(base).header(header::CONTENT_TYPE, "application/json").body(body),
    };
    let request = match authorization {
        Some(authorization) => request.header(header::AUTHORIZATION, authorization),
        None => request,
    };
    let request = request.header("berth-timeout-ms", TRIAL_TIMEOUT.as_millis().to_string()).timeout(TRIAL_TIMEOUT);
    let no_answer = |error: reqwest::Error| format!("the gateway of this node does not answer: {error}");
    let response = request.send().await.map_err(no_answer)?;
    let (status, mut body, mut parts) = (response.status().as_u16(), Vec::new(), response.bytes_stream());
    while let Some(part) = parts.next().await {
        body.extend_from_slice(&part.map_err(no_answer)?);
        if body.len() > MOST_ANSWER {
            return Err(format!("the answer is larger than {} MiB: use a client of its own", MOST_ANSWER >> 20));
        }
    }
    Ok(TrialAnswer { status, body: body.into() })
}
