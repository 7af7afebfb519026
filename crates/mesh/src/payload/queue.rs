//! The payloads that wait for one processor: bounded by number and bytes. What does not fit is dropped and counted.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use tokio::sync::mpsc;

use super::{MAX_METADATA_BYTES, Payload, Processor};

type Labels = [(&'static str, String); 2];

/// Counters of payloads by processor and result.
#[derive(Debug, Default)]
pub(super) struct Counts(Family<Labels, Counter>);

impl Counts {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let counts = Self::default();
        let help = "Requests and answers for payload processors, by what became of them";
        registry.register("berth_payloads", help, counts.0.clone());
        counts
    }

    /// The counters of one processor. They are there from the start, so that none is missed.
    pub(super) fn of(&self, processor: &str) -> DeliveryCounts {
        let of = |result: &str| {
            let labels = [("processor", processor.to_owned()), ("result", result.to_owned())];
            self.0.get_or_create(&labels).clone()
        };
        DeliveryCounts {
            delivered: of("delivered"),
            failed: of("failed"),
            dropped: of("dropped"),
            too_long: of("too_long"),
        }
    }
}

/// Payloads of one processor, by their end.
#[derive(Debug, Clone)]
pub(super) struct DeliveryCounts {
    pub(super) delivered: Counter,
    pub(super) failed: Counter,
    /// Payloads that were dropped because the queue was full.
    pub(super) dropped: Counter,
    /// Longer than all that may wait.
    pub(super) too_long: Counter,
}

/// A queue's end for those who tell.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) processor: Processor,
    sender: mpsc::Sender<QueuedPayload>,
    bytes: Arc<AtomicUsize>,
    pub(super) most: usize,
    pub(super) counted: DeliveryCounts,
}

/// A payload that waits for its processor. Its room in the queue is free again when it is dropped.
#[derive(Debug)]
pub(super) struct QueuedPayload {
    pub(super) payload: Arc<Payload>,
    _room: QueueRoom,
}

/// Bytes that are given back when a payload has gone.
#[derive(Debug)]
struct QueueRoom {
    bytes: Arc<AtomicUsize>,
    taken: usize,
}

impl Drop for QueueRoom {
    fn drop(&mut self) {
        self.bytes.fetch_sub(self.taken, Relaxed);
    }
}

impl Queue {
    /// A queue for at most `waiting` payloads, of `most` bytes together.
    pub(super) fn new(
        processor: Processor,
        most: usize,
        waiting: usize,
        counted: DeliveryCounts,
    ) -> (Self, mpsc::Receiver<QueuedPayload>) {
        let (sender, receiver) = mpsc::channel(waiting.max(1));
        (Self { processor, sender, bytes: Arc::default(), most, counted }, receiver)
    }

    /// Queues a payload, if there is room.
    pub(super) fn offer(&self, payload: &Arc<Payload>) {
        let taken = payload.length() + MAX_METADATA_BYTES;
        let before = self.bytes.fetch_add(taken, Relaxed);
        let room = QueueRoom { bytes: Arc::clone(&self.bytes), taken };
        if before + taken > self.most.saturating_add(MAX_METADATA_BYTES)
            || self.sender.try_send(QueuedPayload { payload: Arc::clone(payload), _room: room }).is_err()
        {
            self.counted.dropped.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_wire::request_id::RequestId;
    use bytes::Bytes;

    use super::*;

    fn payload(length: usize) -> Arc<Payload> {
        Arc::new(Payload {
            id: RequestId::generate(),
            model: "a".into(),
            alias: None,
            method: "b/c".into(),
            metadata: http::HeaderMap::new(),
            data: vec![Bytes::from(vec![0; length])],
            code: None,
        })
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let counted = Counts::default().of("logger");
        let processor: Processor = "logger://*".parse().expect("a processor");
        let (queue, mut receiver) = Queue::new(processor, 3 * MAX_METADATA_BYTES, 2, counted);
        queue.offer(&payload(3 * MAX_METADATA_BYTES));
        queue.offer(&payload(0));
        assert_eq!(queue.counted.dropped.get(), 1, "the second has no room in bytes");
        drop(receiver.try_recv().expect("the first"));
        for _ in 0..3 {
            queue.offer(&payload(0));
        }
        assert_eq!(queue.counted.dropped.get(), 2, "the third has no room in number");
        drop((receiver.try_recv(), receiver.try_recv()));
        assert_eq!(queue.bytes.load(Relaxed), 0, "all room is given back");
    }
}
