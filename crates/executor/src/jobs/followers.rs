//! Places of those who follow jobs. An event stream stays open for as long as its job lasts, so few of a port are open at once.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use tokio_util::task::TaskTracker;

/// Most event streams of a port: each costs a connection or a stream of one, and asks the queue every second.
pub(super) const MAX_STREAMS: usize = 256;

/// Most event streams of one principal: one leaves room for others.
const MOST_OF_PRINCIPAL: usize = 16;

/// Most event streams of one address: many clients may come through one proxy, and some room is left for others.
const MOST_OF_ADDRESS: usize = MAX_STREAMS / 2;

/// Whoever an event stream counts for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum StreamOwner {
    /// A principal, wherever it asks from.
    Principal(Arc<str>),
    /// The address of somebody whom nobody knows.
    Address(IpAddr),
}

impl StreamOwner {
    /// The principal where one is known, else the address.
    pub(super) fn of(principal: Option<Arc<str>>, address: IpAddr) -> Self {
        // One that is written in the form of the other family is the same.
        principal.map_or_else(|| Self::Address(address.to_canonical()), Self::Principal)
    }

    /// Most event streams of it.
    pub(super) const fn most(&self) -> usize {
        match self {
            Self::Principal(_) => MOST_OF_PRINCIPAL,
            Self::Address(_) => MOST_OF_ADDRESS,
        }
    }
}

/// Reason why there is no place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LimitReached {
    /// The port has as many as it may have.
    Port,
    /// The principal or the address has.
    Owner(StreamOwner),
}

/// The open event streams of a port.
#[derive(Debug, Default)]
pub(super) struct Followers {
    open: Mutex<StreamCounts>,
    pub(super) tasks: TaskTracker,
}

#[derive(Debug, Default)]
struct StreamCounts {
    all: usize,
    of: HashMap<StreamOwner, usize>,
}

/// The place of one event stream. Counts until it is dropped.
#[derive(Debug)]
pub(super) struct FollowerPlace {
    followers: Arc<Followers>,
    owner: StreamOwner,
}

impl Followers {
    /// A place for one more.
    pub(super) fn place(self: &Arc<Self>, owner: StreamOwner) -> Result<FollowerPlace, LimitReached> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.all >= MAX_STREAMS {
            return Err(LimitReached::Port);
        }
        let number = open.of.entry(owner.clone()).or_default();
        if *number >= owner.most() {
            return Err(LimitReached::Owner(owner));
        }
        *number += 1;
        open.all += 1;
        Ok(FollowerPlace { followers: Arc::clone(self), owner })
    }
}

impl Drop for FollowerPlace {
    fn drop(&mut self) {
        let mut open = self.followers.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.all -= 1;
        if let Some(number) = open.of.get_mut(&self.owner) {
            *number -= 1;
            if *number == 0 {
                open.of.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_all_places_and_the_port_has_an_end() {
        let followers = Arc::new(Followers::default());
        let written = |text: &str| StreamOwner::of(None, text.parse().expect("an address"));
        let (known, address) = (StreamOwner::of(Some("one".into()), [10, 0, 0, 1].into()), written("10.0.0.1"));
        let mut held = Vec::new();
        for (owner, most) in [(&known, MOST_OF_PRINCIPAL), (&address, MOST_OF_ADDRESS)] {
            held.extend((0..most).map(|_| followers.place(owner.clone()).expect("a place")));
            assert_eq!(followers.place(owner.clone()).err(), Some(LimitReached::Owner(owner.clone())));
        }
        assert_eq!(followers.place(written("::ffff:10.0.0.1")).err(), Some(LimitReached::Owner(address)));
        let rest = MAX_STREAMS - held.len();
        held.extend((0..rest).map(|_| followers.place(written("10.0.0.2")).expect("a place")));
        assert_eq!(followers.place(written("10.0.0.3")).err(), Some(LimitReached::Port));
        held.truncate(1);
        drop(followers.place(written("10.0.0.3")).expect("a place"));
        held.clear();
        let open = followers.open.lock().expect("no panic");
        assert_eq!((open.all, open.of.len()), (0, 0));
    }
}
