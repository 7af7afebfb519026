//! Calls of Azure Resource Manager, with the retries and the waiting that it asks for.
//!
//! ```text
//! call ──429, 5xx, no answer──▶ wait (Retry-After, else 2, 4, 8 … s) ──▶ again
//!   │ 401 once: another token
//!   ├── 200, 204 ──▶ done
//!   └── 201, 202 with Azure-AsyncOperation ──▶ its status: Succeeded | Failed | Canceled
//!            └── with Location alone ──▶ until it answers anything but 202
//! ```
//! Source: learn.microsoft.com/azure/azure-resource-manager/management/async-operations and request-limits-and-throttling.

use std::time::{Duration, Instant};

use http::{HeaderMap, Method, StatusCode};
use reqwest::Client;
use serde_json::Value;

use super::{config::AzureConfig, identity::Tokens};
use crate::controller::Retry;

/// Attempts of one call: with pauses that double from 2 s they span about a minute, longer than Azure's usual limits
/// on calls last.
const ATTEMPTS: u32 = 6;

/// The longest pause that one answer may ask for: a wrong one does not stop a deployment for hours.
const LONGEST_PAUSE: Duration = Duration::from_secs(120);

/// Pause between two looks at an operation that names none: operations take minutes.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The longest operation: creating a plan takes minutes.
const LONGEST_OPERATION: Duration = Duration::from_secs(900);

/// Reason where the controller's identity lacks a right.
pub(super) const NOT_ALLOWED: &str = "NotAllowed";

/// Reason why Azure did not do what it was asked for.
#[derive(Debug, Clone)]
pub(super) struct AzureError {
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) retry: Retry,
    /// True if Azure gave no answer, or one with a passing fault.
    pub(super) away: bool,
}

impl AzureError {
    pub(super) fn passing(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), retry: Retry::Later, away: false }
    }

    pub(super) fn away(reason: &'static str, message: impl Into<String>) -> Self {
        Self { away: true, ..Self::passing(reason, message) }
    }

    pub(super) fn lasting(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), retry: Retry::Never, away: false }
    }
}

/// Resource Manager.
pub(super) struct Manager {
    http: Client,
    base: String,
    tokens: Tokens,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Value,
}

impl Manager {
    pub(super) fn new(config: &AzureConfig) -> Result<Self, AzureError> {
        let http = Client::builder().connect_timeout(Duration::from_secs(10)).timeout(Duration::from_secs(100));
        let http = http.build().map_err(|error| AzureError::lasting("Internal", error.to_string()))?;
        let tokens = Tokens::new(config.identity.clone(), config.manager.clone());
        Ok(Self { http, base: config.manager.clone(), tokens })
    }

    /// The client without a token.
    pub(super) fn http(&self) -> &Client {
        &self.http
    }

    /// The resource at a path with its `api-version`; `None` where there is none.
    pub(super) async fn get(&self, path: &str) -> Result<Option<Value>, AzureError> {
        let answer = self.call(Method::GET, &format!("{}{path}", self.base), None).await?;
        match answer.status {
            StatusCode::NOT_FOUND => Ok(None),
            _ => done(Method::GET, path, answer).map(Some),
        }
    }

