//! Fair use of what all requests share: places inside, places to park, memory.
//!
//! A pool has a common part, which is whoever's comes first, and a reserve. Who finds the common part full is served from the
//! reserve as long as he holds little: no more than his share of the reserve.
//!
//! ```text
//! take ── room in the common part ──▶ taken from it
//!   │ full
//!   ▼
//!   the key holds no more than its share, and its tenant takes no more than its share of the reserve ──▶ taken from the reserve
//!   │ no
//!   ▼
//!   refused
//! ```
//! A key is a principal and a model, a tenant a principal: whoever asks for many models gets no more for it. Up to the number of
//! tenants and models that a pool is made for ([`Shape`]), shares add up to the reserve. A key that holds less than its
//! share is then never refused, whatever the others hold: that is the law that the tests look for. With more of them the reserve
//! can be used up, and refuses like the common part.
//!
//! Nothing is taken away from anybody, and nobody waits in line: requests are short, so that who holds too much is below it soon.
//! Atomics and no lock; where nothing is short, the reserve is not touched.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Keys that a reserve is made for. With 64 of them a share of the places inside is 128 requests.
const RESERVED_KEYS: usize = 64;

/// The number of tenants, and of models of each, that shares are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) tenants: usize,
    pub(crate) models: usize,
}

impl Shape {
    /// For a server that knows its principals, or one where all callers are one tenant.
    pub(crate) const fn new(knows_principals: bool) -> Self {
        if knows_principals {
            Self { tenants: 8, models: RESERVED_KEYS / 8 }
        } else {
            Self { tenants: 1, models: RESERVED_KEYS }
        }
    }
}

/// A thing of which there is so much.
#[derive(Debug)]
pub(crate) struct Pool {
    /// All that is taken, from both parts.
    taken: AtomicUsize,
    /// The same from the reserve.
    reserve_taken: AtomicUsize,
    common: usize,
    reserve: usize,
    shape: Shape,
}

/// The amounts that one key holds, of one pool.
#[derive(Debug, Default)]
pub(crate) struct Holding(AtomicUsize);

/// The amount that a tenant has taken from the reserve of one pool.
#[derive(Debug, Default)]
pub(crate) struct ReserveUse(AtomicUsize);

/// The part of a pool that something was taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PoolPart {
    Common,
    Reserve,
}

impl Pool {
    pub(crate) const fn new(common: usize, reserve: usize, shape: Shape) -> Self {
        Self { taken: AtomicUsize::new(0), reserve_taken: AtomicUsize::new(0), common, reserve, shape }
    }

    /// The amount that is taken now, from both parts.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// The most that one key holds when the common part is full. At least one, so that a small pool has shares, too.
    pub(crate) fn share(&self) -> usize {
        (self.reserve / (self.shape.tenants * self.shape.models)).max(1)
    }

    /// Takes an amount for a key, from the common part or from the reserve; `None`: there is no room for this key.
    pub(crate) fn take(&self, amount: usize, key: &Holding, tenant: &ReserveUse) -> Option<PoolPart> {
        let held = key.0.fetch_add(amount, Relaxed).saturating_add(amount);
        let taken = self.taken.fetch_add(amount, Relaxed).saturating_add(amount);
        if taken.saturating_sub(self.reserve_taken.load(Relaxed)) <= self.common {
            return Some(PoolPart::Common);
        }
        if held <= self.share() && self.draw(amount, tenant) {
            return Some(PoolPart::Reserve);
        }
        key.0.fetch_sub(amount, Relaxed);
        self.taken.fetch_sub(amount, Relaxed);
        None
    }

    /// Takes an amount for a key whether there is room or not: what is there already.
    pub(crate) fn force(&self, amount: usize, key: &Holding) -> PoolPart {
        key.0.fetch_add(amount, Relaxed);
        self.taken.fetch_add(amount, Relaxed);
        PoolPart::Common
    }

    fn draw(&self, amount: usize, tenant: &ReserveUse) -> bool {
        let drawn = tenant.0.fetch_add(amount, Relaxed).saturating_add(amount);
        let reserve = self.reserve_taken.fetch_add(amount, Relaxed).saturating_add(amount);
        let of_tenant = (self.reserve / self.shape.tenants).max(self.share());
        if drawn <= of_tenant && reserve <= self.reserve {
            return true;
        }
        tenant.0.fetch_sub(amount, Relaxed);
        self.reserve_taken.fetch_sub(amount, Relaxed);
        false
    }

