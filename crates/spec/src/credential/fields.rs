//! Fields of each type of secret: the one table that files, Vault and the command line go by.

use std::collections::BTreeMap;

use super::{Azure, Credential, Gcs, Git, GitAuth, Kind, Registry, S3, Scope, Secret};
use crate::manifest::closest;

/// The longest value, in bytes: a service account with long certificates fits, and a set of many fits
/// [`super::MAX_WIRE`].
pub const MAX_VALUE: usize = 64 << 10;

/// One field of a type of secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// As files write it.
    pub name: &'static str,
    /// True for a secret value: files hold it encrypted.
    pub secret: bool,
    /// True for a list of texts.
    pub list: bool,
    /// True if it may have several lines.
    lines: bool,
    /// True for a field that must be given.
    pub required: bool,
}

const fn field(name: &'static str) -> Field {
    Field { name, secret: false, list: false, lines: false, required: false }
}

impl Field {
    const fn secret(self) -> Self {
        Self { secret: true, ..self }
    }

    const fn list(self) -> Self {
        Self { list: true, ..self }
    }

    const fn lines(self) -> Self {
        Self { lines: true, ..self }
    }

    const fn required(self) -> Self {
        Self { required: true, ..self }
    }
}

/// The scope, which every type has.
const HOSTS: Field = field("hosts").list();
const URLS: Field = field("urls").list();

const OF_S3: [Field; 7] = [
    field("access_key_id").secret().required(),
    field("secret_access_key").secret().required(),
    field("session_token").secret(),
    field("region").required(),
    field("endpoint"),
    HOSTS,
    URLS,
];
const OF_GCS: [Field; 3] = [field("credentials_json").secret().required().lines(), HOSTS, URLS];
const OF_AZURE: [Field; 5] =
    [field("account_name"), field("account_key").secret(), field("connection_string").secret(), HOSTS, URLS];
const OF_GIT: [Field; 7] = [
    field("username"),
    field("token").secret(),
    field("deploy_key").secret().lines(),
    field("known_hosts").lines(),
    field("scopes").list(),
    HOSTS,
    URLS,
];
const OF_REGISTRY: [Field; 5] = [
    field("registry_url").required(),
    field("username").required(),
    field("password").secret().required(),
    HOSTS,
    URLS,
];

impl Kind {
    /// The fields that a secret of this type has beside `type`.
    #[must_use]
    pub const fn fields(self) -> &'static [Field] {
        match self {
            Self::S3 => &OF_S3,
            Self::Gcs => &OF_GCS,
            Self::Azure => &OF_AZURE,
            Self::Git => &OF_GIT,
            Self::Registry => &OF_REGISTRY,
        }
    }

    /// The field of that name.
    ///
    /// # Errors
    /// The text to write instead.
    pub fn field(self, name: &str) -> Result<&'static Field, WrongField> {
        self.fields().iter().find(|field| field.name == name).ok_or_else(|| {
            let known = || self.fields().iter().map(|field| field.name);
            let remedy = match closest(name, known()) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("it has {}", known().collect::<Vec<_>>().join(", ")),
            };
            WrongField::new(name, format!("{self} has no field {name:?}"), remedy)
        })
    }
}

/// The value of a field, as files and Vault give it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldValue {
    /// A text, secret or not.
    Text(Secret),
    /// A list, which is never secret.
    List(Vec<String>),
}

/// The fields of a secret by name, without `type`.
pub type Fields = BTreeMap<String, FieldValue>;

/// An error in a field. Never says its value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}; {remedy}")]
pub struct WrongField {
    /// The name of the field, as files write it.
    pub field: String,
    /// The error, without the value.
    pub message: String,
    /// The remedy, as an imperative.
    pub remedy: String,
}

impl WrongField {
    pub(super) fn new(field: &str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { field: field.to_owned(), message: message.into(), remedy: remedy.into() }
    }
}

