//! The choice of an endpoint: the one with the fewest requests in flight; of several, the one that was chosen longest ago. No I/O, no clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    num::NonZeroU32,
};

/// The outcome of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The endpoint that takes the request.
    Endpoint(SocketAddr),
    /// No endpoint is ready, of those that may be chosen.
    NoneReady,
    /// Each has as many requests as it may have.
    Busy,
}

#[derive(Debug, Default)]
struct Endpoint {
    is_ready: bool,
    in_flight: u32,
    /// The turn in which it was chosen last.
    chosen: u64,
}

/// The endpoints of a pool, and the requests that were sent to each.
#[derive(Debug, Default)]
pub struct Balance {
    endpoints: BTreeMap<SocketAddr, Endpoint>,
    turn: u64,
    most: Option<NonZeroU32>,
}

impl Balance {
    /// No endpoints yet, each of which takes `most` requests at once; `None`: any number.
    #[must_use]
    pub fn new(most: Option<NonZeroU32>) -> Self {
        Self { most, ..Self::default() }
    }

    /// The endpoints that are ready: all of them. One that is not ready keeps its count until its requests end.
    pub fn set_ready(&mut self, ready: &BTreeSet<SocketAddr>) {
        for address in ready {
            self.endpoints.entry(*address).or_default();
        }
        self.endpoints.retain(|address, endpoint| {
            endpoint.is_ready = ready.contains(address);
            endpoint.is_ready || endpoint.in_flight > 0
        });
    }

    /// Chooses among the endpoints in `subset`, or among all, and counts the request there.
    pub fn choose(&mut self, subset: Option<&BTreeSet<SocketAddr>>) -> Choice {
        let may_be = |address: &SocketAddr| subset.is_none_or(|subset| subset.contains(address));
        let ready = self.endpoints.iter_mut().filter(|(address, endpoint)| endpoint.is_ready && may_be(address));
        let Some((address, endpoint)) = ready.min_by_key(|(_, endpoint)| (endpoint.in_flight, endpoint.chosen)) else {
            return Choice::NoneReady;
        };
        if self.most.is_some_and(|most| endpoint.in_flight >= most.get()) {
            return Choice::Busy;
        }
        self.turn += 1;
        endpoint.chosen = self.turn;
        endpoint.in_flight += 1;
        Choice::Endpoint(*address)
    }

    /// A request at this endpoint has ended.
    pub fn release(&mut self, address: SocketAddr) {
        let Some(endpoint) = self.endpoints.get_mut(&address) else { return };
        endpoint.in_flight = endpoint.in_flight.saturating_sub(1);
        if endpoint.in_flight == 0 && !endpoint.is_ready {
            self.endpoints.remove(&address);
        }
    }

    /// A request that was chosen `from` for is served by `to`. Returns the endpoint that it counts at: `from` where nothing is known of `to`.
    #[must_use]
    pub fn moved(&mut self, from: SocketAddr, to: SocketAddr) -> SocketAddr {
        let Some(endpoint) = self.endpoints.get_mut(&to).filter(|_| from != to) else { return from };
        endpoint.in_flight += 1;
        self.release(from);
        to
    }

    /// Requests in flight at an endpoint.
    #[must_use]
    pub fn in_flight(&self, address: SocketAddr) -> u32 {
        self.endpoints.get(&address).map_or(0, |endpoint| endpoint.in_flight)
    }