    /// Gives back what was taken from this part.
    pub(crate) fn give_back(&self, amount: usize, part: PoolPart, key: &Holding, tenant: &ReserveUse) {
        key.0.fetch_sub(amount, Relaxed);
        if part == PoolPart::Reserve {
            tenant.0.fetch_sub(amount, Relaxed);
            self.reserve_taken.fetch_sub(amount, Relaxed);
        }
        self.taken.fetch_sub(amount, Relaxed);
    }
}

impl Holding {
    /// The amount that the key holds now.
    pub(crate) fn held(&self) -> usize {
        self.0.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHAPE: Shape = Shape { tenants: 3, models: 2 };

    struct Grant {
        at: (usize, usize),
        amount: usize,
        part: PoolPart,
    }

    struct World {
        pool: Pool,
        tenants: Vec<(ReserveUse, Vec<Holding>)>,
        held: Vec<Grant>,
    }

    impl World {
        fn new(common: usize, reserve: usize, models: usize) -> Self {
            let tenant = |_| (ReserveUse::default(), (0..models).map(|_| Holding::default()).collect());
            Self {
                pool: Pool::new(common, reserve, SHAPE),
                tenants: (0..SHAPE.tenants).map(tenant).collect(),
                held: Vec::new(),
            }
        }

        fn holds(&self, at: (usize, usize)) -> usize {
            self.held.iter().filter(|held| held.at == at).map(|held| held.amount).sum()
        }

        fn take(&mut self, at: (usize, usize), amount: usize) -> bool {
            let (tenant, keys) = &self.tenants[at.0];
            let part = self.pool.take(amount, &keys[at.1], tenant);
            self.held.extend(part.map(|part| Grant { at, amount, part }));
            part.is_some()
        }

        fn give_back(&mut self, index: usize) {
            let Grant { at, amount, part } = self.held.swap_remove(index);
            let (tenant, keys) = &self.tenants[at.0];
            self.pool.give_back(amount, part, &keys[at.1], tenant);
        }
    }

    proptest! {
        /// Whatever came before, a key that holds less than its share is let in, though others hold all of the rest; while the
        /// common part has room, everybody is; and there is never more taken than there is.
        #[test]
        fn who_holds_less_than_a_share_is_never_refused(
            common in 0_usize..40,
            share in 1_usize..6,
            steps in prop::collection::vec((0..SHAPE.tenants, 0..SHAPE.models, 1_usize..4, any::<bool>(), any::<usize>()), 1..300),
        ) {
            let mut world = World::new(common, share * SHAPE.tenants * SHAPE.models, SHAPE.models);
            prop_assert_eq!(world.pool.share(), share);
            for (tenant, model, amount, gives, which) in steps {
                if gives && !world.held.is_empty() {
                    let index = which % world.held.len();
                    world.give_back(index);
                    continue;
                }
                let (at, before) = ((tenant, model), world.pool.taken());
                let entitled = world.holds(at) + amount <= share || before + amount <= common;
                let taken = world.take(at, amount);
                prop_assert!(taken || !entitled, "{} of {}", before, common);
                prop_assert_eq!(world.pool.taken(), before + if taken { amount } else { 0 }, "a refusal holds nothing");
                prop_assert!(world.pool.taken() <= common + share * SHAPE.tenants * SHAPE.models);
            }
            while !world.held.is_empty() {
                world.give_back(0);
            }
            prop_assert_eq!((world.pool.taken(), world.pool.reserve_taken.load(Relaxed)), (0, 0));
        }

        /// A tenant that asks for any number of models takes no more of the reserve than a tenant's share.
        #[test]
        fn many_models_give_a_tenant_no_more(models in 1_usize..30) {
            let mut world = World::new(10, 12, models);
            for model in 0..models {
                while world.take((0, model), 1) {}
            }
            prop_assert!(world.pool.taken() <= 10 + 4);
            prop_assert!(world.take((1, 0), 1) && world.take((2, 0), 1));
        }
    }

    #[test]
    fn a_small_pool_has_shares_too() {
        let (pool, tenant, key, other) =
            (Pool::new(1, 1, Shape::new(true)), ReserveUse::default(), Holding::default(), Holding::default());
        assert_eq!(pool.take(1, &key, &tenant), Some(PoolPart::Common));
        assert_eq!(pool.take(1, &key, &tenant), None, "it holds its share");
        assert_eq!(pool.take(1, &other, &tenant), Some(PoolPart::Reserve));
        assert_eq!((key.held(), other.held()), (1, 1));
    }
}
