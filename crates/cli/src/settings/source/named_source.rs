//! The value of `--source`: a name and a place.

use std::{path::PathBuf, str::FromStr};

use berth_control::{source::SourceName, store::etcd::EtcdConfig};
use berth_git::{Protocols, Remote};
use berth_spec::Namespace;

/// A source as people write it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedSource {
    pub(super) name: SourceName,
    pub(super) place: SourceLocation,
}

/// The place of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SourceLocation {
    Git {
        remote: Remote,
        branch: String,
    },
    Directory(PathBuf),
    Etcd(EtcdConfig),
    /// A namespace; `None`: all.
    Kubernetes(Option<String>),
}

impl FromStr for NamedSource {
    type Err = String;

    /// `git=URL#BRANCH`, `etcd=URL`, `kubernetes=NAMESPACE` and `directory=PATH` are names as well as kinds.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, place) = match text.split_once('=') {
            Some((name, place)) if SourceName::new(name).is_ok() => (SourceName::new(name).ok(), place),
            // A folder may have an equals sign in its name: then it begins with a path.
            Some((before, _)) if !before.contains(['/', '+', '.']) => {
                return Err(SourceName::new(before).err().unwrap_or_default());
            }
            _ => (None, text),
        };
        let is = |kind: &str| name.as_ref().is_some_and(|name| name.as_str() == kind);
        let kubernetes = place.strip_prefix("kubernetes").filter(|rest| rest.is_empty() || rest.starts_with('+'));
        let place = match (place.strip_prefix("git+"), place.strip_prefix("etcd+")) {
            (Some(place), _) => SourceLocation::git(place)?,
            (_, Some(place)) => SourceLocation::etcd(place)?,
            _ if let Some(rest) = kubernetes => SourceLocation::kubernetes(rest.strip_prefix('+'))?,
            _ if is("kubernetes") && !place.contains(['/', '.']) => SourceLocation::kubernetes(Some(place))?,
            _ if is("git") => SourceLocation::git(place)?,
            // A folder of this name begins with a path.
            _ if is("etcd") && !place.starts_with(['.', '/']) && !place.starts_with("directory+") => {
                SourceLocation::etcd(place)?
            }
            _ => SourceLocation::folder(place.strip_prefix("directory+").unwrap_or(place))?,
        };
        let name = match (name, &place) {
            (Some(name), _) => name,
            (None, SourceLocation::Git { remote, .. }) => SourceName::derived(&remote.shown(), "git"),
            (None, SourceLocation::Directory(path)) => SourceName::derived(&path.display().to_string(), "directory"),
            (None, SourceLocation::Etcd(_)) => SourceName::derived("etcd", "etcd"),
            (None, SourceLocation::Kubernetes(_)) => SourceName::derived("kubernetes", "kubernetes"),
        };
        Ok(Self { name, place })
    }
}

impl SourceLocation {
    fn git(place: &str) -> Result<Self, String> {
        let (url, branch) = place.rsplit_once('#').unwrap_or((place, "main"));
        let remote = Remote::parse(url, protocols()).map_err(|error| error.to_string())?;
        if !berth_git::Rev::Branch(branch.to_owned()).is_safe() {
            return Err(format!("invalid branch {branch:?}: write git+https://HOST/PATH.git#BRANCH"));
        }
        Ok(Self::Git { remote, branch: branch.to_owned() })
    }

    fn etcd(place: &str) -> Result<Self, String> {
        if !place.contains("://") {
            return Err(format!(
                "{place:?} is not a valid address of etcd: write etcd=http://HOST:PORT, with ; between several addresses and the prefix of the keys \
                 behind them; a folder begins with ./ or /"
            ));
        }
        let config = berth_functions::source::address(place).map_err(|error| {
            // The client of etcd names the options of the cluster's store.
            let error = error.to_string().replace("--store-", "--source-etcd-");
            format!("{error}: write etcd=http://HOST:PORT, with ; between several addresses and the prefix of the keys behind them")
        })?;
        Ok(Self::Etcd(config))
    }

