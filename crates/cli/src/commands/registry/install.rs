//! `berth registry hook install`: the hook as a file of a bare repository.

use std::{os::unix::fs::PermissionsExt, path::PathBuf};

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
  berth registry hook install /srv/git/model-registry.git --writer berth --git-token github.com=/etc/berth/token
  berth registry hook install /srv/git/sentiment-model.git --kind model

The hook calls this binary at its current path. It accepts or rejects a push as a whole within seconds, and tells the pusher
each error with its place and remedy. Installing again replaces the hook.")]
pub(super) struct InstallArgs {
    /// Bare repository
    #[arg(value_name = "REPOSITORY")]
    repository: PathBuf,
    #[command(flatten)]
    rules: Rules,
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
    announcing(&repository, args)?;
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

/// Writes the hook that tells a server of pushes, or removes ours.
fn announcing(repository: &Repository, args: &InstallArgs) -> Result<(), Failure> {
    let path = repository.folder().join("hooks/post-receive");
    let there = fs::read_to_string(&path).ok();
    let is_ours = there.as_ref().is_none_or(|text| text.contains(MARK));
    if args.no_announce || args.rules.kind == RepositoryKind::Model {
        if there.is_some() && is_ours {
            fs::remove_file(&path)?;
        }
        return Ok(());
    }
    if !is_ours {
        let message = format!("{} stays: call `berth registry hook post-receive` from it", path.display());
        return Ok(terminal::print(&message)?);
    }
    let program = std::env::current_exe()?.display().to_string();
    let mut words = vec![program];
    words.extend(["registry", "hook", "post-receive", "--api", &args.announce].map(str::to_owned));
    if let Some(file) = &args.announce_secret {
        words.extend(["--secret-file".to_owned(), std::path::absolute(file)?.display().to_string()]);
    }
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    fs::write(&path, format!("#!/bin/sh\n{MARK}\nexec {}\n", words.join(" ")))?;
    fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(terminal::print(&format!("pushes are announced to {}; --no-announce turns that off", args.announce))?)
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
    fs::create_dir_all(&folder)?;
    // Under another name first: a push meanwhile sees the old hook or the whole new one.
    let half = folder.join(".pre-receive.new");
    fs::write(&half, script(rules)?)?;
    fs::set_permissions(&half, std::fs::Permissions::from_mode(0o755))?;
    fs::rename(&half, &path)?;
    repository.configure("receive.fsckObjects", "true", stop)?;
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
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    Ok(format!("#!/bin/sh\n{MARK}\nexec {}\n", words.join(" ")))
}

/// One word for the shell, whatever it holds.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}
