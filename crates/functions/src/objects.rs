//! The objects of functions: below a prefix of a store, which is people's etcd or Berth's own.

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

    /// Key of an object.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The name of a function from its key.
    pub(crate) fn name_of<'k>(&self, key: &'k str) -> &'k str {
        key.strip_prefix(self.prefix).unwrap_or(key)
    }
}