    /// Endpoints that are remembered: those that are ready, and those with requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.endpoints.len()
    }

    /// True if nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, number], 8080))
    }

    fn addresses(numbers: &[u8]) -> BTreeSet<SocketAddr> {
        numbers.iter().copied().map(address).collect()
    }

    /// The last part of the address; 0: none is ready, 255: all are busy.
    fn chosen(balance: &mut Balance, subset: Option<&[u8]>) -> u8 {
        match balance.choose(subset.map(addresses).as_ref()) {
            Choice::Endpoint(SocketAddr::V4(address)) => address.ip().octets()[3],
            Choice::Endpoint(SocketAddr::V6(_)) | Choice::NoneReady => 0,
            Choice::Busy => 255,
        }
    }

    #[test]
    fn requests_go_where_the_fewest_are_and_in_turn_where_all_have_as_many() {
        // Ready endpoints; steps: `+` chooses (all, or of a subset), `-` releases; the choices.
        enum Step {
            Choose,
            Of(&'static [u8]),
            End(u8),
            Ready(&'static [u8]),
        }
        use Step::{Choose, End, Of, Ready};
        type Case = (&'static str, Option<u32>, &'static [Step], &'static [u8]);
        let cases: &[Case] = &[
            ("nobody", None, &[Choose], &[0]),
            ("in turn", None, &[Ready(&[1, 2, 3]), Choose, Choose, Choose, Choose], &[1, 2, 3, 1]),
            (
                "in turn without requests in flight",
                None,
                &[Ready(&[1, 2]), Choose, End(1), Choose, End(2), Choose],
                &[1, 2, 1],
            ),
            ("the fewest", None, &[Ready(&[1, 2]), Choose, Choose, Choose, End(2), Choose, Choose], &[1, 2, 1, 2, 2]),
            ("a subset", None, &[Ready(&[1, 2, 3]), Of(&[3]), Of(&[3, 2]), Of(&[])], &[3, 2, 0]),
            ("a subset that is not ready", None, &[Ready(&[1]), Of(&[2])], &[0]),
            ("one that goes", None, &[Ready(&[1, 2]), Ready(&[2]), Choose, Choose], &[2, 2]),
            (
                "one that comes",
                None,
                &[Ready(&[1]), Choose, Choose, Ready(&[1, 2]), Choose, Choose, Choose],
                &[1, 1, 2, 2, 1],
            ),
            ("a bound", Some(1), &[Ready(&[1, 2]), Choose, Choose, Choose, End(2), Choose], &[1, 2, 255, 2]),
            ("a bound in a subset", Some(1), &[Ready(&[1, 2]), Of(&[1]), Of(&[1])], &[1, 255]),
        ];
        for (name, most, steps, expected) in cases {
            let mut balance = Balance::new(most.and_then(NonZeroU32::new));
            let mut choices = Vec::new();
            for step in *steps {
                match step {
                    Choose => choices.push(chosen(&mut balance, None)),
                    Of(subset) => choices.push(chosen(&mut balance, Some(subset))),
                    End(number) => balance.release(address(*number)),
                    Ready(numbers) => balance.set_ready(&addresses(numbers)),
                }
            }
            assert_eq!(choices, *expected, "{name}");
        }
    }

    #[test]
    fn what_was_sent_counts_until_it_ends_wherever_the_endpoint_is() {
        let mut balance = Balance::default();
        balance.set_ready(&addresses(&[1, 2]));
        assert_eq!([chosen(&mut balance, Some(&[1])), chosen(&mut balance, Some(&[1]))], [1, 1]);
        balance.set_ready(&addresses(&[2]));
        assert_eq!((balance.in_flight(address(1)), balance.len()), (2, 2));
        // It is ready again, and still has its two.
        balance.set_ready(&addresses(&[1, 2]));
        assert_eq!(chosen(&mut balance, None), 2);
        balance.set_ready(&addresses(&[2]));
        balance.release(address(1));
        balance.release(address(1));
        assert_eq!((balance.in_flight(address(1)), balance.len()), (0, 1), "nothing is kept of what is gone");
        balance.release(address(1));
        balance.release(address(9));
        assert_eq!(balance.len(), 1);
    }

    #[test]
    fn a_request_counts_where_it_is_served() {
        let mut balance = Balance::default();
        balance.set_ready(&addresses(&[1, 2]));
        assert_eq!(chosen(&mut balance, Some(&[1])), 1);
        assert_eq!(balance.moved(address(1), address(2)), address(2));
        assert_eq!((balance.in_flight(address(1)), balance.in_flight(address(2))), (0, 1));
        assert_eq!(balance.moved(address(2), address(2)), address(2));
        assert_eq!(balance.moved(address(2), address(7)), address(2), "nobody knows it");
        assert_eq!((balance.in_flight(address(2)), balance.len()), (1, 2));
    }
}
