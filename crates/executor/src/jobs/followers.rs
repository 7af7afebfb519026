//! Places of those who follow jobs. An event stream stays open for as long as its job lasts, so few of a port are open at once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Most event streams of a port: each costs a connection or a stream of one, and asks the queue every second.
pub(super) const MOST: usize = 256;

/// Most event streams of one principal: one leaves room for others.
pub(super) const MOST_OF_ONE: usize = 16;

/// Reason why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Crowded {
    /// The port has as many as it may have.
    Port,
    /// The principal has.
    Principal,
}

/// The open event streams of a port.
#[derive(Debug, Default)]
pub(super) struct Followers(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    all: usize,
    of: HashMap<Arc<str>, usize>,
}

/// The place of one event stream. Counts until it is dropped.
#[derive(Debug)]
pub(super) struct FollowerPlace {
    followers: Arc<Followers>,
    who: Option<Arc<str>>,
}

impl Followers {
    /// A place for a principal, or for somebody where nobody is known.
    pub(super) fn place(self: &Arc<Self>, who: Option<Arc<str>>) -> Result<FollowerPlace, Crowded> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if open.all >= MOST {
            return Err(Crowded::Port);
        }
        if let Some(who) = &who {
            let number = open.of.entry(Arc::clone(who)).or_default();
            if *number >= MOST_OF_ONE {
                return Err(Crowded::Principal);
            }
            *number += 1;
        }
        open.all += 1;
        Ok(FollowerPlace { followers: Arc::clone(self), who })
    }
}

impl Drop for FollowerPlace {
    fn drop(&mut self) {
        let mut open = self.followers.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.all -= 1;
        let Some(who) = &self.who else { return };
        if let Some(number) = open.of.get_mut(who) {
            *number -= 1;
            if *number == 0 {
                open.of.remove(who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_has_its_share_and_the_port_an_end() {
        let followers = Arc::new(Followers::default());
        let of = |who: &str| followers.place(Some(who.into()));
        let mut held: Vec<_> = (0..MOST_OF_ONE).map(|_| of("one").expect("a place")).collect();
        assert_eq!(of("one").err(), Some(Crowded::Principal));
        held.extend((0..MOST - MOST_OF_ONE).map(|_| followers.place(None).expect("a place")));
        assert_eq!((of("other").err(), followers.place(None).err()), (Some(Crowded::Port), Some(Crowded::Port)));
        held.truncate(1);
        drop(of("other").expect("a place"));
        held.clear();
        let open = followers.0.lock().expect("no panic");
        assert_eq!((open.all, open.of.len()), (0, 0));
    }
}