impl Credential {
    /// Makes a credential of its fields, and says what it is for.
    ///
    /// # Errors
    /// All that is wrong with them.
    pub fn build(kind: Kind, fields: Fields) -> Result<(Self, Scope), Vec<WrongField>> {
        let mut reader = FieldReader {
            kind,
            wrong: fields.iter().filter_map(|(name, value)| wrong(kind, name, value)).collect(),
            fields,
        };
        reader.missing();
        let (hosts, urls) = (reader.list("hosts"), reader.list("urls"));
        let credential = match kind {
            Kind::S3 => Self::S3(S3 {
                access_key_id: reader.secret("access_key_id"),
                secret_access_key: reader.secret("secret_access_key"),
                session_token: reader.optional("session_token"),
                region: reader.plain("region"),
                endpoint: reader.url("endpoint", Transport::Any),
            }),
            Kind::Gcs => Self::Gcs(Gcs { credentials_json: reader.service_account() }),
            Kind::Azure => {
                let name = reader.optional("account_name").map(|name| name.expose().to_owned());
                let (key, connection) = (reader.optional("account_key"), reader.optional("connection_string"));
                match Azure::new(name, key, connection) {
                    Ok(azure) => Self::Azure(azure),
                    Err(wrong) => return Err(reader.with(wrong)),
                }
            }
            Kind::Git => match reader.git() {
                Ok(auth) => Self::Git(Git { auth, scopes: reader.list("scopes") }),
                Err(wrong) => return Err(reader.with(wrong)),
            },
            Kind::Registry => Self::Registry(Registry {
                username: reader.plain("username"),
                password: reader.secret("password"),
                registry_url: reader.url("registry_url", Transport::Private).unwrap_or_default(),
            }),
        };
        let scope = Scope::new(&hosts, &urls, &credential).map_err(|wrong| reader.with(wrong))?;
        if reader.wrong.is_empty() { Ok((credential, scope)) } else { Err(reader.wrong) }
    }
}

/// Checks of a value alone.
fn wrong(kind: Kind, name: &str, value: &FieldValue) -> Option<WrongField> {
    let field = match kind.field(name) {
        Ok(field) => field,
        Err(wrong) => return Some(wrong),
    };
    let texts: Vec<&str> = match value {
        FieldValue::Text(_) if field.list => {
            return Some(WrongField::new(name, "this is a list", format!("write {name}: [ONE, ANOTHER]")));
        }
        FieldValue::List(_) if !field.list => {
            return Some(WrongField::new(name, "this is one text, not a list", format!("write {name}: TEXT")));
        }
        FieldValue::Text(text) => vec![text.expose()],
        FieldValue::List(texts) => texts.iter().map(String::as_str).collect(),
    };
    texts.into_iter().find_map(|text| {
        let control = |c: char| c.is_control() && !(field.lines && matches!(c, '\n' | '\r' | '\t'));
        if text.trim().is_empty() {
            Some(WrongField::new(name, "it is empty", "write its value, or leave the field out"))
        } else if text.len() > MAX_VALUE {
            Some(WrongField::new(name, format!("it is longer than {MAX_VALUE} bytes"), "write a shorter one"))
        } else if text.chars().any(control) {
            let message = "it has a control character, perhaps the end of a line";
            Some(WrongField::new(name, message, "write the value alone, without a line's end"))
        } else {
            None
        }
    })
}

/// Rule for URLs whose traffic others can read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    /// Requests are signed: any transport will do.
    Any,
    /// The secret itself is sent: only an encrypted transport will do.
    Private,
}

/// Takes the fields of a credential one by one and collects what is wrong with them.
struct FieldReader {
    kind: Kind,
    fields: Fields,
    wrong: Vec<WrongField>,
}

impl FieldReader {
    fn with(&mut self, wrong: WrongField) -> Vec<WrongField> {
        self.wrong.push(wrong);
        std::mem::take(&mut self.wrong)
    }

