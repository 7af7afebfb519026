//! The memory that requests take together: bodies, what is decompressed of them, and the tensors that are decoded.
//!
//! ```text
//! piece comes ──▶ Charge::grow ── no room ──▶ 503 no_memory, and all that the request held is free again
//!                     │ room
//!                     ▼
//!                 Charge::hold: counted for as long as a slice of the bytes lives
//! ```
//! One atomic addition for each piece; no lock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_spec::{ByteSize, InferError, inference::Shed};
use bytes::Bytes;

/// Amounts below this are not counted: a request takes about as much without a body, and the bound on requests inside
/// bounds them.
const SMALL: usize = 8 << 10;

/// When to try again: requests are short.
const RETRY_SOON: Duration = Duration::from_secs(1);

/// The bytes that requests hold, with their bound.
#[derive(Debug)]
pub(crate) struct RequestMemory {
    used: AtomicUsize,
    most: usize,
}

impl RequestMemory {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), most })
    }

    /// Bytes that are held now.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// The bound.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Nothing held yet.
    pub(crate) fn charge(self: &Arc<Self>) -> Charge {
        Charge { memory: Arc::clone(self), bytes: 0 }
    }

    /// So many bytes, held until the charge is dropped.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Result<Charge, InferError> {
        let mut charge = self.charge();
        charge.grow_to(bytes)?;
        Ok(charge)
    }
}

/// Bytes that one request holds.
#[derive(Debug)]
pub(crate) struct Charge {
    memory: Arc<RequestMemory>,
    bytes: usize,
}

impl Charge {
    /// Holds at least so many bytes, or none where there is no room.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), InferError> {
        if bytes <= self.bytes || bytes < SMALL {
            return Ok(());
        }
        let more = bytes - self.bytes;
        self.bytes = bytes;
        if self.memory.used.fetch_add(more, Relaxed).saturating_add(more) <= self.memory.most {
            return Ok(());
        }
        self.release();
        let message = format!(
            "requests hold all of the {} that they may take together; try again",
            ByteSize(self.memory.most as u64)
        );
        Err(InferError::shed(Shed::NoMemory, message, RETRY_SOON))
    }

    /// A charge on the same memory, with nothing held yet.
    pub(crate) fn another(&self) -> Self {
        self.memory.charge()
    }

    /// The bytes, counted for as long as they, or a part of them, live.
    pub(crate) fn hold(self, bytes: Bytes) -> Bytes {
        if self.bytes == 0 { bytes } else { Bytes::from_owner(Held { bytes, _charge: self }) }
    }

    fn release(&mut self) {
        self.memory.used.fetch_sub(std::mem::take(&mut self.bytes), Relaxed);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.release();
    }
}

struct Held {
    bytes: Bytes,
    _charge: Charge,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_until_their_last_part_is_gone() {
        let memory = RequestMemory::new(100 << 10);
        let mut charge = memory.charge();
        charge.grow_to(SMALL - 1).expect("not counted");
        assert_eq!(memory.used(), 0);
        charge.grow_to(64 << 10).expect("room");
        let whole = charge.hold(Bytes::from(vec![7; 64 << 10]));
        let part = whole.slice(10..20);
        drop(whole);
        assert_eq!(memory.used(), 64 << 10);
        let refused = memory.take(64 << 10).expect_err("no room");
        assert_eq!(refused.reason(), "no_memory");
        assert_eq!(memory.used(), 64 << 10, "a refusal holds nothing");
        drop(part);
        assert_eq!(memory.used(), 0);
        drop(memory.take(100 << 10).expect("exactly all"));
        assert_eq!(memory.used(), 0);
    }
}
