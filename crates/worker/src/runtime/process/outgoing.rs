//! A run on its way to the process.

use bytes::Bytes;

use super::{
    child::Process,
    frame::{self, Kind},
    message::Run,
    queue::SentRun,
};

/// Arrays begin at a multiple of this many bytes of the body. Libraries copy arrays whose numbers are not aligned, or take a slower way.
const ALIGNMENT: usize = 8;

/// A run as it is sent. Its bytes are shared with the queue's entries.
pub(in crate::runtime) struct Outgoing {
    head: Vec<u8>,
    parts: Vec<Bytes>,
}

impl Outgoing {
    /// Puts the documents of a run, and the arrays beside them, one after the other.
    pub(in crate::runtime) fn of(running: &SentRun) -> Self {
        let (mut at, mut parts) = (0_usize, Vec::new());
        let mut add = |part: &Bytes, alignment: usize| {
            let start = at.next_multiple_of(alignment);
            if start > at {
                parts.push(Bytes::from_static(&[0; ALIGNMENT][..start - at]));
            }
            at = start + part.len();
            parts.push(part.clone());
            (start, at)
        };
        let mut requests = Vec::with_capacity(running.entries.len());
        for entry in &running.entries {
            let (start, end) = add(&entry.document.json, 1);
            let beside = entry.document.beside.iter().map(|array| {
                let (start, end) = add(&array.data, ALIGNMENT);
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

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Instant};

    use berth_spec::Datatype;
    use proptest::prelude::*;
    use tokio::sync::oneshot;

    use super::*;
    use crate::runtime::process::{
        document::{Array, Document},
        queue::ProcessRequest,
    };

    fn request(json: &str, rows: &[usize]) -> ProcessRequest {
        let beside = rows.iter().map(|bytes| Array {
            name: Arc::from("row"),
            datatype: Datatype::Int8,
            shape: Arc::from([*bytes as i64]),
            data: vec![7; *bytes].into(),
        });
        let document = Document { json: Bytes::copy_from_slice(json.as_bytes()), beside: beside.collect() };
        let (reply, now) = (oneshot::channel().0, Instant::now());
        ProcessRequest { document, deadline: now, since: now, first: true, reply }
    }

    proptest! {
        #[test]
        fn arrays_are_aligned_and_everything_is_at_the_place_that_the_head_names(
            requests in proptest::collection::vec((" *", proptest::collection::vec(0_usize..40, 0..4)), 1..5),
        ) {
            let entries = requests.iter().map(|(spaces, rows)| request(&format!("{{{spaces}}}"), rows)).collect();
            let run = Outgoing::of(&SentRun { run: 1, entries, sent: Instant::now(), stopped: false, computed: false });
            let body: Vec<u8> = run.parts.concat();
            let head: serde_json::Value = serde_json::from_slice(&run.head).expect("JSON");
            let place = |value: &serde_json::Value| value.as_u64().expect("a place") as usize;
            for (named, (spaces, rows)) in head["requests"].as_array().expect("requests").iter().zip(&requests) {
                let json = format!("{{{spaces}}}");
                prop_assert_eq!(&body[place(&named[0])..place(&named[1])], json.as_bytes());
                for (beside, bytes) in named[2].as_array().expect("arrays").iter().zip(rows) {
                    let (start, end) = (place(&beside[3]), place(&beside[4]));
                    prop_assert_eq!(start % ALIGNMENT, 0);
                    prop_assert_eq!(&body[start..end], &vec![7; *bytes][..]);
                }
            }
        }
    }
}
