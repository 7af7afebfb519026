//! The privacy of a server's process: what others on this machine learn of its memory and of its environment.
//!
//! ```text
//! start ── secrets in the environment? ──▶ into a file in memory ── exec, without them ──▶ start ── read back ──▶ serve
//! ```
//! What a process was started with stays readable in `/proc/PID/environ` for as long as it runs, whatever it does to its
//! environment. So a server that was given secrets there starts itself anew without them: same process, same program.
#![expect(unsafe_code, reason = "changing the environment is safe only before the first thread")]

use std::{
    ffi::{OsStr, OsString},
    io::{self, Read as _, Seek as _, Write as _},
    os::{
        fd::{FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd},
        unix::{
            ffi::{OsStrExt as _, OsStringExt as _},
            process::CommandExt as _,
        },
    },
    process::Command,
};

use rustix::{
    fs::{MemfdFlags, Mode, memfd_create},
    process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit, umask},
};

use crate::settings::LAUNCHER;

/// The variable that names the file with the secrets.
const HANDED_OVER: &str = "BERTH_HANDED_OVER";

/// Commands that run for long, and hold what others must not read.
const SERVERS: [&str; 5] = ["up", "serve", "node", "modelmesh", "registry"];

/// Parts of names of variables that hold secrets.
const SECRET: [&str; 9] =
    ["SECRET", "TOKEN", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "API_KEY", "ACCESS_KEY", "IDENTITY_HEADER"];

/// Closes the process of a server to others. Called before the first thread.
pub(crate) fn close() {
    let server = std::env::args_os().nth(1).filter(|word| SERVERS.iter().any(|server| *word == *server));
    let Some(server) = server else { return };
    if let Err(error) = hand_over() {
        // There is no log yet, and the server is no worse than its environment.
        let _ = writeln!(io::stderr(), "warning: secrets stay in the environment of this process: {error}");
    }
    // A core is a copy of all secrets.
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let shut = setrlimit(Resource::Core, none).and_then(|()| set_dumpable_behavior(DumpableBehavior::NotDumpable));
    if let Err(error) = shut {
        let _ = writeln!(io::stderr(), "warning: others with this user may read this process's memory: {error}");
    }
    // What it writes is nobody else's. Root's models and functions have users of their own, who read what is prepared for them, also
    // where root's shell would keep that from them; its folder is closed all the same. That of a registry is not: its mask stays.
    if !rustix::process::geteuid().is_root() {
        umask(Mode::RWXG | Mode::RWXO);
    } else if server != "registry" {
        umask(Mode::WGRP | Mode::WOTH);
    }
}

/// Takes the secrets out of the environment that the system shows.
fn hand_over() -> io::Result<()> {
    if let Some(file) = std::env::var_os(HANDED_OVER) {
        return take_back(&file);
    }
    let secrets: Vec<(OsString, OsString)> =
        std::env::vars_os().filter(|(name, value)| is_secret(name, value)).collect();
    if secrets.is_empty() {
        return Ok(());
    }
    // It stays open over the start, and only over this one.
    let mut file = std::fs::File::from(memfd_create(c"berth", MemfdFlags::empty())?);
    for (name, value) in &secrets {
        file.write_all(&[name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat())?;
    }
    file.rewind()?;
    let mut words = std::env::args_os();
    let mut command = Command::new(LAUNCHER);
    command.arg0(words.next().unwrap_or_else(|| "berth".into())).args(words);
    for (name, _) in &secrets {
        command.env_remove(name);
    }
    command.env(HANDED_OVER, OwnedFd::from(file).into_raw_fd().to_string());
    Err(command.exec())
}

fn take_back(file: &OsStr) -> io::Result<()> {
    let number: RawFd = file
        .to_str()
        .and_then(|text| text.parse().ok())
        .filter(|number| *number > 2)
        .ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: the number was given up by this process before it started itself anew, and nobody else has it.
    let mut file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(number) });
    let mut all = Vec::new();
    file.read_to_end(&mut all)?;
    // SAFETY: this process has one thread.
    unsafe { std::env::remove_var(HANDED_OVER) };
    for line in all.split(|byte| *byte == 0) {
        let Some(at) = line.iter().position(|byte| *byte == b'=') else { continue };
        let (name, value) = (OsStr::from_bytes(&line[..at]), OsString::from_vec(line[at + 1..].to_vec()));
        // SAFETY: as above.
        unsafe { std::env::set_var(name, value) };
    }
    Ok(())
}

/// True if a variable holds a secret, by its name, or a URL with a password.
fn is_secret(name: &OsStr, value: &OsStr) -> bool {
    let (name, value) = (name.to_string_lossy().to_ascii_uppercase(), value.to_string_lossy());
    let named = SECRET.iter().any(|part| name.contains(part)) || berth_worker::Config::is_credential(&name);
    let authority = value.split_once("://").and_then(|(_, rest)| rest.split('/').next());
    named || authority.is_some_and(|authority| authority.contains('@'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_name_or_form() {
        for (name, value, secret) in [
            ("AWS_SECRET_ACCESS_KEY", "x", true),
            ("BERTH_TOKEN", "x", true),
            ("vault_token", "x", true),
            ("IDENTITY_HEADER", "x", true),
            ("AZURE_STORAGE_ACCOUNT", "x", true),
            ("UV_DEFAULT_INDEX", "https://u:p@index/simple", true),
            ("UV_DEFAULT_INDEX", "https://index/simple/@x", false),
            ("PATH", "/usr/bin", false),
            ("BERTH_DATA", "/var/lib/berth", false),
        ] {
            assert_eq!(is_secret(OsStr::new(name), OsStr::new(value)), secret, "{name}={value}");
        }
    }
}
