//! Sources besides the API: `--source [NAME=]git+URL#BRANCH`, `--source [NAME=]FOLDER`, `--source etcd=URL` (functions) and
//! `--source kubernetes[=NAMESPACE]`, and the settings of Git sources.

mod git;
mod named_source;
mod texts;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    str::FromStr as _,
    sync::Arc,
    time::Duration,
};

use berth_control::{
    source::{Setup, Source, SourceName, directory::Directory},
    store::etcd::EtcdConfig,
};
use berth_functions::source::{FunctionSource, Host};
use berth_git::{Identity, Remote};
use berth_gitops::{GitMetrics, GitSource, WriteBackTo};
use berth_kubernetes::{KubernetesMetrics, KubernetesSource};
use berth_spec::network::Destination;
use berth_worker::config::SandboxNetwork;
use clap::{Args, ValueEnum};
use prometheus_client::registry::Registry;

use self::{
    named_source::{NamedSource, SourceLocation},
    texts::{author, cluster_name, host_file, write_back},
};
use super::{
    kubernetes::KubernetesArgs,
    store::{EtcdAccess, EtcdOptions, is_loopback},
    values,
};
use crate::failure::Failure;

/// Sources of deployments besides the API.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sources of deployments")]
pub(crate) struct SourceArgs {
    /// Follow a Git registry (git+URL#BRANCH; default branch: main), a folder of manifests (FOLDER), functions in etcd
    /// (etcd=http://HOST:PORT, see docs/functions.md) or objects of Kubernetes (kubernetes[=NAMESPACE], see docs/kubernetes.md). Repeatable. A name may stand in front (NAME=git+URL); the default is
    /// the last part of the URL or path. In a cluster, give all controllers the same sources; only the leader follows them
    #[arg(long, value_name = "[NAME=]PLACE,…", env = "BERTH_SOURCE", value_delimiter = ',', value_parser = NamedSource::from_str)]
    source: Vec<NamedSource>,
    /// CA certificates for the etcd of --source etcd=https://… (PEM) [default: the system's CAs]
    #[arg(long, value_name = "FILE", env = "BERTH_SOURCE_ETCD_CA")]
    source_etcd_ca: Option<PathBuf>,
    /// Client certificate for the etcd of --source (PEM)
    #[arg(long, value_name = "FILE", env = "BERTH_SOURCE_ETCD_CERT")]
    source_etcd_cert: Option<PathBuf>,
    /// Key of that client certificate (PEM)
    #[arg(long, value_name = "FILE", env = "BERTH_SOURCE_ETCD_KEY")]
    source_etcd_key: Option<PathBuf>,
    /// User name in the etcd of --source
    #[arg(long, value_name = "NAME", env = "BERTH_SOURCE_ETCD_USER")]
    source_etcd_user: Option<String>,
    /// File with the password of that user
    #[arg(long, value_name = "FILE", env = "BERTH_SOURCE_ETCD_PASSWORD_FILE")]
    source_etcd_password_file: Option<PathBuf>,
    /// Platform of functions: as their specs say (spec), or this machine for all (local)
    #[arg(long, value_enum, value_name = "WHERE", env = "BERTH_FUNCTION_TARGET", default_value_t)]
    function_target: FunctionTarget,
    #[command(flatten)]
    kubernetes: KubernetesArgs,
    /// Artifacts of functions that are kept beyond those in use, for a way back without a build
    #[arg(long, value_name = "COUNT", env = "BERTH_FUNCTION_ARTIFACTS", default_value_t = 20)]
    function_artifacts: usize,
    /// Image of podman that functions are built in; it has python3 with uv or pip, or node with npm
    #[arg(long, value_name = "IMAGE", env = "BERTH_FUNCTION_BUILDER_IMAGE")]
    function_builder_image: Option<String>,
    /// Hosts that builds of functions may fetch packages from, beside PyPI, npm's registry and those that the environment and the
    /// machine's pip.conf and npmrc name
    #[arg(long, value_name = "HOST:PORT,…", env = "BERTH_FUNCTION_BUILD_HOSTS", value_delimiter = ',')]
    function_build_hosts: Vec<Destination>,
    /// The most of the network that functions on this machine reach: none (a loopback of their own), declared (also the hosts of
    /// their spec.network), machine (everything, also what listens on loopback)
    #[arg(long, value_name = "WHICH", env = "BERTH_FUNCTION_NETWORK", default_value_t)]
    function_network: SandboxNetwork,
    /// Poll interval of a registry's branch; webhooks trigger a poll at once
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
    /// File with the token for registries and model repositories on another host: https://HOST[:PORT]=FILE. Repeatable
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

/// Platform of functions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum FunctionTarget {
    /// As spec.target.platform says
    #[default]
    Spec,
    /// This machine, for all
    Local,
}

