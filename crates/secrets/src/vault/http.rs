//! Vault's HTTP API: one call, one answer.

use std::{path::Path, time::Duration};

use berth_spec::Secret;
use reqwest::{Certificate, Client, Method, redirect::Policy};
use serde_json::json;
use url::Url;
use zeroize::Zeroizing;

use super::{Call, Reply, SecretId, Settings, VaultRequest};

/// Limit for one call. Dynamic engines ask a cloud, which takes seconds.
const PATIENCE: Duration = Duration::from_secs(15);

/// Largest response in bytes. Holds a service account with certificates, and bounds memory.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// A client of one Vault.
#[derive(Debug, Clone)]
pub struct Http {
    settings: Settings,
    client: Client,
}

impl Http {
    /// A client; reads the authority's certificate.
    ///
    /// # Errors
    /// The certificate cannot be read, or TLS cannot be set up.
    pub fn new(settings: Settings) -> Result<Self, String> {
        // A token must not follow a redirect to another host.
        let mut client = Client::builder().redirect(Policy::none()).timeout(PATIENCE).no_proxy();
        if let Some(ca) = &settings.ca {
            client = client.tls_certs_only(authorities(ca)?);
        }
        let client = client.build().map_err(|error| format!("TLS cannot be set up: {error}"))?;
        Ok(Self { settings, client })
    }

    /// Makes one call.
    ///
    /// # Errors
    /// No answer: why.
    pub async fn call(&self, call: &Call) -> Result<Reply, String> {
        let (method, path, body) = self.request(&call.ask)?;
        let mut request = self.client.request(method, self.url(&path)?).header("X-Vault-Request", "true");
        if let Some(token) = &call.token {
            let mut value = reqwest::header::HeaderValue::from_str(token.expose())
                .map_err(|_| "our token has characters that no header may have".to_owned())?;
            value.set_sensitive(true);
            request = request.header("X-Vault-Token", value);
        }
        if let Some(namespace) = &call.namespace {
            request = request.header("X-Vault-Namespace", namespace);
        }
        if let Some(worker) = &call.worker {
            request = request.header("X-Berth-Worker", worker);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let mut response = request.send().await.map_err(|error| reason(&error))?;
        let status = response.status().as_u16();
        let mut body = Zeroizing::new(Vec::new());
        while let Some(chunk) = response.chunk().await.map_err(|error| reason(&error))? {
            if body.len() + chunk.len() > MAX_RESPONSE_BYTES {
                return Err(format!("its answer is larger than {MAX_RESPONSE_BYTES} bytes"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Reply { status, body })
    }

    fn request(&self, ask: &VaultRequest) -> Result<(Method, String, Option<serde_json::Value>), String> {
        let post = |path: &str, body| Ok((Method::PUT, path.to_owned(), body));
        match ask {
            VaultRequest::LogIn => {
                let secret = self.secret_id()?;
                let body = json!({"role_id": self.settings.role_id, "secret_id": secret.expose()});
                Ok((Method::POST, format!("auth/{}/login", self.settings.mount), Some(body)))
            }
            VaultRequest::RenewToken => post("auth/token/renew-self", Some(json!({}))),
            VaultRequest::LookUpToken => Ok((Method::GET, "auth/token/lookup-self".to_owned(), None)),
            VaultRequest::Read(path) => Ok((Method::GET, path.clone(), None)),
            VaultRequest::Renew { lease, increment } => {
                post("sys/leases/renew", Some(json!({"lease_id": lease, "increment": increment.as_secs()})))
            }
            VaultRequest::Revoke(lease) => post("sys/leases/revoke", Some(json!({"lease_id": lease}))),
            VaultRequest::RevokeToken => post("auth/token/revoke-self", Some(json!({}))),
        }
    }

    /// Read at every login: it may have been replaced. A small local file: it does not hold up the runtime.
    fn secret_id(&self) -> Result<Secret, String> {
        match &self.settings.secret_id {
            SecretId::Given(secret) => Ok(secret.clone()),
            SecretId::File(path) => {
                let text =
                    fs_err::read_to_string(path).map_err(|error| format!("the secret id cannot be read: {error}"))?;
                Ok(Secret::new(Zeroizing::new(text).trim()))
            }
        }
    }

    fn url(&self, path: &str) -> Result<Url, String> {
        self.settings.addr.join(&format!("/v1/{path}")).map_err(|error| error.to_string())
    }
}

/// The cause, not the chain: `error sending request` says nothing, and never a URL's query.
fn reason(error: &reqwest::Error) -> String {
    let mut deepest: &dyn std::error::Error = error;
    while let Some(next) = deepest.source() {
        deepest = next;
    }
    if error.is_timeout() { format!("no answer within {} s", PATIENCE.as_secs()) } else { deepest.to_string() }
}

fn authorities(path: &Path) -> Result<Vec<Certificate>, String> {
    let pem = fs_err::read_to_string(path).map_err(|error| error.to_string())?;
    let wrong = || format!("{}: it holds no certificate in PEM", path.display());
    let found = Certificate::from_pem_bundle(pem.as_bytes()).map_err(|_| wrong())?;
    if found.is_empty() { Err(wrong()) } else { Ok(found) }
}
