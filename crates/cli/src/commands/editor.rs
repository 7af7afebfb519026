//! A text in the user's editor: in memory while it is edited, overwritten and removed afterwards.

use std::{
    ffi::OsString,
    io::{IsTerminal as _, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use fs_err as fs;

use crate::failure::Failure;

/// Memory that is a folder: what is written there is never on a disk.
const MEMORY: &str = "/dev/shm";

/// Most bytes of a text that comes back, and that are overwritten.
const MAX_TEXT_BYTES: u64 = 8 << 20;

/// True if editing should continue after an error: asks a person, but not a script.
pub(super) fn again(failure: &Failure) -> bool {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return false;
    }
    let asked = write!(std::io::stderr(), "{failure}\nedit again? [Y/n] ").and_then(|()| std::io::stderr().flush());
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    asked.is_ok() && read.is_ok_and(|bytes| bytes > 0) && !answer.trim().eq_ignore_ascii_case("n")
}

/// Text where an editor can change it, readable by its user alone; overwritten and removed when it is dropped.
pub(super) struct EditedFile {
    folder: PathBuf,
    pub(super) file: PathBuf,
}

impl EditedFile {
    /// The text in a file of this name, whose ending tells editors its form.
    pub(super) fn new(name: &str, text: &str) -> Result<Self, Failure> {
        let memory = Path::new(MEMORY);
        let parent = if memory.is_dir() {
            memory.to_owned()
        } else {
            let _ = writeln!(std::io::stderr(), "warning: there is no {MEMORY}: the text goes through a disk");
            std::env::temp_dir()
        };
        let mut chance = [0; 8];
        std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut chance))?;
        let folder = parent.join(format!("berth-edit-{:016x}", u64::from_ne_bytes(chance)));
        std::fs::DirBuilder::new().mode(0o700).create(&folder).map_err(|e| Failure::doing(folder.display(), e))?;
        let shown = Self { file: folder.join(name), folder };
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        fs::OpenOptions::from_options(options).open(&shown.file)?.write_all(text.as_bytes())?;
        Ok(shown)
    }

    /// Waits for the editor.
    pub(super) fn edit(&self) -> Result<(), Failure> {
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

    /// The text as it is now.
    pub(super) fn text(&self) -> Result<String, Failure> {
        let mut text = String::new();
        fs::File::open(&self.file)?.take(MAX_TEXT_BYTES).read_to_string(&mut text)?;
        Ok(text)
    }
}

impl Drop for EditedFile {
    fn drop(&mut self) {
        // An editor may have put another file in its place, or a copy beside it: all of them.
        let files = std::fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        for file in files {
            let length = std::fs::metadata(&file).map(|about| about.len()).unwrap_or_default();
            let zeros = vec![0; usize::try_from(length.min(MAX_TEXT_BYTES)).unwrap_or_default()];
            let overwritten =
                std::fs::OpenOptions::new().write(true).open(&file).and_then(|mut file| file.write_all(&zeros));
            drop(overwritten);
        }
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            let _ = writeln!(
                std::io::stderr(),
                "warning: {} holds the text and cannot be removed: {error}",
                self.folder.display()
            );
        }
    }
}
