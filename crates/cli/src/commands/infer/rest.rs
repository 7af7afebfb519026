//! The request over REST.

use bytes::Bytes;
use reqwest::{StatusCode, header::CONTENT_TYPE};
use serde_json::Value;
use url::Url;

use super::{InferArgs, nobody};
use crate::{
    client::{http, root},
    failure::Failure,
};

/// A request, ready to be sent any number of times.
#[derive(Debug)]
pub(super) struct Call {
    http: reqwest::Client,
    url: Url,
    body: Bytes,
    timeout: std::time::Duration,
}

impl Call {
    pub(super) fn new(base: &Url, name: &str, args: &InferArgs, request: &Value) -> Result<Self, Failure> {
        let mut url = base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(["v2", "models", name]);
            if !args.model_version.is_empty() {
                path.extend(["versions", &args.model_version]);
            }
            path.push("infer");
        }
        Ok(Self { http: http()?, url, body: request.to_string().into(), timeout: args.timeout })
    }

    /// Sends it; the body of a good answer.
    pub(super) async fn send(&self) -> Result<Bytes, Failure> {
        let request = self.http.post(self.url.clone()).header(CONTENT_TYPE, "application/json");
        let sent = request.timeout(self.timeout).body(self.body.clone()).send().await;
        let response = sent.map_err(|e| self.broken(&e))?;
        let status = response.status();
        let body = response.bytes().await.map_err(|e| self.broken(&e))?;
        if status.is_success() { Ok(body) } else { Err(refused(status, &body)) }
    }

    fn broken(&self, error: &reqwest::Error) -> Failure {
        if error.is_connect() {
            nobody(&Url::parse(&self.url.origin().ascii_serialization()).unwrap_or_else(|_| self.url.clone()))
        } else if error.is_timeout() {
            Failure::TimedOut("no answer in time: give it longer with --timeout".to_owned())
        } else {
            Failure::doing("the request failed", root(error))
        }
    }
}

/// What the gateway's refusal means for the caller.
fn refused(status: StatusCode, body: &[u8]) -> Failure {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let said = json.get("error").and_then(Value::as_str).map(str::to_owned);
    let mut message = said.unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned());
    if let Some(reason) = json.get("reason").and_then(Value::as_str) {
        message = format!("{message} ({reason})");
    }
    match status {
        StatusCode::NOT_FOUND => Failure::NotFound(message),
        StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT => Failure::TimedOut(message),
        status if status.is_client_error() => Failure::Invalid(message),
        _ => Failure::Failed(message),
    }
}
