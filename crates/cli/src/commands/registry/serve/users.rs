//! Users with tokens, and their roles.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use fs_err as fs;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::{failure::Failure, terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth registry token ada --role ops >> users.yaml      adds the entry

The token is printed to standard error, once. The file holds only the SHA-256 of a token, which is
enough for 256 random bits.")]
pub(crate) struct TokenArgs {
    /// User name
    #[arg(value_name = "NAME", value_parser = name)]
    name: String,
    /// Role of the user
    #[arg(long, value_enum, value_name = "ROLE")]
    role: Role,
}

fn name(text: &str) -> Result<String, String> {
    let plain =
        !text.is_empty() && text.len() <= 64 && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.@".contains(c));
    if plain { Ok(text.to_owned()) } else { Err("use letters, digits, `-`, `_`, `.` and `@`".to_owned()) }
}

/// Role of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// Operations: write the registry
    Ops,
    /// Owners of models: write model repositories
    Ml,
    /// Berth's controllers: read everything, write the actual state
    Controller,
    /// Berth's workers: read
    Worker,
}

/// Permission on a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Access {
    Read,
    Write,
}

impl Role {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ops => "ops",
            Self::Ml => "ml",
            Self::Controller => "controller",
            Self::Worker => "worker",
        }
    }

    pub(super) const fn access(self, is_registry: bool) -> Access {
        match (self, is_registry) {
            (Self::Ops | Self::Controller, true) | (Self::Ml, false) => Access::Write,
            _ => Access::Read,
        }
    }
}

/// User with a role and the hash of a token.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) role: Role,
    token_sha256: String,
}

/// The file of users.
pub(super) struct Users {
    path: PathBuf,
}

impl Users {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path }
    }

    fn read(&self) -> Result<Vec<User>, Failure> {
        let wrong = |error: String| Failure::Invalid(format!("{}: {error}", self.path.display()));
        let users: Vec<User> =
            serde_saphyr::from_str(&fs::read_to_string(&self.path)?).map_err(|e| wrong(e.to_string()))?;
        for user in &users {
            name(&user.name).map_err(|why| wrong(format!("{:?}: {why}", user.name)))?;
        }
        Ok(users)
    }

    /// The names of those who are this.
    pub(super) fn of_role(&self, role: Role) -> Result<Vec<String>, Failure> {
        Ok(self.read()?.into_iter().filter(|user| user.role == role).map(|user| user.name).collect())
    }

    /// Authenticates a request; nobody if the token is missing or wrong.
    pub(super) fn who(&self, headers: &http::HeaderMap) -> Result<Option<User>, Failure> {
        let given = headers.get(http::header::AUTHORIZATION).and_then(|value| credentials(value.as_bytes()));
        let Some((name, token)) = given else { return Ok(None) };
        // Digests of secrets: how long it takes to find them different tells nothing of the token.
        let digest = sha256(&token);
        Ok(self.read()?.into_iter().find(|user| user.name == name && user.token_sha256.eq_ignore_ascii_case(&digest)))
    }
}

/// User name that a request claims, not verified.
pub(super) fn claimed(headers: &http::HeaderMap) -> Option<String> {
    headers.get(http::header::AUTHORIZATION).and_then(|value| credentials(value.as_bytes())).map(|(name, _)| name)
}

/// User and password of `Basic …`.
fn credentials(header: &[u8]) -> Option<(String, String)> {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let (scheme, rest) = std::str::from_utf8(header).ok()?.split_once(' ')?;
    let plain = scheme.eq_ignore_ascii_case("basic").then(|| STANDARD.decode(rest.trim()).ok())??;
    let text = String::from_utf8(plain).ok()?;
    text.split_once(':').map(|(name, token)| (name.to_owned(), token.to_owned()))
}

fn sha256(token: &str) -> String {
    Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn token(args: &TokenArgs) -> Result<(), Failure> {
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
    let token = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
    let digest = sha256(&token);
    terminal::print(&format!("- name: {}\n  role: {}\n  tokenSha256: {digest}\n", args.name, args.role.name()))?;
    eprintln!("the token of {}, shown once: {token}", args.name);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_those_of_the_table() {
        use Access::{Read, Write};
        for (role, registry, model) in [
            (Role::Ops, Write, Read),
            (Role::Ml, Read, Write),
            (Role::Controller, Write, Read),
            (Role::Worker, Read, Read),
        ] {
            assert_eq!((role.access(true), role.access(false)), (registry, model), "{role:?}");
        }
    }

    #[test]
    fn credentials_are_read_from_the_header() {
        assert_eq!(credentials(b"Basic YWRhOnM6Mw=="), Some(("ada".to_owned(), "s:3".to_owned())));
        for header in [&b"Bearer x"[..], b"Basic", b"Basic !!", b"Basic YWRh", b"\xff"] {
            assert_eq!(credentials(header), None);
        }
    }
}
