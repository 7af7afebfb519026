//! The object stores behind locations, through one library; opened once per bucket or host.

use std::{
    collections::BTreeMap,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_spec::FailureCategory;
use object_store::{
    BackoffConfig, ClientOptions, HeaderValue, ObjectStore, RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    azure::{AzureConfigKey, MicrosoftAzureBuilder},
    client::{HttpClient, HttpConnector, ReqwestConnector},
    gcp::{GoogleCloudStorageBuilder, GoogleConfigKey},
    http::HttpBuilder,
    path::Path,
};

use super::{
    location::{Kind, Location},
    web::Exact,
};
use crate::fault::Fault;

/// A connection on which nothing comes for this long is broken. Halved, a store that thinks before it answers looks
/// dead; doubled, a dead one holds a fetch for a minute before anybody hears of it.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Opens stores.
#[derive(Debug)]
pub(super) struct Stores {
    /// `AWS_*`, `GOOGLE_*`, `AZURE_*`.
    credentials: BTreeMap<String, String>,
    /// By origin.
    open: Mutex<BTreeMap<String, Arc<dyn ObjectStore>>>,
    web: HttpClient,
}

impl Stores {
    pub(super) fn new(credentials: BTreeMap<String, String>) -> Result<Self, Fault> {
        let web = ReqwestConnector::default().connect(&client().with_allow_http(true)).map_err(Fault::internal)?;
        Ok(Self { credentials, open: Mutex::default(), web })
    }

    /// The store that holds `location`, and the object's name in it.
    pub(super) fn open(&self, location: &Location) -> Result<(Arc<dyn ObjectStore>, Path), Fault> {
        let invalid = |error: object_store::Error| {
            let message = format!("cannot use {}: {}", location.shown(), location.redact(&error.to_string()));
            Fault::new(FailureCategory::Auth, message)
        };
        if location.kind == Kind::Http {
            return Ok((Arc::new(self.web(location).map_err(invalid)?), Path::from("artifact")));
        }
        let path = Path::from_url_path(location.url.path())
            .map_err(|error| Fault::new(FailureCategory::NotFound, format!("{}: {error}", location.shown())))?;
        let origin = location.origin().unwrap_or_default();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = open.get(&origin) {
            return Ok((Arc::clone(store), path));
        }
        let store = self.cloud(location).map_err(invalid)?;
        open.insert(origin, Arc::clone(&store));
        Ok((store, path))
    }

    fn web(&self, location: &Location) -> object_store::Result<object_store::http::HttpStore> {
        HttpBuilder::new()
            .with_url(&location.url[..url::Position::BeforePath])
            .with_client_options(client().with_allow_http(true))
            .with_retry(retry())
            .with_http_connector(Exact { url: location.url.clone(), client: self.web.clone() })
            .build()
    }

    fn cloud(&self, location: &Location) -> object_store::Result<Arc<dyn ObjectStore>> {
        let url = location.url.as_str();
        Ok(match location.kind {
            Kind::Gcs => {
                let builder = GoogleCloudStorageBuilder::new().with_client_options(client());
                let builder =
                    self.known::<GoogleConfigKey>().fold(builder, |b, (key, value)| b.with_config(key, value));
                Arc::new(builder.with_url(url).with_retry(retry()).build()?)
            }
            Kind::Azure => {
                let builder = MicrosoftAzureBuilder::new().with_client_options(client());
                let builder = self.known::<AzureConfigKey>().fold(builder, |b, (key, value)| b.with_config(key, value));
                Arc::new(builder.with_url(url).with_retry(retry()).build()?)
            }
            Kind::S3 | Kind::File | Kind::Http => {
                let builder = AmazonS3Builder::new().with_client_options(client());
                let builder =
                    self.known::<AmazonS3ConfigKey>().fold(builder, |b, (key, value)| b.with_config(key, value));
                Arc::new(builder.with_url(url).with_retry(retry()).build()?)
            }
        })
    }

    /// The settings that a kind of store understands; it ignores the others, as its own `from_env` does.
    fn known<K: FromStr>(&self) -> impl Iterator<Item = (K, &String)> {
        self.credentials.iter().filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value)))
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
