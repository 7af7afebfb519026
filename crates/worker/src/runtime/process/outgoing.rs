//! A run on its way to the process.

use bytes::Bytes;

use super::{
    child::Process,
    frame::{self, Kind},
    message::Run,
    queue::SentRun,
};

/// A run as it is sent. Its bytes are shared with the queue's entries.
pub(in crate::runtime) struct Outgoing {
    head: Vec<u8>,
    parts: Vec<Bytes>,
}

impl Outgoing {
    /// Puts the documents of a run, and the arrays beside them, one after the other.
    pub(in crate::runtime) fn of(running: &SentRun) -> Self {
        let (mut at, mut parts) = (0, Vec::new());
        let mut add = |part: &Bytes| {
            let start = at;
            at += part.len();
            parts.push(part.clone());
            (start, at)
        };
        let mut requests = Vec::with_capacity(running.entries.len());
        for entry in &running.entries {
            let (start, end) = add(&entry.document.json);
            let beside = entry.document.beside.iter().map(|array| {
                let (start, end) = add(&array.data);
                (&*array.name, array.datatype, &*array.shape, start, end)
            });
            requests.push((start, end, beside.collect()));
        }
        let head = serde_json::to_vec(&Run { run: running.run, requests }).unwrap_or_default();
        Self { head, parts }
    }

    /// The whole frame, if its bytes are few.
    pub(super) fn in_one_piece(&self) -> Option<Vec<u8>> {
        frame::in_one_piece(Kind::Run, &self.head, &self.parts)
    }

    /// Sends it; `wanted` says now and then whether it still has to go.
    pub(in crate::runtime) fn send(self, process: &mut Process, wanted: impl Fn() -> bool) -> std::io::Result<()> {
        let parts: Vec<&[u8]> = self.parts.iter().map(|part| &part[..]).collect();
        process.send(Kind::Run, &self.head, &parts, wanted)
    }
}
