//! The record of a job: all that changes about it, in one message, which is replaced as a whole or not at all.

use serde::{Deserialize, Serialize};

use super::super::{
    job::{CallbackState, Priority, State, Status, Stored},
    queue::{Kind, Lease, NewJob},
};

/// A job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) state: State,
    pub(super) priority: Priority,
    /// Digest of the idempotency key.
    pub(super) key: Option<String>,
    pub(super) callback: Option<String>,
    pub(super) callback_state: Option<CallbackState>,
    pub(super) error: Option<String>,
    pub(super) run: TaskAttempts,
    pub(super) call: TaskAttempts,
    /// Messages that hold its request.
    pub(super) request: u32,
    /// Attempt whose answer it is, and the messages that hold it.
    pub(super) answer: Option<(u32, u32)>,
    /// Milliseconds since the Unix epoch at which it was handed in, and at which it ended.
    pub(super) came: u64,
    pub(super) ended: u64,
}

/// Attempts of one of its tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct TaskAttempts {
    pub(super) attempts: u32,
    /// True while somebody has it.
    pub(super) held: bool,
}

impl Stored for Record {}

impl Record {
    pub(super) fn new(job: &NewJob, key: Option<String>, request: u32, now: u64) -> Self {
        Self {
            state: State::Queued,
            priority: job.priority,
            key,
            callback: job.callback.clone(),
            callback_state: job.callback.is_some().then_some(CallbackState::Pending),
            error: None,
            run: TaskAttempts::default(),
            call: TaskAttempts::default(),
            request,
            answer: None,
            came: now,
            ended: 0,
        }
    }

    pub(super) const fn turns(&mut self, kind: Kind) -> &mut TaskAttempts {
        match kind {
            Kind::Run => &mut self.run,
            Kind::Callback => &mut self.call,
        }
    }

    /// True while a task of it is still to be done.
    pub(super) fn is_open(&self, kind: Kind) -> bool {
        match kind {
            Kind::Run => !self.state.is_end(),
            Kind::Callback => self.state.is_end() && self.callback_state == Some(CallbackState::Pending),
        }
    }

    /// The turn of a lease, if that still holds.
    pub(super) fn held(&mut self, lease: &Lease) -> Option<&mut TaskAttempts> {
        if !self.is_open(lease.kind) {
            return None;
        }
        Some(self.turns(lease.kind)).filter(|turns| turns.held && turns.attempts == lease.attempt)
    }

    /// Notes the end of the run.
    pub(super) fn end(&mut self, state: State, error: Option<String>, now: u64) {
        (self.state, self.error, self.ended, self.run.held) = (state, error, now, false);
    }

    /// Notes the end of the callback.
    pub(super) const fn told(&mut self, delivered: bool) {
        self.callback_state = Some(if delivered { CallbackState::Delivered } else { CallbackState::Failed });
    }

    /// The same job, from the beginning.
    pub(super) fn revived(self) -> Self {
        let callback_state = self.callback.is_some().then_some(CallbackState::Pending);
        let (run, call) = (TaskAttempts::default(), TaskAttempts::default());
        Self { state: State::Queued, callback_state, run, call, answer: None, ended: 0, ..self }
    }

    pub(super) fn status(self) -> Status {
        Status { state: self.state, attempts: self.run.attempts, error: self.error, callback: self.callback_state }
    }
}
