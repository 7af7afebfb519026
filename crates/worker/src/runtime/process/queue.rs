//! The requests of one replica: those that wait, and those that its process has. Synchronous, without a clock.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{
    document::Document,
    gathering::Gathering,
    message::{Raised, Refusal},
};

/// The bytes of one run beyond which no more requests are joined: the process holds them twice, beside its model.
const MAX_BYTES: usize = 64 << 20;

/// The outcome of a request to a model's process.
#[derive(Debug)]
pub(in crate::runtime) enum Outcome {
    Answer(Bytes),
    /// The model's code does not take it.
    Refused(Refusal),
    /// The model's code failed on it.
    Raised(Raised),
    /// Not run: the process is not there. It may be back after this time.
    NotRun(Duration),
    /// Perhaps run: the answer will not come, for this reason.
    Lost(String),
    /// Its deadline passed before it was run.
    Late,
}

/// A request to the process: one row of a caller, or the joined rows of several.
#[derive(Debug)]
pub(in crate::runtime) struct ProcessRequest {
    pub(in crate::runtime) document: Document,
    pub(in crate::runtime) deadline: Instant,
    pub(in crate::runtime) since: Instant,
    /// The first of a caller's request, which may have several rows.
    pub(in crate::runtime) first: bool,
    pub(in crate::runtime) reply: oneshot::Sender<Outcome>,
}

/// The bounds of one replica's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runtime) struct Limits {
    pub(in crate::runtime) max_requests: usize,
    pub(in crate::runtime) max_rows: usize,
    pub(in crate::runtime) max_delay: Duration,
    /// Runs that the process computes at once. It has one more, which is there already when one of them is done.
    pub(in crate::runtime) parallel_runs: usize,
}

/// A run that the process has and has not answered, with its requests.
#[derive(Debug)]
pub(in crate::runtime) struct SentRun {
    pub(in crate::runtime) run: u64,
    pub(in crate::runtime) entries: Vec<ProcessRequest>,
    pub(in crate::runtime) sent: Instant,
    /// The process was told that nobody waits for it.
    pub(in crate::runtime) stopped: bool,
    /// The process has said that it is computed.
    pub(in crate::runtime) computed: bool,
}

/// The requests of one replica, waiting and sent, and the decision which to send together. Brain without I/O.
#[derive(Debug)]
pub(in crate::runtime) struct Queue {
    pub(in crate::runtime) limits: Limits,
    waiting: VecDeque<ProcessRequest>,
    pub(in crate::runtime) running: VecDeque<SentRun>,
    gathering: Gathering,
    /// The process writes the answers of its run: the requests that wait may go.
    writes: bool,
    /// The last answer.
    answered: Option<Instant>,
    next: u64,
}

impl Queue {
    pub(in crate::runtime) fn new(limits: Limits) -> Self {
        let (waiting, running) = (VecDeque::new(), VecDeque::new());
        Self { limits, waiting, running, gathering: Gathering::default(), writes: false, answered: None, next: 1 }
    }

    /// The number of requests that wait or run.
    pub(in crate::runtime) fn len(&self) -> usize {
        self.waiting.len() + self.running.iter().map(|running| running.entries.len()).sum::<usize>()
    }

    /// Callers whose requests the next run could begin with.
    fn callers(&self) -> usize {
        self.waiting.iter().take(self.limits.max_rows).filter(|entry| entry.first).count()
    }

    /// Takes the rows of a request, all or none. One request is always taken when nothing else is here, however many
    /// rows it has.
    pub(in crate::runtime) fn push(&mut self, entries: Vec<ProcessRequest>) -> Result<(), usize> {
        let here = self.len();
        if here > 0 && here + entries.len() > self.limits.max_requests {
            return Err(here);
        }
        self.waiting.extend(entries);
        Ok(())
    }