/// The sources of a server.
#[derive(Debug)]
pub(crate) struct SourceSettings {
    sources: Vec<NamedSource>,
    /// Certificates and the user of the etcd that functions are followed in.
    etcd: EtcdAccess,
    args: SourceArgs,
}

impl SourceArgs {
    /// The sources; `folder` is one more, in front.
    ///
    /// # Errors
    /// [`Failure::Usage`] for settings that need a Git source, and for names that two sources have.
    pub(crate) fn settings(mut self, folder: Option<PathBuf>) -> Result<SourceSettings, Failure> {
        let named = |path: PathBuf| NamedSource {
            name: SourceName::derived("directory", "directory"),
            place: SourceLocation::Directory(path),
        };
        let sources: Vec<NamedSource> = folder.map(named).into_iter().chain(std::mem::take(&mut self.source)).collect();
        let mut names = BTreeSet::new();
        if let Some(twice) = sources.iter().find(|source| !names.insert(&source.name)) {
            let name = &twice.name;
            return Err(Failure::Usage(format!(
                "two sources are named {name}: give one of them another name, --source NAME=git+URL#BRANCH or NAME=FOLDER"
            )));
        }
        if sources.iter().filter(|source| matches!(source.place, SourceLocation::Etcd(_))).count() > 1 {
            return Err(Failure::Usage(
                "only one source of functions is followed: give --source etcd=URL once".to_owned(),
            ));
        }
        let etcd = self.etcd(etcd_of(&sources))?;
        let settings = SourceSettings { sources, etcd, args: self };
        settings.check()?;
        Ok(settings)
    }
}

impl SourceSettings {
    /// Refuses sources that hand secrets and code to whoever is between: etcd on another machine without TLS.
    ///
    /// # Errors
    /// [`Failure::Usage`]: the address and the remedy.
    pub(crate) fn check_exposed(&self) -> Result<(), Failure> {
        let plain = self.sources.iter().filter_map(|source| match &source.place {
            SourceLocation::Etcd(config) if config.tls.is_none() => Some(config),
            _ => None,
        });
        match plain.flat_map(|config| &config.endpoints).find(|endpoint| !is_loopback(endpoint)) {
            None => Ok(()),
            Some(endpoint) => Err(Failure::Usage(format!(
                "--source etcd=http://{endpoint} is on another machine and has no TLS: write etcd=https://, or say --insecure"
            ))),
        }
    }

