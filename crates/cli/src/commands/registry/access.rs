//! Access of registry commands to Git: the program, credentials for model repositories, and the cache folder.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use berth_git::{Credentials, Git, GitError, HostKeys, Oid, Protocols, Remote, Repository, Rev, Stop};
use berth_registry::{Remotes, Validator};
use clap::Args;
use fs_err as fs;

use crate::failure::Failure;

/// Access to model repositories.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct AccessArgs {
    /// Use the token in FILE for repositories on HOST, with USER if the host requires one; without PORT, on any port.
    /// Repeatable
    #[arg(long, value_name = "[USER@]HOST[:PORT]=FILE", help_heading = "Model repositories")]
    pub(super) git_token: Vec<String>,
    /// Use this private key for repositories over ssh
    #[arg(long, value_name = "FILE", help_heading = "Model repositories")]
    pub(super) ssh_key: Option<PathBuf>,
    /// Trust only the ssh hosts in this file [default: remember the first key of each host]
    #[arg(long, value_name = "FILE", requires = "ssh_key", help_heading = "Model repositories")]
    pub(super) known_hosts: Option<PathBuf>,
    /// Allow manifests to use repositories on this machine (file:///…). Authors of manifests can then read every file
    /// that this process can
    #[arg(long, help_heading = "Model repositories")]
    pub(super) local_repositories: bool,
    /// Folder for copies of model repositories, cards and tags [default: ~/.cache/berth/registry, for hooks the
    /// folder berth in the repository]
    #[arg(long, value_name = "DIR", help_heading = "Model repositories")]
    pub(super) cache: Option<PathBuf>,
    /// Give up after this long
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = duration, help_heading = "Model repositories")]
    pub(super) timeout: Duration,
}

fn duration(text: &str) -> Result<Duration, String> {
    berth_spec::manifest::parse_duration(text)
}

impl AccessArgs {
    pub(super) fn stop(&self) -> Stop {
        Stop::within(self.timeout)
    }

    pub(super) fn protocols(&self) -> Protocols {
        if self.local_repositories { Protocols::default().with_local() } else { Protocols::default() }
    }

    /// A validator that reads cards; copies are kept in `cache` unless the user says where.
    pub(super) fn validator(&self, git: Arc<Git>, cache: Option<PathBuf>) -> Result<Validator, Failure> {
        let folder = match self.cache.clone().or(cache) {
            Some(folder) => folder,
            None => default_cache()?,
        };
        let credentials = self.credentials(&folder)?;
        let remotes = Remotes::open(git, &folder, self.protocols(), credentials);
        Ok(Validator::new(remotes.map_err(|e| Failure::doing(format!("cannot use {}", folder.display()), e))?))
    }

    fn credentials(&self, cache: &Path) -> Result<Box<berth_registry::CredentialsFor>, Failure> {
        let mut tokens = Vec::new();
        for pair in &self.git_token {
            let wrong = || {
                let how = "write HOST=FILE, for example github.com=/run/secrets/token or git.acme.com:8443=token";
                Failure::Usage(format!("--git-token {pair:?}: {how}"))
            };
            let (host, file) = pair.split_once('=').ok_or_else(wrong)?;
            let (user, host) = host.rsplit_once('@').unwrap_or(("", host));
            if host.is_empty() || host.contains('/') {
                return Err(wrong());
            }
            tokens.push((user.to_owned(), host.to_owned(), fs::read_to_string(file)?.trim().to_owned()));
        }
        let key = self.ssh_key.as_ref().map(fs::read_to_string).transpose()?;
        let hosts = match &self.known_hosts {
            Some(file) => HostKeys::File(std::path::absolute(file)?),
            None => HostKeys::FirstMet(std::path::absolute(cache.join("known_hosts"))?),
        };
        Ok(Box::new(move |remote: &Remote| match (remote.scheme(), &key) {
            ("ssh", Some(key)) => Credentials::SshKey { key: key.clone(), hosts: hosts.clone() },
            ("https" | "http", _) => {
                // The one that names the port comes before the one that does not.
                let fitting = tokens.iter().filter(|(_, host, _)| is_of(host, remote));
                let found = fitting.max_by_key(|(_, host, _)| host.len());
                found.map_or(Credentials::None, |(username, _, token)| Credentials::Token {
                    username: username.clone(),
                    token: token.clone(),
                })
            }
            _ => Credentials::None,
        }))
    }

