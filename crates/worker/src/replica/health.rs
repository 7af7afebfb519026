//! Health of a ready replica's model: decides what is worth reporting.

use std::sync::Arc;

use berth_spec::{ByteSize, residency::Ready};

use crate::runtime::Health;

/// The growth at which a ready model's memory is reported again, as a part of itself and at least so many bytes: models
/// that warm up do not cause a plan at each step, and no model takes much more than is known.
const MEMORY_PART: u64 = 16;
const MEMORY_STEP: ByteSize = ByteSize::mib(16);

/// Takes in how the model is, as far as that is news. Memory only grows: a claim that follows every up and down would
/// have others evicted and placed again for ever.
pub(super) fn taken_in(mut ready: Arc<Ready>, health: Health) -> Arc<Ready> {
    let step = ByteSize((ready.memory.0 / MEMORY_PART).max(MEMORY_STEP.0));
    let more = health.memory.filter(|now| *now > ready.memory + step);
    if more.is_some() || health.deaths != ready.deaths {
        let ready = Arc::make_mut(&mut ready);
        ready.memory = more.unwrap_or(ready.memory);
        ready.measured |= more.is_some();
        ready.deaths = health.deaths;
    }
    ready
}

#[cfg(test)]
mod tests {
    use berth_spec::{
        Digest, Time,
        residency::{Deaths, Phases},
    };

    use super::*;

    #[test]
    fn growth_and_deaths_are_news_and_little_else() {
        let ready = Arc::new(Ready {
            since: Time(1),
            memory: ByteSize::mib(320),
            measured: true,
            digest: Digest([1; 32]),
            signature: None,
            devices: Vec::new(),
            phases: Phases::default(),
            note: None,
            unvalidated: None,
            deaths: None,
        });
        let after = |memory, deaths: Option<&Arc<Deaths>>| {
            taken_in(Arc::clone(&ready), Health { memory, deaths: deaths.cloned(), lost: None })
        };
        for memory in [None, Some(ByteSize::mib(20)), Some(ByteSize::mib(340))] {
            assert!(Arc::ptr_eq(&after(memory, None), &ready), "{memory:?}");
        }
        assert_eq!(after(Some(ByteSize::mib(341)), None).memory, ByteSize::mib(341));
        let deaths =
            Deaths { count: 1, in_a_row: 1, at: Time(2), cause: "it was killed".to_owned(), again_at: Some(Time(3)) };
        let died = after(None, Some(&Arc::new(deaths.clone())));
        assert_eq!((died.memory, died.deaths.as_deref()), (ready.memory, Some(&deaths)));
        assert!(!died.is_up() && ready.is_up(), "it answers nobody meanwhile");
        let back = Arc::new(Deaths { again_at: None, ..deaths });
        let up = taken_in(died, Health { memory: None, deaths: Some(Arc::clone(&back)), lost: None });
        assert!(up.is_up());
        assert_eq!(up.deaths, Some(back));
    }
}
