//! Tokens of Resource Manager, kept until shortly before they end.
//!
//! Sources: the OAuth 2.0 client credentials flow of the Microsoft identity platform
//! (learn.microsoft.com/entra/identity-platform/v2-oauth2-client-creds-grant-flow), managed identities of App Service
//! (learn.microsoft.com/azure/app-service/overview-managed-identity, REST) and of virtual machines
//! (learn.microsoft.com/entra/identity/managed-identities-azure-resources/how-to-use-vm-token).

use std::time::{Duration, Instant};

use reqwest::{Client, RequestBuilder};
use serde_json::Value;
use tokio::sync::Mutex;

use super::{config::Identity, resource::AzureError};

/// The address of a virtual machine's metadata service.
const METADATA: &str = "http://169.254.169.254/metadata/identity/oauth2/token";

/// A token is asked for anew this long before its end, so that no call meets it.
const BEFORE_END: Duration = Duration::from_secs(300);

/// Gives tokens.
pub(super) struct Tokens {
    identity: Identity,
    /// The resource that tokens are for.
    audience: String,
    kept: Mutex<Option<(String, Instant)>>,
}

impl Tokens {
    pub(super) fn new(identity: Identity, audience: String) -> Self {
        Self { identity, audience, kept: Mutex::default() }
    }