    fn kubernetes(namespace: Option<&str>) -> Result<Self, String> {
        let read = namespace.map(|name| Namespace::new(name).map(|name| name.as_str().to_owned())).transpose();
        read.map(Self::Kubernetes).map_err(|error| format!("{error}: write kubernetes, or kubernetes=NAMESPACE"))
    }

    fn folder(path: &str) -> Result<Self, String> {
        // Not a folder: somebody has left out what says that it is a repository.
        if path.is_empty() || path.contains("://") {
            return Err("write git+https://HOST/PATH.git#BRANCH or the path of a folder".to_owned());
        }
        Ok(Self::Directory(PathBuf::from(path)))
    }
}

/// The protocols of registries: operators may name repositories of this machine, and hosts without TLS, too. Validation checks model cards: only
/// where the registry itself is on this machine may theirs be.
fn protocols() -> Protocols {
    Protocols::default().with_local().with_http()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        let named = |name: &str, place| Some(NamedSource { name: SourceName::new(name).expect("a name"), place });
        let git = |name: &str, url: &str, branch: &str| {
            let remote = Remote::parse(url, protocols()).expect("a URL");
            named(name, SourceLocation::Git { remote, branch: branch.to_owned() })
        };
        let folder = |name: &str, path: &str| named(name, SourceLocation::Directory(path.into()));
        for (text, place) in [
            ("git=https://h/r.git#main", git("git", "https://h/r.git", "main")),
            ("git=https://h/r.git", git("git", "https://h/r.git", "main")),
            ("git=git@h:r.git#team/x", git("git", "git@h:r.git", "team/x")),
            ("git=file:///srv/r.git#x", git("git", "file:///srv/r.git", "x")),
            ("directory=./models", folder("directory", "./models")),
            ("git+https://h/ops/Team-A.git#x", git("team-a", "https://h/ops/Team-A.git", "x")),
            ("git+git@h:r.git#team=x", git("r", "git@h:r.git", "team=x")),
            ("team-b=git+https://h/r.git", git("team-b", "https://h/r.git", "main")),
            ("./models", folder("models", "./models")),
            ("/srv/a=b", folder("a-b", "/srv/a=b")),
            ("more=/srv/models/", folder("more", "/srv/models/")),
            ("more=directory+/srv/models", folder("more", "/srv/models")),
            (
                "etcd=http://h:1",
                named(
                    "etcd",
                    SourceLocation::Etcd(berth_functions::source::address("http://h:1").expect("an address")),
                ),
            ),
            (
                "f=etcd+https://h/p",
                named("f", SourceLocation::Etcd(berth_functions::source::address("https://h/p").expect("an address"))),
            ),
            ("etcd=./models", folder("etcd", "./models")),
            ("etcd=directory+models", folder("etcd", "models")),
            ("etcd=", None),
            ("etcd=models", None),
            ("kubernetes", named("kubernetes", SourceLocation::Kubernetes(None))),
            ("kubernetes=team-a", named("kubernetes", SourceLocation::Kubernetes(Some("team-a".to_owned())))),
            ("k=kubernetes+team-a", named("k", SourceLocation::Kubernetes(Some("team-a".to_owned())))),
            ("prod=kubernetes", named("prod", SourceLocation::Kubernetes(None))),
            ("./kubernetes", folder("kubernetes", "./kubernetes")),
            ("kubernetes=./models", folder("kubernetes", "./models")),
            ("kubernetes=Team", None),
            ("kubernetes+", None),
            ("git=https://h/r.git#-x", None),
            ("git=--upload-pack=x", None),
            ("git=https://u:p@h/r.git", None),
            ("git+https://u:p@h/r.git", None),
            ("https://h/r.git", None),
            ("Team=git+https://h/r.git", None),
            ("directory=", None),
            ("", None),
        ] {
            assert_eq!(text.parse::<NamedSource>().ok(), place, "{text}");
        }
    }
}
