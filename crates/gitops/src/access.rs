//! Credentials of repositories. A file with a token or a key is read at each use, so that a rotated one needs no restart.

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use berth_git::{Credentials, HostKeys};

/// The credentials of the repositories of one host. Clones are one.
#[derive(Clone)]
pub struct GitCredentials(Arc<Inner>);

struct Inner {
    kind: Kind,
    /// The ones that were read last: a file that is being replaced may not be there for a moment.
    last: Mutex<Credentials>,
}

enum Kind {
    Token { username: String, file: PathBuf },
    SshKey { file: PathBuf, hosts: HostKeys },
}

impl GitCredentials {
    /// With the token in `file`; an empty `username`: what the host expects beside a token. Blocks.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn token(username: String, file: PathBuf) -> Result<Self, String> {
        Self::open(Kind::Token { username, file })
    }

    /// With the private key in `file`, without a passphrase. Blocks.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn ssh_key(file: PathBuf, hosts: HostKeys) -> Result<Self, String> {
        Self::open(Kind::SshKey { file, hosts })
    }

    fn open(kind: Kind) -> Result<Self, String> {
        let last = Mutex::new(kind.read()?);
        Ok(Self(Arc::new(Inner { kind, last })))
    }

    /// Reads the credentials. Blocks.
    pub(crate) fn read(&self) -> Credentials {
        let mut last = self.0.last.lock().unwrap_or_else(PoisonError::into_inner);
        match self.0.kind.read() {
            Ok(credentials) => *last = credentials,
            Err(problem) => {
                tracing::warn!(
                    event = "credentials_not_read",
                    problem,
                    "cannot read the file; using its previous content"
                );
            }
        }
        last.clone()
    }
}

impl Kind {
    fn read(&self) -> Result<Credentials, String> {
        let text = |file: &PathBuf| {
            let text = fs_err::read_to_string(file).map_err(|error| error.to_string())?;
            if text.trim().is_empty() { Err(format!("{} holds nothing", file.display())) } else { Ok(text) }
        };
        Ok(match self {
            Self::Token { username, file } => {
                Credentials::Token { username: username.clone(), token: text(file)?.trim().to_owned() }
            }
            Self::SshKey { file, hosts } => Credentials::SshKey { key: text(file)?, hosts: hosts.clone() },
        })
    }
}

impl fmt::Debug for GitCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.kind {
            Kind::Token { file, .. } => write!(f, "GitCredentials(token in {})", file.display()),
            Kind::SshKey { file, .. } => write!(f, "GitCredentials(key in {})", file.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_is_rotated_is_used_at_once_and_one_that_is_away_is_remembered() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        assert!(GitCredentials::token(String::new(), file.clone()).is_err(), "it is not there");
        fs_err::write(&file, "first\n").expect("written");
        let credentials = GitCredentials::token("ops".to_owned(), file.clone()).expect("it is there");
        let token = || match credentials.read() {
            Credentials::Token { username, token } => (username, token),
            _ => panic!("a token"),
        };
        assert_eq!(token(), ("ops".to_owned(), "first".to_owned()));
        fs_err::write(&file, "second\n").expect("written");
        assert_eq!(token().1, "second");
        for nothing in [Some("\n"), None] {
            match nothing {
                Some(text) => fs_err::write(&file, text).expect("written"),
                None => fs_err::remove_file(&file).expect("removed"),
            }
            assert_eq!(token().1, "second");
        }
        assert!(!format!("{credentials:?}").contains("second"));
    }
}
