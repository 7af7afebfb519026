//! Archives of strangers: nothing gets out of the folder, and a small file does not become a large one.

use std::{
    io::{self, Read},
    path::{Component, Path, PathBuf},
};

use flate2::read::GzDecoder;
use fs_err::File;

use super::BuildError;

/// The most files of an archive.
const MOST_FILES: usize = 50_000;

/// The most bytes that come out of an archive.
const MOST_BYTES: u64 = 2 << 30;

/// The most bytes that come out for each byte of the archive, beyond the first [`FREE`]: what compresses better is no code.
const RATIO: u64 = 200;

/// Bytes that may come out of any archive, however small.
const FREE: u64 = 16 << 20;

/// The longest path.
const LONGEST_PATH: usize = 1_024;

/// Counts what comes out.
struct Budget {
    files: usize,
    bytes: u64,
}

impl Budget {
    fn of(archive: &Path) -> Result<Self, BuildError> {
        let size = archive.metadata()?.len();
        Ok(Self { files: MOST_FILES, bytes: (size.saturating_mul(RATIO) + FREE).min(MOST_BYTES) })
    }

    /// Writes one file and counts it.
    fn file(&mut self, mut from: impl Read, to: &Path, runs: bool) -> Result<(), BuildError> {
        use std::os::unix::fs::OpenOptionsExt as _;
        self.entry()?;
        if let Some(parent) = to.parent() {
            make_folder(parent)?;
        }
        let mode = if runs { 0o755 } else { 0o644 };
        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(to);
        let mut file = file.map_err(|error| {
            let name = to.file_name().unwrap_or_default().to_string_lossy();
            match error.kind() {
                io::ErrorKind::AlreadyExists if to.is_dir() => {
                    invalid(format!("the archive holds {name:?} both as a file and as a folder"))
                }
                io::ErrorKind::AlreadyExists => invalid(format!("the archive holds {name:?} twice")),
                _ => invalid(format!("cannot write {}: {error}", to.display())),
            }
        })?;
        let written = io::copy(&mut (&mut from).take(self.bytes + 1), &mut file);
        let written = written.map_err(|error| invalid(format!("the archive is damaged: {error}")))?;
        if written > self.bytes {
            return Err(BuildError::lasting(
                "TooLarge",
                format!("more than {MOST_BYTES} bytes, or {RATIO} times its own size, come out of the archive"),
            ));
        }
        self.bytes -= written;
        Ok(())
    }

    fn entry(&mut self) -> Result<(), BuildError> {
        match self.files.checked_sub(1) {
            Some(left) => {
                self.files = left;
                Ok(())
            }
            None => Err(BuildError::lasting("TooLarge", format!("the archive holds more than {MOST_FILES} files"))),
        }
    }
}

/// Makes a folder of an archive.
fn make_folder(folder: &Path) -> Result<(), BuildError> {
    fs_err::create_dir_all(folder).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            invalid(format!("the archive holds {name:?} both as a file and as a folder"))
        }
        _ => error.into(),
    })
}

fn invalid(message: impl Into<String>) -> BuildError {
    BuildError::lasting("InvalidSource", message)
}

/// Unpacks a ZIP, tar or tar.gz file into `folder`, by its first bytes. Where everything is in one folder that is not
/// `named` by the entrypoint, its content is taken.
pub(super) fn unpack(archive: &Path, folder: &Path, named: &str) -> Result<(), BuildError> {
    let mut first = [0; 512];
    let read = read_some(&mut File::open(archive)?, &mut first)?;
    let is_tar = read == first.len() && &first[257..262] == b"ustar";
    fs_err::create_dir_all(folder)?;
    match first {
        [b'P', b'K', 3 | 5, 4 | 6, ..] => unpack_zip(archive, folder)?,
        [0x1f, 0x8b, ..] => tar(GzDecoder::new(File::open(archive)?), archive, folder)?,
        _ if is_tar => tar(File::open(archive)?, archive, folder)?,
        _ => return Err(invalid("the code is neither a ZIP file nor a tar or tar.gz archive")),
    }
    lift(folder, named)
}

fn read_some(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read(&mut buffer[read..])? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}

/// Unpacks a ZIP file.
///
/// # Errors
/// The archive is damaged, too large, or leads out of the folder; the message says which.
pub(crate) fn unpack_zip(archive: &Path, folder: &Path) -> Result<(), BuildError> {
    let damaged = |error: zip::result::ZipError| invalid(format!("the ZIP file is damaged: {error}"));
    let mut budget = Budget::of(archive)?;
    let mut zip = zip::ZipArchive::new(io::BufReader::new(File::open(archive)?)).map_err(damaged)?;
    for at in 0..zip.len() {
        let mut entry = zip.by_index(at).map_err(damaged)?;
        let name = entry.name().to_owned();
        let Some(path) = inside(&name)? else { continue };
        let mode = entry.unix_mode().unwrap_or(0o644);
        if entry.is_dir() {
            budget.entry()?;
            make_folder(&folder.join(path))?;
        } else if entry.is_symlink() || mode & 0o170_000 == 0o120_000 {
            return Err(link(&name));
        } else {
            budget.file(&mut entry, &folder.join(path), mode & 0o111 != 0)?;
        }
    }
    Ok(())
}

