//! One file that is being hashed, a slice at a time.
//!
//! ```text
//! new ──fingerprint──▶ known, or no file: done
//!  └──open──▶ reading ──slice──▶ reading … ──end──▶ done
//! ```

use std::{
    collections::HashMap,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use aws_lc_rs::digest;
use berth_spec::{ByteSize, Digest};

/// Digests that are remembered: an entry takes about 200 bytes, so that all take 20 MB.
const MAX_DIGESTS: usize = 100_000;

/// Bytes of a file that are read at a time.
const CHUNK: usize = 1 << 20;

/// Chunks in a slice. The next file waits no longer than 16 MiB take, 0.2 s from a slow network disk.
const SLICE: usize = 16;

/// The digest and the size of a file; `None` for what is no file.
pub(super) type Hashed = Option<(Digest, ByteSize)>;

/// Identity of the content of a file: unchanged means that the hash still holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fingerprint {
    device: u64,
    inode: u64,
    size: u64,
    modified: Option<SystemTime>,
    /// The inode's own change time: a file replaced with its old modification time shows here.
    changed: (i64, i64),
}

/// Digests of files that have been hashed.
#[derive(Debug, Default)]
pub(super) struct KnownDigests(Mutex<HashMap<PathBuf, (Fingerprint, Digest)>>);

impl KnownDigests {
    fn get(&self, path: &Path, print: Fingerprint) -> Option<Digest> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(path).filter(|(then, _)| *then == print).map(|(_, digest)| *digest)
    }

    fn remember(&self, path: &Path, print: Fingerprint, digest: Digest) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_DIGESTS {
            known.clear();
        }
        known.insert(path.to_owned(), (print, digest));
    }
}

/// A file that is being hashed.
pub(super) struct Hashing {
    path: PathBuf,
    reading: Option<Reading>,
}

struct Reading {
    before: Fingerprint,
    file: fs_err::File,
    context: digest::Context,
}

impl Hashing {
    pub(super) fn of(path: PathBuf) -> Self {
        Self { path, reading: None }
    }

    /// Does one slice of the work; `None`: there is more. `wanted` is asked before each chunk, and false ends the slice.
    pub(super) fn slice(&mut self, known: &KnownDigests, wanted: impl Fn() -> bool) -> io::Result<Option<Hashed>> {
        let reading = match &mut self.reading {
            Some(reading) => reading,
            None => {
                let Some(before) = fingerprint(&self.path)? else { return Ok(Some(None)) };
                if let Some(digest) = known.get(&self.path, before) {
                    return Ok(Some(Some((digest, ByteSize(before.size)))));
                }
                let file = fs_err::File::open(&self.path)?;
                let context = digest::Context::new(&digest::SHA256);
                self.reading.insert(Reading { before, file, context })
            }
        };
        let mut chunk = vec![0; CHUNK];
        for _ in 0..SLICE {
            if !wanted() {
                return Ok(None);
            }
            match reading.file.read(&mut chunk)? {
                0 => return self.end(known).map(Some),
                n => reading.context.update(&chunk[..n]),
            }
        }
        Ok(None)
    }

    /// At the end of the file. One that was written to meanwhile is hashed again next time.
    fn end(&mut self, known: &KnownDigests) -> io::Result<Hashed> {
        let Some(Reading { before, context, .. }) = self.reading.take() else { return Ok(None) };
        let mut bytes = [0; 32];
        bytes.copy_from_slice(context.finish().as_ref());
        let digest = Digest(bytes);
        if fingerprint(&self.path)? == Some(before) {
            known.remember(&self.path, before, digest);
        }
        Ok(Some((digest, ByteSize(before.size))))
    }
}

/// `None` for what is no file.
fn fingerprint(path: &Path) -> io::Result<Option<Fingerprint>> {
    let metadata = fs_err::metadata(path)?;
    if !metadata.is_file() {
        return Ok(None);
    }
    Ok(Some(Fingerprint {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.len(),
        modified: metadata.modified().ok(),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    }))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn whole(path: &Path, known: &KnownDigests) -> (Hashed, usize) {
        let (mut hashing, chunks) = (Hashing::of(path.to_owned()), Cell::new(0));
        loop {
            let wanted = || {
                chunks.set(chunks.get() + 1);
                true
            };
            if let Some(hashed) = hashing.slice(known, wanted).expect("it is there") {
                return (hashed, chunks.get());
            }
        }
    }

    #[test]
    fn a_file_is_read_in_slices_and_not_again_while_it_is_the_same() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, known) = (folder.path().join("model"), KnownDigests::default());
        let content = vec![7; SLICE * CHUNK * 2 + 5];
        fs_err::write(&path, &content).expect("written");
        let (hashed, chunks) = whole(&path, &known);
        let expected = digest::digest(&digest::SHA256, &content);
        let (digest, size) = hashed.expect("a file");
        assert_eq!((&digest.0[..], size), (expected.as_ref(), ByteSize(content.len() as u64)));
        assert!(chunks > SLICE * 2, "{chunks}");
        assert_eq!(whole(&path, &known), (hashed, 0), "it is remembered");
        fs_err::write(&path, &content[1..]).expect("written");
        assert_ne!(whole(&path, &known).0, hashed);
    }

    #[test]
    fn a_folder_is_left_to_the_worker() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(whole(folder.path(), &KnownDigests::default()), (None, 0));
    }
}
