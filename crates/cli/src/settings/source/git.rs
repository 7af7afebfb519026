//! Settings of Git sources: credentials, keys of secrets, Vault.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use berth_control::source::SourceName;
use berth_git::{Git, HostKeys, Protocols, Remote, SigningKey};
use berth_gitops::{GitConfig, GitCredentials, GitMetrics};
use berth_secrets::{
    Keyring, keys,
    vault::{SecretId, Settings as VaultSettings},
};
use berth_spec::Secret;

use super::{SourceArgs, SourceSettings};
use crate::failure::Failure;

/// The shortest interval: a host is asked twice a second at most.
const MIN_INTERVAL: Duration = Duration::from_millis(500);

impl SourceSettings {
    /// The settings of one source. Reads the files that hold tokens and keys.
    pub(super) fn git(
        &self,
        name: &SourceName,
        remote: &Remote,
        branch: &str,
        data: &Path,
        metrics: &GitMetrics,
    ) -> Result<GitConfig, Failure> {
        // Workers decide whether they run code that came over http.
        let (args, plain) = (&self.args, Protocols::default().with_http());
        Ok(GitConfig {
            cluster: args.cluster_name.clone(),
            protocols: if remote.scheme() == "file" { plain.with_local() } else { plain },
            credentials: args.credentials(remote)?,
            interval: args.source_interval.max(MIN_INTERVAL),
            // The place of the only source in earlier versions.
            folder: if name.as_str() == "git" { data.join("source") } else { data.join("sources").join(name.as_str()) },
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
            metrics: metrics.of(name.as_str()),
            remote: remote.clone(),
            branch: branch.to_owned(),
        })
    }
}

impl SourceArgs {
    /// By origin. The files are read now, so that what is wrong with them is told, and again at each use.
    fn credentials(&self, remote: &Remote) -> Result<BTreeMap<String, GitCredentials>, Failure> {
        let token =
            |username: String, file: &Path| GitCredentials::token(username, file.to_owned()).map_err(Failure::Usage);
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
            let key = GitCredentials::ssh_key(file.clone(), HostKeys::File(hosts)).map_err(Failure::Usage)?;
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
