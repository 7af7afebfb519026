//! The object stores behind locations, through one library; opened once per bucket or host.
//!
//! What the controller hands out for a location goes before what is in the environment. When that changes, stores are
//! opened anew for what comes next; what is under way ends with what it began with. A location that has a storage of its own
//! (`storage`) is reached with that.

mod named;

use std::{
    collections::BTreeMap,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_spec::{
    CredentialSet, FailureCategory, Generation,
    credential::{self, Credential, Granted},
};
use object_store::{
    BackoffConfig, ClientOptions, HeaderValue, ObjectStore, RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    azure::{AzureConfigKey, MicrosoftAzureBuilder},
    client::{HttpClient, HttpConnector, ReqwestConnector},
    gcp::{GoogleCloudStorageBuilder, GoogleConfigKey},
    http::HttpBuilder,
    path::Path,
};
use tokio::sync::watch;

use super::{
    location::{Kind, Location},
    storage::{Storage, StorageSettings},
    web::Exact,
};
use crate::fault::Fault;

/// The silence after which a connection counts as broken: longer than a store thinks before it answers, and short
/// enough that people soon hear of a dead one.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// The most stores that stay open: more buckets than a worker uses at once.
const MOST_OPEN: usize = 1_000;

/// Opens object stores and web servers for locations, and keeps them open for later fetches.
#[derive(Debug)]
pub(super) struct Stores {
    /// `AWS_*`, `GOOGLE_*`, `AZURE_*`.
    credentials: BTreeMap<String, String>,
    keys: Option<watch::Receiver<Arc<CredentialSet>>>,
    storages: StorageSettings,
    open: Mutex<OpenStores>,
    web: HttpClient,
}

/// The stores that are open, by the location that their credentials are for, and which set those came from.
#[derive(Debug, Default)]
struct OpenStores {
    generation: Generation,
    stores: BTreeMap<String, Arc<dyn ObjectStore>>,
}

impl Stores {
    pub(super) fn new(credentials: BTreeMap<String, String>) -> Result<Self, Fault> {
        let web = ReqwestConnector::default().connect(&client().with_allow_http(true)).map_err(Fault::internal)?;
        Ok(Self { credentials, keys: None, storages: StorageSettings::default(), open: Mutex::default(), web })
    }

    pub(super) fn with_keys(self, keys: watch::Receiver<Arc<CredentialSet>>) -> Self {
        Self { keys: Some(keys), ..self }
    }

    pub(super) fn with_storages(self, storages: StorageSettings) -> Self {
        Self { storages, ..self }
    }

    /// The settings of storages by name.
    pub(super) fn storages(&self) -> StorageSettings {
        self.storages.clone()
    }

    /// The credentials that the controller has handed out.
    fn keys(&self) -> Arc<CredentialSet> {
        self.keys.as_ref().map(|keys| Arc::clone(&keys.borrow())).unwrap_or_default()
    }

    /// The name and type of the secret for a location.
    pub(super) fn secret(&self, location: &Location) -> Option<String> {
        let keys = self.keys();
        granted(&keys, location).map(|(name, found)| format!("{name} ({})", found.credential.kind()))
    }

    /// The store that holds `location`, and the object's name in it.
    pub(super) fn open(&self, location: &Location) -> Result<(Arc<dyn ObjectStore>, Path), Fault> {
        if let Some(storage) = &location.storage {
            return self.open_storage(location, storage);
        }
        let invalid = |error: object_store::Error| {
            let message = format!("cannot use {}: {}", location.shown(), location.redact(&error.to_string()));
            Fault::new(FailureCategory::Auth, message)
        };
        let keys = self.keys();
        let granted = granted(&keys, location);
        if location.kind == Kind::Http && granted.is_none() {
            return Ok((Arc::new(self.web(location).map_err(invalid)?), Path::from("artifact")));
        }
        let inside = match location.kind {
            // The first part is the container.
            Kind::Http => location.url.path().trim_start_matches('/').split_once('/').map_or("", |(_, path)| path),
            _ => location.url.path(),
        };
        let path = Path::from_url_path(inside)
            .map_err(|error| Fault::new(FailureCategory::NotFound, format!("{}: {error}", location.shown())))?;
        // Two folders of one bucket may have two secrets.
        let name = granted.map_or_else(String::new, |(name, _)| format!(" {name}"));
        let container = (location.kind == Kind::Http).then(|| location.url.path().split('/').nth(1)).flatten();
        let name = location.origin().unwrap_or_default() + "/" + container.unwrap_or_default() + &name;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.generation != keys.generation {
            *open = OpenStores { generation: keys.generation, stores: BTreeMap::new() };
        }
        if let Some(store) = open.stores.get(&name) {
            return Ok((Arc::clone(store), path));
        }
        let store = self.cloud(location, granted.map(|(_, granted)| &granted.credential)).map_err(invalid)?;
        open.stores.insert(name, Arc::clone(&store));
        Ok((store, path))
    }

    /// The same for a location with a storage of its own.
    fn open_storage(&self, location: &Location, storage: &Storage) -> Result<(Arc<dyn ObjectStore>, Path), Fault> {
        let invalid = |reason: String| {
            let message = format!("cannot use {}: {}", location.shown(), location.redact(&reason));
            Fault::new(FailureCategory::Auth, message)
        };
        if location.kind == Kind::Http {
            let store = self.named(location, &storage.access).map_err(invalid)?;
            return Ok((store, Path::from("artifact")));
        }
        let path = Path::from_url_path(location.url.path())
            .map_err(|error| Fault::new(FailureCategory::NotFound, format!("{}: {error}", location.shown())))?;
        let name = format!("{} {}", location.origin().unwrap_or_default(), storage.key);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = open.stores.get(&name) {
            return Ok((Arc::clone(store), path));
        }
        let store = self.named(location, &storage.access).map_err(invalid)?;
        // Entries that changed leave theirs behind.
        if open.stores.len() >= MOST_OPEN {
            open.stores.clear();
        }
        open.stores.insert(name, Arc::clone(&store));
        Ok((store, path))
    }

    /// The store that holds the folder `location`, and the folder's prefix in it. Web servers are asked by WebDAV.
    pub(super) fn open_folder(&self, location: &Location) -> Result<(Arc<dyn ObjectStore>, Path), Fault> {
        if location.kind != Kind::Http || location.storage.is_some() || granted(&self.keys(), location).is_some() {
            return self.open(location);
        }
        let store = HttpBuilder::new()
            .with_url(&location.url[..url::Position::AfterPath])
            .with_client_options(client().with_allow_http(true))
            .with_retry(retry())
            .build();
        let store = store.map_err(|error| {
            let message = format!("cannot use {}: {}", location.shown(), location.redact(&error.to_string()));
            Fault::new(FailureCategory::Auth, message)
        })?;
        Ok((Arc::new(store), Path::default()))
    }

    fn web(&self, location: &Location) -> object_store::Result<object_store::http::HttpStore> {
        HttpBuilder::new()
            .with_url(&location.url[..url::Position::BeforePath])
            .with_client_options(client().with_allow_http(true))
            .with_retry(retry())
            .with_http_connector(Exact { url: location.url.clone(), client: self.web.clone() })
            .build()
    }

    fn cloud(&self, location: &Location, key: Option<&Credential>) -> object_store::Result<Arc<dyn ObjectStore>> {
        let url = location.url.as_str();
        Ok(match location.kind {
            Kind::Gcs => Arc::new(self.gcs(key).with_url(url).with_retry(retry()).build()?),
            Kind::Azure | Kind::Http => Arc::new(self.azure(key).with_url(url).with_retry(retry()).build()?),
            Kind::S3 | Kind::File | Kind::Storage | Kind::Volume => {
                Arc::new(self.s3(key).with_url(url).with_retry(retry()).build()?)
            }
        })
    }

    fn s3(&self, key: Option<&Credential>) -> AmazonS3Builder {
        // Where and how stays what the environment says; who one is does not.
        let kept = |name: &str| key.is_none() || S3_SURROUNDINGS.contains(&name);
        // An endpoint says by itself that it speaks plain HTTP; AWS_ALLOW_HTTP, read below, may forbid it.
        let is_plain = |name: &&str| self.credentials.get(*name).is_some_and(|url| url.starts_with("http://"));
        let plain = S3_ENDPOINTS.iter().any(is_plain);
        let builder = AmazonS3Builder::new().with_client_options(client()).with_allow_http(plain);
        let builder = self.known::<AmazonS3ConfigKey>(kept).fold(builder, |b, (key, value)| b.with_config(key, value));
        let Some(Credential::S3(key)) = key else { return builder };
        let builder = builder
            .with_access_key_id(key.access_key_id.expose())
            .with_secret_access_key(key.secret_access_key.expose())
            .with_region(&key.region);
        let builder = key.session_token.iter().fold(builder, |b, token| b.with_token(token.expose()));
        key.endpoint
            .iter()
            .fold(builder, |b, endpoint| b.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://")))
    }

    fn gcs(&self, key: Option<&Credential>) -> GoogleCloudStorageBuilder {
        let builder = GoogleCloudStorageBuilder::new().with_client_options(client());
        let builder =
            self.known::<GoogleConfigKey>(|_| key.is_none()).fold(builder, |b, (key, value)| b.with_config(key, value));
        let Some(Credential::Gcs(key)) = key else { return builder };
        let json = key.credentials_json.expose();
        // A service of one's own, as emulators are: the key says where it is.
        let place = serde_json::from_str::<serde_json::Value>(json).ok();
        let place = place.as_ref().and_then(|key| key.get("gcs_base_url")?.as_str());
        let plain = place.is_some_and(|url| url.starts_with("http://"));
        builder.with_client_options(client().with_allow_http(plain)).with_service_account_key(json)
    }

    fn azure(&self, key: Option<&Credential>) -> MicrosoftAzureBuilder {
        let builder = MicrosoftAzureBuilder::new().with_client_options(client());
        let builder =
            self.known::<AzureConfigKey>(|_| key.is_none()).fold(builder, |b, (key, value)| b.with_config(key, value));
        let Some(Credential::Azure(key)) = key else { return builder };
        let builder = key.account().into_iter().fold(builder, MicrosoftAzureBuilder::with_account);
        let builder = key.key().into_iter().fold(builder, MicrosoftAzureBuilder::with_access_key);
        let builder =
            key.signature().into_iter().fold(builder, |b, sas| b.with_config(AzureConfigKey::SasKey, sas.to_owned()));
        key.endpoint().into_iter().fold(builder, |b, endpoint| {
            let plain = endpoint.starts_with("http://");
            b.with_endpoint(endpoint).with_allow_http(plain)
        })
    }

    /// The settings that a kind of store understands, of those whose name is `kept`; it ignores the others, as its own
    /// `from_env` does.
    fn known<K: FromStr>(&self, kept: impl Fn(&str) -> bool) -> impl Iterator<Item = (K, &String)> {
        let kept = self.credentials.iter().filter(move |(name, _)| kept(name));
        kept.filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value)))
    }
}

