//! A bound on the bytes that many messages hold together, while they are received, kept or passed on.
//!
//! ```text
//! bytes come ──▶ ByteCharge::grow ── no room ──▶ false: the message is refused, and nothing more is taken
//!                      │ room
//!                      ▼
//!                counted until the charge is dropped, or the bytes that it was given to (hold)
//! ```
//! An addition for each piece, and no lock. The gateway shares its memory out by tenant and model, with a budget of its own.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;

/// Bytes that may be held at once.
#[derive(Debug)]
pub struct ByteBudget {
    used: AtomicUsize,
    most: usize,
}

/// Bytes that are held of a budget. They are free again when it is dropped.
#[derive(Debug)]
pub struct ByteCharge {
    budget: Arc<ByteBudget>,
    bytes: usize,
}

impl ByteBudget {
    /// A budget of so many bytes.
    #[must_use]
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), most })
    }

    /// Bytes that are held now.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Nothing held yet.
    #[must_use]
    pub fn charge(self: &Arc<Self>) -> ByteCharge {
        ByteCharge { budget: Arc::clone(self), bytes: 0 }
    }
}

impl ByteCharge {
    /// Holds so many more; false: there is no room, and it holds what it held.
    #[must_use]
    pub fn grow(&mut self, bytes: usize) -> bool {
        let ByteBudget { used, most } = &*self.budget;
        let fits = used.fetch_add(bytes, Relaxed).saturating_add(bytes) <= *most;
        if fits {
            self.bytes += bytes;
        } else {
            used.fetch_sub(bytes, Relaxed);
        }
        fits
    }

    /// Holds so many more whether there is room or not: for what must not be refused. Whatever comes next is.
    pub fn force(&mut self, bytes: usize) {
        self.budget.used.fetch_add(bytes, Relaxed);
        self.bytes += bytes;
    }

    /// Lets go of all but so many.
    pub fn shrink_to(&mut self, bytes: usize) {
        let free = self.bytes.saturating_sub(bytes);
        self.budget.used.fetch_sub(free, Relaxed);
        self.bytes -= free;
    }

    /// The bytes, counted for as long as they, or a part of them, live.
    #[must_use]
    pub fn hold(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(ChargedBytes { bytes, _charge: self })
    }
}

impl Drop for ByteCharge {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

struct ChargedBytes {
    bytes: Bytes,
    _charge: ByteCharge,
}

impl AsRef<[u8]> for ChargedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_held_together_is_bounded() {
        let budget = ByteBudget::new(10);
        let (mut one, mut other) = (budget.charge(), budget.charge());
        assert!(one.grow(6) && !other.grow(5) && other.grow(4) && !one.grow(1));
        assert_eq!(budget.used(), 10, "a refusal holds nothing");
        one.shrink_to(1);
        one.shrink_to(3);
        assert_eq!(budget.used(), 5);
        other.force(100);
        assert!(!one.grow(1));
        drop(other);
        assert!(one.grow(9));
        drop(one);
        assert_eq!(budget.used(), 0);
        assert!(!budget.charge().grow(usize::MAX));
    }

    #[test]
    fn bytes_count_until_their_last_part_is_gone() {
        let budget = ByteBudget::new(10);
        let mut charge = budget.charge();
        assert!(charge.grow(8));
        let whole = charge.hold(Bytes::from_static(b"8 bytes."));
        let part = whole.slice(..1);
        drop(whole);
        assert_eq!((budget.used(), part.as_ref()), (8, &b"8"[..]));
        drop(part);
        assert_eq!(budget.used(), 0);
    }
}