    /// When the next run is to go: `None` where nothing waits or the process has enough.
    pub(in crate::runtime) fn due(&self) -> Option<Instant> {
        let first = self.waiting.front()?;
        let full = self.waiting.len() >= self.limits.max_rows;
        match self.running.len() {
            0 if full => Some(first.since),
            0 => {
                let due = first.since + self.limits.max_delay;
                Some(self.gathering.until(self.callers()).map_or(due, |until| until.max(due)))
            }
            // What could still grow waits until the run before it is computed: batches get larger as the load does.
            running if running > self.limits.parallel_runs => None,
            _ if full => Some(first.since),
            _ => self.writes.then_some(first.since + self.limits.max_delay),
        }
    }

    /// Takes the next run. Requests that nobody waits for are dropped, those that are late are told.
    pub(in crate::runtime) fn take(&mut self, now: Instant) -> Option<&SentRun> {
        self.gathering.taken(self.callers());
        self.writes = false;
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while entries.len() < self.limits.max_rows.max(1) {
            let Some(entry) = self.waiting.pop_front() else { break };
            if entry.reply.is_closed() {
                continue;
            }
            if entry.deadline <= now {
                // Nobody may be waiting any more.
                let _ = entry.reply.send(Outcome::Late);
                continue;
            }
            bytes += entry.document.len();
            if bytes > MAX_BYTES && !entries.is_empty() {
                self.waiting.push_front(entry);
                break;
            }
            entries.push(entry);
        }
        if entries.is_empty() {
            return None;
        }
        let run = self.next;
        self.next += 1;
        self.running.push_back(SentRun { run, entries, sent: now, stopped: false, computed: false });
        self.running.back()
    }

    /// The process has computed a run and writes its answers. Returns true if what waits may go: it is there when the process is done,
    /// and callers that are not here yet have no answer to come back with. Not where a run costs so much that callers are worth a wait.
    pub(in crate::runtime) fn computed(&mut self, run: u64, now: Instant) -> bool {
        let Some(first) = self.running.front_mut().filter(|first| first.run == run && !first.computed) else {
            return false;
        };
        first.computed = true;
        let began = self.answered.map_or(first.sent, |before| before.max(first.sent));
        let may_go = !self.waiting.is_empty() && self.running.len() <= self.limits.parallel_runs;
        self.writes = may_go && self.gathering.computed(now.saturating_duration_since(began));
        self.writes
    }

    /// The requests of a run that was answered.
    pub(in crate::runtime) fn answered(&mut self, run: u64, now: Instant) -> Option<SentRun> {
        let index = self.running.iter().position(|running| running.run == run)?;
        let running = self.running.remove(index)?;
        self.writes = false;
        // Of two that the process had, the second began when the first was answered.
        let began = self.answered.replace(now).map_or(running.sent, |before| before.max(running.sent));
        let time = now.saturating_duration_since(began);
        self.gathering.learn(running.entries.len(), time);
        if self.running.is_empty() {
            let callers = running.entries.iter().filter(|entry| entry.first).count();
            self.gathering.answered(callers, time, self.callers(), now);
        }
        Some(running)
    }

    /// The process is gone: the runs that it had begun are lost. The one that it had beside them was not run, nor what waits.
    pub(in crate::runtime) fn lost(&mut self, why: &str, retry_in: Duration) {
        let not_begun = self.running.split_off(self.limits.parallel_runs.max(1).min(self.running.len()));
        self.writes = false;
        for entry in self.running.drain(..).flat_map(|running| running.entries) {
            let _ = entry.reply.send(Outcome::Lost(why.to_owned()));
        }
        for entry in not_begun.into_iter().flat_map(|running| running.entries).chain(self.waiting.drain(..)) {
            let _ = entry.reply.send(Outcome::NotRun(retry_in));
        }
    }

    /// When a run that is computed has taken so long that nobody waits for it any more.
    pub(in crate::runtime) fn stuck_at(&self, grace: Duration) -> Option<Instant> {
        let ends = self.running.iter().take(self.limits.parallel_runs).filter_map(|running| {
            let deadline = running.entries.iter().map(|entry| entry.deadline).max()?;
            Some(deadline.max(running.sent) + grace)
        });
        ends.min()
    }

