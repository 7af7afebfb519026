//! A map of what is made at first use, and forgotten some time after it has become idle.
//!
//! ```text
//! absent ──first use──▶ there ──idle, at a sweep──▶ absent
//! ```
//! A sweep comes when the entries have doubled since the last one, so that they are at most about twice those in use, and a new one costs
//! the same however many there are. Entries are found without a lock.

use std::{
    fmt,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use papaya::HashMap;

/// Entries below which a map is not swept: so few take little. Accounts are some ten kilobytes then, counts of calls some
/// hundred.
pub(crate) const SWEEP_THRESHOLD: usize = 64;

/// A map that drops idle entries when it has doubled since the last time. Read without a lock.
pub(crate) struct SweptMap<K, T> {
    entries: HashMap<K, Arc<T>>,
    /// Entries at which it is swept next.
    sweep_at: AtomicUsize,
}

impl<K, T> Default for SweptMap<K, T> {
    fn default() -> Self {
        Self { entries: HashMap::new(), sweep_at: AtomicUsize::new(SWEEP_THRESHOLD) }
    }
}

impl<K, T> fmt::Debug for SweptMap<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SweptMap").finish_non_exhaustive()
    }
}

impl<K, T> SweptMap<K, T>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    T: Send + Sync + 'static,
{
    /// The entry of this key, made where there is none. Where there are many, the idle ones go first.
    pub(crate) fn of(&self, key: &K, make: impl Fn() -> Arc<T>, is_idle: impl Fn(&K, &Arc<T>) -> bool) -> Arc<T> {
        let entries = self.entries.pin();
        if let Some(entry) = entries.get(key) {
            return Arc::clone(entry);
        }
        let (before, sweep_at) = (entries.len(), self.sweep_at.load(Relaxed));
        if before >= sweep_at && self.sweep_at.compare_exchange(sweep_at, usize::MAX, Relaxed, Relaxed).is_ok() {
            entries.retain(|key, entry| !is_idle(key, entry));
            self.sweep_at.store(entries.len().saturating_mul(2).max(SWEEP_THRESHOLD), Relaxed);
        }
        Arc::clone(entries.get_or_insert_with(key.clone(), make))
    }

    /// The entry of this key, if there is one.
    pub(crate) fn get(&self, key: &K) -> Option<Arc<T>> {
        self.entries.pin().get(key).cloned()
    }

    /// Forgets an entry. Who has it keeps it.
    pub(crate) fn remove(&self, key: &K) {
        self.entries.pin().remove(key);
    }

    /// Every entry, in no order.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.entries.pin().values().cloned().collect()
    }

    /// The number of entries, idle ones that were not swept yet included.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}
