//! A limit for each address: on the connections of a port, or on the requests that wait at one.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Limit on what one address has at once: an address alone leaves room to others, several may take all there is.
///
/// Addresses of IPv6 count one by one, not by their /64: the pods of a Kubernetes node share one by default, and with some networks the
/// node's own address towards them is in it.
#[derive(Debug)]
pub struct AddressLimit {
    most: usize,
    held: Mutex<HashMap<IpAddr, usize>>,
}

/// One of those that an address has. Counts until it is dropped.
#[derive(Debug)]
pub struct AddressPlace {
    limit: Arc<AddressLimit>,
    address: IpAddr,
}

impl AddressLimit {
    /// A limit of so many, at least one.
    #[must_use]
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), held: Mutex::default() })
    }

    /// Counts one more of an address; `None` where it has as many as it may.
    #[must_use]
    pub fn place(self: &Arc<Self>, address: IpAddr) -> Option<AddressPlace> {
        // One that is written in the form of the other family is the same.
        let address = address.to_canonical();
        let mut held = self.held();
        let count = held.entry(address).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        drop(held);
        Some(AddressPlace { limit: Arc::clone(self), address })
    }

    /// The limit.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Counts of those that have any.
    pub(super) fn held(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AddressPlace {
    fn drop(&mut self) {
        let mut held = self.limit.held();
        if let Some(count) = held.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.address);
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
