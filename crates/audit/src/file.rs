//! A file of lines that never grows beyond a size: `audit.log`, and those before it, `audit.log.1` (the latest) to `audit.log.N`.

use std::{
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use fs_err::{self as fs, os::unix::fs::OpenOptionsExt as _};

/// Rights of the files: the owner's alone.
const RIGHTS: u32 = 0o600;

/// A file of whole lines, and those before it.
pub struct RotatedFile {
    path: PathBuf,
    /// Bytes of one file.
    size: u64,
    /// Files before the current one.
    keep: u32,
    open: Option<Open>,
}

struct Open {
    file: fs::File,
    written: u64,
}

impl RotatedFile {
    /// A file that is opened with its first line: `size` bytes at most, and `keep` older ones.
    #[must_use]
    pub fn new(path: PathBuf, size: u64, keep: u32) -> Self {
        Self { path, size, keep, open: None }
    }

    /// The most bytes of one file; a new one begins before there are more.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Appends whole lines, at most [`size`](Self::size) bytes of them, and has them on the disk. What fails leaves no half of a line.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let done = self.try_append(lines);
        if done.is_err() {
            // Opened anew next time: whatever was wrong may have been put right.
            self.open = None;
        }
        done
    }

    fn try_append(&mut self, lines: &[u8]) -> io::Result<()> {
        let length = lines.len() as u64;
        let full = self.open()?.written;
        if full > 0 && full + length > self.size {
            self.rotate()?;
        }
        let open = self.open()?;
        if let Err(error) = open.file.write_all(lines) {
            open.file.set_len(open.written)?;
            return Err(error);
        }
        open.written += length;
        open.file.sync_data()
    }

    fn open(&mut self) -> io::Result<&mut Open> {
        if self.open.is_none() {
            let mut options = fs::OpenOptions::new();
            let mut file = options.read(true).append(true).create(true).mode(RIGHTS).open(&self.path)?;
            fs::set_permissions(&self.path, std::fs::Permissions::from_mode(RIGHTS))?;
            let mut written = file.metadata()?.len();
            if written > 0 && !ends_a_line(&mut file)? {
                // A process was killed within a line.
                file.write_all(b"\n")?;
                written += 1;
            }
            self.open = Some(Open { file, written });
        }
        self.open.as_mut().ok_or_else(|| io::Error::other("it was opened just now"))
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.open = None;
        if self.keep == 0 {
            return fs::remove_file(&self.path);
        }
        for number in (1..self.keep).rev() {
            moved(&numbered(&self.path, number), &numbered(&self.path, number + 1))?;
        }
        moved(&self.path, &numbered(&self.path, 1))
    }
}

fn moved(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

fn ends_a_line(file: &mut fs::File) -> io::Result<bool> {
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// The last lines of a file, at most `most` bytes of them.
pub(crate) fn tail(path: &Path, most: u64) -> io::Result<String> {
    let mut file = match fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        other => other?,
    };
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
    let mut text = Vec::new();
    file.take(most).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn files_stay_within_their_size_and_number() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.log");
        let mut file = RotatedFile::new(path.clone(), 100, 2);
        for at in 0..20 {
            file.append(format!("{at:029}\n").as_bytes()).expect("it is written");
        }
        let mut names: Vec<_> = fs::read_dir(folder.path())
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        assert_eq!(names, ["audit.log", "audit.log.1", "audit.log.2"]);
        for name in names {
            let about = fs::metadata(folder.path().join(&name)).expect("it is there");
            assert!(about.len() <= 100 && about.mode() & 0o777 == 0o600, "{name}");
        }
        let all = ["audit.log.2", "audit.log.1", "audit.log"]
            .map(|name| fs::read_to_string(folder.path().join(name)).expect("text"));
        let numbers: Vec<u32> = all.concat().lines().map(|line| line.parse().expect("a whole line")).collect();
        assert_eq!(numbers, Vec::from_iter(12..20), "the latest, in order");
    }

    #[test]
    fn a_line_longer_than_a_file_is_one_file_and_half_a_line_is_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.log");
        fs::write(&path, "half").expect("it is written");
        let mut file = RotatedFile::new(path.clone(), 10, 1);
        file.append(b"a\n").expect("it is written");
        assert_eq!(fs::read_to_string(&path).expect("text"), "half\na\n");
        let long = [b'x'; 100];
        for _ in 0..3 {
            file.append(&[&long[..], b"\n"].concat()).expect("it is written");
        }
        assert_eq!(fs::metadata(&path).expect("it is there").len(), 101);
        assert_eq!(tail(&path, 3).expect("text"), "xx\n");
    }

    #[test]
    fn what_is_gone_is_made_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let inner = folder.path().join("inner");
        let mut file = RotatedFile::new(inner.join("audit.log"), 100, 1);
        assert!(file.append(b"a\n").is_err(), "there is no such folder");
        fs::create_dir(&inner).expect("a folder");
        file.append(b"b\n").expect("there is one now");
    }
}
