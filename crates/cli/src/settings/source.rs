//! Source of deployments besides the API: `--source git=URL#BRANCH` or `--source directory=PATH`, and settings of a
//! Git registry.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use berth_control::source::git::{Entrance, GitConfig, GitSource, SourceMetrics, WriteBackTo};
use berth_git::{Git, HostKeys, Identity, Protocols, Remote, SigningKey};
use berth_secrets::{
    Keyring, keys,
    vault::{SecretId, Settings as VaultSettings},
};
use berth_spec::Secret;
use clap::Args;
use prometheus_client::registry::Registry;

use super::values;
use crate::failure::Failure;

/// Source of deployments besides the API.
#[derive(Debug, Args)]
#[command(next_help_heading = "Source of deployments")]
pub(crate) struct SourceArgs {
    /// Follow a Git registry (git=URL#BRANCH; default branch: main) or a folder of manifests (directory=PATH). In a
    /// cluster, give all controllers the same source; only the leader follows it
    #[arg(long, value_name = "KIND=PLACE", env = "BERTH_SOURCE", value_parser = Place::from_str)]
    source: Option<Place>,
    /// Poll interval of the registry's branch; webhooks trigger a poll at once
    #[arg(long, value_name = "TIME", env = "BERTH_SOURCE_INTERVAL", default_value = "30s", value_parser = values::duration)]
    source_interval: Duration,
    /// File with the token or password for the registry's host
    #[arg(long, value_name = "FILE", env = "BERTH_SOURCE_TOKEN_FILE")]
    source_token_file: Option<PathBuf>,
    /// User name of the token [default: as the host expects]
    #[arg(long, value_name = "NAME", env = "BERTH_SOURCE_USER")]
    source_user: Option<String>,
    /// ssh private key without a passphrase
    #[arg(long, value_name = "FILE", env = "BERTH_SOURCE_SSH_KEY")]
    source_ssh_key: Option<PathBuf>,
    /// Trusted ssh hosts, in the format of known_hosts
    #[arg(long, value_name = "FILE", env = "BERTH_SOURCE_KNOWN_HOSTS")]
    source_known_hosts: Option<PathBuf>,
    /// File with the token for model repositories on another host: https://HOST[:PORT]=FILE. Repeatable
    #[arg(long, value_name = "URL=FILE,…", env = "BERTH_SOURCE_CREDENTIALS", value_delimiter = ',', value_parser = host_file)]
    source_credentials: Vec<(String, PathBuf)>,
    /// File with the webhook signing secret
    #[arg(long, value_name = "FILE", env = "BERTH_WEBHOOK_SECRET_FILE")]
    webhook_secret_file: Option<PathBuf>,
    /// Private key for workers/secrets: file:PATH, pkcs11:… or exec:/PATH. Repeatable
    #[arg(long, value_name = "KEY", env = "BERTH_REGISTRY_KEY")]
    registry_key: Vec<String>,
    /// Environment variables passed to a pkcs11: or exec: key
    #[arg(long, value_name = "NAME,…", env = "BERTH_REGISTRY_KEY_ENV", value_delimiter = ',')]
    registry_key_env: Vec<String>,
    /// Folder with the secrets that registry.yaml names, one file each: tokens, chat webhooks
    #[arg(long, value_name = "DIR", env = "BERTH_REGISTRY_SECRETS")]
    registry_secrets: Option<PathBuf>,
    /// Branch for the actual state: branch=NAME, main (the followed branch) or off [default: as in registry.yaml,
    /// else branch=berth/actual-state]
    #[arg(long, value_name = "WHERE", env = "BERTH_WRITE_BACK", value_parser = write_back)]
    write_back: Option<WriteBackTo>,
    /// ssh private key that signs Berth's commits
    #[arg(long, value_name = "FILE", env = "BERTH_WRITE_BACK_SIGNING_KEY")]
    write_back_signing_key: Option<PathBuf>,
    /// Author of Berth's commits
    #[arg(long, value_name = "NAME <ADDRESS>", env = "BERTH_WRITE_BACK_AUTHOR", default_value = "Berth <berth@localhost>", value_parser = author)]
    write_back_author: Identity,
    /// Name of this cluster in commits and messages. Clusters that share a registry need different names
    #[arg(long, value_name = "NAME", env = "BERTH_CLUSTER_NAME", default_value = "berth", value_parser = cluster_name)]
    cluster_name: String,
    /// Address of the Vault for workers/secrets
    #[arg(long, value_name = "URL", env = "BERTH_VAULT_ADDR")]
    vault_addr: Option<String>,
    /// Vault namespace of Berth's AppRole
    #[arg(long, value_name = "NAME", env = "BERTH_VAULT_NAMESPACE")]
    vault_namespace: Option<String>,
    /// Role id of Berth's AppRole
    #[arg(long, value_name = "ID", env = "BERTH_VAULT_ROLE_ID")]
    vault_role_id: Option<String>,
    /// File with the secret id of Berth's AppRole; reread at every login
    #[arg(long, value_name = "FILE", env = "BERTH_VAULT_SECRET_ID_FILE")]
    vault_secret_id_file: Option<PathBuf>,
    /// CA certificate of Vault (PEM) [default: the system's CAs]
    #[arg(long, value_name = "FILE", env = "BERTH_VAULT_CA")]
    vault_ca: Option<PathBuf>,
}

