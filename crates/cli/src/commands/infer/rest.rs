//! The request over REST.

use std::time::Duration;

use berth_spec::{DeploymentName, id::DEFAULT_NAMESPACE};
use berth_wire::api::ErrorBody;
use bytes::Bytes;
use reqwest::{StatusCode, header::CONTENT_TYPE};
use serde_json::Value;
use url::Url;

use super::{InferArgs, WHO, nobody, too_late};
use crate::{
    client::{root, tls_trouble},
    failure::Failure,
};

/// Tells the gateway how long we wait, as gRPC does by itself.
const TIMEOUT_HEADER: &str = "berth-timeout-ms";

/// Extra time beyond the gateway's own deadline, so that its explanation arrives.
const GRACE: Duration = Duration::from_millis(500);

/// A request, ready to be sent any number of times.
#[derive(Debug)]
pub(super) struct Call {
    http: reqwest::Client,
    url: Url,
    body: Bytes,
    timeout: Duration,
}

impl Call {
    pub(super) fn new(
        base: &Url,
        name: Option<&DeploymentName>,
        args: &InferArgs,
        request: &Value,
    ) -> Result<Self, Failure> {
        let mut url = base.clone();
        let Some(name) = name else {
            url.set_path(&format!("{}{}", base.path().trim_end_matches('/'), args.name));
            return Ok(Self {
                http: args.connect.http(std::slice::from_ref(base))?,
                url,
                body: request.to_string().into(),
                timeout: args.timeout,
            });
        };
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty();
            if name.namespace() != DEFAULT_NAMESPACE {
                path.extend(["namespaces", name.namespace()]);
            }
            path.extend(["v2", "models", name.name()]);
            if !args.model_version.is_empty() {
                path.extend(["versions", &args.model_version]);
            }
            path.push("infer");
        }
        let http = args.connect.http(std::slice::from_ref(base))?;
        Ok(Self { http, url, body: request.to_string().into(), timeout: args.timeout })
    }

    /// Sends it; the body of a good answer.
    pub(super) async fn send(&self) -> Result<Bytes, Failure> {
        let request = self.http.post(self.url.clone()).header(CONTENT_TYPE, "application/json");
        let request = request.header(TIMEOUT_HEADER, self.timeout.as_millis().max(1).to_string());
        let sent = request.timeout(self.timeout + GRACE).body(self.body.clone()).send().await;
        let response = sent.map_err(|e| self.broken(&e))?;
        let status = response.status();
        let body = response.bytes().await.map_err(|e| self.broken(&e))?;
        if status.is_success() { Ok(body) } else { Err(refused(status, &body)) }
    }

    fn broken(&self, error: &reqwest::Error) -> Failure {
        if let Some(remedy) = tls_trouble(error) {
            Failure::Failed(format!("{}: {remedy}", self.url.origin().ascii_serialization()))
        } else if error.is_connect() {
            nobody(&Url::parse(&self.url.origin().ascii_serialization()).unwrap_or_else(|_| self.url.clone()))
        } else if error.is_timeout() {
            too_late()
        } else {
            Failure::doing("the request failed", root(error))
        }
    }
}

/// Converts a refusal of the gateway.
fn refused(status: StatusCode, body: &[u8]) -> Failure {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |key: &str| json.get(key).and_then(Value::as_str);
    if let (Some(message), Some(reason)) = (text("error"), text("reason")) {
        return super::refused(message, reason);
    }
    if serde_json::from_slice::<ErrorBody>(body).is_ok() {
        let message = "a control API answers there: the gateway has a port of its own (8080 by default), say where it is with \
                       --http or BERTH_HTTP";
        return Failure::Failed(message.to_owned());
    }
    // Not our gateway, but something between.
    let message = format!("the server answered {status}: {}", String::from_utf8_lossy(body).trim());
    match status {
        StatusCode::NOT_FOUND => Failure::NotFound(message),
        StatusCode::UNAUTHORIZED => Failure::Failed(format!("{message}\n  {WHO}")),
        StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT => Failure::TimedOut(message),
        status if status.is_client_error() => Failure::Invalid(message),
        _ => Failure::Failed(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_the_exit_codes_that_help_promises() {
        for (status, body, code) in [
            (404, r#"{"error":"no model","reason":"not_found"}"#, 3),
            (400, r#"{"error":"shape","reason":"invalid"}"#, 4),
            (422, r#"{"error":"/text: too short","reason":"unprocessable"}"#, 4),
            (501, r#"{"error":"shared memory","reason":"unsupported"}"#, 4),
            (503, r#"{"error":"still loading","reason":"loading"}"#, 5),
            (504, r#"{"error":"too late","reason":"deadline"}"#, 5),
            (503, r#"{"error":"no room","reason":"no_capacity"}"#, 1),
            (500, r#"{"error":"it broke","reason":"model"}"#, 1),
            (404, r#"{"error":{"code":404,"reason":"NotFound","message":"no path"}}"#, 1),
            (504, "<html>a proxy</html>", 5),
            (502, "<html>a proxy</html>", 1),
        ] {
            let failure = refused(StatusCode::from_u16(status).expect("a status"), body.as_bytes());
            assert_eq!(
                format!("{:?}", failure.exit_code()),
                format!("{:?}", std::process::ExitCode::from(code)),
                "{body}"
            );
        }
    }
}
