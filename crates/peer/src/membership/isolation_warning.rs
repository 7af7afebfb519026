//! Warnings for a node that reaches nobody, or receives packets that it cannot open.
//!
//! ```text
//! Company ──nobody is there──▶ Alone ──PATIENCE, and it was to join others──▶ Told ──somebody is there──▶ Company
//! ```
//! Whose packets our key does not open is told at once, and again after a while: it is a node of another authority, or one
//! whose folder of certificates was made anew.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

/// Time without an answer before the warning. Clusters that are just starting answer within three seconds.
const PATIENCE: Duration = Duration::from_secs(3);

/// Shortest interval between two warnings about a foreign key, so that the log stays readable.
const FOREIGN_EVERY: Duration = Duration::from_secs(60);

/// Contact with other nodes.
#[derive(Debug, Clone, Copy)]
enum State {
    Company,
    Alone { since: Instant },
    Told,
}

/// Decides when to warn that this node is alone.
#[derive(Debug)]
pub(super) struct IsolationWarning {
    state: State,
    /// True if the node has seeds to join.
    joins: bool,
    /// Last sender whose packets could not be opened.
    foreign: Option<SocketAddr>,
    foreign_told: Option<Instant>,
}

impl IsolationWarning {
    /// Starts without contact.
    pub(super) fn new(joins: bool, now: Instant) -> Self {
        Self { state: State::Alone { since: now }, joins, foreign: None, foreign_told: None }
    }

    /// Records how many other members there are.
    pub(super) fn others(&mut self, others: usize, now: Instant) {
        match (self.state, others) {
            (State::Company, 0) => self.state = State::Alone { since: now },
            (_, 0) => {}
            _ => self.state = State::Company,
        }
    }

    /// Records a packet that our key does not open. True if people should be warned.
    pub(super) fn unopened(&mut self, from: SocketAddr, now: Instant) -> bool {
        self.foreign = Some(from);
        let tell = self.foreign_told.is_none_or(|told| now >= told + FOREIGN_EVERY);
        if tell {
            self.foreign_told = Some(now);
        }
        tell
    }

    /// Time at which the node counts as isolated.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        match self.state {
            State::Alone { since } if self.joins => Some(since + PATIENCE),
            _ => None,
        }
    }

    /// Warning with the likely cause after too long without an answer; `None` if there is nothing new to report.
    pub(super) fn complaint(&mut self, now: Instant) -> Option<String> {
        if self.wake_at().is_none_or(|at| now < at) {
            return None;
        }
        self.state = State::Told;
        let why = match self.foreign {
            Some(from) => format!(
                "packets come from {from} that this node's key does not open: the certificates of both must be of one \
                 `berth pki init`"
            ),
            None => "no node runs there, UDP does not get through, or its certificate is of another `berth pki init`, \
                     which its log says"
                .to_owned(),
        };
        Some(format!("{why}; asking again and again"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_nobody_answers_is_said_once_and_why_it_may_be() {
        let begun = Instant::now();
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let from = SocketAddr::from(([10, 0, 0, 9], 7946));
        let mut isolation = IsolationWarning::new(true, begun);
        assert_eq!((isolation.wake_at(), isolation.complaint(at(2))), (Some(at(3)), None));
        assert!(isolation.complaint(at(3)).is_some_and(|text| text.contains("no node runs there")));
        assert_eq!((isolation.wake_at(), isolation.complaint(at(60))), (None, None), "once");
        isolation.others(2, at(61));
        isolation.others(0, at(70));
        assert!(
            isolation.unopened(from, at(71)) && !isolation.unopened(from, at(72)) && isolation.unopened(from, at(131))
        );
        assert_eq!(isolation.wake_at(), Some(at(73)), "it is alone again");
        assert!(isolation.complaint(at(131)).is_some_and(|text| text.contains("from 10.0.0.9:7946")));
        let mut first = IsolationWarning::new(false, begun);
        assert_eq!((first.wake_at(), first.complaint(at(60))), (None, None), "it was to join nobody");
    }
}