fn tar(reader: impl Read, archive: &Path, folder: &Path) -> Result<(), BuildError> {
    let damaged = |error: io::Error| invalid(format!("the archive is damaged: {error}"));
    let mut budget = Budget::of(archive)?;
    let mut tar = tar::Archive::new(reader);
    for entry in tar.entries().map_err(damaged)? {
        let mut entry = entry.map_err(damaged)?;
        let kind = entry.header().entry_type();
        let name = entry.path().map_err(damaged)?.to_string_lossy().into_owned();
        if matches!(kind, tar::EntryType::XGlobalHeader | tar::EntryType::XHeader) {
            continue;
        }
        let Some(path) = inside(&name)? else { continue };
        let runs = entry.header().mode().map_err(damaged)? & 0o111 != 0;
        match kind {
            tar::EntryType::Directory => {
                budget.entry()?;
                make_folder(&folder.join(path))?;
            }
            tar::EntryType::Regular | tar::EntryType::Continuous => {
                budget.file(&mut entry, &folder.join(path), runs)?
            }
            tar::EntryType::Symlink | tar::EntryType::Link => return Err(link(&name)),
            _ => return Err(invalid(format!("{name:?} in the archive is neither a file nor a folder"))),
        }
    }
    Ok(())
}

fn link(name: &str) -> BuildError {
    invalid(format!("{name:?} in the archive is a link: the code must hold no links"))
}

/// A path that stays inside; `None` for the root itself.
fn inside(name: &str) -> Result<Option<PathBuf>, BuildError> {
    let refused = || invalid(format!("the archive holds the path {name:?}, which leads out of its folder"));
    if name.len() > LONGEST_PATH || name.contains(['\0', '\\']) {
        return Err(refused());
    }
    let mut path = PathBuf::new();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            _ => return Err(refused()),
        }
    }
    Ok((!path.as_os_str().is_empty()).then_some(path))
}

/// Takes the content of an only folder: archives of Git hosts have one around everything.
fn lift(folder: &Path, named: &str) -> Result<(), BuildError> {
    let entries: Vec<_> = fs_err::read_dir(folder)?.collect::<io::Result<_>>()?;
    let [only] = entries.as_slice() else { return Ok(()) };
    if !only.file_type()?.is_dir() || only.file_name() == named {
        return Ok(());
    }
    let aside = folder.with_extension("lifted");
    fs_err::rename(only.path(), &aside)?;
    fs_err::remove_dir(folder)?;
    fs_err::rename(aside, folder)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use zip::{ZipWriter, write::SimpleFileOptions};

    use super::*;
    use crate::controller::Retry;

    fn zip_of(path: &Path, files: &[(&str, &[u8])]) {
        let mut zip = ZipWriter::new(File::create(path).expect("a file"));
        for (name, content) in files {
            zip.start_file(*name, SimpleFileOptions::default()).expect("begun");
            zip.write_all(content).expect("written");
        }
        zip.finish().expect("a ZIP file");
    }

    #[test]
    fn archives_stay_inside_and_small() {
        let home = tempfile::tempdir().expect("a folder");
        let (archive, out) = (home.path().join("a.zip"), home.path().join("out"));
        zip_of(&archive, &[("top/handler.py", b"x = 1\n"), ("top/data/a.txt", b"a")]);
        unpack(&archive, &out, "handler").expect("unpacked");
        assert!(out.join("handler.py").is_file() && out.join("data/a.txt").is_file(), "the only folder is lifted");
        for (name, says) in
            [("../x", "leads out"), ("/etc/x", "leads out"), ("a/../../x", "leads out"), ("a\\b", "leads out")]
        {
            zip_of(&archive, &[(name, b"x")]);
            let error = unpack(&archive, &home.path().join("bad"), "x").expect_err(name);
            assert!(error.message.contains(says), "{name}: {}", error.message);
        }
        assert!(!home.path().join("x").exists());
        for (at, names) in [["a", "a/b"], ["a/b", "a"]].into_iter().enumerate() {
            zip_of(&archive, &names.map(|name| (name, b"x".as_slice())));
            let error =
                unpack(&archive, &home.path().join(format!("both-{at}")), "x").expect_err("a file and a folder");
            assert_eq!((error.reason, error.retry), ("InvalidSource", Retry::Never), "{}", error.message);
            assert!(error.message.contains("both as a file and as a folder"), "{}", error.message);
        }
        zip_of(&archive, &[("bomb", &vec![0; 40 << 20])]);
        let error = unpack(&archive, &home.path().join("bomb"), "x").expect_err("a bomb");
        assert_eq!(error.reason, "TooLarge");
        fs_err::write(&archive, b"hello").expect("written");
        assert!(
            unpack(&archive, &home.path().join("none"), "x").expect_err("text").message.contains("neither a ZIP file")
        );
    }

    #[test]
    fn links_in_tar_files_are_refused() {
        let home = tempfile::tempdir().expect("a folder");
        let archive = home.path().join("a.tar");
        let mut tar = tar::Builder::new(File::create(&archive).expect("a file"));
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        tar.append_link(&mut header, "x", "/etc/passwd").expect("a link");
        tar.finish().expect("a tar file");
        drop(tar);
        let error = unpack(&archive, &home.path().join("out"), "x").expect_err("a link");
        assert!(error.message.contains("\"x\" in the archive is a link"), "{}", error.message);
    }
}
