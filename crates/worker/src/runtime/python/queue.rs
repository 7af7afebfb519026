//! The requests of one replica: those that wait, and those that its process has. Synchronous, without a clock.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{
    document::Document,
    message::{Raised, Refusal},
};

/// The bytes of one run beyond which no more requests are joined: the process holds them twice, beside its model.
const MAX_BYTES: usize = 64 << 20;

/// Runs that a process has at once: one is computed, one is there already when it is done.
pub(super) const DEPTH: usize = 2;

/// The outcome of a request.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Its answer.
    Answer(Bytes),
    /// The model's code does not take it.
    Refused(Refusal),
    /// The model's code failed on it.
    Raised(Raised),
    /// Not run: the process is not there.
    NotRun(Duration),
    /// Perhaps run: the process ended.
    Lost(String),
    /// Its deadline passed before it was run.
    Late,
}

/// A request.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) document: Document,
    pub(super) deadline: Instant,
    pub(super) since: Instant,
    /// The first of a caller's request, which may have several rows.
    pub(super) first: bool,
    pub(super) reply: oneshot::Sender<Outcome>,
}

/// The bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) max_requests: usize,
    pub(super) max_rows: usize,
    pub(super) max_delay: Duration,
}

/// Requests that the process has.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) run: u64,
    pub(super) entries: Vec<Entry>,
    pub(super) sent: Instant,
}

/// The requests.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) limits: Limits,
    waiting: VecDeque<Entry>,
    pub(super) running: VecDeque<Running>,
    next: u64,
}

impl Queue {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, waiting: VecDeque::new(), running: VecDeque::new(), next: 1 }
    }

    /// Requests that are here.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.running.iter().map(|running| running.entries.len()).sum::<usize>()
    }

    /// Takes the rows of a request, all or none. One request is always taken when nothing else is here, however many
    /// rows it has.
    pub(super) fn push(&mut self, entries: Vec<Entry>) -> Result<(), usize> {
        let here = self.len();
        if here > 0 && here + entries.len() > self.limits.max_requests {
            return Err(here);
        }
        self.waiting.extend(entries);
        Ok(())
    }

    /// When the next run is to go: `None` where nothing waits or the process has enough.
    pub(super) fn due(&self) -> Option<Instant> {
        let first = self.waiting.front()?;
        let full = self.waiting.len() >= self.limits.max_rows;
        match self.running.len() {
            0 if full => Some(first.since),
            0 => Some(first.since + self.limits.max_delay),
            // What could still grow waits for the run before it: batches get larger as the load does.
            running if running < DEPTH && full => Some(first.since),
            _ => None,
        }
    }

    /// Takes the next run. Requests that nobody waits for are dropped, those that are late are told.
    pub(super) fn take(&mut self, now: Instant) -> Option<&Running> {
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
        self.running.push_back(Running { run, entries, sent: now });
        self.running.back()
    }

    /// The requests of a run that was answered.
    pub(super) fn answered(&mut self, run: u64) -> Option<Running> {
        let index = self.running.iter().position(|running| running.run == run)?;
        self.running.remove(index)
    }

    /// The process is gone: its runs are lost, and nothing waits for it.
    pub(super) fn lost(&mut self, why: &str, retry_in: Duration) {
        for entry in self.running.drain(..).flat_map(|running| running.entries) {
            let _ = entry.reply.send(Outcome::Lost(why.to_owned()));
        }
        for entry in self.waiting.drain(..) {
            let _ = entry.reply.send(Outcome::NotRun(retry_in));
        }
    }

    /// When the run that is computed has taken so long that nobody waits for it any more.
    pub(super) fn stuck_at(&self, grace: Duration) -> Option<Instant> {
        let running = self.running.front()?;
        let deadline = running.entries.iter().map(|entry| entry.deadline).max()?;
        Some(deadline.max(running.sent) + grace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(now: Instant, bytes: usize) -> (Entry, oneshot::Receiver<Outcome>) {
        let (reply, answer) = oneshot::channel();
        let document = Document { json: Bytes::from(vec![b' '; bytes]), beside: Vec::new() };
        (Entry { document, deadline: now + Duration::from_secs(9), since: now, first: true, reply }, answer)
    }

    fn queue(max_rows: usize) -> Queue {
        Queue::new(Limits { max_requests: 8, max_rows, max_delay: Duration::from_millis(5) })
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
        assert_eq!(queue.answered(1).map(|running| running.entries.len()), Some(1));
        assert!(queue.answered(1).is_none() && queue.answered(99).is_none());
    }

    #[test]
    fn who_left_is_not_run_and_who_is_late_is_told() {
        let (now, mut queue) = (Instant::now(), queue(4));
        let (left, gone) = entry(now, 1);
        drop(gone);
        let (late, mut told) = entry(now, 1);
        queue.push(vec![left, Entry { deadline: now, ..late }]).expect("room");
        assert!(queue.take(now).is_none());
        assert!(matches!(told.try_recv(), Ok(Outcome::Late)));
    }

    #[test]
    fn large_requests_are_not_joined() {
        let (now, mut queue) = (Instant::now(), queue(4));
        let (entries, _answers): (Vec<_>, Vec<_>) = (0..2).map(|_| entry(now, MAX_BYTES)).unzip();
        queue.push(entries).expect("room");
        assert_eq!(queue.take(now).map(|running| running.entries.len()), Some(1));
    }

    #[test]
    fn what_was_sent_is_lost_and_what_waited_was_not_run() {
        let (now, mut queue) = (Instant::now(), queue(1));
        let (entries, mut answers): (Vec<_>, Vec<_>) = (0..2).map(|_| entry(now, 1)).unzip();
        queue.push(entries).expect("room");
        queue.take(now);
        queue.lost("gone", Duration::from_secs(1));
        assert!(matches!(answers[0].try_recv(), Ok(Outcome::Lost(_))));
        assert!(matches!(answers[1].try_recv(), Ok(Outcome::NotRun(_))));
        assert_eq!(queue.len(), 0);
    }
}
