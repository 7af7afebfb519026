//! An entry of `storage-config`: the JSON of one storage. Field names: modelmesh-runtime-adapter 0.12
//! `pullman/storageproviders`, KServe 0.15 `docs/samples/storage`.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_spec::{
    Secret,
    credential::{self, Credential, FieldValue, Fields},
};
use serde_json::{Value, json};

use super::super::{checksum, location::Kind};
use crate::fault::Fault;

/// The region of a service that has none.
const REGION: &str = "us-east-1";

/// A storage: its type, its bucket, URL or volume, and how it is reached.
#[derive(Debug)]
pub(super) struct StorageEntry {
    pub(super) kind: Kind,
    pub(super) place: Option<String>,
    /// `None`: with what the environment says, or, of a volume, with nothing.
    pub(super) access: Option<Access>,
    /// Its checksum: another state is another store.
    pub(super) state: String,
}

/// The credentials and connections of a storage.
#[derive(Debug)]
pub(in super::super) enum Access {
    /// A bucket, with the CA of its service.
    Bucket(Credential, Option<Secret>),
    /// A container, for a service principal.
    Principal(Principal),
    /// A web server.
    Web(Web),
}

/// A service principal of Azure.
#[derive(Debug)]
pub(in super::super) struct Principal {
    pub(in super::super) account: String,
    pub(in super::super) client: String,
    pub(in super::super) secret: Secret,
    pub(in super::super) tenant: String,
}

/// A web server: headers of requests, its CA, and the certificate and key of the client.
#[derive(Debug)]
pub(in super::super) struct Web {
    pub(in super::super) headers: Vec<(String, Secret)>,
    pub(in super::super) authority: Option<Secret>,
    pub(in super::super) identity: Option<Secret>,
}

/// The kind of store that the `type` of an entry names; `None`: there is no such type.
pub(super) fn kind(name: &str) -> Option<Kind> {
    Some(match name {
        "s3" => Kind::S3,
        "gcs" | "gs" => Kind::Gcs,
        "azure" => Kind::Azure,
        "http" | "https" => Kind::Http,
        "pvc" => Kind::Volume,
        _ => return None,
    })
}

impl StorageEntry {
    /// A storage of which nothing is known but its type.
    pub(super) fn of_environment(said: &str, name: &str) -> Result<Self, Fault> {
        match kind(said) {
            Some(kind @ (Kind::S3 | Kind::Gcs | Kind::Azure)) => {
                Ok(Self { kind, place: None, access: None, state: String::new() })
            }
            _ => Err(super::wrong(name, "the worker has no --storage-config, which would describe it")),
        }
    }

    /// Reads the JSON of an entry.
    ///
    /// # Errors
    /// For people, without a value.
    pub(super) fn parse(text: &Secret) -> Result<Self, String> {
        let fields: Value = serde_json::from_str(text.expose()).map_err(|_| "its entry is not JSON".to_owned())?;
        let field = |name: &str| fields.get(name).and_then(Value::as_str).filter(|value| !value.is_empty());
        let needed = |name: &str| field(name).ok_or_else(|| format!("its entry lacks {name}"));
        let said = needed("type")?;
        let kind = kind(said).ok_or_else(|| format!("its type {said:?} is not s3, gcs, azure, http or pvc"))?;
        let secret = |name: &str| field(name).map(Secret::new);
        let (place, access) = match kind {
            Kind::S3 => {
                let found = [
                    ("access_key_id", field("access_key_id")),
                    ("secret_access_key", field("secret_access_key")),
                    ("session_token", field("session_token")),
                    ("region", Some(field("region").unwrap_or(REGION))),
                    ("endpoint", field("endpoint_url")),
                ];
                let access = Access::Bucket(build(credential::Kind::S3, &found)?, secret("certificate"));
                (field("bucket").or_else(|| field("default_bucket")), Some(access))
            }
            Kind::Gcs => {
                let document = account(&field)?;
                let access = build(credential::Kind::Gcs, &[("credentials_json", Some(document.as_str()))])?;
                (field("bucket"), Some(Access::Bucket(access, None)))
            }
            Kind::Azure => {
                let access = match (field("client_id"), field("client_secret"), field("tenant_id")) {
                    (Some(client), Some(key), Some(tenant)) => Access::Principal(Principal {
                        account: needed("account_name")?.to_owned(),
                        client: client.to_owned(),
                        secret: Secret::new(key),
                        tenant: tenant.to_owned(),
                    }),
                    _ => {
                        // The account's name is in a connection string as well.
                        let names = ["account_name", "account_key", "connection_string"];
                        Access::Bucket(build(credential::Kind::Azure, &names.map(|name| (name, field(name))))?, None)
                    }
                };
                (field("container").or_else(|| field("bucket")), Some(access))
            }
            Kind::Http => {
                let url = needed("url")?;
                let is_web = url::Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
                if !is_web {
                    return Err("its url is not one of http or https".to_owned());
                }
                (Some(url), Some(Access::Web(web(&fields, &secret)?)))
            }
            _ => (Some(needed("name")?), None),
        };
        let state = checksum::of(text.expose().as_bytes()).to_string();
        Ok(Self { kind, place: place.map(str::to_owned), access, state })
    }
}

/// The headers are texts, or lists of texts of which the first counts.
fn web(fields: &Value, secret: &impl Fn(&str) -> Option<Secret>) -> Result<Web, String> {
    let headers = match fields.get("headers") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Object(headers)) => headers
            .iter()
            .map(|(name, value)| {
                let text = value.as_str().or_else(|| value.as_array()?.first()?.as_str());
                text.map(|text| (name.clone(), Secret::new(text)))
                    .ok_or_else(|| format!("its header {name} is no text"))
            })
            .collect::<Result<_, _>>()?,
        Some(_) => return Err("its headers are no object".to_owned()),
    };
    let identity = match (secret("client_certificate"), secret("client_key")) {
        (Some(certificate), Some(key)) => {
            Some(Secret::new(format!("{}\n{}", certificate.expose(), key.expose()).as_str()))
        }
        (None, None) => None,
        _ => return Err("client_certificate and client_key go together".to_owned()),
    };
    Ok(Web { headers, authority: secret("certificate"), identity })
}

/// The document that Google hands out for a service account, from the parts of it that an entry has.
fn account<'e>(field: &impl Fn(&str) -> Option<&'e str>) -> Result<String, String> {
    if let Some(encoded) = field("base64_service_account") {
        let decoded = STANDARD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        return decoded.ok_or_else(|| "its base64_service_account is not Base64".to_owned());
    }
    let part = |name: &str| field(name).unwrap_or_default();
    let mut document = json!({
        "type": "service_account",
        "private_key": part("private_key"),
        "private_key_id": part("private_key_id"),
        "client_email": part("client_email"),
    });
    // A service of one's own, as emulators are.
    if let Some(url) = field("gcs_base_url") {
        document["gcs_base_url"] = json!(url);
        document["disable_oauth"] = json!(true);
    }
    Ok(document.to_string())
}

fn build(kind: credential::Kind, found: &[(&str, Option<&str>)]) -> Result<Credential, String> {
    let fields: Fields = found
        .iter()
        .filter_map(|(name, value)| Some(((*name).to_owned(), FieldValue::Text(Secret::new((*value)?)))))
        .collect();
    let built = Credential::build(kind, fields).map(|(credential, _)| credential);
    built.map_err(|wrong| wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}
