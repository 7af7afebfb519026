//! The writing end of the line to a process. A run goes by the thread that has it, without a change of threads, where the kernel
//! takes it at once; the rest is the supervisor's.

use std::{io, os::unix::net::UnixStream, sync::Arc, time::Instant};

use socket2::SockRef;

use super::{child::Process, outgoing::Outgoing, shared::State};

/// The writing end. Frames go whole: nobody writes while one is not complete.
pub(in crate::runtime) struct FrameWriter {
    stream: Arc<UnixStream>,
    /// The supervisor writes, without the lock.
    pub(super) taken: bool,
    /// The supervisor's to send before anything else.
    pub(super) unsent: Option<Unsent>,
}

/// Bytes that the line did not take at once.
pub(in crate::runtime) enum Unsent {
    /// A run of many bytes.
    Run(Outgoing),
    /// The end of a frame.
    Rest(Vec<u8>),
}

impl FrameWriter {
    pub(super) fn new(stream: Arc<UnixStream>) -> Self {
        Self { stream, taken: false, unsent: None }
    }

    fn is_free(&self) -> bool {
        !self.taken && self.unsent.is_none()
    }

    /// Sends a run, as far as that takes no waiting.
    fn send(&mut self, run: Outgoing) {
        let Some(mut frame) = run.in_one_piece() else {
            self.unsent = Some(Unsent::Run(run));
            return;
        };
        match SockRef::from(&*self.stream).send_with_flags(&frame, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
            Ok(sent) if sent == frame.len() => {}
            Ok(sent) => self.unsent = Some(Unsent::Rest(frame.split_off(sent))),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                self.unsent = Some(Unsent::Rest(frame));
            }
            // Where it breaks, the reader hears of it, too.
            Err(_) => {}
        }
    }
}

impl Unsent {
    /// Sends it; `wanted` says now and then whether it still has to go.
    pub(super) fn send(self, process: &mut Process, wanted: impl Fn() -> bool) -> io::Result<()> {
        match self {
            Self::Run(run) => run.send(process, wanted),
            Self::Rest(rest) => process.write(&rest, &wanted),
        }
    }
}

impl State {
    /// Sends the runs that are due. True: the supervisor is to be woken, because one is due before it wakes, or has to be sent by it.
    pub(super) fn dispatch(&mut self, now: Instant) -> bool {
        while let Some(due) = self.queue.due() {
            if due > now {
                return due < self.alarm;
            }
            let Some(writer) = self.writer.as_mut().filter(|writer| !self.stop && writer.is_free()) else {
                return true;
            };
            if let Some(running) = self.queue.take(now) {
                writer.send(Outgoing::of(running));
                if !writer.is_free() {
                    return true;
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read as _, time::Duration};

    use bytes::Bytes;
    use tokio::sync::oneshot;

    use super::*;
    use crate::runtime::process::{
        document::Document,
        frame::{self, Kind},
        queue::{Limits, Outcome, ProcessRequest},
    };

    /// A state whose process reads from the other end.
    fn up(max_rows: usize, max_delay: Duration) -> (State, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let mut state = State::new(Limits { max_requests: 8, max_rows, max_delay, parallel_runs: 1 });
        state.writer = Some(FrameWriter::new(Arc::new(ours)));
        (state, theirs)
    }

    fn push(state: &mut State, now: Instant, bytes: usize) -> oneshot::Receiver<Outcome> {
        let (reply, answer) = oneshot::channel();
        let document = Document { json: Bytes::from(vec![b' '; bytes]), beside: Vec::new() };
        let entry = ProcessRequest { document, deadline: now + Duration::from_secs(9), since: now, first: true, reply };
        assert!(state.queue.push(vec![entry]).is_ok());
        answer
    }

    #[test]
    fn a_run_goes_by_the_thread_that_has_it() {
        let (mut state, mut theirs) = up(4, Duration::ZERO);
        let now = Instant::now();
        let _answer = push(&mut state, now, 3);
        assert!(!state.dispatch(now), "nobody else is needed");
        let frame = frame::read(&mut theirs).expect("a frame");
        assert_eq!((frame.kind, frame.body.len()), (Kind::Run, 3));
        let _second = push(&mut state, now, 3);
        assert!(!state.dispatch(now), "the process is busy");
        assert_eq!(state.queue.answered(1, now).map(|running| running.entries.len()), Some(1));
        assert!(!state.dispatch(now));
        assert_eq!(frame::read(&mut theirs).expect("a frame").body.len(), 3);
    }

    #[test]
    fn the_supervisor_is_woken_for_what_is_due_before_it_wakes() {
        let (mut state, _theirs) = up(4, Duration::from_millis(5));
        let now = Instant::now();
        state.alarm = now + Duration::from_secs(2);
        let _answer = push(&mut state, now, 3);
        assert!(state.dispatch(now));
        state.alarm = now + Duration::from_millis(5);
        assert!(!state.dispatch(now), "it wakes in time");
    }

    #[test]
    fn what_the_line_does_not_take_at_once_is_left_to_the_supervisor() {
        let (mut state, mut theirs) = up(1, Duration::ZERO);
        let now = Instant::now();
        let _large = push(&mut state, now, 1 << 20);
        assert!(state.dispatch(now));
        let line = state.writer.as_mut().expect("a writer");
        assert!(matches!(line.unsent.take(), Some(Unsent::Run(_))));

        // As if nobody had read for long: frames of this size fit until the kernel's buffer is full.
        let mut small = 0;
        while line.unsent.is_none() {
            state.queue.running[0].entries[0].document.json = Bytes::from(vec![b' '; 32 << 10]);
            line.send(Outgoing::of(&state.queue.running[0]));
            small += 1;
        }
        let Some(Unsent::Rest(rest)) = line.unsent.take() else { panic!("the end of a frame is left") };
        assert!(!rest.is_empty());
        drop(state);
        let mut taken = Vec::new();
        theirs.read_to_end(&mut taken).expect("read");
        taken.extend_from_slice(&rest);
        let mut from = &taken[..];
        for _ in 0..small {
            assert_eq!(frame::read(&mut from).expect("a frame").body.len(), 32 << 10);
        }
        assert!(from.is_empty());
    }

    #[test]
    fn nobody_writes_while_the_supervisor_does_or_after_the_stop() {
        let (mut state, _theirs) = up(4, Duration::ZERO);
        let now = Instant::now();
        let _answer = push(&mut state, now, 3);
        state.writer.as_mut().expect("a writer").taken = true;
        assert!(state.dispatch(now));
        state.writer.as_mut().expect("a writer").taken = false;
        state.stop = true;
        assert!(state.dispatch(now));
        assert!(state.queue.running.is_empty());
    }
}
