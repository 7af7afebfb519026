//! A limit for each holder: for an address on the connections of a port, or on the requests that wait at one; for a principal on what it
//! keeps open.

use std::{
    collections::HashMap,
    hash::Hash,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Limit on what one holder has at once: one alone leaves room to others, several may take all there is.
#[derive(Debug)]
pub struct HolderLimit<H> {
    most: usize,
    held: Mutex<HashMap<H, usize>>,
}

/// One of those that a holder has. Counts until it is dropped.
#[derive(Debug)]
pub struct HolderPlace<H: Eq + Hash> {
    limit: Arc<HolderLimit<H>>,
    holder: H,
}

/// Limit on what one address has at once.
///
/// Addresses of IPv6 count one by one, not by their /64: the pods of a Kubernetes node share one by default, and with some networks the
/// node's own address towards them is in it.
pub type AddressLimit = HolderLimit<IpAddr>;

/// One of those that an address has.
pub type AddressPlace = HolderPlace<IpAddr>;

impl<H> HolderLimit<H> {
    /// A limit of so many, at least one.
    #[must_use]
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), held: Mutex::default() })
    }

    /// The most that one holder may have at once.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Counts of those that have any.
    pub(super) fn held(&self) -> MutexGuard<'_, HashMap<H, usize>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<H: Eq + Hash + Clone> HolderLimit<H> {
    /// Counts one more of a holder; `None` where it has as many as it may.
    #[must_use]
    pub fn of(self: &Arc<Self>, holder: H) -> Option<HolderPlace<H>> {
        let mut held = self.held();
        let count = held.entry(holder.clone()).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        drop(held);
        Some(HolderPlace { limit: Arc::clone(self), holder })
    }
}

impl AddressLimit {
    /// Counts one more of an address; `None` where it has as many as it may.
    #[must_use]
    pub fn place(self: &Arc<Self>, address: IpAddr) -> Option<AddressPlace> {
        // One that is written in the form of the other family is the same.
        self.of(address.to_canonical())
    }
}

impl<H: Eq + Hash> Drop for HolderPlace<H> {
    fn drop(&mut self) {
        let mut held = self.limit.held();
        if let Some(count) = held.get_mut(&self.holder) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.holder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_takes_no_room_of_another() {
        let addresses = ["10.1.2.3", "10.1.0.1", "::ffff:10.1.2.3"];
        let [one, other, written] = addresses.map(|text| text.parse::<IpAddr>().expect("an address"));
        let limit = AddressLimit::new(2);
        let (first, second) = (limit.place(one).expect("room"), limit.place(written).expect("room"));
        assert!(limit.place(one).is_none() && limit.place(written).is_none());
        let beside = limit.place(other).expect("room of its own");
        drop(first);
        let again = limit.place(one).expect("one has ended");
        assert!(limit.place(one).is_none());
        drop((second, beside, again));
        assert!(limit.held().is_empty(), "addresses are forgotten");
    }
}
