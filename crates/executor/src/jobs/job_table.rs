//! The queue in memory, as a state machine: no clock, no waiting. `memory` drives it.
//!
//! ```text
//!            submit                take                   end, cancel
//! (unknown) ───────▶ Queued ─────────────────▶ Running ──────────▶ Done | Dead | Cancelled ──keep──▶ (unknown)
//!                      ▲                          │                 │ revive
//!                      └── again, lease runs out ─┘◀────────────────┘ (as Queued)
//! ```

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Duration,
};

use super::{
    job::{Answer, CallbackState, JobId, Priority, State, Status},
    queue::{Bounds, Cancelled, Completion, Depth, Kind, Lease, MOST_TAKEN, NewJob, Submitted, Task},
};

/// Dead letters that one question lists: a screen of them; the count says how many there are.
const MAX_DEAD_LETTERS: usize = 100;

struct Job {
    new: NewJob,
    fingerprint: [u8; 32],
    state: State,
    runs: u32,
    calls: u32,
    error: Option<String>,
    callback: Option<CallbackState>,
    answer: Option<Answer>,
}

/// All jobs of one process. Times are since some beginning.
pub(super) struct JobTable {
    bounds: Bounds,
    jobs: HashMap<JobId, Job>,
    keys: HashMap<String, JobId>,
    runs: [VecDeque<JobId>; 3],
    callbacks: VecDeque<JobId>,
    later: BTreeMap<(Duration, u64), (Kind, JobId)>,
    /// Ends of leases, with the attempt that each belongs to.
    leases: BTreeMap<(JobId, Kind), (Duration, u32)>,
    /// In the order of their ends.
    ended: VecDeque<(Duration, JobId)>,
    sequence: u64,
    /// Of all jobs together.
    bytes: u64,
}

/// Memory of a job beside its request and its answer, about: entries of five maps and queues.
const JOB: u64 = 1_024;

impl Job {
    fn bytes(&self) -> u64 {
        JOB + self.new.request.bytes() + self.answer.as_ref().map_or(0, Answer::bytes)
    }
}