    /// The same as arguments, paths made absolute, for the script of a hook.
    pub(super) fn arguments(&self) -> Result<Vec<String>, Failure> {
        let absolute = |path: &Path| Ok::<_, Failure>(std::path::absolute(path)?.display().to_string());
        let mut found = Vec::new();
        for pair in &self.git_token {
            let (host, file) = pair.split_once('=').unwrap_or((pair, ""));
            found.extend(["--git-token".to_owned(), format!("{host}={}", absolute(Path::new(file))?)]);
        }
        for (name, path) in
            [("--ssh-key", &self.ssh_key), ("--known-hosts", &self.known_hosts), ("--cache", &self.cache)]
        {
            if let Some(path) = path {
                found.extend([name.to_owned(), absolute(path)?]);
            }
        }
        if self.local_repositories {
            found.push("--local-repositories".to_owned());
        }
        found.extend(["--timeout".to_owned(), format!("{}s", self.timeout.as_secs().max(1))]);
        Ok(found)
    }
}

/// True if a repository is on this host: `HOST`, or `HOST:PORT`.
fn is_of(host: &str, remote: &Remote) -> bool {
    let origin = remote.origin();
    host == remote.host() || origin.split_once("://").is_some_and(|(_, place)| place == host)
}

fn default_cache() -> Result<PathBuf, Failure> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    folder
        .map(|folder| folder.join("berth/registry"))
        .ok_or_else(|| Failure::Usage("neither HOME nor XDG_CACHE_HOME is set: say --cache DIR".to_owned()))
}

/// The `git` of this machine.
pub(super) fn git() -> Arc<Git> {
    Arc::new(Git::new(std::env::vars_os()))
}

/// Current time in seconds since 1970.
pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// A commit as people name it: `HEAD`, a branch, a tag, `origin/main`, `HEAD~1`, or its first digits.
pub(super) fn commit(repository: &Repository, name: &str, stop: &Stop) -> Result<Oid, Failure> {
    if name == "HEAD" {
        let none = || Failure::NotFound("the repository has no commit yet".to_owned());
        return repository.head(stop)?.ok_or_else(none);
    }
    // A branch before a tag of the same name, whatever git takes first.
    for rev in [Rev::Branch(name.to_owned()), Rev::Tag(name.to_owned())].iter().filter(|rev| rev.is_safe()) {
        if let Ok(found) = repository.resolve(rev, stop) {
            return Ok(found);
        }
    }
    let none = || {
        Failure::NotFound(format!(
            "{name:?} is no branch, tag or commit of the repository; of a shallow clone the rest is not here (git fetch \
             --unshallow)"
        ))
    };
    repository.named(name, stop)?.ok_or_else(none)
}

impl From<GitError> for Failure {
    fn from(error: GitError) -> Self {
        use berth_git::Category as C;
        match error.category {
            C::NotFound | C::RefNotFound | C::PathNotFound => Self::NotFound(error.to_string()),
            C::TimedOut => Self::TimedOut(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// The day, as `2026-01-31`.
pub(crate) fn today() -> String {
    berth_registry::day(now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_for_its_host_and_port() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| folder.path().join(name).display().to_string();
        for name in ["all", "one"] {
            fs::write(file(name), name).expect("written");
        }
        let access = |git_token: Vec<String>| AccessArgs { git_token, ..AccessArgs::default() };
        let given = vec![format!("git.acme.com={}", file("all")), format!("ada@git.acme.com:8443={}", file("one"))];
        let credentials = access(given).credentials(folder.path()).expect("tokens");
        for (url, wanted) in [
            ("https://git.acme.com/x.git", Some("all")),
            ("https://git.acme.com:9000/x.git", Some("all")),
            ("https://git.acme.com:8443/x.git", Some("one")),
            ("https://acme.com/x.git", None),
            ("https://git.acme.com.example.com/x.git", None),
        ] {
            let remote = Remote::parse(url, Protocols::default()).expect("a URL");
            let found = match credentials(&remote) {
                Credentials::Token { token, .. } => Some(token),
                _ => None,
            };
            assert_eq!(found.as_deref(), wanted, "{url}");
        }
        for wrong in ["github.com", "https://github.com=x", "=x"] {
            let refused = access(vec![wrong.to_owned()]).credentials(folder.path()).err().expect(wrong);
            assert!(refused.to_string().contains("write HOST=FILE"), "{refused}");
        }
    }
}
