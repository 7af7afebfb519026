//! The memory that requests take together: bodies, what is decompressed of them, the tensors that are decoded, and answers until they
//! are read.
//!
//! ```text
//! piece comes ──▶ Charge::grow ── no room ──▶ 503 no_memory, and all that the request held is free again
//!                     │               └─ nor would there be any if it were alone ──▶ 413 too_large
//!                     │ room
//!                     ▼
//!                 Charge::hold: counted for as long as a slice of the bytes lives
//! ```
//! A few atomic additions for each piece; no lock. Where memory is short, who holds little gets some of a reserve
//! ([`fair`](crate::fair)).

use std::{sync::Arc, time::Duration};

use berth_spec::{ByteSize, InferError, inference::Shed};
use bytes::Bytes;

use crate::{
    account::Account,
    fair::{Holding, Pool, PoolPart, Shape},
};

/// Amounts below this are not counted: a request takes about as much without a body, and the bound on requests inside
/// bounds them.
pub(crate) const MIN_COUNTED_BYTES: usize = 8 << 10;

/// When to try again: requests are short.
const RETRY_SOON: Duration = Duration::from_secs(1);

/// The part of all memory that is kept for those who hold little: one in four.
const RESERVE_DIVISOR: usize = 4;

/// The bytes that requests of one key hold, out of what all requests may take together.
#[derive(Debug)]
pub(crate) struct RequestMemory {
    all: Arc<Pool>,
    most: usize,
    held: Holding,
    account: Arc<Account>,
}

impl RequestMemory {
    /// The memory for bodies of requests before their deployment is known.
    pub(crate) fn new(most: usize, shape: Shape) -> Arc<Self> {
        let reserve = most / RESERVE_DIVISOR;
        let all = Arc::new(Pool::new(most - reserve, reserve, shape));
        Arc::new(Self { all, most, held: Holding::default(), account: Arc::default() })
    }

    /// The same memory for the requests of one key, whose principal has this account.
    pub(crate) fn of(&self, account: &Arc<Account>) -> Arc<Self> {
        let (all, account) = (Arc::clone(&self.all), Arc::clone(account));
        Arc::new(Self { all, most: self.most, held: Holding::default(), account })
    }

    /// Bytes that all requests hold now.
    pub(crate) fn used(&self) -> usize {
        self.all.taken()
    }

    /// Bytes that requests of this key hold now.
    pub(crate) fn held(&self) -> usize {
        self.held.held()
    }

    /// The bound of all requests.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// The most that one request gets: all but the reserve.
    fn common(&self) -> usize {
        self.most - self.most / RESERVE_DIVISOR
    }

    /// The error of a request that would find no room if it were alone.
    fn never(&self, bytes: usize) -> InferError {
        let [bytes, common] = [bytes, self.common()].map(|bytes| ByteSize(bytes as u64));
        InferError::TooLarge(format!(
            "the request takes {bytes} of memory with what is decoded of it, and a single one gets at most {common}: send a \
             smaller one, or raise --request-memory"
        ))
    }

    /// Nothing held yet.
    pub(crate) fn charge(self: &Arc<Self>) -> Charge {
        Charge { memory: Arc::clone(self), bytes: 0, of_reserve: 0 }
    }

    /// The bytes of an answer, counted for as long as they, or a part of them, live: until the client has read them. Never
    /// refused, as the model has run; what comes next is.
    pub(crate) fn answer(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.of_answer(bytes.len()).hold(bytes)
    }

    /// So many bytes of an answer, counted until the charge is dropped. Never refused.
    pub(crate) fn of_answer(self: &Arc<Self>, bytes: usize) -> Charge {
        let mut charge = self.charge();
        if bytes >= MIN_COUNTED_BYTES {
            self.all.force(bytes, &self.held);
            charge.bytes = bytes;
        }
        charge
    }

    /// So many bytes, held until the charge is dropped.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Result<Charge, InferError> {
        let mut charge = self.charge();
        charge.grow_to(bytes)?;
        Ok(charge)
    }

    /// The same for a request whose body is held already.
    pub(crate) fn take_beside(self: &Arc<Self>, body: &[u8], bytes: usize) -> Result<Charge, InferError> {
        let all = body.len().saturating_add(bytes);
        if bytes >= MIN_COUNTED_BYTES && all > self.common() {
            return Err(self.never(all));
        }
        self.take(bytes)
    }
}