    fn check(&self) -> Result<(), Failure> {
        let args = &self.args;
        let hosts: BTreeSet<String> = self.remotes().map(Remote::origin).collect();
        let of_one_host = [
            ("--source-token-file", args.source_token_file.is_some()),
            ("--source-user", args.source_user.is_some()),
            ("--source-ssh-key", args.source_ssh_key.is_some()),
        ];
        let of_git = [
            ("--source-known-hosts", args.source_known_hosts.is_some()),
            ("--source-credentials", !args.source_credentials.is_empty()),
            ("--webhook-secret-file", args.webhook_secret_file.is_some()),
            ("--registry-key", !args.registry_key.is_empty()),
            ("--registry-secrets", args.registry_secrets.is_some()),
            ("--write-back", args.write_back.is_some()),
            ("--write-back-signing-key", args.write_back_signing_key.is_some()),
            ("--vault-addr", args.vault_addr.is_some()),
        ];
        args.kubernetes
            .check(self.sources.iter().any(|source| matches!(source.place, SourceLocation::Kubernetes(_))))?;
        let given = |flags: &[(&'static str, bool)]| flags.iter().find(|(_, given)| *given).map(|(flag, _)| *flag);
        if let (true, Some(flag)) = (hosts.is_empty(), given(&of_one_host).or_else(|| given(&of_git))) {
            return Err(Failure::Usage(format!("{flag} requires a Git source: --source git+URL#BRANCH")));
        }
        if let (true, Some(flag)) = (hosts.len() > 1, given(&of_one_host)) {
            return Err(Failure::Usage(format!(
                "{flag} is for one host, and the Git sources are on {}: use --source-credentials https://HOST=FILE for each",
                hosts.len()
            )));
        }
        Ok(())
    }

    fn remotes(&self) -> impl Iterator<Item = &Remote> {
        self.sources.iter().filter_map(|source| match &source.place {
            SourceLocation::Git { remote, .. } => Some(remote),
            SourceLocation::Directory(_) | SourceLocation::Etcd(_) | SourceLocation::Kubernetes(_) => None,
        })
    }

    /// True if functions are followed.
    pub(crate) fn has_functions(&self) -> bool {
        etcd_of(&self.sources).is_some()
    }

    /// True if all functions run on this machine, whatever their specs say.
    pub(crate) fn functions_are_local(&self) -> bool {
        self.args.function_target == FunctionTarget::Local
    }

    /// True if a registry is on this machine: then its model cards may name repositories of this machine, too, and
    /// workers that load them have to be allowed to read these.
    pub(crate) fn is_local(&self) -> bool {
        self.remotes().any(|remote| remote.scheme() == "file")
    }

    /// Artifacts of functions that are kept beyond those in use.
    pub(crate) fn function_artifacts(&self) -> usize {
        self.args.function_artifacts
    }

    /// The image that functions are built in; `None`: with the tools of this machine.
    pub(crate) fn function_builder_image(&self) -> Option<&str> {
        self.args.function_builder_image.as_deref()
    }

    /// Hosts that functions are built from beside the registries that this machine names.
    pub(crate) fn function_build_hosts(&self) -> &[Destination] {
        &self.args.function_build_hosts
    }

    /// The most of the network that functions on this machine reach.
    pub(crate) fn function_network(&self) -> SandboxNetwork {
        self.args.function_network
    }

    /// The places in one line, for people; `None`: there are no sources.
    pub(crate) fn shown(&self) -> Option<String> {
        let shown = |source: &NamedSource| match &source.place {
            SourceLocation::Directory(path) => path.display().to_string(),
            SourceLocation::Git { remote, branch } => format!("{remote}#{branch}"),
            SourceLocation::Etcd(config) => format!("etcd {}{}/", config.endpoints.join(","), config.prefix),
            SourceLocation::Kubernetes(namespace) => {
                format!("kubernetes, {}", namespace.as_deref().unwrap_or("all namespaces"))
            }
        };
        let places: Vec<String> = self.sources.iter().map(shown).collect();
        (!places.is_empty()).then(|| places.join(", "))
    }

    /// The sources, ready to run; `host` runs functions. Reads the files that hold tokens and keys.
    ///
    /// # Errors
    /// What cannot be read, or does not go together.
    pub(crate) fn build(
        &self,
        data: &Path,
        host: Option<&Arc<Host>>,
        registry: &mut Registry,
    ) -> Result<Setup, Failure> {
        let metrics = self.remotes().next().map(|_| GitMetrics::register(registry));
        let follows = self.sources.iter().any(|named| matches!(named.place, SourceLocation::Kubernetes(_)));
        let of_clusters = if follows { KubernetesMetrics::register(registry) } else { KubernetesMetrics::default() };
        let mut sources: Vec<(SourceName, Arc<dyn Source>)> = Vec::new();
        for NamedSource { name, place } in &self.sources {
            let source: Arc<dyn Source> = match (place, &metrics) {
                (SourceLocation::Directory(path), _) => {
                    Arc::new(Directory::open(path).map_err(|e| Failure::Usage(e.to_string()))?)
                }
                (SourceLocation::Git { remote, branch }, Some(metrics)) => {
                    Arc::new(GitSource::new(self.git(name, remote, branch, data, metrics)?))
                }
                (SourceLocation::Etcd(config), _) => match host {
                    Some(host) => {
                        let config = self.etcd.add_to(config.clone(), ETCD)?;
                        Arc::new(FunctionSource::etcd(config, Arc::clone(host)))
                    }
                    None => continue,
                },
                (SourceLocation::Kubernetes(namespace), _) => {
                    let config = self.args.kubernetes.config(namespace.clone());
                    Arc::new(KubernetesSource::new(config, of_clusters.of(name.as_str())))
                }
                (SourceLocation::Git { .. }, None) => continue,
            };
            sources.push((name.clone(), source));
        }
        let setup = Setup::new(sources).map_err(|error| Failure::Usage(error.to_string()))?;
        // Objects are in one place: people's etcd, or else Berth's own store.
        Ok(match host.filter(|_| !self.has_functions()) {
            Some(host) => setup.with_own(Arc::new(FunctionSource::own(Arc::clone(host)))),
            None => setup,
        })
    }
}

/// Beginning of the names of options for the etcd of `--source`.
const ETCD: &str = "--source-etcd";

/// The etcd that functions are followed in.
fn etcd_of(sources: &[NamedSource]) -> Option<&EtcdConfig> {
    sources.iter().find_map(|source| match &source.place {
        SourceLocation::Etcd(config) => Some(config),
        SourceLocation::Directory(_) | SourceLocation::Git { .. } | SourceLocation::Kubernetes(_) => None,
    })
}

impl SourceArgs {
    /// Certificates and the user of the etcd of `--source`. They have the meaning of those of `--store`.
    fn etcd(&self, source: Option<&EtcdConfig>) -> Result<EtcdAccess, Failure> {
        let options = EtcdOptions {
            ca: self.source_etcd_ca.clone(),
            cert: self.source_etcd_cert.clone(),
            key: self.source_etcd_key.clone(),
            user: self.source_etcd_user.clone(),
            password_file: self.source_etcd_password_file.clone(),
        };
        match (source, options.given()) {
            (Some(config), _) => {
                let address = format!("--source etcd=http://{}", config.endpoints.join(";"));
                options.checked(ETCD, &address, config.tls.is_some(), "etcd=https://")
            }
            (None, Some(name)) => Err(Failure::Usage(format!(
                "{ETCD}-{name} requires a source of functions in etcd: --source etcd=https://HOST:PORT"
            ))),
            (None, None) => Ok(EtcdAccess::default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: SourceArgs,
    }

    fn settings(words: &str, folder: Option<&str>) -> Result<SourceSettings, String> {
        let line: Line = clap::Parser::try_parse_from(std::iter::once("x").chain(words.split_whitespace()))
            .map_err(|error: clap::Error| error.to_string())?;
        line.args.settings(folder.map(PathBuf::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn many_sources_stand_beside_each_other_and_what_does_not_go_together_is_refused() {
        let three =
            settings("--source git+https://a/one.git --source git+https://b/two.git#x,/srv/m", Some("./models"));
        let three = three.expect("settings");
        let names: Vec<&str> = three.sources.iter().map(|source| source.name.as_str()).collect();
        assert_eq!(names, ["directory", "one", "two", "m"]);
        for (words, says) in [
            ("--source git+https://a/r.git --source git+https://b/r.git", "two sources are named r"),
            ("--source /srv/m --source-token-file f", "--source-token-file requires a Git source"),
            ("--vault-addr https://v", "--vault-addr requires a Git source"),
            ("--source /srv/m --source-etcd-user me", "--source-etcd-user requires a source of functions in etcd"),
            ("--source etcd=http://h:1 --source-etcd-ca f", "--source etcd=http://h:1 is without TLS"),
            (
                "--source etcd=https://h --source-etcd-cert f",
                "--source-etcd-cert and --source-etcd-key belong together",
            ),
            ("--source etcd=https://h --source-etcd-user me", "--source-etcd-password-file belong together"),
            ("--source etcd=https://me:secret@h", "use --source-etcd-user and --source-etcd-password-file"),
            ("--kubernetes-selector a=b", "--kubernetes-selector requires a Kubernetes source"),
            ("--source kubernetes --source kubernetes=a", "two sources are named kubernetes"),
            ("--source git+https://a/r.git,git+https://b/s.git --source-token-file f", "is for one host"),
        ] {
            let error = settings(words, None).expect_err(words);
            assert!(error.contains(says), "{words}: {error}");
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