    /// Calls, and waits for the end of the operation.
    pub(super) async fn run(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, AzureError> {
        let answer = self.call(method.clone(), &format!("{}{path}", self.base), body).await?;
        if method == Method::DELETE && answer.status == StatusCode::NOT_FOUND {
            return Ok(Value::Null);
        }
        let deadline = Instant::now() + LONGEST_OPERATION;
        let header = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (operation, location) = (header("azure-asyncoperation"), header("location"));
        let began = matches!(answer.status, StatusCode::CREATED | StatusCode::ACCEPTED);
        match (operation, location) {
            (Some(operation), _) if began => {
                self.operation(path, &operation, pause_of(&answer.headers), deadline).await?;
                Ok(answer.body)
            }
            (None, Some(location)) if answer.status == StatusCode::ACCEPTED => {
                self.location(path, &location, pause_of(&answer.headers), deadline).await
            }
            _ => done(method, path, answer),
        }
    }

    /// Waits until the operation at this address has ended.
    async fn operation(
        &self,
        path: &str,
        at: &str,
        mut pause: Option<Duration>,
        deadline: Instant,
    ) -> Result<(), AzureError> {
        loop {
            wait(path, pause, deadline).await?;
            let answer = self.call(Method::GET, self.ours(at)?, None).await?;
            pause = pause_of(&answer.headers);
            let body = done(Method::GET, path, answer)?;
            match body.get("status").and_then(Value::as_str).unwrap_or_default() {
                "Succeeded" => return Ok(()),
                ended @ ("Failed" | "Canceled") => {
                    let said = told(&body);
                    return Err(AzureError::passing(
                        "OperationFailed",
                        format!("Azure ended {path} as {ended}: {said}"),
                    ));
                }
                _ => {}
            }
        }
    }

    /// Waits until this address answers anything but 202.
    async fn location(
        &self,
        path: &str,
        at: &str,
        mut pause: Option<Duration>,
        deadline: Instant,
    ) -> Result<Value, AzureError> {
        loop {
            wait(path, pause, deadline).await?;
            let answer = self.call(Method::GET, self.ours(at)?, None).await?;
            if answer.status != StatusCode::ACCEPTED {
                return done(Method::GET, path, answer);
            }
            pause = pause_of(&answer.headers);
        }
    }

    /// The address, if the token may go there.
    fn ours<'a>(&self, at: &'a str) -> Result<&'a str, AzureError> {
        let ours = at.strip_prefix(&*self.base).is_some_and(|rest| rest.starts_with('/'));
        let foreign =
            || AzureError::lasting("ForeignAddress", format!("Azure names an operation outside {}", self.base));
        if ours { Ok(at) } else { Err(foreign()) }
    }

    async fn call(&self, method: Method, url: &str, body: Option<&Value>) -> Result<Answer, AzureError> {
        let (mut attempt, mut renewed) = (0, false);
        loop {
            attempt += 1;
            let asked = self.once(method.clone(), url, body).await?;
            let last = attempt >= ATTEMPTS;
            let pause = match &asked {
                Ok(answer) if answer.status == StatusCode::UNAUTHORIZED && !renewed => {
                    renewed = true;
                    self.tokens.forget().await;
                    Duration::ZERO
                }
                Ok(answer) if !last && may_pass(answer.status) => {
                    pause_of(&answer.headers).unwrap_or(Duration::from_secs(1 << attempt.min(6)))
                }
                Err(_) if !last => Duration::from_secs(1 << attempt.min(6)),
                _ => {
                    return asked.map_err(|why| AzureError::away("AzureAway", format!("Azure does not answer: {why}")));
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn once(
        &self,
        method: Method,
        url: &str,
        body: Option<&Value>,
    ) -> Result<Result<Answer, String>, AzureError> {
        let token = self.tokens.token(&self.http).await?;
        let mut request = self.http.request(method.clone(), url).bearer_auth(token);
        request = match body {
            Some(body) => request.json(body),
            // Some proxies refuse a POST that names no length.
            None if method == Method::POST => request.header("content-length", "0"),
            None => request,
        };
        let answer = match request.send().await {
            Ok(answer) => answer,
            Err(error) => return Ok(Err(error.without_url().to_string())),
        };
        let (status, headers) = (answer.status(), answer.headers().clone());
        Ok(match answer.bytes().await {
            Ok(bytes) => Ok(Answer { status, headers, body: serde_json::from_slice(&bytes).unwrap_or_default() }),
            Err(error) => Err(error.without_url().to_string()),
        })
    }
}

fn may_pass(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::REQUEST_TIMEOUT || status.is_server_error()
}

/// Pause that an answer asks for.
fn pause_of(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get("retry-after")?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_PAUSE))
}

async fn wait(path: &str, pause: Option<Duration>, deadline: Instant) -> Result<(), AzureError> {
    if Instant::now() >= deadline {
        let message = format!("Azure did not finish {path} within {} s", LONGEST_OPERATION.as_secs());
        return Err(AzureError::away("OperationLate", message));
    }
    tokio::time::sleep(pause.unwrap_or(POLL_INTERVAL)).await;
    Ok(())
}

/// Code and message of an error.
fn told(body: &Value) -> String {
    let error = body.get("error").unwrap_or(body);
    let text = |upper: &str, lower: &str| {
        error.get(lower).or(error.get(upper)).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    format!("{} {}", text("Code", "code"), text("Message", "message")).trim().to_owned()
}

fn done(method: Method, path: &str, answer: Answer) -> Result<Value, AzureError> {
    if answer.status.is_success() {
        return Ok(answer.body);
    }
    let path = path.split('?').next().unwrap_or(path);
    let said = told(&answer.body);
    let message = format!("Azure refused {method} {path} ({}): {said}", answer.status.as_u16());
    Err(match answer.status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let remedy = "give the controller's identity the role Website Contributor in the resource group";
            AzureError::passing(NOT_ALLOWED, format!("{message}; {remedy}"))
        }
        StatusCode::NOT_FOUND => {
            AzureError::passing("NotFound", format!("{message}; check spec.target and AZURE_SUBSCRIPTION_ID"))
        }
        StatusCode::CONFLICT => AzureError::passing("AzureRefused", message),
        status if may_pass(status) => AzureError::away("AzureRefused", message),
        _ => AzureError::lasting("AzureRefused", message),
    })
}
