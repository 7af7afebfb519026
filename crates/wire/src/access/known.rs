//! Answers that were worked out once and hold for as long as the rules and keys that they were worked out from.

use std::{fmt, hash::Hash, sync::Arc};

use super::Principal;

/// Most answers that are kept: the callers of a busy gateway, at some hundred bytes each. Beyond it all are forgotten, and worked
/// out again as they are asked for.
const MAX_ANSWERS: usize = 20_000;

/// Principals by what was presented. Reading takes no lock.
pub(super) struct KnownPrincipals<K>(papaya::HashMap<K, Arc<Principal>>);

impl<K> fmt::Debug for KnownPrincipals<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KnownPrincipals")
    }
}

impl<K: Hash + Eq> Default for KnownPrincipals<K> {
    fn default() -> Self {
        Self(papaya::HashMap::new())
    }
}

impl<K: Hash + Eq> KnownPrincipals<K> {
    pub(super) fn get<Q: Hash + equivalent::Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<Arc<Principal>> {
        self.0.pin().get(key).map(Arc::clone)
    }

    pub(super) fn keep(&self, key: K, principal: &Arc<Principal>) {
        let known = self.0.pin();
        if known.len() >= MAX_ANSWERS {
            known.clear();
        }
        known.insert(key, Arc::clone(principal));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_an_end_to_what_is_kept() {
        let (known, principal) = (KnownPrincipals::default(), Arc::new(Principal::of("x", Vec::new())));
        for key in 0..=MAX_ANSWERS {
            known.keep(key, &principal);
        }
        assert!(known.get(&MAX_ANSWERS).is_some() && known.get(&0).is_none());
    }
}
