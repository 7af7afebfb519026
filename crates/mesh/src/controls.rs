//! Settings of logs and traces that clients may read and operators change, by the extensions of the protocol.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed},
};

use http::HeaderMap;

/// Levels of the log, in the terms of Triton's logging extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogSettings {
    /// True if informational messages are logged.
    pub info: bool,
    /// True if warnings are logged.
    pub warning: bool,
    /// True if errors are logged.
    pub error: bool,
    /// 0: nothing more; 1: messages for debugging; from 2 on: everything.
    pub verbose: u32,
}

/// Access to the levels of the process's log, which whoever builds the gateway gives.
#[derive(Clone)]
pub struct LogControl {
    /// Reads the levels that are in force.
    pub read: Arc<dyn Fn() -> LogSettings + Send + Sync>,
    /// Changes them, or says why not.
    pub write: Arc<dyn Fn(LogSettings) -> Result<(), String> + Send + Sync>,
}

/// Choice of the requests that are traced. A request that its caller traces is traced whatever this says, unless tracing is off.
#[derive(Debug)]
pub(crate) struct TraceControl {
    on: AtomicBool,
    /// One of so many requests.
    rate: AtomicU32,
    /// Requests that are traced still; negative: without end.
    count: AtomicI64,
    seen: AtomicU64,
}

impl Default for TraceControl {
    fn default() -> Self {
        Self { on: AtomicBool::new(true), rate: AtomicU32::new(1), count: AtomicI64::new(-1), seen: AtomicU64::new(0) }
    }
}

/// The settings of a [`TraceControl`] at one moment. By default every request is traced, without end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceSettings {
    pub(crate) on: bool,
    pub(crate) rate: u32,
    pub(crate) count: i64,
}

impl Default for TraceSettings {
    fn default() -> Self {
        Self { on: true, rate: 1, count: -1 }
    }
}

impl TraceControl {
    pub(crate) fn read(&self) -> TraceSettings {
        TraceSettings { on: self.on.load(Relaxed), rate: self.rate.load(Relaxed), count: self.count.load(Relaxed) }
    }

    pub(crate) fn write(&self, settings: TraceSettings) {
        self.on.store(settings.on, Relaxed);
        self.rate.store(settings.rate.max(1), Relaxed);
        self.count.store(settings.count, Relaxed);
    }

    /// True if the request with these headers is traced.
    pub(crate) fn takes(&self, headers: &HeaderMap) -> bool {
        if !self.on.load(Relaxed) {
            return false;
        }
        let rate = u64::from(self.rate.load(Relaxed));
        let chosen = rate <= 1 || self.seen.fetch_add(1, Relaxed).is_multiple_of(rate) || is_traced(headers);
        if !chosen || self.count.load(Relaxed) < 0 {
            return chosen;
        }
        // Below nothing it would be without end.
        self.count.fetch_update(Relaxed, Relaxed, |left| (left > 0).then(|| left - 1)).is_ok()
    }
}

/// True if the caller traces the request: the sampled flag of `traceparent` (W3C trace context).
fn is_traced(headers: &HeaderMap) -> bool {
    let parent = headers.get("traceparent").map(http::HeaderValue::as_bytes).unwrap_or_default();
    parent.len() >= 55 && parent[54] & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_so_many_until_the_count_is_used_up() {
        let control = TraceControl::default();
        let none = HeaderMap::new();
        let taken = |requests: usize, headers: &HeaderMap| (0..requests).filter(|_| control.takes(headers)).count();
        assert_eq!(taken(10, &none), 10);
        control.write(TraceSettings { on: true, rate: 5, count: 3 });
        assert_eq!((taken(10, &none), control.read().count), (2, 1));
        assert_eq!((taken(20, &none), control.read().count), (1, 0));
        control.write(TraceSettings { on: true, rate: 1_000_000, count: -1 });
        let mut traced = HeaderMap::new();
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        traced.insert("traceparent", http::HeaderValue::from_static(parent));
        assert_eq!(taken(4, &traced), 4);
        control.write(TraceSettings { on: false, ..TraceSettings::default() });
        assert_eq!(taken(4, &traced), 0);
    }
}
