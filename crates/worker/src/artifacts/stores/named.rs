//! Opens storages that a Secret `storage-config` describes.

use std::sync::Arc;

use berth_spec::{Secret, credential::Credential};
use http::{HeaderMap, HeaderName};
use object_store::{
    Certificate, ClientOptions, HeaderValue, ObjectStore, azure::MicrosoftAzureBuilder, client::HttpClient,
    http::HttpBuilder,
};
use reqwest::{Identity, redirect::Policy};

use super::{READ_TIMEOUT, Stores, client, retry};
use crate::artifacts::{
    location::Location,
    storage::{Access, Principal, Web},
    web::Exact,
};

/// The most redirections: as browsers have it.
const REDIRECTIONS: usize = 10;

/// The name by which this program is known to web servers.
const AGENT: &str = concat!("berth/", env!("CARGO_PKG_VERSION"));

impl Stores {
    /// The store of a storage.
    ///
    /// # Errors
    /// For people: the entry has something that cannot be used.
    pub(super) fn named(&self, location: &Location, access: &Access) -> Result<Arc<dyn ObjectStore>, String> {
        let url = location.url.as_str();
        let said = |error: object_store::Error| error.to_string();
        Ok(match access {
            Access::Web(web) => {
                let client = HttpClient::new(web_client(web)?);
                let store = HttpBuilder::new()
                    .with_url(&location.url[..url::Position::BeforePath])
                    .with_client_options(client_options(None)?)
                    .with_retry(retry())
                    .with_http_connector(Exact { url: location.url.clone(), client });
                Arc::new(store.build().map_err(said)?)
            }
            Access::Principal(principal) => Arc::new(of_principal(principal, url)?),
            Access::Bucket(key @ Credential::S3(s3), authority) => {
                let plain = s3.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
                let builder = self.s3(Some(key)).with_url(url).with_retry(retry());
                let builder = match authority {
                    Some(_) => builder.with_client_options(client_options(authority.as_ref())?).with_allow_http(plain),
                    None => builder,
                };
                Arc::new(builder.build().map_err(said)?)
            }
            Access::Bucket(key, _) => self.cloud(location, Some(key)).map_err(said)?,
        })
    }
}

fn of_principal(principal: &Principal, url: &str) -> Result<object_store::azure::MicrosoftAzure, String> {
    let builder = MicrosoftAzureBuilder::new()
        .with_client_options(client())
        .with_account(&principal.account)
        .with_client_secret_authorization(&principal.client, principal.secret.expose(), &principal.tenant)
        .with_url(url)
        .with_retry(retry());
    builder.build().map_err(|error| error.to_string())
}

/// The usual options, with a CA beside the system's.
fn client_options(authority: Option<&Secret>) -> Result<ClientOptions, String> {
    let options = client().with_allow_http(true);
    let Some(pem) = authority else { return Ok(options) };
    let all = Certificate::from_pem_bundle(pem.expose().as_bytes()).map_err(|_| unread())?;
    Ok(all.into_iter().fold(options, ClientOptions::with_root_certificate))
}

fn unread() -> String {
    "its certificate is not PEM".to_owned()
}

/// A client with the storage's headers and certificates. It follows no redirection to another place: the headers are for this one.
fn web_client(web: &Web) -> Result<reqwest::Client, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in &web.headers {
        let wrong = || format!("its header {name:?} cannot be sent");
        let key: HeaderName = name.parse().map_err(|_| wrong())?;
        let mut value = HeaderValue::from_str(value.expose()).map_err(|_| wrong())?;
        value.set_sensitive(true);
        headers.insert(key, value);
    }
    let same_place = Policy::custom(|attempt| {
        let stays = attempt.previous().last().is_some_and(|from| from.origin() == attempt.url().origin());
        if stays && attempt.previous().len() <= REDIRECTIONS { attempt.follow() } else { attempt.stop() }
    });
    let mut builder = reqwest::Client::builder()
        .user_agent(AGENT)
        .read_timeout(READ_TIMEOUT)
        .default_headers(headers)
        .redirect(same_place);
    if let Some(pem) = &web.authority {
        let all = reqwest::Certificate::from_pem_bundle(pem.expose().as_bytes()).map_err(|_| unread())?;
        builder = builder.tls_certs_merge(all);
    }
    if let Some(pem) = &web.identity {
        let identity = Identity::from_pem(pem.expose().as_bytes())
            .map_err(|_| "its client_certificate and client_key are not PEM".to_owned())?;
        builder = builder.identity(identity);
    }
    builder.build().map_err(|error| format!("no client can be made ({error})"))
}
