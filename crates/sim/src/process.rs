//! A node's process: whether it runs, what its clock shows, and how it finds the leader.
//!
//! ```text
//! Seeking ──dial──▶ Dialling ──connected──▶ Up ──its end closes──▶ Seeking
//!    ▲                 │ declined, silent: another controller, after a back-off
//!    └─────────────────┘
//! ```
//! A node never goes back to a leader of an earlier term than the last that it was connected to.

use std::time::Duration;

use berth_spec::{Time, WorkerId};

use crate::stream::StreamId;

/// The shortest and the longest time between two attempts to find the leader.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The role of a node. In a simulation each has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Stands for election.
    Controller,
    /// Holds models.
    Worker,
    /// Clients come to it.
    Gateway,
}

/// The state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// Runs.
    Running,
    /// Stopped (SIGSTOP), without knowing it.
    Paused {
        /// When it goes on.
        until: Time,
    },
    /// Does not run.
    Down,
    /// Announced its leaving, and left.
    Left,
}

/// The state of a node's stream to the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Uplink {
    Seeking,
    Dialling(StreamId),
    Up(StreamId),
}

/// One node's process.
#[derive(Debug)]
pub struct Process {
    /// The role, which never changes.
    pub role: Role,
    /// Running, paused, down, or gone after it announced that it leaves.
    pub life: Life,
    /// The number of starts: messages for an earlier process are lost.
    pub start: u64,
    /// The region that it is in; `None` for controllers, and for nodes that name none.
    pub region: Option<String>,
    /// Nanoseconds that its clock is ahead; changes take effect with the next start.
    pub skew: i64,
    /// The value that `skew` gets with the next start.
    pub next_skew: i64,
    pub(crate) uplink: Uplink,
    /// The latest term that it has seen.
    pub(crate) best: u64,
    /// The leader, as far as the process was told.
    pub(crate) hint: Option<WorkerId>,
    /// Attempts since it was connected last.
    pub(crate) tries: u32,
}

impl Process {
    pub(crate) fn new(role: Role, region: Option<String>) -> Self {
        Self {
            role,
            life: Life::Running,
            start: 1,
            region,
            skew: 0,
            next_skew: 0,
            uplink: Uplink::Seeking,
            best: 0,
            hint: None,
            tries: 0,
        }
    }

    /// Starts the process anew.
    pub(crate) fn starts(&mut self) {
        self.start += 1;
        self.life = Life::Running;
        self.skew = self.next_skew;
        self.uplink = Uplink::Seeking;
        self.hint = None;
        self.tries = 0;
    }

    /// True if it runs and is not paused.
    #[must_use]
    pub fn awake(&self) -> bool {
        self.life == Life::Running
    }

    /// True if it is gone, rather than paused.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self.life, Life::Down | Life::Left)
    }

    /// The time on its clock.
    #[must_use]
    pub fn clock(&self, now: Time) -> Time {
        Time(now.0.saturating_add_signed(self.skew))
    }

    /// When its clock shows this.
    #[must_use]
    pub fn when(&self, clock: Time) -> Time {
        Time(clock.0.saturating_add_signed(self.skew.saturating_neg()))
    }

    /// The pause before the next attempt.
    pub(crate) fn back_off(&self) -> Duration {
        (BACK_OFF.0 * (1 << self.tries.min(5))).min(BACK_OFF.1)
    }
}
