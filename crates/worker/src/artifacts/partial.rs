//! A download that is not complete: a preallocated file, and beside it a journal of the ranges that are in it.
//!
//! The journal's first line says of which object it speaks (etag, size) and in which boot of the machine it was
//! written; each further line is the number of a finished range. After a crash of the process the pages written before
//! it are still there, so nothing is synced per range; after a crash of the machine they may not be, and the journal of
//! another boot is thrown away.

use std::{
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use fs_err::{File, OpenOptions};
use serde::{Deserialize, Serialize};

/// The bytes of a range: large enough to hide the cost of a request on fast lines, and small enough that a 64 MiB model
/// has one for each connection and that a break costs little.
pub(super) const RANGE: u64 = 8 << 20;

/// Of what the file is a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    etag: String,
    size: u64,
    range: u64,
    boot: String,
}

/// A file in the making. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Partial {
    file: Arc<File>,
    /// `None`: the object has no etag, so that a later attempt could not tell whether it is still the same one.
    journal: Option<Arc<Mutex<File>>>,
    etag: Option<String>,
    size: u64,
    missing: Vec<u64>,
}

impl Partial {
    /// The leftover of an earlier attempt at `path`, if it can be continued.
    pub(super) fn resume(path: &Path) -> Option<Self> {
        let journal = fs_err::read_to_string(journal_of(path)).ok()?;
        let mut lines = journal.split_inclusive('\n');
        let header: Header = serde_json::from_str(lines.next()?).ok()?;
        let file = OpenOptions::new().write(true).read(true).open(path).ok()?;
        let same = header.range == RANGE && header.boot == boot()? && file.metadata().ok()?.len() == header.size;
        if !same {
            return None;
        }
        // A torn last line has no end and does not count.
        let done: Vec<u64> = lines.filter_map(|line| line.strip_suffix('\n')?.parse().ok()).collect();
        let missing = (0..header.size.div_ceil(RANGE)).filter(|index| !done.contains(index)).collect();
        let journal = OpenOptions::new().append(true).open(journal_of(path)).ok()?;
        Some(Self {
            file: Arc::new(file),
            journal: Some(Arc::new(Mutex::new(journal))),
            etag: Some(header.etag),
            size: header.size,
            missing,
        })
    }

    /// A new one for an object of `size` bytes; fails at once where the disk has no room for it.
    pub(super) fn create(path: &Path, etag: Option<String>, size: u64) -> io::Result<Self> {
        let file = Self::empty(path)?;
        allocate(&file, size)?;
        let journal = match (&etag, boot()) {
            (Some(etag), Some(boot)) => {
                let header = Header { etag: etag.clone(), size, range: RANGE, boot };
                let mut journal = File::create(journal_of(path))?;
                let line = serde_json::to_string(&header).map_err(io::Error::other)?;
                journal.write_all(format!("{line}\n").as_bytes())?;
                Some(Arc::new(Mutex::new(journal)))
            }
            _ => None,
        };
        let missing = (0..size.div_ceil(RANGE)).collect();
        Ok(Self { file: Arc::new(file), journal, etag, size, missing })
    }

    /// A new, empty file where an earlier one may be. The earlier one is unlinked, not truncated: a write that is
    /// still under way in it hits nothing.
    pub(super) fn empty(path: &Path) -> io::Result<File> {
        remove(path)?;
        OpenOptions::new().write(true).read(true).create_new(true).open(path)
    }

    pub(super) fn etag(&self) -> Option<&str> {
        self.etag.as_deref()
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The ranges that are not here yet, by number.
    pub(super) fn missing(&self) -> &[u64] {
        &self.missing
    }

    /// Bytes that were here when it was opened.
    pub(super) fn done(&self) -> u64 {
        self.size - self.missing.iter().map(|&index| self.bounds(index).end - self.bounds(index).start).sum::<u64>()
    }

    /// The first and last byte (excluded) of the range with this number; the last range is shorter.
    pub(super) fn bounds(&self, index: u64) -> std::ops::Range<u64> {
        index * RANGE..((index + 1) * RANGE).min(self.size)
    }

    /// Writes bytes of the object at their offset. Blocks.
    pub(super) fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.file().write_all_at(bytes, offset)
    }

    /// A range is complete. Blocks.
    pub(super) fn finished(&self, index: u64) -> io::Result<()> {
        match &self.journal {
            Some(journal) => {
                let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
                journal.write_all(format!("{index}\n").as_bytes())
            }
            None => Ok(()),
        }
    }
}

/// True if a later attempt may be able to continue what is at `path`.
pub(super) fn has_journal(path: &Path) -> bool {
    journal_of(path).is_file()
}

/// Forgets an attempt, if there is one. The journal goes first: without it the file is nothing.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    for file in [journal_of(path), path.to_owned()] {
        match fs_err::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn journal_of(path: &Path) -> PathBuf {
    path.with_extension("ranges")
}

#[cfg(target_os = "linux")]
fn allocate(file: &File, size: u64) -> io::Result<()> {
    use rustix::{
        fs::{FallocateFlags, fallocate},
        io::Errno,
    };
    match fallocate(file.file(), FallocateFlags::empty(), 0, size.max(1)) {
        // The file system cannot: find out while writing.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => file.set_len(size),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn allocate(file: &File, size: u64) -> io::Result<()> {
    file.set_len(size)
}

/// Number of the machine's start; `None` where it cannot be told, and then nothing is resumed.
fn boot() -> Option<String> {
    Some(fs_err::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_on_where_it_was_and_ignores_a_torn_line() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("x.part");
        let partial = Partial::create(&path, Some("e".to_owned()), 3 * RANGE + 5).expect("created");
        assert_eq!(partial.missing(), [0, 1, 2, 3]);
        assert_eq!(partial.bounds(3), 3 * RANGE..3 * RANGE + 5);
        partial.finished(2).expect("journaled");
        partial.finished(3).expect("journaled");
        let mut journal = OpenOptions::new().append(true).open(journal_of(&path)).expect("there");
        journal.write_all(b"1").expect("torn");
        let resumed = Partial::resume(&path).expect("resumable");
        assert_eq!((resumed.missing(), resumed.done(), resumed.etag()), (&[0, 1][..], RANGE + 5, Some("e")));
    }

    #[test]
    fn nothing_to_go_on_with() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("x.part");
        assert!(Partial::resume(&path).is_none(), "nothing there");
        Partial::create(&path, None, 10).expect("created");
        assert!(Partial::resume(&path).is_none(), "no etag");
        fs_err::write(journal_of(&path), "{\"etag\":\"e\",\"size\":10,\"range\":1,\"boot\":\"other\"}\n").expect("ok");
        assert!(Partial::resume(&path).is_none(), "another boot");
    }
}