    /// A run that nobody waits for any more, once.
    pub(in crate::runtime) fn abandoned(&mut self) -> Option<u64> {
        let nobody =
            |running: &&mut SentRun| !running.stopped && running.entries.iter().all(|entry| entry.reply.is_closed());
        let running = self.running.iter_mut().find(nobody)?;
        running.stopped = true;
        Some(running.run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(now: Instant, bytes: usize) -> (ProcessRequest, oneshot::Receiver<Outcome>) {
        let (reply, answer) = oneshot::channel();
        let document = Document { json: Bytes::from(vec![b' '; bytes]), beside: Vec::new() };
        (ProcessRequest { document, deadline: now + Duration::from_secs(9), since: now, first: true, reply }, answer)
    }

    fn queue(max_rows: usize) -> Queue {
        Queue::new(Limits { max_requests: 8, max_rows, max_delay: Duration::from_millis(5), parallel_runs: 1 })
    }

    #[test]
    fn batches_grow_while_the_process_is_busy() {
        let (now, mut queue) = (Instant::now(), queue(4));
        let mut answers = Vec::new();
        let mut push = |queue: &mut Queue| {
            let (entry, answer) = entry(now, 1);
            answers.push(answer);
            queue.push(vec![entry])
        };
        assert_eq!(queue.due(), None);
        push(&mut queue).expect("room");
        assert_eq!(queue.due(), Some(now + Duration::from_millis(5)), "it may wait for others");
        assert_eq!(queue.take(now).map(|running| running.entries.len()), Some(1));
        (0..3).for_each(|_| push(&mut queue).expect("room"));
        assert_eq!(queue.due(), None, "the process is busy, and more may come");
        push(&mut queue).expect("room");
        assert_eq!(queue.due(), Some(now), "nothing more fits");
        assert_eq!(queue.take(now).map(|running| running.entries.len()), Some(4));
        (0..3).for_each(|_| push(&mut queue).expect("room"));
        assert_eq!(push(&mut queue), Err(8), "full");
        assert_eq!(queue.answered(1, now).map(|running| running.entries.len()), Some(1));
        assert!(queue.answered(1, now).is_none() && queue.answered(99, now).is_none());
    }

    #[test]
    fn a_run_waits_for_the_callers_that_were_just_answered() {
        let (mut now, mut queue) = (Instant::now(), queue(8));
        queue.limits.max_delay = Duration::ZERO;
        let mut answers = Vec::new();
        let mut push = |queue: &mut Queue, now: Instant| {
            let (entry, answer) = entry(now, 1);
            answers.push(answer);
            queue.push(vec![entry]).expect("room");
        };
        push(&mut queue, now);
        let run = queue.take(now).expect("a run").run;
        (0..2).for_each(|_| push(&mut queue, now));
        now += Duration::from_millis(6);
        assert!(queue.answered(run, now).is_some());
        assert!(queue.due().is_some_and(|due| due > now), "for the one that was answered");
        push(&mut queue, now);
        assert!(queue.due().is_some_and(|due| due <= now), "it is back");
        assert_eq!(queue.take(now).map(|running| running.entries.len()), Some(3));
    }

    #[test]
    fn the_next_run_goes_while_the_answers_of_one_are_written() {
        let (now, mut queue) = (Instant::now(), queue(8));
        let mut answers = Vec::new();
        let mut push = |queue: &mut Queue| {
            let (entry, answer) = entry(now, 1);
            answers.push(answer);
            queue.push(vec![entry]).expect("room");
        };
        push(&mut queue);
        let run = queue.take(now).expect("a run").run;
        push(&mut queue);
        assert_eq!((queue.computed(run + 1, now), queue.due()), (false, None), "another run");
        assert!(queue.computed(run, now));
        assert_eq!(queue.due(), Some(now + queue.limits.max_delay), "it waits for others as long as always");
        assert_eq!(queue.take(now).map(|running| running.entries.len()), Some(1));
        push(&mut queue);
        assert_eq!(
            (queue.computed(run, now), queue.due()),
            (false, None),
            "it said so before, and has one more already"
        );
        assert!(queue.answered(run, now).is_some());
        assert_eq!(queue.due(), None, "the next one is not computed");
        queue.lost("gone", Duration::ZERO);
        let outcomes = answers.iter_mut().map(|answer| answer.try_recv().ok());
        let lost = outcomes.map(|outcome| outcome.map(|outcome| matches!(outcome, Outcome::Lost(_))));
        assert_eq!(lost.collect::<Vec<_>>(), [None, Some(true), Some(false)]);
    }

    #[test]
    fn requests_that_come_while_answers_are_written_wait_for_them() {
        let (now, mut queue) = (Instant::now(), queue(8));
        let (first, _one) = entry(now, 1);
        queue.push(vec![first]).expect("room");
        let run = queue.take(now).expect("a run").run;
        assert!(!queue.computed(run, now), "nobody waits");
        let (second, _other) = entry(now, 1);
        queue.push(vec![second]).expect("room");
        assert_eq!(queue.due(), None);
        queue.push(vec![entry(now, 1).0]).expect("room");
        queue.lost("gone", Duration::ZERO);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_single_caller_never_waits_however_many_rows_a_request_has() {
        let (mut now, mut queue) = (Instant::now(), queue(8));
        queue.limits.max_delay = Duration::ZERO;
        let mut answers = Vec::new();
        for rows in [6, 1, 4, 1] {
            let request = (0..rows).map(|row| {
                let (entry, answer) = entry(now, 1);
                answers.push(answer);
                ProcessRequest { first: row == 0, ..entry }
            });
            queue.push(request.collect()).expect("room");
            assert!(queue.due().is_some_and(|due| due <= now), "{rows} rows");
            let run = queue.take(now).expect("a run").run;
            now += Duration::from_millis(6);
            assert!(queue.answered(run, now).is_some());
        }
    }

    #[test]
    fn who_left_is_not_run_and_who_is_late_is_told() {
        let (now, mut queue) = (Instant::now(), queue(4));
        let (left, gone) = entry(now, 1);
        drop(gone);
        let (late, mut told) = entry(now, 1);
        queue.push(vec![left, ProcessRequest { deadline: now, ..late }]).expect("room");
        assert!(queue.take(now).is_none());
        assert!(matches!(told.try_recv(), Ok(Outcome::Late)));
    }

    #[test]
    fn a_run_that_nobody_waits_for_is_told_once_and_the_slowest_is_stuck_first() {
        let (now, mut queue) = (Instant::now(), queue(1));
        queue.limits.parallel_runs = 2;
        let (slow, _patient) = entry(now, 1);
        let (quick, gone) = entry(now, 1);
        let soon = now + Duration::from_secs(1);
        queue.push(vec![slow, ProcessRequest { deadline: soon, ..quick }]).expect("room");
        (0..2).for_each(|_| assert!(queue.take(now).is_some()));
        assert_eq!(queue.stuck_at(Duration::from_secs(1)), Some(soon + Duration::from_secs(1)));
        assert_eq!(queue.abandoned(), None);
        drop(gone);
        assert_eq!((queue.abandoned(), queue.abandoned()), (Some(2), None));
    }

    #[test]
    fn large_requests_are_not_joined() {
        let (now, mut queue) = (Instant::now(), queue(4));
        let (entries, _answers): (Vec<_>, Vec<_>) = (0..2).map(|_| entry(now, MAX_BYTES)).unzip();
        queue.push(entries).expect("room");
        assert_eq!(queue.take(now).map(|running| running.entries.len()), Some(1));
    }

    #[test]
    fn what_was_begun_is_lost_and_what_was_sent_beside_it_or_waited_was_not_run() {
        let (now, mut queue) = (Instant::now(), queue(1));
        let (entries, mut answers): (Vec<_>, Vec<_>) = (0..3).map(|_| entry(now, 1)).unzip();
        queue.push(entries).expect("room");
        (0..2).for_each(|_| assert!(queue.take(now).is_some()));
        queue.lost("gone", Duration::from_secs(1));
        assert!(matches!(answers[0].try_recv(), Ok(Outcome::Lost(_))));
        assert!(matches!(answers[1].try_recv(), Ok(Outcome::NotRun(_))));
        assert!(matches!(answers[2].try_recv(), Ok(Outcome::NotRun(_))));
        assert_eq!(queue.len(), 0);
    }
}
