//! `berth secrets edit`: an encrypted file in the user's editor, and back.

use std::{
    ffi::OsString,
    io::{IsTerminal as _, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use berth_secrets::{Plain, plain_of, reseal};
use clap::{Args, ValueHint};
use fs_err as fs;
use tokio::signal::unix::{SignalKind, signal};

use super::{PrivateArgs, document, plain_text, replace, warn_of_comments, wrong};
use crate::{failure::Failure, terminal};

/// Memory that is a folder: what is written there is never on a disk.
const MEMORY: &str = "/dev/shm";

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth secrets edit workers/secrets/worker-a-secrets.yaml --private keys/registry.key
  EDITOR='code --wait' berth secrets edit worker-a-secrets.yaml

The editor ($VISUAL, $EDITOR, or vi) opens a file in memory, which is removed afterwards. Unchanged values
keep their encrypted form, so that the commit shows only changes.")]
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
        let shown = PlainTextFile::new(&plain.to_yaml())?;
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

/// True if editing should continue after an error: asks a person, but not a script.
fn again(failure: &Failure) -> bool {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return false;
    }
    let asked = write!(std::io::stderr(), "{failure}\nedit again? [Y/n] ").and_then(|()| std::io::stderr().flush());
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    asked.is_ok() && read.is_ok_and(|bytes| bytes > 0) && !answer.trim().eq_ignore_ascii_case("n")
}

/// Plain text where an editor can change it; overwritten and removed when it is dropped.
struct PlainTextFile {
    folder: PathBuf,
    file: PathBuf,
}

impl PlainTextFile {
    fn new(text: &str) -> Result<Self, Failure> {
        let memory = Path::new(MEMORY);
        let parent = if memory.is_dir() {
            memory.to_owned()
        } else {
            let _ = writeln!(std::io::stderr(), "warning: there is no {MEMORY}: the plain text goes through a disk");
            std::env::temp_dir()
        };
        let mut chance = [0; 8];
        std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut chance))?;
        let folder = parent.join(format!("berth-secrets-{:016x}", u64::from_ne_bytes(chance)));
        std::fs::DirBuilder::new().mode(0o700).create(&folder).map_err(|e| Failure::doing(folder.display(), e))?;
        let shown = Self { file: folder.join("secrets.yaml"), folder };
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        fs::OpenOptions::from_options(options).open(&shown.file)?.write_all(text.as_bytes())?;
        Ok(shown)
    }

    fn edit(&self) -> Result<(), Failure> {
        let given = |name: &str| std::env::var_os(name).filter(|editor| !editor.is_empty());
        let editor = given("VISUAL").or_else(|| given("EDITOR")).unwrap_or_else(|| OsString::from("vi"));
        // As a shell takes it: EDITOR may have arguments.
        let mut line = editor.clone();
        line.push(" \"$1\"");
        let status = Command::new("sh").arg("-c").arg(line).arg("sh").arg(&self.file).status();
        let editor = editor.to_string_lossy();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Failure::Failed(format!("the editor {editor} ended with {status}: nothing was changed"))),
            Err(error) => Err(Failure::doing(format!("cannot start the editor {editor}"), error)),
        }
    }
}

impl Drop for PlainTextFile {
    fn drop(&mut self) {
        // An editor may have put another file in its place, or a copy beside it: all of them.
        let files = std::fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        for file in files {
            let length = std::fs::metadata(&file).map(|about| about.len()).unwrap_or_default();
            let zeros = vec![0; usize::try_from(length.min(super::MOST_READ)).unwrap_or_default()];
            let overwritten =
                std::fs::OpenOptions::new().write(true).open(&file).and_then(|mut file| file.write_all(&zeros));
            drop(overwritten);
        }
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            let _ = writeln!(
                std::io::stderr(),
                "warning: {} holds plain text and cannot be removed: {error}",
                self.folder.display()
            );
        }
    }
}
