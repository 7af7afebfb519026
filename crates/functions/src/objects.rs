//! The objects of functions: below a prefix of a store, which is people's etcd or Berth's own.
//!
//! The rest of the key is the written form of the function's name: `NAME` in the namespace `default`, `NAMESPACE/NAME` in another. So
//! keys that were written before there were namespaces mean the same now as then.

use std::sync::Arc;

use berth_control::store::{Store, layout};

/// The objects of functions. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Objects {
    pub(crate) store: Arc<dyn Store>,
    prefix: &'static str,
}

impl Objects {
    /// Those of a store that holds nothing else.
    pub(crate) fn all_of(store: Arc<dyn Store>) -> Self {
        Self { store, prefix: "/" }
    }

    /// Those of Berth's own store.
    pub(crate) fn of_berth(store: Arc<dyn Store>) -> Self {
        Self { store, prefix: layout::FUNCTIONS }
    }

    pub(crate) const fn prefix(&self) -> &'static str {
        self.prefix
    }

    /// Key of the object of a function.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The name of a function from its key. It may be none: a key may be any text.
    pub(crate) fn name_of<'k>(&self, key: &'k str) -> &'k str {
        key.strip_prefix(self.prefix).unwrap_or(key)
    }
}

#[cfg(test)]
mod tests {
    use berth_control::store::memory::MemoryStore;

    use super::*;

    #[test]
    fn keys_of_before_are_those_of_the_default_namespace() {
        let own = Objects::of_berth(Arc::new(MemoryStore::default()));
        let etcd = Objects::all_of(Arc::new(MemoryStore::default()));
        for (name, in_own, in_etcd) in
            [("words", "/functions/words", "/words"), ("team/words", "/functions/team/words", "/team/words")]
        {
            assert_eq!((own.key(name).as_str(), etcd.key(name).as_str()), (in_own, in_etcd));
            assert_eq!((own.name_of(in_own), etcd.name_of(in_etcd)), (name, name));
        }
    }
}
