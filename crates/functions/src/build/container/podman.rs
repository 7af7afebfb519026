//! Questions to podman, and the removal of containers: each within a time.

use std::{
    io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::mpsc::{SyncSender, sync_channel},
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::process::Command;

use crate::build::sandbox::fresh;

/// The longest that podman takes to answer a question: a large image is mounted for the first time.
pub(super) const ASK: Duration = Duration::from_secs(60);

/// Containers that wait for the remover. Of further ones podman ends the program, and the next start removes the rest.
const QUEUE: usize = 64;

/// A container to remove, and then its folder.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) name: String,
    pub(super) folder: Option<PathBuf>,
}

/// The reason why there is no answer of a container, with its exit status.
pub(super) struct NoAnswer {
    pub(super) code: Option<i32>,
    pub(super) why: String,
}

/// Standard output of a question.
pub(super) async fn answer(mut command: Command) -> Result<String, NoAnswer> {
    command.stdin(Stdio::null()).kill_on_drop(true);
    match tokio::time::timeout(ASK, command.output()).await {
        Ok(Ok(output)) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        Ok(Ok(output)) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(NoAnswer { code: output.status.code(), why: last_words(&said) })
        }
        Ok(Err(error)) => Err(NoAnswer { code: None, why: error.to_string() }),
        Err(_) => Err(NoAnswer { code: None, why: format!("podman has not answered for {} s", ASK.as_secs()) }),
    }
}

/// The last line that says something.
pub(super) fn last_words(said: &str) -> String {
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    last.unwrap_or("podman says nothing").chars().take(300).collect()
}

/// The command that removes containers, running or not.
pub(super) fn removal(podman: &Path) -> std::process::Command {
    let mut command = std::process::Command::new(podman);
    command.args(["rm", "--force", "--ignore", "--time", "0"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Runs a program to its end, which has to be a good one within the time for an answer. Blocks.
pub(super) fn done(mut command: std::process::Command) -> io::Result<()> {
    let mut child = command.spawn()?;
    let until = Instant::now() + ASK;
    loop {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(io::Error::other(format!("podman has ended ({status})"))),
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
            None => {
                // It may have ended meanwhile.
                let _ = child.kill();
                let _ = child.wait();
                return Err(io::Error::new(io::ErrorKind::TimedOut, "podman does not answer"));
            }
        }
    }
}

/// Answer of podman to words. A file takes it: a pipe may be held open by a process that podman leaves behind. Blocks.
pub(super) fn asked(podman: &Path, words: &[&str], own: &Path) -> io::Result<String> {
    let place = own.join("answer");
    let mut command = std::process::Command::new(podman);
    command.args(words).stdin(Stdio::null()).stdout(fresh(&place)?.into_parts().0).stderr(Stdio::null());
    done(command)?;
    let said = fs_err::read_to_string(&place)?;
    fs_err::remove_file(&place)?;
    Ok(said)
}

/// Removes the containers that an earlier process left behind. Blocks.
pub(super) fn clear_left_behind(podman: &Path, label: &str, own: &Path) {
    let filter = format!("label={label}");
    let removed = asked(podman, &["ps", "--all", "--quiet", "--filter", &filter], own).and_then(|names| {
        let names: Vec<&str> = names.split_whitespace().collect();
        if names.is_empty() {
            return Ok(());
        }
        let mut command = removal(podman);
        command.args(names);
        done(command)
    });
    if let Err(error) = removed {
        tracing::warn!(event = "function_containers_left", %error, "containers of builds of an earlier start may be left");
    }
}

/// Says so where podman cannot bound what a step takes; true if it can bound the processors.
pub(super) fn bounds(podman: &Path, own: &Path) -> bool {
    let about = asked(podman, &["info", "--format", "json"], own).unwrap_or_default();
    let about: Value = serde_json::from_str(&about).unwrap_or_default();
    if let Some(why) = unlimited(&about) {
        tracing::warn!(event = "function_not_fenced", why, "builds in containers take what they want");
    }
    holds(&about, "cpu")
}

/// True if podman, which tells this about itself, has a control group. It refuses to run a container with a limit of another.
pub(super) fn holds(about: &Value, wanted: &str) -> bool {
    let controllers = about["host"]["cgroupControllers"].as_array();
    controllers.is_some_and(|controllers| controllers.iter().any(|controller| controller.as_str() == Some(wanted)))
}

/// The reason why podman, which tells this about itself, holds no limits.
pub(super) fn unlimited(about: &Value) -> Option<&'static str> {
    let host = &about["host"];
    if host["security"]["rootless"].as_bool() != Some(true) {
        return None;
    }
    if host["cgroupVersion"].as_str() == Some("v1") {
        return Some("podman without root holds no limits with cgroups of version 1");
    }
    (!holds(about, "memory") || !holds(about, "pids"))
        .then_some("the control groups memory and pids are not delegated to this user")
}

/// Starts the thread that removes containers.
pub(super) fn remover(podman: PathBuf) -> io::Result<SyncSender<Gone>> {
    let (sender, gone) = sync_channel::<Gone>(QUEUE);
    let run = move || {
        for Gone { name, folder } in gone {
            let remove = || {
                let mut command = removal(&podman);
                command.arg(&name);
                done(command)
            };
            match remove().or_else(|_| remove()) {
                // What cannot be removed goes at the next start.
                Ok(()) => folder.into_iter().for_each(|folder| drop(fs_err::remove_dir_all(folder))),
                Err(error) => tracing::warn!(event = "function_container_left", name, %error),
            }
        }
    };
    std::thread::Builder::new().name("berth-remover".to_owned()).spawn(run)?;
    Ok(sender)
}