/// Location of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Git { remote: Remote, branch: String },
    Directory(PathBuf),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const HOW: &str = "write git=https://HOST/PATH.git#BRANCH or directory=PATH";
        match text.split_once('=') {
            Some(("directory", path)) if !path.is_empty() => Ok(Self::Directory(PathBuf::from(path))),
            Some(("git", place)) => {
                let (url, branch) = place.rsplit_once('#').unwrap_or((place, "main"));
                let remote = Remote::parse(url, protocols()).map_err(|error| error.to_string())?;
                if !berth_git::Rev::Branch(branch.to_owned()).is_safe() {
                    return Err(format!("{branch:?} is no name of a branch: {HOW}"));
                }
                Ok(Self::Git { remote, branch: branch.to_owned() })
            }
            _ => Err(HOW.to_owned()),
        }
    }
}

/// Protocols allowed for repositories that operators name, which may be on this machine. For model cards, validation
/// allows that only if the registry itself is on this machine.
fn protocols() -> Protocols {
    Protocols::default().with_local()
}

fn host_file(text: &str) -> Result<(String, PathBuf), String> {
    const HOW: &str = "write https://HOST[:PORT]=FILE";
    let (url, file) = text.rsplit_once('=').ok_or(HOW)?;
    let remote = Remote::parse(&format!("{}/x", url.trim_end_matches('/')), Protocols::default()).map_err(|_| HOW)?;
    if file.is_empty() { Err(HOW.to_owned()) } else { Ok((remote.origin(), PathBuf::from(file))) }
}

fn write_back(text: &str) -> Result<WriteBackTo, String> {
    match (text, text.strip_prefix("branch=")) {
        ("off", _) => Ok(WriteBackTo::Off),
        ("main", _) => Ok(WriteBackTo::Followed),
        (_, Some(branch)) if berth_git::Rev::Branch(branch.to_owned()).is_safe() => {
            Ok(WriteBackTo::Branch(branch.to_owned()))
        }
        _ => Err("write branch=NAME, main or off".to_owned()),
    }
}

fn author(text: &str) -> Result<Identity, String> {
    let parts = text.strip_suffix('>').and_then(|text| text.split_once('<'));
    match parts.map(|(name, email)| (name.trim(), email.trim())) {
        Some((name, email)) if !name.is_empty() && email.contains('@') => {
            Ok(Identity { name: name.to_owned(), email: email.to_owned() })
        }
        _ => Err("write NAME <ADDRESS>".to_owned()),
    }
}

fn cluster_name(text: &str) -> Result<String, String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !text.is_empty() && text.len() <= 63 && text.chars().all(fine) {
        Ok(text.to_owned())
    } else {
        Err("use up to 63 letters, digits, dashes and dots".to_owned())
    }
}

/// A source that can be run.
#[derive(Debug)]
pub(crate) enum Source {
    /// A folder of manifests.
    Directory(PathBuf),
    /// Git registry.
    Git(Box<GitSettings>),
}

/// Settings of a Git registry.
#[derive(Debug)]
pub(crate) struct GitSettings {
    remote: Remote,
    branch: String,
    args: SourceArgs,
}