impl JobTable {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            jobs: HashMap::new(),
            keys: HashMap::new(),
            runs: Default::default(),
            callbacks: VecDeque::new(),
            later: BTreeMap::new(),
            leases: BTreeMap::new(),
            ended: VecDeque::new(),
            sequence: 0,
            bytes: 0,
        }
    }

    pub(super) fn submit(&mut self, new: NewJob, now: Duration) -> Submitted {
        self.tidy(now);
        let fingerprint = new.request.fingerprint();
        if let Some(known) = new.key.as_ref().and_then(|key| self.keys.get(key)) {
            let same = self.jobs.get(known).is_some_and(|job| job.fingerprint == fingerprint);
            return if same { Submitted::Known(known.clone()) } else { Submitted::Conflict };
        }
        if self.jobs.len() - self.ended.len() >= self.bounds.most {
            return Submitted::Full;
        }
        let bytes = JOB + new.request.bytes();
        self.forget(bytes);
        if self.bytes + bytes > self.bounds.memory {
            return Submitted::Full;
        }
        self.bytes += bytes;
        if let Some(key) = &new.key {
            self.keys.insert(key.clone(), new.id.clone());
        }
        self.runs[new.priority as usize].push_back(new.id.clone());
        let callback = new.callback.is_some().then_some(CallbackState::Pending);
        let id = new.id.clone();
        let job =
            Job { new, fingerprint, state: State::Queued, runs: 0, calls: 0, error: None, callback, answer: None };
        self.jobs.insert(id, job);
        Submitted::New
    }

    pub(super) fn take(&mut self, kind: Kind, now: Duration) -> Option<Task> {
        self.tidy(now);
        loop {
            let id = match kind {
                Kind::Run => self.runs.iter_mut().find_map(VecDeque::pop_front)?,
                Kind::Callback => self.callbacks.pop_front()?,
            };
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let attempts = match kind {
                Kind::Run => &mut job.runs,
                Kind::Callback => &mut job.calls,
            };
            *attempts += 1;
            let attempt = *attempts;
            let lease = Lease { id: id.clone(), kind, attempt, entry: String::new() };
            self.leases.insert((id, kind), (now + self.bounds.lease, attempt));
            if attempt > MOST_TAKEN {
                self.end(&lease, Completion::Dead { why: taken_too_often(), answer: None }, now);
                continue;
            }
            if kind == Kind::Run {
                job.state = State::Running;
            }
            return Some(Task { lease, request: job.new.request.clone(), callback: job.new.callback.clone() });
        }
    }

    /// Time of the next change that comes by itself.
    pub(super) fn wake_at(&self) -> Option<Duration> {
        let later = self.later.keys().next().map(|(at, _)| *at);
        later.into_iter().chain(self.leases.values().map(|(until, _)| *until)).min()
    }

    pub(super) fn extend(&mut self, lease: &Lease, now: Duration) -> bool {
        let end = now + self.bounds.lease;
        let Some((until, _)) = self.held(lease) else { return false };
        *until = end;
        true
    }

    pub(super) fn end(&mut self, lease: &Lease, end: Completion, now: Duration) -> bool {
        let Some(job) = self.jobs.get_mut(&lease.id) else { return false };
        match lease.kind {
            Kind::Run if job.state.is_end() => return false,
            Kind::Callback if job.callback != Some(CallbackState::Pending) => return false,
            Kind::Run | Kind::Callback => {}
        }
        match (lease.kind, end) {
            (Kind::Run, Completion::Answered(answer)) => {
                (job.state, job.answer, job.error) = (State::Done, Some(answer), None);
            }
            (Kind::Run, Completion::Dead { why, answer }) => {
                (job.state, job.answer, job.error) = (State::Dead, answer, Some(why))
            }
            (Kind::Callback, Completion::Dead { .. }) => job.callback = Some(CallbackState::Failed),
            (_, Completion::Delivered | Completion::Answered(_)) => job.callback = Some(CallbackState::Delivered),
        }
        self.leases.remove(&(lease.id.clone(), lease.kind));
        let job = self.jobs.get(&lease.id);
        let callback = job.is_some_and(|job| job.callback == Some(CallbackState::Pending));
        if lease.kind == Kind::Run {
            self.bytes += job.and_then(|job| job.answer.as_ref()).map_or(0, Answer::bytes);
            // Not this one, which is asked for soon: it ends below.
            self.forget(0);
        }
        if lease.kind == Kind::Run {
            self.withdraw(&lease.id);
            self.ended.push_back((now, lease.id.clone()));
            if callback {
                self.callbacks.push_back(lease.id.clone());
            }
        }
        true
    }

    pub(super) fn cancel(&mut self, id: &JobId, now: Duration) -> Cancelled {
        self.tidy(now);
        let Some(job) = self.jobs.get_mut(id) else { return Cancelled::Unknown };
        if job.state.is_end() {
            return Cancelled::Ended(job.state);
        }
        (job.state, job.error) = (State::Cancelled, None);
        let has_callback = job.callback == Some(CallbackState::Pending);
        self.leases.remove(&(id.clone(), Kind::Run));
        self.withdraw(id);
        self.ended.push_back((now, id.clone()));
        if has_callback {
            self.callbacks.push_back(id.clone());
        }
        Cancelled::Now
    }

    pub(super) fn again(&mut self, lease: &Lease, after: Duration, why: &str, now: Duration) -> bool {
        if self.held(lease).is_none() {
            return false;
        }
        self.leases.remove(&(lease.id.clone(), lease.kind));
        self.sequence += 1;
        self.later.insert((now + after, self.sequence), (lease.kind, lease.id.clone()));
        if let Some(job) = self.jobs.get_mut(&lease.id)
            && lease.kind == Kind::Run
        {
            (job.state, job.error) = (State::Queued, Some(why.to_owned()));
        }
        true
    }

    pub(super) fn status(&mut self, id: &JobId, now: Duration) -> Option<Status> {
        self.tidy(now);
        let job = self.jobs.get(id)?;
        Some(Status { state: job.state, attempts: job.runs, error: job.error.clone(), callback: job.callback })
    }

    pub(super) fn answer(&mut self, id: &JobId, now: Duration) -> Option<Answer> {
        self.tidy(now);
        self.jobs.get(id)?.answer.clone()
    }

    pub(super) fn dead(&self) -> Vec<JobId> {
        let is_dead = |id: &&JobId| self.jobs.get(*id).is_some_and(|job| job.state == State::Dead);
        self.ended.iter().rev().map(|(_, id)| id).filter(is_dead).take(MAX_DEAD_LETTERS).cloned().collect()
    }

    pub(super) fn revive(&mut self, id: &JobId) -> bool {
        let Some(job) = self.jobs.get_mut(id).filter(|job| job.state == State::Dead) else { return false };
        self.bytes -= job.answer.as_ref().map_or(0, Answer::bytes);
        (job.state, job.runs, job.calls, job.answer) = (State::Queued, 0, 0, None);
        job.callback = job.new.callback.is_some().then_some(CallbackState::Pending);
        self.runs[job.new.priority as usize].push_back(id.clone());
        self.ended.retain(|(_, ended)| ended != id);
        self.callbacks.retain(|waiting| waiting != id);
        self.later.retain(|_, (_, waiting)| waiting != id);
        self.leases.remove(&(id.clone(), Kind::Callback));
        true
    }

    pub(super) fn depth(&self) -> Depth {
        let mut jobs = [0; 3];
        for job in self.jobs.values().filter(|job| !job.state.is_end()) {
            jobs[job.new.priority as usize] += 1;
        }
        let callbacks =
            self.jobs.values().filter(|job| job.state.is_end() && job.callback == Some(CallbackState::Pending)).count();
        let dead = self.jobs.values().filter(|job| job.state == State::Dead).count();
        Depth { jobs, callbacks: callbacks as u64, dead: dead as u64 }
    }

    /// The lease, if it is the task's present one.
    fn held(&mut self, lease: &Lease) -> Option<&mut (Duration, u32)> {
        self.leases.get_mut(&(lease.id.clone(), lease.kind)).filter(|(_, attempt)| *attempt == lease.attempt)
    }

    /// The job has ended: nobody shall run it again.
    fn withdraw(&mut self, id: &JobId) {
        for lane in &mut self.runs {
            lane.retain(|waiting| waiting != id);
        }
        self.later.retain(|_, (kind, waiting)| *kind != Kind::Run || waiting != id);
    }

    fn tidy(&mut self, now: Duration) {
        while let Some(entry) = self.later.first_entry().filter(|entry| entry.key().0 <= now) {
            let (kind, id) = entry.remove();
            self.put_back(kind, id);
        }
        let expired: Vec<_> =
            self.leases.iter().filter(|(_, (until, _))| *until <= now).map(|(task, _)| task.clone()).collect();
        for (id, kind) in expired {
            self.leases.remove(&(id.clone(), kind));
            self.put_back(kind, id);
        }
        let most = self.bounds.most;
        while let Some((at, _)) = self.ended.front()
            && (*at + self.bounds.keep <= now || self.ended.len() > most)
        {
            self.forget_oldest();
        }
    }

    /// Forgets ended jobs, the oldest first, until `more` bytes fit.
    fn forget(&mut self, more: u64) {
        while self.bytes + more > self.bounds.memory && !self.ended.is_empty() {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((_, id)) = self.ended.pop_front() else { return };
        let Some(job) = self.jobs.remove(&id) else { return };
        self.bytes -= job.bytes();
        if let Some(key) = job.new.key {
            self.keys.remove(&key);
        }
    }

    /// A task that waits again goes before what came after it.
    fn put_back(&mut self, kind: Kind, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        match kind {
            Kind::Run => {
                job.state = State::Queued;
                self.runs[job.new.priority as usize].push_front(id);
            }
            Kind::Callback => self.callbacks.push_front(id),
        }
    }
}

/// The reason why a task is given up that was taken [`MOST_TAKEN`] times.
pub(super) fn taken_too_often() -> String {
    format!("the job was begun {MOST_TAKEN} times and never ended: its request may end the process that sends it")
}

/// Priorities in the order of their lanes.
const _: () = assert!(Priority::High as usize == 0 && Priority::Normal as usize == 1 && Priority::Low as usize == 2);
