//! Verifies signatures of commits against keys that the caller trusts.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use tempfile::TempDir;

use crate::{
    Category, GitError, Oid, Repository, Stop,
    auth::{private_folder, write_private},
    group,
};

/// The keys of those who may sign.
#[derive(Debug, Clone)]
pub struct TrustedKeys {
    folder: Arc<TempDir>,
}

/// Signer of a commit, by a key that the caller trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    /// The user id of the GPG key, or the principal of `allowed_signers`.
    pub name: String,
    /// The fingerprint of the key, as `gpg` or `ssh-keygen` prints it.
    pub key: String,
}

const DOING: &str = "check the signature";

impl TrustedKeys {
    /// With ASCII-armoured GPG keys and the lines of an `allowed_signers` file (ssh-keygen(1)).
    ///
    /// # Errors
    /// If a GPG key cannot be read, or there is no `gpg` for them.
    pub fn new(gpg: &[String], allowed_signers: &str, stop: &Stop) -> Result<Self, GitError> {
        let failed = |error: std::io::Error| GitError::io("keep the trusted keys", &error);
        let folder = private_folder().map_err(failed)?;
        write_private(&folder.path().join("allowed_signers"), allowed_signers).map_err(failed)?;
        // Who is in the ring is trusted; there is no web of trust, no agent and no key server.
        let conf = "batch\nno-tty\nno-autostart\ntrust-model always\nno-auto-key-retrieve\n";
        write_private(&folder.path().join("gpg.conf"), conf).map_err(failed)?;
        for key in gpg {
            import(folder.path(), key, stop)?;
        }
        Ok(Self { folder: Arc::new(folder) })
    }
}

fn import(home: &Path, key: &str, stop: &Stop) -> Result<(), GitError> {
    let mut command = Command::new("gpg");
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("GNUPGHOME", home).env("LC_ALL", "C");
    command.args(["--batch", "--no-tty", "--no-autostart", "--import"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let doing = "read a trusted GPG key";
    match group::run(command, Some(key.as_bytes().to_vec()), 64 << 10, None, stop) {
        Ok(finished) if finished.status.success() => Ok(()),
        Ok(finished) => Err(GitError::new(Category::Invalid, doing, finished.words.trim())),
        Err(group::RunError::Io(error)) => Err(GitError::io(doing, &error)),
        Err(_) => Err(GitError::new(Category::TimedOut, doing, "gpg did not end")),
    }
}

impl Repository {
    /// Verifies the signature of a commit and returns its signer.
    ///
    /// # Errors
    /// `Signature` if it is not signed, by somebody else, by a key that has expired or was revoked, or wrongly.
    pub fn verify_commit(&self, commit: &Oid, keys: &TrustedKeys, stop: &Stop) -> Result<Signer, GitError> {
        let home = keys.folder.path();
        let allowed = home.join("allowed_signers").to_string_lossy().into_owned();
        let run = self.run(DOING).args(["verify-commit", "--raw", commit.as_str()]).env("GNUPGHOME", home);
        let run = run.config("gpg.ssh.allowedSignersFile", allowed).config("gpg.program", "gpg");
        let finished = run.config("gpg.ssh.program", "ssh-keygen").finish(stop)?;
        let said = format!("{}\n{}", String::from_utf8_lossy(&finished.out), finished.words);
        let signer = gpg_signer(&said).or_else(|| ssh_signer(&said));
        match signer {
            Some(signer) if finished.status.success() => Ok(signer),
            _ => {
                let message = format!("commit {} {}", commit.short(), why_not(&said));
                Err(GitError::new(Category::Signature, DOING, message))
            }
        }
    }
}

/// `[GNUPG:] GOODSIG KEYID USER ID` and `[GNUPG:] VALIDSIG FINGERPRINT …`.
fn gpg_signer(said: &str) -> Option<Signer> {
    let after = |word: &str| said.lines().find_map(|line| line.strip_prefix("[GNUPG:] ")?.strip_prefix(word));
    let name = after("GOODSIG ")?.split_once(' ')?.1.to_owned();
    // The last word is the primary key's.
    let key = after("VALIDSIG ")?.split(' ').next_back()?.to_owned();
    Some(Signer { name, key })
}

/// `Good "git" signature for NAME with ED25519 key SHA256:…`.
fn ssh_signer(said: &str) -> Option<Signer> {
    let rest = said.lines().find_map(|line| line.strip_prefix("Good \"git\" signature for "))?;
    let (name, key) = rest.rsplit_once(" with ")?;
    Some(Signer { name: name.to_owned(), key: key.rsplit(' ').next()?.to_owned() })
}

fn why_not(said: &str) -> String {
    let known = [
        ("EXPKEYSIG", "is signed by a key that has expired"),
        ("EXPSIG", "has a signature that has expired"),
        ("REVKEYSIG", "is signed by a key that was revoked"),
        ("BADSIG", "has a signature that does not fit its content"),
        ("NO_PUBKEY", "is signed by a GPG key that is not trusted"),
        ("No principal matched", "is signed by an ssh key that is not trusted"),
        ("Good \"git\" signature with", "is signed by an ssh key that is not trusted"),
        ("Could not verify signature", "has a signature that does not fit its content"),
        ("incorrect signature", "has a signature that does not fit its content"),
    ];
    match known.iter().find(|(phrase, _)| said.contains(phrase)) {
        Some((_, words)) => (*words).to_owned(),
        None if said.trim().is_empty() || said.contains("no signature found") => "is not signed".to_owned(),
        None => format!("has no good signature: {}", said.trim()),
    }
}
