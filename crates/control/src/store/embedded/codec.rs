//! The bytes in the tables. Numbers are little-endian.
//!
//! ```text
//! kv value:   created u64 | modified u64 | version u64 | value …
//! log value:  change …     change = kind u8 (0 deleted, 1 put) | key length u32 | key | [value length u32 | kv value]
//! ```

use bytes::Bytes;

use crate::store::{Change, Entry, Rev, StoreError};

const HEADER: usize = 24;

/// The value of an entry in the table `kv`.
pub(super) fn encode_entry(entry: &Entry) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + entry.value.len());
    for number in [entry.created.0, entry.modified.0, entry.version] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&entry.value);
    bytes
}

/// The inverse of [`encode_entry`].
pub(super) fn entry(key: &str, bytes: &[u8]) -> Result<Entry, StoreError> {
    let mut rest = bytes;
    let decoded = (|| {
        let (created, modified, version) = (number(&mut rest)?, number(&mut rest)?, number(&mut rest)?);
        Some((Rev(created), Rev(modified), version))
    })();
    let (created, modified, version) =
        decoded.ok_or_else(|| StoreError::Corrupt { key: key.to_owned(), reason: "it is cut short".to_owned() })?;
    Ok(Entry { key: key.to_owned(), value: Bytes::copy_from_slice(rest), created, modified, version })
}

/// The value of a commit in the table `log`.
pub(super) fn encode_changes(changes: &[Change]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for change in changes {
        let (kind, value) = match change {
            Change::Deleted { .. } => (0, None),
            Change::Put(entry) => (1, Some(encode_entry(entry))),
        };
        bytes.push(kind);
        push_sized(&mut bytes, change.key().as_bytes());
        if let Some(value) = value {
            push_sized(&mut bytes, &value);
        }
    }
    bytes
}

/// The inverse of [`encode_changes`].
pub(super) fn changes(mut bytes: &[u8]) -> Result<Vec<Change>, StoreError> {
    let corrupt = || StoreError::Corrupt { key: "(log)".to_owned(), reason: "a commit in it is cut short".to_owned() };
    let mut changes = Vec::new();
    while let Some((kind, rest)) = bytes.split_first() {
        bytes = rest;
        let key = sized(&mut bytes).and_then(|key| std::str::from_utf8(key).ok()).ok_or_else(corrupt)?;
        changes.push(match kind {
            0 => Change::Deleted { key: key.to_owned() },
            _ => Change::Put(entry(key, sized(&mut bytes).ok_or_else(corrupt)?)?),
        });
    }
    Ok(changes)
}

fn push_sized(bytes: &mut Vec<u8>, part: &[u8]) {
    let length = u32::try_from(part.len()).expect("a transaction is at most MAX_BYTES");
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(part);
}

fn sized<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (part, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some(part)
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    let (number, rest) = bytes.split_first_chunk::<8>()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_survives_the_codec_and_a_short_one_is_refused() {
        let put = Entry {
            key: "/a".to_owned(),
            value: Bytes::from_static(b"value"),
            created: Rev(3),
            modified: Rev(9),
            version: 2,
        };
        let commit = vec![Change::Deleted { key: "/b".to_owned() }, Change::Put(put)];
        let bytes = encode_changes(&commit);
        assert_eq!(changes(&bytes).expect("it decodes"), commit);
        for end in 1..bytes.len() {
            // Between the two changes is the one place where a cut cannot be seen.
            let cut = changes(&bytes[..end]);
            assert!(cut.is_err() || cut.is_ok_and(|changes| changes.len() == 1), "cut at {end}");
        }
    }
}
