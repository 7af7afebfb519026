//! `berth registry hook install`: the hook as a file of a bare repository.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use berth_git::{Repository, Stop};
use clap::Args;
use fs_err as fs;

use super::{
    access,
    hook::{RepositoryKind, Rules},
};
use crate::{client::DEFAULT_API, failure::Failure, terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth registry hook install /srv/git/model-registry.git
  berth registry hook install /srv/git/model-registry.git --writer berth \\
    --git-token github.com=/etc/berth/token
  berth registry hook install /srv/git/sentiment-model.git --kind model

The hook calls this binary at its current path. It accepts or rejects a push as a whole within
seconds, and tells the pusher each error with its place and remedy. Installing again replaces the
hook.")]
pub(super) struct InstallArgs {
    /// Bare repository
    #[arg(value_name = "REPOSITORY")]
    repository: PathBuf,
    #[command(flatten)]
    rules: Rules,
    #[command(flatten)]
    announce: AnnounceArgs,
}

/// Servers that are told of pushes.
#[derive(Debug, Args)]
pub(super) struct AnnounceArgs {
    /// Control API that is told of every push to a registry, so that it looks at once; several separated by commas
    #[arg(long, value_name = "URL,…", default_value = DEFAULT_API)]
    announce: String,
    /// File with the secret of the webhook, for the announcement
    #[arg(long, value_name = "FILE")]
    announce_secret: Option<PathBuf>,
    /// Tell nobody of pushes: they are found by polls
    #[arg(long)]
    no_announce: bool,
}

/// By this a hook of ours is known.
const MARK: &str = "# Written by `berth registry hook install`; installing again replaces it.";

pub(super) fn run(args: &InstallArgs) -> Result<(), Failure> {
    let repository = Repository::open(access::git(), &args.repository, &args.rules.access.stop())?;
    install(&repository, &args.rules, &args.rules.access.stop())?;
    match announcing(&repository, args.rules.kind, &args.announce)? {
        Announcing::Off => {}
        Announcing::To(api) => {
            terminal::print(&format!("pushes are announced to {api}; --no-announce turns that off"))?;
        }
        Announcing::Foreign(path) => terminal::print(&foreign(&path))?,
    }
    let shown = repository.folder().display();
    let what = match args.rules.kind {
        RepositoryKind::Registry => format!("pushes to {} must pass validation", args.rules.branch),
        RepositoryKind::Model => "version tags need a right card, and never move".to_owned(),
    };
    terminal::print(&format!("installed {shown}/hooks/pre-receive: {what}"))?;
    if args.rules.kind == RepositoryKind::Registry && args.rules.writer.is_empty() {
        terminal::print("everybody who may push may also write the actual-state branch; --writer USER restricts it")?;
    }
    Ok(())
}

/// State of the hook that tells a server of pushes.
pub(super) enum Announcing {
    /// There is none.
    Off,
    /// Pushes are told to this control API.
    To(String),
    /// This hook of another program stays.
    Foreign(PathBuf),
}

/// Remedy for a hook of another program.
pub(super) fn foreign(path: &Path) -> String {
    format!("{} stays: call `berth registry hook post-receive` from it", path.display())
}

/// Writes the hook that tells a server of pushes, or removes ours.
pub(super) fn announcing(
    repository: &Repository,
    kind: RepositoryKind,
    announce: &AnnounceArgs,
) -> Result<Announcing, Failure> {
    let folder = repository.folder().join("hooks");
    let path = folder.join("post-receive");
    let there = fs::read_to_string(&path).ok();
    let is_ours = there.as_ref().is_none_or(|text| text.contains(MARK));
    if announce.no_announce || kind == RepositoryKind::Model {
        if there.is_some() && is_ours {
            fs::remove_file(&path)?;
        }
        return Ok(Announcing::Off);
    }
    if !is_ours {
        return Ok(Announcing::Foreign(path));
    }
    let program = std::env::current_exe()?.display().to_string();
    let mut words = vec![program];
    words.extend(["registry", "hook", "post-receive", "--api", &announce.announce].map(str::to_owned));
    if let Some(file) = &announce.announce_secret {
        words.extend(["--secret-file".to_owned(), std::path::absolute(file)?.display().to_string()]);
    }
    put(&folder, "post-receive", &script_of(&words))?;
    Ok(Announcing::To(announce.announce.clone()))
}

/// Writes the hook and makes the repository strict.
pub(super) fn install(repository: &Repository, rules: &Rules, stop: &Stop) -> Result<(), Failure> {
    let folder = repository.folder().join("hooks");
    let path = folder.join("pre-receive");
    if let Ok(text) = fs::read_to_string(&path)
        && !text.contains(MARK)
    {
        let message = format!(
            "{} is a hook of another program: call `berth registry hook pre-receive` from it instead",
            path.display()
        );
        return Err(Failure::Failed(message));
    }
    put(&folder, "pre-receive", &script(rules)?)?;
    repository.configure("receive.fsckObjects", "true", stop)?;
    Ok(())
}

/// Writes a hook under another name first: a push meanwhile sees the old hook or the whole new one.
fn put(folder: &Path, name: &str, script: &str) -> Result<(), Failure> {
    fs::create_dir_all(folder)?;
    let half = folder.join(format!(".{name}.new"));
    fs::write(&half, script)?;
    fs::set_permissions(&half, std::fs::Permissions::from_mode(0o755))?;
    fs::rename(&half, folder.join(name))?;
    Ok(())
}

fn script(rules: &Rules) -> Result<String, Failure> {
    let program = std::env::current_exe()?;
    let kind = match rules.kind {
        RepositoryKind::Registry => "registry",
        RepositoryKind::Model => "model",
    };
    let mut words = vec![program.display().to_string()];
    words.extend(["registry", "hook", "pre-receive", "--kind", kind, "--branch", &rules.branch].map(str::to_owned));
    for writer in &rules.writer {
        words.extend(["--writer".to_owned(), writer.clone()]);
    }
    words.extend(rules.access.arguments()?);
    Ok(script_of(&words))
}

fn script_of(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    format!("#!/bin/sh\n{MARK}\nexec {}\n", words.join(" "))
}

/// One word for the shell, whatever it holds.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}
