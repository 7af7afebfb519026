//! `berth secrets rotate`: files for other keys, without a moment in which nobody can read them.

use std::path::PathBuf;

use berth_secrets::rewrap;
use clap::{Args, ValueHint};

use super::{PrivateArgs, RecipientArgs, document, replace, warn_of_comments};
use crate::{failure::Failure, files::plural, terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples of a rotation without interruption:
  berth secrets rotate workers/secrets/*.yaml --key old.pub --key new.pub --private old.key
  … both keys can read: commit, give the controllers new.key beside old.key, then in its place …
  berth secrets rotate workers/secrets/*.yaml --key new.pub --private new.key --values
  … only the new key can read: commit

Without --values, only the wrapped data keys change: the old private key and an old commit still
reveal unchanged values. Replace leaked credentials at their issuer: encryption cannot take them
back.")]
pub(super) struct RotateArgs {
    /// Encrypted files
    #[arg(value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    recipients: RecipientArgs,
    #[command(flatten)]
    private: PrivateArgs,
    /// Re-encrypt all values under one new data key
    #[arg(long)]
    values: bool,
}

pub(super) fn run(args: &RotateArgs) -> Result<(), Failure> {
    let recipients = args.recipients.read()?;
    let keyring = args.private.keyring()?;
    // All are read before one is written.
    let mut changed = Vec::with_capacity(args.files.len());
    for path in &args.files {
        let document = document(path)?;
        let rotated = rewrap(&document, &keyring, &recipients, args.values, terminal::now())
            .map_err(|error| Failure::from(error).with(|text| format!("{}: {text}", path.display())))?;
        if rotated != document {
            warn_of_comments(path, &document);
            changed.push((path, rotated));
        }
    }
    for (path, rotated) in &changed {
        replace(path, &rotated.to_yaml())?;
    }
    let ids = recipients.iter().map(|key| key.id().to_string()).collect::<Vec<_>>().join(", ");
    let (all, changed) = (plural(args.files.len(), "file"), changed.len());
    Ok(terminal::print(&format!("{all} encrypted for {ids}, of which {changed} had to be changed\n"))?)
}