impl SourceArgs {
    /// The source, if one was named.
    ///
    /// # Errors
    /// [`Failure::Usage`] for settings that go with no registry.
    pub(crate) fn settings(mut self) -> Result<Option<Source>, Failure> {
        match self.source.take() {
            Some(Place::Git { remote, branch }) => {
                Ok(Some(Source::Git(Box::new(GitSettings { remote, branch, args: self }))))
            }
            other => {
                let stray = [
                    ("--source-token-file", self.source_token_file.is_some()),
                    ("--source-user", self.source_user.is_some()),
                    ("--source-ssh-key", self.source_ssh_key.is_some()),
                    ("--source-known-hosts", self.source_known_hosts.is_some()),
                    ("--source-credentials", !self.source_credentials.is_empty()),
                    ("--webhook-secret-file", self.webhook_secret_file.is_some()),
                    ("--registry-key", !self.registry_key.is_empty()),
                    ("--registry-secrets", self.registry_secrets.is_some()),
                    ("--write-back", self.write_back.is_some()),
                    ("--write-back-signing-key", self.write_back_signing_key.is_some()),
                    ("--vault-addr", self.vault_addr.is_some()),
                ];
                if let Some((flag, _)) = stray.iter().find(|(_, given)| *given) {
                    return Err(Failure::Usage(format!("{flag} requires --source git=URL#BRANCH")));
                }
                Ok(other.map(|place| match place {
                    Place::Directory(path) => Source::Directory(path),
                    Place::Git { .. } => unreachable!("met above"),
                }))
            }
        }
    }
}

impl Source {
    /// True if the registry is on this machine. Its model cards may then name repositories on this machine, and
    /// workers must be allowed to read them.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::Git(git) if git.is_local())
    }

    /// Description for people.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Directory(path) => path.display().to_string(),
            Self::Git(git) => format!("{}#{}", git.remote, git.branch),
        }
    }
}

impl GitSettings {
    /// True if the source is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.remote.scheme() == "file"
    }

    /// The source. Reads the files that hold tokens and keys.
    ///
    /// # Errors
    /// What cannot be read, or does not go together.
    pub(crate) fn build(&self, data: &Path, registry: &mut Registry) -> Result<GitSource, Failure> {
        let Self { remote, branch, args } = self;
        let plain = Protocols::default();
        Ok(GitSource::new(GitConfig {
            cluster: args.cluster_name.clone(),
            protocols: if self.is_local() { plain.with_local() } else { plain },
            credentials: args.credentials(remote)?,
            interval: args.source_interval.max(LEAST),
            folder: data.join("source"),
            git: Arc::new(Git::new(std::env::vars_os())),
            keyring: Arc::new(args.keyring()?),
            vault: args.vault()?,
            write_back: args.write_back.clone(),
            identity: args.write_back_author.clone(),
            signing: args.write_back_signing_key.as_deref().map(text).transpose()?.map(SigningKey::Ssh),
            webhook_secret: args
                .webhook_secret_file
                .as_deref()
                .map(line)
                .transpose()?
                .map(|text| Arc::new(Secret::new(text))),
            secrets: args.registry_secrets.clone(),
            metrics: SourceMetrics::register(registry),
            remote: remote.clone(),
            branch: branch.clone(),
        }))
    }
}

/// Shortest poll interval, to spare the Git host.
const LEAST: Duration = Duration::from_millis(500);

impl SourceArgs {
    /// By origin. The files are read now, so that what is wrong with them is told, and again at each use.
    fn credentials(&self, remote: &Remote) -> Result<BTreeMap<String, Entrance>, Failure> {
        let token = |username: String, file: &Path| Entrance::token(username, file.to_owned()).map_err(Failure::Usage);
        let mut found = BTreeMap::new();
        for (origin, file) in &self.source_credentials {
            found.insert(origin.clone(), token(String::new(), file)?);
        }
        if self.source_token_file.is_some() && self.source_ssh_key.is_some() {
            return Err(Failure::Usage(
                "--source-token-file and --source-ssh-key: give the one that the URL needs".to_owned(),
            ));
        }
        if let Some(file) = &self.source_token_file {
            let username = self.source_user.clone().unwrap_or_default();
            found.insert(remote.origin(), token(username, file)?);
        }
        if let Some(file) = &self.source_ssh_key {
            let hosts = self.source_known_hosts.clone().ok_or_else(|| {
                Failure::Usage(
                    "--source-ssh-key needs --source-known-hosts FILE: `ssh-keyscan HOST` prints what belongs into it, to be \
                     compared with what the host publishes"
                        .to_owned(),
                )
            })?;
            let key = Entrance::ssh_key(file.clone(), HostKeys::File(hosts)).map_err(Failure::Usage)?;
            found.insert(remote.origin(), key);
        }
        Ok(found)
    }

