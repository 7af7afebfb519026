//! Leadership among operators, by a Lease. Pure: the driver reads and writes the Lease.
//!
//! ```text
//!  following ──nobody renewed for 15 s, or it was released──▶ writes (compare-and-set) ──▶ leading ──renews every 2 s
//!      ▲                                                                                     │
//!      └──────────────────────── no write went through for 10 s ─────────────────────────────┘
//! ```
//! Clocks of other machines are not trusted: a Lease is stale when this process has seen it unchanged for its duration.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// The time without a renewal after which others take over: as in other controllers of Kubernetes.
pub const LEASE: Duration = Duration::from_secs(15);

/// The time without a renewal after which a leader stops: sooner than others take over.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// The interval of looks at the Lease: four renewals may fail before [`DEADLINE`].
pub const INTERVAL: Duration = Duration::from_secs(2);

/// One operator's part in the election.
#[derive(Debug)]
pub struct Election {
    me: String,
    /// The Lease's version, and since when it has been seen unchanged.
    seen: Option<(String, Instant)>,
    led: Option<Instant>,
}

impl Election {
    /// For an operator of this name, unique among all.
    #[must_use]
    pub fn new(me: String) -> Self {
        Self { me, seen: None, led: None }
    }

    /// The spec to write over `lease` (none: there is none yet), or nothing while another leads. `time` is now, as text.
    pub fn step(&mut self, lease: Option<&Value>, now: Instant, time: &str) -> Option<Value> {
        let Some(lease) = lease else { return Some(self.spec(None, 0, time)) };
        let version = lease["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if self.seen.as_ref().is_none_or(|(seen, _)| seen != version) {
            self.seen = Some((version.to_owned(), now));
        }
        let spec = &lease["spec"];
        let holder = spec["holderIdentity"].as_str().unwrap_or_default();
        let transitions = spec["leaseTransitions"].as_i64().unwrap_or_default();
        if holder == self.me {
            return Some(self.spec(spec["acquireTime"].as_str(), transitions, time));
        }
        let seconds = spec["leaseDurationSeconds"].as_u64().unwrap_or_else(|| LEASE.as_secs());
        let stale =
            self.seen.as_ref().is_some_and(|(_, since)| now.duration_since(*since) >= Duration::from_secs(seconds));
        (holder.is_empty() || stale).then(|| self.spec(None, transitions + 1, time))
    }

    /// A write went through.
    pub fn wrote(&mut self, now: Instant) {
        self.led = Some(now);
    }

    /// Another wrote first.
    pub fn lost(&mut self) {
        self.led = None;
    }

    /// True while no other can lead.
    #[must_use]
    pub fn leads(&self, now: Instant) -> bool {
        self.led.is_some_and(|last| now.duration_since(last) < DEADLINE)
    }

    /// When that ends unless the Lease is renewed before; `None` while it does not lead.
    #[must_use]
    pub fn leads_until(&self) -> Option<Instant> {
        self.led.map(|last| last + DEADLINE)
    }

    /// The spec that lets others lead at once.
    #[must_use]
    pub fn release(&self, lease: &Value, time: &str) -> Option<Value> {
        let spec = &lease["spec"];
        let mine = spec["holderIdentity"].as_str() == Some(&self.me);
        mine.then(|| {
            let mut spec =
                self.spec(spec["acquireTime"].as_str(), spec["leaseTransitions"].as_i64().unwrap_or(0), time);
            spec["holderIdentity"] = json!("");
            spec
        })
    }

    fn spec(&self, acquired: Option<&str>, transitions: i64, time: &str) -> Value {
        json!({
            "holderIdentity": self.me,
            "leaseDurationSeconds": LEASE.as_secs(),
            "acquireTime": acquired.unwrap_or(time),
            "renewTime": time,
            "leaseTransitions": transitions,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(version: &str, spec: &Value) -> Value {
        json!({ "metadata": { "resourceVersion": version }, "spec": spec })
    }

    #[test]
    fn a_second_operator_waits_until_the_first_is_silent() {
        let start = Instant::now();
        let (mut a, mut b) = (Election::new("a".into()), Election::new("b".into()));
        let first = a.step(None, start, "t0").expect("nobody leads");
        a.wrote(start);
        assert!(a.leads(start + Duration::from_secs(9)) && !a.leads(start + DEADLINE));
        assert_eq!((a.leads_until(), b.leads_until()), (Some(start + DEADLINE), None));
        let held = lease("1", &first);
        assert_eq!(b.step(Some(&held), start, "t0"), None);
        assert_eq!(b.step(Some(&held), start + Duration::from_secs(14), "t14"), None);
        let renewed = lease("2", &a.step(Some(&held), start, "t1").expect("it renews"));
        assert_eq!(renewed["spec"]["acquireTime"], "t0");
        assert_eq!(b.step(Some(&renewed), start + Duration::from_secs(15), "t15"), None, "it was renewed");
        let taken = b.step(Some(&renewed), start + Duration::from_secs(30), "t30").expect("silent for 15 s");
        assert_eq!((&taken["holderIdentity"], &taken["leaseTransitions"]), (&json!("b"), &json!(1)));
    }

    #[test]
    fn a_released_lease_is_taken_at_once() {
        let (mut a, mut b, now) = (Election::new("a".into()), Election::new("b".into()), Instant::now());
        let held = lease("1", &a.step(None, now, "t0").expect("nobody leads"));
        assert_eq!(b.release(&held, "t1"), None, "not its own");
        let released = lease("2", &a.release(&held, "t1").expect("its own"));
        assert!(b.step(Some(&released), now, "t1").is_some());
    }
}
