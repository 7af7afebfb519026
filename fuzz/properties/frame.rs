//! Properties that hold for any bytes that a model's process sends.

use berth_worker::runtime::process::frame::{Broken, PREFIX, prefix, read};

/// A frame is what was sent, no more; anything else is refused, and nothing is taken for bytes that did not come.
pub(crate) fn frame(data: &[u8]) {
    let mut from = data;
    while !from.is_empty() {
        let before = from;
        match read(&mut from) {
            Ok(frame) => {
                let mut again = prefix(frame.kind, frame.head.len(), frame.body.len()).to_vec();
                again.extend_from_slice(&frame.head);
                again.extend_from_slice(&frame.body);
                assert_eq!(again, before[..before.len() - from.len()]);
                assert!(again.len() >= PREFIX);
            }
            Err(Broken::Closed | Broken::Kind(_) | Broken::TooLarge { .. }) => return,
            Err(Broken::Io(error)) => panic!("bytes in memory cannot break: {error}"),
        }
    }
}