/// Settings of S3 that say where a service is.
const S3_ENDPOINTS: [&str; 3] = ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"];

/// Settings of S3 that say where a service is and how it is spoken to.
const S3_SURROUNDINGS: [&str; 5] =
    ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AWS_ALLOW_HTTP", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"];

/// The secret that opens the store behind a location; web servers and files have none, but for Azure's own, where it must be
/// that very account's.
fn granted<'a>(keys: &'a CredentialSet, location: &Location) -> Option<(&'a str, &'a Granted)> {
    let url = location.url.as_str();
    match location.kind {
        Kind::S3 => keys.granted(url, credential::Kind::S3),
        Kind::Gcs => keys.granted(url, credential::Kind::Gcs),
        Kind::Azure => keys.granted(url, credential::Kind::Azure),
        Kind::Http => {
            let account = location.azure_account()?;
            let suits = |found: &Credential| matches!(found, Credential::Azure(key) if key.account() == Some(account));
            keys.granted_of(url, credential::Kind::Azure, suits)
        }
        Kind::File | Kind::Storage | Kind::Volume => None,
    }
}

fn client() -> ClientOptions {
    ClientOptions::new()
        .with_user_agent(HeaderValue::from_static(concat!("berth/", env!("CARGO_PKG_VERSION"))))
        // A limit on a whole answer would cut off large artifacts on slow lines; a limit on silence does not.
        .with_timeout_disabled()
        .with_read_timeout(READ_TIMEOUT)
}

/// Hiccups are retried at once, below; outages are the agent's, which waits longer and tells people.
fn retry() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(2),
            base: 2.0,
        },
        max_retries: 2,
        retry_timeout: Duration::from_secs(20),
    }
}