    /// A token that is good for some minutes.
    pub(super) async fn token(&self, http: &Client) -> Result<String, AzureError> {
        // Held while one is fetched: the others wait for the same.
        let mut kept = self.kept.lock().await;
        if let Some((token, until)) = kept.as_ref()
            && *until > Instant::now()
        {
            return Ok(token.clone());
        }
        let asked = self.request(http).await?;
        let answer = asked.send().await.map_err(|error| self.refused(&error.without_url().to_string()))?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(|error| self.refused(&error.without_url().to_string()))?;
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let Some(token) = body.get("access_token").and_then(Value::as_str).filter(|_| status.is_success()) else {
            let why = body.get("error_description").or(body.get("error")).and_then(Value::as_str).unwrap_or_default();
            return Err(self.refused(format!("{status} {why}").trim()));
        };
        // A number here, and a text there.
        let seconds = body.get("expires_in").and_then(|value| value.as_u64().or_else(|| value.as_str()?.parse().ok()));
        let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(600)).saturating_sub(BEFORE_END);
        *kept = Some((token.to_owned(), until));
        Ok(token.to_owned())
    }

    /// Forgets the token: Resource Manager did not take it.
    pub(super) async fn forget(&self) {
        *self.kept.lock().await = None;
    }

    async fn request(&self, http: &Client) -> Result<RequestBuilder, AzureError> {
        let scope = format!("{}/.default", self.audience);
        let principal = |authority: &str, tenant: &str, more: &[(&str, &str)]| {
            let mut form = url::form_urlencoded::Serializer::new(String::new());
            form.append_pair("grant_type", "client_credentials").append_pair("scope", &scope).extend_pairs(more);
            http.post(format!("{authority}/{tenant}/oauth2/v2.0/token"))
                .header("content-type", "application/x-www-form-urlencoded")
                .body(form.finish())
        };
        let managed = |endpoint: &str, version: &str, client: Option<&String>| {
            let mut url = url::Url::parse(endpoint).map_err(|error| self.refused(&error.to_string()))?;
            url.query_pairs_mut().append_pair("api-version", version).append_pair("resource", &self.audience);
            if let Some(client) = client {
                url.query_pairs_mut().append_pair("client_id", client);
            }
            Ok(http.get(url))
        };
        match &self.identity {
            Identity::Secret { authority, tenant, client, secret } => {
                Ok(principal(authority, tenant, &[("client_id", client), ("client_secret", secret)]))
            }
            Identity::Federated { authority, tenant, client, file } => {
                let assertion = tokio::fs::read_to_string(file).await;
                let assertion = assertion.map_err(|error| self.refused(&format!("{}: {error}", file.display())))?;
                let kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
                let more =
                    [("client_id", &**client), ("client_assertion_type", kind), ("client_assertion", assertion.trim())];
                Ok(principal(authority, tenant, &more))
            }
            Identity::AppService { endpoint, header, client } => {
                Ok(managed(endpoint.as_str(), "2019-08-01", client.as_ref())?.header("X-IDENTITY-HEADER", header))
            }
            Identity::Machine { client } => {
                Ok(managed(METADATA, "2018-02-01", client.as_ref())?.header("Metadata", "true"))
            }
        }
    }

    fn refused(&self, why: &str) -> AzureError {
        let (what, remedy) = match self.identity {
            Identity::Secret { .. } => {
                ("the service principal", "AZURE_TENANT_ID, AZURE_CLIENT_ID, AZURE_CLIENT_SECRET")
            }
            Identity::Federated { .. } => ("the federated token", "AZURE_CLIENT_ID, AZURE_FEDERATED_TOKEN_FILE"),
            Identity::AppService { .. } => ("the managed identity", "IDENTITY_ENDPOINT, IDENTITY_HEADER"),
            Identity::Machine { .. } => (
                "the machine's managed identity",
                "AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET, where the machine has no identity",
            ),
        };
        AzureError::passing("NoToken", format!("Azure gives no token to {what}: {why}; check {remedy}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Method, address, headers besides the type of the body, and fields of the body of the request for a token.
    async fn asked(identity: Identity) -> (String, String, Vec<(String, String)>, String) {
        let tokens = Tokens::new(identity, "https://management.azure.com".to_owned());
        let http = Client::builder().build().expect("a client");
        let request = tokens.request(&http).await.expect("a request").build().expect("a request");
        let headers = request.headers().iter().filter(|(name, _)| name.as_str() != "content-type");
        let headers = headers.map(|(name, value)| (name.to_string(), value.to_str().expect("a text").to_owned()));
        let body = request.body().and_then(reqwest::Body::as_bytes).unwrap_or_default();
        let body = String::from_utf8(body.to_vec()).expect("a text");
        (request.method().to_string(), request.url().to_string(), headers.collect(), body)
    }

    /// As the sources at the top of this file say.
    #[tokio::test]
    async fn each_identity_asks_in_its_own_way() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        fs_err::write(&file, "assertion-1\n").expect("written");
        let (authority, tenant, client) =
            ("https://login.microsoftonline.com".to_owned(), "t".to_owned(), "c".to_owned());
        let scope = "scope=https%3A%2F%2Fmanagement.azure.com%2F.default";
        let of_tenant = "https://login.microsoftonline.com/t/oauth2/v2.0/token";
        let secret = Identity::Secret {
            authority: authority.clone(),
            tenant: tenant.clone(),
            client: client.clone(),
            secret: "s".to_owned(),
        };
        let body = format!("grant_type=client_credentials&{scope}&client_id=c&client_secret=s");
        assert_eq!(asked(secret).await, ("POST".to_owned(), of_tenant.to_owned(), vec![], body));

        let federated = Identity::Federated { authority, tenant, client, file };
        let kind = "client_assertion_type=urn%3Aietf%3Aparams%3Aoauth%3Aclient-assertion-type%3Ajwt-bearer";
        let body = format!("grant_type=client_credentials&{scope}&client_id=c&{kind}&client_assertion=assertion-1");
        assert_eq!(asked(federated).await, ("POST".to_owned(), of_tenant.to_owned(), vec![], body));

        let resource = "resource=https%3A%2F%2Fmanagement.azure.com";
        let endpoint = url::Url::parse("http://127.0.0.1:41/msi/token").expect("a URL");
        let app = Identity::AppService { endpoint, header: "h".to_owned(), client: Some("c".to_owned()) };
        let place = format!("http://127.0.0.1:41/msi/token?api-version=2019-08-01&{resource}&client_id=c");
        let header = vec![("x-identity-header".to_owned(), "h".to_owned())];
        assert_eq!(asked(app).await, ("GET".to_owned(), place, header, String::new()));

        let place = format!("{METADATA}?api-version=2018-02-01&{resource}");
        let header = vec![("metadata".to_owned(), "true".to_owned())];
        assert_eq!(asked(Identity::Machine { client: None }).await, ("GET".to_owned(), place, header, String::new()));
    }
}
