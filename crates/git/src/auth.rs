//! Credentials for one call: they reach git through its environment or a file that only we can read, and leave with
//! the call.
//!
//! A token is handed out by a credential helper, which git asks once a server wants one, and for this origin alone. A header
//! in the configuration would save that round trip, but git also sends it to whatever host the first answer redirects to.

use std::{
    fmt,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::{Category, GitError, Remote, program::Run};

/// Credentials for one repository, for one call.
#[derive(Clone, Default)]
pub enum Credentials {
    /// No credentials.
    #[default]
    None,
    /// A token or password over HTTP.
    Token {
        /// Empty: what the host expects beside a token.
        username: String,
        /// Token, sent as the password.
        token: String,
    },
    /// A private key over ssh.
    SshKey {
        /// The text of the key file, without a passphrase.
        key: String,
        /// Trusted ssh hosts.
        hosts: HostKeys,
    },
}

/// Trust in ssh host keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostKeys {
    /// Hosts of this text, in the form of `known_hosts`.
    Lines(String),
    /// Hosts of this `known_hosts` file.
    File(PathBuf),
    /// Whichever is met first; it is remembered in this file, and must stay the same.
    FirstMet(PathBuf),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Token { .. } => "Token(…)",
            Self::SshKey { .. } => "SshKey(…)",
        })
    }
}

/// Keeps what the run needs on disk until it has ended.
#[derive(Debug, Default)]
pub(crate) struct AuthFiles(#[expect(dead_code, reason = "removes the folder when dropped")] Option<TempDir>);

impl Credentials {
    /// Adds them to a run against `remote`.
    pub(crate) fn add_to<'a>(&self, run: Run<'a>, remote: &Remote) -> Result<(Run<'a>, AuthFiles), GitError> {
        // Only the remote's own protocol, wherever it redirects to.
        let run = run.env("GIT_ALLOW_PROTOCOL", allowed(remote));
        match (self, remote.scheme()) {
            (Self::Token { username, token }, "https" | "http") => with_token(run, remote, username, token),
            (Self::SshKey { key, hosts }, "ssh") => with_key(run, key, hosts),
            (_, "ssh") => Ok((
                run.env("GIT_SSH_COMMAND", format!("ssh {SSH}")).env("GIT_SSH_VARIANT", "ssh"),
                AuthFiles::default(),
            )),
            // A token is no use to ssh, nor a key to HTTP: the call goes without, and is told what is missing.
            _ => Ok((run, AuthFiles::default())),
        }
    }
}

/// An https URL may be redirected to https only; http to both.
fn allowed(remote: &Remote) -> &'static str {
    match remote.scheme() {
        "http" => "http:https",
        scheme => scheme,
    }
}

fn with_token<'a>(
    run: Run<'a>,
    remote: &Remote,
    username: &str,
    token: &str,
) -> Result<(Run<'a>, AuthFiles), GitError> {
    let refuse = |why: &str| Err(GitError::new(Category::Invalid, "use the token for", why).at(&remote.shown()));
    if remote.scheme() == "http" && !remote.is_loopback() {
        return refuse("it would cross the network in the clear: write an https URL");
    }
    let token = token.trim();
    if token.is_empty() || token.chars().any(char::is_control) || username.contains([':', '\n', '\r']) {
        return refuse("the token is empty, or it or the user name holds control characters");
    }
    let username = match (username, remote.user()) {
        ("", "") => expected_user(remote.host()),
        ("", of_url) => of_url,
        (given, _) => given,
    };
    let run = run.config(format!("credential.{}.helper", remote.origin()), HELPER);
    Ok((run.env(USER, username).env(TOKEN, token), AuthFiles::default()))
}

/// Variables in which the helper finds what it hands out.
const USER: &str = "BERTH_GIT_USER";
const TOKEN: &str = "BERTH_GIT_TOKEN";

/// The helper, for the shell that git runs it with. It answers `get`; what git would have stored or erased is ours to keep.
const HELPER: &str = "!berth() { test \"$1\" = get && printf 'username=%s\\npassword=%s\\n' \"$BERTH_GIT_USER\" \
                      \"$BERTH_GIT_TOKEN\"; }; berth";

/// User name that a host expects beside a token.
fn expected_user(host: &str) -> &'static str {
    match host {
        "bitbucket.org" => "x-token-auth",
        "gitlab.com" => "oauth2",
        _ => "x-access-token",
    }
}

/// Nothing of the user's ssh: no configuration, no agent, no prompt, no connection that stays.
const SSH: &str = "-F /dev/null -oBatchMode=yes -oIdentityAgent=none -oIdentitiesOnly=yes -oControlMaster=no \
                   -oControlPath=none -oConnectTimeout=15 -oServerAliveInterval=15 -oServerAliveCountMax=3 \
                   -oGlobalKnownHostsFile=/etc/ssh/ssh_known_hosts";

fn with_key<'a>(run: Run<'a>, key: &str, hosts: &HostKeys) -> Result<(Run<'a>, AuthFiles), GitError> {
    let failed = |error: std::io::Error| GitError::io("keep the ssh key for the call", &error);
    let folder = private_folder().map_err(failed)?;
    let key_file = folder.path().join("key");
    write_private(&key_file, key).map_err(failed)?;
    let (known, strict) = match hosts {
        HostKeys::Lines(lines) => {
            let file = folder.path().join("known_hosts");
            write_private(&file, lines).map_err(failed)?;
            (file, "yes")
        }
        HostKeys::File(file) => (file.clone(), "yes"),
        HostKeys::FirstMet(file) => (file.clone(), "accept-new"),
    };
    let ssh = format!(
        "ssh {SSH} -i {} -oUserKnownHostsFile={} -oStrictHostKeyChecking={strict}",
        quoted(&key_file)?,
        quoted(&known)?
    );
    let run = run.env("GIT_SSH_COMMAND", ssh).env("GIT_SSH_VARIANT", "ssh");
    Ok((run, AuthFiles(Some(folder))))
}

/// Folder that only this user can enter (`tempfile` creates it so).
pub(crate) fn private_folder() -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix("berth-git-").tempdir()
}

/// Writes a file that only this user can read, with a final newline.
pub(crate) fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = fs_err::OpenOptions::new().write(true).create_new(true).open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    file.write_all(text.as_bytes())?;
    if text.ends_with('\n') { Ok(()) } else { file.write_all(b"\n") }
}

/// For the shell that git hands the command to, and for ssh, which splits some values at blanks.
fn quoted(path: &Path) -> Result<String, GitError> {
    let text = path.to_str().filter(|text| !text.contains(['\'', '"', ' ', '\\', '%', '\n']));
    let odd =
        || GitError::new(Category::Invalid, "hand ssh the path", format!("{} has odd characters", path.display()));
    text.map(|text| format!("'{text}'")).ok_or_else(odd)
}
