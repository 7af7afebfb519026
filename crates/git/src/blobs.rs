//! The contents of many files by one process.

use std::collections::BTreeMap;

use crate::{Category, GitError, Oid, Repository, Stop};

/// Bytes of content read per process. Large enough for a thousand small files, small enough to hold in memory.
const BATCH: u64 = 32 << 20;

impl Repository {
    /// The contents of all of `blobs` (names and sizes, as [`Repository::list`] gives them), in memory.
    ///
    /// # Errors
    /// `TooLarge` if they have more than `most` bytes in sum; `Corrupt` if one is not here.
    pub fn read_all(&self, blobs: &[(&Oid, u64)], most: u64, stop: &Stop) -> Result<BTreeMap<Oid, Vec<u8>>, GitError> {
        let sum = blobs.iter().fold(0u64, |sum, (_, size)| sum.saturating_add(*size));
        if sum > most {
            let detail = format!("they have {sum} bytes, and {most} are allowed");
            return Err(GitError::new(Category::TooLarge, "read files of a commit", detail));
        }
        let mut found = BTreeMap::new();
        let mut rest = blobs;
        while !rest.is_empty() {
            let mut bytes = 0u64;
            let fitting = rest.iter().take_while(|(_, size)| {
                bytes = bytes.saturating_add(*size);
                bytes <= BATCH
            });
            let (batch, later) = rest.split_at(fitting.count().max(1));
            self.read_batch(batch, &mut found, stop)?;
            rest = later;
        }
        Ok(found)
    }

    fn read_batch(
        &self,
        batch: &[(&Oid, u64)],
        found: &mut BTreeMap<Oid, Vec<u8>>,
        stop: &Stop,
    ) -> Result<(), GitError> {
        let input: String = batch.iter().map(|(oid, _)| format!("{oid}\n")).collect();
        let content: u64 = batch.iter().map(|(_, size)| size).sum();
        // A line before and a newline after each.
        let most = usize::try_from(content).unwrap_or(usize::MAX).saturating_add(batch.len() * 128);
        let run = self.run("read files of a commit").args(["cat-file", "--batch"]).most(most);
        let out = run.input(input.into_bytes()).ok(stop)?;
        let mut rest = out.as_slice();
        for (oid, _) in batch {
            let (content, after) = split_one(rest, oid).inspect_err(|_| self.doubt())?;
            found.insert((*oid).clone(), content.to_vec());
            rest = after;
        }
        Ok(())
    }
}

/// `OID TYPE SIZE\nCONTENT\n`: the content, and what follows.
fn split_one<'a>(out: &'a [u8], oid: &Oid) -> Result<(&'a [u8], &'a [u8]), GitError> {
    let missing =
        || GitError::new(Category::Corrupt, "read files of a commit", format!("{oid} is not in the repository"));
    let end = out.iter().position(|&byte| byte == b'\n').ok_or_else(missing)?;
    let head = String::from_utf8_lossy(&out[..end]);
    let size: usize = head.rsplit(' ').next().and_then(|size| size.parse().ok()).ok_or_else(missing)?;
    let content = out.get(end + 1..end + 1 + size).ok_or_else(missing)?;
    Ok((content, out.get(end + size + 2..).unwrap_or_default()))
}
