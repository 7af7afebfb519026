//! Windows of connections of HTTP/2: the bytes that a client may send before they have been passed on, so that they wait in this process.
//!
//! Each connection gets an eighth of what is left. So the first ones have large windows, many together take no more than all, and the last
//! ones still have the window that HTTP/2 begins with.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

use crate::upstream::CONNECTION_WINDOW;

/// The window that a connection of HTTP/2 begins with: it cannot be made smaller.
const MIN_WINDOW: u32 = 65_535;

/// The part of what is left that a connection gets: the first has an eighth of the memory, and half of it is left
/// after five.
const PART: u64 = 8;

/// Bytes for the windows of all connections.
pub(crate) struct Windows {
    left: AtomicU64,
}

/// The window of a connection. Its bytes are given back when it is dropped.
pub(crate) struct Window {
    all: Arc<Windows>,
    taken: AtomicU32,
}

impl Windows {
    pub(crate) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { left: AtomicU64::new(bytes) })
    }

    /// A window for one more connection.
    pub(crate) fn take(self: &Arc<Self>) -> Window {
        let (Ok(before) | Err(before)) =
            self.left.fetch_update(Relaxed, Relaxed, |left| Some(left - u64::from(part(left))));
        Window { all: Arc::clone(self), taken: AtomicU32::new(part(before)) }
    }
}

fn part(left: u64) -> u32 {
    u32::try_from(left / PART).unwrap_or(u32::MAX).min(CONNECTION_WINDOW)
}

impl Window {
    /// Bytes that the client may send.
    pub(crate) fn bytes(&self) -> u32 {
        self.taken.load(Relaxed).max(MIN_WINDOW)
    }

    /// Gives the bytes back: the connection has no window, since it speaks HTTP/1.1.
    pub(crate) fn release(&self) {
        let taken = self.taken.swap(0, Relaxed);
        self.all.left.fetch_add(u64::from(taken), Relaxed);
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_connections_take_no_more_than_there_is() {
        let all = 32 << 20;
        let windows = Windows::new(all);
        let taken: Vec<Window> = (0..2_000).map(|_| windows.take()).collect();
        assert_eq!((taken[0].bytes(), taken[1].bytes(), taken[1_999].bytes()), (4 << 20, 7 << 19, MIN_WINDOW));
        let sum: u64 = taken.iter().map(|window| u64::from(window.taken.load(Relaxed))).sum();
        assert_eq!(sum + windows.left.load(Relaxed), all);
        taken[0].release();
        taken[0].release();
        assert!(windows.left.load(Relaxed) >= 4 << 20);
        drop(taken);
        assert_eq!(windows.left.load(Relaxed), all);
    }

    #[test]
    fn without_a_limit_each_has_the_largest() {
        let windows = Windows::new(u64::MAX);
        assert!((0..1_000).all(|_| windows.take().bytes() == CONNECTION_WINDOW));
    }
}