/// Bytes that one request holds.
#[derive(Debug)]
pub(crate) struct Charge {
    memory: Arc<RequestMemory>,
    bytes: usize,
    /// The part of them that is from the reserve.
    of_reserve: usize,
}

impl Charge {
    /// Holds at least so many bytes, or none where there is no room.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), InferError> {
        if bytes <= self.bytes || bytes < MIN_COUNTED_BYTES {
            return Ok(());
        }
        if bytes > self.memory.common() {
            self.release();
            return Err(self.memory.never(bytes));
        }
        let (more, memory) = (bytes - self.bytes, &self.memory);
        if let Some(part) = memory.all.take(more, &memory.held, &memory.account.memory) {
            self.bytes = bytes;
            self.of_reserve += if part == PoolPart::Reserve { more } else { 0 };
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
        if self.bytes == 0 { bytes } else { Bytes::from_owner(ChargedBytes { bytes, _charge: self }) }
    }

    fn release(&mut self) {
        let (bytes, reserve) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.of_reserve));
        let RequestMemory { all, held, account, .. } = &*self.memory;
        for (amount, part) in [(bytes - reserve, PoolPart::Common), (reserve, PoolPart::Reserve)] {
            if amount > 0 {
                all.give_back(amount, part, held, &account.memory);
            }
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.release();
    }
}

struct ChargedBytes {
    bytes: Bytes,
    _charge: Charge,
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
    fn bytes_count_until_their_last_part_is_gone() {
        let memory = RequestMemory::new(132 << 10, Shape::new(false));
        let mut charge = memory.charge();
        charge.grow_to(MIN_COUNTED_BYTES - 1).expect("not counted");
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
        drop(memory.take(99 << 10).expect("exactly all but the reserve"));
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn a_request_that_never_has_room_is_too_large() {
        let memory = RequestMemory::new(128 << 10, Shape::new(false));
        let mut charge = memory.take(96 << 10).expect("exactly all but the reserve");
        let refused = charge.grow_to((96 << 10) + 1).expect_err("more");
        assert_eq!((refused.reason(), memory.used()), ("too_large", 0));
        assert!(refused.to_string().ends_with("raise --request-memory"), "{refused}");
        let body = vec![b' '; 20 << 10];
        let refused = memory.take_beside(&body, 4 * body.len()).expect_err("more, with the body");
        assert_eq!(refused.reason(), "too_large");
        drop(memory.take_beside(&body, 3 * body.len()).expect("room"));
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn a_key_that_holds_little_is_served_from_the_reserve() {
        let memory = RequestMemory::new(4 << 20, Shape::new(false));
        let (storm, other) = (memory.of(&Arc::default()), memory.of(&Arc::default()));
        let most = storm.take(3 << 20).expect("all but the reserve");
        assert_eq!(storm.take(MIN_COUNTED_BYTES).expect_err("it holds much").reason(), "no_memory");
        let mut little = other.take(MIN_COUNTED_BYTES).expect("it holds little");
        little.grow_to(2 * MIN_COUNTED_BYTES).expect("a share has 16 KiB");
        assert_eq!(other.take(MIN_COUNTED_BYTES).expect_err("it holds its share").reason(), "no_memory");
        drop(most);
        little.grow_to(1 << 20).expect("there is room again");
        drop(little);
        assert_eq!((memory.used(), storm.held(), other.held()), (0, 0, 0));
    }

    #[test]
    fn answers_count_until_they_are_read_and_are_never_refused() {
        let memory = RequestMemory::new(128 << 10, Shape::new(false));
        let answer = memory.answer(Bytes::from(vec![7; 1 << 20]));
        assert_eq!(memory.used(), 1 << 20);
        assert_eq!(memory.take(MIN_COUNTED_BYTES).expect_err("clients do not read").reason(), "no_memory");
        drop(answer);
        assert!(memory.take(MIN_COUNTED_BYTES).is_ok());
        assert_eq!(memory.answer(Bytes::from_static(b"small")).len(), 5);
        assert_eq!(memory.used(), 0);
    }
}