    fn keyring(&self) -> Result<Keyring, Failure> {
        let environment = self.registry_key_env.iter().map(|name| {
            let value = std::env::var_os(name).and_then(|value| value.into_string().ok());
            let value =
                value.ok_or_else(|| Failure::Usage(format!("--registry-key-env {name}: there is no such variable")))?;
            Ok((name.clone(), value))
        });
        let around = keys::KeyEnvironment { environment: environment.collect::<Result<_, Failure>>()? };
        let open =
            |key: &String| keys::open(key, &around).map_err(|error| Failure::Usage(format!("--registry-key: {error}")));
        Ok(Keyring::new(self.registry_key.iter().map(open).collect::<Result<_, Failure>>()?))
    }

    fn vault(&self) -> Result<Option<VaultSettings>, Failure> {
        let Some(addr) = &self.vault_addr else {
            let stray = [
                ("--vault-namespace", self.vault_namespace.is_some()),
                ("--vault-role-id", self.vault_role_id.is_some()),
                ("--vault-secret-id-file", self.vault_secret_id_file.is_some()),
                ("--vault-ca", self.vault_ca.is_some()),
            ];
            return match stray.iter().find(|(_, given)| *given) {
                Some((flag, _)) => Err(Failure::Usage(format!("{flag} requires --vault-addr"))),
                None => Ok(None),
            };
        };
        let missing = |flag| Failure::Usage(format!("--vault-addr needs {flag}, too"));
        let role = self.vault_role_id.as_deref().ok_or_else(|| missing("--vault-role-id"))?;
        let secret = self.vault_secret_id_file.clone().ok_or_else(|| missing("--vault-secret-id-file"))?;
        let settings = VaultSettings::new(addr, role, SecretId::File(secret)).map_err(Failure::Usage)?;
        Ok(Some(VaultSettings { namespace: self.vault_namespace.clone(), ca: self.vault_ca.clone(), ..settings }))
    }
}

fn text(path: &Path) -> Result<String, Failure> {
    Ok(fs_err::read_to_string(path)?)
}

/// A file with one secret, without the end of its line.
fn line(path: &Path) -> Result<String, Failure> {
    let text = text(path)?;
    match text.trim() {
        "" => Err(Failure::Usage(format!("{} holds nothing", path.display()))),
        secret => Ok(secret.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        let git = |url: &str, branch: &str| Place::Git {
            remote: Remote::parse(url, protocols()).expect("a URL"),
            branch: branch.to_owned(),
        };
        for (text, place) in [
            ("git=https://h/r.git#main", Some(git("https://h/r.git", "main"))),
            ("git=https://h/r.git", Some(git("https://h/r.git", "main"))),
            ("git=git@h:r.git#team/x", Some(git("git@h:r.git", "team/x"))),
            ("git=file:///srv/r.git#x", Some(git("file:///srv/r.git", "x"))),
            ("directory=./models", Some(Place::Directory("./models".into()))),
            ("git=https://h/r.git#-x", None),
            ("git=--upload-pack=x", None),
            ("git=https://u:p@h/r.git", None),
            ("./models", None),
            ("directory=", None),
        ] {
            assert_eq!(text.parse::<Place>().ok(), place, "{text}");
        }
    }

    #[test]
    fn destinations_and_authors_are_read() {
        assert_eq!(write_back("branch=actual/prod"), Ok(WriteBackTo::Branch("actual/prod".to_owned())));
        assert_eq!((write_back("main"), write_back("off")), (Ok(WriteBackTo::Followed), Ok(WriteBackTo::Off)));
        for bad in ["branch=", "branch=-x", "branch=a..b", "on"] {
            assert!(write_back(bad).is_err(), "{bad}");
        }
        assert_eq!(author("Berth <b@h>").map(|who| (who.name, who.email)), Ok(("Berth".to_owned(), "b@h".to_owned())));
        assert!(author("Berth").is_err() && host_file("https://h=f").is_ok() && host_file("h=f").is_err());
    }
}
