//! Keys as the store's users know them, and as etcd holds them: with a prefix before them.

use std::sync::Arc;

use berth_wire::etcd::KeyValue;
use bytes::Bytes;

use crate::store::{Entry, Rev};

/// Adds the prefix, and takes it away.
#[derive(Debug, Clone)]
pub(super) struct Keys(Arc<str>);

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        Self(prefix.into())
    }

    /// The key as etcd holds it.
    pub(super) fn full(&self, key: &str) -> Bytes {
        Bytes::from([self.0.as_bytes(), key.as_bytes()].concat())
    }

    /// The first key that no longer begins with `prefix`.
    pub(super) fn end(&self, prefix: &str) -> Bytes {
        let mut end = [self.0.as_bytes(), prefix.as_bytes()].concat();
        while let Some(last) = end.pop() {
            if last < u8::MAX {
                end.push(last + 1);
                return Bytes::from(end);
            }
        }
        // etcd's way to say: to the very end.
        Bytes::from_static(b"\0")
    }

    /// The first key after `key`.
    pub(super) fn after(&self, key: &str) -> Bytes {
        next(&self.full(key))
    }

    /// The key as users know it; `None` where others have put a key that is no text.
    pub(super) fn short(&self, key: &[u8]) -> Option<String> {
        let key = key.strip_prefix(self.0.as_bytes())?;
        let short = std::str::from_utf8(key).ok().map(str::to_owned);
        if short.is_none() {
            tracing::warn!(event = "store_key_skipped", key = %String::from_utf8_lossy(key), "skipping a key that is not text");
        }
        short
    }

    /// Converts a key-value pair of etcd, without the prefix.
    pub(super) fn entry(&self, found: KeyValue) -> Option<Entry> {
        Some(Entry {
            key: self.short(&found.key)?,
            value: found.value,
            created: rev(found.create_revision),
            modified: rev(found.mod_revision),
            version: u64::try_from(found.version).unwrap_or_default(),
        })
    }
}

/// The first key after one as etcd holds it.
pub(super) fn next(key: &[u8]) -> Bytes {
    Bytes::from([key, b"\0"].concat())
}

/// etcd's revisions are never negative.
pub(super) fn rev(revision: i64) -> Rev {
    Rev(u64::try_from(revision).unwrap_or_default())
}

/// The same, the other way.
pub(super) fn revision(rev: Rev) -> i64 {
    i64::try_from(rev.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_get_their_prefix_and_lose_it() {
        let keys = Keys::new("/berth");
        assert_eq!(keys.full("/a/b"), "/berth/a/b");
        assert_eq!(keys.end("/a/"), "/berth/a0");
        assert_eq!(keys.after("/a"), "/berth/a\0");
        assert_eq!(keys.short(b"/berth/a").as_deref(), Some("/a"));
        assert_eq!(keys.short(b"/other/a"), None);
        assert_eq!(keys.short(b"/berth/\xff"), None);
        assert_eq!(Keys::new("").end("\u{0}"), "\u{1}");
        assert_eq!(Keys::new("").end(""), "\0");
    }
}
