//! Whole states in parts: cutting them, and putting them together again.
//!
//! ```text
//! Empty ──part 0──▶ Gathering ──part n──▶ Gathering ──the last──▶ given out, Empty
//!                        └── another number than the next: OutOfOrder, Empty
//! ```

use std::{iter::Peekable, mem};

use prost::Message;

/// Size in bytes at which a part is closed. Large enough for few messages, small enough not to delay other streams on
/// the connection.
pub const PART: usize = 1 << 20;

/// Parts of one change. More are a fault of the sender's, and would fill the receiver's memory.
const MOST_PARTS: u32 = 4_096;

/// A change that goes over the wire in parts.
pub trait InParts: Sized {
    /// The message of one part.
    type Part: Message + Default;
    /// Information that the receiver already has, so that the parts do not repeat it.
    type Context;

    /// Its parts, one after the other, each made when it is asked for. There is at least one.
    fn in_parts(self) -> impl Iterator<Item = Self::Part> + Send + 'static;

    /// The number of a part, and whether more follow.
    fn place(part: &Self::Part) -> (u32, bool);

    /// A change that has what the first part says once, and nothing of what the parts list.
    fn begin(context: &Self::Context, first: &mut Self::Part) -> Self;

    /// Adds what a part lists. Gives how many items were left out because they cannot be understood.
    fn add(&mut self, part: Self::Part) -> usize;
}

/// A part is not the one that comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("received part {found} of a change instead of part {expected}: connect again")]
pub struct OutOfOrder {
    /// The number that should have come.
    pub expected: u32,
    /// The number that came.
    pub found: u32,
}

/// Parts of a change that is not complete yet.
#[derive(Debug)]
pub struct Assembly<C: InParts> {
    context: C::Context,
    gathered: Option<C>,
    next: u32,
    left_out: usize,
}

impl<C: InParts> Assembly<C> {
    /// Nothing has come yet.
    #[must_use]
    pub fn new(context: C::Context) -> Self {
        Self { context, gathered: None, next: 0, left_out: 0 }
    }

    /// Takes a part; gives the change with the last one.
    ///
    /// # Errors
    /// [`OutOfOrder`]: a part is missing, or there are too many. What had come is forgotten.
    pub fn push(&mut self, mut part: C::Part) -> Result<Option<C>, OutOfOrder> {
        let (found, more) = C::place(&part);
        let expected = mem::take(&mut self.next);
        let gathered = self.gathered.take();
        if found != expected || found >= MOST_PARTS {
            return Err(OutOfOrder { expected, found });
        }
        let mut change = gathered.unwrap_or_else(|| C::begin(&self.context, &mut part));
        self.left_out += change.add(part);
        if !more {
            return Ok(Some(change));
        }
        (self.gathered, self.next) = (Some(change), found + 1);
        Ok(None)
    }

    /// Number of items skipped since the last call because they could not be decoded: from a later version, or
    /// faulty.
    pub fn left_out(&mut self) -> usize {
        mem::take(&mut self.left_out)
    }
}

/// Remaining space of a part.
#[derive(Debug, Default)]
pub(super) struct Budget {
    used: usize,
}

impl Budget {
    /// A tag and a length, at most.
    const AROUND: usize = 6;

    /// True if an item of `bytes` still fits. The first item always does.
    pub(super) fn takes(&mut self, bytes: usize) -> bool {
        let bytes = bytes + Self::AROUND;
        let fits = self.used == 0 || self.used + bytes <= PART;
        self.used += if fits { bytes } else { 0 };
        fits
    }
}

/// Takes items while they go into the part.
pub(super) fn fill<T>(
    items: &mut Peekable<impl Iterator<Item = T>>,
    budget: &mut Budget,
    size: impl Fn(&T) -> usize,
) -> Vec<T> {
    std::iter::from_fn(|| items.next_if(|item| budget.takes(size(item)))).collect()
}

/// Numbers parts; `more` until told that all is in.
#[derive(Debug, Default)]
pub(super) struct Numbering {
    next: u32,
    ended: bool,
}

impl Numbering {
    /// The number of the next part; `None`: the last one has been made.
    pub(super) fn next(&mut self) -> Option<u32> {
        let number = self.next;
        self.next += 1;
        (!self.ended).then_some(number)
    }

    /// True if more parts follow.
    pub(super) fn more(&mut self, more: bool) -> bool {
        self.ended = !more;
        more
    }
}
