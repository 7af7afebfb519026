//! `berth secrets edit`: an encrypted file in the user's editor, and back.

use std::path::PathBuf;

use berth_secrets::{Plain, plain_of, reseal};
use clap::{Args, ValueHint};
use tokio::signal::unix::{SignalKind, signal};

use super::{
    super::editor::{EditedFile, again},
    PrivateArgs, document, plain_text, replace, warn_of_comments, wrong,
};
use crate::{failure::Failure, terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth secrets edit workers/secrets/worker-a-secrets.yaml --private keys/registry.key
  EDITOR='code --wait' berth secrets edit worker-a-secrets.yaml

The editor ($VISUAL, $EDITOR, or vi) opens a file in memory, which is removed afterwards. Unchanged
values keep their encrypted form, so that the commit shows only changes.")]
pub(super) struct EditArgs {
    /// Encrypted file
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    #[command(flatten)]
    private: PrivateArgs,
}

pub(super) fn run(args: &EditArgs) -> Result<(), Failure> {
    let document = document(&args.file)?;
    let keyring = args.private.keyring()?;
    let plain = Plain::opened(&document, &keyring)?;
    // What ends the editor must not end us before the plain text is gone.
    super::super::block_on(async {
        let _kept = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
        let shown = EditedFile::new("secrets.yaml", &plain.to_yaml())?;
        loop {
            shown.edit()?;
            let text = plain_text(Some(&shown.file))?;
            let changed = plain_of(&text, "your text").map_err(|problems| wrong(&problems)).and_then(|plain| {
                if plain.worker.as_ref().is_some_and(|worker| *worker != document.worker) {
                    let message = "worker_id cannot be changed: encrypt the secrets for the other worker instead";
                    return Err(Failure::Invalid(message.to_owned()));
                }
                let changed = reseal(&document, &keyring, &plain)?;
                if changed == document {
                    return Ok(false);
                }
                if self::document(&args.file)? != document {
                    let file = args.file.display();
                    return Err(Failure::Failed(format!(
                        "{file} changed meanwhile; nothing was written: edit it again"
                    )));
                }
                warn_of_comments(&args.file, &document);
                replace(&args.file, &changed.to_yaml()).map(|()| true)
            });
            match changed {
                Ok(false) => return Ok(terminal::print("nothing changed\n")?),
                Ok(true) => return Ok(terminal::print(&format!("changed {}\n", args.file.display()))?),
                Err(failure) if again(&failure) => {}
                Err(failure) => return Err(failure),
            }
        }
    })
}
