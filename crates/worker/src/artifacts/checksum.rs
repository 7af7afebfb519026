//! SHA-256 of bytes and files. Blocks: call it where that is allowed.

use std::{
    io::{self, Read},
    path::Path,
};

use aws_lc_rs::digest::{Context, SHA256};
use berth_spec::Digest;

/// A digest in the making.
pub(super) struct Hasher(Context);

impl Hasher {
    pub(super) fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn finish(self) -> Digest {
        let mut digest = [0; 32];
        digest.copy_from_slice(self.0.finish().as_ref());
        Digest(digest)
    }
}

pub(super) fn of(bytes: &[u8]) -> Digest {
    let mut hasher = Hasher::new();
    hasher.update(bytes);
    hasher.finish()
}

/// The digest of a file; `seen` hears how many bytes were read so far.
pub(super) fn of_file(path: &Path, mut seen: impl FnMut(u64)) -> io::Result<Digest> {
    let mut file = fs_err::File::open(path)?;
    let mut hasher = Hasher::new();
    // Large enough that system calls do not show, small enough for the second-level cache.
    let mut buffer = vec![0; 256 << 10];
    let mut total = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finish()),
            n => {
                hasher.update(&buffer[..n]);
                total += n as u64;
                seen(total);
            }
        }
    }
}