    fn missing(&mut self) {
        for field in self.kind.fields().iter().filter(|field| field.required) {
            if !self.fields.contains_key(field.name) {
                let message = format!("{} lacks its field {}", self.kind, field.name);
                self.wrong.push(WrongField::new(field.name, message, format!("add {}", field.name)));
            }
        }
    }

    fn optional(&mut self, name: &str) -> Option<Secret> {
        match self.fields.remove(name) {
            Some(FieldValue::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The missing value; that has been said.
    fn secret(&mut self, name: &str) -> Secret {
        self.optional(name).unwrap_or_default()
    }

    fn plain(&mut self, name: &str) -> String {
        self.secret(name).expose().to_owned()
    }

    fn list(&mut self, name: &str) -> Vec<String> {
        match self.fields.remove(name) {
            Some(FieldValue::List(items)) => items,
            _ => Vec::new(),
        }
    }

    fn url(&mut self, name: &str, transport: Transport) -> Option<String> {
        let text = self.optional(name)?.expose().to_owned();
        let full = if text.contains("://") { text.clone() } else { format!("https://{text}") };
        let remedy = match transport {
            Transport::Any => "write https://HOST[:PORT]",
            Transport::Private => "write https://HOST[:PORT]; http is for this machine alone",
        };
        let message = match url::Url::parse(&full) {
            Err(error) => format!("it is no URL: {error}"),
            Ok(url) if !matches!(url.scheme(), "http" | "https") => "its scheme is neither https nor http".to_owned(),
            Ok(url) if !url.username().is_empty() || url.password().is_some() => "it has a user in it".to_owned(),
            Ok(url) if transport == Transport::Private && url.scheme() == "http" && !is_loopback(&url) => {
                "over http others can read the password".to_owned()
            }
            Ok(_) => return Some(text),
        };
        self.wrong.push(WrongField::new(name, message, remedy));
        None
    }

    /// The service account, which must be one: other documents of Google name files and URLs to ask.
    fn service_account(&mut self) -> Secret {
        let json = self.secret("credentials_json");
        let value: Option<serde_json::Value> = serde_json::from_str(json.expose()).ok();
        let text = |name: &str| value.as_ref().and_then(|value| value.get(name)).and_then(serde_json::Value::as_str);
        if text("type") != Some("service_account") || text("private_key").is_none() || text("client_email").is_none() {
            let message = "this is not the JSON document of a service account";
            let remedy = "it needs type: service_account, client_email and private_key, as Google hands it out";
            self.wrong.push(WrongField::new("credentials_json", message, remedy));
        }
        json
    }

    fn git(&mut self) -> Result<GitAuth, WrongField> {
        let username = self.optional("username").map(|name| name.expose().to_owned());
        let known_hosts = self.optional("known_hosts").map(|lines| lines.expose().to_owned());
        match (self.optional("token"), self.optional("deploy_key")) {
            (Some(_), Some(_)) => Err(WrongField::new(
                "deploy_key",
                "a git_token has a token or a deploy_key, not both",
                "make two secrets of them",
            )),
            (None, None) => {
                Err(WrongField::new("token", "git_token lacks its token", "add token, or deploy_key for SSH"))
            }
            (Some(_), None) if known_hosts.is_some() => {
                Err(WrongField::new("known_hosts", "a token is not used over SSH", "leave known_hosts out"))
            }
            (Some(token), None) => Ok(GitAuth::Token { username, token }),
            (None, Some(_)) if username.is_some() => {
                Err(WrongField::new("username", "over SSH the user is in the URL", "leave username out"))
            }
            (None, Some(key)) if !key.expose().contains("PRIVATE KEY-----") => Err(WrongField::new(
                "deploy_key",
                "this is not a private key",
                "write the whole file with its BEGIN and END lines; the public half stays at the host",
            )),
            (None, Some(deploy_key)) => Ok(GitAuth::DeployKey { deploy_key, known_hosts }),
        }
    }
}

/// True for a URL of this machine.
fn is_loopback(url: &url::Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}
