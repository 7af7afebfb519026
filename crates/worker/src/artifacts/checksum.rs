//! SHA-256 of bytes and files. Blocks: call it where that is allowed.

use std::{
    io::{self, Read},
    path::Path,
};

use aws_lc_rs::digest::{Context, SHA256};
use berth_spec::Digest;
use tokio_util::sync::CancellationToken;

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

pub(crate) fn of(bytes: &[u8]) -> Digest {
    let mut hasher = Hasher::new();
    hasher.update(bytes);
    hasher.finish()
}

/// The digest of a file. Gives up with an error soon after `cancel`: nobody is there to stop a thread that reads.
pub(crate) fn of_file(path: &Path, cancel: &CancellationToken) -> io::Result<Digest> {
    let mut file = fs_err::File::open(path)?;
    let mut hasher = Hasher::new();
    // Large enough that system calls do not show, small enough for the second-level cache.
    let mut buffer = vec![0; 256 << 10];
    while !cancel.is_cancelled() {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finish()),
            n => hasher.update(&buffer[..n]),
        }
    }
    Err(io::Error::other("nobody waits for the digest any more"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_without_end_stops_when_it_is_cancelled() {
        let cancel = CancellationToken::new();
        cancel.cancel();
        assert!(of_file(Path::new("/dev/zero"), &cancel).is_err());
    }
}
